"""Prompts: read with errors that name the line, tokenized as served, cut and joined to what a measurement needs."""

import asyncio
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from devcluster.pace import patience
from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.contract.request import HubDataset, PromptSource, Workload
from specserve_profiler.prompts.datasets import choose_files
from specserve_profiler.prompts.entries import Entry, NoPromptError, csv_rows, entries_of, parse
from specserve_profiler.prompts.workload import Prompts, cohort_prompt_tokens, cut, load, tokenize

NEVER_SHOWN = "my diagnosis"


def chat(text: str, *messages: dict[str, Any], **more: Any) -> Entry:
    """A chat as the engine is asked for its tokens; ``text`` is what the user says last."""
    return Entry(text, json.dumps({"messages": messages, **more}, ensure_ascii=False))


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def user(text: str) -> Entry:
    return chat(text, said("user", text))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "Once"}, Entry("Once")),
        ({"text": "Once"}, Entry("Once")),
        ({"question": "Why?"}, user("Why?")),
        ({"turns": ["First", "Second"]}, user("First")),  # MT-Bench
        (
            {
                "conversations": [
                    {"from": "system", "value": "be brief"},
                    {"from": "human", "value": "Hello?"},
                    {"from": "gpt", "value": "Hi."},
                    {"from": "human", "value": "Bye."},
                ]
            },
            chat("Hello?", said("system", "be brief"), said("user", "Hello?")),
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "One"},
                    {"role": "assistant", "content": None, "tool_calls": []},
                    {"role": "user", "content": [{"type": "text", "text": "T"}, {"type": "text", "text": "wo"}]},
                    {"role": "assistant", "content": "the answer that is not to be given away"},
                ]
            },
            chat(
                "Two",
                said("user", "One"),
                said("assistant", None, tool_calls=[]),
                said("user", [{"type": "text", "text": "T"}, {"type": "text", "text": "wo"}]),
            ),
        ),
    ],
)
def test_each_form_of_a_prompt_is_read(row: dict[str, Any], expected: Entry) -> None:
    assert entries_of(row) == [expected]


def test_a_column_can_be_named() -> None:
    assert entries_of({"prompt": "no", "story": "yes"}, "story") == [user("yes")]
    with pytest.raises(NoPromptError, match="has no column tale; its columns: prompt, story"):
        entries_of({"prompt": "no", "story": "yes"}, "tale")


def write(directory: Path, content: str | bytes) -> PromptSource:
    path = directory / "prompts.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return PromptSource(path=str(path))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "prompts.jsonl holds no prompt"),
        ("[]", "prompts.jsonl holds no prompt"),
        ('{"prompt": "fine"}\n{"prompt": 3}\n', "prompts.jsonl, line 2: prompt is neither a text nor a list"),
        ('{"prompt": "fine"}\n\n{"role": "my diagnosis"}\n', "prompts.jsonl, line 3: neither"),
        ('{"prompt": "fine"}\nmy diagnosis\n', r"line 2: not JSON \(column 1\); write one JSON object a line"),
        (b'{"prompt": "fine"}\n{"prompt": "my diagnosis \xff"}', r"line 2: not JSON \(byte 26 is not UTF-8\)"),
        ('{"conversations": [{"from": "gpt", "value": "my diagnosis"}]}\n', "line 1: conversations has no human turn"),
        ('{"messages": [{"role": "system", "content": "x"}]}\n', "line 1: messages has no message of role user"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}\n', "line 1: .*only texts are measured"),
        ('["my diagnosis"]\n["x"]\n', r"line 1: neither"),
        ('[{"prompt": "fine"},\n {"prompt": my diagnosis}]', r"line 2: not JSON \(column 13\)"),
        ('[{"prompt": "fine"}, {"promptly": "my diagnosis"}]', r"prompts.jsonl, entry 2: neither"),
        ('{"prompt": "  "}\n', r"line 1: prompt holds an empty text"),
        ("[" * 200000, r"line 1: not JSON \(nested too deeply\)"),
        ('{"prompt": ' + "9" * 6000 + "}", r"line 1: not JSON \(a number is too long\)"),
        (
            '{"prompt": "my diagnosis"}\n' * 9,
            "holds 1 distinct prompt: give at least 4, better twice the largest batch",
        ),
    ],
)
async def test_a_bad_file_is_refused_with_file_and_line_and_without_its_content(
    tmp_path: Path, content: str | bytes, expected: str
) -> None:
    with pytest.raises(ProfilingError, match=expected) as caught:
        await load(write(tmp_path, content))
    assert caught.value.reason == "PromptsInvalid"
    assert NEVER_SHOWN not in str(caught.value) and NEVER_SHOWN not in repr(caught.value.__cause__)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'\xef\xbb\xbf{"prompt": "one"}\r\n\r\n{"prompt": "two"}\r\n', ["one", "two"]),  # as Windows saves it
        ('{"prompt": "a\u2028b\u0085c"}\n'.encode(), ["a\u2028b\u0085c"]),  # no ends of lines in JSON
        (b'{"prompt": "half \\ud800"}\n', ["half ?"]),
        (b' [{"prompt": "one"},\n {"prompt": "two"}]', ["one", "two"]),
    ],
)
def test_what_editors_and_corpora_leave_in_a_file_is_read(content: bytes, expected: list[str]) -> None:
    entries, without = parse(content, "file", strict=True)
    assert ([entry.text for entry in entries], without) == (expected, 0)


