"""What two boots of the baseline tell together: the baseline, and how far apart two boots are. Pure.

One boot was measured before the others, one after: a drift that grows steadily with time cancels in their mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from specserve_profiler.contract import ArmLoop, BaselineCell, Interval, LoopPoint

ASSUMED_DRIFT = 0.03
"""95 % half-width of the log ratio of one cell between two boots, where only one baseline was booted. On two shared
CPU cores up to 0.13 was seen; a verdict that hangs on it asks for a second boot."""


def combined(first: Interval, second: Interval) -> Interval:
    """The geometric mean of two measurements of one thing in two boots."""
    mean = math.sqrt(first.mean * second.mean)
    relative = math.hypot(first.half_width / first.mean, second.half_width / second.mean) / 2
    return Interval(mean=mean, half_width=relative * mean)


def combined_cells(first: Sequence[BaselineCell], second: Sequence[BaselineCell]) -> tuple[BaselineCell, ...]:
    """The baseline from both boots; a batch size that only one has is taken from it."""
    other = {cell.batch_size: cell for cell in second}
    both = []
    for cell in first:
        again = other.pop(cell.batch_size, None)
        both.append(
            cell
            if again is None
            else BaselineCell(
                batch_size=cell.batch_size,
                itl_ms=combined(cell.itl_ms, again.itl_ms),
                blocks=cell.blocks + again.blocks,
            )
        )
    return tuple(sorted((*both, *other.values()), key=lambda cell: cell.batch_size))


def combined_loops(first: ArmLoop, second: ArmLoop) -> ArmLoop:
    """The baseline's closed loop from both boots, where both have a point."""
    other = {point.concurrency: point for point in second.points}
    points = tuple(
        LoopPoint(
            concurrency=point.concurrency,
            tokens_per_second=combined(point.tokens_per_second, other[point.concurrency].tokens_per_second),
            ttft_ms=(point.ttft_ms + other[point.concurrency].ttft_ms) / 2,
        )
        if point.concurrency in other
        else point
        for point in first.points
    )
    return first.model_copy(update={"points": points})


def drift(first: Sequence[BaselineCell], second: Sequence[BaselineCell]) -> float:
    """How far a boot is from another: root mean square over batch sizes of the log ratio of ITL.

    It holds the noise of both measurements as well, so it is rather too large. Raises ValueError where the two have no
    batch size in common.
    """
    other = {cell.batch_size: cell.itl_ms.mean for cell in second}
    ratios = [math.log(cell.itl_ms.mean / other[cell.batch_size]) for cell in first if cell.batch_size in other]
    if not ratios:
        raise ValueError("no batch size was measured in both boots of the baseline")
    return math.sqrt(fmean(ratio**2 for ratio in ratios))
