"""A process is known by more than its number, and is found even where nobody wrote it down."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from devcluster import processes
from devcluster.errors import DevclusterError
from devcluster.pace import patience
from devcluster.processes import MARKER, Component, Identity, Running, parse_stat, spawn


def component(folder: Path, script: str) -> Component:
    env = {"PATH": os.environ["PATH"], MARKER: str(folder)}
    return Component("it", ("sh", "-c", script), env, folder / "it.log")


def test_a_recycled_process_id_is_not_the_process(tmp_path: Path) -> None:
    identity = spawn(component(tmp_path, "exec sleep 100"))
    assert identity.alive
    recycled = replace(identity, started=identity.started - 1)
    before_reboot = replace(identity, boot="another")
    assert not recycled.alive
    assert not before_reboot.alive
    recycled.send(signal.SIGKILL)
    assert identity.alive
    assert processes.kill_all([identity]) == []
    assert not identity.alive


def test_the_programs_name_may_hold_spaces_and_parentheses() -> None:
    stat = "42 (a) Z 9 (b)) S 1 42 42 0 -1 4194560 100 0 0 0 1 2 3 4 20 0 7 0 987654 1 2"
    assert parse_stat(stat) == ("S", 7, 987654)


def test_children_without_a_record_are_found_by_the_marker(tmp_path: Path) -> None:
    identity = spawn(component(tmp_path, "sleep 100 & exec sleep 100"))
    deadline = time.monotonic() + patience(5)
    while len(found := processes.marked(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(found) == 2
    assert identity.pid in {each.pid for each in found}
    assert processes.marked(tmp_path / "other") == []
    assert processes.kill_all(found) == []


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    running = Running(component(tmp_path, "true"), Identity(1, 2, "boot"))
    processes.save(tmp_path / "run", running)
    assert processes.load(tmp_path / "run") == {"it": running}


def test_output_goes_to_the_log_and_its_end_is_shown(tmp_path: Path) -> None:
    identity = spawn(component(tmp_path, "for i in 1 2 3; do echo line $i; done; echo bad >&2"))
    deadline = time.monotonic() + patience(5)
    while identity.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert processes.tail(tmp_path / "it.log", lines=2) == "    line 3\n    bad"
    assert "does not exist" in processes.tail(tmp_path / "none.log")


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    missing = replace(component(tmp_path, ""), argv=("no-such-program",))
    with pytest.raises(DevclusterError, match="no-such-program is not on PATH"):
        spawn(missing)
