"""Replicas over accelerators, and what each serves."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import L4, NOW, profile, spec

from specserve_operator.api.accelerator import Accelerator
from specserve_operator.api.records import Deployment
from specserve_operator.decide.identity import Found
from specserve_operator.decide.profiles import ProfileView, Stored
from specserve_operator.decide.variants import Variant, apportion, retired, target
from specserve_operator.manifests.serving import Arm


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


ACCELERATOR = Accelerator("nvidia", L4)
FOUND = Found(ACCELERATOR, ("n1",), 4, profilable=True, driver=None)
SERVES = Deployment("chat-x", "chat", ACCELERATOR.slug, generation=1, replicas=2, ready=1, profile="Static")


def variant(stored: Stored | None = None, **changes: Any) -> Variant:
    view = ProfileView("specserve-k", "Ready" if stored else "Queued", stored=stored)
    return Variant(
        **{"accelerator": ACCELERATOR, "found": FOUND, "view": view, "deployment": None, "serving": None} | changes
    )


def stored(**decision: Any) -> Stored:
    return Stored("specserve-k-1", profile("specserve-k", **decision))


@pytest.mark.parametrize(("before", "expected"), [("Static", Arm("Static")), ("Off", Arm("Off")), ("Wait", None)])
def test_before_the_first_profile_the_spec_says_what_serves(before: str, expected: Arm | None) -> None:
    assert target(spec({"speculation.beforeProfile": before}), variant()) == expected


@pytest.mark.parametrize(
    ("decision", "speculates"),
    [
        ({"verdict": "Dynamic"}, True),
        ({"verdict": "Static"}, True),
        ({"verdict": "None"}, False),
        ({"verdict": "Static", "static_k": 0}, False),
        ({"verdict": "Dynamic", "rows": ((1, 64, 0),)}, False),
    ],
)
def test_a_measured_profile_serves_as_its_verdict_says(decision: dict[str, Any], speculates: bool) -> None:
    assert target(spec(), variant(stored(**decision))) == Arm("Profile", "specserve-k-1", speculates=speculates)


def test_what_serves_is_held_while_nothing_better_is_measured() -> None:
    assert target(spec(), variant(deployment=SERVES)) is None


def test_what_never_served_is_not_held() -> None:
    broken = Deployment("chat-x", "chat", ACCELERATOR.slug, generation=1, replicas=2, ready=0, profile="Static")

    assert target(spec(), variant(deployment=broken)) == Arm("Static")
    assert target(spec(), variant(deployment=broken, serving=stored())) is None


GRACE = dt.timedelta(minutes=10)


@pytest.mark.parametrize(
    ("minutes", "ready_elsewhere", "gone"), [(0, 0, False), (9, 2, False), (9, 3, True), (10, 0, True)]
)
def test_a_variant_without_nodes_goes_after_the_grace_or_when_others_took_over(
    minutes: int, ready_elsewhere: int, gone: bool
) -> None:
    lost = variant(found=None, view=None, deployment=SERVES, missing_since=NOW)

    assert retired(lost, NOW + dt.timedelta(minutes=minutes), GRACE, ready_elsewhere, replicas=3) is gone


def test_a_variant_with_nodes_is_never_retired() -> None:
    assert not retired(variant(deployment=SERVES), NOW, GRACE, ready_elsewhere=9, replicas=3)
