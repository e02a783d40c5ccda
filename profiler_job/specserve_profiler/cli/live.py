"""A run as a person sees it on a terminal: its stages with time left, and what it said, above them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from specserve_profiler.session.console import Began, Best, EngineLine, Event, Progress, Said, say

_BAR = 24
"""Columns of the bar of a stage that runs."""


class _Stage:
    def __init__(self, name: str, seconds: float | None) -> None:
        self.name, self.seconds = name, seconds
        self.start = time.monotonic()
        self.end: float | None = None
        self.what = ""

    @property
    def elapsed(self) -> float:
        return (self.end or time.monotonic()) - self.start

    def take(self, progress: Progress) -> None:
        """What it does now, and the time that it is known to take."""
        self.what = progress.what
        if progress.left is not None:
            self.seconds = self.elapsed + progress.left


class EngineLog:
    """The file of the engine's log. A disk that is full ends the log, not the run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def __enter__(self) -> EngineLog:
        self._file = self.path.open("w", encoding="utf-8")
        return self

    def __exit__(self, *exception: object) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def write(self, line: str) -> None:
        """One line, at once. The profiler's own stand in it, too: they tell at what it was."""
        if self._file is None:
            return
        try:
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            self.__exit__()
            say(f"the engine's log ends here: {self.path}: {error.strerror}")


class LiveView:
    """Listens to a run and draws it. The engine's log goes to a file."""

    def __init__(self, console: Console, engine_log: Path) -> None:
        self._console = console
        self._log = EngineLog(engine_log)
        self._stages: list[_Stage] = []
        self._best: Mapping[int, int] = {}
        self._start = time.monotonic()
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._drawn, transient=True)

    def __enter__(self) -> LiveView:
        self._log.__enter__()
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()
        self._log.__exit__(*exception)

    def __call__(self, event: Event) -> None:
        """Takes one event of the run in."""
        if isinstance(event, EngineLine):
            self._log.write(event.text)
        elif isinstance(event, Said):
            self._log.write(f"[specserve] {event.text}")
            self._console.print(Text(event.text))
        elif isinstance(event, Began):
            self._end_last()
            self._stages.append(_Stage(event.stage, event.seconds))
        elif isinstance(event, Progress):
            if self._stages:
                self._stages[-1].take(event)
        elif isinstance(event, Best):
            self._best = event.ks

    def _end_last(self) -> None:
        if self._stages:
            self._stages[-1].end = time.monotonic()

    def _drawn(self) -> RenderableType:
        """Stages, the one that runs at the end, and what is known; the oldest stages make room where there is none."""
        width, height = self._console.size
        below = []
        if self._best:
            best = "  ".join(f"{size}:{k}" for size, k in sorted(self._best.items()))
            below.append(Text(f"best K so far (batch size:K)  {best}", style="bold"))
        elapsed = _clock(time.monotonic() - self._start)
        below.append(Text(f"{elapsed} in all; engine log: {self._log.path}", style="dim"))
        used = sum(len(text.wrap(self._console, width)) for text in below)
        longest = max((len(stage.name) for stage in self._stages), default=0)
        lines = [line for stage in self._stages for line in _lines(stage, longest, width)]
        room = max(height - 1 - used, 3)
        if len(lines) > room:
            hidden = len(lines) - room + 1
            lines = [Text(f"✓ {hidden} stages before", "green"), *lines[hidden:]]
        return Group(*lines, *below)


def _lines(stage: _Stage, longest: int, width: int) -> list[Text]:
    """A stage in one line, the one that runs in two where one is too short. Names are filled up to the longest."""
    if stage.end is not None:
        return [_line(width, ("✓ ", "green"), stage.name.ljust(longest), ("  " + _clock(stage.elapsed), "dim"))]
    head = [("● ", "cyan"), (stage.name.ljust(longest), "bold")]
    if stage.seconds is None:
        left = [(f"  {_clock(stage.elapsed)}", "cyan")]
    else:
        left = [(f"  {_clock(max(stage.seconds - stage.elapsed, 0))} left at most", "cyan")]
    what = [(f"  {stage.what}", "dim")] if stage.what else []
    drawn = [*head, *_bar(stage), *left]
    if _letters(drawn + what) <= width:
        return [_line(width, *drawn, *what)]
    if _letters(drawn) <= width:
        return [_line(width, *drawn), _line(width, *what)]
    return [_line(width, *head), _line(width, *left, *what)]


def _letters(parts: Sequence[tuple[str, str]]) -> int:
    return sum(len(text) for text, _ in parts)


def _bar(stage: _Stage) -> list[tuple[str, str]]:
    if stage.seconds is None:
        return []
    done = round(_BAR * min(stage.elapsed / max(stage.seconds, 1e-9), 1))
    return [("  " + done * "━", "cyan"), ((_BAR - done) * "━", "bright_black")]


def _line(width: int, *parts: str | tuple[str, str]) -> Text:
    line = Text.assemble(*parts, no_wrap=True, overflow="ellipsis")
    line.truncate(width, overflow="ellipsis")
    return line


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
