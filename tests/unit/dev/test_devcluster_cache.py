"""Heavy things are made once, and an interrupted making never looks finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster.cache import Progress, key_of, made_once, require_free_space
from devcluster.errors import DevclusterError

QUIET = Progress(quiet=True)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECSERVE_CACHE", str(tmp_path))
    return tmp_path


def test_it_is_made_once(cache: Path) -> None:
    calls = []

    def make(folder: Path) -> None:
        calls.append(folder)
        (folder / "tool").write_text("works")

    first = made_once("thing", "abc", make, QUIET)
    assert first == cache / "thing-abc"
    assert (first / "tool").read_text() == "works"
    assert made_once("thing", "abc", make, QUIET) == first
    assert len(calls) == 1


def test_an_interrupted_making_leaves_nothing_that_looks_finished(cache: Path) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_once("thing", "abc", interrupted, QUIET)
    assert not (cache / "thing-abc").exists()


def test_what_a_killed_making_left_is_not_part_of_the_next(cache: Path) -> None:
    (cache / ".partial-thing-abc").mkdir()
    (cache / ".partial-thing-abc" / "half").write_text("x")
    made = made_once("thing", "abc", lambda folder: None, QUIET)
    assert list(made.iterdir()) == []


def test_the_key_tells_where_one_part_ends_and_the_next_begins() -> None:
    assert key_of("ab", "c") != key_of("a", "bc")
    assert key_of("ab", "c") == key_of(b"ab", b"c")


def test_too_little_disk_is_said_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DevclusterError, match="free some, or set SPECSERVE_CACHE"):
        require_free_space(tmp_path, 1e9)
