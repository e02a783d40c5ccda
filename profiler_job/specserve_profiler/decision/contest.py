"""What the closed loop says: which arm stands, which beats which, where to look, what to repair. Pure.

Tokens per second of two arms are compared at the same client concurrency. Two boots differ by the drift between boots;
tables that took turns in one boot do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from specserve_profiler.contract.profile import ArmLoop, Interval, LoopPoint, Measurements, Row
from specserve_profiler.decision.evidence import Against
from specserve_profiler.decision.surface import shares
from specserve_profiler.decision.table import LOSS, k_at, rows_of
from specserve_profiler.statistics.estimate import relative

MOST_POINTS = 12
"""Concurrencies at which a table is looked at, at most."""
TTFT_FACTOR, TTFT_MS = 1.5, 50.0
"""A time to first token that is this many times the baseline's, and this much above it, is told."""


@dataclass(frozen=True)
class Contest:
    """The arms that were measured beside the baseline."""

    baseline: ArmLoop
    arms: tuple[ArmLoop, ...]
    """Every other loop."""
    boot_drift: float
    weights: Mapping[int, float]

    @classmethod
    def of(cls, measured: Measurements, weights: Mapping[int, float]) -> Contest | None:
        """None where no arm was tried beside a baseline: then the grid's predictions are all there is.

        What was seen of an arm does not count where the engine also failed with it.
        """
        baseline = next((loop for loop in measured.loops if loop.arm.kind == "None" and _points(loop)), None)
        failed = {loop.arm for loop in measured.loops if loop.failed}
        arms = tuple(
            loop for loop in measured.loops if loop.arm.kind != "None" and (loop.failed or loop.arm not in failed)
        )
        if baseline is None or not any(_points(loop) or loop.failed for loop in arms if not loop.live):
            return None
        return cls(baseline, arms, measured.boot_drift, weights)

    def against(self, one: ArmLoop, other: ArmLoop) -> Against | None:
        """How one arm compares with another; None where they share no concurrency."""
        mine, theirs = _points(one), _points(other)
        common = sorted(mine.keys() & theirs.keys())
        if not common:
            return None
        drift = 0.0 if one.arm.kind == other.arm.kind == "Table" else self.boot_drift
        own = {at: math.hypot(_error(mine[at]), _error(theirs[at])) for at in common}
        share = shares(self.weights, common)
        return Against(
            ratios={
                at: Interval(mean=math.log(_rate(mine[at]) / _rate(theirs[at])), half_width=math.hypot(own[at], drift))
                for at in common
            },
            share=share,
            half_width=math.hypot(drift, *(share[at] * own[at] for at in common)),
        )

    def over_baseline(self, loop: ArmLoop) -> Against | None:
        """How an arm compares with the baseline; None unless it was seen at every concurrency of the baseline."""
        if loop.failed is not None or _points(self.baseline).keys() - _points(loop).keys():
            return None
        return self.against(loop, self.baseline)

    def standing(self, kind: str) -> list[ArmLoop]:
        """Arms of a kind that gain on the baseline on the whole and lose nowhere, the greatest gain first."""
        found = [
            (loop, against) for loop in self.arms if loop.arm.kind == kind and (against := self.over_baseline(loop))
        ]
        stand = [(loop, against) for loop, against in found if against.gains and not against.losing(LOSS)]
        return [loop for loop, _ in sorted(stand, key=lambda entry: -entry[1].mean)]

    def table(self) -> ArmLoop | None:
        """The standing table that loses at the fewest concurrencies to other tables of its boot, gains to decide."""
        tables = self.standing("Table")
        return min(tables, key=lambda loop: len(self.beaten_at(loop)), default=None)

    def beaten_at(self, loop: ArmLoop) -> tuple[int, ...]:
        """Concurrencies at which a table loses to another one of its boot, of those that are not in its place."""
        others = [other for other in self.arms if other.live and len(other.arm.rows) == 1 and other is not loop]
        found = {at for other in others if (against := self.against(loop, other)) for at in against.losing(LOSS)}
        return tuple(sorted(found))

    def slow_first_tokens(self) -> Iterator[tuple[ArmLoop, int, float, float]]:
        """(arm, concurrency, its p95 TTFT, the baseline's), in ms, where the arm's is out of bounds."""
        before = _points(self.baseline)
        for loop in self.arms:
            for at, point in _points(loop).items():
                base = before[at].ttft_ms if at in before else point.ttft_ms
                if not loop.live and point.ttft_ms > TTFT_FACTOR * base and point.ttft_ms > base + TTFT_MS:
                    yield loop, at, point.ttft_ms, base


