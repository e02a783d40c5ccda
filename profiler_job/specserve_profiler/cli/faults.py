"""What is wrong with what somebody gave, in words that name the flag or field and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

_MOST = 5
"""Faults that are told at once; more would hide the first."""


class FaultError(Exception):
    """Ends a command. The text is for a person, ``code`` is the exit code."""

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.code = code


def explain(error: ValidationError, model: type[BaseModel], name: Callable[[str], str] = lambda field: field) -> str:
    """The first faults of a validation, one a line. ``name`` gives a field (``speculation.maxTokens``) its name."""
    # A misspelt field comes first: that another is missing is often its consequence.
    faults = sorted(
        error.errors(include_url=False, include_context=False), key=lambda f: f["type"] != "extra_forbidden"
    )
    lines = [_line(dict(fault), model, name) for fault in faults[:_MOST]]
    if len(faults) > _MOST:
        lines.append(f"and {len(faults) - _MOST} more")
    return "\n".join(lines)


def clipped(text: str, most: int = 100) -> str:
    """What somebody gave, no longer than a line."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _line(fault: dict[str, Any], model: type[BaseModel], name: Callable[[str], str]) -> str:
    path = [clipped(str(part)) for part in fault["loc"]]
    field, kind, given = ".".join(path), fault["type"], fault.get("input")
    if kind == "json_invalid":
        return str(fault["msg"])
    if kind == "extra_forbidden":
        return f"{field}: there is no such field{_meant(path[-1], _fields(model, path[:-1]))}"
    if kind == "missing":
        return f"{name(field)}: is needed"
    if kind == "value_error":
        return _own_words(str(fault["msg"]).removeprefix("Value error, "), field, name)
    if kind == "string_unicode":
        return f"{name(field)}: holds half a character, a lone surrogate"
    words = str(fault["msg"]).replace("Input should be", "must be").replace("a valid tuple", "a list")
    shown = f", is {clipped(repr(given))}" if isinstance(given, str | int | float) else ""
    return f"{name(field)}: {words}{shown}"


def _own_words(text: str, field: str, name: Callable[[str], str]) -> str:
    """A message of our own models: most begin with the field that they are about."""
    about, colon, rest = text.partition(": ")
    if colon and " " not in about:
        return f"{name(about)}: {rest}"
    return f"{name(field)}: {text}" if field else text


def _meant(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(sorted(known))}"


def _fields(model: type[BaseModel], path: list[str]) -> list[str]:
    """Names of the fields of the model at ``path`` below ``model``."""
    for part in path:
        found = next((f for n, f in model.model_fields.items() if part in (f.alias, n)), None)
        inner = list(_types(found.annotation)) if found is not None else []
        if not inner:
            return []
        model = inner[0]
    return [field.alias or name for name, field in model.model_fields.items()]


def _types(annotation: Any) -> list[type[BaseModel]]:
    """The models in an annotation such as ``HubDataset | None``."""
    if hasattr(annotation, "model_fields"):
        return [annotation]
    return [found for part in getattr(annotation, "__args__", ()) for found in _types(part)]
