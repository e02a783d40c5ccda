"""An engine's arguments, read as vLLM reads them. Pure.

vLLM takes underscores for dashes, any unambiguous prefix of a flag, ``--flag=value`` and ``--flag.key=value``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_NUMBER = re.compile(r"-\d+(\.\d*)?|-\.\d+")
_COMPILATION = ("--compilation-config", "-cc")


class Flag(NamedTuple):
    """One flag of a command line."""

    text: str
    """As it was given."""
    name: str
    """With dashes for underscores, without dotted keys."""
    keys: tuple[str, ...]
    """Dotted keys behind the name: ``--flag.a.b`` has ``a`` and ``b``."""
    value: str | None
    """What follows an equals sign, else the next argument, where that is no flag itself."""


def flags(args: Sequence[str]) -> Iterator[Flag]:
    """Every flag of a command line, in order."""
    for index, argument in enumerate(args):
        if not is_flag(argument):
            continue
        following = args[index + 1] if index + 1 < len(args) and not is_flag(args[index + 1]) else None
        head, equals, value = argument.partition("=")
        name, *keys = head.split(".")
        yield Flag(
            argument,
            name.rstrip("+").replace("_", "-"),
            tuple(key.rstrip("+").replace("-", "_") for key in keys),
            value if equals else following,
        )


def is_flag(argument: str) -> bool:
    """Whether argparse takes an argument for a flag; a negative number is a value."""
    return argument.startswith("-") and _NUMBER.fullmatch(argument) is None


def names(flag: str, full: str) -> bool:
    """Whether argparse could read ``flag`` as ``full``: the same, or a prefix with as many dashes in front."""
    return full.startswith(flag) and flag.startswith("--") == full.startswith("--") and flag.strip("-") != ""


def sets(args: Sequence[str], *full: str) -> bool:
    """Whether one of the flags ``full`` is given, in any spelling."""
    return any(names(flag.name, each) for flag in flags(args) for each in full)


def switched_on(args: Sequence[str], full: str) -> bool:
    """Whether a switch such as ``--enforce-eager`` is on at the end; ``--no-...`` turns it off again."""
    on = False
    for flag in flags(args):
        if names(flag.name, full):
            on = (flag.value or "true").lower() not in ("false", "0")
        elif names(flag.name, full.replace("--", "--no-", 1)):
            on = False
    return on


def compilation_config(args: Sequence[str]) -> dict[str, Any]:
    """What a command line says of vLLM's compilation config: JSON and dotted keys, the top level only.

    Text that is no JSON is left to vLLM, which says what is wrong with it.
    """
    found: dict[str, Any] = {}
    for flag in flags(args):
        attached = flag.text.removeprefix("-O").lstrip("=") if flag.text.startswith("-O") else ""
        if attached.startswith("{"):
            found.update(_json_object(attached))
        elif flag.name.startswith("-O") or any(names(flag.name, full) for full in _COMPILATION):
            found.update({flag.keys[0]: flag.value} if flag.keys else _json_object(flag.value))
    return found


def _json_object(text: str | None) -> Mapping[str, Any]:
    try:
        value = json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, Mapping) else {}
