"""What the stages of one run share: the request, boots, prompts, the time, and what the user must be told."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.contract.request import ProfileRequest, Verify
from specserve_profiler.contract.steps import Limits
from specserve_profiler.dialect import support
from specserve_profiler.dialect.arguments import refused_arguments
from specserve_profiler.engine import installed
from specserve_profiler.engine.records import StepLog, read_limits
from specserve_profiler.engine.server import Engine
from specserve_profiler.prompts.entries import Entry
from specserve_profiler.prompts.workload import Prompts, load, tokenize
from specserve_profiler.session.boots import Boots
from specserve_profiler.session.console import Stage, say, told
from specserve_profiler.session.measure import Bench

REBOOTS = 2
"""Engines that may be lost to cells, each of which is then given up."""
MOST_HANG_SECONDS = 120.0
"""An engine without a step for so long hangs; a tenth of the time for everything where that is less."""
SPARE_SECONDS = 30.0


@dataclass(frozen=True)
class Shares:
    """Shares of the time for measuring. Both boots of the baseline take theirs, the second only where it is needed."""

    baseline: float
    baseline_loop: float
    acceptance: float
    grid: float
    loop: float

    @classmethod
    def of(cls, verify: Verify) -> Shares:
        """They add up to 1 with the baseline counted twice."""
        if verify == "Off":
            return cls(baseline=0.10, baseline_loop=0, acceptance=0.35, grid=0.45, loop=0)
        return cls(baseline=0.06, baseline_loop=0.08, acceptance=0.24, grid=0.30, loop=0.18)


class Lab:
    """The shared state of one run."""

    def __init__(self, request: ProfileRequest) -> None:
        self.request = request
        self.boots = Boots(request)
        self.shares = Shares.of(request.verify)
        self.limits: Limits | None = None
        """Of the first boot; of the one that speculates as soon as there is one."""
        self.warnings: list[str] = []
        self.prompts: Prompts | None = None
        self._entries: list[Entry] = []

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

    def stage(self, name: str, seconds: float) -> TimedStage:
        """A stage with a budget, to be entered."""
        return TimedStage(self.boots, name, seconds)

    def warn(self, text: str) -> None:
        """Something that the user must know; told once."""
        if text not in self.warnings:
            self.warnings.append(text)
            say(f"warning: {text}")
            told("warning", text=text)

    def time_for_a_boot(self, what: str) -> bool:
        """Whether another boot and its closed loop fit into the time for everything; says so where not."""
        needed = 1.5 * self.boots.longest_boot + self.shares.loop * self.request.measure_seconds
        if self.boots.left > needed + SPARE_SECONDS:
            return True
        self.warn(f"there was no time left to boot {what}: give the profile a longer timeout")
        return False


class TimedStage:
    """A stage that is named, timed and shown."""

    def __init__(self, boots: Boots, name: str, seconds: float) -> None:
        self._boots, self._name, self._seconds = boots, name, seconds
        self._began = 0.0

    def __enter__(self) -> Stage:
        self._boots.doing = f"measuring: {self._name}"
        self._began = time.monotonic()
        return Stage(self._name, max(self._seconds, 1.0))

    def __exit__(self, *_: object) -> None:
        self._boots.took(self._name, self._began)


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
    refused = refused_arguments(request.engine.args)
    if refused:
        raise ProfilingError(
            "ArgumentsInvalid", "; ".join(f"engine.args {argument}: {why}" for argument, why in refused)
        )
    if request.engine.max_model_len < request.workload.output_tokens + 16:
        raise ProfilingError(
            "WorkloadInvalid",
            f"workload.outputTokens {request.workload.output_tokens} leaves no room for a prompt in "
            f"engine.maxModelLen {request.engine.max_model_len}",
        )
