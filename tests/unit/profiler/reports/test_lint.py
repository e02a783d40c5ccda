"""What is said of a table before any engine runs it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve_profiler.contract.profile import short_table
from specserve_profiler.decision.table import rows_of
from specserve_profiler.reports.lint import Finding, lint

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 20) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
OBJECT = "error: table: is an object, vLLM takes a list of [first, last, K] only"


def said(text: str, max_num_seqs: int | None = None) -> list[str]:
    return [str(finding) for finding in lint(text, max_num_seqs)]


def errors(text: str) -> list[Finding]:
    return [finding for finding in lint(text) if finding.level == "error"]


@pytest.mark.parametrize(
    "text",
    [
        "1-16:4 17-64:2",
        "1-16:4, 17-64:2",
        "[[1, 16, 4], [17, 64, 2]]",
        '{"method": "eagle3", "model": "d", "num_speculative_tokens": 4, "num_speculative_tokens_per_batch_size": [[1,64,4]]}',  # noqa: E501
    ],
)
def test_nothing_is_said_of_what_is_well(text: str) -> None:
    assert lint(text, 64, "0.32.0") == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", "error: table: is empty: vLLM's parser takes it, and what follows fails or ignores it; leave"),
        ("[[1, 16]]", "error: [1, 16]: is no row of three; write [first batch size, last batch size, K]"),
        ("[[1, 16, 3.5]]", "error: [1, 16, 3.5]: holds something that is no whole number"),
        ('[[1, "many", 3]]', 'error: [1, "many", 3]: holds something that is no whole number'),
        ("[[0, 16, 3]]", "error: [0, 16, 3]: batch sizes begin at 1; write [1, 16, 3]"),
        ("[[1, 4, 3], [9, 5, 2]]", "error: [9, 5, 2]: begins above its end; write [5, 9, 2]"),
        ("[[1, 4, -1]]", "error: [1, 4, -1]: K cannot be below 0; write 0"),
        ("[[2, 4, 3]]", "error: [2, 4, 3]: the first row must begin at batch size 1; write [1, 4, 3]"),
        ("1-16:4 16-64:2", "error: [16, 64, 2]: overlaps [1, 16, 4]; let one end before 16 or the other begin at 17"),
        ('{"1-4": 3, "5-9": 2}', OBJECT + "; write [[1, 4, 3], [5, 9, 2]]"),
        ("7", "error: table: must be a list of [first, last, K]; write [[1, 16, 4], [17, 64, 2]]"),
        ("1-16:4 17-64", "error: 17-64: is no row: first-last:K; write"),
        ("[[1, 16, 4],\n[17 64, 2]]", "error: line 2: no valid JSON"),
        ("", "error: line 1: no valid JSON"),
    ],
)  # fmt: skip
def test_what_vllm_refuses_is_an_error_with_the_way_out(text: str, expected: str) -> None:
    assert said(text)[0].startswith(expected)


def test_a_schedule_of_tensorrt_llm_is_translated_without_changing_its_meaning() -> None:
    """There, K is 0 above the last batch size; in vLLM the last K would go on."""
    schedule = {"4": 4, "8": 2, "32": 1}
    for text in (json.dumps(schedule), config(num_speculative_tokens=4, draft_len_schedule=schedule)):
        (finding,) = errors(text)
        assert "K is 0 above the last batch size, in vLLM the last K goes on" in finding.message
        assert finding.fix.startswith("write [[1, 4, 4], [5, 8, 2], [9, 32, 1]], with [33, maxNumSeqs, 0] at its end")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[["1", 16, 4.0]]', 'warning: ["1", 16, 4.0]: vLLM reads it as [1, 16, 4]; write whole numbers'),
        ("17-64:2 1-16:4", "warning: table: its rows are not in order; vLLM sorts them; write [[1, 16, 4], "),
        ("1-16:4 32-64:2", "warning: [1, 16, 4]: nothing is said of batch sizes 17 to 31; vLLM carries K = 4 on"),
        ("1-16:4 17-64:0", "warning: [17, 64, 0]: K = 0 still runs the drafter, 4 to 11% slower"),
        ("1-16:4 17-20:3 21-64:1", "warning: [17, 20, 3]: is only 4 wide: running requests swing by a few"),
        ("1-16:99", "warning: [1, 16, 99]: K = 99 is above 16; write 16 at most"),
        ("1-16:4 17-64:4", "warning: [17, 64, 4]: has the K of the row before; write [1, 64, 4]"),
    ],
)  # fmt: skip
def test_what_vllm_takes_in_another_way_than_meant_is_a_warning(text: str, expected: str) -> None:
    assert said(text)[0].startswith(expected)
    assert not errors(text)


def test_a_table_is_held_against_max_num_seqs() -> None:
    assert said("1-16:4 17-64:2", 256)[0].startswith(
        "warning: [17, 64, 2]: ends below max_num_seqs 256; vLLM carries K = 2 on; write [17, 256, 2]"
    )
    assert said("1-16:4 17-64:2", 8)[0].startswith(
        "warning: [17, 64, 2]: begins above max_num_seqs 8: it is never used"
    )
    assert said("1-16:4 17-64:2", 64) == []


def config(**fields: object) -> str:
    return json.dumps({"method": "eagle3", "model": "org/drafter", **fields})


def test_k_above_kmax_is_told_for_vllm_does_not() -> None:
    text = config(num_speculative_tokens=3, num_speculative_tokens_per_batch_size=[[1, 16, 5], [17, 64, 2]])

    assert any("K = 5 is above num_speculative_tokens 3; vLLM drafts 3 and says nothing" in line for line in said(text))


def test_a_kmax_that_no_row_uses_is_told() -> None:
    text = config(num_speculative_tokens=8, num_speculative_tokens_per_batch_size=[[1, 16, 5]])

    assert any("8 is above every K of the table; set it to 5" in line for line in said(text))


@pytest.mark.parametrize("kmax", [0, -1, "five", 2.5, True])
def test_kmax_must_be_a_number_of_draft_tokens(kmax: object) -> None:
    assert errors(config(num_speculative_tokens=kmax))[0].where == "num_speculative_tokens"


def test_kmax_must_be_there_unless_vllm_finds_it() -> None:
    assert [finding.message for finding in errors(config())] == ["is missing"]
    assert not errors('{"method": "mtp", "model": "d"}')
    assert not errors('{"method": "suffix"}')
    assert [finding.where for finding in errors('{"method": "mtp"}')] == ["num_speculative_tokens"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"method": "eagle3", "num_speculative_tokens": 4}', "error: model: is missing: method eagle3 loads a model"),
        ('{"num_speculative_tokens": 4}', "error: model: is missing: vLLM takes method draft_model, which loads a"),
        ('{"method": "eagle4", "model": "d", "num_speculative_tokens": 4}', 'error: method: "eagle4" is no method of'),
        ('{"method": "ngram", "num_speculative_token": 4}', "error: num_speculative_token: is no key of vLLM's"),
        ('{"method": "ngram", "num_speculative_tokens": null}', "error: num_speculative_tokens: is missing"),
        ('{"method": "mtp", "num_speculative_tokens": null}', "error: num_speculative_tokens: is missing"),
        ('{"method": "ngram", "num_speculative_tokens": "4"}', 'warning: num_speculative_tokens: vLLM reads "4" as 4'),
        ('{"method": "mtp", "model": "d"}', "warning: model: takes the place of the target's own heads: method mtp"),
        ('{"method": "deepseek_mtp"}', 'warning: method: vLLM reads "deepseek_mtp" as mtp; write mtp'),
        ('{"method": []}', "error: method: [] is no name of a method"),
        ('{"method": 5, "model": "d", "num_speculative_tokens": 4}', "error: method: 5 is no name of a method"),
        ('{"method": "eagle3", "model": 5, "num_speculative_tokens": 4}', "error: model: 5 is no name of a model"),
    ],
)  # fmt: skip
def test_what_vllm_makes_of_a_config(text: str, expected: str) -> None:
    assert any(line.startswith(expected) for line in said(text)), said(text)


def test_a_mistyped_key_is_told_before_what_it_makes_missing() -> None:
    text = config(num_speculative_tokns=4, num_speculative_tokens_per_batch_size=[[1, 64, 4]])

    assert [finding.where for finding in errors(text)] == ["num_speculative_tokns", "num_speculative_tokens"]
    assert errors(text)[0].fix == "write num_speculative_tokens"


def test_dashes_are_taken_for_underscores_as_vllm_takes_them() -> None:
    text = config(**{"num-speculative-tokens": 4, "num-speculative-tokens-per-batch-size": [[1, 64, 5]]})

    (line,) = said(text)
    assert line.startswith("warning: [1, 64, 5]: K = 5 is above num_speculative_tokens 4; vLLM drafts 4")


def test_a_key_that_another_version_may_know_is_no_error_there() -> None:
    text = config(num_speculative_tokens=4, of_the_future=1)

    assert [finding.level for finding in lint(text, None, "0.32.1") if finding.where == "of_the_future"] == ["error"]
    assert [finding.level for finding in lint(text, None, "0.33.0") if finding.where == "of_the_future"] == ["error"]
    assert [finding.level for finding in lint(text, None, "0.34.0") if finding.where == "of_the_future"] == ["warning"]


@pytest.mark.parametrize(
    "text", ["[[1, 16, 4]]", "1-16:4", '{"model": "d", "num_speculative_tokens": 4, "num_speculative_tokens_per_batch_size": [[1, 9, 4]]}']  # noqa: E501
)  # fmt: skip
def test_a_table_in_every_form_is_an_error_where_the_version_knows_none(text: str) -> None:
    assert [str(finding) for finding in lint(text, None, "0.23.0") if finding.level == "error"] == [
        "error: table: vLLM 0.23 knows no tables; use 0.24 or newer"
    ]
    assert not errors(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[1, 16, " + "9" * 5000 + "]]", "error: text: holds a number of more digits than vLLM's parser reads"),
        ('[[1, 16, "' + "9" * 5000 + '"]]', "holds something that is no whole number"),
        ("1-16:" + "9" * 5000, "error: line 1: no valid JSON"),
        ("[" * 100_000 + "]" * 100_000, "error: text: is nested too deep for a table or a config"),
        ('{"method": ' + "[" * 100_000, "error: text: is nested too deep for a table or a config"),
        ('{"' + "k" * 100_000 + '": 1}', "is no key of vLLM's speculative config"),
        ("[[1, 16, 1e400]]", "error: [1, 16, Infinity]: holds something that is no whole number"),
    ],
)  # fmt: skip
def test_endless_text_is_told_and_bounded(text: str, expected: str) -> None:
    told = said(text)

    assert expected in told[0]
    assert max(map(len, told)) < 1000


@pytest.mark.parametrize("text", ['{"4-1": 3}', '{"2-4": 3}', '{"1-4": 3, "3-9": 2}', '{"1-4": -1}', '{"0-4": 1}'])
def test_an_object_that_means_no_table_is_not_advised_as_one(text: str) -> None:
    (finding,) = errors(text)

    assert finding.fix.startswith("write [[1, 16, 4], [17, 64, 2]]: rows of [first, last, K]")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("[[5, -3, 2]]", "write [first, last, K] with batch sizes that no other row has"),
        ("[[1, 8, 4], [9, 5, 2]]", "write [first, last, K] with batch sizes that no other row has"),
        ("[[-2, 8, -1]]", "write [1, 8, 0]"),
    ],
)
def test_a_row_is_not_advised_over_another(text: str, fix: str) -> None:
    assert errors(text)[0].fix == fix


def test_a_method_that_breaks_with_a_table_is_an_error() -> None:
    text = '{"method": "ngram_gpu", "num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [[1, 9, 3]]}'

    assert [finding.where for finding in errors(text)] == ["method"]
    assert not errors('{"method": "ngram_gpu", "num_speculative_tokens": 3}')


def test_a_table_for_a_version_that_knows_none_is_an_error() -> None:
    text = config(num_speculative_tokens=5, num_speculative_tokens_per_batch_size=[[1, 16, 5]])

    assert any(
        finding.level == "error" and "knows no tables" in finding.message for finding in lint(text, None, "0.23.0")
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8), st.integers(100, 200)), min_size=1, max_size=3))
def test_a_table_of_ours_is_read_in_both_forms_and_has_no_error(runs: list[tuple[int, int]]) -> None:
    rows = rows_of(k for k, width in runs for _ in range(width))
    text = json.dumps([[row.first, row.last, row.k] for row in rows])

    assert lint(text, rows[-1].last) == lint(short_table(rows), rows[-1].last)
    assert not errors(text)


@settings(max_examples=200, deadline=None)
@given(ANY_JSON)
def test_nothing_breaks_the_lint(value: object) -> None:
    for finding in lint(json.dumps(value), 64):
        assert finding.fix and finding.message


NUMBER = st.integers(-2, 12) | st.sampled_from(["3", "x", 2.0, 2.5, None, 10**30])
TABLES = st.lists(st.lists(NUMBER, min_size=3, max_size=3) | st.lists(NUMBER, max_size=4), min_size=1, max_size=4)


def advised(finding: Finding) -> list[object] | None:
    """The JSON that a finding says to write, where it says so."""
    if not finding.fix.startswith("write [") or finding.where == "text":
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(finding.fix.removeprefix("write "))
    except ValueError:
        return None  # [first, last, K]
    assert isinstance(value, list)
    return value


@settings(max_examples=400, deadline=None)
@given(TABLES)
def test_what_is_advised_passes(table: list[list[object]]) -> None:
    for _ in range(8):
        before = errors(json.dumps(table))
        found = [finding for finding in before if advised(finding)]
        if not found:
            return
        value, places = advised(found[0]), [json.dumps(row) for row in table]
        assert value
        if isinstance(value[0], list):
            assert not errors(json.dumps(value))
            return
        if found[0].where not in places:
            return  # told as vLLM reads it
        table[places.index(found[0].where)] = value
        assert len(before) > 1 or not errors(json.dumps(table))
    raise AssertionError(f"no end: {table}")


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.from_regex(r"\A-?\d{1,2}(-\d{1,2})?\Z"), st.integers(-1, 9) | st.text(max_size=2), min_size=1)
)
def test_what_is_advised_for_an_object_passes(value: dict[str, object]) -> None:
    for finding in errors(json.dumps(value)):
        rows = advised(finding)
        assert rows is None or not errors(json.dumps(rows))


@settings(max_examples=200, deadline=None)
@given(TABLES)
def test_what_is_advised_in_a_warning_leaves_no_error(table: list[list[object]]) -> None:
    if errors(json.dumps(table)):
        return
    for finding in lint(json.dumps(table), 16):
        rows = advised(finding)
        if rows and isinstance(rows[0], list):
            assert not errors(json.dumps(rows))
