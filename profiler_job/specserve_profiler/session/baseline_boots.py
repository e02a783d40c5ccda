"""The engine without speculation: ITL in cohorts, and the closed loop. One boot before the others, one after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specserve_profiler.contract.profile import Arm, ArmLoop, BaselineCell, Cell
from specserve_profiler.engine.server import Engine
from specserve_profiler.session.console import Stage, told
from specserve_profiler.session.lab import Lab
from specserve_profiler.session.loops import Loops, told_arm
from specserve_profiler.session.measure import Bench, Work, blamed, measure_itl, try_pace
from specserve_profiler.statistics import baselines
from specserve_profiler.statistics.acceptance import WITHOUT_SPECULATION
from specserve_profiler.statistics.budget import AGAIN, BASELINE, BASELINE_LOOP, LEAST_POINTS, LOOP
from specserve_profiler.statistics.grid import plan_grid, runnable, spread
from specserve_profiler.statistics.sampling import BLOCK_STEPS, GridSampler

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
            if len(self._samplers) < self._boots:
                cells = runnable(plan_grid(self._lab.request.batch_sizes, (0,), bench.limits, bench.request_tokens))
                output_tokens = self._lab.request.workload.output_tokens
                self._samplers.append(GridSampler(cells, WITHOUT_SPECULATION, 0.0, {}, output_tokens))
                told("baseline", cells=cells)
            sampler = self._samplers[-1]
            with self._lab.stage(BASELINE, None) as stage:
                await self._allot(bench, sampler, stage)
                on_measuring()
                await measure_itl(bench, sampler, {}, self._work, stage)
            self._lab.pace = sampler.pace()
            await self._run_loop(bench, tuple(cell.batch_size for cell in sampler.result().baseline()))

        await self._lab.surviving("baseline", None, measure, self._blame)

    async def _allot(self, bench: Bench, sampler: GridSampler, stage: Stage) -> None:
        """Its time for the sampler. How long all will take is known after a trial in the first boot."""
        budget = self._lab.budget
        if self._boots == 1:
            await try_pace(bench, sampler, self._work, stage)
            self._lab.pace = sampler.pace()
            sampler.foresee(0.0, self._lab.pace)
            self._lab.foresee(bench, stage.elapsed + sampler.least())
            self._lab.tell_least(budget.least_from(BASELINE))
            seconds = budget.share(BASELINE) - stage.elapsed
        else:
            seconds = budget.share(AGAIN) * budget.weights[BASELINE] / budget.weights[AGAIN]
        sampler.foresee(self._work.elapsed + seconds, self._lab.pace)
        stage.grant(max(seconds, 0.0))

    async def _run_loop(self, bench: Bench, sizes: Sequence[int]) -> None:
        budget, points = self._lab.budget, self.concurrencies
        if LOOP not in budget.weights or not sizes:
            return
        if self._boots == 1:
            self._lab.foresee(bench, 0.0)
            if not self._lab.verifies(self._loops.least(spread(sizes, LEAST_POINTS))):
                return
            points = self._points(sizes, min(budget.share(BASELINE_LOOP), budget.forecast(LOOP, BASELINE_LOOP)))
        with self._lab.stage(BASELINE_LOOP, budget.share(BASELINE_LOOP if self._boots == 1 else AGAIN)) as stage:
            found = await self._loops.run(bench, points, stage)
        budget.least[LOOP] = self._loops.least(points)
        self._closed.append(ArmLoop(arm=Arm(kind="None"), points=found))
        told_arm(self._closed[-1])

    def _points(self, sizes: Sequence[int], seconds: float) -> tuple[int, ...]:
        """Client concurrencies, as many as a loop of so many seconds can have."""
        found = [spread(sizes, most) for most in range(LOOP_POINTS, LEAST_POINTS - 1, -1)]
        return next((points for points in found if self._loops.least(points) <= seconds), found[-1])

    def least(self) -> float:
        """Seconds that another boot measures at the least."""
        pace = self._lab.pace
        return sum(pace.cohort(size, BLOCK_STEPS[-1]) for size in pace.step_ms) + self._loops.least(self.concurrencies)

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
