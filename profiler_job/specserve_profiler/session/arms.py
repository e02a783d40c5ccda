"""What would be served, booted exactly as it would be, in the closed loop; other arms beside it where asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain

from specserve_profiler.contract.profile import Arm, ArmLoop, Cell, Decision, Row
from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.decision import capture, contest
from specserve_profiler.dialect import render, support
from specserve_profiler.engine.server import Engine
from specserve_profiler.session.closed_loop import follow, follow_own_table
from specserve_profiler.session.console import Stage, say
from specserve_profiler.session.lab import Lab
from specserve_profiler.session.loops import Loops, told_arm
from specserve_profiler.session.measure import Bench
from specserve_profiler.statistics.budget import LOOP


class Arms:
    """Verifies a decision, and what the loops say in its place."""

    def __init__(self, lab: Lab, loops: Loops) -> None:
        self._lab = lab
        self._loops = loops
        self.seen: list[ArmLoop] = []

    async def verify(self, decide: Callable[[], Decision], cells: Sequence[Cell], common: Sequence[int]) -> None:
        """Boots and runs the arms of the decision so far.

        Also where the grid alone cannot tell a gain from its error: the loop may. A table that was repaired in the boot
        of another gets a boot of its own. ``common``: concurrencies of the baseline's loop. Raises ProfilingError where
        the whole run must end.
        """
        decision = decide()
        if LOOP not in self._lab.budget.weights or not promising(decision):
            return
        sizes = sorted({cell.batch_size for cell in cells if cell.itl_ms is not None})
        budget, least = self._lab.budget, self._loops.least(common)
        arms = self._arms(decision)
        for budget.arms in range(len(arms), 0, -1):
            arm = arms[-budget.arms]
            if not self._lab.time_for_a_boot(str(arm), LOOP, least):
                return
            await self._boot(arm, sizes, common, edges=True)
        decision = decide()
        repaired = Arm(kind="Table", rows=decision.table)
        followed = [loop for loop in self.seen if loop.arm == repaired]
        if decision.verdict == "Dynamic" and followed and all(loop.live for loop in followed):
            if self._lab.time_for_a_boot(f"the repaired {repaired}", LOOP, least):
                await self._boot(repaired, sizes, common, edges=False)
            else:
                self._lab.warn("the repaired table was followed in the boot of another one, not booted by itself")

    def _arms(self, decision: Decision) -> list[Arm]:
        limits, request = self._lab.limits, self._lab.request
        if decision.verdict == "Static":
            arms = [Arm(kind="Static", k=decision.static_k)]
        elif len(decision.table) == 1:
            arms = [Arm(kind="Static", k=decision.table[0].k)]
        else:
            arms = [Arm(kind="Table", rows=decision.table)]
        if request.verify == "Full":
            if decision.static_k and arms[0].kind == "Table":
                arms.append(Arm(kind="Static", k=decision.static_k))
            drafts = request.speculation
            if limits is not None and not support.adaptive_allowed(
                limits.engine_version, limits.runner, request.engine.args, drafts.method, drafts.config
            ):
                arms.append(Arm(kind="Adaptive", k=request.speculation.max_tokens))
        return arms

    async def _boot(self, arm: Arm, sizes: Sequence[int], common: Sequence[int], *, edges: bool) -> None:
        """The arm in a boot of its own. That the engine does not run like this is a result, too.

        Until it is up the arm counts as one that does not, for a boot that hangs may end the run.
        """
        request, limits = self._lab.request, self._lab.limits
        wanted: tuple[int, ...] = ()
        if arm.kind == "Table" and limits is not None:
            wanted = capture.capture_sizes(arm.rows, limits.graph_sizes, request.engine.max_num_seqs)
        extra = render.capture_arguments(wanted, request.engine.args)

        async def measure(engine: Engine) -> None:
            self.seen.remove(unseen)
            bench = await self._lab.bench(engine)
            missing = capture.missing_sizes(wanted if extra else (), bench.limits.graph_sizes)
            if missing:
                self._lab.warn(f"the engine captured no graphs of {', '.join(map(str, missing))} tokens, as asked")
            follow_own_table(bench)
            await self._measure(bench, arm, sizes, common, edges=edges)

        say(f"verifying {arm}")
        unseen = ArmLoop(arm=arm, failed="the run ended before the engine was up")
        self.seen.append(unseen)
        try:
            await self._lab.boots.boot(_short(arm), render.arm_config(request.speculation, arm), measure, extra)
        except ProfilingError as error:
            if error.reason in ("Interrupted", "TimedOut", "DiskFull"):
                raise
            say(f"the engine does not serve with {arm}: {error}")
            if unseen in self.seen:
                self.seen.remove(unseen)
            self.seen.append(ArmLoop(arm=arm, failed=str(error)[:300]))

    async def _measure(
        self, bench: Bench, arm: Arm, sizes: Sequence[int], common: Sequence[int], *, edges: bool
    ) -> None:
        points = [size for size in common if size <= max(sizes)]
        if arm.kind == "Table" and edges:
            most = self._lab.request.engine.max_num_seqs
            points = sorted({*points, *contest.check_points(arm.rows, sizes, most)})
        beside = beside_edges(arm, points) if edges else {}
        seconds = self._lab.budget.share(LOOP)
        if self._loops.least([*points, *chain(*beside.values())]) > seconds:
            beside = {}
            self._lab.warn("measureSeconds left no time to look beside the edges of the table")
        if self._loops.least(points) > seconds:
            if left_out := [size for size in points if size not in common]:
                where = ", ".join(map(str, left_out))
                self._lab.warn(
                    f"measureSeconds left no time for a closed loop at the edges of the table: {where} clients"
                )
            points = [size for size in points if size in common]
        with self._lab.stage(f"{_short(arm)} in the closed loop", seconds) as stage:
            after = list(chain(*beside.values()))
            found = await self._loops.run(bench, points, stage, after)
            self._saw(ArmLoop(arm=arm, points=found))
            for k, near in beside.items():
                del after[: len(near)]
                await self._live(bench, (Row(first=1, last=arm.rows[-1].last, k=k),), near, stage, after)
        other = contest.repaired(arm.rows, self.seen) if beside else None
        if other is not None:
            say(f"the table loses across an edge; {Arm(kind='Table', rows=other)} instead")
            await self._follow(bench, other, points)

    async def _follow(self, bench: Bench, rows: Sequence[Row], points: Sequence[int]) -> None:
        """A table in the place of one that lost, in the boot of that."""
        seconds = self._lab.budget.share(LOOP)
        if self._loops.least(points) > seconds:
            self._lab.warn("measureSeconds left no time to try the table that was repaired")
            return
        with self._lab.stage("repaired table in the closed loop", seconds) as stage:
            await self._live(bench, rows, points, stage)

    async def _live(
        self, bench: Bench, rows: Sequence[Row], points: Sequence[int], stage: Stage, after: Sequence[int] = ()
    ) -> None:
        """A table that the engine follows for a while instead of its own."""
        follow(bench, rows)
        found = await self._loops.run(bench, points, stage, after)
        self._saw(ArmLoop(arm=Arm(kind="Table", rows=tuple(rows)), points=found, live=True))

    def _saw(self, loop: ArmLoop) -> None:
        self.seen.append(loop)
        told_arm(loop)


def promising(decision: Decision) -> bool:
    """Whether anything but no speculation has a chance: a K above 0, and a predicted gain, however uncertain."""
    gain = sum(math.log(speedup.over_baseline) for speedup in decision.speedups)
    return any(row.k for row in decision.table) and (decision.verdict != "None" or gain > 0)


def beside_edges(arm: Arm, points: Sequence[int]) -> dict[int, list[int]]:
    """K of a table -> the concurrencies next to its rows' edges, on both sides, at which to run it alone."""
    near: dict[int, list[int]] = {}
    for row, following in zip(arm.rows, arm.rows[1:], strict=False):
        for k in (row.k, following.k):
            near.setdefault(k, []).extend(size for size in points if size in (row.last, following.first))
    return {k: sorted(set(sizes)) for k, sizes in near.items() if sizes}


def _short(arm: Arm) -> str:
    """A name for stages: a table may have many rows."""
    return "table" if arm.kind == "Table" else str(arm)
