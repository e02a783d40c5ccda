"""Each stop of docs/tour.md is where the page says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
STOP = re.compile(r"\[`([\w/]+\.py)`\]\(\.\./([\w/]+\.py)\)((?:\s+`[\w.]+`)+)")


def stops() -> list[tuple[str, str, str]]:
    """(file as it is called, file as it is linked, name) of every stop."""
    found = STOP.findall((DOCS / "tour.md").read_text())
    return [(called, linked, name) for called, linked, names in found for name in re.findall(r"`([\w.]+)`", names)]


def defined(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Functions and classes of a module, methods as ``Class.method``."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from defined(node.body, f"{prefix}{node.name}.")


def test_the_tour_has_its_stops() -> None:
    assert len(stops()) > 40
    text = (DOCS / "tour.md").read_text()
    assert text.count("](../") == len(STOP.findall(text)), "a link that names nothing to read"


@pytest.mark.parametrize(("called", "linked", "name"), stops())
def test_each_stop_is_there(called: str, linked: str, name: str) -> None:
    path = DOCS.parent / linked

    assert linked.endswith(f"/{called}")
    assert name in set(defined(ast.parse(path.read_text()).body))
