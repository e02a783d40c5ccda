"""What a workload's file or dataset holds, as prompts. Pure.

No error and no ``repr`` here ever shows a prompt: they may be somebody's conversations.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specserve_profiler.contract.reasons import ProfilingError

COLUMNS = (
    *("messages", "prompt", "conversations", "conversation", "turns", "question", "text_input"),
    *("instruction", "text", "prompt_token_ids", "data"),
)
"""Fields that may hold a prompt, the first that is there."""
PLAIN_COLUMNS = frozenset({"prompt", "text", "text_input"})
"""A text in one of these goes to the engine as it is; in any other it is what a user says in a chat."""
_FORMS = 'neither {"prompt": "text"}, an OpenAI chat {"messages": [...]} nor a ShareGPT {"conversations": [...]}'
_TOOLS = 'tools is no list of {"type": "function", "function": {"name": ...}}'
_SHARE_GPT_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "assistant", "model", "bing", "bard"), "assistant"),
    "system": "system",
}
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_OF_MESSAGE = ("name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "tools", "task")
"""What a server's template is given of a message, beside role and content."""
_TEXT_PARTS = (None, "text", "input_text", "output_text")
_MEDIA = (
    *("image", "images", "image_url", "input_image", "audio", "audios", "audio_url", "input_audio"),
    *("video", "videos", "video_url", "multi_modal_data"),
)
_OF_IDS = ("prompt", "prompt_token_ids")
_MOST_ID = 2**31 - 1


@dataclass(frozen=True)
class Entry:
    """One prompt: a text as it is, a chat that the engine's template makes a text of, or token ids."""

    text: str = field(default="", repr=False)
    """The plain prompt; of a chat the last thing that the user says."""
    chat: str = field(default="", repr=False)
    """JSON of a chat as an OpenAI server takes it: ``messages``, and where there are any ``tools`` and
    ``chat_template_kwargs``. Empty for any other prompt."""
    ids: tuple[int, ...] = field(default=(), repr=False)
    """Token ids, where the prompt is given as such."""
    where: str = field(default="", compare=False)
    """File and line."""


class NoPromptError(ValueError):
    """An entry without a prompt. ``malformed`` is False where it has the right form and only nothing in it."""

    def __init__(self, why: str, *, malformed: bool = True) -> None:
        super().__init__(why)
        self.malformed = malformed


def parse(content: bytes, name: str, *, column: str | None = None, strict: bool = False) -> tuple[list[Entry], int]:
    """The prompts of a JSONL file, or of one that is one JSON array, and how many entries have none.

    Conversations that nobody began are left out and counted, as dumps have them (ShareGPT); where ``strict`` they are
    refused, unless the file is an array: one line a prompt was written for this purpose. Raises ProfilingError
    (PromptsInvalid) that says which line or entry of ``name`` is wrong.
    """
    # A byte order mark is what Windows leaves.
    content = content.removeprefix(b"\xef\xbb\xbf")
    if content.lstrip()[:1] == b"[" and (values := _array(content, name)) is not None:
        rows = ((f"{name}, entry {number}", value) for number, value in enumerate(values, 1))
        return collect(rows, name, column=column)
    # Not splitlines: JSON texts may hold U+2028 and its like as they are.
    lines = ((f"{name}, line {number}", line) for number, line in enumerate(content.split(b"\n"), 1) if line.strip())
    return collect(((where, _json(line, where)) for where, line in lines), name, column=column, strict=strict)


def collect(
    rows: Iterable[tuple[str, Any]], name: str, *, column: str | None = None, strict: bool = False
) -> tuple[list[Entry], int]:
    """The prompts of (where, row) and the number of rows without one; ``strict`` refuses such rows.

    Raises ProfilingError (PromptsInvalid) that says where.
    """
    entries: list[Entry] = []
    without = 0
    for where, row in rows:
        try:
            entries += [replace(entry, where=where) for entry in entries_of(row, column)]
        except NoPromptError as error:
            if strict or error.malformed:
                raise ProfilingError("PromptsInvalid", f"{where}: {error}") from None
            without += 1
        except RecursionError:
            raise ProfilingError("PromptsInvalid", f"{where}: nested too deeply") from None
    if not entries:
        raise ProfilingError(
            "PromptsInvalid", f'{name} holds no prompt (it is empty): write one {{"prompt": "..."}} a line'
        )
    return entries, without


