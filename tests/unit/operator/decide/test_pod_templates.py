"""Whatever a podTemplate holds, there is a plan: the objects of it, or a refusal that names the field."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import SERVING, node, profile
from tests.memory import World

from specserve_operator.decide.core import decide
from specserve_operator.decide.model import Plan, Snapshot

FIELDS = [
    "affinity", "containers", "containerPort", "env", "envFrom", "image", "imagePullSecrets", "initContainers",
    "limits", "matchExpressions", "mountPath", "name", "nodeAffinity", "nodeSelector", "nodeSelectorTerms", "ports",
    "requests", "requiredDuringSchedulingIgnoredDuringExecution", "resources", "runAsUser", "securityContext",
    "tolerations", "topologyKey", "value", "valueFrom", "volumeMounts", "volumes",
]  # fmt: skip
scalars = (
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.sampled_from(["", "a", "engine", "$(A)"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=20,
)
named = st.fixed_dictionaries(
    {"name": st.sampled_from(["engine", "a", "PYTHONPATH"])},
    optional=dict.fromkeys(("env", "resources", "securityContext", "ports", "volumeMounts", "value"), values),
)
env = st.lists(st.fixed_dictionaries({"name": st.sampled_from(["A", "B", "PYTHONPATH"])}, optional={"value": values}))
engines = st.fixed_dictionaries({"name": st.just("engine")}, optional={"env": env, "resources": values})
pods = st.one_of(
    values,
    st.fixed_dictionaries({"containers": st.lists(named | engines, max_size=3)}, optional={"volumes": st.lists(named)}),
    st.fixed_dictionaries({"affinity": st.fixed_dictionaries({"nodeAffinity": values})}),
)
templates = st.dictionaries(st.sampled_from(["metadata", "spec"]), values) | pods.map(lambda pod: {"spec": pod})


@cache
def before() -> tuple[Snapshot, ...]:
    """A fresh serving, and one whose pods are ready."""

    async def made() -> tuple[Snapshot, ...]:
        w = World(SERVING, node("n1", devices=4))
        fresh = await w.snapshot()
        await w.settle()
        for job in w.jobs:
            w.finish(job, profile(w.key_of(job)))
        await w.settle()
        w.roll_out()
        return fresh, await w.snapshot()

    return asyncio.run(made())


def plans(template: Any) -> list[Plan]:
    def with_template(snapshot: Snapshot) -> Snapshot:
        spec = snapshot.serving.spec.model_copy(update={"pod_template": template})
        return replace(snapshot, serving=snapshot.serving.model_copy(update={"spec": spec}))

    return [decide(with_template(snapshot)) for snapshot in before()]


@given(templates)
def test_every_template_has_a_plan(template: dict[str, Any]) -> None:
    for plan in plans(template):
        accepted = next(c for c in plan.status.conditions if c.type == "Accepted")
        if accepted.status == "False":
            assert accepted.reason == "InvalidSpec"
            assert accepted.message.startswith("podTemplate")
            assert not (plan.apply or plan.measure)
        for obj in (*plan.apply, *(job.manifest for job in plan.measure)):
            json.dumps(obj)


@pytest.mark.parametrize("levels", [30, 31, 100, 900])
@pytest.mark.parametrize("kind", ["object", "list"])
def test_however_deep_a_template_is(levels: int, kind: str) -> None:
    value: Any = "x"
    for _ in range(levels):
        value = {"a": value} if kind == "object" else [value]

    for plan in plans({"spec": {"a": value}}):
        accepted = next(c for c in plan.status.conditions if c.type == "Accepted")
        assert accepted.message.startswith("podTemplate.spec: nested more than 32 deep") is (levels > 30)
