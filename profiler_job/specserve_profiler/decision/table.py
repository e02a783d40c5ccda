"""The table: K for every batch size, from a surface. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

from specserve_profiler.contract.profile import Row
from specserve_profiler.decision.evidence import Evidence
from specserve_profiler.decision.surface import Surface, shares

TIE = 0.005
"""Within this share of the best goodput the smaller K is taken."""
LOSS = 0.02
"""Share of goodput that merging rows may cost at one batch size, and that a table may lose at one."""


def rows_of(choice: Iterable[int]) -> tuple[Row, ...]:
    """Rows of a K for each batch size from 1."""
    rows: list[Row] = []
    for k, run in groupby(choice):
        first = rows[-1].last + 1 if rows else 1
        rows.append(Row(first=first, last=first + len(list(run)) - 1, k=k))
    return tuple(rows)


def k_at(rows: Sequence[Row], size: int) -> int:
    """K of a table at a batch size; beyond the last row its K, as vLLM does."""
    return next((row.k for row in rows if row.first <= size <= row.last), rows[-1].k)


def best_rows(surface: Surface, max_num_seqs: int, tie: float = TIE) -> tuple[Row, ...]:
    """The best K at each batch size from 1 to ``max_num_seqs``, ties (a share of the goodput) to the smaller K.

    Below the first measured size its K is taken, above the last its row is extended. Nothing is merged.
    """
    rows: list[Row] = []
    for last, k in _runs(surface, min(max_num_seqs, surface.sizes[-1]), tie):
        before = rows.pop() if rows and rows[-1].k == k else None
        first = before.first if before else rows[-1].last + 1 if rows else 1
        rows.append(Row(first=first, last=last, k=k))
    return (*rows[:-1], rows[-1].model_copy(update={"last": max_num_seqs}))


def _runs(surface: Surface, most: int, tie: float) -> Iterator[tuple[int, int]]:
    """(Last batch size of a run, its K) in order, up to ``most``.

    Without padding ITL is straight between two measured sizes. There, where one K is best and one K taken at both ends,
    so it is in between: that one goodput is at least so much of another one is linear in the batch size.
    """
    if surface.graph_sizes:
        yield from ((size, surface.best_k(size, tie)) for size in range(1, most + 1))
        return
    stops = [1, *(end for size in surface.sizes for end in (size, size + 1) if 1 < end <= most), most]
    for first, following in pairwise([*sorted(set(stops)), most + 1]):
        waiting = [(first, following - 1)]
        while waiting:
            low, high = waiting.pop()
            if high - low <= 1 or _taken(surface, low, tie) == _taken(surface, high, tie):
                yield from ((size, surface.best_k(size, tie)) for size in sorted({low, high}))
            else:
                middle = (low + high) // 2
                waiting += [(middle + 1, high), (low, middle)]


def _taken(surface: Surface, size: int, tie: float) -> tuple[int, int]:
    goodputs = surface.goodputs(size)
    return max(goodputs, key=lambda k: goodputs[k]), surface.best_k(size, tie)


def merged_rows(evidence: Evidence, max_num_seqs: int, weights: Mapping[int, float]) -> tuple[Row, ...]:
    """A table that production batch sizes, which swing by a few, cross seldom.

    First the table of the fewest rows whose K is everywhere within ``LOSS`` of the best and at no measured size worse
    beyond its interval; among equals the one that gives away least, by load; then that of the smallest K. What it gives
    away counts from ``TIE`` on. Then rows narrower than half their first batch size take a neighbour's K where that
    costs at most ``LOSS``, even beyond the interval.
    """
    surface = evidence.surface
    measured = set(surface.sizes)
    load = _load(surface.sizes, weights)

    def fits(size: int, k: int) -> bool:
        cost = surface.cost(size, k)
        if cost <= TIE or size not in measured:
            return cost <= LOSS
        ratio = evidence.log_ratio(size, k, surface.best_k(size, 0.0))
        return cost <= LOSS and ratio.mean + ratio.half_width >= 0

    choices = [
        {k: (load(size) * max(surface.cost(size, k) - TIE, 0.0), k) for k in surface.goodputs(size) if fits(size, k)}
        for size in range(1, max_num_seqs + 1)
    ]
    return _without_narrow(surface, rows_of(_fewest_changes(choices)), load)


def _load(sizes: Sequence[int], weights: Mapping[int, float]) -> Callable[[int], float]:
    """The load of any batch size: that of its nearest measured one."""
    share = shares(weights, sizes)
    return lambda size: share[min(sizes, key=lambda measured: abs(measured - size))]


def _fewest_changes(choices: Sequence[Mapping[int, tuple[float, int]]]) -> list[int]:
    """One key of each mapping in turn: the fewest changes, then the least sum of the values, part by part.

    Dynamic programming over (changes, sums) of the best way that ends in each key.
    """
    Score = tuple[int, float, int]  # noqa: N806 - a type
    ways: list[dict[int, tuple[Score, int]]] = []
    for options in choices:
        before = {k: score for k, (score, _) in ways[-1].items()} if ways else {}
        leader = min(before, key=lambda k: (before[k], k)) if before else None
        current: dict[int, tuple[Score, int]] = {}
        for k, (loss, size) in options.items():
            stay = before.get(k)
            score, origin = (0, 0.0, 0), k
            if leader is not None:
                changes, losses, sizes = before[leader]
                move = (changes + 1, losses, sizes)
                score, origin = (stay, k) if stay is not None and stay <= move else (move, leader)
            current[k] = (score[0], score[1] + loss, score[2] + size), origin
        ways.append(current)
    k = min(ways[-1], key=lambda k: (ways[-1][k][0], k))
    chosen = []
    for way in reversed(ways):
        chosen.append(k)
        k = way[k][1]
    return chosen[::-1]


def _without_narrow(surface: Surface, rows: tuple[Row, ...], load: Callable[[int], float]) -> tuple[Row, ...]:
    while True:
        merges = [
            (row.last - row.first, sum(load(size) * surface.cost(size, k) for size in _sizes(row)), row, k)
            for index, row in enumerate(rows)
            if 2 * (row.last - row.first + 1) < row.first
            for k in {neighbour.k for neighbour in (*rows[max(index - 1, 0) : index], *rows[index + 1 : index + 2])}
            if all(surface.cost(size, k) <= LOSS for size in _sizes(row))
        ]
        if not merges:
            return rows
        _, _, narrow, k = min(merges, key=lambda merge: merge[:2])
        rows = rows_of(k if row == narrow else row.k for row in rows for _ in _sizes(row))


def _sizes(row: Row) -> range:
    return range(row.first, row.last + 1)
