"""What a person sees while it runs: one line per event on stdout."""

from __future__ import annotations

import sys
import time


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(f"[specserve] {text}\n")
    sys.stdout.flush()


def engine_line(text: str) -> None:
    """A line of the engine's own log."""
    sys.stdout.write(f"[engine] {text}\n")
    sys.stdout.flush()


class Stage:
    """One timed stage of a run with a budget of seconds. Says how far it is, at most every few seconds."""

    def __init__(self, name: str, seconds: float, every: float = 3.0) -> None:
        self.name = name
        self.seconds = seconds
        self._every = every
        self._start = time.monotonic()
        self._said = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        """Seconds of its budget that are left; negative once it is overrun."""
        return self.seconds - self.elapsed

    def progress(self, what: str, *, at_once: bool = False) -> None:
        """Says what is measured now, the share that is done and the time left."""
        now = time.monotonic()
        if at_once or now - self._said >= self._every:
            self._said = now
            done = min(100 * self.elapsed / self.seconds, 99)
            say(f"{self.name} {done:.0f} % {what}; {max(self.left, 0):.0f} s left")
