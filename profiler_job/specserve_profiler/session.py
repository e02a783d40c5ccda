"""One profile, stage by stage: the baseline, acceptance and grid, the table in a closed loop, the baseline again.

What is known after each stage is kept, so that a run that ends early still leaves what it measured.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specserve_profiler import baselines, capture, engines, installed, render, verdict
from specserve_profiler.arguments import refused_arguments
from specserve_profiler.boots import Boots
from specserve_profiler.console import Stage, say
from specserve_profiler.contract import (
    Arm,
    ArmLoop,
    Cell,
    Decision,
    LoopPoint,
    Measurements,
    ProfileRequest,
    Row,
)
from specserve_profiler.engine import Engine
from specserve_profiler.entries import Entry
from specserve_profiler.errors import ProfilingError
from specserve_profiler.grid import Target, candidates, plan_grid, spread
from specserve_profiler.measure import Bench, Work, measure_acceptance, measure_itl
from specserve_profiler.records import Limits, StepLog
from specserve_profiler.sampling import WITHOUT_SPECULATION, AcceptanceSampler, Cohort, Generate, GridSampler
from specserve_profiler.verify import closed_loop, follow, follow_own_table
from specserve_profiler.workload import Prompts, load, tokenize

ACCEPTANCE_BATCH_SIZE = 16
"""Largest batch size for whole generations: acceptance does not depend on it, a small one wastes little at the end."""
LOOP_POINTS = 4
"""Client concurrencies at which the baseline runs the closed loop."""
LEAST_LOOP_SECONDS = 2.0
REBOOTS = 2
"""Engines that may be lost to cells, each of which is then given up."""
SLOWER_WITH_DRAFTS = 2.0
"""Guess of ITL over that of the baseline, for the length of blocks only."""
MOST_HANG_SECONDS = 120.0
"""An engine without a step for so long hangs; a tenth of the time for everything where that is less."""


@dataclass(frozen=True)
class Shares:
    """Shares of the time for measuring. Both boots of the baseline take theirs, the second only where it is needed."""

    baseline: float
    baseline_loop: float
    acceptance: float
    grid: float
    loop: float

    @classmethod
    def of(cls, verify: Literal["Table", "Full", "Off"]) -> Shares:
        """They add up to 1 with the baseline counted twice."""
        if verify == "Off":
            return cls(baseline=0.10, baseline_loop=0, acceptance=0.35, grid=0.45, loop=0)
        return cls(baseline=0.06, baseline_loop=0.08, acceptance=0.24, grid=0.30, loop=0.18)


class Session:
    """The state of one run."""

    def __init__(self, request: ProfileRequest, on_measuring: Callable[[], None]) -> None:
        self.request = request
        self.boots = Boots(request)
        self._on_measuring = on_measuring
        self._shares = Shares.of(request.verify)
        self._entries: list[Entry] = []
        self._prompts: Prompts | None = None
        self._baselines: list[GridSampler] = []
        self._baseline_loops: list[ArmLoop] = []
        self._limits: Limits | None = None
        self._targets: list[Target] = []
        self._acceptance: AcceptanceSampler | None = None
        self._grid: GridSampler | None = None
        self._work = Work()
        self._loops: list[ArmLoop] = []
        self._warnings: list[str] = []

    # What is known

    def measurements(self) -> Measurements | None:
        """All that was measured so far; None before the first engine was up."""
        limits = self._limits
        if limits is None:
            return None
        grid = self._grid.result() if self._grid else None
        acceptance = self._acceptance.result() if self._acceptance else None
        cells = [sampler.result().baseline() for sampler in self._baselines]
        twice = len(cells) > 1 and bool({c.batch_size for c in cells[0]} & {c.batch_size for c in cells[1]})
        return Measurements(
            engine_version=limits.engine_version,
            device=limits.device,
            scheduler="async" if limits.scheduler == "async" else "sync",
            graph_sizes=limits.graph_sizes,
            grid=_cells(self._targets, grid.cells if grid else ()),
            levels=grid.levels if grid else (),
            acceptance=acceptance.acceptance if acceptance else (),
            contrasts=acceptance.contrasts if acceptance else (),
            spot_check=acceptance.spot_check if acceptance else None,
            baseline=baselines.combined_cells(*cells) if twice else cells[0] if cells else (),
            boot_drift=baselines.drift(*cells) if twice else baselines.ASSUMED_DRIFT,
            boot_drift_measured=twice,
            loops=(*self._baseline_loop(), *self._loops),
            mean_context_tokens=grid.mean_context if grid else 0.0,
            distinct_prompts=self._prompts.distinct if self._prompts else 0,
            seconds=dict(self.boots.seconds),
        )

    def _baseline_loop(self) -> tuple[ArmLoop, ...]:
        loops = self._baseline_loops
        return (baselines.combined_loops(*loops),) if len(loops) > 1 else tuple(loops)

    def decision(self) -> Decision:
        """What the measurements say, with what else the user must know."""
        decision = verdict.decide(self._measured(), self.request.engine.max_num_seqs, self.request.weights)
        return decision.model_copy(update={"warnings": (*decision.warnings, *self._warnings)})

    def _measured(self) -> Measurements:
        measured = self.measurements()
        if measured is None:
            raise ProfilingError("NothingToMeasure", "nothing was measured")
        return measured

    # The stages

    async def run(self) -> Decision:
        """All stages. Raises ProfilingError."""
        check(self.request)
        self.boots.doing = "reading the prompts"
        self._entries = await load(self.request.prompts, say)
        await self.boots.boot("baseline", None, self._measure_baseline)
        await self._measure_speculation()
        decision = self.decision()
        say(f"predicted verdict {decision.verdict}: {decision.reason}")
        await self._verify(decision)
        decision = self.decision()
        if verdict.undecided(decision, self._measured(), self.request.weights) and self._time_for_a_boot(
            "the baseline again"
        ):
            say("the verdict lies within what boots differ by: the baseline once more")
            await self.boots.boot("baseline", None, self._measure_baseline)
            decision = self.decision()
        return decision

    async def _bench(self, engine: Engine) -> Bench:
        request = self.request
        try:
            limits = Limits.read(engine.directory)
        except FileNotFoundError as error:
            raise ProfilingError(
                "EngineUnsupported", "the engine did not load the probe: its version ignores --scheduler-cls"
            ) from error
        if self._prompts is None:
            self._prompts = await tokenize(self._entries, engine, request.workload, limits.max_model_len, say)
            warning = self._prompts.reuse_warning(max(request.batch_sizes))
            if warning is not None:
                self._warn(warning)
        if self._limits is None:
            self._limits = limits
        hang = min(MOST_HANG_SECONDS, request.timeout_seconds / 10)
        return Bench(engine, limits, StepLog(engine.directory), self._prompts, request.workload, hang)

    async def _measure_baseline(self, engine: Engine) -> None:
        bench = await self._bench(engine)
        if not self._baselines:
            say("measuring starts")
            self._on_measuring()
        targets = list(plan_grid(self.request.batch_sizes, (0,), bench.limits, bench.request_tokens))
        cells = _runnable(targets)
        seconds = self._shares.baseline * self.request.measure_seconds
        sampler = GridSampler(cells, WITHOUT_SPECULATION, seconds, {}, self.request.workload.output_tokens)
        self._baselines.append(sampler)
        with self._stage("baseline", seconds) as stage:
            await measure_itl(bench, sampler, {}, Work(), stage)
        if self._shares.baseline_loop:
            sizes = spread(tuple(cells), LOOP_POINTS)
            seconds = self._shares.baseline_loop * self.request.measure_seconds
            with self._stage("baseline in the closed loop", seconds) as stage:
                points = await self._loop(bench, sizes, seconds / max(len(sizes), 1), stage)
            self._baseline_loops.append(ArmLoop(arm=Arm(kind="None"), points=points))

    async def _measure_speculation(self) -> None:
        """Acceptance and grid. An engine that does not survive a cell is booted anew, without that cell."""
        config = render.measuring_config(self.request.speculation, self.request.engine.max_num_seqs)
        for lost in range(REBOOTS + 1):
            try:
                return await self.boots.boot("every K", config, self._measure_every_k)
            except ProfilingError as error:
                lost_in_a_cell = error.reason in ("EngineCrashed", "EngineHung")
                if not lost_in_a_cell or lost == REBOOTS or not self._blame(str(error)):
                    raise
        return None

    async def _measure_every_k(self, engine: Engine) -> None:
        request = self.request
        bench = await self._bench(engine)
        self._limits = bench.limits
        honour = engines.confirm(request.speculation, bench.limits)
        if isinstance(honour, engines.Refused):
            raise ProfilingError("EngineUnsupported", str(honour))
        if isinstance(honour, engines.Warned):
            self._warn(str(honour))
        ks = candidates(request.speculation.max_tokens)
        if not self._targets:
            self._targets = list(plan_grid(request.batch_sizes, ks, bench.limits, bench.request_tokens))
        cells = _runnable(self._targets)
        if not cells:
            raise ProfilingError("NothingToMeasure", f"no cell of the grid can run: {self._targets[0].skipped}")
        await self._measure_acceptance(bench, ks, sorted(cells))
        await self._measure_grid(bench, cells)

    async def _measure_acceptance(self, bench: Bench, ks: Sequence[int], sizes: Sequence[int]) -> None:
        seconds = self._shares.acceptance * self.request.measure_seconds
        if self._acceptance is None:
            at_once = max((size for size in sizes if size <= ACCEPTANCE_BATCH_SIZE), default=sizes[0])
            other = max(sizes) if max(sizes) != at_once else min(sizes)
            self._acceptance = AcceptanceSampler(
                ks[1:],
                len(bench.prompts.ids),
                at_once,
                seconds,
                spot_concurrency=other if other != at_once else None,
                temperature=self.request.workload.temperature,
            )
            self._work = Work()
        with self._stage("acceptance", seconds - self._work.elapsed) as stage:
            await measure_acceptance(bench, self._acceptance, self._work, stage)
        try:
            self._acceptance.result()
        except ValueError as error:
            raise ProfilingError("PromptsInvalid", str(error)) from error

    async def _measure_grid(self, bench: Bench, cells: Mapping[int, Sequence[int]]) -> None:
        acceptance = self._acceptance
        assert acceptance is not None  # noqa: S101 - the stage before this one
        found = acceptance.result()
        seconds = self._shares.grid * self.request.measure_seconds
        if self._grid is None:
            known = {size: [k for k in ks if k in found.lengths] for size, ks in cells.items()}
            base = self._baselines[0].result().baseline()
            guess = {cell.batch_size: SLOWER_WITH_DRAFTS * cell.itl_ms.mean for cell in base}
            self._grid = GridSampler(known, found, seconds, guess, self.request.workload.output_tokens)
            self._work = Work()
        with self._stage("grid", seconds - self._work.elapsed) as stage:
            await measure_itl(bench, self._grid, found.lengths, self._work, stage)

    def _blame(self, why: str) -> bool:
        """Gives up the cell that the engine was lost in; False where it is not known."""
        order, cell = self._work.order, self.boots.cell
        if isinstance(order, Generate) and self._acceptance is not None:
            self._acceptance.fail(order, why)
            what = f"K = {order.k}" if order.k in self._acceptance.result().failed else "the spot check of acceptance"
            self._warn(f"{what} was given up: {why}")
        elif isinstance(order, Cohort) and self._grid is not None and cell is not None:
            self._grid.fail(*cell, why)
            self._warn(f"batch size {cell[0]}, K = {cell[1]} was given up: {why}")
        else:
            return False
        say("the engine is booted anew, without that cell")
        return True

    # The closed loop

    async def _verify(self, decision: Decision) -> None:
        """Boots what would be served, exactly as it would be, and other arms where asked for.

        Also where the grid alone cannot tell the gain from its error: the loop may.
        """
        if self.request.verify == "Off" or not _promising(decision):
            return
        for arm in self._arms(decision):
            if not self._time_for_a_boot(str(arm)):
                return
            sizes = capture.capture_sizes(arm.rows, self._measured().graph_sizes, self.request.engine.max_num_seqs)
            await self._verify_arm(arm, sizes if arm.kind == "Table" else ())

    def _arms(self, decision: Decision) -> list[Arm]:
        static = Arm(kind="Static", k=decision.static_k)
        table = Arm(kind="Table", rows=decision.table)
        arms = [static if decision.verdict == "Static" else table]
        if self.request.verify == "Full":
            if decision.verdict != "Static" and decision.static_k:
                arms.append(static)
            limits = self._limits
            if limits is not None and not engines.adaptive_allowed(
                limits.engine_version, limits.runner, self.request.engine.args, self.request.speculation.method
            ):
                arms.append(Arm(kind="Adaptive", k=self.request.speculation.max_tokens))
        return arms

    async def _verify_arm(self, arm: Arm, capture_sizes: Sequence[int]) -> None:
        """The arm in a boot of its own. That the engine does not run like this is a result, too."""
        request = self.request
        extra = render.capture_arguments(capture_sizes, request.engine.args)
        config = render.arm_config(request.speculation, arm)
        say(f"verifying {arm}")
        try:
            await self.boots.boot(
                _short(arm),
                config,
                lambda engine: self._measure_arm(engine, arm, capture_sizes if extra else ()),
                extra,
            )
        except ProfilingError as error:
            if error.reason in ("Interrupted", "TimedOut", "DiskFull"):
                raise
            say(f"the engine does not serve with {arm}: {error}")
            self._loops = [loop for loop in self._loops if loop.arm != arm]
            self._loops.append(ArmLoop(arm=arm, failed=str(error)[:300]))

    async def _measure_arm(self, engine: Engine, arm: Arm, capture_sizes: Sequence[int]) -> None:
        bench = await self._bench(engine)
        missing = capture.missing_sizes(capture_sizes, bench.limits.graph_sizes)
        if missing:
            self._warn(
                f"the engine captured no graphs of {', '.join(map(str, missing))} tokens, though it was asked to"
            )
        follow_own_table(bench)
        common = tuple(point.concurrency for loop in self._baseline_loops[:1] for point in loop.points)
        points = common
        if arm.kind == "Table":
            sizes = sorted({target.batch_size for target in self._targets})
            points = tuple(sorted({*common, *verdict.check_points(arm.rows, sizes, self.request.engine.max_num_seqs)}))
        seconds = self._shares.loop * self.request.measure_seconds
        edges = [size for size in points if size not in common]
        share = seconds / max(len(points) + 2 * len(edges), 1)
        with self._stage(f"{_short(arm)} in the closed loop", seconds) as stage:
            found = await self._loop(bench, points, share, stage)
            self._loops.append(ArmLoop(arm=arm, points=found))
            if arm.kind == "Table":
                await self._verify_edges(bench, arm, edges, share, stage)

    async def _verify_edges(self, bench: Bench, arm: Arm, edges: Sequence[int], seconds: float, stage: Stage) -> None:
        """Across each edge the table beside the two K that meet there; then the table that they ask for, if any."""
        for k in sorted({row.k for row in arm.rows} if len(arm.rows) > 1 else ()):
            near = [size for size in edges if k in _neighbours(arm.rows, size)]
            if near:
                await self._live(bench, (Row(first=1, last=arm.rows[-1].last, k=k),), near, seconds, stage)
        other = verdict.repaired(arm.rows, self._loops)
        if other is not None:
            say(f"the table loses across an edge; {Arm(kind='Table', rows=other)} instead")
            points = [point.concurrency for point in self._loops_of(arm)[0].points]
            await self._live(bench, other, points, seconds, stage)

    def _loops_of(self, arm: Arm) -> list[ArmLoop]:
        return [loop for loop in self._loops if loop.arm == arm]

    async def _live(
        self, bench: Bench, rows: Sequence[Row], points: Sequence[int], seconds: float, stage: Stage
    ) -> None:
        follow(bench, rows)
        found = await self._loop(bench, points, seconds, stage)
        self._loops.append(ArmLoop(arm=Arm(kind="Table", rows=tuple(rows)), points=found, live=True))

    async def _loop(
        self, bench: Bench, concurrencies: Sequence[int], seconds: float, stage: Stage
    ) -> tuple[LoopPoint, ...]:
        """Every arm gets the same prompts at the same concurrency."""
        seconds = max(seconds, LEAST_LOOP_SECONDS)
        return tuple([await closed_loop(bench, size, seconds, start=97 * size, stage=stage) for size in concurrencies])

    # Housekeeping

    def _stage(self, name: str, seconds: float) -> _TimedStage:
        return _TimedStage(self.boots, name, seconds)

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.append(text)
            say(f"warning: {text}")

    def _time_for_a_boot(self, what: str) -> bool:
        """Whether another boot and its closed loop fit into the time for everything; says so where not."""
        needed = 1.5 * self.boots.longest_boot + self._shares.loop * self.request.measure_seconds
        if self.boots.left > needed + 30:
            return True
        self._warn(f"there was no time left to boot {what}: give the profile a longer timeout")
        return False


class _TimedStage:
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
    if isinstance(honour, engines.Refused):
        raise ProfilingError("SpeculationUnsupported", str(honour))
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


def _promising(decision: Decision) -> bool:
    """Whether anything but no speculation has a chance: a K above 0, and a predicted gain, however uncertain."""
    gain = sum(math.log(speedup.over_baseline) for speedup in decision.speedups)
    return any(row.k for row in decision.table) and (decision.verdict != "None" or gain > 0)


def _short(arm: Arm) -> str:
    """A name for stages: a table may have many rows."""
    return "table" if arm.kind == "Table" else str(arm)


def _neighbours(rows: Sequence[Row], size: int) -> set[int]:
    """The K of the row that holds a batch size and of the rows that it touches there."""
    return {row.k for row in rows if row.first - 1 <= size <= row.last + 1}


def _runnable(targets: Sequence[Target]) -> dict[int, list[int]]:
    cells: dict[int, list[int]] = defaultdict(list)
    for target in targets:
        if target.skipped is None:
            cells[target.batch_size].append(target.k)
    return dict(cells)


def _cells(targets: Sequence[Target], measured: Sequence[Cell]) -> tuple[Cell, ...]:
    """Every cell that was asked for: measured, or skipped with the reason."""
    found = {(cell.batch_size, cell.k): cell for cell in measured}
    return tuple(
        found.get((target.batch_size, target.k))
        or Cell(batch_size=target.batch_size, k=target.k, skipped=target.skipped or "the run ended before")
        for target in targets
    )