def entries_of(row: Any, column: str | None = None) -> list[Entry]:
    """The prompts of one row, from ``column`` or from the first known one. Raises NoPromptError.

    One prompt a row, but as many as the ``prompt`` of an OpenAI batch's ``body`` lists.
    """
    if isinstance(row, list) and row and all(isinstance(message, Mapping) for message in row):
        return [_chat(row, "the list", {})]
    if not isinstance(row, Mapping):
        raise NoPromptError(_FORMS)
    named = column is not None
    body = None if named else row.get("body")
    row = body if isinstance(body, Mapping) else row
    if column is not None and column not in row:
        raise NoPromptError(f"has no column {column}; its columns: {', '.join(map(str, row))}")
    found = column or next((name for name in COLUMNS if name in row), None)
    if found is None:
        raise NoPromptError(_FORMS)
    if not named:
        _no_media(row, "the prompt")
    entries = _entries(row, found, turns=named, several=row is body)
    if not named and row.get("tools") and not entries[0].chat:
        raise NoPromptError(f"has tools beside {found}, which no chat template sees: give messages")
    return entries


def _entries(row: Mapping[str, Any], column: str, *, turns: bool, several: bool) -> list[Entry]:
    """The prompts in a column: texts, token ids, turns, messages.

    A list of texts in a plain column is refused, for it may be ``several`` prompts or the ``turns`` of one chat.
    """
    value = row[column]
    if isinstance(value, str) and column != "prompt_token_ids":
        return [
            Entry(_text(value, column)) if column in PLAIN_COLUMNS else _asked(_instruction(row, column), column, row)
        ]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if column in _OF_IDS or turns:
            lists = [value] if _of(value, int) else value
            if _of(lists, list) and all(_of(ids, int) for ids in lists):
                return [_token_ids(ids, column) for ids in lists]
        if _of(value, str):
            return _texts(value, column, row, turns=turns, several=several)
        if all(isinstance(turn, Mapping) for turn in value):
            return [_conversation(value, column, row)]
    raise NoPromptError(f"{column} is neither a text nor a list of messages; {_FORMS}")


def _of(values: Sequence[Any], kind: type) -> bool:
    return len(values) > 0 and all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def _token_ids(ids: Sequence[int], column: str) -> Entry:
    if not 0 <= min(ids) <= max(ids) <= _MOST_ID:
        raise NoPromptError(f"{column} holds a number that is no token id")
    return Entry(ids=tuple(ids))


def _texts(values: Sequence[str], column: str, row: Mapping[str, Any], *, turns: bool, several: bool) -> list[Entry]:
    if column not in PLAIN_COLUMNS or turns:
        return [_asked(values[0], column, row)]
    if several:
        return [Entry(_text(value, column)) for value in values]
    raise NoPromptError(
        f'{column} is a list of {len(values)} texts: write each as {{"{column}": "..."}} on a line of its own, or, '
        'where they are turns of one conversation, {"turns": [...]}'
    )


def _instruction(row: Mapping[str, Any], column: str) -> str:
    """The text of a column; Alpaca's and Dolly's instruction with what it is about."""
    about = next((row[name] for name in ("input", "context") if row.get(name)), "") if column == "instruction" else ""
    return f"{row[column]}\n\n{about}" if isinstance(about, str) and about.strip() else str(row[column])


def _asked(text: str, column: str, row: Mapping[str, Any]) -> Entry:
    """What a user says in a chat of one message."""
    return _as_chat([{"role": "user", "content": _text(text, column)}], row)


def _as_chat(messages: Sequence[Mapping[str, Any]], row: Mapping[str, Any], text: str | None = None) -> Entry:
    """A chat with the tools and the template's arguments of its row; ``text`` is what the user says last."""
    chat: dict[str, Any] = {"messages": messages}
    if tools := _tools(row.get("tools")):
        chat["tools"] = tools
    arguments = row.get("chat_template_kwargs") or {}
    if not isinstance(arguments, Mapping):
        raise NoPromptError("chat_template_kwargs is no object")
    if effort := row.get("reasoning_effort"):
        arguments = {"enable_thinking": effort != "none", **arguments, "reasoning_effort": effort}
    if arguments:
        chat["chat_template_kwargs"] = arguments
    shown = messages[-1]["content"] if text is None else text
    return Entry(shown, _encodable(json.dumps(chat, ensure_ascii=False, default=str)))


def _tools(tools: Any) -> list[Any]:
    """Tools as a server takes them; a text is JSON, as Parquet files hold them."""
    try:
        tools = json.loads(tools) if isinstance(tools, str) and tools.strip() else tools or []
    except (ValueError, RecursionError):
        raise NoPromptError(_TOOLS) from None
    functions = (
        [isinstance(tool, Mapping) and tool.get("function") for tool in tools] if isinstance(tools, list) else [0]
    )
    if not all(isinstance(f, Mapping) and isinstance(f.get("name"), str) for f in functions):
        raise NoPromptError(_TOOLS)
    return list(tools)


def _conversation(turns: Sequence[Mapping[str, Any]], column: str, row: Mapping[str, Any]) -> Entry:
    """Turns without roles (the first counts), an OpenAI chat, or a ShareGPT conversation (its first human turn)."""
    if turns and not any("role" in turn or "from" in turn for turn in turns) and "text" in turns[0]:
        _no_media(turns[0], f"turn 1 of {column}")
        return _asked(turns[0]["text"], column, row)
    if turns and not any("from" in turn or "value" in turn for turn in turns):
        return _chat(turns, column, row)
    return _share_gpt(turns, column, row)


