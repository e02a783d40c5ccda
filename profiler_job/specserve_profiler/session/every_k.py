"""Acceptance and ITL of every K, in one boot; in another one without the cell that an engine did not survive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specserve_profiler.contract.profile import Cell
from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.dialect import render, support
from specserve_profiler.engine import installed
from specserve_profiler.engine.server import Engine
from specserve_profiler.session.console import told
from specserve_profiler.session.lab import Lab
from specserve_profiler.session.measure import Bench, Work, blamed, measure_acceptance, measure_itl
from specserve_profiler.statistics.acceptance import AcceptanceResult, AcceptanceSampler, Generate
from specserve_profiler.statistics.budget import ACCEPTANCE, GRID, SLOWER_WITH_DRAFTS
from specserve_profiler.statistics.grid import Target, candidates, plan_grid, runnable
from specserve_profiler.statistics.sampling import GridResult, GridSampler

ACCEPTANCE_BATCH_SIZE = 16
"""Largest batch size for whole generations: acceptance does not depend on it, a small one wastes little at the end."""


class EveryK:
    """What is known of the cells."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._targets: list[Target] = []
        self._acceptance: AcceptanceSampler | None = None
        self._acceptance_work = Work()
        self._grid: GridSampler | None = None
        self._grid_work = Work()

    async def boot(self) -> None:
        """Measures. Raises ProfilingError."""
        request = self._lab.request

        async def measure(engine: Engine) -> None:
            bench = await self._lab.bench(engine)
            self._honoured(bench)
            ks = candidates(request.speculation.max_tokens)
            self._targets = self._targets or list(
                plan_grid(request.batch_sizes, ks, bench.limits, bench.request_tokens)
            )
            cells = runnable(self._targets)
            if not cells:
                raise ProfilingError("NothingToMeasure", f"no cell of the grid can run: {self._targets[0].skipped}")
            if self._grid is None:
                await self._measure_acceptance(bench, ks, sorted(cells))
            await self._measure_grid(bench, cells)

        config = render.measuring_config(request.speculation, request.engine.max_num_seqs)
        await self._lab.surviving("every K", config, measure, self._blame)

    def _honoured(self, bench: Bench) -> None:
        self._lab.limits = bench.limits
        honour = installed.confirm(self._lab.request, bench.limits)
        if isinstance(honour, support.Refused):
            raise ProfilingError("EngineUnsupported", str(honour))
        if isinstance(honour, support.Warned):
            self._lab.warn(str(honour))

    async def _measure_acceptance(self, bench: Bench, ks: Sequence[int], sizes: Sequence[int]) -> None:
        if self._acceptance is None:
            pace, work = self._lab.pace, self._lab.request.workload
            at_once = max((size for size in sizes if size <= ACCEPTANCE_BATCH_SIZE), default=sizes[0])
            other = max(sizes) if max(sizes) != at_once else min(sizes)
            prompts = len(bench.prompts.ids)
            self._acceptance = AcceptanceSampler(
                ks[1:],
                prompts,
                at_once,
                self._lab.budget.share(ACCEPTANCE),
                spot_concurrency=other if other != at_once else None,
                temperature=work.temperature,
                pace=lambda at_once: pace.generations(at_once, work.output_tokens),
            )
            told("acceptance", ks=ks[1:], prompts=prompts, temperature=work.temperature)
        left = self._acceptance.seconds - self._acceptance_work.elapsed
        with self._lab.stage(ACCEPTANCE, max(left, 0.0)) as stage:
            await measure_acceptance(bench, self._acceptance, self._acceptance_work, stage)
        try:
            self._acceptance.result()
        except ValueError as error:
            raise ProfilingError("PromptsInvalid", str(error)) from error

    async def _measure_grid(self, bench: Bench, cells: Mapping[int, Sequence[int]]) -> None:
        found, budget = self.acceptance(), self._lab.budget
        if self._grid is None:
            self._grid = GridSampler(cells, found, 0.0, {}, self._lab.request.workload.output_tokens)
            seen = self._acceptance.slower(self._lab.pace) if self._acceptance is not None else 0.0
            pace = self._lab.pace.slower(max(seen, SLOWER_WITH_DRAFTS))
            self._grid.foresee(0.0, pace)
            budget.least[GRID] = self._grid.least()
            self._lab.tell_least(self._grid.least())
            self._grid.foresee(budget.share(GRID), pace)
            told("grid", cells=cells)
        with self._lab.stage(GRID, max(self._grid.seconds - self._grid_work.elapsed, 0.0)) as stage:
            await measure_itl(bench, self._grid, found.lengths, self._grid_work, stage)
        self._lab.check_kept()

    def _blame(self, why: str) -> str | None:
        if self._grid is not None:
            cell = blamed(self._grid_work.order, self._lab.boots.cell)
            if cell is None:
                return None
            size, ks = cell
            for k in ks:
                self._grid.fail(size, k, why)
                told("cell lost", batch_size=size, k=k, why=why)
            return f"batch size {size}, K = {', '.join(map(str, ks))}"
        order = self._acceptance_work.order
        if not isinstance(order, Generate) or self._acceptance is None:
            return None
        self._acceptance.fail(order, why)
        told("generation lost", order=order, why=why)
        return f"K = {order.k}" if order.k in self.acceptance().failed else "the spot check of acceptance"

    def acceptance(self) -> AcceptanceResult:
        """As far as it is known."""
        return self._acceptance.result() if self._acceptance is not None else AcceptanceResult(())

    def grid(self) -> GridResult:
        """As far as it is known: every cell that was asked for, measured, or skipped with the reason."""
        found = self._grid.result() if self._grid is not None else GridResult((), (), 0.0)
        cells = {(cell.batch_size, cell.k): cell for cell in found.cells}
        every = tuple(
            cells.get((target.batch_size, target.k))
            or Cell(batch_size=target.batch_size, k=target.k, skipped=target.skipped or "the run ended before")
            for target in self._targets
        )
        return GridResult(every, found.levels, found.mean_context)
