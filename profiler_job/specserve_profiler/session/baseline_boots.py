"""The engine without speculation: ITL in cohorts, and the closed loop. One boot before the others, one after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specserve_profiler.contract.profile import Arm, ArmLoop, BaselineCell, Cell
from specserve_profiler.engine.server import Engine
from specserve_profiler.session.console import told
from specserve_profiler.session.lab import Lab
from specserve_profiler.session.loops import Loops, told_arm
from specserve_profiler.session.measure import Work, blamed, measure_itl
from specserve_profiler.statistics import baselines
from specserve_profiler.statistics.acceptance import WITHOUT_SPECULATION
from specserve_profiler.statistics.grid import plan_grid, runnable, spread
from specserve_profiler.statistics.sampling import GridSampler

LOOP_POINTS = 4
"""Client concurrencies at which the baseline runs the closed loop."""


class BaselineBoots:
    """One or two boots of the baseline."""

    def __init__(self, lab: Lab, loops: Loops) -> None:
        self._lab = lab
        self._loops = loops
        self._samplers: list[GridSampler] = []
        self._work = Work()
        self._closed: list[ArmLoop] = []
        self._boots = 0

    async def boot(self, on_measuring: Callable[[], None]) -> None:
        """One boot more. Raises ProfilingError."""
        self._boots += 1
        self._work = Work()

        async def measure(engine: Engine) -> None:
            bench = await self._lab.bench(engine)
            on_measuring()
            seconds = self._lab.shares.baseline * self._lab.request.measure_seconds
            if len(self._samplers) < self._boots:
                cells = runnable(plan_grid(self._lab.request.batch_sizes, (0,), bench.limits, bench.request_tokens))
                output_tokens = self._lab.request.workload.output_tokens
                self._samplers.append(GridSampler(cells, WITHOUT_SPECULATION, seconds, {}, output_tokens))
                told("baseline", cells=cells)
            sampler = self._samplers[-1]
            with self._lab.stage("baseline", seconds - self._work.elapsed) as stage:
                await measure_itl(bench, sampler, {}, self._work, stage)
            if self._lab.shares.baseline_loop:
                sizes = spread(tuple(cell.batch_size for cell in sampler.result().baseline()), LOOP_POINTS)
                seconds = self._lab.shares.baseline_loop * self._lab.request.measure_seconds
                with self._lab.stage("baseline in the closed loop", seconds) as stage:
                    points = await self._loops.run(bench, sizes, seconds / max(len(sizes), 1), stage)
                self._closed.append(ArmLoop(arm=Arm(kind="None"), points=points))
                told_arm(self._closed[-1])

        await self._lab.surviving("baseline", None, measure, self._blame)

    def _blame(self, why: str) -> str | None:
        cell = blamed(self._work.order, None)
        if cell is None or not self._samplers:
            return None
        self._samplers[-1].fail(cell[0], 0, why)
        told("cell lost", batch_size=cell[0], k=0, why=why)
        return f"batch size {cell[0]} without speculation"

    def cells(self) -> tuple[BaselineCell, ...]:
        """ITL by batch size, from both boots where there were two."""
        return baselines.cells_of(self._boots_found())

    def drift(self) -> tuple[float, bool]:
        """(95 % half-width of the log ratio between boots, whether it was measured)."""
        return baselines.drift_of(self._boots_found())

    def _boots_found(self) -> list[tuple[BaselineCell, ...]]:
        return [sampler.result().baseline() for sampler in self._samplers]

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """At which the closed loop ran."""
        return tuple(point.concurrency for point in self._closed[0].points) if self._closed else ()

    def closed_loop(self, cells: Sequence[Cell]) -> tuple[ArmLoop, ...]:
        """At the concurrencies that an engine with a drafter can be compared at: it has less room for requests."""
        return baselines.loops_of(self._closed, cells, self._loops.never_full)
