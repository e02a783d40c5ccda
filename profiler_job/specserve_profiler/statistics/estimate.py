"""From the records of steps and requests to ITL, acceptance length and throughput, each with a 95 % interval. Pure.

An interval is right if its unit of sampling is: the deck (one block of every K, side by side) for what tells K apart,
the cohort for the level that all K share, the prompt for acceptance, a window of time for throughput.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, fmean, median

from specserve_profiler.contract.profile import Interval, LoopPoint
from specserve_profiler.contract.steps import Finished, Step

STALL = 10.0
"""A step this many times longer than the median of its cell is not the engine's own time: it is dropped and counted."""
FULL_TENTHS = 9
"""Tenths of its clients that a closed loop has in its steps when it is full: a large one misses some in most steps."""
_TTFT_SHARE = 0.95
_FEWEST_WINDOWS, _MOST_WINDOWS, _SHORT_WINDOWS = 4, 16, 8
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t, 97.5 % quantile, for 1 to 10 degrees of freedom."""
_Z_975 = NormalDist().inv_cdf(0.975)

Blocks = Mapping[int, float]
"""A deck: K -> mean ms of its block. A K whose block was disturbed is missing."""
Prompts = Mapping[int, tuple[float, float]]
"""Prompt -> (tokens, verify steps) over its generations at one K."""


def t_quantile(degrees: float) -> float:
    """97.5 % quantile of Student's t. Beyond ten degrees by the Cornish-Fisher expansion, right to 0.003."""
    if degrees < 1:
        raise ValueError("degrees of freedom must be at least 1")
    if degrees < len(_T_975) + 1:
        return _T_975[int(degrees) - 1]
    z = _Z_975
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def sequence_width(n: int, alpha: float, best_at: int) -> float:
    """Half-width, in standard deviations of one observation, of a two-sided confidence sequence for a mean.

    With probability 1 - ``alpha`` it holds at every n at once, however one decides when to stop; it is narrowest near
    n = ``best_at``. Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas, Time-uniform central limit theory and asymptotic
    confidence sequences (2021): sqrt(2 (n rho^2 + 1) / (n^2 rho^2) log(sqrt(n rho^2 + 1) / alpha)), Robbins' mixture.
    """
    rho2 = (-2 * math.log(alpha) + math.log(-2 * math.log(alpha)) + 1) / best_at
    grown = n * rho2 + 1
    return math.sqrt(2 * grown / (n * n * rho2) * math.log(math.sqrt(grown) / alpha))


def relative(interval: Interval) -> float:
    """Half-width as a share of the mean."""
    return interval.half_width / interval.mean


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


def inflation(series: Sequence[Sequence[float]]) -> float:
    """Variance of a mean over that of as many independent values, (1 + r) / (1 - r).

    r is the correlation of neighbours: slow drift makes cohorts alike that follow each other. Estimated over all
    series, with the correction of Kendall (1954) for short ones, between 0 and 0.9.
    """
    squares = sum(value**2 for values in series for value in values)
    if not squares:
        return 1.0
    seen = sum(a * b for values in series for a, b in pairwise(values)) / squares
    length = sum(map(len, series)) / len(series)
    correlation = min(max(seen + (1 + 3 * seen) / length, 0.0), 0.9)
    return (1 + correlation) / (1 - correlation)


# --- ITL -------------------------------------------------------------------------------------------------------------


def _clean(before: Step, step: Step) -> bool:
    """Whether a step counts: it and the one before have no prefill, as many requests, and the same K.

    Then the time between them is one draft of K tokens and one verification of K tokens, under the sync and under the
    async scheduler.
    """
    alike = (before.requests, before.k) == (step.requests, step.k)
    return alike and before.prefills == step.prefills == 0 and step.requests > 0


@dataclass(frozen=True)
class CohortBlocks:
    """What the steps of one cohort say."""

    decks: tuple[Blocks, ...]
    dropped: int
    """Steps inside the measured window that did not count: a prefill, a preemption, another size, a stall."""
    counted: int
    context: float
    """Mean context length of the counted steps, in tokens."""
    seconds: float
    """From the first to the last step of the measured window."""
    largest: int
    """Most requests seen in a step: fewer than wanted where the engine could not hold the cohort."""


def cohort_blocks(steps: Sequence[Step], batch_size: int, block_steps: int) -> CohortBlocks:
    """Decks of block means from the steps of a cohort that followed a ``Plan`` of blocks.

    The first step of a block has another K before it and does not count, so a block has ``block_steps - 1`` of them
    (all, where the plan has one K only); with less than half of these it is left out.
    """
    blocks = _blocks(steps, batch_size, block_steps)
    medians = {
        k: median(ms for other, block in blocks if other == k for ms, _ in block)
        for k in {k for k, block in blocks if block}
    }
    kept = [(k, [entry for entry in block if entry[0] <= STALL * medians[k]]) for k, block in blocks]
    stalls = sum(len(block) for _, block in blocks) - sum(len(block) for _, block in kept)
    used = [(k, block) for k, block in kept if block and 2 * len(block) >= block_steps - 1]
    contexts = [context for _, block in used for _, context in block]
    full = [index for index, step in enumerate(steps) if step.requests == batch_size and not step.prefills]
    window = steps[full[0] : full[-1] + 1] if full else []
    disturbed = sum(1 for step in window if step.prefills or step.requests != batch_size)
    return CohortBlocks(
        decks=tuple(_decks((k, fmean(ms for ms, _ in block)) for k, block in used)),
        dropped=disturbed + stalls,
        counted=len(contexts),
        context=fmean(contexts) if contexts else 0.0,
        seconds=(window[-1].time_ns - window[0].time_ns) / 1e9 if window else 0.0,
        largest=max((step.requests for step in steps), default=0),
    )


