"""A run as a person sees it on a terminal: its stages with time left, and what it said, above them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from specserve_profiler.session.console import Began, Best, EngineLine, Event, Progress, Said


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


class LiveView:
    """Listens to a run and draws it. The engine's log goes to a file."""

    def __init__(self, console: Console, engine_log: Path) -> None:
        self._console = console
        self._log_path = engine_log
        self._log: TextIO | None = None
        self._stages: list[_Stage] = []
        self._best: Mapping[int, int] = {}
        self._start = time.monotonic()
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._drawn, transient=True)

    def __enter__(self) -> LiveView:
        self._log = self._log_path.open("w", encoding="utf-8")
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()
        if self._log is not None:
            self._log.close()

    def __call__(self, event: Event) -> None:
        """Takes one event of the run in."""
        if isinstance(event, EngineLine):
            self._note(event.text)
        elif isinstance(event, Said):
            self._note(f"[specserve] {event.text}")
            self._console.print(Text(event.text))
        elif isinstance(event, Began):
            self._end_last()
            self._stages.append(_Stage(event.stage, event.seconds))
        elif isinstance(event, Progress):
            if self._stages:
                self._stages[-1].take(event)
        elif isinstance(event, Best):
            self._best = event.ks

    def _note(self, line: str) -> None:
        """The profiler's lines stand in the engine's log, too: they tell at what it was."""
        if self._log is not None:
            self._log.write(line + "\n")
            self._log.flush()

    def _end_last(self) -> None:
        if self._stages:
            self._stages[-1].end = time.monotonic()

    def _drawn(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for stage in self._stages:
            table.add_row(*self._row(stage))
        parts: list[RenderableType] = [table]
        if self._best:
            best = "  ".join(f"{size}:{k}" for size, k in sorted(self._best.items()))
            parts.append(Text(f"best K so far (batch size:K)  {best}", style="bold"))
        elapsed = _clock(time.monotonic() - self._start)
        parts.append(Text(f"{elapsed} in all; engine log: {self._log_path}", style="dim"))
        return Group(*parts)

    def _row(self, stage: _Stage) -> tuple[RenderableType, ...]:
        if stage.end is not None:
            return Text("✓", "green"), Text(stage.name), Text(""), Text(_clock(stage.elapsed), "dim"), Text("")
        if stage.seconds is None:
            return Text("●", "cyan"), Text(stage.name, "bold"), Text(""), Text(_clock(stage.elapsed), "cyan"), Text("")
        bar = ProgressBar(
            total=max(stage.seconds, 1e-9), completed=min(stage.elapsed, stage.seconds), width=24, complete_style="cyan"
        )
        left = Text(f"{_clock(max(stage.seconds - stage.elapsed, 0))} left at most", "cyan")
        return Text("●", "cyan"), Text(stage.name, "bold"), bar, left, Text(stage.what, "dim", overflow="ellipsis")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
