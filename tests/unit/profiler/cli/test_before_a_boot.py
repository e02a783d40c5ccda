"""What can be known before an engine boots is said before one does, and names the flag."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest
from tests.unit.profiler.cli.doors import ROOT, shell
from tests.unit.profiler.profiles_sample import partial, profile, request

from devcluster.pace import patience
from specserve_profiler.cli import main
from specserve_profiler.reports.flags import as_flags

PROMPTS = "".join(f'{{"prompt": "text {number}"}}\n' for number in range(16))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A target, a drafter, prompts, and things that are no models."""
    monkeypatch.chdir(tmp_path)
    for name, config in (
        ("target", {"vocab_size": 10}),
        ("drafter", {"vocab_size": 10, "max_position_embeddings": 99}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "config.json").write_text('{"vocab')
    (tmp_path / "weights.safetensors").write_text("")
    (tmp_path / "prompts.jsonl").write_text(PROMPTS)
    return tmp_path


def run(*flags: str) -> tuple[int, str, bool]:
    """Exit code of ``run``, what it said, and whether an engine was booted."""
    engine = f"{shlex.quote(sys.executable)} -c \"print('booted'); raise SystemExit(3)\""
    words = {
        "--model": "./target", "--method": "draft_model", "--draft-model": "./drafter", "--max-num-seqs": "8",
        "--max-model-len": "512", "--output-tokens": "64", "--prompts": "prompts.jsonl", "--engine-command": engine,
    }  # fmt: skip
    words |= dict(flag.split("=", 1) for flag in flags if flag.startswith("--"))
    done = shell("profile run " + shlex.join(f"{name}={value}" for name, value in words.items()))
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr, "[engine] booted" in done.stderr


def test_what_can_be_loaded_is_booted(folder: Path) -> None:
    for flags in ([], ["--model=org/name"], ["--model=name-of-a-hub"], ["--draft-model=s3://bucket/a/b"]):
        code, told, booted = run(*flags)

        assert (code, booted) == (4, True), told


@pytest.mark.parametrize(
    ("flag", "code", "expected"),
    [
        ("--draft-model=/nonexist", 4, "ModelUnreadable: --draft-model /nonexist: there is no such folder"),
        ("--model=./nonexist", 4, "ModelUnreadable: model ./nonexist: there is no such folder"),
        ("--model=~/nonexist", 4, "model ~/nonexist: there is no such folder"),
        ("--model=models/org/name", 4, "model models/org/name: there is no such folder"),
        ("--draft-model=empty", 4, "--draft-model empty: the folder has no config.json"),
        ("--draft-model=torn", 4, "--draft-model torn: its config.json is no JSON"),
        (
            "--model=./weights.safetensors",
            4,
            "model ./weights.safetensors: it is a file; give the folder that holds it",
        ),
        ("--weights=0:1", 2, "--weights: '0:1': batch sizes begin at 1"),
        ("--weights=-5:1", 2, "--weights: '-5:1': batch sizes begin at 1"),
        ("--weights=1:0", 2, "--weights: at least one must be above 0"),
        ("--weights=1:1,1:2", 2, "--weights: '1:1,1:2': a batch size is there twice"),
        ("--weights=1:1,9:1", 2, "--weights: batch size 9 is none of 1 to maxNumSeqs 8"),
        ("--weights=1:-1", 2, "--weights"),
        ("--weights=1:nan", 2, "--weights"),
        ("--prompts=none.jsonl", 3, "PromptsInvalid: "),
        ("--output=target", 2, "--output: target cannot be written"),
        ("--output-tokens=500", 3, "--output-tokens 500 leaves no room for a prompt in --max-model-len 512"),
        ("--revision=main", 2, "--revision: ./target is a folder, which has no revisions; leave it out"),
        ("--draft-revision=main", 2, "--draft-revision: ./drafter is a folder, which has no revisions; leave it out"),
    ],
)
def test_what_cannot_be_is_refused_before_a_boot(flag: str, code: int, expected: str, folder: Path) -> None:
    found, told, booted = run(flag)

    assert (found, booted) == (code, False), told
    assert expected in told


def test_a_drafter_that_is_short_of_positions_is_told_of(folder: Path) -> None:
    _, told, booted = run("--max-model-len=512")
    _, enough, _ = run("--max-model-len=99")

    assert booted and "warning: the draft model knows 99 positions, engine.maxModelLen is 512: " in told
    assert "positions" not in enough


def test_one_file_is_not_asked_for_twice(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "p.json").write_text(profile().to_json())

    assert main(["run", "--config=p.json", "--output=out", "--engine-log=./out"]) == 2
    assert "--engine-log: give another file than --output" in capsys.readouterr().err


def test_what_an_hour_measured_is_not_lost_with_stdout(folder: Path) -> None:
    code = (
        "import sys\nfrom specserve_profiler.session import run\nfrom specserve_profiler.contract.profile import *\n"
        "text = open('p.json').read()\n"
        "kind = PartialProfile if '\"partial\"' in text else Profile\n"
        "found = {'partial': kind.model_validate_json(text), 'failure': Failure(reason='TimedOut', message='m')}\n"
        "outcome = run.Outcome(**found) if kind is PartialProfile else run.Outcome(profile=found['partial'])\n"
        "run.execute = lambda request, *rest: outcome\n"
        "from specserve_profiler.cli import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    (folder / "stand_in.py").write_text(code)
    (folder / "plan.json").write_text(request().to_json())
    for result in (profile(), partial()):
        (folder / "p.json").write_text(result.to_json())
        done = shell(f"{shlex.quote(sys.executable)} stand_in.py run --config plan.json --json > /dev/full", TMPDIR=".")

        assert done.returncode == 7
        kept = done.stderr.partition("the result is in ")[2].splitlines()[0]
        assert Path(kept).read_text() == result.to_json() + "\n"


def test_messages_for_a_resource_are_told_in_flags() -> None:
    assert as_flags("Give it more time (profile.timeoutSeconds), or set engine.maxNumSeqs and model.name") == (
        "Give it more time (--timeout-seconds), or set --max-num-seqs and --model"
    )
    assert as_flags("the model ./key and its batchSizes") == "the model ./key and its --batch-sizes"


@pytest.mark.parametrize("columns", [40, 200])
def test_a_person_at_a_terminal_sees_the_stage_that_runs(columns: int, folder: Path) -> None:
    engine = f"{shlex.quote(sys.executable)} -c 'import time; time.sleep(60)'"
    words = ["--model=./target", "--method=ngram", "--max-num-seqs=8", "--max-model-len=512", "--output-tokens=64"]
    words += ["--prompts=prompts.jsonl", f"--engine-command={engine}"]
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    running = subprocess.Popen(
        [sys.executable, "-m", "specserve_profiler", "run", *words],
        env={name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        | {"PYTHONPATH": str(ROOT / "profiler_job"), "TERM": "xterm"},
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    seen = ""
    while "● boot baseline" not in seen:
        seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(mine, 1 << 16).decode(errors="replace"))
    running.terminate()
    with suppress(OSError):  # a terminal that nobody holds any more
        while os.read(mine, 1 << 16):
            pass
    os.close(mine)

    assert running.wait(patience(30)) == 143
