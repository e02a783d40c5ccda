"""From measurements to the table and the verdict. Pure.

goodput(b, K) = AL(K) / ITL(b, K) for one request; the batch size is the same for every K compared, so it cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from specserve_profiler.contract import Decision, Interval, Measurements, Row, Speedup, Verdict
from specserve_profiler.estimate import relative

TIE = 0.005
"""Within this share of the best goodput the smaller K is taken."""
LOSS = 0.02
"""Share of goodput that a table may lose at one batch size, and that merging narrow rows may cost."""
STATIC = 0.01
"""Where one K is within this share of the table everywhere, it is served instead: nothing swings then."""
WIDE = 0.10
"""Relative half-width of a goodput from which on a warning says so."""


def decide(measured: Measurements, max_num_seqs: int) -> Decision:
    """The table for batch sizes 1 to ``max_num_seqs`` and the verdict over it.

    Table: at each batch size the K of the best goodput, ties (``TIE``) to the smaller K. Between measured sizes ITL
    is interpolated linearly, for each K that was measured on both sides; nothing is assumed about its course. Rows
    narrower than half their first batch size are merged with a neighbour where that costs at most ``LOSS``.
    Below the first measured size its K is taken, above the last its row is extended.

    Verdict, with r(B) = goodput of the table over that of the baseline at a measured batch size B, intervals at 95 %:

    - ``None`` if every row has K = 0 (which still runs the drafter, so it is never better than none at all), if the
      geometric mean of r is not above 1 by more than its interval, or if r(B) is below 1 - ``LOSS`` by more than its
      interval at some B, for the table and also without merged rows: then no other K repairs it;
    - else ``Static`` if the table is one row, or one K > 0 is within ``STATIC`` of the table at every measured batch
      size and stands the same comparison with the baseline;
    - else ``Dynamic``.

    Raises ValueError where there is nothing to decide on: no measured cell, or no baseline at any of their batch sizes.
    """
    surface = Surface.of(measured, max_num_seqs)
    best = [surface.best_k(size) for size in range(1, max_num_seqs + 1)]
    merged = _merge_narrow(surface, best)
    choice, against = _least_losing(surface, merged, best)
    rows = _rows(choice)
    static_k = surface.best_single()
    verdict, reason = _verdict(surface, rows, choice, against, static_k)
    return Decision(
        verdict=verdict,
        reason=reason,
        table=tuple(rows),
        static_k=0 if static_k is None or surface.against_baseline(static_k).mean <= 0 else static_k,
        speedups=tuple(_speedups(surface, choice, static_k)),
        warnings=tuple(_warnings(surface, measured, choice, max_num_seqs)),
    )


@dataclass(frozen=True)
class Against:
    """The log ratio of some choice of K over the baseline."""

    mean: float
    half_width: float
    losing: tuple[int, ...]
    """Measured batch sizes where it loses more than ``LOSS`` beyond its interval."""

    @property
    def wins(self) -> bool:
        return self.mean > self.half_width and not self.losing


@dataclass(frozen=True)
class Surface:
    """Goodput over batch size and K, as measured and between."""

    acceptance: dict[int, Interval]
    itl: dict[tuple[int, int], Interval]
    baseline: dict[int, Interval]
    sizes: tuple[int, ...]
    """Batch sizes with at least one measured cell."""

    @classmethod
    def of(cls, measured: Measurements, max_num_seqs: int) -> Surface:
        acceptance = {entry.k: entry.acceptance_length for entry in measured.acceptance}
        itl = {
            (cell.batch_size, cell.k): cell.itl_ms
            for cell in measured.grid
            if cell.itl_ms is not None and cell.k in acceptance and cell.batch_size <= max_num_seqs
        }
        baseline = {cell.batch_size: cell.itl_ms for cell in measured.baseline}
        sizes = tuple(sorted({size for size, _ in itl}))
        if not sizes:
            raise ValueError("no cell of the grid was measured")
        if not set(sizes) & set(baseline):
            raise ValueError("the baseline was not measured at any batch size of the grid")
        return cls(acceptance, itl, baseline, sizes)

    @property
    def compared(self) -> tuple[int, ...]:
        """Batch sizes at which grid and baseline were both measured."""
        return tuple(size for size in self.sizes if size in self.baseline)

    def goodputs(self, size: int) -> dict[int, float]:
        """K -> tokens per ms of one request, for each K that can run at a batch size."""
        below = max((s for s in self.sizes if s <= size), default=self.sizes[0])
        above = min((s for s in self.sizes if s >= size), default=self.sizes[-1])
        share = (size - below) / (above - below) if above > below else 0.0
        found = {}
        for k, acceptance in self.acceptance.items():
            low, high = self.itl.get((below, k)), self.itl.get((above, k))
            if low is not None and high is not None:
                found[k] = acceptance.mean / ((1 - share) * low.mean + share * high.mean)
        return found

    def best_k(self, size: int) -> int:
        """The smallest K within ``TIE`` of the best. Sizes between two that share no K take that of the larger."""
        goodputs = self.goodputs(size) or self.goodputs(min(s for s in self.sizes if s > size))
        enough = max(goodputs.values()) * (1 - TIE)
        return min(k for k, value in goodputs.items() if value >= enough)

    def cost(self, size: int, k: int) -> float:
        """Share of the best goodput that K gives away at a batch size; infinite where it cannot run."""
        goodputs = self.goodputs(size)
        return 1 - goodputs[k] / max(goodputs.values()) if k in goodputs else math.inf

    def best_single(self) -> int | None:
        """The K with the best geometric mean over all measured sizes, of those that run at each; None if none does."""
        scores = {
            k: fmean(math.log(self.goodputs(size)[k]) for size in self.sizes)
            for k in self.acceptance
            if all((size, k) in self.itl for size in self.sizes)
        }
        return max(scores, key=lambda k: (scores[k], -k)) if scores else None

    def log_ratio(self, size: int, k: int) -> Interval:
        """Log goodput of K over the baseline's at a measured batch size."""
        acceptance, itl, baseline = self.acceptance[k], self.itl[size, k], self.baseline[size]
        return Interval(
            mean=math.log(acceptance.mean * baseline.mean / itl.mean),
            half_width=math.hypot(relative(acceptance), relative(itl), relative(baseline)),
        )

    def against_baseline(self, choice: Sequence[int] | int) -> Against:
        """A choice of K (for each batch size from 1, or one for all) against the baseline over the measured sizes.

        The AL of one K has the same error at every batch size, ITL errors are independent.
        """
        chosen = {size: choice if isinstance(choice, int) else choice[size - 1] for size in self.compared}
        ratios = {size: self.log_ratio(size, k) for size, k in chosen.items()}
        n = len(chosen)
        shared = [
            sum(1 for other in chosen.values() if other == k) / n * relative(self.acceptance[k])
            for k in set(chosen.values())
        ]
        own = [math.hypot(relative(self.itl[size, k]), relative(self.baseline[size])) / n for size, k in chosen.items()]
        limit = math.log(1 - LOSS)
        return Against(
            mean=fmean(ratio.mean for ratio in ratios.values()),
            half_width=math.hypot(*shared, *own),
            losing=tuple(size for size, ratio in ratios.items() if ratio.mean + ratio.half_width < limit),
        )


