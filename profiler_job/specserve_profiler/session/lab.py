"""What the stages of one run share: the request, boots, prompts, the time, and what the user must be told."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.contract.steps import Limits
from specserve_profiler.dialect import support
from specserve_profiler.dialect.arguments import refused_arguments
from specserve_profiler.dialect.config_keys import refused_config
from specserve_profiler.engine import installed
from specserve_profiler.engine.records import StepLog, read_limits
from specserve_profiler.engine.server import Engine
from specserve_profiler.prompts.entries import Entry
from specserve_profiler.prompts.workload import Prompts, load, tokenize
from specserve_profiler.session.boots import Boots
from specserve_profiler.session.console import Stage, say, told
from specserve_profiler.session.measure import Bench
from specserve_profiler.statistics.acceptance import LEAST_ROUND
from specserve_profiler.statistics.budget import (
    ACCEPTANCE,
    BASELINE,
    BASELINE_LOOP,
    GRID,
    LOOP,
    UNVERIFIED,
    Budget,
    Pace,
)
from specserve_profiler.statistics.grid import candidates, plan_grid, runnable
from specserve_profiler.statistics.sampling import BLOCK_STEPS

REBOOTS = 2
"""Engines that may be lost to cells, each of which is then given up."""
MOST_HANG_SECONDS = 120.0
"""An engine without a step for so long hangs; a tenth of the time for everything where that is less."""
SPARE_SECONDS = 30.0
TOLD_AGAIN = 0.1
"""Share by which measuring may take longer than was said."""
CELLS = "one block of every cell, a few texts at every K"


class Lab:
    """The shared state of one run."""

    def __init__(self, request: ProfileRequest) -> None:
        self.request = request
        self.boots = Boots(request)
        self.budget = Budget(request.measure_seconds, request.verify)
        self.pace = Pace()
        """Of the engine without speculation; known as soon as one was up."""
        self.limits: Limits | None = None
        """Of the first boot; of the one that speculates as soon as there is one."""
        self.warnings: list[str] = []
        self.prompts: Prompts | None = None
        self._entries: list[Entry] = []
        self._told = 0.0

    async def prepare(self) -> None:
        """All that can be refused before anything boots. Raises ProfilingError."""
        check(self.request)
        if short := installed.short_drafter(self.request):
            self.warn(short)
        self.boots.doing = "reading the prompts"
        self._entries = await load(self.request.prompts, say)

    async def bench(self, engine: Engine) -> Bench:
        """A booted engine, ready to be measured. The first one tokenizes the prompts."""
        request = self.request
        try:
            limits = read_limits(engine.directory)
        except FileNotFoundError as error:
            raise ProfilingError(
                "EngineUnsupported", "the engine did not load the probe: its version ignores --scheduler-cls"
            ) from error
        if self.prompts is None:
            self.prompts = await tokenize(
                self._entries, engine, request.workload, limits.max_model_len, say, limits.vocabulary
            )
            warning = self.prompts.reuse_warning(max(request.batch_sizes))
            if warning is not None:
                self.warn(warning)
        self.limits = self.limits or limits
        hang = min(MOST_HANG_SECONDS, request.timeout_seconds / 10)
        return Bench(engine, limits, StepLog(engine.directory), self.prompts, request.workload, hang)

    async def surviving(
        self,
        name: str,
        config: Mapping[str, Any] | None,
        measure: Callable[[Engine], Coroutine[Any, Any, None]],
        blame: Callable[[str], str | None],
    ) -> None:
        """Boots and measures. An engine that does not survive a cell is booted anew, without it.

        ``blame`` gives that cell up and names it, or answers None where it is not known; then the error is raised.
        """
        for lost in range(REBOOTS + 1):
            try:
                return await self.boots.boot(name, config, measure)
            except ProfilingError as error:
                if error.reason not in ("EngineCrashed", "EngineHung") or lost == REBOOTS:
                    raise
                cell = blame(str(error))
                if cell is None:
                    raise
                self.warn(f"{cell} was given up: {error}")
                say("the engine is booted anew, without that cell")
        return None

    def foresee(self, bench: Bench, baseline: float) -> None:
        """What the cells take at the least, as far as the pace is known; those of the baseline ``baseline`` seconds."""
        request, pace = self.request, self.pace
        ks = candidates(request.speculation.max_tokens)
        cells = runnable(plan_grid(request.batch_sizes, ks, bench.limits, bench.request_tokens))
        texts = pace.generations(min(LEAST_ROUND, max(cells, default=1)), request.workload.output_tokens)
        decks = (pace.slower().cohort(size, BLOCK_STEPS[-1] * len(ks)) for size, ks in cells.items())
        self.budget.least = {BASELINE: baseline, ACCEPTANCE: texts * request.speculation.max_tokens, GRID: sum(decks)}

    def tell_least(self, rest: float) -> None:
        """Says how long the cells take at the least, of which ``rest`` is to come; again where that is news."""
        most, least = self.budget.seconds, self.budget.spent + rest
        told, self._told = self._told, least
        if not told and least <= most:
            say(f"measuring takes {most:g} s at most, about {least:.0f} s at the least")
        elif least > most and abs(least - told) > TOLD_AGAIN * told:
            say(f"measuring takes about {least:.0f} s at the least ({CELLS}): measureSeconds {most:g} cannot be kept")

    def verifies(self, loop: float) -> bool:
        """Whether closed loops of the baseline and each arm, ``loop`` seconds each at the least, fit beside the cells.

        Their time is kept from now on; or it is told that there is none.
        """
        budget = self.budget
        if budget.least_from(ACCEPTANCE) + (1 + budget.arms) * loop <= budget.left:
            budget.least |= {BASELINE_LOOP: loop, LOOP: loop}
            return True
        budget.weights = UNVERIFIED
        self.warn(f"measureSeconds {budget.seconds:g} leaves no time to verify the table in a closed loop")
        return False

    def check_kept(self) -> None:
        """Tells where the cells took longer than all was to take."""
        if self.budget.spent > (1 + TOLD_AGAIN) * self.budget.seconds:
            self.warn(
                f"measuring took {self.budget.spent:.0f} s, more than measureSeconds {self.budget.seconds:g}: "
                f"that is the least ({CELLS})"
            )

    def stage(self, name: str, seconds: float | None) -> TimedStage:
        """A stage with a budget, to be entered; None where it is only known later."""
        return TimedStage(self, name, seconds)

    def warn(self, text: str) -> None:
        """Something that the user must know; told once."""
        if text not in self.warnings:
            self.warnings.append(text)
            say(f"warning: {text}")
            told("warning", text=text)

    def time_for_a_boot(self, what: str, stage: str, least: float) -> bool:
        """Whether another boot and what is measured in it, ``least`` seconds, fit into the time; says so where not."""
        seconds = self.budget.share(stage)
        if seconds < least:
            self.warn(f"measureSeconds {self.budget.seconds:g} left no time to measure {what}: give it more")
        elif self.boots.left <= 1.5 * self.boots.longest_boot + seconds + SPARE_SECONDS:
            self.warn(f"there was no time left to boot {what}: give the profile a longer timeout")
        else:
            return True
        return False


class TimedStage:
    """A stage that is named, timed and shown."""

    def __init__(self, lab: Lab, name: str, seconds: float | None) -> None:
        self._lab, self._name, self._seconds = lab, name, seconds
        self._began = 0.0

    def __enter__(self) -> Stage:
        self._lab.boots.doing = f"measuring: {self._name}"
        self._began = time.monotonic()
        return Stage(self._name, self._seconds)

    def __exit__(self, *_: object) -> None:
        self._lab.boots.took(self._name, self._began)
        self._lab.budget.spent += time.monotonic() - self._began


def check(request: ProfileRequest) -> None:
    """Refuses what would only fail, or mislead, after minutes. Raises ProfilingError."""
    honour = installed.foresee(request)
    if isinstance(honour, support.Refused):
        raise ProfilingError("SpeculationUnsupported", str(honour))
    if unreadable := installed.unreadable_models(request):
        raise ProfilingError("ModelUnreadable", "; ".join(unreadable))
    mismatch = installed.drafter_mismatch(request)
    if mismatch is not None:
        raise ProfilingError("DrafterMismatch", f"{mismatch}: choose a drafter that was made for this target")
    engine = request.engine
    version = installed.engine_version(engine.command)
    refused = [f"engine.args {argument}: {why}" for argument, why in refused_arguments(engine.args)] + [
        f"speculation.config.{key}: {why}"
        for key, why in refused_config(request.speculation, engine.tensor_parallel_size, version)
    ]
    if request.model.startswith("-"):
        refused.append(f"model {request.model}: the engine would take it for a flag")
    if refused:
        raise ProfilingError("ArgumentsInvalid", "; ".join(refused))
    if request.engine.max_model_len < request.workload.output_tokens + 16:
        raise ProfilingError(
            "WorkloadInvalid",
            f"workload.outputTokens {request.workload.output_tokens} leaves no room for a prompt in "
            f"engine.maxModelLen {request.engine.max_model_len}",
        )
