"""ITL of the K of one batch size beside each other, and of what they share. Pure.

Two ways to be unsure, kept apart: how K compare (decks are the units, drift cancels) and how high all of them lie
(cohorts are the units, drift is most of it).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from specserve_profiler.statistics.estimate import Blocks, inflation, t_quantile

PRIOR_DEGREES = 10.0
"""Weight of the noise that the K of a batch size have in common against a cell's own, in degrees of freedom."""


@dataclass(frozen=True)
class PairedFit:
    """How the K of one batch size compare. All in logarithms of ms."""

    effects: Mapping[int, float]
    """Of each K, mean zero over them: two K differ by the difference of theirs."""
    blocks: Mapping[int, int]
    noise: Mapping[int, float]
    """Standard deviation of a block within its deck."""
    degrees: Mapping[int, float]
    """Degrees of freedom of ``noise``; empty where it is not known."""
    variance: Mapping[tuple[int, int], float]
    """Of effect(k) - effect(other)."""

    def spread(self) -> dict[int, float]:
        """K -> 95 % half-width: two K differ by the difference of their effects to within ``hypot`` of these.

        1 where there is no more than one deck. For a pair that the sum of both variances would make too sure (one K
        left the decks early, so fewer of them have both), the one with fewer blocks takes what is missing.
        """
        if len(self.effects) < 2:
            return dict.fromkeys(self.effects, 0.0)
        if not self.degrees:
            return dict.fromkeys(self.effects, 1.0)
        own = {k: self.noise[k] ** 2 / self.blocks[k] for k in self.effects}
        for k, other in combinations(sorted(self.effects, key=lambda k: -self.blocks[k]), 2):
            own[other] = max(own[other], self.variance[k, other] - own[k])
        return {k: t_quantile(self.degrees[k]) * math.sqrt(value) for k, value in own.items()}


def paired_fit(decks: Iterable[Blocks]) -> PairedFit:
    """Two-way least squares of log(block mean) = level of the deck + effect of K + noise; decks may be incomplete.

    What a deck's blocks have in common (drift, context) is in its level and cancels; within a deck K come in random
    order. The noise of each K is estimated from the residuals (Grubbs 1948: the residual of K in a deck of m carries
    (1 - 2/m) of its own variance and 1/m of the mean one) and drawn to the common one as in Smyth's moderated t (2004).
    Only K that share decks with the rest are in the result.
    """
    logs = [{k: math.log(ms) for k, ms in deck.items()} for deck in decks]
    ks = _connected(logs)
    logs = [{k: value for k, value in deck.items() if k in ks} for deck in logs]
    blocks = Counter(k for deck in logs for k in deck)
    if len(ks) < 2:
        return PairedFit(dict.fromkeys(ks, 0.0), blocks, dict.fromkeys(ks, 0.0), {}, {})
    logs = [deck for deck in logs if len(deck) > 1]
    inverse, effects = _effects(logs, ks)
    noise, degrees = _noise(logs, dict(zip(ks, effects, strict=True)))
    scatter = _scatter(logs, ks, noise)
    covariance = _product(_product(inverse, scatter), inverse)
    variance = {
        (k, other): max(covariance[i][i] + covariance[j][j] - 2 * covariance[i][j], 0.0)
        for i, k in enumerate(ks)
        for j, other in enumerate(ks)
    }
    return PairedFit(dict(zip(ks, effects, strict=True)), blocks, noise, degrees, variance)


def _connected(decks: Sequence[Mapping[int, float]]) -> list[int]:
    """The most K that are linked by decks, sorted."""
    groups: list[set[int]] = []
    for linked in {frozenset(deck) for deck in decks if deck}:
        touching = [group for group in groups if group & linked]
        groups = [group for group in groups if not group & linked] + [set(linked).union(*touching)]
    return max((sorted(group) for group in groups), key=lambda group: (len(group), -group[0]), default=[])


def _effects(decks: Sequence[Mapping[int, float]], ks: Sequence[int]) -> tuple[list[list[float]], list[float]]:
    """Normal equations with the decks' levels eliminated: (inverse with the null space filled, effects)."""
    place = {k: i for i, k in enumerate(ks)}
    normal = [[1 / len(ks)] * len(ks) for _ in ks]
    right = [0.0] * len(ks)
    for members, alike in _by_members(decks).items():
        for k in members:
            normal[place[k]][place[k]] += len(alike)
            for other in members:
                normal[place[k]][place[other]] -= len(alike) / len(members)
    for deck in decks:
        level = sum(deck.values()) / len(deck)
        for k, value in deck.items():
            right[place[k]] += value - level
    inverse = _inverse(normal)
    return inverse, [sum(a * b for a, b in zip(row, right, strict=True)) for row in inverse]


def _by_members(decks: Sequence[Mapping[int, float]]) -> dict[tuple[int, ...], list[Mapping[int, float]]]:
    found: dict[tuple[int, ...], list[Mapping[int, float]]] = defaultdict(list)
    for deck in decks:
        found[tuple(sorted(deck))].append(deck)
    return found


