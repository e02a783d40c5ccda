"""What a person sees while a run goes on: as lines of a log, and as a live view."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from specserve_profiler.cli.live import LiveView
from specserve_profiler.session import console
from specserve_profiler.session.console import Event, Lines, Stage, observing, say


def test_lines_tell_each_event_and_progress_every_few_seconds_only(capsys: pytest.CaptureFixture[str]) -> None:
    say("16 prompts")
    console.engine_line("loading")
    stage = Stage("grid", 100)
    stage.progress("batch size 1")
    stage.progress("batch size 2")
    stage.progress("batch size 4", at_once=True)
    console.best_so_far({1: 5})

    assert capsys.readouterr().out == (
        "[specserve] 16 prompts\n[engine] loading\n"
        "[specserve] grid 0 % batch size 1; 100 s left\n[specserve] grid 0 % batch size 4; 100 s left\n"
    )


def test_progress_is_told_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    now = 100.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    with observing(Lines(lambda: stream, every=0.05)):
        stage = Stage("grid", 0.1)
        stage.progress("first")
        now += 0.12
        stage.progress("second")

    assert stream.getvalue().splitlines() == [
        "[specserve] grid 0 % first; 0 s left",
        "[specserve] grid 99 % second; 0 s left",
    ]
    assert stage.left < 0


def test_a_stage_whose_least_is_more_than_its_budget_says_so_much_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage("grid", None)
    stage.progress("batch size 1", at_once=True)
    stage.grant(5)
    stage.progress("batch size 1", at_once=True)
    stage.expect(8)
    stage.progress("batch size 2", at_once=True)
    stage.expect(2)
    stage.progress("batch size 4", at_once=True)

    assert [line.partition("%")[2] for line in capsys.readouterr().out.splitlines()] == [
        " batch size 1",
        " batch size 1; 5 s left",
        " batch size 2; 8 s left",
        " batch size 4; 5 s left",
    ]


def test_one_who_observes_hears_everything_and_only_for_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[Event] = []
    with observing(heard.append):
        say("one")
        console.began("boot baseline")
        Stage("grid", 10).progress("cell")
    say("two")

    assert [type(event).__name__ for event in heard] == ["Said", "Began", "Began", "Progress"]
    assert capsys.readouterr().out == "[specserve] two\n"


def test_the_live_view_shows_stages_best_k_and_where_the_engines_log_is(tmp_path: Path) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=100, height=30, color_system=None)
    log = tmp_path / "engine.log"

    with LiveView(terminal, log) as view, observing(view):
        say("16 prompts from p.jsonl")
        console.began("boot baseline")
        console.engine_line("loading [weights]")
        stage = Stage("grid", None)
        stage.grant(100)
        stage.progress("batch size 8, K = 3")
        console.best_so_far({8: 3, 1: 5})
        time.sleep(0.6)

    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "16 prompts from p.jsonl" in text
    assert re.search(r"✓ +boot baseline +0:00", text)
    assert re.search(r"● +grid .*1:\d\d left at most +batch size 8, K = 3", text)
    assert "best K so far (batch size:K)  1:5  8:3" in text
    assert f"engine log: {log}" in text.replace("\n", "")
    assert "loading" not in text
    assert log.read_text() == "[specserve] 16 prompts from p.jsonl\nloading [weights]\n"


def frame(width: int, height: int, tmp_path: Path, stages: int = 3) -> list[str]:
    """The lines that the view draws in the middle of the grid, on a terminal of this size."""
    terminal = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)
    view = LiveView(terminal, tmp_path / "engine.log")
    with observing(view):
        for number in range(stages):
            console.began(f"boot number {number}")
        stage = Stage("acceptance of every K", 100)
        stage.progress("batch size 128, K = 3")
        console.best_so_far({1: 5, 2: 5, 4: 5, 8: 4, 16: 3, 32: 3, 64: 2, 128: 1})
    with terminal.capture() as captured:
        terminal.print(view._drawn())
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_live_view_shows_the_stage_that_runs_at_any_width(width: int, tmp_path: Path) -> None:
    lines = frame(width, 30, tmp_path)

    assert max(map(len, lines)) <= width
    shown = " ".join(line.strip() for line in lines)
    assert "✓ boot number 2 " in shown
    assert re.search(r"● acceptance of every K .*1:\d\d left at most +batch size 1", shown)
    assert "1:5" in shown and "128:1" in shown and "0:00 in all" in shown


def test_one_line_holds_all_of_a_stage_where_there_is_room(tmp_path: Path) -> None:
    wide, narrow = frame(200, 30, tmp_path), frame(40, 30, tmp_path)

    assert any("● acceptance of every K" in line and "━" in line and "batch size 128, K = 3" in line for line in wide)
    assert [line.rstrip() for line in narrow if "●" in line] == ["● acceptance of every K"]
    below = narrow[[line.rstrip() for line in narrow].index("● acceptance of every K") + 1]
    assert re.fullmatch(r"  1:\d\d left at most  batch size 128, K …", below)


@pytest.mark.parametrize(("width", "height"), [(40, 10), (80, 8), (200, 6)])
def test_old_stages_make_room_for_the_one_that_runs(width: int, height: int, tmp_path: Path) -> None:
    lines = frame(width, height, tmp_path, stages=20)

    assert len(lines) < height
    shown = " ".join(lines)
    assert re.search(r"✓ \d+ stages before", lines[0])
    assert "● acceptance of every K" in shown and "left at most" in shown and "0:00 in all" in shown


def test_a_full_disk_ends_the_engines_log_and_not_the_run() -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=100, height=30, color_system=None)

    with LiveView(terminal, Path("/dev/full")) as view, observing(view):
        console.engine_line("loading")
        console.engine_line("loaded")
        say("16 prompts")

    assert screen.getvalue().count("the engine's log ends here: /dev/full: No space left on device") == 1
    assert "16 prompts" in screen.getvalue()
