"""Chats and tools become the token ids that vLLM's chat API and transformers make of them.

vLLM's own rendering server is the judge: its API without an engine behind, so nothing is loaded.
"""

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from demopair.cache import Pair
from devcluster.pace import patience
from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.contract.request import Workload
from specserve_profiler.engine.server import Engine, free_port, running
from specserve_profiler.prompts.entries import parse
from specserve_profiler.prompts.workload import Prompts, tokenize

pytestmark = pytest.mark.vllm
TEMPLATE = """
{{- bos_token }}
{%- if tools %}{{ "[tools]" }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}
{%- for m in messages %}
{%- if m.role == "function" %}{{ raise_exception("no role function: " + m.content) }}{% endif %}
{{- "[" + m.role + "]" }}{{ m.content or "" }}
{%- for call in m.tool_calls or [] %}
{{- "[call " + call.id + "]" + call.function.name }}
{%- for k, v in call.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}
{%- endfor %}
{%- if m.tool_call_id %}{{ "[of " + m.tool_call_id + "]" }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "[assistant]" }}
{%- if enable_thinking %}{{ "think" }}{{ reasoning_effort }}{% endif %}
{%- endif %}
"""
ASK = {"role": "user", "content": "Weather in Oslo?"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'the weather "now", °C',
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "rain\nand wind"}
REPLY = {"role": "assistant", "content": "It rains."}
PARTS = {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "text", "text": "there"}]}
BODIES: list[tuple[Any, dict[str, Any]]] = [
    (
        [{"role": "system", "content": "Be brief."}, ASK],
        {"messages": [{"role": "system", "content": "Be brief."}, ASK]},
    ),
    ({"messages": [ASK], "tools": [WEATHER]}, {"messages": [ASK], "tools": [WEATHER]}),
    (
        {"body": {"messages": [ASK, CALL, RESULT], "tools": [WEATHER], "max_tokens": 5}},
        {"messages": [ASK, CALL, RESULT], "tools": [WEATHER]},
    ),
    (
        {"messages": [ASK, CALL, RESULT, REPLY, {"role": "user", "content": "And in Þórshöfn? 🌧"}, REPLY]},
        {"messages": [ASK, CALL, RESULT, REPLY, {"role": "user", "content": "And in Þórshöfn? 🌧"}]},
    ),
    ({"messages": [PARTS]}, {"messages": [PARTS]}),
    ({"messages": [ASK], "reasoning_effort": "high"}, {"messages": [ASK], "reasoning_effort": "high"}),
    (
        {"messages": [PARTS], "chat_template_kwargs": {"enable_thinking": True}},
        {"messages": [PARTS], "chat_template_kwargs": {"enable_thinking": True}},
    ),
    (
        {"messages": [{"role": "developer", "content": "x"}, ASK]},
        {"messages": [{"role": "developer", "content": "x"}, ASK]},
    ),
    ({"turns": ["Compose a post.", "Rewrite it."]}, {"messages": [{"role": "user", "content": "Compose a post."}]}),
    (
        {"conversations": [{"role": "user", "value": "Hi"}, {"role": "assistant", "value": "Hello"}]},
        {"messages": [{"role": "user", "content": "Hi"}]},
    ),
]
"""A line of prompts, and what a client sends to the chat API."""
TRANSFORMERS = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
found = []
for body in json.load(open(sys.argv[2])):
    for message in body["messages"]:
        if message["role"] == "developer":  # vLLM's chat API makes a system message of it
            message["role"] = "system"
        if isinstance(message["content"], list):
            message["content"] = "\\n".join(part["text"] for part in message["content"])
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    thinks = {"enable_thinking": True} if "reasoning_effort" in body else {}
    named = {**thinks, **body.get("chat_template_kwargs", {}), "reasoning_effort": body.get("reasoning_effort")}
    named = {name: value for name, value in named.items() if value is not None}
    text = tokenizer.apply_chat_template(
        body["messages"], tools=body.get("tools"), add_generation_prompt=True, tokenize=False, **named)
    found.append(tokenizer.encode(text, add_special_tokens=False))
