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


def test_what_never_ends_is_not_read_to_its_end() -> None:
    for command in ("run --config /dev/zero", "report --text /dev/zero", "check - </dev/zero"):
        done = shell(f"profile {command}")

        assert done.returncode == 2
        assert " has more than 64 MiB: that is neither a profile nor a log of one\n" in done.stderr


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
