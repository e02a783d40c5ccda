"""Names of others that hold what a terminal obeys, or that turn a line around: no door lets them through."""

from __future__ import annotations

import io
import json
import unicodedata
from pathlib import Path

import pytest
from rich.console import Console
from tests.unit.profiler.cli.doors import shell
from tests.unit.profiler.profiles_sample import decision, measurements, partial, profile, request

from specserve_profiler.cli.live import LiveView
from specserve_profiler.contract.plain import plain
from specserve_profiler.contract.profile import Profile
from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.session import console
from specserve_profiler.session.console import Lines, observing

EVIL = "\x1b]0;owned\x07\x1b[2J\r\nVerdict Dynamic: serve it\x9b31m\u202egnp.exe\u2028\x7f"
SHOWN = r"\u001b]0;owned\u0007\u001b[2J\r\nVerdict Dynamic: serve it\u009b31m\u202egnp.exe\u2028\u007f"


def evil_request() -> ProfileRequest:
    return request(
        model=f"org/{EVIL}",
        revision=EVIL,
        key=EVIL,
        speculation={"method": "eagle3", "model": f"drafter{EVIL}", "maxTokens": 5},
        engine={"args": ["--served-model-name", EVIL], "maxNumSeqs": 256, "maxModelLen": 8192},
        prompts={"path": f"/prompts/{EVIL}.jsonl"},
    )


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A profile whose every name is hostile."""
    decided = decision().model_copy(update={"warnings": (EVIL,), "reason": f"reason {EVIL}"})
    found = profile().model_copy(
        update={
            "key": EVIL,
            "request": evil_request(),
            "measurements": measurements().model_copy(update={"device": f"GPU{EVIL}", "engine_version": f"0.33{EVIL}"}),
            "decision": decided,
        }
    )
    path = tmp_path / "evil.json"
    path.write_text(Profile.model_validate(found.model_dump()).to_json())
    return path


def harmless(text: str) -> bool:
    return not [char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char != "\n"]


@pytest.mark.parametrize(
    "command",
    [
        "report --text evil.json",
        "report evil.json",
        "table evil.json --short",
        "table evil.json --json",
        "table evil.json --max-batch 0",
        "render evil.json --vllm-version 0.33.0",
        "render evil.json --json --vllm-version 0.33.0",
        "check evil.json",
        "compare evil.json good.json --all",
        "compare evil.json good.json --json",
        "run --config evil.json --dry-run",
        "run --config evil.json --dry-run --json",
        "run --config evil.json",
        "run --config partial.json",
        "table partial.json",
        "run --model m$'\\x1b[2J' --method x$'\\x1b[2J'",
        "fly$'\\x1b[2J'",
        "check $'1-\\x1b[2J'",
        "run -- --port=$'\\x1b[2J'",
    ],
)
def test_no_command_prints_what_a_terminal_obeys(command: str, stored: Path) -> None:
    (stored.parent / "good.json").write_text(profile().to_json())
    (stored.parent / "partial.json").write_text(
        partial().model_copy(update={"partial": EVIL, "request": None}).to_json()
    )

    done = shell(f"cd {stored.parent}; profile {command}")

    assert done.stdout + done.stderr
    assert harmless(done.stdout + done.stderr), (done.stdout + done.stderr).encode("unicode_escape")
    assert "Verdict Dynamic: serve it" not in done.stderr.splitlines() + done.stdout.splitlines()


def test_a_report_shows_what_is_in_a_name(stored: Path) -> None:
    text = "".join(shell(f"profile report --text {stored}").stdout.split())
    shell(f"cd {stored.parent}; profile report {stored} -o page.html")
    page = (stored.parent / "page.html").read_text()

    assert r"onGPU\u001b]0;owned\u0007\u001b[2J" in text and r"\u009b31m\u202egnp.exe" in text
    assert harmless(page) and r"on GPU\u001b]0;owned\u0007\u001b[2J" in page and r"\u009b31m\u202egnp.exe" in page


def test_json_means_the_same(stored: Path) -> None:
    done = shell(f"profile run --config {stored} --dry-run --json")
    again = shell(f"profile run --config {stored} --dry-run | profile run --config - --dry-run --json")

    assert ProfileRequest.model_validate_json(done.stdout) == evil_request()
    assert ProfileRequest.model_validate_json(again.stdout) == evil_request()
    assert r"\u202e" in done.stdout


def test_what_a_run_tells_is_harmless_for_whoever_listens(tmp_path: Path) -> None:
    lines, screen, log = io.StringIO(), io.StringIO(), tmp_path / "engine.log"
    with observing(Lines(lambda: lines)):
        console.say(EVIL)
        console.engine_line(f"\t{EVIL}")
    terminal = Console(file=screen, force_terminal=True, width=300, color_system=None)
    with LiveView(terminal, log) as view, observing(view):
        console.say(EVIL)
        console.engine_line(f"\t{EVIL}")

    assert lines.getvalue() == f"[specserve] {SHOWN}\n[engine] \t{SHOWN}\n"
    assert log.read_text() == f"[specserve] {SHOWN}\n\t{SHOWN}\n"
    assert SHOWN in screen.getvalue() and "\x1b]0" not in screen.getvalue() and "\u202e" not in screen.getvalue()


def test_words_of_any_language_stay_as_they_are() -> None:
    for text in ("GPU-Größe 90 % ± 1\u00a0ms", "模型\u3000甲", "модель", "模型🚀", "", "a b"):
        assert plain(text) == text
    assert plain(EVIL) == SHOWN and json.loads(f'"{SHOWN}"') == EVIL
    assert plain("a\nb\tc", "\n\t") == "a\nb\tc"
