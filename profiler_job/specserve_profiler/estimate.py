"""From step records to ITL, acceptance length and goodput, each with a 95 % interval. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import NormalDist, fmean

from specserve_profiler.contract import Interval
from specserve_profiler.records import Finished, Step

_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t, 97.5 % quantile, for 1 to 10 degrees of freedom."""
_Z_975 = NormalDist().inv_cdf(0.975)


def t_quantile(degrees: int) -> float:
    """97.5 % quantile of Student's t. Beyond ten degrees by the Cornish-Fisher expansion, right to 0.003."""
    if degrees < 1:
        raise ValueError("degrees of freedom must be at least 1")
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = _Z_975
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> Interval:
    """Sum of the first over sum of the second, with an interval by the delta method; the pair is the unit of sampling.

    Cochran, Sampling Techniques, 2.11: var = n / (n - 1) x sum((a - ratio x b)^2) / (sum b)^2.
    """
    total = sum(b for _, b in pairs)
    if total <= 0:
        raise ValueError("no pair to take the ratio of")
    ratio = sum(a for a, _ in pairs) / total
    n = len(pairs)
    if n == 1:
        return Interval(mean=ratio, half_width=ratio)
    residuals = sum((a - ratio * b) ** 2 for a, b in pairs)
    return Interval(mean=ratio, half_width=t_quantile(n - 1) * math.sqrt(n / (n - 1) * residuals) / total)


def acceptance_length(requests: Iterable[Finished]) -> Interval:
    """Tokens per request and verify step over whole generations at one K; the generation is the unit of sampling.

    Raises ValueError where no generation had a verify step.
    """
    return ratio_interval([(entry.tokens, entry.verify_steps) for entry in requests if entry.verify_steps > 0])


def clean_steps(steps: Iterable[Step]) -> Iterator[tuple[float, Step, bool]]:
    """(ms, step, first of its run) for every step that counts.

    A step counts if it and the one before are clean: no prefill, as many requests, the same K. Then the time between
    them is one draft of K tokens and one verification of K tokens, under the sync and under the async scheduler.
    """
    first = True
    for before, step in pairwise(steps):
        alike = (before.requests, before.k) == (step.requests, step.k)
        if alike and before.prefills == step.prefills == 0 and step.requests > 0:
            yield (step.time_ns - before.time_ns) / 1e6, step, first
            first = False
        else:
            first = True


def itl_blocks(steps: Iterable[Step], block_steps: int) -> dict[tuple[int, int], list[float]]:
    """(batch size, K) -> mean ms of each block.

    A block is a run of steps with one K. Its first step does not count, so a block of the plan has ``block_steps - 1``
    intervals; longer runs (where there is one K only) are cut into such blocks. Blocks less than half as long are left
    out.
    """
    full = max(block_steps - 1, 1)
    blocks: dict[tuple[int, int], list[list[float]]] = defaultdict(list)
    for milliseconds, step, first in clean_steps(steps):
        cell = blocks[step.requests, step.k]
        if first or not cell or len(cell[-1]) == full:
            cell.append([])
        cell[-1].append(milliseconds)
    means = {cell: [fmean(block) for block in found if 2 * len(block) >= full] for cell, found in blocks.items()}
    return {cell: values for cell, values in means.items() if values}


def itl_intervals(blocks: Mapping[tuple[int, int], Sequence[float]]) -> dict[tuple[int, int], tuple[Interval, int]]:
    """(batch size, K) -> (ITL in ms, number of blocks), from the means of blocks.

    The relative spread of blocks is pooled over the K of a batch size, which were measured side by side: a cell with
    few blocks gets the t interval of all of them together. Where every cell has one block, the spread is not known and
    an interval is as wide as its mean.
    """
    result = {}
    for size in {size for size, _ in blocks}:
        cells = {k: values for (b, k), values in blocks.items() if b == size}
        degrees = sum(len(values) - 1 for values in cells.values())
        squares = sum((value / fmean(values) - 1) ** 2 for values in cells.values() for value in values)
        spread = t_quantile(degrees) * math.sqrt(squares / degrees) if degrees else 1.0
        for k, values in cells.items():
            mean = fmean(values)
            result[size, k] = Interval(mean=mean, half_width=spread * mean / math.sqrt(len(values))), len(values)
    return result


def mean_context(steps: Iterable[Step]) -> float:
    """Mean context length of the steps that count, in tokens; each step counts once. Zero where none does."""
    contexts = [step.context for _, step, _ in clean_steps(steps)]
    return fmean(contexts) if contexts else 0.0


def goodput(acceptance: Interval, itl_ms: Interval) -> Interval:
    """Tokens per second of one request, AL / ITL. The relative half-widths add up in quadrature."""
    mean = 1000 * acceptance.mean / itl_ms.mean
    return Interval(mean=mean, half_width=mean * math.hypot(relative(acceptance), relative(itl_ms)))


def relative(interval: Interval) -> float:
    """Half-width as a share of the mean."""
    return interval.half_width / interval.mean
