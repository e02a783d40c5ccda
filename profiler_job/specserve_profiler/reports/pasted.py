"""Tables and configs as people paste them: command lines, and JSON that a shell, YAML or a template mangled. Pure.

JSON within a command line within YAML within a template loses its quotes or gains some at each station. What was meant
is read back here, and which station it looks like is told; nothing is served from it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specserve_profiler.dialect import arguments
from specserve_profiler.dialect.render import config_text

_FLAG = "--speculative-config"
_SINGLE = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}
_ARGUMENTS = re.compile(r"(^|\s)(--spec|-sc\b)")
_MOST_LETTERS, _MOST_DEEP = 100_000, 20
_FAMILIAR = re.compile(
    r"method|model|num[-_]speculative|draft_len_schedule|candidate_steps|max_draft_len|prompt_lookup"
)
_TYPOGRAPHIC = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'"})
_BARE = re.compile(r"""[^\s,{}\[\]"']+""")
_KEY = re.compile(r"""[^\s,:{}\[\]"']+""")
_WORDS = {"true": True, "false": False, "null": None, "none": None, "<nil>": None}


@dataclass(frozen=True)
class Mangled:
    """A text that is no JSON, and what it seems to be."""

    how: str
    value: dict[str, Any] | list[Any]

    def __str__(self) -> str:
        return config_text(self.value) if isinstance(self.value, dict) else json.dumps(self.value)


def from_arguments(text: str) -> tuple[str | None, int | None] | None:
    """(config, largest batch size) of arguments for ``vllm serve`` as ``render`` prints them; None for other text.

    The config is the text behind ``--speculative-config``, with dotted keys and ``--spec-...`` put together as vLLM
    does; None where the arguments have none. Raises ValueError where the text is no words of a shell.
    """
    if not _ARGUMENTS.search(text) or text.lstrip()[:1] in ("{", "["):
        return None
    whole: str | None = None
    keys: dict[str, Any] = {}
    batch: int | None = None
    for flag in arguments.flags(shlex.split(text)):
        if arguments.names(flag.name, "--max-num-seqs") and (flag.value or "").isdecimal():
            batch = int((flag.value or "")[:18])
        elif flag.name in _SINGLE:
            keys[_SINGLE[flag.name]] = _plain(flag.value or "")
        elif flag.name == "-sc" or (arguments.names(flag.name, _FLAG) and flag.name not in ("--spec", "--s")):
            if flag.keys:
                keys[".".join(flag.keys)] = _plain(flag.value or "")
            else:
                whole = flag.value or ""
    if whole is None:
        return (config_text(keys) if keys else None), batch
    try:
        content = json.loads(whole) if keys else None
    except (ValueError, RecursionError):
        content = None
    return (config_text({**content, **keys}) if isinstance(content, dict) else whole), batch


def untangle(text: str) -> Mangled | None:
    """What a text that is no JSON object or list was meant to be; None where that cannot be told, or it is JSON."""
    if len(text) > _MOST_LETTERS:
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    except (RecursionError, ValueError):  # too deep, too many digits
        return None
    if isinstance(value, str):
        inner = _meant(value) or untangle(value)
        content = inner.value if isinstance(inner, Mangled) else inner
        return None if content is None else Mangled("JSON within a JSON text: it is quoted once too often", content)
    if isinstance(value, list) and any(isinstance(entry, str) and ":" in entry for entry in value):
        return _split_by_helm(value)
    if value is not None:
        return None
    for how, candidate in _readings(text.strip()):
        content = _meant(candidate)
        if content is None:
            content = _loosely(candidate)
        if content is not None:
            return Mangled(how, content)
    return None