def _blocks(steps: Sequence[Step], batch_size: int, block_steps: int) -> list[tuple[int, list[tuple[float, int]]]]:
    """(K, [(ms, context) of each clean step]) of one block after the other. Blocks advance at full size only."""
    blocks: list[tuple[int, list[tuple[float, int]]]] = []
    before: Step | None = None
    length = 0
    for step in steps:
        if step.requests == batch_size:
            if not blocks or blocks[-1][0] != step.k or length == block_steps:
                blocks.append((step.k, []))
                length = 0
            length += 1
            if before is not None and _clean(before, step):
                blocks[-1][1].append(((step.time_ns - before.time_ns) / 1e6, step.context))
        before = step
    return blocks


def _decks(blocks: Iterable[tuple[int, float]]) -> Iterator[dict[int, float]]:
    """A deck ends where a K comes again."""
    deck: dict[int, float] = {}
    for k, ms in blocks:
        if k in deck:
            yield deck
            deck = {}
        deck[k] = ms
    if deck:
        yield deck


# --- acceptance ------------------------------------------------------------------------------------------------------


def influences(prompts: Prompts) -> dict[int, float]:
    """Prompt -> what it adds to log(AL), linearised: (tokens - AL x steps) / sum of tokens. Their sum is zero."""
    tokens, steps = (sum(column) for column in zip(*prompts.values(), strict=True))
    length = tokens / steps
    return {prompt: (a - length * b) / tokens for prompt, (a, b) in prompts.items()}


def log_ratio_deviation(left: Mapping[int, float], right: Mapping[int, float]) -> float:
    """Standard error of log(AL / other AL) from the influences of the same prompts. Infinite for fewer than two."""
    n = len(left)
    if n < 2:
        return math.inf
    return math.sqrt(n / (n - 1) * sum((value - right.get(prompt, 0.0)) ** 2 for prompt, value in left.items()))


def log_ratio_half_width(left: Mapping[int, float], right: Mapping[int, float]) -> float:
    """95 % half-width of log(AL / other AL); 1 where one prompt does not tell."""
    return t_quantile(len(left) - 1) * log_ratio_deviation(left, right) if len(left) > 1 else 1.0


def by_position(requests: Iterable[Finished], k: int) -> tuple[float, ...]:
    """Share of verify steps whose i-th draft was accepted, i = 1 to K, whether or not as many were drafted."""
    emitted = Counter(tokens for request in requests for tokens in request.emitted)
    steps = max(emitted.total(), 1)
    return tuple(
        sum(count for tokens, count in emitted.items() if tokens > position) / steps for position in range(1, k + 1)
    )


# --- closed loop -----------------------------------------------------------------------------------------------------


def is_full(step: Step, concurrency: int) -> bool:
    """Whether a step has nine tenths of the clients of a closed loop, which is all of nine or fewer."""
    return 10 * step.requests >= FULL_TENTHS * concurrency


def loop_throughput(steps: Sequence[Step], concurrency: int) -> Interval:
    """Tokens per second of a refilling closed loop, prefills included, from the first to the last full step.

    So the ramp and the drain are out, and the steps in which a request that ended is not yet replaced are in. By batch
    means: up to 16 windows of equally many steps are the units of sampling. A request drafts well or badly to its end,
    so windows are about as long as a request takes or longer; where the loop has no four such windows, it is cut into
    eight. What makes neighbours alike all the same is in the interval (``inflation``). Raises ValueError where the loop
    never was full.
    """
    full = [index for index, step in enumerate(steps) if is_full(step, concurrency)]
    if len(full) < 2:
        most = max((step.requests for step in steps), default=0)
        least = math.ceil(FULL_TENTHS * concurrency / 10)
        raise ValueError(f"the loop never had {least} requests in its steps, but at most {most}")
    loop = steps[full[0] : full[-1] + 1]
    count = _window_count(loop)
    edges = [round(index * (len(loop) - 1) / count) for index in range(count + 1)]
    windows = [
        (
            float(sum(step.emitted for step in loop[first + 1 : last + 1])),
            (loop[last].time_ns - loop[first].time_ns) / 1e9,
        )
        for first, last in pairwise(edges)
    ]
    rate = ratio_interval(windows)
    alike = inflation([[tokens - rate.mean * seconds for tokens, seconds in windows]])
    return Interval(mean=rate.mean, half_width=rate.half_width * math.sqrt(alike))


def loop_point(concurrency: int, steps: Sequence[Step], finished: Sequence[Finished]) -> LoopPoint:
    """A closed loop at one concurrency; ``finished`` gives the time to first token. Raises ValueError as above."""
    rate = loop_throughput(steps, concurrency)
    times = sorted(entry.ttft_us / 1000 for entry in finished)
    ttft = round(times[min(int(_TTFT_SHARE * len(times)), len(times) - 1)], 1) if times else 0.0
    return LoopPoint(concurrency=concurrency, tokens_per_second=rate, ttft_ms=ttft)


def _window_count(loop: Sequence[Step]) -> int:
    """As many windows as requests follow each other in a loop, within bounds. A request that begins is a prefill."""
    begun = sum(step.prefills for step in loop)
    request_steps = sum(step.requests for step in loop) / begun if begun else math.inf
    count = min(round((len(loop) - 1) / request_steps), _MOST_WINDOWS)
    return min(count if count >= _FEWEST_WINDOWS else _SHORT_WINDOWS, len(loop) - 1)
