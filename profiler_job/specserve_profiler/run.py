"""One profile from beginning to end: two boots, three measurements, one decision."""

from __future__ import annotations

import asyncio
import datetime as dt
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from specserve_profiler import estimate, render
from specserve_profiler.console import Stage, engine_line, say
from specserve_profiler.contract import (
    Acceptance,
    BaselineCell,
    Cell,
    Failure,
    Interval,
    Measurements,
    Profile,
    ProfileRequest,
)
from specserve_profiler.engine import HOST, Engine, free_port, running
from specserve_profiler.errors import ProfilingError
from specserve_profiler.grid import Target, candidates, plan_grid
from specserve_profiler.measure import (
    ACCEPTANCE_BATCH_SIZE,
    BLOCK_STEPS,
    Bench,
    ItlSamples,
    deck_tokens,
    measure_acceptance,
    measure_itl,
)
from specserve_profiler.records import Limits, StepLog
from specserve_profiler.table import decide
from specserve_profiler.workload import Prompts, load_prompts

SHARE_BASELINE, SHARE_ACCEPTANCE = 0.15, 0.40
"""Shares of ``measure_seconds``; the grid has what is left."""
LEAST_SHARE_GRID = 0.35
"""What the grid has even where acceptance took more than its share."""
SLOWER_WITH_DRAFTS = 2.0
"""Guess of ITL over that of the baseline, for the length of blocks only."""
PROBE = "specserve_profiler.probe.scheduler"
MOST_PROMPTS = 512
"""Prompts that are tokenized at most."""
_ENDING_SECONDS = 3.0
"""From the engine's first broken connection to its end."""
_MARGIN_SECONDS = 20.0
"""The profiler's own deadline is this much before the pod's, or a tenth of it if that is less."""

T = TypeVar("T")


def execute(request: ProfileRequest, on_measuring: Callable[[], None] = lambda: None) -> Profile | Failure:
    """Measures and decides. Never raises for what can go wrong with an engine, a workload or the time.

    ``on_measuring`` is called once, when the first engine is up and measuring starts. SIGTERM and SIGINT end the run
    with the failure ``Interrupted``; the engine is stopped before this returns.
    """
    try:
        return asyncio.run(_guarded(request, on_measuring))
    except ProfilingError as error:
        return error.failure()


async def _guarded(request: ProfileRequest, on_measuring: Callable[[], None]) -> Profile:
    run = Run(request, on_measuring)
    task = asyncio.ensure_future(run.profile())
    _stop_on_signals(task)
    limit = request.timeout_seconds - min(_MARGIN_SECONDS, request.timeout_seconds / 10)
    done, _ = await asyncio.wait({task}, timeout=limit)
    if not done:
        task.cancel()
        with suppress(asyncio.CancelledError, ProfilingError):
            await task
        raise ProfilingError(
            "TimedOut",
            f"no profile within {limit:.0f} s; it was busy with: {run.doing}. Took so far: {run.times()}. "
            "Give it more time (profile.timeoutSeconds), or fewer batch sizes.",
        )
    try:
        return task.result()
    except asyncio.CancelledError:
        raise ProfilingError(
            "Interrupted", f"the profiler was asked to stop while it was busy with: {run.doing}. It starts anew."
        ) from None


def _stop_on_signals(task: asyncio.Future[Profile]) -> None:
    """The first SIGTERM or SIGINT cancels; later ones do not disturb the engine's being stopped."""
    loop = asyncio.get_running_loop()
    asked: list[int] = []

    def stop(number: int) -> None:
        if not asked:
            task.cancel()
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)