async def test_a_dump_of_conversations_is_read_without_those_that_nobody_began(tmp_path: Path) -> None:
    turns = [[{"from": "human", "value": f"Hello {i}"}] for i in range(5)]
    rows = [{"id": "x", "conversations": turn} for turn in [*turns, [], [{"from": "gpt", "value": "Hi"}]]]
    told: list[str] = []

    entries = await load(write(tmp_path, json.dumps(rows)), told.append)

    assert entries == [user(f"Hello {i}") for i in range(5)]
    assert told == [f"5 prompts from {tmp_path}/prompts.jsonl; 2 more have no prompt and are left out"]


async def test_a_missing_file_is_named() -> None:
    with pytest.raises(ProfilingError, match=r"prompts /x/nowhere\.jsonl cannot be read: No such file or directory"):
        await load(PromptSource(path="/x/nowhere.jsonl"))


def test_reading_that_hangs_does_not_outlive_being_asked_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, read = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        answer.wait(patience(20))
        read.set()

    async def within() -> None:
        await asyncio.wait_for(load(PromptSource(hub=HubDataset(name="some/where"))), 0.1)

    monkeypatch.setattr("specserve_profiler.prompts.workload.read_hub", hang)
    with pytest.raises(TimeoutError):
        asyncio.run(within())  # the end of its loop does not wait either
    assert not read.is_set()
    answer.set()


def test_csv_fields_may_hold_lists() -> None:
    rows = [{"turns": '["First", "Second"]'}, {"turns": "[sic] a text"}]
    assert [entries_of(row)[0].text for _, row in csv_rows(rows, "x.csv")] == ["First", "[sic] a text"]


FILES = [
    "README.md",
    ".gitattributes",
    "dataset_infos.json",
    "data/train-00001-of-00002.parquet",
    "data/train-00000-of-00002.parquet",
    "data/test-00000-of-00001.parquet",
]


@pytest.mark.parametrize(
    ("names", "dataset", "expected"),
    [
        (FILES, {}, ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]),
        (FILES, {"split": "test"}, ["data/test-00000-of-00001.parquet"]),
        (["question.jsonl", "README.md"], {}, ["question.jsonl"]),  # MT-Bench: no split is named, so it is train
        (["a/train.jsonl", "b/train.jsonl"], {"config": "b"}, ["b/train.jsonl"]),
        (["main-train.csv", "other-train.csv"], {"config": "main"}, ["main-train.csv"]),
        (["train_sft.json", "train_gen.json"], {"split": "train"}, ["train_gen.json", "train_sft.json"]),
    ],
)
def test_the_files_of_a_split(names: list[str], dataset: dict[str, str], expected: list[str]) -> None:
    assert choose_files(names, HubDataset(name="o/d", **dataset)) == expected


def test_a_split_that_is_not_there_is_refused_with_what_is() -> None:
    with pytest.raises(ProfilingError, match=r"o/d: no .* file of split 'dev'; its data files: data/test-00000-of"):
        choose_files(FILES, HubDataset(name="o/d", split="dev"))