def _rows(choice: Sequence[int]) -> list[Row]:
    rows, first = [], 1
    for k, run in groupby(choice):
        last = first + len(list(run)) - 1
        rows.append(Row(first=first, last=last, k=k))
        first = last + 1
    return rows


def _merge_narrow(surface: Surface, best: Sequence[int]) -> list[int]:
    choice = list(best)
    while True:
        rows = _rows(choice)
        merges = [
            (row.last - row.first, cost, row, neighbour.k)
            for index, row in enumerate(rows)
            if row.last - row.first + 1 < row.first // 2
            for neighbour in rows[max(index - 1, 0) : index] + rows[index + 1 : index + 2]
            if (cost := max(surface.cost(size, neighbour.k) for size in range(row.first, row.last + 1))) <= LOSS
        ]
        if not merges:
            return choice
        _, _, row, k = min(merges, key=lambda merge: merge[:2])
        choice[row.first - 1 : row.last] = [k] * (row.last - row.first + 1)


def _least_losing(surface: Surface, merged: list[int], best: list[int]) -> tuple[list[int], Against]:
    """Merged rows, unless only the rows as they were keep up with the baseline everywhere."""
    against, unmerged = surface.against_baseline(merged), surface.against_baseline(best)
    if against.losing and not unmerged.losing:
        return best, unmerged
    return merged, against


