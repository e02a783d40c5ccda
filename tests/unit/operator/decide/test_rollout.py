"""Replicas move between variants without taking anything down that serves."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specserve_operator.decide.rollout import Standing, apportion, goal, may_roll, step


@pytest.mark.parametrize(
    ("replicas", "capacities", "expected"),
    [
        (6, [4, 2], [4, 2]),
        (3, [4, 2], [2, 1]),
        (1, [4, 2], [1, 0]),
        (5, [3, 3], [3, 2]),  # a tie goes to the earlier
        (4, [1, 1, 1, 1], [1, 1, 1, 1]),
        (0, [4, 2], [0, 0]),
        (9, [4, 2], [6, 3]),  # beyond all capacity: pods that wait tell an autoscaler what is missing
        (7, [4, 2], [5, 2]),
        (2, [0, 3], [0, 2]),
        (2, [0, 0], [2, 0]),
        (2, [], []),
        (100, [97, 2, 1], [97, 2, 1]),
    ],
)
def test_replicas_are_split_in_proportion(replicas: int, capacities: list[int], expected: list[int]) -> None:
    assert apportion(replicas, capacities) == expected


@given(st.integers(0, 10000), st.lists(st.integers(0, 500), min_size=1, max_size=12))
def test_every_replica_has_a_place_and_none_waits_while_another_accelerator_has_room(
    replicas: int, capacities: list[int]
) -> None:
    shares = apportion(replicas, capacities)

    assert sum(shares) == replicas
    assert min(shares) >= 0
    crowded = any(share > capacity for share, capacity in zip(shares, capacities, strict=True))
    room = any(share < capacity for share, capacity in zip(shares, capacities, strict=True))
    assert not (crowded and room)
    assert shares == apportion(replicas, capacities)


@given(st.integers(0, 1000), st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_no_share_is_off_by_one_replica_or_more(replicas: int, capacities: list[int]) -> None:
    total = sum(capacities)
    for share, capacity in zip(apportion(replicas, capacities), capacities, strict=True):
        assert abs(share - replicas * capacity / total) < 1


def test_a_tie_goes_to_who_holds_more() -> None:
    assert apportion(5, [3, 3], [2, 3]) == [2, 3]
    assert apportion(5, [0, 0], [2, 3]) == [2, 3]


def planned(replicas: int, *standings: Standing) -> dict[str, int]:
    return step(replicas, standings, goal(replicas, standings))


SERVES = Standing("a", replicas=6, ready=6, room=8, seats=8)


def test_a_new_type_of_node_takes_nothing_from_what_serves_before_it_is_ready() -> None:
    new = Standing("b", replicas=0, ready=0, room=8, seats=8)

    assert planned(6, SERVES, new) == {"a": 6, "b": 3}
    assert planned(6, SERVES, replace(new, replicas=3, unready=3)) == {"a": 6, "b": 3}
    assert planned(6, SERVES, replace(new, replicas=3, ready=1, unready=2)) == {"a": 5, "b": 3}
    assert planned(6, replace(SERVES, replicas=5, ready=5), replace(new, replicas=3, ready=3)) == {"a": 3, "b": 3}


@pytest.mark.parametrize(
    "half",
    [
        pytest.param({"seats": 4, "room": 8}, id="half of its nodes cordoned, pods still on them"),
        pytest.param({"seats": 4, "room": 8, "ready": 2, "unready": 2}, id="half of its nodes not Ready"),
        pytest.param({"seats": 4, "room": 8, "ready": 2}, id="and their pods evicted: others wait for a node"),
        pytest.param({"seats": 0, "room": 8}, id="its device plugin restarts everywhere"),
        pytest.param({"seats": 0, "room": 8, "ready": 0, "unready": 4}, id="all not Ready"),
    ],
)
def test_nodes_that_cannot_be_used_just_now_move_nothing(half: dict[str, int]) -> None:
    one = replace(Standing("a", replicas=4, ready=4), **half)
    other = Standing("b", replicas=4, ready=4, room=8, seats=8)

    assert planned(8, one, other) == {"a": 4, "b": 4}


def test_with_all_nodes_unusable_nothing_moves() -> None:
    one = Standing("a", replicas=4, ready=0, room=8, unready=4)
    other = Standing("b", replicas=2, ready=2, room=4)

    assert planned(6, one, other) == {"a": 4, "b": 2}
    assert planned(6, replace(one, room=0), replace(other, room=0)) == {"a": 4, "b": 2}


def test_pods_that_no_node_took_for_a_grace_period_go_where_there_is_a_seat() -> None:
    one = Standing("a", replicas=4, ready=1, room=8, seats=1, stuck=3)
    other = Standing("b", replicas=4, ready=4, room=8, seats=8)

    assert planned(8, one, other) == {"a": 1, "b": 7}


def test_a_variant_without_nodes_is_awaited_and_then_replaced() -> None:
    lost = Standing("a", replicas=4, ready=3, present=False, awaited=True)
    other = Standing("b", replicas=2, ready=2, room=8, seats=8)

    assert planned(6, lost, other) == {"a": 4, "b": 3}
    assert planned(6, replace(lost, ready=0), other) == {"a": 4, "b": 6}
    assert planned(6, replace(lost, awaited=False), other) == {"a": 3, "b": 6}
    assert planned(6, replace(lost, awaited=False), replace(other, replicas=6, ready=4)) == {"a": 2, "b": 6}
    # With nothing beside it its pods wait, so that an autoscaler brings a node back.
    assert planned(6, replace(lost, ready=0, awaited=False)) == {"a": 4}


def test_fewer_replicas_are_given_up_at_once() -> None:
    other = Standing("b", replicas=2, ready=2, room=8, seats=8)

    assert planned(2, SERVES, other) == {"a": 1, "b": 1}
    assert planned(0, SERVES, other) == {"a": 0, "b": 0}
    assert planned(1, Standing("a", replicas=3, ready=3, present=False)) == {"a": 1}


def test_one_variant_rolls_at_a_time() -> None:
    other = Standing("b", replicas=2, ready=2, room=2, seats=2)

    assert may_roll(SERVES, [SERVES, other])
    assert not may_roll(SERVES, [SERVES, replace(other, rolling=True)])
    assert not may_roll(SERVES, [SERVES, replace(other, ready=1, unready=1)])
    assert may_roll(SERVES, [SERVES, replace(other, ready=1)])  # its other pod waits for a node, maybe for ever
    assert may_roll(replace(SERVES, ready=0, unready=6), [SERVES, replace(other, rolling=True)])
    assert may_roll(replace(SERVES, rolling=True), [replace(SERVES, rolling=True), other])  # a mended template


def test_a_mended_template_reaches_variants_that_are_broken() -> None:
    one, two = (Standing(slug, replicas=3, ready=2, room=4, seats=4, unready=1) for slug in "ab")
    well = Standing("c", replicas=2, ready=2, room=2, seats=2)
    broken = [one, two, well]

    assert [may_roll(s, broken) for s in broken] == [True, True, False]
    rolls = replace(one, rolling=True)
    assert [may_roll(s, [rolls, two, well]) for s in (rolls, two, well)] == [True, False, False]
    stuck = [replace(s, rolling=True) for s in (one, two)]  # the second rolled while none of its pods was ready
    assert [may_roll(s, stuck) for s in stuck] == [True, True]
    assert not may_roll(replace(stuck[0], unready=0), stuck)


def test_pods_that_are_unready_for_a_moment_are_not_given_up_while_replicas_are_missing() -> None:
    shrinks = replace(SERVES, ready=3, unready=3)
    new = Standing("b", replicas=3, ready=0, room=8, seats=8, unready=3)

    assert planned(6, shrinks, new) == {"a": 6, "b": 3}
    assert planned(6, shrinks, replace(new, ready=1, unready=2)) == {"a": 5, "b": 3}
    assert planned(6, shrinks, replace(new, ready=3, unready=0)) == {"a": 3, "b": 3}
    gone = Standing("a", replicas=4, ready=0, unready=4, present=False)
    assert planned(6, gone, Standing("b", replicas=6, ready=5, room=8, seats=8)) == {"a": 1, "b": 6}
    assert planned(6, gone, Standing("b", replicas=6, ready=6, room=8, seats=8)) == {"a": 0, "b": 6}
    # Fewer wanted are fewer, though none of them is ready.
    assert planned(2, replace(SERVES, ready=0, unready=6)) == {"a": 2}


@dataclass
class _Type:
    """A variant in a small cluster: its nodes, and its pods by what they are."""

    room: int
    usable: int
    replicas: int = 0
    ready: int = 0
    starting: int = 0
    pending: int = 0
    told: int = 0
    """Ready pods as the last status says."""
    stuck: bool = False
    present: bool = True
    awaited: bool = False

    @property
    def placed(self) -> int:
        return self.ready + self.starting

    def standing(self, slug: str) -> Standing:
        return Standing(
            slug, self.replicas, min(self.told, self.replicas), self.room if self.present else 0,
            self.usable if self.present else 0, self.pending if self.stuck else 0, self.starting,
            present=self.present, awaited=self.awaited and not self.present,
        )  # fmt: skip

    def fail(self, count: int) -> None:
        """So many of its ready pods are not ready any more; they stay where they are."""
        self.ready -= count
        self.starting += count

    def control(self) -> None:
        """The ReplicaSet: what is not ready goes first."""
        above = self.ready + self.starting + self.pending - self.replicas
        for kind in ("pending", "starting", "ready"):
            gone = min(max(above, 0), getattr(self, kind))
            setattr(self, kind, getattr(self, kind) - gone)
            above -= gone
        self.pending += max(-above, 0)

    def schedule(self) -> None:
        started = min(self.pending, max(self.usable - self.ready - self.starting, 0) if self.present else 0)
        self.pending -= started
        self.starting += started
        self.stuck = False


class Replicas(RuleBasedStateMachine):
    """A fleet whose nodes and pods come and go, with controllers that follow what is planned."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas = 4
        self.types: dict[str, _Type] = {"a": _Type(room=4, usable=4)}
        self.ready_before: int | None = None

    def plan(self) -> dict[str, int]:
        return planned(self.replicas, *(t.standing(slug) for slug, t in self.types.items()))

    @rule()
    def operate(self) -> None:
        """One round, and what its writes lead to at once."""
        before, placed = (sum(count) for count in zip(*((t.ready, t.placed) for t in self.types.values()), strict=True))
        told = all(t.told == t.ready for t in self.types.values())
        for slug, count in self.plan().items():
            self.types[slug].replicas = count
        for t in self.types.values():
            t.control()
        after = sum(t.ready for t in self.types.values())
        if told:
            assert after >= min(before, self.replicas)
            if before < self.replicas:
                assert sum(t.placed for t in self.types.values()) >= min(placed, self.replicas)

    @rule()
    def tell(self) -> None:
        for t in self.types.values():
            t.told = t.ready

    @rule(data=st.data())
    def kubelet(self, data: st.DataObject) -> None:
        t = self.types[data.draw(st.sampled_from(sorted(self.types)))]
        t.schedule()
        ready = data.draw(st.integers(0, t.starting))
        t.starting -= ready
        t.ready += ready

    @rule(data=st.data())
    def nodes_change(self, data: st.DataObject) -> None:
        """Cordoned, not Ready, back: pods stay where they are."""
        t = self.types[data.draw(st.sampled_from(sorted(self.types)))]
        t.usable = data.draw(st.integers(0, t.room))
        t.fail(data.draw(st.integers(0, t.ready)))

    @rule(data=st.data())
    def blip(self, data: st.DataObject) -> None:
        """Some ready pods are unready for a moment: a probe that times out, a node that is not Ready."""
        t = self.types[data.draw(st.sampled_from(sorted(self.types)))]
        t.fail(data.draw(st.integers(0, t.ready)))

    @rule(data=st.data())
    def labels_change(self, data: st.DataObject) -> None:
        t = self.types[data.draw(st.sampled_from(sorted(self.types)))]
        t.present = not t.present
        t.awaited = not t.present

    @rule()
    def time_passes(self) -> None:
        for t in self.types.values():
            t.stuck = t.pending > 0
            t.awaited = False

    @precondition(lambda self: len(self.types) < 4)
    @rule(room=st.integers(1, 6))
    def new_type(self, room: int) -> None:
        self.types["abcd"[len(self.types)]] = _Type(room=room, usable=room)

    @rule(replicas=st.integers(0, 9))
    def scale(self, replicas: int) -> None:
        self.replicas = replicas

    @invariant()
    def nothing_is_negative(self) -> None:
        assert all(count >= 0 for count in self.plan().values())

    def teardown(self) -> None:
        """Once nothing more happens it comes to rest, with as many replicas as wanted where there is room."""
        self.time_passes()
        for _ in range(40):
            self.operate()
            for t in self.types.values():
                t.schedule()
                t.ready, t.starting = t.ready + t.starting, 0
                t.stuck = t.pending > 0
            self.tell()
        rest = {slug: t.replicas for slug, t in self.types.items()}
        assert self.plan() == rest
        room = sum(t.usable for t in self.types.values() if t.present)
        assert sum(t.ready for t in self.types.values()) >= min(self.replicas, room)


Replicas.TestCase.settings = settings(
    max_examples=int(os.environ.get("SPECSERVE_SOAK", "1")) * 150, stateful_step_count=40, deadline=None
)
TestReplicas = Replicas.TestCase
