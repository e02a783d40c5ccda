"""Forms of prompts that people have, as real datasets and tools write them; the texts are made up."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devcluster.pace import patience
from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.contract.request import PromptSource, Workload
from specserve_profiler.prompts.entries import Entry, NoPromptError, entries_of, parse
from specserve_profiler.prompts.workload import load, tokenize

PRIVATE = "my diagnosis"
ASK = {"role": "user", "content": "Weather in Oslo?"}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "rain"}


def asked(entries: list[Entry]) -> list[Any]:
    """What the engine is asked to make tokens of: a text, a chat, or nothing for token ids."""
    return [json.loads(entry.chat) if entry.chat else list(entry.ids) or entry.text for entry in entries]


def one(text: str) -> list[Any]:
    return [{"messages": [{"role": "user", "content": text}]}]


FORMS: dict[str, tuple[Any, list[Any]]] = {
    "a line that is a list of messages": ([ASK], one("Weather in Oslo?")),
    "MT-Bench question.jsonl": (
        {"question_id": 81, "category": "writing", "turns": ["Compose a post.", "Rewrite it."]},
        one("Compose a post."),
    ),
    "MT-Bench with reference": (
        {"question_id": 101, "category": "reasoning", "turns": ["Who is second?", "Last?"], "reference": ["You", "?"]},
        one("Who is second?"),
    ),
    "AIPerf, several turns": (
        {"session_id": "s1", "turns": [{"text": "Hello", "delay": 0}, {"text": "More", "delay": 100}]},
        one("Hello"),
    ),
    "AIPerf, one turn": ({"text": "Hello", "images": []}, ["Hello"]),
    "genai-perf, Triton": ({"text_input": "Hello"}, ["Hello"]),
    "OpenAI batch, chat": (
        {
            "custom_id": "request-1",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "m", "messages": [ASK], "tools": [WEATHER], "max_tokens": 9, "tool_choice": "auto"},
        },
        [{"messages": [ASK], "tools": [WEATHER]}],
    ),
    "OpenAI batch, completions": (
        {"custom_id": "2", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": ["a", "b"]}},
        ["a", "b"],
    ),
    "OpenAI batch, token ids": ({"body": {"prompt": [[1, 2], [3]]}}, [[1, 2], [3]]),
    "a chat that thinks": (
        {"messages": [ASK], "reasoning_effort": "high", "chat_template_kwargs": {"lang": "de"}},
        [
            {
                "messages": [ASK],
                "chat_template_kwargs": {"enable_thinking": True, "lang": "de", "reasoning_effort": "high"},
            }
        ],
    ),
    "a chat that goes on after a call": (
        {"messages": [ASK, CALL, RESULT], "tools": [WEATHER]},
        [{"messages": [ASK, CALL, RESULT], "tools": [WEATHER]}],
    ),
    "a chat that ends with the reply": (
        {"messages": [ASK, CALL, RESULT, {"role": "assistant", "content": "Rain."}]},
        [{"messages": [ASK, CALL, RESULT]}],
    ),
    "tools as Parquet holds them": (
        {"messages": [{**ASK, "tool_calls": None, "name": None}], "tools": json.dumps([WEATHER])},
        [{"messages": [ASK], "tools": [WEATHER]}],
    ),
    "ShareGPT_V3": (
        {
            "id": "QWJhYvA_0",
            "conversations": [
                {"from": "gpt", "value": "the end of another conversation"},
                {"from": "human", "value": "Summarize."},
                {"from": "gpt", "value": "Here:"},
            ],
        },
        one("Summarize."),
    ),
    "ShareGPT with role and value": (
        {"conversations": [{"role": "system", "value": "Be brief."}, {"role": "user", "value": "Hi"}]},
        [{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}],
    ),
    "LMSYS-chat-1M": (
        {
            "conversation_id": "33f0",
            "model": "vicuna-13b",
            "conversation": [{"content": "Hi", "role": "user"}, {"content": "Hello!", "role": "assistant"}],
            "turn": 1,
            "language": "English",
            "openai_moderation": [{"flagged": False}],
            "redacted": False,
        },
        one("Hi"),
    ),
    "WildChat, whose messages have more fields": (
        {"conversation": [{"role": "user", "content": "Hi", "hashed_ip": "x", "toxic": False}], "turn": 1},
        one("Hi"),
    ),
    "UltraChat": ({"id": "0", "data": ["How?", "So.", "And then?", "That."]}, one("How?")),
    "UltraChat 200k": (
        {
            "prompt": "How?",
            "prompt_id": "f0e3",
            "messages": [{"content": "How?", "role": "user"}, {"content": "So.", "role": "assistant"}],
        },
        one("How?"),
    ),
    "Alpaca": (
        {"instruction": "Add.", "input": "1, 2", "output": "3", "text": "Add. 1, 2 ### Response: 3"},
        one("Add.\n\n1, 2"),
    ),
    "Alpaca without input": ({"instruction": "Tell.", "input": "", "output": "x"}, one("Tell.")),
    "token ids": ({"prompt_token_ids": [1, 2, 3]}, [[1, 2, 3]]),
    "token ids as a prompt": ({"prompt": [1, 2, 3]}, [[1, 2, 3]]),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_people_have_is_read_as_the_server_would_be_asked(name: str) -> None:
    row, expected = FORMS[name]
    assert asked(entries_of(row)) == expected


async def test_a_file_of_all_forms_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(row) for row, _ in FORMS.values()))

    entries = await load(PromptSource(path=str(path)))

    assert asked(entries) == [prompt for _, expected in FORMS.values() for prompt in expected]
    assert entries[1].where == f"{path}, line 2"


def test_a_file_that_is_an_array_of_lists_of_messages_is_read() -> None:
    entries, _ = parse(json.dumps([[ASK], [{"role": "user", "content": "Hi"}]]).encode(), "file")
    assert asked(entries) == [{"messages": [ASK]}, *one("Hi")]


def test_a_named_column_may_hold_turns_and_wins_over_all_that_stands_beside_it() -> None:
    row = {"prompt": ["First", "Second"], "image": {"path": "cat.png"}}
    assert asked(entries_of(row, "prompt")) == one("First")


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
REFUSED: list[tuple[Any, str]] = [
    (
        {"prompt": [PRIVATE, "b"]},
        'prompt is a list of 2 texts: write each as {"prompt": "..."} on a line of its own, or, ',
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": PRIVATE}, IMAGE]}]},
        "message 1 of messages has content that is no text (images, audio, video): only texts are measured",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": PRIVATE}}]}]},
        "message 1 of messages has content that is no text (images, audio, video): only texts are measured",
    ),
    (
        [{"role": "system", "content": PRIVATE}, {"role": "user", "content": "What is it?", "images": ["cat.png"]}],
        "message 2 of the list has content that is no text (images, audio, video): only texts are measured",
    ),
    (
        {"turns": [{"text": PRIVATE, "image": "cat.png"}]},
        "turn 1 of turns has content that is no text (images, audio, video): only texts are measured",
    ),
    (
        {"text": PRIVATE, "image": "cat.png"},
        "the prompt has content that is no text (images, audio, video): only texts are measured",
    ),
    (
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "User", "content": PRIVATE}]},
        "message 2 of messages has a role that is none of system, developer, user, assistant, tool, function",
    ),
    ({"messages": [{"content": PRIVATE}]}, "message 1 of messages has no role"),
    (
        {"conversations": [{"from": "narrator", "value": PRIVATE}, {"from": "human", "value": "Hi"}]},
        "turn 1 of conversations is of neither human, user, gpt, chatgpt, assistant, model, bing, bard, system",
    ),
    (
        {"prompt": PRIVATE, "tools": [WEATHER]},
        "has tools beside prompt, which no chat template sees: give messages",
    ),
    (
        {"messages": [ASK], "tools": [{"name": PRIVATE}]},
        'tools is no list of {"type": "function", "function": {"name": ...}}',
    ),
    ({"messages": [ASK], "tools": 5}, 'tools is no list of {"type": "function", "function": {"name": ...}}'),
    ({"messages": [ASK], "tools": PRIVATE}, 'tools is no list of {"type": "function", "function": {"name": ...}}'),
    ({"messages": [ASK], "chat_template_kwargs": PRIVATE}, "chat_template_kwargs is no object"),
    ({"prompt": [1, -2]}, "prompt holds a number that is no token id"),
    ({"prompt": [1, 2**31]}, "prompt holds a number that is no token id"),
    ({"prompt_token_ids": PRIVATE}, "prompt_token_ids is neither a text nor a list of messages; neither "),
    ({"prompt": [1, True]}, "prompt is neither a text nor a list of messages; neither "),
    ({"body": {"input": PRIVATE}}, "neither "),
    ({"timestamp": 0, "input_length": 655, "hash_ids": [1, 2]}, "neither "),  # a trace has no prompts
]


@pytest.mark.parametrize(("row", "why"), REFUSED)
def test_what_is_no_prompt_is_refused_without_a_word_of_it(row: Any, why: str) -> None:
    with pytest.raises(NoPromptError) as caught:
        entries_of(row)
    assert str(caught.value).startswith(why)
    assert caught.value.malformed  # never left out, in no kind of file
    assert PRIVATE not in str(caught.value)


def test_entries_do_not_show_what_they_hold() -> None:
    for row in ({"messages": [{"role": "user", "content": PRIVATE}]}, {"prompt": [4711, 4712]}, {"prompt": PRIVATE}):
        assert PRIVATE not in repr(entries_of(row)) and "4711" not in repr(entries_of(row))


@pytest.mark.parametrize("number", [0, 5, 6, 10])
def test_the_process_ends_before_it_boots_and_says_which_line(tmp_path: Path, number: int) -> None:
    row, why = REFUSED[number]
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "fine"}) + "\n" + json.dumps(row) + "\n")
    words = ["run", "--model", "m", "--method", "ngram", "--max-tokens", "2", "--max-num-seqs", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "specserve_profiler", *words, "--max-model-len", "512", "--prompts", str(path)],
        env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=patience(60),
    )
    assert done.returncode == 3, done.stderr
    assert f"{path}, line 2: {why}" in " ".join(done.stderr.split())
    assert "booting" not in done.stderr and PRIVATE not in done.stdout + done.stderr


class Spy:
    """An engine that refuses one text."""

    async def tokenize(self, text: str) -> list[int]:
        if text == "bad":
            raise ProfilingError("PromptsInvalid", "the engine says no")
        return list(map(ord, text))

    async def tokenize_chat(self, chat: Any) -> list[int] | None:
        return [len(json.dumps(chat)), 1]


WORKLOAD = Workload(prompt_tokens=4, output_tokens=10)


async def test_token_ids_go_to_the_engine_as_they_are_and_a_chat_with_its_tools() -> None:
    rows = [{"prompt_token_ids": [7, i, 7, 7, 7]} for i in range(3)] + [{"messages": [ASK], "tools": [WEATHER]}]
    prompts = await tokenize([entries_of(row)[0] for row in rows], Spy(), WORKLOAD, 100, vocabulary=8)

    length = len(json.dumps({"messages": [ASK], "tools": [WEATHER]}))
    assert sorted(prompts.ids) == [(7, 0, 7, 7), (7, 1, 7, 7), (7, 2, 7, 7), (length, 1)]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"prompt": [1, 8]},
            "x.jsonl, line 5: token id 8 is beyond the model's vocabulary of 8: give its own tokenizer's ids",
        ),
        ({"prompt": "bad"}, "x.jsonl, line 5: the engine says no"),
    ],
)
async def test_what_only_the_engine_can_refuse_is_told_with_its_line(row: Any, expected: str) -> None:
    lines = [*({"prompt": [i]} for i in range(4)), row]
    entries, _ = parse("\n".join(map(json.dumps, lines)).encode(), "x.jsonl")
    with pytest.raises(ProfilingError) as caught:
        await tokenize(entries, Spy(), WORKLOAD, 100, vocabulary=8)
    assert (caught.value.reason, str(caught.value)) == ("PromptsInvalid", expected)
