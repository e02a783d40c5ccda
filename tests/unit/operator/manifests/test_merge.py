"""Pod templates merge as Kubernetes would merge them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve_operator.manifests.merge import MERGE_KEYS, merge


@pytest.mark.parametrize(
    ("under", "over", "expected"),
    [
        pytest.param({"a": 1, "b": {"c": 1, "d": 1}}, {"b": {"d": 2}}, {"a": 1, "b": {"c": 1, "d": 2}}, id="maps"),
        pytest.param({"tolerations": [1, 2]}, {"tolerations": [3]}, {"tolerations": [3]}, id="other lists whole"),
        pytest.param(
            {"containers": [{"name": "a", "image": "x", "tty": True}, {"name": "b"}]},
            {"containers": [{"name": "a", "image": "y"}, {"name": "c"}]},
            {"containers": [{"name": "a", "image": "y", "tty": True}, {"name": "b"}, {"name": "c"}]},
            id="containers by name, the lower order first",
        ),
        pytest.param(
            {"volumeMounts": [{"mountPath": "/tmp", "name": "ours"}]},
            {"volumeMounts": [{"mountPath": "/tmp", "name": "theirs"}]},
            {"volumeMounts": [{"mountPath": "/tmp", "name": "theirs"}]},
            id="mounts by path",
        ),
        pytest.param(
            {"ports": [{"containerPort": 8000, "name": "mine"}]},
            {"ports": [{"containerPort": 8000, "name": "http"}, {"containerPort": 9000}]},
            {"ports": [{"containerPort": 8000, "name": "http"}, {"containerPort": 9000}]},
            id="ports by number",
        ),
        pytest.param(
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]},
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "value": "1"}]},
            id="an env var has one source",
        ),
        pytest.param(
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]},
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]},
            id="an env var has one source, the other way round",
        ),
        pytest.param(
            {"volumes": [{"name": "tmp", "emptyDir": {}}]},
            {"volumes": [{"name": "tmp", "persistentVolumeClaim": {"claimName": "big"}}]},
            {"volumes": [{"name": "tmp", "persistentVolumeClaim": {"claimName": "big"}}]},
            id="a volume has one source",
        ),
        pytest.param(
            {"readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 9}},
            {"readinessProbe": {"tcpSocket": {"port": 1}}},
            {"readinessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 9}},
            id="a probe has one handler",
        ),
        pytest.param(
            {"volumes": [{"name": "tmp"}], "a": 1},
            {"volumes": None, "a": None},
            {"volumes": [{"name": "tmp"}], "a": 1},
            id="null says nothing",
        ),
        pytest.param({"env": None}, {"env": [{"name": "A"}]}, {"env": [{"name": "A"}]}, id="null below"),
    ],
)
def test_merges(under: dict[str, Any], over: dict[str, Any], expected: dict[str, Any]) -> None:
    before = copy.deepcopy((under, over))

    assert merge(under, over) == expected
    assert (under, over) == before


scalars = st.integers(0, 3) | st.sampled_from(["x", "y"])
fields = st.sampled_from(["a", "b", "value", "valueFrom", "exec", "httpGet"])


def _items(key: str, inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    item = st.tuples(st.sampled_from(["p", "q", "r"]), inner).map(lambda t: {**t[1], key: t[0]})
    return st.lists(item, max_size=3, unique_by=lambda i: i[key])


def _extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.dictionaries(fields, scalars | inner, max_size=3)
    lists = {field: _items(MERGE_KEYS[field], objects) for field in ("containers", "env", "volumeMounts", "volumes")}
    return st.builds(lambda plain, listed: {**plain, **listed}, objects, st.fixed_dictionaries({}, optional=lists))


specs = st.recursive(st.dictionaries(fields, scalars, max_size=3), _extend, max_leaves=12)


def contains(whole: Any, part: Any) -> bool:
    """Whether ``whole`` says everything that ``part`` says."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(f in whole and contains(whole[f], v) for f, v in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return all(any(contains(w, p) for w in whole) for p in part)
    return bool(whole == part)


@given(specs, specs)
def test_what_is_required_is_always_there(under: dict[str, Any], over: dict[str, Any]) -> None:
    assert contains(merge(under, over), over)


@given(specs, specs)
def test_merging_again_changes_nothing(under: dict[str, Any], over: dict[str, Any]) -> None:
    once = merge(under, over)

    assert merge(once, over) == once


@given(specs)
def test_nothing_on_something_and_something_on_nothing(one: dict[str, Any]) -> None:
    assert merge(one, {}) == one
    assert merge({}, one) == one


@given(specs, specs)
def test_no_key_of_a_list_comes_twice(under: dict[str, Any], over: dict[str, Any]) -> None:
    merged = merge(under, over)

    for field in ("containers", "env", "volumeMounts", "volumes"):
        keys = [item[MERGE_KEYS[field]] for item in merged.get(field, [])]
        assert len(keys) == len(set(keys))