def _chat(messages: Sequence[Mapping[str, Any]], column: str, row: Mapping[str, Any]) -> Entry:
    """An OpenAI chat up to what the model is to answer: a user's or a tool's message."""
    known = [_message(message, f"message {number} of {column}") for number, message in enumerate(messages, 1)]
    while known and known[-1]["role"] == "assistant":
        known.pop()
    said = [message["content"] or "" for message in known if message["role"] == "user"][-1:]
    if not said:
        raise NoPromptError(f"{column} has no message of role user", malformed=False)
    text = said[0] if isinstance(said[0], str) else "".join(part["text"] for part in said[0])
    return _as_chat(known, row, _text(text, column))


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A message with what a server's template sees of it."""
    if message.get("role") not in _ROLES:
        has = "a role that is none of " + ", ".join(_ROLES) if message.get("role") else "no role"
        raise NoPromptError(f"{where} has {has}")
    _no_media(message, where)
    rest = {name: message[name] for name in _OF_MESSAGE if message.get(name) is not None}
    return {"role": message["role"], "content": _content(message.get("content", message.get("text")), where), **rest}


def _content(content: Any, where: str) -> str | list[dict[str, Any]] | None:
    """The content of a message: a text, a list of text parts, or nothing (a call of a tool)."""
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        return [_part({"text": part} if isinstance(part, str) else part, where) for part in content]
    raise _no_text(where)


def _part(part: Any, where: str) -> dict[str, Any]:
    if not isinstance(part, Mapping) or part.get("type") not in _TEXT_PARTS or not isinstance(part.get("text"), str):
        raise _no_text(where)
    _no_media(part, where)
    return {"type": "text", **{name: value for name, value in part.items() if value is not None}}


def _no_media(values: Mapping[str, Any], where: str) -> None:
    for value in (values[name] for name in _MEDIA if values.get(name) is not None):
        if value or not isinstance(value, str | list | dict | bool):
            raise _no_text(where)


def _no_text(where: str) -> NoPromptError:
    return NoPromptError(f"{where} has content that is no text (images, audio, video): only texts are measured")


def _share_gpt(turns: Sequence[Mapping[str, Any]], column: str, row: Mapping[str, Any]) -> Entry:
    """The first human turn, after what the system says."""
    said = []
    for number, turn in enumerate(turns, 1):
        role = _SHARE_GPT_ROLES.get(str(turn.get("from") or turn.get("role")))
        if role is None:
            raise NoPromptError(f"turn {number} of {column} is of neither {', '.join(_SHARE_GPT_ROLES)}")
        _no_media(turn, f"turn {number} of {column}")
        if role == "assistant":
            continue
        said.append({"role": role, "content": _text(turn.get("value", turn.get("content")), column)})
        if role == "user":
            return _as_chat(said, row)
    raise NoPromptError(f"{column} has no human turn", malformed=False)


def _text(value: Any, column: str) -> str:
    if not isinstance(value, str):
        raise NoPromptError(f"{column} holds something that is no text; {_FORMS}")
    if not value.strip():
        raise NoPromptError(f"{column} holds an empty text", malformed=False)
    return _encodable(value)


def _encodable(text: str) -> str:
    """Half of a surrogate pair is no text that an engine could be sent."""
    return text.encode(errors="replace").decode()


def _array(content: bytes, name: str) -> list[Any] | None:
    """The array that a file is; None where it is rather one array a line."""
    try:
        values = json.loads(content)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return None
        raise ProfilingError("PromptsInvalid", f"{name}, line {error.lineno}: {_why_no_json(error)}") from None
    except (ValueError, RecursionError) as error:
        raise ProfilingError("PromptsInvalid", f"{name}, line 1: {_why_no_json(error)}") from None
    assert isinstance(values, list)  # noqa: S101 - it begins with a bracket
    return values


def _json(line: bytes, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProfilingError("PromptsInvalid", f"{where}: {_why_no_json(error)}") from None


def _why_no_json(error: ValueError | RecursionError) -> str:
    """Why, with not a character of the content."""
    if isinstance(error, json.JSONDecodeError):
        why = f"column {error.colno}"
    elif isinstance(error, UnicodeDecodeError):
        why = f"byte {error.start + 1} is not UTF-8"
    else:
        why = "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
    return f"not JSON ({why}); write one JSON object a line"


def csv_rows(rows: Iterable[Mapping[str, str]], name: str) -> Iterator[tuple[str, Any]]:
    """(where, row) of a CSV file; a field that is a JSON list is read as one."""
    for number, row in enumerate(rows, 1):
        yield f"{name}, row {number}", {key: _list_or_text(value or "") for key, value in row.items() if key}


def _list_or_text(value: str) -> Any:
    if value.startswith("["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value
