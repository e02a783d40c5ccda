"""A profile's measurements as a person asks for them: ITL, goodput and speedups, each with its interval. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import exp, hypot

from specserve_profiler.contract.profile import BaselineCell, Cell, Decision, Interval, Level, Measurements, Row


class Reading:
    """Looks things up in measurements, and in a decision where there is one."""

    def __init__(self, measured: Measurements, decision: Decision | None = None) -> None:
        self.measured = measured
        self.decision = decision

    @cached_property
    def cells(self) -> Mapping[tuple[int, int], Cell]:
        """The grid by (batch size, K), measured or skipped."""
        return {(cell.batch_size, cell.k): cell for cell in self.measured.grid}

    @cached_property
    def levels(self) -> Mapping[int, Level]:
        """What all K of a batch size share, by batch size."""
        return {level.batch_size: level for level in self.measured.levels}

    @cached_property
    def baseline(self) -> Mapping[int, BaselineCell]:
        """The engine without speculation, by batch size."""
        return {cell.batch_size: cell for cell in self.measured.baseline}

    @cached_property
    def sizes(self) -> Sequence[int]:
        """Batch sizes of the grid and of the baseline, increasing."""
        return sorted({size for size, _ in self.cells} | set(self.baseline))

    @cached_property
    def ks(self) -> Sequence[int]:
        """Every K of the grid, increasing."""
        return sorted({k for _, k in self.cells})

    @cached_property
    def _lengths(self) -> Mapping[int, tuple[float, float]]:
        """K -> AL and its relative half-width for just these prompts."""
        return {
            entry.k: (entry.acceptance_length.mean, entry.here / entry.acceptance_length.mean)
            for entry in self.measured.acceptance
            if entry.acceptance_length.mean > 0
        }

    def itl(self, size: int, k: int | None) -> Interval | None:
        """ITL in ms, of K or (None) of the baseline, with the 95 % half-width of its own level; None where unknown."""
        if k is None:
            base = self.baseline.get(size)
            return None if base is None else base.itl_ms
        cell = self.cells.get((size, k))
        if cell is None or cell.itl_ms is None:
            return None
        return Interval(mean=cell.itl_ms, half_width=cell.itl_ms * self._relative(cell))

    def goodput(self, size: int, k: int | None) -> Interval | None:
        """Tokens per second of all requests together, of K or (None) of the baseline: B x AL / ITL.

        Relative half-widths of ITL and of AL, for just these prompts, are added in squares.
        """
        itl = self.itl(size, k)
        length, error = (1.0, 0.0) if k is None else self._lengths.get(k, (None, 0.0))
        if itl is None or length is None:
            return None
        mean = 1000 * size * length / itl.mean
        return Interval(mean=mean, half_width=mean * hypot(itl.half_width / itl.mean, error))

    def rows(self) -> tuple[Row, ...]:
        """The table; empty without a decision."""
        return () if self.decision is None else self.decision.table

    def k_at(self, size: int) -> int | None:
        """The table's K at a batch size."""
        return next((row.k for row in self.rows() if row.first <= size <= row.last), None)

    def over_baseline(self, size: int) -> Interval | None:
        """Goodput of the table over that of the baseline, as the grid predicts it; drift between boots included."""
        return self._ratio(size, self.k_at(size), None, drift=self.measured.boot_drift)

    def over_static(self, size: int) -> Interval | None:
        """Goodput of the table over that of the best single K, as the grid predicts it: both from one boot."""
        return None if self.decision is None else self._ratio(size, self.k_at(size), self.decision.static_k)

    def _ratio(self, size: int, k: int | None, other: int | None, drift: float = 0.0) -> Interval | None:
        if k is None:
            return None
        mine, its = self.goodput(size, k), self.goodput(size, other)
        if mine is None or its is None:
            return None
        mean = mine.mean / its.mean
        if k == other:
            return Interval(mean=mean)
        if other is None:
            error = hypot(mine.half_width / mine.mean, its.half_width / its.mean, drift)
        else:
            error = hypot(self._pair_error(size, k, other), self._contrast(k, other))
        return Interval(mean=mean, half_width=mean * error)

    def _pair_error(self, size: int, k: int, other: int) -> float:
        """Relative half-width of the ratio of two ITL that were measured in the same seconds: their level cancels."""
        return hypot(self.cells[size, k].spread, self.cells[size, other].spread)

    def _contrast(self, k: int, other: int) -> float:
        found = (c.half_width for c in self.measured.contrasts if {c.k, c.other} == {k, other})
        fallback = hypot(self._lengths[k][1], self._lengths[other][1])
        return next(found, fallback)

    def _relative(self, cell: Cell) -> float:
        level = self.levels.get(cell.batch_size)
        return hypot(cell.spread, level.half_width if level is not None else 0.0)


def band(interval: Interval) -> tuple[float, float]:
    """Ends of an interval of something that is above zero: half-widths are of logarithms, so its band is a factor."""
    factor = exp(min(interval.half_width / interval.mean, 50.0)) if interval.mean > 0 else 1.0
    return interval.mean / factor, interval.mean * factor


def bars(intervals: Sequence[Interval]) -> tuple[list[float], list[float]]:
    """How far the ends lie below and above the means, as error bars are drawn."""
    ends = [band(interval) for interval in intervals]
    below = [interval.mean - low for interval, (low, _) in zip(intervals, ends, strict=True)]
    return below, [high - interval.mean for interval, (_, high) in zip(intervals, ends, strict=True)]


def percent(interval: Interval) -> str:
    """The half-width in per cent of the mean: ``±2%``, ``±0.4%``."""
    if interval.mean == 0:
        return "±?"
    share = 100 * interval.half_width / abs(interval.mean)
    return f"±{share:.1f}%" if 0 < share < 0.95 else f"±{share:.0f}%"


def minute(time: dt.datetime) -> str:
    """A time to the minute, in UTC whatever zone it was written in."""
    return f"{time.astimezone(dt.timezone.utc):%Y-%m-%d %H:%M} UTC"


def number(value: float | None) -> str:
    """Three digits or more, without an exponent; ``-`` for None."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
