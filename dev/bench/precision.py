"""How well a way of measuring knows the goodput ratio of two K, and how long it takes to know it that well. Pure.

Everything is in logarithms of ratios; variances are of one repetition (a round: all boots of the way, once).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist, fmean, variance

Z = NormalDist().inv_cdf(0.975)
"""Half-width of a 95 % interval over the standard error."""
Pair = tuple[int, int]
Ratio = tuple[int, Pair]
"""(batch size, (K, other K)): the ratio of the goodputs of two K."""


@dataclass(frozen=True)
class Round:
    """What one repetition of a way of measuring found. K = 0 is the baseline, no speculation."""

    itl_ms: Mapping[tuple[int, int], float]
    """(batch size, K) -> ITL."""
    itl_variance: Mapping[tuple[int, int], float]
    """(batch size, K) -> variance of log ITL by sampling within its boot, without what all K of the boot share."""
    acceptance: Mapping[int, float]
    """K -> AL; 1 for K = 0."""
    acceptance_variance: Mapping[Pair, float]
    """(K, other K), the smaller first -> variance of log(AL / AL)."""
    boot_seconds: float
    """Booting and stopping."""
    measuring_seconds: float

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Measured batch sizes."""
        return tuple(sorted({size for size, _ in self.itl_ms}))

    def log_itl_ratio(self, size: int, pair: Pair) -> float:
        """log(ITL / ITL) of two K."""
        return math.log(self.itl_ms[size, pair[0]] / self.itl_ms[size, pair[1]])


@dataclass(frozen=True)
class Way:
    """A way of measuring: mean variance of its log goodput ratios, and what one repetition costs."""

    within: float
    """Variance by sampling: falls with the time of measuring."""
    between: float
    """Variance between repetitions, drift between boots above all: only more repetitions lower it."""
    boot_seconds: float
    measuring_seconds: float

    @property
    def seconds(self) -> float:
        """Time of one repetition."""
        return self.boot_seconds + self.measuring_seconds

    @property
    def half_width(self) -> float:
        """95 % half-width of a log goodput ratio after one repetition (root mean square over cells)."""
        return Z * math.sqrt(self.within + self.between)


@dataclass(frozen=True)
class Need:
    """What a way takes to reach a half-width."""

    repetitions: int
    boot_seconds: float
    measuring_seconds: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.boot_seconds + self.measuring_seconds


def between_ks(sizes: Sequence[int], kmax: int) -> list[Ratio]:
    """Every two K that draft, at every batch size."""
    return [(size, pair) for size in sizes for pair in combinations(range(1, kmax + 1), 2)]


def against_baseline(sizes: Sequence[int], kmax: int) -> list[Ratio]:
    """The baseline beside every K, at every batch size."""
    return [(size, (0, k)) for size in sizes for k in range(1, kmax + 1)]


def contenders(rounds: Sequence[Round], share: float) -> list[Ratio]:
    """The pairs that decide: of all K that draft, those whose goodput is within ``share`` of the best, as seen by all.

    An instrument that stops measuring a K once it is clearly worse is judged fairly by these only.
    """
    ks = sorted({k for _, k in rounds[0].itl_ms if k > 0})
    found = []
    for size in rounds[0].batch_sizes:
        goodput = {k: fmean(math.log(r.acceptance[k] / r.itl_ms[size, k]) for r in rounds) for k in ks}
        near = [k for k in ks if goodput[k] >= max(goodput.values()) + math.log(1 - share)]
        found += [(size, pair) for pair in combinations(near, 2)]
    return found


def way(rounds: Sequence[Round], ratios: Sequence[Ratio]) -> Way:
    """The precision of a way over the goodput ratios ``ratios``, from at least two rounds.

    ``between`` is the variance component of log ITL ratios: their variance between rounds less what sampling within
    boots explains (analysis of variance, one way), not below 0. AL has no part in it: drift is the machine's.
    """
    if len(rounds) < 2:
        raise ValueError("drift between boots shows in two rounds or more")
    itl = fmean(_itl_variance(entry, size, pair) for entry in rounds for size, pair in ratios)
    acceptance = fmean(entry.acceptance_variance[pair] for entry in rounds for _, pair in ratios)
    seen = fmean(variance([entry.log_itl_ratio(size, pair) for entry in rounds]) for size, pair in ratios)
    return Way(
        within=itl + acceptance,
        between=max(seen - itl, 0.0),
        boot_seconds=fmean(entry.boot_seconds for entry in rounds),
        measuring_seconds=fmean(entry.measuring_seconds for entry in rounds),
    )


def _itl_variance(entry: Round, size: int, pair: Pair) -> float:
    return entry.itl_variance[size, pair[0]] + entry.itl_variance[size, pair[1]]


def need(how: Way, half_width: float) -> Need:
    """The least time in which ``how`` reaches ``half_width``; how often it boots and how long it measures is free.

    After n repetitions of t seconds of measuring each the variance is (between + within x measuring / t) / n; drift
    puts a floor under what one repetition can reach. Raises ValueError where half-width or boots are not above 0.
    """
    if half_width <= 0 or how.boot_seconds <= 0:
        raise ValueError("half_width and boot_seconds: must be above 0")
    wanted = (half_width / Z) ** 2
    effort = how.within * how.measuring_seconds
    repetitions = math.floor(how.between / wanted) + 1
    best: Need | None = None
    while best is None or repetitions * how.boot_seconds < best.seconds:
        each = effort / (repetitions * wanted - how.between)
        found = Need(repetitions, repetitions * how.boot_seconds, repetitions * each)
        if best is None or found.seconds < best.seconds:
            best = found
        repetitions += 1
    return best


@dataclass(frozen=True)
class Agreement:
    """One quantity by two ways, as a log ratio with its joint interval."""

    what: str
    log_ratio: float
    half_width: float

    @property
    def within(self) -> bool:
        """Whether the two agree to within the joint interval."""
        return abs(self.log_ratio) <= self.half_width


def agreements(ours: Sequence[Round], theirs: Sequence[Round], kmax: int) -> list[Agreement]:
    """AL of each K, and ITL of each K over that of K = 1 at each batch size: ours over theirs.

    Of a whole list one in twenty lies outside its interval by chance. AL intervals hold for prompts drawn anew; the
    prompts were the same, so AL agrees better than they say.
    """
    ratios = [(size, (1, k)) for size in ours[0].batch_sizes for k in range(2, kmax + 1)]
    ways = (ours, way(ours, ratios).between), (theirs, way(theirs, ratios).between)
    found = [_acceptance_agreement(ours, theirs, k) for k in range(1, kmax + 1)]
    for size, pair in ratios:
        mine, other = (fmean(entry.log_itl_ratio(size, pair) for entry in rounds) for rounds, _ in ways)
        spread = sum(
            (fmean(_itl_variance(entry, size, pair) for entry in rounds) + between) / len(rounds)
            for rounds, between in ways
        )
        found.append(Agreement(f"ITL({size}, {pair[1]}) / ITL({size}, 1)", other - mine, Z * math.sqrt(spread)))
    return found


def _acceptance_agreement(ours: Sequence[Round], theirs: Sequence[Round], k: int) -> Agreement:
    difference = math.log(fmean(r.acceptance[k] for r in ours) / fmean(r.acceptance[k] for r in theirs))
    spread = fmean(r.acceptance_variance[0, k] for r in ours) + fmean(r.acceptance_variance[0, k] for r in theirs)
    return Agreement(f"AL({k})", difference, Z * math.sqrt(spread))


def share_within(found: Iterable[Agreement]) -> float:
    """Share of comparisons that agree."""
    return fmean(float(entry.within) for entry in found)