class Run:
    """The state of one run: what it does, and what each stage took."""

    def __init__(self, request: ProfileRequest, on_measuring: Callable[[], None]) -> None:
        self.request = request
        self.doing = "starting"
        self.seconds: dict[str, float] = {}
        self._on_measuring = on_measuring
        self._start = time.monotonic()
        self._prompts: Prompts | None = None

    def times(self) -> str:
        """Stage times for a person."""
        return ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in self.seconds.items()) or "nothing finished"

    async def profile(self) -> Profile:
        """The whole run."""
        request = self.request
        _check(request)
        texts = load_prompts(Path(request.prompts))
        say(f"{len(texts)} prompts from {request.prompts}")
        baseline = await self._boot("baseline", None, lambda engine: self._measure_baseline(engine, texts))
        config = render.measuring_config(request.speculation, request.engine.max_num_seqs)
        measured = await self._boot("engine", config, lambda engine: self._measure_speculation(engine, texts, baseline))
        decision = decide(measured, request.engine.max_num_seqs)
        say(f"verdict {decision.verdict}: {decision.reason}")
        now = dt.datetime.now(dt.timezone.utc).replace(microsecond=0)
        self.seconds["total"] = round(time.monotonic() - self._start, 1)
        measured = measured.model_copy(update={"seconds": dict(self.seconds)})
        return Profile(key=request.key, measured_at=now, measurements=measured, decision=decision)

    async def _boot(
        self,
        name: str,
        config: Mapping[str, Any] | None,
        measure: Callable[[Engine], Coroutine[Any, Any, T]],
    ) -> T:
        """Boots the engine, measures, stops it. The engine's own end while measuring is an error at once."""
        request = self.request
        self.doing = f"booting the {name} {'with' if config else 'without'} speculation"
        port = free_port()
        command = render.serve_arguments(
            request.model,
            request.revision,
            request.engine,
            config,
            host=HOST,
            port=port,
            extra=(f"--scheduler-cls={PROBE}",),
        )
        say(f"{self.doing}: {' '.join(command)}")
        began = time.monotonic()
        deadline = self._start + request.timeout_seconds
        with tempfile.TemporaryDirectory(prefix="specserve-") as directory:
            async with running(command, port, Path(directory), deadline, engine_line) as engine:
                self._took(f"boot{name.capitalize()}", began)
                result = await _unless_ended(engine, measure(engine))
                self.doing = f"stopping the {name}"
                began = time.monotonic()
        self._took(f"stop{name.capitalize()}", began)
        return result

    def _took(self, stage: str, began: float) -> None:
        self.seconds[stage] = round(time.monotonic() - began, 1)
        say(f"{stage} took {self.seconds[stage]} s")

    async def _bench(self, engine: Engine, texts: Sequence[str]) -> Bench:
        try:
            limits = Limits.read(engine.directory)
        except FileNotFoundError as error:
            raise ProfilingError(
                "EngineUnsupported", "the engine did not load the probe: its version ignores --scheduler-cls"
            ) from error
        why = render.refused_speculation(self.request.speculation.method, limits.engine_version)
        if why is not None:
            raise ProfilingError("EngineUnsupported", why)
        if self._prompts is None:
            tokenized = [await engine.tokenize(text) for text in texts[:MOST_PROMPTS]]
            longest = limits.max_model_len - self.request.workload.output_tokens
            self._prompts = Prompts.cut(tokenized, min(self.request.workload.prompt_tokens, longest))
        return Bench(engine, limits, StepLog(engine.directory), self._prompts, self.request.workload)

    async def _measure_baseline(self, engine: Engine, texts: Sequence[str]) -> ItlSamples:
        bench = await self._bench(engine, texts)
        say("measuring starts")
        self._on_measuring()
        self.doing = "measuring the baseline"
        began = time.monotonic()
        targets = plan_grid(self.request.batch_sizes, (0,), bench.limits, bench.request_tokens)
        cells = _runnable(list(targets))
        samples = await measure_itl(
            bench, cells, {}, {}, Stage("baseline", SHARE_BASELINE * self.request.measure_seconds)
        )
        self._took("baseline", began)
        return samples

    async def _measure_speculation(self, engine: Engine, texts: Sequence[str], baseline: ItlSamples) -> Measurements:
        request = self.request
        bench = await self._bench(engine, texts)
        ks = candidates(request.speculation.max_tokens)
        self.doing = "measuring acceptance"
        began = time.monotonic()
        cohort_end = bench.mean_context + deck_tokens(ks, {k: k + 1 for k in ks}, BLOCK_STEPS[-1]) / 2
        targets = list(plan_grid(request.batch_sizes, ks, bench.limits, max(bench.request_tokens, round(cohort_end))))
        cells = _runnable(targets)
        if not cells:
            raise ProfilingError("NothingToMeasure", f"no cell of the grid can run: {targets[0].skipped}")
        sizes = [size for size in cells if size <= ACCEPTANCE_BATCH_SIZE] or [min(cells)]
        seconds = SHARE_ACCEPTANCE * request.measure_seconds
        acceptance = await measure_acceptance(bench, ks[1:], max(sizes), Stage("acceptance", seconds))
        self._took("acceptance", began)
        self.doing = "measuring the grid"
        left = (1 - SHARE_BASELINE) * request.measure_seconds - (time.monotonic() - began)
        budget = max(left, LEAST_SHARE_GRID * request.measure_seconds)
        began = time.monotonic()
        lengths = {entry.k: entry.acceptance_length.mean for entry in acceptance}
        base = estimate.itl_intervals(baseline.blocks)
        guess = {size: SLOWER_WITH_DRAFTS * interval.mean for (size, _), (interval, _) in base.items()}
        samples = await measure_itl(bench, cells, lengths, guess, Stage("grid", budget))
        self._took("grid", began)
        return Measurements(
            engine_version=bench.limits.engine_version,
            scheduler="async" if bench.limits.scheduler == "async" else "sync",
            grid=_grid(targets, samples),
            acceptance=(Acceptance(k=0, acceptance_length=Interval(mean=1), prompts=0), *acceptance),
            baseline=tuple(
                BaselineCell(batch_size=size, itl_ms=interval, blocks=blocks)
                for (size, _), (interval, blocks) in sorted(base.items())
                if size in request.batch_sizes
            ),
            mean_context_tokens=samples.mean_context,
        )