class Words:
    """Tokenizes into the lengths of words; its chat template puts 1 before and 2, 3 after each message."""

    def __init__(self, template: bool = True) -> None:
        self.template = template

    async def tokenize(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    async def tokenize_chat(self, chat: Mapping[str, Any]) -> list[int] | None:
        if not self.template:
            return None
        return [t for m in chat["messages"] for t in (901, *map(len, m["content"].split()), 902, 903)]


WORKLOAD = Workload(prompt_tokens=6, output_tokens=10)


async def test_prompts_are_drawn_by_the_seed_and_every_fourth_is_held_out() -> None:
    entries = [Entry(f"{i} 0") for i in range(40)]

    prompts = await tokenize(entries, Words(), WORKLOAD, 100)
    again = await tokenize(entries, Words(), WORKLOAD, 100)
    other = await tokenize(entries, Words(), WORKLOAD.model_copy(update={"seed": 1}), 100)

    assert (len(prompts.ids), len(prompts.heldout.ids), prompts.distinct) == (30, 10, 40)
    assert {*prompts.ids, *prompts.heldout.ids} == {(i, 0) for i in range(40)}
    assert prompts == again != other
    assert prompts.ids != tuple(sorted(prompts.ids))
    assert prompts.reuse_warning(20) is None
    assert prompts.reuse_warning(21) == (
        "the workload has 40 distinct prompts, fewer than twice the largest batch size 21: "
        "they are reused within a batch, and a prefix cache knows them"
    )


async def test_few_prompts_verify_what_they_measured_and_say_so() -> None:
    prompts = await tokenize([Entry(f"{i} 0") for i in [*range(8), *range(8)]], Words(), WORKLOAD, 100)

    assert prompts.heldout == prompts and prompts.distinct == 8
    assert (prompts.reuse_warning(4) or "").startswith("the workload has only 8 distinct prompts; none is held out")


async def test_a_chat_is_what_the_template_makes_of_it_and_keeps_its_end_when_it_is_cut() -> None:
    entries = [user("a " * i + "bb") for i in range(9)]

    prompts = await tokenize(entries, Words(), WORKLOAD, 100)

    # Up to six tokens: of those longer the text is cut, never what tells the model to reply.
    assert sorted(prompts.ids) == [
        (901, 1, 1, 1, 902, 903),
        (901, 1, 1, 2, 902, 903),
        (901, 1, 2, 902, 903),
        (901, 2, 902, 903),
    ]


async def test_without_a_chat_template_the_last_user_text_is_the_prompt_and_that_is_said() -> None:
    told: list[str] = []
    entries = [chat(f"{i} 7", said("system", "brief"), said("user", f"{i} 7")) for i in range(4)]

    prompts = await tokenize(entries, Words(template=False), WORKLOAD, 100, told.append)

    assert sorted(prompts.ids) == [(0, 7), (1, 7), (2, 7), (3, 7)]
    assert told == ["the model has no chat template: of each chat, what the user says last is the prompt"]


async def test_an_output_fits_after_every_prompt() -> None:
    prompts = await tokenize([Entry(f"{i} " * 9) for i in range(4)], Words(), WORKLOAD, 13)
    assert {len(ids) for ids in prompts.ids} == {3}


async def test_prompts_that_are_the_same_once_they_are_cut_are_too_few() -> None:
    with pytest.raises(ProfilingError, match=r"each prompt cut to 6 tokens, holds 1 distinct prompt: give at least 4"):
        await tokenize([Entry(f"1 2 3 4 5 6 {i}") for i in range(40)], Words(), WORKLOAD, 100)
    with pytest.raises(ProfilingError, match="no prompt has a single token"):
        await tokenize([Entry(" "), Entry("  ")], Words(), WORKLOAD, 100)


def test_entries_and_prompts_do_not_show_what_they_hold() -> None:
    assert NEVER_SHOWN not in repr(user(NEVER_SHOWN))
    assert "4711" not in repr(Prompts(((4711,),), ((4711,),)))


def test_a_prompt_is_cut_in_front_of_the_templates_end() -> None:
    assert cut([1, 2, 3, 4, 5], 5, 2) == (1, 2, 3, 4, 5)
    assert cut([1, 2, 3, 4, 5], 4, 2) == (1, 2, 4, 5)
    assert cut([1, 2, 3, 4, 5], 2, 2) == (1, 2)  # no room for a text
    assert cut([1, 2, 3], 2) == (1, 2)


def test_a_batch_goes_round_and_a_cohort_has_equal_lengths_of_real_text_and_distinct_beginnings() -> None:
    prompts = Prompts(((1, 2, 3), (4, 5, 6, 7), (8, 9)))

    assert prompts.mean_tokens == 3
    assert prompts.batch(4, 2) == [[8, 9], [1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert prompts.cohort(3, 7, start=0) == [[1, 2, 3, 4, 5, 6, 7], [4, 5, 6, 7, 8, 9, 1], [8, 9, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("mean_context", "window", "room", "expected"),
    [(96, 60, 62, 66), (96, 400, 402, 8), (1000, 60, 62, 962)],
)
def test_the_window_of_a_cohort_has_the_mean_context_of_the_workload(
    mean_context: float, window: float, room: int, expected: int
) -> None:
    assert cohort_prompt_tokens(mean_context, window, 1024, room) == expected
