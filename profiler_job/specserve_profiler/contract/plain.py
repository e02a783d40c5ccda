"""Text of others (names of models and devices, lines of logs) as it may be shown to a person. Pure."""

from __future__ import annotations

import json
from unicodedata import category

_MOVING = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Controls, formats such as a turn of the reading direction, surrogates, private use, ends of lines and paragraphs."""


def plain(text: str, keep: str = "") -> str:
    """The text; what could move a cursor, turn a line around or forge one is written as JSON escapes it.

    ``keep``: those that stay. Inside a string of a JSON text this changes nothing of what it means.
    """
    if text.isprintable():
        return text
    return "".join(_escaped(char) if category(char) in _MOVING and char not in keep else char for char in text)


def _escaped(char: str) -> str:
    return "\\u007f" if char == "\x7f" else json.dumps(char)[1:-1]
