"""Faults of earlier versions in the model's terms, each as short as it became: ready pods, results and tables are kept.

What must hold is looked at by ``Watch`` at every step; a story that breaks it raises.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tests.builders import A100, L4, edited, template
from tests.unit.operator.model.controllers import DEVICE, is_ready, labels_of
from tests.unit.operator.model.server import with_meta, with_spec, with_status
from tests.unit.operator.model.story import Story
from tests.unit.operator.model.world import Loop

from specserve_operator.api import names


@pytest.fixture
def story() -> Iterator[Story]:
    """A serving of 6 replicas on 8 devices of one type, with its table."""
    logging.disable(logging.CRITICAL)
    with Loop() as loop:
        told = Story(loop)
        for node in told.server.all("Node"):
            told.server.remove("Node", node["metadata"]["name"])
        for _ in range(2):
            told.add_node(L4, 4)
        edit(told, {"spec.replicas": 6})
        go_on(told, 8)
        assert (ready(told), tables(told)) == (6, 1)
        yield told
    logging.disable(logging.NOTSET)


def edit(story: Story, edits: dict[str, Any]) -> None:
    story.server.put(edited(story.named("SpeculativeServing", "chat"), edits))


def go_on(story: Story, rounds: int, seconds: float = 20) -> int:
    """So many rounds in which all goes well; returns the fewest ready pods after any of them."""
    fewest = ready(story)
    for _ in range(rounds):
        story.all_goes_well()
        story.world.pass_time(seconds)
        fewest = min(fewest, ready(story))
    return fewest


def ready(story: Story) -> int:
    return sum(map(is_ready, story.world.pods_of("chat")))


def tables(story: Story) -> int:
    """Profiles that Deployments serve by."""
    served = {d["metadata"]["annotations"][names.PROFILE] for d in story.world.deployments_of("chat")}
    return sum(story.server.get("ConfigMap", name) is not None for name in served)


def test_nodes_of_a_new_type_take_no_ready_replica_before_theirs_are_ready(story: Story) -> None:
    story.add_node(A100, 8)

    assert go_on(story, 3) == 6
    assert go_on(story, 12) == 5, "they roll from a fixed K to their table, one at a time"
    assert (ready(story), tables(story)) == (6, 2)


@pytest.mark.parametrize("which", [1, 2])
def test_nodes_that_are_cordoned_move_nothing(story: Story, which: int) -> None:
    story.add_node(A100, 8)
    go_on(story, 12)
    for node in story.server.all("Node")[:which]:
        story.server.put(with_spec(node, unschedulable=True))

    assert go_on(story, 12, seconds=300) == 6


def test_devices_that_are_gone_for_a_day_leave_pods_where_they_are(story: Story) -> None:
    for node in story.server.all("Node"):
        story.server.put(with_status(node, allocatable={DEVICE: "0"}, capacity={DEVICE: "0"}))

    assert go_on(story, 12, seconds=7200) == 6


def test_labels_that_are_gone_for_a_day_leave_pods_where_they_are(story: Story) -> None:
    for node in story.server.all("Node"):
        story.server.put(with_meta(node, labels={}))

    assert go_on(story, 12, seconds=7200) == 6


def test_a_variant_that_shrinks_while_it_rolls_keeps_ready_pods(story: Story) -> None:
    """The Deployment's controller takes from each template in proportion: ready pods, though others are not."""
    story.add_node(A100, 8)
    story.world.hear_all()
    story.world.round("chat")
    story.world.deployments()
    story.controllers.schedule()  # those of the new type are not ready yet
    (there,) = (d for d in story.world.deployments_of("chat") if labels_of(d)[names.VARIANT].startswith("nvidia-l4"))
    changed = edited(
        there,
        {"spec.template.metadata.labels": {**there["spec"]["template"]["metadata"]["labels"], "somebody": "here"}},
    )
    story.server.put(changed, "kubectl-edit")
    story.world.deployments()
    story.world.deployments()  # one of the old pods has gone, and one of the new ones is made
    assert ready(story) == 5

    story.world.hear_all()
    story.world.round("chat")
    story.world.deployments()

    assert ready(story) == 5


def test_an_engine_that_is_held_does_not_get_a_new_environment(story: Story) -> None:
    """Nothing of its first podTemplate was to be kept, and so it got all of the new one, unmeasured."""
    edit(story, template({"containers": [{"name": "engine", "env": [{"name": "A", "value": "1"}]}]}))

    story.world.round("chat")

    (deployment,) = story.world.deployments_of("chat")
    env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    assert [e["name"] for e in env] == ["HOME", "USER", "SPECSERVE_SPECULATIVE_CONFIG"]


def test_a_measurement_that_ends_after_another_was_asked_for_is_stored(story: Story) -> None:
    edit(story, {"spec.engine.args": ["--gpu-memory-utilization=0.8"]})
    story.world.round("chat")
    story.world.run_controllers()
    edit(story, {"metadata.annotations": {names.REPROFILE: "again"}})

    go_on(story, 12)

    profiles = [c for c in story.server.all("ConfigMap") if labels_of(c).get(names.ROLE) == names.ROLE_PROFILE]
    assert len(profiles) == 3


def test_a_pod_does_not_start_on_a_shared_device_of_its_product(story: Story) -> None:
    for node in story.server.all("Node")[:1]:
        labels = {f"{DEVICE}.product": L4, f"{DEVICE}.sharing-strategy": "time-slicing"}
        story.server.put(with_meta(node, labels=labels))
    for pod in story.world.pods_of("chat"):
        story.server.remove("Pod", pod["metadata"]["name"])

    go_on(story, 6)

    shared = story.server.all("Node")[0]["metadata"]["name"]
    assert {p["spec"].get("nodeName") for p in story.world.pods_of("chat")}.isdisjoint({shared})
