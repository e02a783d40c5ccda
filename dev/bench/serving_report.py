"""What the closed loops of several arms say of a table. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from bench.precision import Z
from specserve_profiler.contract.model import Model
from specserve_profiler.contract.profile import Arm, Interval, LoopPoint, Profile
from specserve_profiler.decision.evidence import Evidence

CLOSE = 0.98
"""Share of the best arm's tokens per second that a table must reach at every concurrency."""


class Loops(Model):
    """One boot of one arm: its closed loops."""

    round: int
    arm: Arm
    points: tuple[LoopPoint, ...]
    boot_seconds: float


@dataclass(frozen=True)
class Curve:
    """One arm over all rounds."""

    arm: Arm
    tokens_per_second: Mapping[int, Interval]
    """By client concurrency; geometric mean over rounds, 95 % half-width."""
    ttft_ms: Mapping[int, float]
    """By client concurrency: 95th percentile of the time to first token, mean over rounds."""


def curves(loops: Sequence[Loops]) -> list[Curve]:
    """One curve per arm, in the order of first sight.

    The variance of an arm's log throughput is that within loops plus, where there were two rounds or more, the
    component between boots that all arms and concurrencies show together; with one round it is within loops only.
    """
    arms = list(dict.fromkeys(entry.arm for entry in loops))
    seen = {arm: [_by_concurrency(entry) for entry in loops if entry.arm == arm] for arm in arms}
    between = _between(list(seen.values()))
    return [
        Curve(
            arm,
            {c: _combined([loop[c].tokens_per_second for loop in rounds], between) for c in rounds[0]},
            {c: fmean(loop[c].ttft_ms for loop in rounds) for c in rounds[0]},
        )
        for arm, rounds in seen.items()
    ]


def _by_concurrency(loops: Loops) -> dict[int, LoopPoint]:
    return {point.concurrency: point for point in loops.points}


def _between(seen: Sequence[Sequence[Mapping[int, LoopPoint]]]) -> float:
    """Variance of log throughput between boots of one arm, beyond what its loops' own intervals explain."""
    excess = [
        variance([math.log(loop[c].tokens_per_second.mean) for loop in rounds])
        - fmean(_within(loop[c].tokens_per_second) for loop in rounds)
        for rounds in seen
        if len(rounds) > 1
        for c in rounds[0]
    ]
    return max(fmean(excess), 0.0) if excess else 0.0


def _within(rate: Interval) -> float:
    return (rate.half_width / rate.mean / Z) ** 2


def _combined(rates: Sequence[Interval], between: float) -> Interval:
    mean = math.exp(fmean(math.log(rate.mean) for rate in rates))
    spread = (fmean(_within(rate) for rate in rates) + between) / len(rates)
    return Interval(mean=mean, half_width=mean * Z * math.sqrt(spread))


def ratio(over: Interval, under: Interval) -> Interval:
    """Ratio of two rates that were measured apart; the half-width is that of the logarithm times the ratio."""
    mean = over.mean / under.mean
    return Interval(mean=mean, half_width=mean * math.hypot(over.half_width / over.mean, under.half_width / under.mean))


@dataclass(frozen=True)
class AgainstBest:
    """The table beside the best of all other arms at one client concurrency."""

    concurrency: int
    best: Arm
    share: Interval
    """Tokens per second of the table over that arm's."""

    @property
    def close(self) -> bool:
        """Whether the table reaches ``CLOSE`` of the best. The best of several noisy arms flatters it."""
        return self.share.mean >= CLOSE

    @property
    def surely_behind(self) -> bool:
        """Whether it misses ``CLOSE`` by more than its interval."""
        return self.share.mean + self.share.half_width < CLOSE


def against_best(found: Sequence[Curve]) -> list[AgainstBest]:
    """The table against the best other arm, at every concurrency. Raises StopIteration where no arm is a table."""
    table = next(curve for curve in found if curve.arm.kind == "Table")
    others = [curve for curve in found if curve is not table]
    result = []
    for concurrency, rate in table.tokens_per_second.items():
        best = max(others, key=lambda curve: curve.tokens_per_second[concurrency].mean)
        result.append(AgainstBest(concurrency, best.arm, ratio(rate, best.tokens_per_second[concurrency])))
    return result


@dataclass(frozen=True)
class Promise:
    """What a profile predicts of its table over fixed Kmax at one batch size, beside what was served."""

    batch_size: int
    predicted: Interval
    seen: Interval

    @property
    def kept(self) -> bool:
        """Whether the two agree to within their joint interval."""
        joint = math.hypot(
            self.predicted.half_width / self.predicted.mean,
            self.seen.half_width / self.seen.mean,
        )
        return abs(math.log(self.seen.mean / self.predicted.mean)) <= joint


def promise(profile: Profile, found: Sequence[Curve], kmax: int) -> Promise:
    """The promise at the largest concurrency.

    The grid knows pure decode steps; a refilled loop prefills as well. What a token costs beside them is taken from the
    profile's baseline: its closed loop against its own steps. It is the same for every arm, so it draws ratios to 1.

    Raises KeyError where the profile did not measure the table's K or Kmax at that batch size.
    """
    table = next(curve for curve in found if curve.arm.kind == "Table")
    fixed = next(curve for curve in found if curve.arm.kind == "Static" and curve.arm.k == kmax)
    size = max(table.tokens_per_second)
    k = next(row.k for row in profile.decision.table if row.first <= size <= row.last)
    return Promise(
        size,
        _diluted(profile, size, k, kmax),
        ratio(table.tokens_per_second[size], fixed.tokens_per_second[size]),
    )


def _diluted(profile: Profile, size: int, k: int, other: int) -> Interval:
    """Tokens per second of one K over another's in a closed loop, from the grid and the baseline's own loop."""
    evidence = Evidence.of(profile.measurements, size)
    log = evidence.log_ratio(size, k, other)
    goodputs = evidence.surface.goodputs(size)
    beside = _beside_decoding(profile, size)
    one, two = (1 / (size * 1000 * goodputs[entry]) for entry in (k, other))  # seconds of a token
    decoding = max(one / (one + beside.mean), two / (two + beside.mean))
    unlike = abs(1 / (one + beside.mean) - 1 / (two + beside.mean))
    mean = (two + beside.mean) / (one + beside.mean)
    return Interval(mean=mean, half_width=mean * math.hypot(decoding * log.half_width, unlike * beside.half_width))


def _beside_decoding(profile: Profile, size: int) -> Interval:
    """Seconds that a token costs beside its decode steps; 0 where the profile has no closed loop of the baseline."""
    measured = profile.measurements
    itl = next((cell.itl_ms for cell in measured.baseline if cell.batch_size == size), None)
    loop = next((entry for entry in measured.loops if entry.arm.kind == "None"), None)
    rate = next((p.tokens_per_second for p in (loop.points if loop else ()) if p.concurrency == size), None)
    if itl is None or rate is None:
        return Interval(mean=0)
    served, decoded = 1 / rate.mean, itl.mean / 1000 / size
    error = math.hypot(served * rate.half_width / rate.mean, decoded * itl.half_width / itl.mean)
    return Interval(mean=max(served - decoded, 0.0), half_width=error)
