"""Figures that somebody else measured, and what is said where they are no grid."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.measured import triples

from specserve_profiler.reports.given import (
    GivenGrid,
    GridError,
    over_baseline,
    parse_csv,
    parse_json,
    read_grid,
    rows_from_grid,
)
from specserve_profiler.reports.suspects import suspects

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


# tokens per second

SPEEDS: dict[str, Any] = {
    "batchSizes": [1, 64],
    "draftTokens": [0, 1, 3],
    "tokensPerSecond": [[1000 * al * size / ms for al, ms in zip((1, 1.68, 2.27), row, strict=True)]
                        for size, row in zip((1, 64), GOOD["itlMs"], strict=True)],
    "baselineTokensPerSecond": [1000 / 6.2, 64_000 / 7.4],
}  # fmt: skip


def test_tokens_per_second_say_what_itl_and_acceptance_say_together() -> None:
    known, fast = parse_json(json.dumps(GOOD)), parse_json(json.dumps(SPEEDS))
    rows = rows_from_grid(known)

    assert triples(rows_from_grid(fast)) == triples(rows)
    assert over_baseline(fast, rows) == pytest.approx(over_baseline(known, rows))
    with pytest.raises(ValueError, match="interpolate_k: tokensPerSecond alone does not say"):
        rows_from_grid(fast, interpolate_k=True)


def test_tokens_per_second_with_acceptance_give_itl_back() -> None:
    """ITL = 1000 · batch size · AL / (tokens/s): so K between those given can be considered."""
    fast = parse_json(json.dumps({**SPEEDS, "acceptancePerPosition": [0.68, 0.39, 0.2]}))

    assert fast.cells()[64, 3] == pytest.approx(13.5)
    assert rows_from_grid(fast, interpolate_k=True) == rows_from_grid(parse_json(json.dumps(GOOD)), interpolate_k=True)


def test_tokens_per_second_may_be_of_one_request() -> None:
    each = [[speed / size for speed in row] for size, row in zip((1, 64), SPEEDS["tokensPerSecond"], strict=True)]
    text = json.dumps(
        {**SPEEDS, "tokensPerSecond": each, "baselineTokensPerSecond": [161.29, 135.135], "per": "request"}
    )
    grid = parse_json(text)

    assert grid.cells() == pytest.approx(parse_json(json.dumps(SPEEDS)).cells())
    assert grid.baseline() == pytest.approx({1: 6.2, 64: 7.4}, rel=1e-4)


def test_a_csv_of_tokens_per_second_says_whose_they_are() -> None:
    lines = "batch_size,k,{}\n1,0,100\n1,3,200\n8,0,{}\n8,3,{}\n8,none,{}\n"
    whole = parse_csv(lines.format("tokens_per_second", 640, 960, 800))
    each = parse_csv(lines.format("tokens_per_second_per_request", 80, 120, 100))

    assert whole.cells() == each.cells() == {(1, 0): 10.0, (1, 3): 5.0, (8, 0): 12.5, (8, 3): pytest.approx(25 / 3)}
    assert whole.baseline() == each.baseline() == {8: 10.0}
    assert not whole.acceptance_known


# what a draft checkpoint carries

DRAFTER: dict[str, Any] = {
    "schema_version": "1.0",
    "measured": True,
    "method": "eagle3",
    "draft_checkpoint": {"id": "org/drafter"},
    "num_speculative_tokens": 3,
    "max_supported_k": 3,
    "verification_method": "longest_prefix",
    "conditional_accept_rates": [0.68, 0.573529, 0.512821],
    "marginal_accept_rates": [0.68, 0.39, 0.2],
    "mean_accept_length": 2.27,
    "mean_accept_length_per_request": 2.4,
    "accept_length_model": "chain_analytic",
    "accept_length_by_k": {"3": 2.27},
    "per_category": None,
}


def drafted(**fields: Any) -> str:
    values = {name: value for name, value in {**DRAFTER, **fields}.items() if value is not ...}
    return edited(acceptancePerPosition=..., speculationProfile=values)


@pytest.mark.parametrize(
    "left_out", ["marginal_accept_rates", "conditional_accept_rates", "accept_length_by_k", "mean_accept_length"]
)
def test_acceptance_of_a_draft_checkpoint_is_that_of_the_rates(left_out: str) -> None:
    grid = parse_json(drafted(**{left_out: ...}))

    assert grid.surface(interpolate_k=True).acceptance == pytest.approx({0: 1, 1: 1.68, 2: 2.07, 3: 2.27}, abs=1e-5)
    assert grid.doubts() == ()


def test_lengths_measured_at_every_k_of_the_grid_come_before_rates() -> None:
    grid = parse_json(drafted(accept_length_by_k={"1": 1.6, "3": 2.2}, accept_length_model="measured_per_k"))

    assert grid.surface().acceptance == {0: 1, 1: 1.6, 3: 2.2}
    assert grid.doubts() == ()


def test_a_mean_length_alone_serves_a_grid_of_its_k() -> None:
    text = edited(draftTokens=[0, 3], itlMs=[[6.5, 8.8], [7.8, 13.5]], acceptancePerPosition=...,
                  speculationProfile={"num_speculative_tokens": 3, "mean_accept_length": 2.27})  # fmt: skip

    assert parse_json(text).surface().acceptance == {0: 1, 3: 2.27}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"measured": False, "mean_accept_length": None}, r"speculationProfile: the drafter was not measured"),
        ({"marginal_accept_rates": [0.68, 0.57, 0.51]}, r"marginal_accept_rates\[1\]: 0.57, but conditional_.* 0.39"),
        ({"marginal_accept_rates": [0.5, 0.7, 0.1]}, r"marginal_accept_rates\[1\]: 0.7 is above the one before: cond"),
        (
            {"marginal_accept_rates": [0.5, 1.7]},
            r"speculationProfile.marginal_accept_rates\[1\]: 1.7 is outside 0 to 1",
        ),
        ({"accept_length_by_k": {"1": 2.4}}, "speculationProfile: accept_length_by_k: 2.4 at K = 1 is outside 1 to 2"),
        ({"mean_accept_length": 7.0, "accept_length_by_k": ...}, "accept_length_by_k: 7 at K = 3 is outside 1 to 4"),
        ({"mean_accept_length": 0.3}, r"speculationProfile.mean_accept_length: 0.3 is no length"),
        ({"conditional_accept_rates": "high"}, r"speculationProfile.conditional_accept_rates: must be a list"),
        (
            {"conditional_accept_rates": ..., "marginal_accept_rates": [0.6]},
            "its rates are of 1 draft positions, its lengths of K = 0, 3, but draftTokens goes to 3",
        ),
    ],
)
def test_a_draft_checkpoint_that_says_nothing_usable_is_refused(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(GridError, match=expected):
        parse_json(drafted(**fields))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"accept_length_model": "measured_per_k"},
            "plans each K anew: its rates are those of K = 3 and say little of",
        ),
        ({"verification_method": "block"}, "acceptance is that of block verification: vLLM takes the longest prefix"),
        ({"mean_accept_length": 2.9}, "mean_accept_length 2.9 is not 1 + the sum of the rates, 2.27"),
    ],
)
def test_what_makes_a_draft_checkpoint_doubtful_is_told(fields: dict[str, Any], expected: str) -> None:
    assert expected in " ".join(parse_json(drafted(**fields)).doubts())


def test_acceptance_is_given_once(tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text(json.dumps(GOOD), encoding="utf-8")
    (tmp_path / "bare.csv").write_text("batch_size,k,itl_ms\n1,0,6.5\n1,3,8.8\n", encoding="utf-8")
    (tmp_path / "speculation_profile.json").write_text(json.dumps(DRAFTER), encoding="utf-8")

    (tmp_path / "full.csv").write_text(CSV, encoding="utf-8")
    for name in ("grid.json", "full.csv"):
        with pytest.raises(GridError, match="give exactly one of acceptanceLength"):
            read_grid(tmp_path / name, tmp_path / "speculation_profile.json")
    bare = read_grid(tmp_path / "bare.csv", tmp_path / "speculation_profile.json")
    assert bare.surface().acceptance == {0: 1, 3: 2.27}


# suspects


def slower(ms: float, k: int = 1, size: int = 8) -> GivenGrid:
    """A plausible grid of 1, 8, 64 requests and K = 0, 1, 3, but for one cell."""
    rows = {1: [6.5, 7.4, 8.8], 8: [6.8, 8.0, 10.0], 64: [7.8, 9.7, 13.5]}
    rows[size][[0, 1, 3].index(k)] = ms
    return parse_json(edited(batchSizes=list(rows), itlMs=list(rows.values()), baselineItlMs=[6.2, 6.5, 7.4]))


def test_a_cell_far_from_both_neighbours_is_suspect() -> None:
    assert suspects(slower(8.0)) == ()
    assert suspects(slower(6.0)) == ()
    assert suspects(slower(0.8)) == (
        "batch size 8, K = 1: 9.25 times faster than at both batch size 1 and 64: suspect; measure it again",
    )
    assert suspects(slower(80)) == (
        "batch size 8, K = 1: 8.25 times slower than at both batch size 1 and 64: suspect; measure it again",
    )
    assert "64, K = 1: 9.75 times faster than at both K 0 and 3" in suspects(slower(0.8, size=64))[0]


def test_a_suspect_does_not_make_its_neighbours_suspect() -> None:
    grid = parse_json(edited(batchSizes=[1, 2, 4, 8, 16], draftTokens=[0], itlMs=[[10], [20], [0.5], [40], [60]],
                             acceptancePerPosition=[], baselineItlMs=None))  # fmt: skip

    assert [text.split(":")[0] for text in suspects(grid)] == ["batch size 4, K = 0"]


def test_the_baseline_may_be_suspect_and_a_goodput_may_peak_at_some_k() -> None:
    peak = parse_json('{"batchSizes": [1], "draftTokens": [0, 2, 4], "tokensPerSecond": [[100, 200, 110]]}')
    valley = parse_json('{"batchSizes": [1], "draftTokens": [0, 2, 4], "tokensPerSecond": [[100, 50, 110]]}')
    grid = parse_json(edited(batchSizes=[1, 8, 64], itlMs=[[6.5, 7.4, 8.8]] * 3, baselineItlMs=[6.2, 65, 7.4]))

    assert suspects(peak) == ()
    assert suspects(valley) == (
        "batch size 1, K = 2: 2 times slower than at both K 0 and 4: suspect; measure it again",
    )
    assert "batch size 8, the baseline: 8.78 times slower" in suspects(grid)[0]


# whatever a file holds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (edited(itlMs=[[6.5, 7.4, 8.8], [7.8, 10**400, 3]]), r"itlMs\[1\]\[1\]: 1000\d*\.\.\. is not a number"),
        (edited(batchSizes=[1, 10**400]), r"batchSizes: 1000\d*\.\.\. is above 1000000"),
        (edited(draftTokens=[0, 1, 999]), "draftTokens: 999 is above 128"),
        (edited(baselineItlMs=0), "baselineItlMs: must be a list"),
        (edited(baselineItlMs={}), "baselineItlMs: must be a list"),
        (edited(baselineItlMs=[]), "baselineItlMs: 0 values, but batchSizes has 2"),
        (edited(itlMs=[[6.5, 7.4, 8.8], [7.8, 1e-320, 3]]), r"itlMs\[1\]\[1\]: 9.9\d*e-321 is no duration"),
        (edited(baselineItlMs=[6.2, float("inf")]), r"baselineItlMs\[1\]: inf is no duration"),
        (edited(tokensPerSecond=[[1, 2, 3]] * 2), "give one of itlMs and tokensPerSecond"),
        (edited(baselineTokensPerSecond=[1, 2]), "give one of baselineItlMs and baselineTokensPerSecond"),
        (edited(per="core"), "per: must be 'engine' or 'request'"),
        ('{"batchSizes": [' + "9" * 5000 + "]}", "no JSON that can be read: Exceeds the limit"),
        ("[" * 100_000, "no JSON that can be read: maximum recursion depth|a grid is a JSON object"),
    ],
)  # fmt: skip
def test_a_json_of_extremes_is_told_by_field(text: str, expected: str) -> None:
    with pytest.raises(GridError, match=expected):
        parse_json(text)


def test_a_csv_of_extremes_is_told_by_line() -> None:
    with pytest.raises(GridError, match=r"line 2: no valid CSV: field larger than field limit"):
        parse_csv("batch_size,k,itl_ms\n1,0," + "9" * 200_000)
    with pytest.raises(GridError, match=r"line 2: batch_size: '9999.*\.\.\. is not a whole number"):
        parse_csv("batch_size,k,itl_ms\n" + "9" * 5000 + ",0,1\n")
    with pytest.raises(GridError, match=r"line 1: the columns are .*; found x"):
        parse_csv("x" * 100_000 + ",k\n")


odd = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just(10**400), st.just(1e-320),
    st.just([]), st.just({}),
)  # fmt: skip
plausible = st.one_of(st.integers(0, 300), st.floats(0, 300))
values = st.one_of(odd, plausible, st.lists(st.one_of(odd, plausible), max_size=4))


@given(
    st.sampled_from(["json", "csv"]),
    st.dictionaries(st.sampled_from([*GOOD, "tokensPerSecond", "per", "acceptanceLength", "speculationProfile", "x"]),
                    st.one_of(values, st.lists(values, max_size=3), st.just(DRAFTER)), max_size=4),
    st.lists(st.lists(st.one_of(odd, plausible), min_size=2, max_size=5), max_size=5),
    st.booleans(),
    st.one_of(st.none(), st.integers(-5, 10**7)),
)  # fmt: skip
@settings(max_examples=300, deadline=2000)
def test_no_grid_whatever_it_holds_is_a_fault_of_the_tool(
    form: str, fields: dict[str, Any], lines: list[list[Any]], between: bool, last: int | None
) -> None:
    """It is a table, or it is refused in words; and what is printed is JSON that any reader takes."""
    text = json.dumps({**GOOD, **fields})
    if form == "csv":
        text = CSV + "\n".join(",".join("" if value is None else str(value) for value in line) for line in lines)
    try:
        grid = parse_json(text) if form == "json" else parse_csv(text)
    except GridError as error:
        told = str(error)
    else:
        told = table_of(grid, between, last)
    assert len(told) < 2000


def table_of(grid: GivenGrid, between: bool, last: int | None) -> str:
    """Makes the table and all that is said of it; the words with which that is refused, if it is."""
    try:
        rows = rows_from_grid(grid, interpolate_k=between, max_batch=last)
    except ValueError as error:
        return re.fullmatch("(max_batch|interpolate_k): .+", str(error))[0]  # type: ignore[index]
    ratios = over_baseline(grid, rows, interpolate_k=between)
    assert rows[0].first == 1 and all(math.isfinite(ratio) and ratio > 0 for ratio in ratios.values())
    return "".join(suspects(grid))
