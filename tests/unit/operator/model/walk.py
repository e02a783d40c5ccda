"""Random walks through stories: from a seed, or from the tape of an earlier one, so that it can be made shorter.

``python -m tests.unit.operator.model.walk STEPS [SEED]`` walks on all cores and prints a short tape of what fails.
"""

from __future__ import annotations

import logging
import multiprocessing
import random
import sys
import time
from collections.abc import Sequence
from typing import TypeVar

from tests.unit.operator.model.story import Picker, Story
from tests.unit.operator.model.world import Loop

T = TypeVar("T")
Tape = list[tuple[str, list[int]]]
"""(method of Story, numbers of what it picked)."""
STEPS = 300
"""Of one walk."""


class _Recorded(Picker):
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.picked: list[int] = []

    def __call__(self, options: Sequence[T]) -> T:
        self.picked.append(self._rng.randrange(len(options)))
        return options[self.picked[-1]]


class _Replayed(Picker):
    def __init__(self, picked: list[int]) -> None:
        self._left = list(picked)

    def __call__(self, options: Sequence[T]) -> T:
        return options[self._left.pop(0) % len(options) if self._left else 0]


def walk(loop: Loop, seed: int, steps: int = STEPS, tape: Tape | None = None) -> Story:
    """A story of so many steps to its end; what happened goes onto ``tape``."""
    rng, story = random.Random(seed), Story(loop)  # noqa: S311 - to be had again
    weights = [weight for weight, _ in story.stories]
    events = [event for _, event in story.stories]
    for event in rng.choices(events, weights, k=steps):
        pick = _Recorded(rng)
        if tape is not None:
            tape.append((event.__name__, pick.picked))
        story.tell(event, pick)
    story.ends()
    return story


def replay(loop: Loop, tape: Tape) -> Story:
    """The story of a tape, or of what is left of one."""
    story = Story(loop)
    for name, picked in tape:
        story.tell(getattr(story, name), _Replayed(picked))
    story.ends()
    return story


def shortened(loop: Loop, tape: Tape, failure: str) -> Tape:
    """A shorter tape that ends with the same failure, told by its first word."""

    def fails(candidate: Tape) -> bool:
        try:
            replay(loop, candidate)
        except Exception as error:
            return kind_of(error) == failure
        return False

    size = len(tape)
    while size:
        at = 0
        while at < len(tape):
            candidate = tape[:at] + tape[at + size :]
            if fails(candidate):
                tape = candidate
            else:
                at += size
        size //= 2
    return tape


def kind_of(error: Exception) -> str:
    """Of a failure, what a shorter tape must have in common with it."""
    return f"{type(error).__name__} {str(error).split(':')[0]}"


def _failure_of(seed: int) -> str:
    """What goes wrong in the walk of a seed, with a short tape of it; empty where nothing does."""
    logging.disable(logging.CRITICAL)
    tape: Tape = []
    try:
        walk(Loop(), seed, tape=tape)
    except Exception as error:
        short = shortened(Loop(), tape, kind_of(error))
        return "\n".join([f"seed {seed}: {error!r}", "tape: [", *(f"    {event!r}," for event in short), "]"])
    return ""


def main(steps: int, first: int) -> int:
    """Walks of so many steps in all; returns how many failed."""
    began, failed, count = time.monotonic(), 0, -(-steps // STEPS)
    with multiprocessing.Pool() as pool:
        for done, told in enumerate(pool.imap_unordered(_failure_of, range(first, first + count)), start=1):
            failed += bool(told)
            if told:
                sys.stdout.write(f"{told}\n")
            if done % 100 == 0 or done == count:
                seconds = time.monotonic() - began
                sys.stdout.write(f"{done * STEPS:,} steps, {failed} walks failed, {seconds:.0f} s\n")
                sys.stdout.flush()
    return failed


if __name__ == "__main__":
    sys.exit(
        min(main(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else random.SystemRandom().randrange(10**9)), 1)
    )
