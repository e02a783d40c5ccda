"""A profile again from the raw records of a run, by the estimators of today. Pure.

What was measured stays: cohorts, generations and loops in their order, and what the engine said of itself. What they
mean is worked out anew: ITL, acceptance, throughput, their intervals, the table and the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatchmethod

from specserve_profiler.contract.profile import ArmLoop, LoopPoint, Measurements, PartialProfile, Profile
from specserve_profiler.decision import verdict
from specserve_profiler.reports import kept
from specserve_profiler.reports.kept import Kept, KeptError
from specserve_profiler.statistics import baselines, estimate
from specserve_profiler.statistics.acceptance import WITHOUT_SPECULATION, AcceptanceResult, AcceptanceSampler
from specserve_profiler.statistics.sampling import GridResult, GridSampler


def refit(run: Kept) -> Profile | PartialProfile:
    """The profile of a run again. Raises KeptError where its records contradict each other."""
    request = run.result.request
    if request is None:
        raise KeptError("its profile does not say what was asked for")
    told = _Told()
    try:
        for record in run.records:
            told.take(record)
        measured = told.measurements(run.result.measurements)
        if isinstance(run.result, PartialProfile):
            return run.result.model_copy(update={"measurements": measured})
        decision = verdict.decide(measured, request.engine.max_num_seqs, request.weights)
    except (ValueError, LookupError, ArithmeticError) as error:
        raise KeptError(f"its records contradict each other: {error!r}") from error
    warnings = (*decision.warnings, *told.warnings)
    return run.result.model_copy(
        update={"measurements": measured, "decision": decision.model_copy(update={"warnings": warnings})}
    )


class _Told:
    """The samplers of a run, told again what they were told."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._acceptance: AcceptanceSampler | None = None
        self._grid: GridSampler | None = None
        self._baselines: list[GridSampler] = []
        self._asked: GridSampler | None = None
        """The one whose cohorts these are."""
        self._points: dict[int, LoopPoint] = {}
        """By concurrency, of the arm that is still to be named."""
        self._closed: list[ArmLoop] = []
        self._seen: list[ArmLoop] = []
        self._never_full: set[int] = set()

    @singledispatchmethod
    def take(self, record: kept.Record) -> None:
        """One record, in the order of the run."""
        raise TypeError(f"{record!r} is no record")

    @take.register
    def _(self, record: kept.AcceptanceBegan) -> None:
        self._acceptance = AcceptanceSampler(record.ks, record.prompts, 1, 0.0, temperature=record.temperature)

    @take.register
    def _(self, record: kept.Generated) -> None:
        self._sampled().add(record.order, record.finished, record.seconds)

    @take.register
    def _(self, record: kept.GenerationLost) -> None:
        self._sampled().fail(record.order, record.why)

    @take.register
    def _(self, record: kept.GridBegan) -> None:
        acceptance = WITHOUT_SPECULATION if record.what == "baseline" else self._sampled().result()
        self._asked = GridSampler(record.cells, acceptance, 0.0, {}, 1)
        if record.what == "baseline":
            self._baselines.append(self._asked)
        else:
            self._grid = self._asked

    @take.register
    def _(self, record: kept.CohortRan) -> None:
        self._measured().add(record.order, record.steps, record.seconds)

    @take.register
    def _(self, record: kept.CellLost) -> None:
        self._measured().fail(record.batch_size, record.k, record.why)

    @take.register
    def _(self, record: kept.LoopRan) -> None:
        try:
            self._points[record.concurrency] = estimate.loop_point(record.concurrency, record.steps, record.finished)
        except ValueError:
            self._never_full.add(record.concurrency)

    @take.register
    def _(self, record: kept.NeverFull) -> None:
        self._never_full.add(record.concurrency)

    @take.register
    def _(self, record: kept.ArmSeen) -> None:
        points = tuple(self._points[at] for at in record.concurrencies if at in self._points)
        loop = ArmLoop(arm=record.arm, points=points, live=record.live)
        (self._closed if record.arm.kind == "None" else self._seen).append(loop)
        self._points = {}

    @take.register
    def _(self, record: kept.Warned) -> None:
        self.warnings.append(record.text)

    def _sampled(self) -> AcceptanceSampler:
        if self._acceptance is None:
            raise ValueError("generations before acceptance was sampled")
        return self._acceptance

    def _measured(self) -> GridSampler:
        if self._asked is None:
            raise ValueError("a cohort before a grid")
        return self._asked

    def measurements(self, then: Measurements) -> Measurements:
        """What was measured, with what the engine said of itself ``then``."""
        acceptance = self._acceptance.result() if self._acceptance is not None else AcceptanceResult(())
        grid = self._grid.result() if self._grid is not None else GridResult((), (), 0.0)
        found = {(cell.batch_size, cell.k): cell for cell in grid.cells}
        cells = tuple(found.get((cell.batch_size, cell.k), cell) for cell in then.grid)
        boots = [sampler.result().baseline() for sampler in self._baselines]
        drift, drift_measured = baselines.drift_of(boots)
        return then.model_copy(
            update={
                "grid": cells,
                "levels": grid.levels,
                "acceptance": acceptance.acceptance,
                "contrasts": acceptance.contrasts,
                "spot_check": acceptance.spot_check,
                "baseline": baselines.cells_of(boots),
                "boot_drift": drift,
                "boot_drift_measured": drift_measured,
                "loops": (*baselines.loops_of(self._closed, cells, self._never_full), *self._arms(then.loops)),
                "mean_context_tokens": grid.mean_context,
            }
        )

    def _arms(self, then: Sequence[ArmLoop]) -> list[ArmLoop]:
        """The arms in their order; one that did not run stays as it was, for it has no records."""
        seen = iter(self._seen)
        ran = [loop if loop.failed else next(seen, None) for loop in then if loop.arm.kind != "None"]
        return [*(loop for loop in ran if loop is not None), *seen]
