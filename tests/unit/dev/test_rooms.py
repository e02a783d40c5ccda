"""The picture of rooms in docs/architecture.md."""

from __future__ import annotations

import pytest

from rooms.draw import section
from rooms.read import ROOT, reduced


def test_the_page_shows_the_rooms_as_the_imports_are() -> None:
    """`make rooms` writes it."""
    assert section() in (ROOT / "docs" / "architecture.md").read_text()


def test_an_arrow_that_a_longer_way_says_is_left_out() -> None:
    assert reduced({"cli": {"session", "contract"}, "session": {"contract"}, "contract": set()}) == {
        "cli": {"session"},
        "session": {"contract"},
        "contract": set(),
    }


def test_a_circle_of_rooms_is_told() -> None:
    with pytest.raises(ValueError, match="circle: a -> b -> a"):
        reduced({"a": {"b"}, "b": {"a"}})
