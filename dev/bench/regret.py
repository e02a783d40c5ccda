"""What a table is worth beside another, by goodputs that were measured better than either. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specserve_profiler.contract.profile import Row

Goodputs = Callable[[int], Mapping[int, float]]
"""Batch size -> K -> goodput, any unit."""


def choices(rows: Sequence[Row]) -> dict[int, int]:
    """Batch size -> K, for every batch size that a table covers."""
    return {size: row.k for row in rows for size in range(row.first, row.last + 1)}


def regret(goodputs: Goodputs, rows: Sequence[Row]) -> dict[int, float]:
    """Batch size -> share of the best goodput that a table gives away. Raises KeyError where its K has no goodput."""
    return {size: 1 - goodputs(size)[k] / max(goodputs(size).values()) for size, k in choices(rows).items()}


@dataclass(frozen=True)
class Repeat:
    """One batch size in several tables of the same engine."""

    batch_size: int
    ks: tuple[int, ...]
    """K that each table chose."""
    lost: tuple[float, ...]
    """Share of the best goodput that each choice gives away."""

    @property
    def differs(self) -> bool:
        """Whether the tables disagree."""
        return len(set(self.ks)) > 1

    @property
    def usual_k(self) -> int:
        """The K chosen most often, the smaller of equals."""
        counts = Counter(self.ks)
        return min(counts, key=lambda k: (-counts[k], k))

    def within(self, tie: float) -> bool:
        """Whether no choice gives away more than ``tie``."""
        return max(self.lost) <= tie


def repeats(goodputs: Goodputs, tables: Sequence[Sequence[Row]]) -> list[Repeat]:
    """Every batch size over all tables, which cover the same ones."""
    chosen = [choices(rows) for rows in tables]
    given_away = [regret(goodputs, rows) for rows in tables]
    return [
        Repeat(size, tuple(table[size] for table in chosen), tuple(table[size] for table in given_away))
        for size in sorted(chosen[0])
    ]
