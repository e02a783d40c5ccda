"""Which graphs a served table needs, in tokens. Pure.

A step of c requests with K drafts each has c x (K + 1) tokens and runs in the smallest graph that holds them, padded; a
step above the largest graph runs eagerly, and a graph that is missing costs a batch size its speed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

from specserve_profiler.contract.profile import Row


def capture_sizes(rows: Sequence[Row], graph_sizes: Sequence[int], max_num_seqs: int) -> tuple[int, ...]:
    """Token counts to capture for a table, increasing; empty where the engine uses no graphs.

    ``graph_sizes`` are those of the engine while it was measured: its strides. They are taken as counts of requests c,
    and c x (K(c) + 1) is captured for each, for the first and the last batch size of each row, and for the largest one
    of it below the engine's largest graph. So no batch size within that is padded further than to the next count of the
    stride. The plain union of measured (batch size x (K + 1)) would pad those in between by up to a third.
    """
    if not graph_sizes:
        return ()
    largest = max(graph_sizes)
    wanted = set()
    for row in rows:
        last = min(row.last, max_num_seqs, largest // (row.k + 1))
        counts = {row.first, last, *(count for count in graph_sizes if row.first <= count <= last)}
        wanted |= {count * (row.k + 1) for count in counts if row.first <= count <= last}
    return tuple(sorted(wanted))


def missing_sizes(wanted: Collection[int], reported: Collection[int]) -> tuple[int, ...]:
    """Wanted token counts that an engine does not report among its graphs, increasing."""
    return tuple(sorted(set(wanted) - set(reported)))


def padding(size: int, k: int, graph_sizes: Sequence[int]) -> int | None:
    """Tokens that a step of ``size`` requests with K drafts each is padded by; None where it runs eagerly.

    ``graph_sizes`` must increase.
    """
    tokens = size * (k + 1)
    index = bisect_left(graph_sizes, tokens)
    return graph_sizes[index] - tokens if index < len(graph_sizes) else None
