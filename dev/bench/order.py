"""In which order things are measured. Pure: the same seed gives the same order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

OURS = "ours"
T = TypeVar("T")


def interleaved(kmax: int, rounds: int) -> list[list[int | str]]:
    """For each round: every K of 0 to ``kmax`` once (a boot each) and ``OURS`` in the middle of them.

    Odd rounds run backwards, so that what drifts steadily over the whole run meets each K early and late.
    """
    forward: list[int | str] = list(range(kmax + 1))
    middle = len(forward) // 2
    whole = [*forward[:middle], OURS, *forward[middle:]]
    return [whole[::-1] if index % 2 else whole for index in range(rounds)]


def shuffled(arms: Sequence[T], rounds: int, seed: int) -> list[tuple[int, T]]:
    """(round, arm) of every boot: each round has every arm once, in a random order of its own."""
    shuffle = random.Random(seed)
    return [(index, arm) for index in range(rounds) for arm in shuffle.sample(arms, len(arms))]
