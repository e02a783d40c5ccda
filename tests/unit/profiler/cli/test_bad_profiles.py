"""A profile that cannot be is refused at every door that reads one: its field named, wrong usage, no crash."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.builders import edited
from tests.unit.profiler import profiles_sample
from tests.unit.profiler.cli.doors import shell

from specserve_profiler.cli import main, output
from specserve_profiler.session.job import BEGIN, END

GOOD: dict[str, Any] = json.loads(profiles_sample.profile().to_json())


def with_cell(**changes: Any) -> dict[str, Any]:
    return edited(GOOD, {"measurements.grid": [{**GOOD["measurements"]["grid"][0], **changes}]})


def with_acceptance(mean: float) -> dict[str, Any]:
    entry = {**GOOD["measurements"]["acceptance"][1], "acceptanceLength": {"mean": mean}}
    return edited(GOOD, {"measurements.acceptance": [entry]})


def with_baseline(mean: float) -> dict[str, Any]:
    entry = {**GOOD["measurements"]["baseline"][0], "itlMs": {"mean": mean}}
    return edited(GOOD, {"measurements.baseline": [entry]})


GRID, ACCEPTANCE, BASELINE = "measurements.grid.0", "measurements.acceptance.0", "measurements.baseline.0"
BAD = {
    "acceptance length 0": (with_acceptance(0), f"{ACCEPTANCE}.acceptanceLength: mean must be from 1 to 17, is 0"),
    "acceptance length -1": (with_acceptance(-1), f"{ACCEPTANCE}.acceptanceLength: mean must be from 1 to 17, is -1"),
    "acceptance length inf": (
        with_acceptance(float("inf")),
        f"{ACCEPTANCE}.acceptanceLength.mean: must be a finite number, is inf",
    ),
    "baseline 0": (with_baseline(0), f"{BASELINE}.itlMs: mean must be from 1e-06 to 1e+09, is 0"),
    "baseline -5": (with_baseline(-5), f"{BASELINE}.itlMs: mean must be from 1e-06 to 1e+09, is -5"),
    "ITL inf": (with_cell(itlMs=float("inf")), f"{GRID}.itlMs: must be a finite number, is inf"),
    "ITL 1e-320": (with_cell(itlMs=1e-320), f"{GRID}.itlMs: must be greater than or equal to 0.000001, is 1e-320"),
    "batch size 0": (with_cell(batchSize=0), f"{GRID}.batchSize: must be greater than or equal to 1, is 0"),
    "batch size -5": (with_cell(batchSize=-5), f"{GRID}.batchSize: must be greater than or equal to 1, is -5"),
    "batch size 1e30": (with_cell(batchSize=1e30), f"{GRID}.batchSize: "),
    "no rows": (edited(GOOD, {"decision.table": []}), "decision.table: Tuple should have at least 1 item"),
    "rows to 4 of 256": (
        edited(GOOD, {"decision.table": [{"first": 1, "last": 4, "k": 2}]}),
        "decision.table: ends at batch size 4, maxNumSeqs is 256: measure again",
    ),
    "Static with K -1": (
        edited(GOOD, {"decision.verdict": "Static", "decision.staticK": -1}),
        "decision.staticK: must be greater than or equal to 0, is -1",
    ),
    "Static with K 99": (
        edited(GOOD, {"decision.verdict": "Static", "decision.staticK": 99}),
        "decision.staticK: must be less than or equal to 16, is 99",
    ),
    "Static above Kmax": (
        edited(GOOD, {"decision.verdict": "Static", "decision.staticK": 6}),
        "decision.staticK: K = 6 exceeds maxTokens 5: measure again",
    ),
    "half a character": (
        edited(GOOD, {"measurements.device": "L4 \ud800"}),
        "measurements.device: holds half a character, a lone surrogate",
    ),
    "a long name": (edited(GOOD, {"request.model": "x" * 200_000}), "request.model: String should have at most 4096"),
    "a version as a text": (
        edited(GOOD, {"schemaVersion": "2"}),
        'schemaVersion: must be a number, such as 2 without quotes, is "2"',
    ),
}
DOORS: dict[str, Callable[[str], list[str]]] = {
    "report --text": lambda path: ["report", "--text", path],
    "report": lambda path: ["report", path, "-o", f"{path}.html"],
    "compare": lambda path: ["compare", path, path],
    "table": lambda path: ["table", path],
    "table anew": lambda path: ["table", path, "--tie=0.01"],
    "render": lambda path: ["render", path],
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("fault", BAD)
def test_a_profile_that_cannot_be_is_refused_by_its_field(
    fault: str, door: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, words = BAD[fault]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(content))

    assert main(DOORS[door](str(path))) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert f"{path} is no profile: {words}" in told.err
    assert len(told.err) < 1000
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("fault", ["acceptance length inf", "half a character", "rows to 4 of 256"])
def test_so_is_one_in_the_log_of_a_job(fault: str, tmp_path: Path) -> None:
    content, words = BAD[fault]
    log = tmp_path / "job.log"
    log.write_text(f"[engine] ready\n{BEGIN}\n{json.dumps(content)}\n{END}\n")

    done = shell(f"cat {shlex.quote(str(log))} | profile report --text -")

    assert (done.returncode, done.stdout) == (2, "")
    assert f"- is no profile: {words}" in done.stderr


def test_what_is_no_number_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    output.put_json({"ratios": [1.5, float("inf"), float("nan")], "more": {"low": (-float("inf"), 2)}})

    assert capsys.readouterr().out == '{"more":{"low":[null,2]},"ratios":[1.5,null,null]}\n'
