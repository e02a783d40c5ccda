"""Prompts: read with errors that name the line, cut and joined to what a measurement needs."""

import json
from pathlib import Path

import pytest

from specserve_profiler.errors import ProfilingError
from specserve_profiler.workload import Prompts, cohort_prompt_tokens, load_prompts


def test_prompts_and_sharegpt_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    turns = [
        {"from": "system", "value": "be brief"},
        {"from": "human", "value": "Hello?"},
        {"from": "gpt", "value": "Hi."},
    ]
    path.write_text(json.dumps({"prompt": "Once"}) + "\n\n" + json.dumps({"conversations": turns, "id": 1}) + "\n")

    assert load_prompts(path) == ["Once", "Hello?"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is empty"),
        ('{"prompt": "fine"}\n{"prompt": 3}\n', r"prompts.jsonl, line 2: neither"),
        ("hello\n", r"prompts.jsonl, line 1: not JSON"),
        ('{"conversations": [{"from": "gpt", "value": "Hi"}]}\n', r"line 1: neither"),
        ('["text"]\n', r"line 1: neither"),
        ('{"prompt": "  "}\n', r"line 1: neither"),
        ("[" * 200000, r"line 1: not JSON \(maximum recursion depth exceeded"),
        ('{"prompt": ' + "9" * 6000 + "}", r"line 1: not JSON \(Exceeds the limit"),
    ],
)
def test_a_bad_file_is_refused_with_file_and_line(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)

    with pytest.raises(ProfilingError, match=expected) as caught:
        load_prompts(path)
    assert caught.value.reason == "PromptsInvalid"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'\xef\xbb\xbf{"prompt": "one"}\r\n{"prompt": "two"}\r\n', ["one", "two"]),  # as Windows saves it
        ('{"prompt": "a\u2028b\u0085c"}\n'.encode(), ["a\u2028b\u0085c"]),  # no ends of lines in JSON
        (b'{"prompt": "half \\ud800"}\n', ["half ?"]),
    ],
)
def test_what_editors_and_corpora_leave_in_a_file_is_read(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)

    assert load_prompts(path) == expected


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfilingError, match=r"nowhere\.jsonl cannot be read"):
        load_prompts(tmp_path / "nowhere.jsonl")


def test_prompts_are_cut_shuffled_the_same_way_and_batched_round() -> None:
    tokenized = [[i] * (i + 1) for i in range(10)] + [[]]
    prompts = Prompts.cut(tokenized, 4)

    assert sorted(map(len, prompts.ids)) == [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]
    assert prompts == Prompts.cut(tokenized, 4)
    assert prompts.mean_tokens == 3.4
    assert prompts.batch(12, 8)[2] == list(prompts.ids[0])


def test_no_token_at_all_is_an_error() -> None:
    with pytest.raises(ProfilingError, match="no prompt has a single token"):
        Prompts.cut([[], []], 4)


def test_a_cohort_has_equal_lengths_of_real_text_and_distinct_beginnings() -> None:
    prompts = Prompts.cut([[1, 2, 3], [4, 5, 6, 7], [8, 9]], 10)
    cohort = prompts.cohort(3, 7, start=0)

    assert [len(ids) for ids in cohort] == [7, 7, 7]
    assert len({ids[0] for ids in cohort}) == 3
    first = [*prompts.ids[0], *prompts.ids[1], *prompts.ids[2], *prompts.ids[0]]
    assert cohort[0] == first[:7]


@pytest.mark.parametrize(
    ("mean_context", "window", "room", "expected"),
    [(96, 60, 62, 66), (96, 400, 402, 8), (1000, 60, 62, 962)],
)
def test_the_window_of_a_cohort_has_the_mean_context_of_the_workload(
    mean_context: float, window: float, room: int, expected: int
) -> None:
    assert cohort_prompt_tokens(mean_context, window, 1024, room) == expected