def check_points(rows: Sequence[Row], measured_sizes: Sequence[int], max_num_seqs: int) -> tuple[int, ...]:
    """Client concurrencies at which to verify a table: 1, the largest measured one, both sides of each edge, between.

    At most ``MOST_POINTS``; the two ends and the edges come first.
    """
    largest = min(max(measured_sizes, default=max_num_seqs), max_num_seqs)
    inside = [row for row in rows if row.last < largest]
    wanted = [1, largest]
    wanted += [row.last for row in inside]
    wanted += [row.last + 1 for row in inside]
    wanted += [round(math.sqrt(row.first * min(row.last, largest))) for row in rows if row.first <= largest]
    return tuple(sorted(list(dict.fromkeys(wanted))[:MOST_POINTS]))


def repaired(rows: Sequence[Row], loops: Sequence[ArmLoop]) -> tuple[Row, ...] | None:
    """A table to verify instead of one that loses at an edge; None where it does not, or nothing better was seen.

    The table is compared with each K alone, followed in the same boot. Where it loses more than ``LOSS`` beyond the
    interval, the K that is best on both sides of that edge takes both, up to halfway to the next concurrency that was
    looked at; so an edge moves, or two rows become one. No K comes in that is not in the table.
    """
    tables = [loop for loop in loops if loop.arm.kind == "Table" and _points(loop)]
    own = next((loop for loop in tables if loop.arm.rows == tuple(rows)), None)
    singles = [loop for loop in tables if loop.live and len(loop.arm.rows) == 1]
    known = {row.k for row in rows}
    singles = [loop for loop in singles if loop.arm.rows[0].k in known]
    if own is None or not singles:
        return None
    contest = Contest(own, tuple(singles), 0.0, {})
    choice = [k_at(rows, size) for size in range(1, rows[-1].last + 1)]
    points = sorted(_points(own))
    for group in _groups(points, contest.beaten_at(own)):
        k = _best_single(own, singles, group)
        if k is not None:
            first = max((point for point in points if point < group[0]), default=-group[0])
            last = min((point for point in points if point > group[-1]), default=2 * len(choice))
            start, end = (first + group[0]) // 2 + 1, min((group[-1] + last) // 2, len(choice))
            choice[start - 1 : end] = [k] * (end - start + 1)
    new = rows_of(choice)
    return new if new != tuple(rows) else None


def _groups(points: Sequence[int], losing: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Losing points with those next to them by 1 (across the edge), as runs among the points looked at."""
    for near, run in groupby(points, key=lambda point: any(abs(point - lost) <= 1 for lost in losing)):
        if near:
            yield tuple(run)


def _best_single(own: ArmLoop, singles: Sequence[ArmLoop], group: Sequence[int]) -> int | None:
    """The K whose rates over the points of a group are best on the whole, and better than the table's."""

    def score(loop: ArmLoop) -> float:
        points = _points(loop)
        return math.fsum(math.log(_rate(points[at])) for at in group)

    complete = [loop for loop in singles if set(group) <= _points(loop).keys()]
    best = max(complete, key=score, default=None)
    return best.arm.rows[0].k if best is not None and score(best) > score(own) else None


def _points(loop: ArmLoop) -> dict[int, LoopPoint]:
    """Concurrency -> point, of those with a rate; none of an arm that failed."""
    if loop.failed is not None:
        return {}
    return {point.concurrency: point for point in loop.points if point.tokens_per_second.mean > 0}


def _rate(point: LoopPoint) -> float:
    return point.tokens_per_second.mean


def _error(point: LoopPoint) -> float:
    return relative(point.tokens_per_second)
