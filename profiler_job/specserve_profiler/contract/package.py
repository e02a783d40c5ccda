"""The profiler as one zip file, for ``PYTHONPATH`` inside an engine's image.

The operator publishes it in a ConfigMap: no image to pull, no architecture. It is the package itself, sources only,
without the rooms that a Job does not enter, and without what only a reader needs.
"""

from __future__ import annotations

import ast
import io
import zipfile
from collections.abc import Iterator
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # not there in Python 3.10
    from importlib.resources.abc import Traversable

PACKAGE = "specserve_profiler"
LEFT_OUT = frozenset({"reports", "cli"})
"""Rooms for people: they need typer, rich, matplotlib and Jinja2, which an engine's image may lack."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build_zip() -> bytes:
    """A zip of this package, the same bytes for the same sources. Works from a checkout and from an installed wheel."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, source in sorted(_sources(resources.files(PACKAGE), f"{PACKAGE}/")):
            _add(archive, name, bare(source.read_text(encoding="utf-8")).encode())
    return buffer.getvalue()


def bare(source: str) -> str:
    """The same program on the same lines, so that traces point right, without its docstrings."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), end_lineno=int(last)):
                lines[node.lineno - 1 : last] = [" " * node.col_offset + '""', *[""] * (last - node.lineno)]
    return "\n".join(lines) + "\n"


def _sources(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    """(name in the archive, file) of every source of the package that a Job needs."""
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name not in LEFT_OUT:
            yield from _sources(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield prefix + entry.name, entry


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content, compresslevel=9)
