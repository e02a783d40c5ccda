"""Replicas over accelerators, and what each serves."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from tests.builders import L4, NOW, profile, spec

from specserve_operator.api.accelerator import Accelerator
from specserve_operator.api.records import Deployment, Pod
from specserve_operator.decide.identity import Fleet, Found
from specserve_operator.decide.profiles import ProfileView, Stored
from specserve_operator.decide.variants import Variant, retired, target
from specserve_operator.manifests.serving import Arm

ACCELERATOR = Accelerator("nvidia", L4)
FOUND = Found(ACCELERATOR, frozenset({"n1"}), 4, 4, frozenset({"n1"}), profilable=True, driver=None)
SERVES = Deployment("chat-x", "chat", ACCELERATOR.slug, generation=1, replicas=2, ready=1, profile="Static")


def variant(stored: Stored | None = None, **changes: Any) -> Variant:
    view = ProfileView("specserve-k", "Ready" if stored else "Queued", stored=stored)
    return Variant(
        **{"accelerator": ACCELERATOR, "found": FOUND, "view": view, "deployment": None, "serving": None} | changes
    )


def stored(**decision: Any) -> Stored:
    found = profile("specserve-k", **decision)
    return Stored("specserve-k-1", found.key, found.measured_at, found.decision)


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
RELABELLED = Fleet((replace(FOUND, accelerator=Accelerator("manual", "lab-box")),), 1, ())


def gone(variant: Variant, pods: list[Pod], fleet: Fleet, minutes: int, ready_elsewhere: int) -> bool:
    now = NOW + dt.timedelta(minutes=minutes)
    return retired(variant, pods, fleet, now=now, grace=GRACE, ready_elsewhere=ready_elsewhere, replicas=3)


@pytest.mark.parametrize(
    ("minutes", "ready", "placed", "ready_elsewhere", "fleet", "expected"),
    [
        (0, 1, True, 0, Fleet((), 1, ()), False),
        (9, 1, True, 2, Fleet((), 1, ()), False),
        (9, 1, True, 3, Fleet((), 1, ()), True),  # replaced
        (9, 0, False, 0, Fleet((), 1, ()), False),
        (10, 0, False, 0, Fleet((), 1, ()), True),  # over its grace, and nothing of it serves
        (10, 1, True, 0, Fleet((), 1, ()), False),  # its labels are gone, its pods are ready: nobody replaced them
        (10, 0, True, 0, Fleet((), 1, ()), False),  # they are not ready for a moment
        (9, 1, True, 0, RELABELLED, False),
        (10, 1, True, 0, RELABELLED, True),  # its nodes are another accelerator: the table is not for that
    ],
)
def test_a_variant_without_nodes_goes_when_it_is_replaced_or_of_no_use(
    minutes: int, ready: int, placed: bool, ready_elsewhere: int, fleet: Fleet, expected: bool
) -> None:
    lost = variant(found=None, view=None, deployment=replace(SERVES, ready=ready), missing_since=NOW)
    pods = [Pod("p", "serving", "chat", ACCELERATOR.slug, node="n1" if placed else "")]

    assert gone(lost, pods, fleet, minutes, ready_elsewhere) is expected


def test_a_variant_with_nodes_is_never_retired() -> None:
    assert not gone(variant(deployment=SERVES), [], RELABELLED, 99, ready_elsewhere=9)


@pytest.mark.parametrize(
    ("changes", "rolls"),
    [
        ({"current": True, "updated": 2, "total": 2}, False),
        ({"current": False, "updated": 2, "total": 2}, True),
        ({"current": True, "updated": 1, "total": 2}, True),
        ({"current": True, "updated": 0, "total": 0}, True),  # its only pod went, the next is not there yet
        ({"current": True, "updated": 1, "total": 2, "refused": "exceeded quota"}, True),
        ({"current": True, "updated": 1, "total": 1, "refused": "exceeded quota"}, False),  # it only cannot grow
    ],
)
def test_a_variant_that_only_cannot_grow_keeps_no_other_from_rolling(changes: dict[str, Any], rolls: bool) -> None:
    assert replace(SERVES, **changes).rolls is rolls
