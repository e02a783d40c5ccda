"""What a workload's file or dataset holds, as prompts. Pure.

No error and no ``repr`` here ever shows a prompt: they may be somebody's conversations.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specserve_profiler.contract.reasons import ProfilingError

COLUMNS = ("prompt", "messages", "conversations", "turns", "question", "text")
"""Fields that may hold a prompt, the first that is there."""
PLAIN_COLUMNS = frozenset({"prompt", "text"})
"""A text in one of these goes to the engine as it is; in any other it is what a user says in a chat."""
_FORMS = 'neither {"prompt": "text"}, an OpenAI chat {"messages": [...]} nor a ShareGPT {"conversations": [...]}'
_SHARE_GPT_ROLES = {"human": "user", "user": "user", "system": "system"}


@dataclass(frozen=True)
class Entry:
    """One prompt: a text as it is, or a chat that the engine's template makes a text of."""

    text: str = field(repr=False)
    """The plain prompt; of a chat the last thing that the user says."""
    messages: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """(role, text) of each message of a chat, the last of them the user's; empty for a plain prompt."""


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
    entries, without = [], 0
    for where, row in rows:
        try:
            entries.append(entry_of(row, column))
        except NoPromptError as error:
            if strict or error.malformed:
                raise ProfilingError("PromptsInvalid", f"{where}: {error}") from None
            without += 1
    if not entries:
        raise ProfilingError(
            "PromptsInvalid", f'{name} holds no prompt (it is empty): write one {{"prompt": "..."}} a line'
        )
    return entries, without


def entry_of(row: Any, column: str | None = None) -> Entry:
    """The prompt of one row, from ``column`` or from the first known one. Raises NoPromptError."""
    if not isinstance(row, Mapping):
        raise NoPromptError(_FORMS)
    if column is not None and column not in row:
        raise NoPromptError(f"has no column {column}; its columns: {', '.join(map(str, row))}")
    found = column or next((name for name in COLUMNS if name in row), None)
    if found is None:
        raise NoPromptError(_FORMS)
    return _entry(row[found], found)


def _entry(value: Any, column: str) -> Entry:
    """A text, a list of turns (the first counts), an OpenAI chat, or a ShareGPT conversation (its first human turn)."""
    if isinstance(value, str):
        text = _text(value, column)
        return Entry(text) if column in PLAIN_COLUMNS else Entry(text, (("user", text),))
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        turns = list(value)
        if turns and all(isinstance(turn, str) for turn in turns):
            text = _text(turns[0], column)
            return Entry(text, (("user", text),))
        if all(isinstance(turn, Mapping) for turn in turns):
            return _chat(turns, column) if any("role" in turn for turn in turns) else _share_gpt(turns, column)
    raise NoPromptError(f"{column} is neither a text nor a list of messages; {_FORMS}")


def _chat(messages: Sequence[Mapping[str, Any]], column: str) -> Entry:
    """An OpenAI chat up to its last user message: what the model is asked next."""
    known = [(message.get("role"), _content(message.get("content"), column)) for message in messages]
    while known and known[-1][0] != "user":
        known.pop()
    if not known:
        raise NoPromptError(f"{column} has no message of role user", malformed=False)
    if not all(isinstance(role, str) for role, _ in known):
        raise NoPromptError(f"{column} has a message without a role")
    return Entry(_text(known[-1][1], column), tuple((str(role), text) for role, text in known))


def _content(content: Any, column: str) -> str:
    """The text of a message's content: a text, a list of text parts, or nothing (a call of a tool)."""
    if content is None:
        return ""
    if isinstance(content, str):
        return _encodable(content)
    if isinstance(content, Sequence) and all(
        isinstance(p, Mapping) and isinstance(p.get("text"), str) for p in content
    ):
        return _encodable("".join(part["text"] for part in content))
    raise NoPromptError(f"{column} has a message with content that is no text: only texts are measured")


def _share_gpt(turns: Sequence[Mapping[str, Any]], column: str) -> Entry:
    """The first human turn, after what the system says."""
    said = []
    for turn in turns:
        role, value = _SHARE_GPT_ROLES.get(str(turn.get("from"))), turn.get("value")
        if role is None:
            continue
        said.append((role, _text(value, column)))
        if role == "user":
            return Entry(said[-1][1], tuple(said))
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
