"""What people do to children and to the status by hand: it is put right, or does no harm."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import A100, SERVING, edited, later, node, profile
from tests.memory import World

ON_L4 = "chat-nvidia-l4-ea1e09"
PROFILE, WHY = "specserve.dev/profile", "specserve.dev/why"


@pytest.fixture
async def w() -> World:
    made = World(SERVING, node("n1", devices=4))
    await made.settle()
    return made


def annotate(w: World, kind: str, name: str, annotation: str, value: str) -> None:
    obj = w.api.of(kind, name)
    assert obj is not None
    obj["metadata"]["annotations"][annotation] = value
    w.api.put(obj)
    w.sync()


async def test_an_annotation_of_a_deployment_is_put_right(w: World) -> None:
    annotate(w, "Deployment", ON_L4, PROFILE, "x" * 300)

    await w.settle()

    assert w.deployment(ON_L4)["metadata"]["annotations"][PROFILE] == "Static"
    assert w.status().accelerators[0].serving == "Static"


async def test_an_annotation_beyond_every_bound_of_the_status_does_no_harm(w: World) -> None:
    annotate(w, "Job", w.jobs[0], WHY, "x" * 300)

    await w.settle()

    found = w.status().accelerators[0].profile
    assert (found.state, found.reason) == ("Queued", "x" * 61 + "\u2026")


async def test_a_copy_of_a_deployment_is_not_taken_for_it(w: World) -> None:
    copy = edited(w.deployment(ON_L4), {"metadata.name": "copy"})
    del copy["metadata"]["uid"]
    w.api.put(copy)
    w.sync()

    w.edit({"spec.replicas": 2})
    await w.settle()

    assert w.replicas() == {ON_L4: 2, "copy": 3}


@pytest.mark.parametrize("text", ["yesterday", "2026-11-03", "9999-12-31T23:59:59Z", ""])
async def test_a_time_of_the_status_that_cannot_be_begins_the_grace_anew(w: World, text: str) -> None:
    w.finish(w.jobs[0], profile(w.key_of(w.jobs[0])))
    await w.settle()
    w.remove("Node", "n1")
    w.api.put(node("n2", A100))
    await w.settle()
    assert w.status().accelerators[1].missing_since == later(0)

    status: dict[str, Any] = w.status().model_dump(mode="json", by_alias=True, exclude_none=True)
    status["accelerators"][1]["missingSince"] = text
    w.edit({"status": status})
    w.pass_time(60)
    await w.settle()
    assert w.status().accelerators[1].missing_since == later(60)

    w.pass_time(601)
    await w.settle()
    assert [a.product for a in w.status().accelerators] == ["NVIDIA-A100-SXM4-80GB"]


async def test_more_accelerators_than_the_status_holds_are_served_all_the_same() -> None:
    w = World(edited(SERVING, {"spec.replicas": 70}), *(node(f"n{n}", f"GPU-{n}") for n in range(70)))

    await w.settle()

    assert len(w.replicas()) == 70
    assert len(w.status().accelerators) == 64