def _readings(text: str) -> Iterator[tuple[str, str]]:
    """(which mistake, the text without it): the plainest first, each on top of those before it."""
    plain = text.translate(_TYPOGRAPHIC)
    if plain != text:
        yield "typographic quotes: a text editor or a page put them there", plain
    unescaped = plain.replace('\\"', '"')
    if unescaped != plain:
        yield "backslashes before its quotes: within single quotes no shell takes them away", _unwrapped(unescaped)
    stripped = _unwrapped(unescaped)
    if stripped != unescaped:
        yield "quotes around it that are part of the text: no shell took them away", stripped
    single = re.sub(r"\{\{(.*)\}\}", r"{\1}", stripped, flags=re.DOTALL)
    if single != stripped:
        yield "doubled braces, which a template or a format string wanted and nothing made single", single
    if single.startswith("map["):
        yield "Go's way to print a map: a Helm template printed the value without toJson", single
    elif single.startswith("[") and ":" in single:
        yield _HELM, "{" + single[1:-1] + "}" if single.endswith("]") else single
    elif single.startswith("[") and "," not in single:
        yield "Go's way to print a list: a Helm template printed the value without toJson", single
    elif "'" in single:
        yield "single quotes, as Python prints a dict: JSON wants double ones", single
    elif '"' in single:
        yield "a comma too many or too few, or a name without quotes", single
    else:
        yield "no quotes: a shell took them, or it is YAML, which is not JSON", single


_HELM = "a list of texts: helm --set takes braces for a list; use --set-json, --set-literal or a values file"


def _split_by_helm(entries: list[Any]) -> Mangled | None:
    content = _loosely("{" + ",".join(map(str, entries)) + "}")
    return None if content is None else Mangled(_HELM, content)


def _unwrapped(text: str) -> str:
    while len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1].strip()
    return text


def _meant(text: str) -> dict[str, Any] | list[Any] | None:
    """JSON that is a config or a table."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if _is_familiar(value) else None


def _is_familiar(value: object) -> bool:
    if isinstance(value, dict):
        return any(_FAMILIAR.match(str(key)) for key in value)
    return isinstance(value, list) and bool(value) and all(isinstance(row, list) and len(row) == 3 for row in value)


def _loosely(text: str) -> dict[str, Any] | list[Any] | None:
    """A value whose quotes, commas or colons are missing or of another kind."""
    if re.match(r"[\"']?(method|model|num_speculative)\w*[\"']?\s*:", text):
        text = "{" + text + "}"
    try:
        value, end = _value(text, 0, 0)
    except ValueError:
        return None
    return value if not text[end:].strip() and _is_familiar(value) else None


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """One value from ``at`` on, and where it ends. Raises ValueError."""
    at = _skip(text, at, "")
    if depth > _MOST_DEEP or at >= len(text):
        raise ValueError(at)
    if text.startswith("map[", at):
        return _mapping(text, at + 4, "]", depth)
    if text[at] == "{":
        return _mapping(text, at + 1, "}", depth)
    if text[at] == "[":
        return _list(text, at + 1, depth)
    return _scalar(text, at, _BARE)


def _mapping(text: str, at: int, close: str, depth: int) -> tuple[Mapping[str, Any], int]:
    found: dict[str, Any] = {}
    while (at := _skip(text, at, ",")) < len(text) and text[at] != close:
        key, at = _scalar(text, at, _KEY)
        at = _skip(text, at, "")
        if text[at : at + 1] != ":":
            raise ValueError(at)
        found[str(key)], at = _value(text, at + 1, depth + 1)
    if at >= len(text):
        raise ValueError(at)
    return found, at + 1


def _list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    while (at := _skip(text, at, ",")) < len(text) and text[at] != "]":
        value, at = _value(text, at, depth + 1)
        found.append(value)
    if at >= len(text):
        raise ValueError(at)
    return found, at + 1


def _scalar(text: str, at: int, bare: re.Pattern[str]) -> tuple[Any, int]:
    if text[at] in "'\"":
        end = text.find(text[at], at + 1)
        if end < 0:
            raise ValueError(at)
        return text[at + 1 : end], end + 1
    found = bare.match(text, at)
    if found is None:
        raise ValueError(at)
    return _plain(found[0]), found.end()


def _plain(word: str) -> Any:
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    if re.fullmatch(r"-?\d{1,18}", word, re.ASCII):
        return int(word)
    if word[:1] in ("[", "{"):
        return _meant(word) or word
    return float(word) if re.fullmatch(r"-?\d{1,18}\.\d{1,18}", word, re.ASCII) else word


def _skip(text: str, at: int, more: str) -> int:
    while at < len(text) and (text[at].isspace() or text[at] in more):
        at += 1
    return at
