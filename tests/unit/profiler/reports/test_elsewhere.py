"""Tables of other engines: what each form means, and what cannot be said in it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve_profiler.contract.profile import Row
from specserve_profiler.contract.request import Speculation
from specserve_profiler.reports.elsewhere import Elsewhere, look, recognise, rows_of, write
from specserve_profiler.reports.lint import lint_rows

EAGLE = Speculation(method="eagle3", model="org/d", revision="abc", max_tokens=4)
NGRAM = Speculation(method="ngram", max_tokens=4)


def rows(*table: tuple[int, int, int]) -> list[Row]:
    return [Row(first=first, last=last, k=k) for first, last, k in table]


def said(engine: Elsewhere, value: object) -> list[str]:
    return [str(finding) for finding in look(engine, value, 64)]


def tensorrt(schedule: dict[int, int], size: int) -> int:
    """K as TensorRT-LLM looks it up: the smallest key that is no smaller; above all of them 0."""
    return next((k for key, k in sorted(schedule.items()) if key >= size), 0)


def sglang(config: dict[str, Any], size: int) -> int:
    """Steps as SGLang looks them up, no graph in between: the largest key that is no larger, or the smallest."""
    keys = sorted(map(int, config))
    key = max([key for key in keys if key <= size], default=keys[0])
    (step,) = config[str(key)]["candidate_steps"]
    return int(step)


def test_the_example_of_tensorrt_llm_reads_as_its_documentation_says() -> None:
    """Batch sizes 1-4: 4, 5-8: 2, 9-32: 1, 33 and more: 0."""
    assert rows_of("trtllm", {4: 4, 8: 2, 32: 1}, 64) == [[1, 4, 4], [5, 8, 2], [9, 32, 1], [33, 64, 0]]
    assert rows_of("trtllm", {4: 4, 8: 2, 32: 1}) == [[1, 4, 4], [5, 8, 2], [9, 32, 1], [33, 33, 0]]
    assert rows_of("trtllm", {4: 4, 8: 2, 32: 1}, 32) == [[1, 4, 4], [5, 8, 2], [9, 32, 1]]


def test_a_schedule_that_the_older_form_would_take_is_told_in_both_meanings() -> None:
    """There, {1: 4, 4: 2, 8: 0} was 4 from 1 on, 2 from 4 on, none from 8 on."""
    told = " ".join(said("trtllm", {"draft_len_schedule": {1: 4, 4: 2, 8: 0}}))

    assert "write [[1, 1, 4], [2, 4, 2], [5, 8, 0]], and measure it for vLLM" in told
    assert (
        "for an older release, where a key was the first batch size, write [[1, 3, 4], [4, 7, 2], [8, 64, 0]]" in told
    )


def test_the_default_of_sglang_is_several_steps_and_no_table() -> None:
    config = {"1": {"candidate_steps": [1, 3, 7]}, "8": {"candidate_steps": [0, 1, 3]}, "64": {"candidate_steps": [0]}}

    assert recognise(config) == "sglang" and rows_of("sglang", config) is None
    assert any("SGLang chooses among several steps by what is accepted" in line for line in said("sglang", config))
    assert any(line.startswith('warning: "8": 0 steps are refused by SGLang 0.5.13') for line in said("sglang", config))


def test_keys_of_sglang_are_first_batch_sizes_and_the_first_holds_below_it() -> None:
    config = {"ema_alpha": 0.2, "4": {"candidate_steps": [3]}, "16": {"candidate_steps": [1]}}

    assert rows_of("sglang", config, 64) == [[1, 15, 3], [16, 64, 1]]
    assert any("smaller batch sizes use its steps too" in line for line in said("sglang", config))


@pytest.mark.parametrize(
    ("engine", "value", "expected"),
    [
        ("sglang", [[1, 4, 2]], "error: table: is no object of batch sizes"),
        ("sglang", {"ema_alpha": 0.2}, "error: table: has no batch size among its keys"),
        ("sglang", {"1": {}}, 'error: "1": candidate_steps must be a list of whole numbers from 0 on'),
        ("sglang", {"1": {"candidate_steps": [-1]}}, 'error: "1": candidate_steps must be a list of whole numbers'),
        ("sglang", {"candidate_steps": [[]]}, 'error: "candidate_steps": candidate_steps must be a list of whole'),
        ("sglang", {"candidate_steps": [1, 3]}, "warning: candidate_steps: have no batch sizes: the form of SGLang"),
        ("trtllm", {}, "error: draft_len_schedule: is no object of batch sizes"),
        ("trtllm", {"draft_len_schedule": [4]}, "error: draft_len_schedule: is no object of batch sizes"),
        ("trtllm", {"draft_len_schedule": {"x": 4}}, 'error: "x": is no batch size from 1 on'),
        ("trtllm", {0: 4}, "error: 0: is no batch size from 1 on"),
        ("trtllm", {4: -1}, "error: 4: -1 is no draft length"),
        ("trtllm", {4: 2, 8: 4}, "error: draft_len_schedule: its smallest batch size must have max_draft_len"),
        ("trtllm", {"max_draft_len": 5, "draft_len_schedule": {4: 4}}, "error: draft_len_schedule: does not begin"),
        ("trtllm", {"max_concurrency": 8, "draft_len_schedule": {4: 4}}, "error: max_concurrency: excludes draft_len"),
    ],
)  # fmt: skip
def test_what_the_other_engine_refuses(engine: Elsewhere, value: object, expected: str) -> None:
    assert any(line.startswith(expected) for line in said(engine, value)), said(engine, value)


@pytest.mark.parametrize(
    ("engine", "table", "speculation", "why"),
    [
        ("sglang", rows((1, 8, 2)), NGRAM, "takes EAGLE and EAGLE3, not ngram"),
        ("sglang", rows((1, 8, 0)), EAGLE, "every K is 0: serve without speculation"),
        ("trtllm", rows((1, 4, 2), (5, 8, 4)), EAGLE, "wants its largest K at the smallest batch sizes"),
    ],
)
def test_what_another_engine_has_no_form_for_is_refused(
    engine: Elsewhere, table: list[Row], speculation: Speculation, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        write(engine, table, speculation)


def test_what_does_not_carry_over_is_said() -> None:
    zero = rows((1, 8, 4), (9, 64, 0))

    assert any(
        "for SGLang 0.5.14 or newer, older ones refuse K = 0" in note for note in write("sglang", zero, EAGLE).notes
    )
    assert "abc" in write("sglang", zero, EAGLE).arguments
    assert any("revision of the draft model has no place" in note for note in write("trtllm", zero, EAGLE).notes)
    for engine in ("sglang", "trtllm"):
        assert "a table of vLLM is not right for" in write(engine, zero, EAGLE).notes[0]  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=5))
def test_every_batch_size_keeps_its_k(parts: list[tuple[int, int, int]]) -> None:
    """Parts are (width, K, gap after it); vLLM carries a row's K over a gap."""
    table, at = [], 1
    for width, k, gap in parts:
        table.append((at, at + width - 1, k))
        at += width + gap
    end = table[-1][1]
    wanted = [max(row for row in table if row[0] <= size)[2] for size in range(1, end + 1)]
    if not any(wanted):
        return

    config = write("sglang", rows(*table), EAGLE).config
    assert [sglang(config, size) for size in range(1, end + 1)] == wanted
    assert wanted == _ks(rows_of("sglang", config, end), end)
    if wanted[0] == max(wanted):
        inner = write("trtllm", rows(*table), EAGLE).config["speculative_config"]
        assert [tensorrt(inner["draft_len_schedule"], size) for size in range(1, end + 1)] == wanted
        assert wanted == _ks(rows_of("trtllm", inner, end), end)


def _ks(table: list[list[int]] | None, end: int) -> list[int]:
    assert table is not None and not [finding for finding in lint_rows(table) if finding.level == "error"]
    return [next(k for first, last, k in table if first <= size <= last) for size in range(1, end + 1)]


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_keys_of_vllm_alone_are_told_to_be_left_out(engine: Elsewhere) -> None:
    further = EAGLE.model_copy(update={"config": {"attention_backend": "FLASH_ATTN", "max_model_len": 64}})

    written = write(engine, rows((1, 8, 4), (9, 32, 1)), further)

    assert written.notes[-1] == "left out, for they are vLLM's: attention_backend=FLASH_ATTN max_model_len=64"
    assert "FLASH_ATTN" not in written.text + " ".join(written.arguments)
    assert not any("left out" in note for note in write(engine, rows((1, 8, 4), (9, 32, 1)), EAGLE).notes)