async def _unless_ended(engine: Engine, measure: Coroutine[Any, Any, T]) -> T:
    """What a measurement gives. That the engine ends meanwhile is the error, not what it does to the measurement."""
    measuring, watching = asyncio.ensure_future(measure), asyncio.ensure_future(engine.watch())
    try:
        await asyncio.wait({measuring, watching}, return_when=asyncio.FIRST_COMPLETED)
        if measuring.done() and isinstance(measuring.exception(), aiohttp.ClientError):
            await asyncio.wait({watching}, timeout=_ENDING_SECONDS)
        if watching.done():
            watching.result()
        return measuring.result()
    except aiohttp.ClientError as error:
        raise ProfilingError("EngineFailed", f"the engine broke off a request: {error!r}") from error
    finally:
        for task in (measuring, watching):
            task.cancel()
        await asyncio.gather(measuring, watching, return_exceptions=True)


def _check(request: ProfileRequest) -> None:
    """Refuses what would only fail, or mislead, after minutes."""
    why = render.refused_speculation(request.speculation.method)
    if why is not None:
        raise ProfilingError("SpeculationUnsupported", why)
    refused = render.refused_arguments(request.engine.args)
    if refused:
        raise ProfilingError(
            "ArgumentsInvalid", "; ".join(f"engine.args {argument}: {why}" for argument, why in refused)
        )
    shortest = request.workload.output_tokens + 16
    if request.engine.max_model_len < shortest:
        raise ProfilingError(
            "WorkloadInvalid",
            f"workload.outputTokens {request.workload.output_tokens} leaves no room for a prompt in "
            f"engine.maxModelLen {request.engine.max_model_len}",
        )


def _runnable(targets: Sequence[Target]) -> dict[int, list[int]]:
    cells: dict[int, list[int]] = defaultdict(list)
    for target in targets:
        if target.skipped is None:
            cells[target.batch_size].append(target.k)
    return dict(cells)


def _grid(targets: Sequence[Target], samples: ItlSamples) -> tuple[Cell, ...]:
    intervals = estimate.itl_intervals(samples.blocks)
    cells = []
    for target in targets:
        found = intervals.get((target.batch_size, target.k))
        if target.skipped is None and found is not None:
            cells.append(Cell(batch_size=target.batch_size, k=target.k, itl_ms=found[0], blocks=found[1]))
        else:
            skipped = target.skipped or "no undisturbed block of steps came about"
            cells.append(Cell(batch_size=target.batch_size, k=target.k, skipped=skipped))
    return tuple(cells)
