"""Tables on a terminal, results as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel


def say(message: str) -> None:
    """Progress, apart from the results."""
    print(f"[bench] {message}", file=sys.stderr, flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table with columns of even width."""
    cells = [list(map(str, head)), *(list(map(str, row)) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = [" | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in cells]
    rule = "|".join("-" * (width + 2) for width in widths)
    return "\n".join([f"| {lines[0]} |", f"|{rule}|", *(f"| {line} |" for line in lines[1:])])


def percent(share: float) -> str:
    """A share as a person reads it."""
    return f"{100 * share:.1f} %"


def write_json(path: Path, value: Any) -> None:
    """Writes a result to a temporary name and renames it, so that a file that is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(plain(value), indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def plain(value: Any) -> Any:
    """What JSON knows: models and dataclasses as objects, keys as texts."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in (field.name for field in fields(value))}
    if isinstance(value, dict):
        return {key if isinstance(key, str) else _key(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value


def _key(key: object) -> str:
    return ",".join(map(str, key)) if isinstance(key, tuple) else str(key)
