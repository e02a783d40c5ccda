"""The shared view of the fleet: it equals a survey of all nodes, and only those are woken whose view changed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.builders import A100, L4, edited, node, spec

from devcluster.pace import patience
from specserve_operator.api.records import Json, Node, Ref
from specserve_operator.api.serving import AcceleratorsSpec
from specserve_operator.decide.identity import Fleet, survey
from specserve_operator.reconcile.fleets import TELL_SECONDS, Fleets, View
from specserve_operator.store.client import NODES
from specserve_operator.store.mirror import Mirror

CHAT, CODE = Ref("team", "chat"), Ref("team", "code")


def asks(**fields: Any) -> AcceleratorsSpec:
    return spec({f"accelerators.{field}": value for field, value in fields.items()}).accelerators


QUESTIONS = (
    asks(),
    asks(perReplica=2),
    asks(nodeSelector={"pool": "serving"}),
    asks(allowShared=True, identityLabels=["pool"]),
    asks(resource="cpu"),
)
NAMES = st.sampled_from(["n1", "n2", "n3", "n4", "n5"])
LABELS = st.dictionaries(
    st.sampled_from(["pool", "nvidia.com/gpu.sharing-strategy", "nvidia.com/gpu-driver-upgrade-state",
                     "nvidia.com/cuda.driver-version.full", "specserve.dev/accelerator", "other"]),
    st.sampled_from(["serving", "time-slicing", "none", "upgrade-done", "570.1", "560.2", ""]),
)  # fmt: skip
NODE = st.builds(
    node, NAMES, st.sampled_from([L4, A100, ""]), st.integers(0, 4), labels=LABELS, ready=st.booleans(),
    cordoned=st.booleans(),
)  # fmt: skip
STEPS = st.lists(st.one_of(NODE, NAMES), max_size=30)
"""A node as it is from now on, or the name of one that is gone."""


@given(STEPS, st.sampled_from(QUESTIONS), st.sampled_from(["Ignore", "Major", "Full"]))
def test_after_any_sequence_of_events_a_view_is_the_survey_of_all_nodes(
    steps: list[Json | str], wanted: AcceleratorsSpec, policy: str
) -> None:
    view, fleet = View(wanted, policy), dict[str, Node]()
    for step in steps:
        before = view.fleet
        if isinstance(step, str):
            fleet.pop(step, None)
            told = view.put(step, None)
        else:
            fleet[step["metadata"]["name"]] = Node.read(step)
            told = view.put(step["metadata"]["name"], Node.read(step))
        assert view.fleet == survey(fleet.values(), wanted, policy)
        assert told or view.fleet == before


class Cluster:
    """Nodes, those who ask about them, and who was woken."""

    def __init__(self, *nodes: Json) -> None:
        self.mirror = Mirror(NODES, Node.read)
        self.woken: list[Ref] = []
        self.fleets = Fleets(self.mirror, self.woken.append)
        for obj in nodes:
            self.put(obj)

    def put(self, obj: Json) -> None:
        self.mirror._hear("ADDED", obj)

    def remove(self, obj: Json) -> None:
        self.mirror._hear("DELETED", obj)

    async def ask(self, asker: Ref, **fields: Any) -> Fleet:
        return await self.fleets.of(asker, asks(**fields), "Major")

    async def told(self) -> set[Ref]:
        """Who is woken by what has happened."""
        await asyncio.sleep(3 * TELL_SECONDS)
        woken = set(self.woken)
        self.woken.clear()
        return woken


ON_L4 = {"nodeSelector": {"nvidia.com/gpu.product": L4}}
ON_A100 = {"nodeSelector": {"nvidia.com/gpu.product": A100}}


async def two() -> Cluster:
    """``chat`` asks for L4, ``code`` for A100."""
    c = Cluster(node("n1", L4), node("n2", A100), node("n3", ""))
    await c.ask(CHAT, **ON_L4)
    await c.ask(CODE, **ON_A100)
    return c


async def test_a_new_node_wakes_those_whose_accelerator_it_has() -> None:
    c = await two()

    c.put(node("n4", L4))

    assert await c.told() == {CHAT}


async def test_a_label_change_wakes_exactly_those_who_lose_the_node_and_those_who_gain_it() -> None:
    c = await two()
    await c.ask(Ref("team", "cpus"), resource="cpu")

    c.put(node("n1", A100))

    assert await c.told() == {CHAT, CODE}
    assert [len(f.nodes) for f in (await c.ask(CODE, **ON_A100)).found] == [2]
    assert (await c.ask(CHAT, **ON_L4)).found == ()


async def test_labels_that_say_nothing_about_accelerators_wake_nobody() -> None:
    c = await two()

    c.put(node("n1", L4, labels={"example.com/rack": "7"}))

    assert await c.told() == set()


async def test_a_heartbeat_is_no_change() -> None:
    c = await two()
    beat = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-03T12:05:00Z"}

    c.put(edited(node("n1", L4), {"status.conditions": [beat]}))

    assert await c.told() == set()


async def test_nodes_with_cpus_only_come_and_go_and_wake_nobody() -> None:
    c = Cluster(node("n1", L4))
    await c.ask(CHAT)
    for _ in range(3):
        c.put(node("cpus", "", 0))
        assert await c.told() == set()
        c.remove(node("cpus", "", 0))
        assert await c.told() == set()


async def test_a_cordon_wakes_those_whose_accelerator_the_node_has_and_nobody_else() -> None:
    c = await two()

    c.put(node("n3", "", cordoned=True))
    assert await c.told() == set()
    c.put(node("n1", L4, cordoned=True))
    assert await c.told() == {CHAT}


async def test_who_saw_a_state_between_two_changes_is_told_of_the_second() -> None:
    """Though in the end all is as it was when it was told last."""
    c = await two()
    c.put(node("n4", L4))
    assert [len(f.nodes) for f in (await c.ask(CHAT, **ON_L4)).found] == [2]

    c.remove(node("n4", L4))

    assert await c.told() == {CHAT}


async def test_who_asks_otherwise_or_is_forgotten_is_not_woken_for_the_old_question() -> None:
    c = await two()
    await c.ask(CHAT, **ON_A100)
    c.fleets.forget(CODE)

    c.put(node("n1", L4, devices=4))
    assert await c.told() == set()
    c.put(node("n2", A100, devices=4))
    assert await c.told() == {CHAT}


async def test_nodes_that_change_while_a_view_is_made_are_in_it() -> None:
    c = Cluster(*(node(f"n{number:04}", L4) for number in range(1000)))
    asking = [asyncio.create_task(c.ask(asker)) for asker in (CHAT, CODE)]
    await asyncio.sleep(0)  # the first slice is done
    c.remove(node("n0001", L4))
    c.remove(node("n0900", L4))
    c.put(node("n1000", L4))

    fleets = await asyncio.wait_for(asyncio.gather(*asking), patience(5))

    assert [fleet.found[0].room for fleet in fleets] == [999, 999]


async def test_making_a_view_of_a_large_fleet_goes_slice_by_slice() -> None:
    """Told by turns of the event loop: times would be those of the machine."""
    c = Cluster(*(node(f"n{number:04}", L4) for number in range(2000)))
    asking, turns = asyncio.create_task(c.ask(CHAT)), 0
    while not asking.done():
        await asyncio.sleep(0)
        turns += 1

    assert turns >= 2000 / 200


def names_of(fleet: Fleet) -> Mapping[str, list[str]]:
    return {found.accelerator.product: sorted(found.nodes) for found in fleet.found}


async def test_each_question_has_its_own_answer() -> None:
    c = Cluster(node("n1", L4, 2), node("n2", A100, 8), node("n3", L4, 1, labels={"pool": "serving"}))

    assert names_of(await c.ask(CHAT)) == {A100: ["n2"], L4: ["n1", "n3"]}
    assert names_of(await c.ask(CODE, perReplica=2)) == {A100: ["n2"], L4: ["n1"]}
    assert names_of(await c.ask(CODE, nodeSelector={"pool": "serving"})) == {L4: ["n3"]}
