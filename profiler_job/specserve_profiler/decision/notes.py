"""What a user must know beside a verdict, and what to do about it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from specserve_profiler.contract.profile import Measurements, Row
from specserve_profiler.decision.contest import Contest
from specserve_profiler.decision.evidence import Evidence
from specserve_profiler.decision.table import k_at

WIDE = 0.10
"""Relative half-width of a goodput from which on a note says so."""
SPOT = 0.02
"""Share by which acceptance may differ at another batch size."""


def notes(
    measured: Measurements, evidence: Evidence, rows: Sequence[Row], max_num_seqs: int, contest: Contest | None
) -> Iterator[str]:
    """One sentence or two each: what is not known, or not right, and the way out."""
    yield from _not_measured(measured, evidence, max_num_seqs)
    yield from _not_known(measured, evidence, rows)
    yield from _spot_check(measured)
    if contest is not None:
        yield from _closed_loop(contest)


def _not_measured(measured: Measurements, evidence: Evidence, max_num_seqs: int) -> Iterator[str]:
    first, last = evidence.surface.sizes[0], evidence.surface.sizes[-1]
    if last < max_num_seqs:
        yield (
            f"Batch sizes above {last} were not measured: the last row is extended to {max_num_seqs}. "
            "Add a larger batch size, or lower maxNumSeqs."
        )
    if first > 1:
        yield f"Batch sizes below {first} were not measured: they take the K of {first}. Add batch size 1."
    inside = {cell.batch_size: cell.skipped for cell in measured.grid if cell.batch_size <= max_num_seqs}
    for size in sorted(inside.keys() - set(evidence.surface.sizes)):
        yield f"Batch size {size} could not be measured: {inside[size]}."


def _not_known(measured: Measurements, evidence: Evidence, rows: Sequence[Row]) -> Iterator[str]:
    stopped = {level.batch_size for level in measured.levels if level.stopped == "Budget"}
    early = [size for size in evidence.surface.sizes if size in stopped]
    if early:
        yield (
            f"The time ended before the best K at batch size {_listed(early)} was known to within 1%: "
            "give measureSeconds more to know it."
        )
    wide = [size for size in evidence.surface.sizes if _half_width(evidence, size, k_at(rows, size)) > WIDE]
    if wide:
        yield f"The goodput at batch size {_listed(wide)} is known to no better than ± {WIDE:.0%}: measure longer."


def _half_width(evidence: Evidence, size: int, k: int) -> float:
    """Relative half-width of a goodput within its boot; 0 for a cell that was not measured."""
    cell = evidence.cells.get((size, k))
    if cell is None:
        return 0.0
    return math.hypot(evidence.acceptance_error(k), cell.spread, evidence.levels.get(size, 0.0))


def _spot_check(measured: Measurements) -> Iterator[str]:
    spot = measured.spot_check
    if spot is None:
        return
    off = abs(spot.ratio.mean - 1)
    if off > SPOT and off > spot.ratio.half_width:
        yield (
            f"At batch size {spot.batch_size} the acceptance length of K = {spot.k} is {spot.ratio.mean:.2f} times "
            f"(± {spot.ratio.half_width:.2f}) that of the rest of the measurement, where it should be the same: "
            "trust the closed loop more than the grid."
        )


def _closed_loop(contest: Contest) -> Iterator[str]:
    for loop in contest.arms:
        if loop.failed is not None:
            yield f"The engine does not serve with {loop.arm}: {loop.failed.rstrip('.')}."
    for loop, at, found, base in contest.slow_first_tokens():
        yield (
            f"With {loop.arm}, 5% of first tokens take longer than {found:.0f} ms at concurrency {at}, "
            f"{base:.0f} ms without speculation: lower maxNumSeqs or add replicas where that matters."
        )


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))