def _noise(
    decks: Sequence[Mapping[int, float]], effects: Mapping[int, float]
) -> tuple[dict[int, float], dict[int, float]]:
    """K -> (standard deviation of a block within its deck), K -> (its degrees of freedom)."""
    squares, counts, own, shared = (dict.fromkeys(effects, 0.0) for _ in range(4))
    for deck in decks:
        level = sum(value - effects[k] for k, value in deck.items()) / len(deck)
        for k, value in deck.items():
            squares[k] += (value - effects[k] - level) ** 2
            counts[k] += 1
            own[k] += 1 - 2 / len(deck)
            shared[k] += 1 / len(deck)
    degrees = sum(counts.values()) - len(decks) - len(effects) + 1
    if degrees < 1:
        return dict.fromkeys(effects, 0.0), {}
    common = sum(squares.values()) / degrees
    noise = {}
    for k in effects:
        seen = squares[k] * counts[k] / max(counts[k] - 1, 1) - common * shared[k]
        weight = own[k] * (counts[k] - 1) / counts[k]
        mine = max(seen / own[k], 0.0) if weight > 0 else common
        noise[k] = math.sqrt((PRIOR_DEGREES * common + weight * mine) / (PRIOR_DEGREES + weight))
    return noise, {k: min(degrees, PRIOR_DEGREES + counts[k] - 1) for k in effects}


def _scatter(decks: Sequence[Mapping[int, float]], ks: Sequence[int], noise: Mapping[int, float]) -> list[list[float]]:
    """Covariance of the right side of the normal equations."""
    place = {k: i for i, k in enumerate(ks)}
    scatter = [[0.0] * len(ks) for _ in ks]
    for members, alike in _by_members(decks).items():
        m = len(members)
        mean = sum(noise[k] ** 2 for k in members) / m
        for k in members:
            scatter[place[k]][place[k]] += len(alike) * noise[k] ** 2
            for other in members:
                scatter[place[k]][place[other]] += len(alike) * (mean - noise[k] ** 2 - noise[other] ** 2) / m
    return scatter


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """By Gauss and Jordan; the matrix is symmetric and positive definite, so no pivoting.

    At most 17 x 17. numpy has it, but this room runs where pydantic alone is, and beside served engines.
    """
    size = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        pivot = rows[i][i]
        rows[i] = [value / pivot for value in rows[i]]
        for j in range(size):
            if j != i and rows[j][i]:
                factor = rows[j][i]
                rows[j] = [a - factor * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [row[size:] for row in rows]


def _product(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> list[list[float]]:
    columns = list(zip(*right, strict=True))
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in left]


@dataclass(frozen=True)
class LevelFit:
    """ITL that the K of one batch size share: a cell's ITL is this times exp(effect)."""

    ms: float
    """Arithmetic mean over blocks, each divided by exp(effect of its K)."""
    half_width: float
    """Relative, 95 %."""
    deviation: float
    """Relative standard deviation between cohorts, pooled over batch sizes; infinite where it is not known.

    Larger by what makes cohorts that are like their neighbours count for less (``estimate.inflation``)."""
    degrees: int
    """Degrees of freedom of ``deviation``."""


def level_fits(
    cohorts: Mapping[int, Sequence[Sequence[Blocks]]], effects: Mapping[int, Mapping[int, float]]
) -> dict[int, LevelFit]:
    """Batch size -> its level, from the decks of each cohort. The cohort is the unit of sampling.

    The relative deviation between cohorts is pooled over the batch sizes, so that one with a single cohort has an
    interval, too; where no batch size has two, intervals are as wide as the mean.
    """
    sums = {
        size: [pair for cohort in found if (pair := _level(cohort, effects[size]))[1]]
        for size, found in cohorts.items()
    }
    means = {size: sum(a for a, _ in pairs) / sum(n for _, n in pairs) for size, pairs in sums.items() if pairs}
    degrees = sum(len(sums[size]) - 1 for size in means)
    deviations = [[total / n / mean - 1 for total, n in sums[size]] for size, mean in means.items()]
    squares = sum(value**2 for series in deviations for value in series)
    deviation = math.sqrt(squares / degrees * inflation(deviations)) if degrees else math.inf
    result = {}
    for size, mean in means.items():
        counts = [n for _, n in sums[size]]
        shrink = math.sqrt(sum(n * n for n in counts)) / sum(counts)
        half_width = min(t_quantile(degrees) * deviation * shrink, 1.0) if degrees else 1.0
        result[size] = LevelFit(ms=mean, half_width=half_width, deviation=deviation, degrees=degrees)
    return result


def _level(decks: Sequence[Blocks], effects: Mapping[int, float]) -> tuple[float, int]:
    """(sum, number) of the blocks of a cohort, each divided by exp(effect)."""
    values = [ms / math.exp(effects[k]) for deck in decks for k, ms in deck.items() if k in effects]
    return sum(values), len(values)
