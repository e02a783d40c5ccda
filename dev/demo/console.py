"""What the demo prints: acts, steps with the time since the start, and where the time went."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from devcluster.cache import Progress


class Console:
    """Prints for a person who watches; keeps the time that each act took."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._acts: list[tuple[str, float]] = []

    def say(self, text: str) -> None:
        """A line with the time since the start."""
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        for line in text.splitlines() or [""]:
            print(f"{minutes:3d}:{seconds:02d}  {line}", flush=True)

    def show(self, text: str) -> None:
        """A block as it is: a table, a picture, an answer."""
        print("\n" + text.rstrip() + "\n", flush=True)

    @contextmanager
    def act(self, title: str, usually: str) -> Iterator[None]:
        """A part of the story, and how long it takes as a rule on two cores; its time is kept."""
        heading = f"{title} ({usually})"
        print(f"\n── {heading} " + "─" * max(0, 96 - len(heading)), flush=True)
        began = time.monotonic()
        try:
            yield
        finally:
            self._acts.append((title, time.monotonic() - began))

    def where_the_time_went(self) -> str:
        """Every act with its seconds and a bar."""
        total = sum(seconds for _, seconds in self._acts) or 1.0
        width = max((len(title) for title, _ in self._acts), default=0)
        rows = [
            f"  {title:<{width}}  {seconds:6.0f} s  {'█' * round(30 * seconds / total)}"
            for title, seconds in self._acts
        ]
        return "\n".join(["Where the time went", *rows, f"  {'all':<{width}}  {total:6.0f} s"])


class Told(Progress):
    """A cluster tool's progress, told by the console."""

    def __init__(self, console: Console) -> None:
        super().__init__(quiet=True)
        self._console = console

    def __call__(self, text: str) -> None:
        self._console.say(text)


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""


def main_guard(error: Exception) -> int:
    """Print an error for a person. Returns the exit code."""
    print(f"\ndemo: {error}", file=sys.stderr)
    return 1
