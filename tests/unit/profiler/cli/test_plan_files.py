"""Plan files as somebody might hand them in: none may hang, end in a trace, or mean something else than it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.profiler.cli.doors import shell
from tests.unit.profiler.profiles_sample import profile

BOMB = 'a: &a ["x","x","x","x","x","x","x","x","x"]\n' + "".join(
    f"{name}: &{name} [{','.join(9 * ['*' + before])}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
NO_ALIAS = "aliases (*name) are not taken: write the value out"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (BOMB, f"{NO_ALIAS} in line 2, column 8"),
        ("model: &a {b: *a}", f"{NO_ALIAS} in line 1, column 15"),
        ("model: m\nmodel: n\n", "model is there twice in line 2, column 1"),
        ('{"model": "m", "engine": {"args": [], "args": ["--enforce-eager"]}}', "args is there twice"),
        ("maxNumSeqs: 1\nmax_num_seqs: 2\n", "a field is there in two spellings, among: maxNumSeqs, max_num_seqs"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("model: m\n---\nmodel: n\n", "expected a single document"),
        (f"key: {'9' * 5000}", "is neither YAML nor JSON: Exceeds the limit"),
        ("key: 2026-13-45", "is neither YAML nor JSON: month must be in 1..12"),
        ("? [a]\n: b", "found unhashable key"),
        ("model: !!python/object:os.system x", "could not determine a constructor"),
        ("# " + "x" * 300_000, "it has more than 262144 letters, which is no plan"),
    ],
)
def test_a_plan_that_no_one_should_run_is_refused_at_once(content: str, expected: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(content)

    done = shell(f"profile run --config {plan} --dry-run")

    assert done.returncode == 2
    assert expected in done.stderr.replace("\n  ", " ")
    assert "Traceback" not in done.stderr and len(done.stderr) < 800


@pytest.mark.parametrize(
    "command",
    [
        "run --config /dev/zero",
        "report --text /dev/zero",
        "compare /dev/zero /dev/zero",
        "table /dev/zero",
        "table --grid /dev/zero",
        "table --grid -",
        "render /dev/zero",
        "refit /dev/zero",
        "check -",
    ],
)
def test_what_never_ends_is_not_read_to_its_end(command: str) -> None:
    done = shell(f"ulimit -v 4000000; profile {command} </dev/zero")

    assert done.returncode == 2
    assert " cannot be read: File too large, more than 64 MiB\n" in done.stderr


def test_prompts_that_never_end_are_refused(tmp_path: Path) -> None:
    flags = "--model=m --method=ngram --max-num-seqs=4 --max-model-len=512 --output-tokens=32"

    done = shell(f"ulimit -v 8000000; profile run {flags} --prompts=/dev/zero")

    assert done.returncode == 3
    assert "PromptsInvalid: prompts /dev/zero cannot be read: File too large, more than 1024 MiB" in done.stderr


def test_figures_come_from_standard_input_and_from_windows_too(tmp_path: Path) -> None:
    rows = "batch_size,k,itl_ms,acceptance_length\r\n1,0,6,1\r\n1,3,9,2.4\r\n"
    (tmp_path / "figures.csv").write_bytes(rows.encode())
    grid = '{"batchSizes": [1], "draftTokens": [0, 3], "itlMs": [[6, 9]], "acceptanceLength": [1, 2.4]}'

    assert shell(f"profile table --grid {tmp_path}/figures.csv").stdout == "[[1, 1, 3]]\n"
    assert shell(f"echo {grid!r} | profile table --grid -").stdout == "[[1, 1, 3]]\n"


def test_a_plan_comes_from_standard_input_too(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(profile().to_json())

    done = shell(f"cat {tmp_path}/p.json | profile run --config - --dry-run --json")
    again = shell(f"profile run --config {tmp_path}/p.json --dry-run | profile run --config - --dry-run --json")

    assert done.returncode == again.returncode == 0
    assert json.loads(done.stdout) == json.loads(again.stdout) == json.loads(profile().to_json())["request"]


def test_an_anchor_alone_is_harmless(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "model: &m m\nspeculation: {method: ngram}\nengine: {maxNumSeqs: 8, maxModelLen: 512}\nprompts: {path: p}\n"
    )

    done = shell(f"profile run --config {plan} --dry-run --json")

    assert (done.returncode, json.loads(done.stdout)["model"]) == (0, "m"), done.stderr
