"""What a person sees while a run goes on. Everything that happens is told here, as events.

Who listens decides how they look. Without another listener they are lines on stdout, for ``kubectl logs``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TextIO

from specserve_profiler.contract.plain import plain


@dataclass(frozen=True)
class Said:
    """A line of the profiler's own."""

    text: str


@dataclass(frozen=True)
class EngineLine:
    """A line of the engine's log."""

    text: str


@dataclass(frozen=True)
class Began:
    """A stage began. The one before it is over."""

    stage: str
    seconds: float | None = None
    """Its budget; None where it takes as long as it takes, such as a boot."""


@dataclass(frozen=True)
class Progress:
    """How far a stage is."""

    stage: str
    what: str
    done: float
    """Share of the budget, 0 to 1."""
    left: float | None
    """Seconds at most, never negative; None as long as the engine's pace is not known."""
    at_once: bool = False
    """To be shown even where one was shown a moment ago."""


@dataclass(frozen=True)
class Best:
    """The best K known so far, by batch size."""

    ks: Mapping[int, int]


@dataclass(frozen=True)
class Told:
    """What an estimator was told, for who keeps it: ``reports.kept`` has each kind and its values."""

    what: str
    values: Mapping[str, Any]


Event = Said | EngineLine | Began | Progress | Best | Told
Listener = Callable[[Event], None]


class Lines:
    """Events as lines of text. Progress is told every few seconds only."""

    def __init__(self, stream: Callable[[], TextIO] = lambda: sys.stdout, every: float = 3.0) -> None:
        self._stream = stream
        self._every = every
        self._shown = float("-inf")

    def __call__(self, event: Event) -> None:
        """Writes the event, if it is one for this log."""
        if isinstance(event, Said):
            self._write(f"[specserve] {event.text}")
        elif isinstance(event, EngineLine):
            self._write(f"[engine] {event.text}")
        elif isinstance(event, Progress):
            now = time.monotonic()
            if event.at_once or now - self._shown >= self._every:
                self._shown = now
                done = min(100 * event.done, 99)
                left = "" if event.left is None else f"; {event.left:.0f} s left"
                self._write(f"[specserve] {event.stage} {done:.0f} % {event.what}{left}")

    def _write(self, line: str) -> None:
        stream = self._stream()
        try:
            stream.write(line + "\n")
            stream.flush()
        except OSError:
            let_go(stream)  # that nobody reads the log any more is no reason to lose what is measured


_STREAMS = (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))


def own_streams() -> None:
    """The standard streams as they can be used from here on: none is missing, none fails for a letter.

    One that is closed (``>&-``) is opened the wrong way round: no file of ours gets its number, and a result that is
    written there fails as it should. Words for a person (stderr) go nowhere then.
    """
    for number, (name, way, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, way)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
        with suppress(AttributeError):  # somebody else's stream, such as a test's
            getattr(sys, name).reconfigure(errors="replace" if mode == "r" else "backslashreplace")


def let_go(stream: TextIO) -> None:
    """Forgets what a stream that failed still holds: else the interpreter complains when it closes it."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_listener: Listener = Lines()


@contextmanager
def observing(listener: Listener) -> Iterator[None]:
    """Events go to ``listener`` instead, until the block ends."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


def say(text: str) -> None:
    """One line, at once."""
    _listener(Said(plain(text)))


def engine_line(text: str) -> None:
    """A line of the engine's own log."""
    _listener(EngineLine(plain(text, "\t")))


def began(stage: str) -> None:
    """A stage without a budget began, such as a boot; the one before it is over."""
    _listener(Began(stage))


def best_so_far(ks: Mapping[int, int]) -> None:
    """The best K by batch size, as far as it is known now."""
    _listener(Best(dict(ks)))


def told(what: str, **values: Any) -> None:
    """What an estimator was told just now."""
    _listener(Told(what, values))


class Stage:
    """One timed stage of a run with a budget of seconds, None until ``grant`` says it."""

    def __init__(self, name: str, seconds: float | None) -> None:
        self.name = name
        self.seconds = seconds
        self._start = time.monotonic()
        self._until = 0.0
        _listener(Began(name, seconds))

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        """Seconds of its budget that are left; negative once it is overrun."""
        return (self.seconds or 0.0) - self.elapsed

    def grant(self, seconds: float) -> None:
        """A budget of so long from now on."""
        self.seconds = self.elapsed + seconds

    def expect(self, seconds: float) -> None:
        """So long it takes at the least from now on, whatever its budget."""
        self._until = self.elapsed + seconds

    def progress(self, what: str, *, at_once: bool = False) -> None:
        """Says what is measured now, the share that is done and the time left."""
        if self.seconds is None:
            _listener(Progress(self.name, what, 0.0, None, at_once))
            return
        end = max(self.seconds, self._until)
        done = min(self.elapsed / end, 1.0) if end > 0 else 1.0
        _listener(Progress(self.name, what, done, max(end - self.elapsed, 0.0), at_once))
