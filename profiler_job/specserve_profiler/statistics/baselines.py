"""What two boots of the baseline tell together: the baseline, and how far apart two boots are. Pure.

One boot was measured before the others, one after: a drift that grows steadily with time cancels in their mean.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from statistics import NormalDist, fmean

from specserve_profiler.contract.profile import ArmLoop, BaselineCell, Cell, Interval, LoopPoint
from specserve_profiler.statistics.estimate import t_quantile

ASSUMED_DRIFT = 0.03
"""95 % half-width of the log ratio of one cell between two boots, where only one baseline was booted. On two shared
CPU cores up to 0.13 was seen; a verdict that hangs on it asks for a second boot."""
PRIOR_DEGREES = 2
"""Weight of the assumption against one pair of boots, in degrees of freedom. With two, half of all machines have boots
that deviate by more than 1.3 %, one in ten by more than 3.3 %, one in forty by more than 6.8 %."""
_TYPICAL = ASSUMED_DRIFT / (NormalDist().inv_cdf(0.975) * math.sqrt(2))
"""Standard deviation of one boot that makes the log ratio of two as wide as assumed."""


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
    """95 % half-width of the log ratio of one boot to the mean of these two, by drift alone.

    d, the root mean square over batch sizes of the log ratio of ITL, is one draw: drift is common to all batch sizes.
    One draw says little of how far boots are apart, so it is taken together with what is assumed: the variance of a
    boot is (nu s^2 + d^2 / 2) / (nu + 1), a scaled inverse chi-square prior with nu = ``PRIOR_DEGREES`` (Gelman et al.,
    Bayesian Data Analysis, 2.6), and the half-width t(nu + 1) x sqrt(3/2 variance). It covers 95 % over machines like
    those of the prior; of one whose boots deviate by 2 % always, 93 %, by 3 %, 85 %, by 6 %, 75 %. Two boots that agree
    by luck do not make it narrower than assumed. d holds the noise of both measurements as well, nothing is taken off
    for that: it is rather too wide.

    Raises ValueError where the two have no batch size in common.
    """
    other = {cell.batch_size: cell.itl_ms.mean for cell in second}
    ratios = [math.log(cell.itl_ms.mean / other[cell.batch_size]) for cell in first if cell.batch_size in other]
    if not ratios:
        raise ValueError("no batch size was measured in both boots of the baseline")
    squares = fmean(ratio**2 for ratio in ratios)
    variance = (PRIOR_DEGREES * _TYPICAL**2 + squares / 2) / (PRIOR_DEGREES + 1)
    return t_quantile(PRIOR_DEGREES + 1) * math.sqrt(1.5 * variance)


def cells_of(boots: Sequence[Sequence[BaselineCell]]) -> tuple[BaselineCell, ...]:
    """The baseline from no, one or two boots."""
    return combined_cells(*boots[:2]) if len(boots) > 1 else tuple(boots[0]) if boots else ()


def drift_of(boots: Sequence[Sequence[BaselineCell]]) -> tuple[float, bool]:
    """(95 % half-width of the log ratio between boots, whether it was measured) from no, one or two boots."""
    if len(boots) > 1 and {cell.batch_size for cell in boots[0]} & {cell.batch_size for cell in boots[1]}:
        return drift(*boots[:2]), True
    return ASSUMED_DRIFT, False


def loops_of(closed: Sequence[ArmLoop], cells: Sequence[Cell], never_full: Collection[int]) -> tuple[ArmLoop, ...]:
    """The closed loop from no, one or two boots, at the concurrencies that an engine with a drafter can be compared at.

    It has less room for requests: those up to the largest measured cell, without those that were ``never_full``.
    """
    if not closed:
        return ()
    loop = combined_loops(*closed[:2]) if len(closed) > 1 else closed[0]
    most = max((cell.batch_size for cell in cells if cell.itl_ms is not None), default=math.inf)
    points = tuple(p for p in loop.points if p.concurrency <= most and p.concurrency not in never_full)
    return (loop.model_copy(update={"points": points}),)
