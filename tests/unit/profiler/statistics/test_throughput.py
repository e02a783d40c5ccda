"""Throughput of a closed loop whose requests draft well or badly to their end: does its interval cover?"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from statistics import fmean

import pytest
from tests.soak import runs
from tests.unit.profiler.simulator import Engine, share

from specserve_profiler.contract.steps import Step
from specserve_profiler.statistics import estimate

TRUE_AL, REQUEST_STEPS = 2.0216, 48.7
"""Of the chains below: tokens and steps of all, and steps of one. Clients take the next as one ends: no gap."""


@cache
def chains() -> list[list[int]]:
    """Tokens of each step of whole generations at K = 3."""
    engine = Engine(texts=0)
    return [[int(character) for character in engine.chain(prompt, 3)] for prompt in range(1500)]


def closed_loop(seed: int, concurrency: int, count: int) -> list[Step]:
    """Steps of 10 ms, with noise. The first request of a client is cut at random, as in the verification."""
    dice = random.Random(seed)  # noqa: S311 - a simulation
    texts = chains()

    def text() -> list[int]:
        return texts[int(dice.random() * len(texts))]

    left = [whole[int(dice.random() * len(whole)) :] for whole in (text() for _ in range(concurrency))]
    time_ms, steps = 0.0, []
    for _ in range(count):
        time_ms += dice.gauss(10, 0.5)
        emitted = begun = 0
        for client in range(concurrency):
            if not left[client]:
                left[client] = text().copy()
                begun += 1
            emitted += left[client].pop()
        steps.append(Step(int(time_ms * 1e6), concurrency, 4 * concurrency, 3, emitted, begun, 100))
    return steps


def eight_windows(steps: Sequence[Step]) -> tuple[float, float]:
    """Naive: (rate, half-width) by eight windows however long a request takes."""
    edges = [round(index * (len(steps) - 1) / 8) for index in range(9)]
    pairs = [
        (sum(step.emitted for step in steps[a + 1 : b + 1]), (steps[b].time_ns - steps[a].time_ns) / 1e9)
        for a, b in pairwise(edges)
    ]
    interval = estimate.ratio_interval(pairs)
    return interval.mean, interval.half_width


@pytest.mark.parametrize(
    ("concurrency", "requests", "seeds", "coverage", "naive"),
    [
        (1, 3, runs(250, 500), 0.87, 0.86),
        (1, 8, runs(200, 400), 0.94, 0.93),
        (1, 20, runs(100, 200), 0.93, None),
        (16, 3, runs(150, 300), 0.91, 0.89),
        (16, 8, runs(100, 300), 0.93, None),
    ],
)
def test_throughput_covers(concurrency: int, requests: int, seeds: int, coverage: float, naive: float | None) -> None:
    """Loops of 3 (they say least of their own error), 8 and 20 requests of a client. Naive: always eight windows."""
    truth = concurrency * TRUE_AL / 0.010
    errors, covered, without = [], [], []
    for seed in range(seeds):
        steps = closed_loop(seed, concurrency, round(requests * REQUEST_STEPS))
        found = estimate.loop_throughput(steps, concurrency)
        errors.append(math.log(found.mean / truth))
        covered.append(abs(found.mean - truth) <= found.half_width)
        rate, half_width = eight_windows(steps)
        without.append(abs(rate - truth) <= half_width)

    assert abs(fmean(errors)) < 0.02
    assert coverage <= share(covered) <= 0.99
    assert naive is None or share(without) < naive
