"""Figures that somebody else measured, and what is said where they are no grid."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.measured import triples

from specserve_profiler.reports.given import GridError, parse_csv, parse_json, read_grid, rows_from_grid

GOOD: dict[str, Any] = {
    "batchSizes": [1, 64],
    "draftTokens": [0, 1, 3],
    "itlMs": [[6.5, 7.4, 8.8], [7.8, 9.7, 13.5]],
    "acceptancePerPosition": [0.68, 0.39, 0.2],
    "baselineItlMs": [6.2, 7.4],
}
CSV = """\
batch_size,k,itl_ms,acceptance_length
64,3,13.5,2.27
64,1,9.7,1.68
1,none,6.2,
1,0,6.5,
1,1,7.4,1.68
1,3,8.8,
64,0,7.8,1
64,none,7.4,
"""


def edited(**fields: Any) -> str:
    return json.dumps({name: value for name, value in {**GOOD, **fields}.items() if value is not ...})


def test_json_and_csv_of_the_same_figures_give_the_same_table() -> None:
    """AL is 1 + .68 = 1.68 and 1 + .68 + .39 + .2 = 2.27."""
    from_json, from_csv = parse_json(json.dumps(GOOD)), parse_csv(CSV)

    assert from_csv.acceptance_length == (1, 1.68, 2.27)
    assert (from_csv.batch_sizes, from_csv.draft_tokens) == ((1, 64), (0, 1, 3))
    assert from_csv.itl_ms == from_json.itl_ms and from_csv.baseline_itl_ms == from_json.baseline_itl_ms
    assert triples(rows_from_grid(from_csv)) == triples(rows_from_grid(from_json))


def test_acceptance_may_be_given_by_length_and_is_then_linear_between_k() -> None:
    grid = parse_json(edited(acceptancePerPosition=..., acceptanceLength=[1, 1.7, 2.3]))

    assert grid.surface(interpolate_k=True).acceptance == {0: 1, 1: 1.7, 2: 2.0, 3: 2.3}
    assert grid.surface(interpolate_k=True).itl[1, 2] == pytest.approx(8.1)
    assert set(grid.surface().acceptance) == {0, 1, 3}


def test_a_cell_that_cannot_run_is_null_or_left_out() -> None:
    grid = parse_json(edited(itlMs=[[6.5, 7.4, 8.8], [7.8, 9.7, None]]))
    lines = "\n".join(line for line in CSV.splitlines() if not line.startswith("64,3")).replace(
        "1,3,8.8,", "1,3,8.8,2.27"
    )

    assert parse_csv(lines).itl_ms == grid.itl_ms
    assert (64, 3) not in grid.surface().itl and (64, 2) not in grid.surface(interpolate_k=True).itl


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the file is empty: it needs batchSizes"),
        ('{"batchSizes": [1,\n 2,]}', r"line 2: no valid JSON"),
        ("[1, 2]", "a grid is a JSON object"),
        (edited(itlMS=[[1]]), "unknown field itlMS: the fields are batchSizes, draftTokens, itlMs"),
        (edited(itlMs=..., draftTokens=...), "draftTokens, itlMs: missing"),
        (edited(batchSizes=7), "batchSizes: must be a list"),
        (edited(batchSizes=[]), "batchSizes: empty"),
        (edited(batchSizes=[0, 64]), "batchSizes: 0 is below 1"),
        (edited(batchSizes=[1, 1.5]), r"batchSizes\[1\]: 1.5 is not a whole number"),
        (edited(batchSizes=[64, 64]), "batchSizes: 64 comes after 64; they must increase, each once"),
        (edited(draftTokens=[0, 3, 1]), "draftTokens: 1 comes after 3"),
        (edited(draftTokens=[-1, 1, 3]), "draftTokens: -1 is below 0"),
        (edited(itlMs=[[6.5, 7.4, 8.8]]), "itlMs: 1 values, but batchSizes has 2"),
        (edited(itlMs=[[6.5, 7.4, 8.8], [7.8, 9.7]]), r"itlMs\[1\]: 2 values, but draftTokens has 3"),
        (edited(itlMs=[[6.5, 7.4, 8.8], [7.8, -9.7, 3]]), r"itlMs\[1\]\[1\]: -9.7 is no duration; give milliseconds"),
        (edited(itlMs=[[6.5, 7.4, 8.8], [7.8, float("nan"), 3]]), r"itlMs\[1\]\[1\]: nan is no duration"),
        (edited(itlMs=[[6.5, 7.4, 8.8], [7.8, "9", 3]]), r"itlMs\[1\]\[1\]: '9' is not a number"),
        (edited(itlMs=[[6.5, 7.4, 8.8], [None] * 3]), r"itlMs\[1\]: no K runs at batch size 64; leave it out"),
        (edited(acceptanceLength=[1, 1.7, 2.3]), "give exactly one of acceptanceLength .* and acceptancePerPosition"),
        (edited(acceptancePerPosition=...), "give exactly one of acceptanceLength .* and acceptancePerPosition"),
        (edited(acceptancePerPosition=[0.7, 0.4]), "acceptancePerPosition: 2 rates, but draftTokens goes to 3"),
        (edited(acceptancePerPosition=[0.7, 1.4, 0.1]), r"acceptancePerPosition\[1\]: 1.4 is outside 0 to 1"),
        (edited(acceptancePerPosition=[0.7, 0.4, 0.5]), r"\[2\]: 0.5 is above the one before; rates are unconditional"),
        (edited(acceptancePerPosition=[0.7, None, 0.5]), "acceptancePerPosition: null and NaN are no acceptance"),
        (edited(acceptancePerPosition=..., acceptanceLength=[0, 0.7, 1.3]), ": 0 at K = 0 is outside 1 to 1"),
        (edited(acceptancePerPosition=..., acceptanceLength=[1, 2.7, 3]), ": 2.7 at K = 1 is outside 1 to 2"),
        (edited(acceptancePerPosition=..., acceptanceLength=[1, 2]), ": 2 values, but draftTokens has 3"),
        (edited(baselineItlMs=[6.2]), "baselineItlMs: 1 values, but batchSizes has 2"),
        (edited(baselineItlMs=[6.2, 0]), r"baselineItlMs\[1\]: 0 is no duration"),
    ],
)  # fmt: skip
def test_a_json_that_is_no_grid_is_told_by_field(text: str, expected: str) -> None:
    with pytest.raises(GridError, match=expected):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "line 1: the columns are batch_size,k,itl_ms,acceptance_length; found nothing"),
        ("batch,k,itl\n1,1,1\n", "line 1: the columns are batch_size,k,itl_ms,acceptance_length; found batch,k,itl"),
        ("batch_size,k,itl_ms\n", "no cell: the file needs one line for each batch size and K"),
        ("batch_size,k,itl_ms\n1,0,5\n1,0,6\n", "line 3: batch size 1, K = 0 is given twice"),
        ("batch_size,k,itl_ms\n1,0,5,7\n", "line 2: more values than columns"),
        ("batch_size,k,itl_ms\n1,0\n", "line 2: itl_ms: None is not a number"),
        ("batch_size,k,itl_ms\nx,0,5\n", "line 2: batch_size: 'x' is not a whole number"),
        ("batch_size,k,itl_ms\n0,0,5\n", "line 2: batch_size: 0 is below 1"),
        ("batch_size,k,itl_ms\n1,-1,5\n", "line 2: k: -1 is below 0"),
        ("batch_size,k,itl_ms\n1,0,nan\n", "line 2: itl_ms: nan must be finite and above 0"),
        ("batch_size,k,itl_ms\n1,0,-5\n", "line 2: itl_ms: -5 must be finite and above 0"),
        ("batch_size,k,itl_ms\n1,none,5\n1,none,6\n", "line 3: the baseline of batch size 1 is given twice"),
        ("batch_size,k,itl_ms\n1,0,5\n1,2,5\n", "acceptance_length: missing for K = 2; give it in one line of each K"),
        (CSV.replace("1,3,8.8,", "1,3,8.8,2.5"), "line 7: acceptance_length of K = 3 was 2.27 before; one K has one"),
    ],
)
def test_a_csv_that_is_no_grid_is_told_by_line(text: str, expected: str) -> None:
    with pytest.raises(GridError, match=expected):
        parse_csv(text)


def test_a_file_is_read_by_its_name_and_named_in_errors(tmp_path: Path) -> None:
    (tmp_path / "grid.csv").write_text("\ufeff" + CSV, encoding="utf-8")
    (tmp_path / "grid.json").write_text("[", encoding="utf-8")
    (tmp_path / "grid.bin").write_bytes(b"\xff\xfe\x00")

    assert read_grid(tmp_path / "grid.csv").batch_sizes == (1, 64)
    with pytest.raises(GridError, match=r"grid.json: line 1: no valid JSON"):
        read_grid(tmp_path / "grid.json")
    with pytest.raises(GridError, match=r"grid.bin is no UTF-8 text"):
        read_grid(tmp_path / "grid.bin")
