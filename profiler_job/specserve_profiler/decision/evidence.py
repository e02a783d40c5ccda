"""How well the ratios of a surface are known: between Ks of one boot, and against the baseline's boot. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from specserve_profiler.contract.profile import Acceptance, Cell, Interval, Measurements
from specserve_profiler.decision.surface import Surface, shares
from specserve_profiler.statistics.estimate import relative


@dataclass(frozen=True)
class Against:
    """How some way to serve compares with another one, as log ratios of tokens per second."""

    ratios: dict[int, Interval]
    """Log ratio by batch size."""
    share: dict[int, float]
    """Load at these batch sizes."""
    half_width: float
    """Of the mean, at 95 %."""

    @property
    def mean(self) -> float:
        """Mean log ratio by load."""
        return math.fsum(self.share[size] * ratio.mean for size, ratio in self.ratios.items())

    @property
    def counted(self) -> dict[int, Interval]:
        """The ratios at batch sizes that have a share of the load."""
        return {size: ratio for size, ratio in self.ratios.items() if self.share[size] > 0}

    def losing(self, loss: float) -> tuple[int, ...]:
        """Batch sizes where it is worse by more than the share ``loss``, beyond the interval."""
        limit = math.log(1 - loss)
        return tuple(size for size, ratio in self.counted.items() if ratio.mean + ratio.half_width < limit)

    def ahead(self, gain: float) -> tuple[int, ...]:
        """Batch sizes where it is better by more than the share ``gain``, and beyond the interval."""
        return tuple(size for size, r in self.counted.items() if r.mean > math.log1p(gain) and r.mean > r.half_width)

    @property
    def gains(self) -> bool:
        """Whether it is better on the whole, beyond the interval."""
        return self.mean > self.half_width


@dataclass(frozen=True)
class Evidence:
    """A surface with the errors of its parts."""

    surface: Surface
    acceptance: Mapping[int, Acceptance]
    cells: Mapping[tuple[int, int], Cell]
    levels: Mapping[int, float]
    """Batch size -> relative half-width of what its cells share."""
    baseline: Mapping[int, Interval]
    boot_drift: float
    contrasts: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(K, another K) -> half-width of the log ratio of their AL, both ways round."""

    @classmethod
    def of(cls, measured: Measurements, max_num_seqs: int) -> Evidence:
        """Raises ValueError where there is nothing to decide on: no measured cell, or no baseline beside one."""
        acceptance = {entry.k: entry for entry in measured.acceptance if entry.acceptance_length.mean > 0}
        cells = {
            (cell.batch_size, cell.k): cell
            for cell in measured.grid
            if cell.itl_ms is not None and cell.k in acceptance and cell.batch_size <= max_num_seqs
        }
        if not cells:
            raise ValueError("no cell of the grid was measured")
        baseline = {cell.batch_size: cell.itl_ms for cell in measured.baseline if cell.itl_ms.mean > 0}
        if not {size for size, _ in cells} & set(baseline):
            raise ValueError("the baseline was not measured at any batch size of the grid")
        return cls(
            surface=Surface(
                {k: entry.acceptance_length.mean for k, entry in acceptance.items()},
                {place: cell.itl_ms for place, cell in cells.items() if cell.itl_ms is not None},
                measured.graph_sizes,
            ),
            acceptance=acceptance,
            cells=cells,
            levels={level.batch_size: level.half_width for level in measured.levels},
            baseline=baseline,
            boot_drift=measured.boot_drift,
            contrasts={
                pair: entry.half_width
                for entry in measured.contrasts
                for pair in ((entry.k, entry.other), (entry.other, entry.k))
            },
        )

    @property
    def compared(self) -> tuple[int, ...]:
        """Batch sizes at which grid and baseline were both measured."""
        return tuple(size for size in self.surface.sizes if size in self.baseline)

    def acceptance_error(self, k: int) -> float:
        """Relative half-width of AL(K), over prompts like these."""
        return relative(self.acceptance[k].acceptance_length)

    def log_ratio(self, size: int, k: int, other: int) -> Interval:
        """Log goodput of one K over another's at a batch size where both were measured: in the same seconds."""
        if k == other:
            return Interval(mean=0.0)
        one, two = self.surface.goodputs(size)[k], self.surface.goodputs(size)[other]
        acceptance = self.contrasts.get((k, other))
        if acceptance is None:
            acceptance = math.hypot(self.acceptance_error(k), self.acceptance_error(other))
        spreads = self.cells[size, k].spread, self.cells[size, other].spread
        return Interval(mean=math.log(one / two), half_width=math.hypot(acceptance, *spreads))

    def over_baseline(self, size: int, k: int) -> Interval:
        """Log goodput of K over the baseline's at a batch size where both were measured, in different boots."""
        ratio = self.surface.goodputs(size)[k] * self.baseline[size].mean
        half_width = math.hypot(self.acceptance_error(k), self._own_error(size, k), self.boot_drift)
        return Interval(mean=math.log(ratio), half_width=half_width)

    def against_baseline(self, choice: Mapping[int, int], weights: Mapping[int, float]) -> Against:
        """A choice of K (by batch size) against the baseline.

        The AL of one K has the same error at every batch size, that of two K errs with it as the prompts are the same,
        and the drift between the two boots is common to all; what is left is independent between batch sizes.
        """
        share = shares(weights, self.compared)
        by_k: dict[int, float] = {}
        for size in self.compared:
            by_k[choice[size]] = by_k.get(choice[size], 0.0) + share[size]
        own = [share[size] * self._own_error(size, choice[size]) for size in self.compared]
        return Against(
            ratios={size: self.over_baseline(size, choice[size]) for size in self.compared},
            share=share,
            half_width=math.hypot(self.boot_drift, self._mixed_acceptance_error(by_k), *own),
        )

    def against_single(self, choice: Mapping[int, int], k: int, weights: Mapping[int, float]) -> Against:
        """A choice of K against one K for all, at the measured batch sizes."""
        sizes = self.surface.sizes
        share = shares(weights, sizes)
        ratios = {size: self.log_ratio(size, choice[size], k) for size in sizes}
        return Against(ratios, share, math.fsum(share[size] * ratio.half_width for size, ratio in ratios.items()))

    def best_single(self, weights: Mapping[int, float], tie: float) -> int | None:
        """The K with the best mean log goodput by load, of those that run at each measured size; None if none does.

        Ties to the smaller K.
        """
        sizes = self.surface.sizes
        share = shares(weights, sizes)
        scores = {
            k: math.fsum(share[size] * math.log(self.surface.goodputs(size)[k]) for size in sizes)
            for k in self.surface.ks
            if all((size, k) in self.cells for size in sizes)
        }
        if not scores:
            return None
        enough = max(scores.values()) + math.log(1 - tie)
        return min(k for k, score in scores.items() if score >= enough)

    def _mixed_acceptance_error(self, parts: Mapping[int, float]) -> float:
        """Half-width of the mean log AL of several K, each with its part: quadratic form of their covariances."""
        total = math.fsum(parts[k] * parts[other] * self._covariance(k, other) for k in parts for other in parts)
        return math.sqrt(max(total, 0.0))

    def _covariance(self, k: int, other: int) -> float:
        """Of two log AL, in squared half-widths, from var(a - b) = var a + var b - 2 cov(a, b).

        Without a contrast they are taken to err together.
        """
        one, two = self.acceptance_error(k), self.acceptance_error(other)
        contrast = self.contrasts.get((k, other), abs(one - two))
        return min((one**2 + two**2 - contrast**2) / 2, one * two)

    def _own_error(self, size: int, k: int) -> float:
        """Relative half-width of ITL over the baseline's at one batch size, without the drift between boots."""
        return math.hypot(self.cells[size, k].spread, self.levels.get(size, 0.0), relative(self.baseline[size]))