def _verdict(
    surface: Surface, rows: Sequence[Row], choice: Sequence[int], against: Against, static_k: int | None
) -> tuple[Verdict, str]:
    gain = f"{math.exp(against.mean):.2f} times the goodput of no speculation (± {against.half_width:.0%})"
    if all(row.k == 0 for row in rows):
        return "None", "No number of draft tokens beats drafting none at any batch size, so the drafter only costs."
    if against.losing:
        sizes = ", ".join(map(str, against.losing))
        return (
            "None",
            f"At batch size {sizes} the best K loses more than {LOSS:.0%} against no speculation, beyond the error.",
        )
    if not against.wins:
        return "None", f"The table has {gain} over the measured batch sizes, which is no gain beyond the error."
    if len(rows) == 1:
        return "Static", f"K = {rows[0].k} is best at every batch size, with {gain}."
    if static_k and surface.against_baseline(static_k).wins and _close(surface, choice, static_k):
        return (
            "Static",
            f"K = {static_k} is within {STATIC:.0%} of the table at every batch size; the table has {gain}.",
        )
    return "Dynamic", f"The table has {gain} over the measured batch sizes; no single K keeps up with it at each."


def _close(surface: Surface, choice: Sequence[int], static_k: int) -> bool:
    return all(
        surface.goodputs(size)[static_k] >= (1 - STATIC) * surface.goodputs(size)[choice[size - 1]]
        for size in surface.sizes
    )


def _speedups(surface: Surface, choice: Sequence[int], static_k: int | None) -> list[Speedup]:
    speedups = []
    for size in surface.compared:
        k = choice[size - 1]
        goodputs = surface.goodputs(size)
        over_static = 1.0 if static_k is None else goodputs[k] / goodputs[static_k]
        over_baseline = math.exp(surface.log_ratio(size, k).mean)
        speedups.append(Speedup(batch_size=size, over_baseline=over_baseline, over_static=over_static))
    return speedups


def _warnings(surface: Surface, measured: Measurements, choice: Sequence[int], max_num_seqs: int) -> list[str]:
    warnings = []
    first, last = surface.sizes[0], surface.sizes[-1]
    if last < max_num_seqs:
        warnings.append(
            f"Batch sizes above {last} were not measured: the last row is extended to {max_num_seqs}. "
            "Add a larger batch size, or lower maxNumSeqs."
        )
    if first > 1:
        warnings.append(f"Batch sizes below {first} were not measured: they take the K of {first}.")
    for size in sorted(
        {cell.batch_size for cell in measured.grid if cell.batch_size <= max_num_seqs} - set(surface.sizes)
    ):
        why = next(cell.skipped for cell in measured.grid if cell.batch_size == size)
        warnings.append(f"Batch size {size} could not be measured: {why}.")
    wide = [
        size
        for size in surface.sizes
        if math.hypot(relative(surface.acceptance[choice[size - 1]]), relative(surface.itl[size, choice[size - 1]]))
        > WIDE
    ]
    if wide:
        sizes = ", ".join(map(str, wide))
        warnings.append(f"The goodput at batch size {sizes} is known to no better than ± {WIDE:.0%}: measure longer.")
    return warnings
