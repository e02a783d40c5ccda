"""References to variables: expanded as the kubelet does (k8s.io/kubernetes/third_party/forked/golang/expansion)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve_profiler.contract.variables import escape, expand, references

VARIABLES = {"VAR_A": "A", "VAR_B": "B", "VAR_REF": "$(VAR_A)", "VAR_EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(VAR_A)", "A"),
        ("___$(VAR_B)___", "___B___"),
        ("$(VAR_A)-1$(VAR_B)", "A-1B"),
        ("foo$(VAR_EMPTY)bar", "foobar"),
        ("$(VAR_REF)", "$(VAR_A)"),
        ("$(VAR_DNE)", "$(VAR_DNE)"),
        ("$(VAR_A", "$(VAR_A"),
        ("$VAR_A", "$VAR_A"),
        ("$$", "$"),
        ("$$(VAR_A)", "$(VAR_A)"),
        ("$$$(VAR_A)", "$A"),
        ("$$$$(VAR_A)", "$$(VAR_A)"),
        ("$$$$$$$(VAR_A)", "$$$A"),
        ("$(VAR_A$(VAR_B))", "$(VAR_A$(VAR_B))"),
        ("$(VAR_A$(VAR_B", "$(VAR_A$(VAR_B"),
        ("$()", "$()"),
        ("foo$", "foo$"),
        ("f000-$$VAR_A", "f000-$VAR_A"),
        ("foo\\$(VAR_A)", "foo\\A"),
    ],
)
def test_texts_are_expanded_as_the_kubelet_does(text: str, expanded: str) -> None:
    assert expand(text, VARIABLES) == expanded


@given(st.text(alphabet='$()VAR_A \n"é'))
def test_what_is_escaped_arrives_as_it_was(text: str) -> None:
    assert expand(escape(text), {"VAR_A": "another", "": "another"}) == text


def test_the_names_that_texts_refer_to() -> None:
    assert references("--a=$(B) $(A)", "$$(C)", "$(B)$(D") == ("A", "B")
