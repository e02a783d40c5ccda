"""Standard streams that are full, closed, or without a reader: no trace, and the exit codes of docs/profiler.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.profiler.cli.doors import shell
from tests.unit.profiler.profiles_sample import profile

PRINTING = [
    "profile --help",
    "profile --version",
    "profile run --help",
    "profile table --help",
    "profile table p.json",
    "profile table p.json --json",
    "profile check 1-16:4",
    "profile check 1-16:4 --json",
    "profile render p.json",
    "profile compare p.json p.json",
    "profile report --text p.json",
    "profile run --config p.json --dry-run",
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a profile, as the current one."""
    (tmp_path / "p.json").write_text(profile().to_json())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", PRINTING)
def test_a_result_that_cannot_be_printed_ends_with_seven(command: str, here: Path) -> None:
    for where, why in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
        done = shell(f"{command} {where}")

        assert done.returncode == 7, done.stderr
        assert f"OutputUnwritable: standard output cannot be written: {why}\n" in done.stderr
        assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize("command", PRINTING)
def test_a_reader_that_went_away_is_no_fault(command: str, here: Path) -> None:
    done = shell(f"set -o pipefail; {{ sleep 0.3; {command}; }} 2>words | true")

    assert (done.returncode, done.stderr) == (0, "")
    assert "rror" not in (here / "words").read_text()


def test_the_first_line_of_a_long_help_is_enough() -> None:
    done = shell("set -o pipefail; profile run --help | head -2")

    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: specserve-profile run" in done.stdout


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_words_that_cannot_be_told_change_no_result(where: str, here: Path) -> None:
    done = shell(f"profile table p.json {where}")
    wrong = shell(f"profile table nowhere.json {where}")
    dead = shell(f"profile run --config p.json --engine-command /no/such --json {where}")

    assert (done.returncode, done.stdout) == (0, "[[1, 8, 5], [9, 40, 3], [41, 120, 2], [121, 256, 1]]\n")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert dead.returncode in (3, 4) and "failure" in json.loads(dead.stdout)


def test_a_closed_standard_input_is_told(here: Path) -> None:
    for command in ("table -", "report --text -", "check -", "compare - p.json", "run --config -"):
        done = shell(f"profile {command} <&-")

        assert done.returncode == 2
        assert "- cannot be read: Bad file descriptor" in done.stderr
    assert shell("profile table p.json <&-").returncode == 0


def test_no_file_takes_the_place_of_a_closed_stream(here: Path) -> None:
    done = shell("profile report p.json -o page.html <&- >&- 2>&-")

    assert done.returncode == 0
    page = (here / "page.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and page.endswith("</html>\n")


def test_a_job_without_its_streams_leaves_its_message(tmp_path: Path) -> None:
    for where in ("<&- >&- 2>&-", ">/dev/full 2>&1"):
        log = tmp_path / "termination"
        done = shell(f"profile job {where}", SPECSERVE_REQUEST="{}", SPECSERVE_TERMINATION_LOG=str(log))

        assert done.returncode == 2
        assert "RequestInvalid" in log.read_text()
        log.unlink()


def test_letters_that_a_terminal_does_not_know_are_told_otherwise(here: Path) -> None:
    done = shell("profile report --text p.json", PYTHONIOENCODING="ascii", PYTHONUTF8="0")

    assert done.returncode == 0, done.stderr
    assert r"\xb1" in done.stdout