print(json.dumps(found))
"""


class Judge:
    """vLLM's rendering server for a model with a chat template, used as the profiler uses an engine."""

    def __init__(self, python: Path, model: Path, directory: Path) -> None:
        self.port = free_port()
        self.directory = directory
        self.command = [str(python), "-m", "vllm.entrypoints.cli.main", "launch", "render", str(model)]
        self.command += [f"--port={self.port}", "--host=127.0.0.1", "--max-model-len=2048"]
        self.command += ["--enable-auto-tool-choice", "--tool-call-parser=hermes"]

    async def use(self, work: Callable[[Engine], Any]) -> Any:
        log: list[str] = []
        async with running(
            self.command, self.port, self.directory, time.monotonic() + patience(120), log.append
        ) as engine:
            return await work(engine)

    def chat_api(self, body: dict[str, Any]) -> list[int]:
        """The token ids that the chat API would give the engine."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions/render",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            ids: list[int] = json.load(answer)["token_ids"]
        return ids


@pytest.fixture(scope="module")
def model(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo pair's target with a chat template, which it has not by itself."""
    folder = tmp_path_factory.mktemp("chat")
    for file in pair.target.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").write_text(TEMPLATE.strip())
    return folder


@pytest.fixture(scope="module")
def seen(engine_python: Path, engine_environment: dict[str, str], model: Path) -> Iterator[dict[str, Any]]:
    """What one server made of all prompts: through the profiler, and through its own chat API."""
    judge = Judge(engine_python, model, model)
    lines = [*(line for line, _ in BODIES), {"prompt_token_ids": [5, 6, 7]}, {"prompt": "Once upon a time"}]
    refused = {"messages": [ASK, {"role": "function", "name": "f", "content": "my diagnosis"}]}

    async def work(engine: Engine) -> dict[str, Any]:
        read = lambda rows: parse("\n".join(map(json.dumps, rows)).encode(), "x.jsonl")[0]  # noqa: E731
        workload = Workload(prompt_tokens=1024, output_tokens=16)
        found: dict[str, Any] = {"prompts": await tokenize(read(lines), engine, workload, 2048)}
        found["api"] = [await asyncio.to_thread(judge.chat_api, body) for _, body in BODIES]
        try:
            await tokenize(read([*lines, refused]), engine, workload, 2048)
        except ProfilingError as error:
            found["refused"] = error
        return found

    with pytest.MonkeyPatch.context() as patch:
        for name, value in engine_environment.items():
            patch.setenv(name, value)
        yield asyncio.run(judge.use(work))


def test_chats_and_tools_become_what_the_chat_api_of_the_server_makes_of_them(seen: dict[str, Any]) -> None:
    prompts: Prompts = seen["prompts"]
    assert {*map(tuple, seen["api"])} < {*prompts.ids}
    others = {*prompts.ids} - {*map(tuple, seen["api"])}
    assert (5, 6, 7) in others and len(others) == 2  # token ids as they are, and the plain text
    assert len(prompts.ids) == len(BODIES) + 2


def test_transformers_makes_the_same_of_them(
    seen: dict[str, Any], run_in_engine: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    bodies = tmp_path / "bodies.json"
    bodies.write_text(json.dumps([body for _, body in BODIES]))
    done = run_in_engine("-c", TRANSFORMERS, model, bodies)
    assert json.loads(done.stdout.splitlines()[-1]) == seen["api"]


def test_a_chat_that_the_template_refuses_is_told_with_its_line_and_why_and_without_a_word_of_it(
    seen: dict[str, Any],
) -> None:
    error = seen["refused"]
    assert error.reason == "PromptsInvalid"
    assert str(error).startswith("x.jsonl, line 13: the engine answered /tokenize with status 400: ")
    assert "no role function" in str(error) and "my diagnosis" not in str(error)
