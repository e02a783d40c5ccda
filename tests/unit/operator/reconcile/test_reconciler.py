"""One round beside all else that the operator's process does."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.builders import SERVING, node
from tests.memory import Memory, World

from devcluster.pace import patience
from specserve_operator.api.records import Json
from specserve_operator.decide.core import decide
from specserve_operator.decide.model import Plan, Snapshot
from specserve_operator.reconcile import reconciler
from specserve_operator.store.client import ApiError, Resource


async def test_the_event_loop_goes_on_while_a_round_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles and messages of others are parsed then: the Lease and every watch wait for none of them."""
    loop, told = asyncio.get_running_loop(), threading.Event()

    def slow(snapshot: Snapshot) -> Plan:
        loop.call_soon_threadsafe(told.set)
        assert told.wait(patience(60)), "the loop stood still while this was decided"
        return decide(snapshot)

    monkeypatch.setattr(reconciler, "decide", slow)
    w = World(SERVING, node("n1"))

    await w.round()

    assert len(w.jobs) == 1


async def test_a_failure_whose_text_differs_each_time_is_no_hot_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The id of a request, or a time: each try would write the status, and each write wake the next try."""
    w = World(SERVING, node("n1"))
    put = w.api.put

    def heard_at_once(obj: Json) -> Json:
        stored = put(obj)
        w.sync()
        return stored

    def refused(verb: str, resource: Resource) -> None:
        if (verb, resource.kind) == ("APPLY", "Service"):
            raise ApiError(500, "InternalError", f"webhook failed, request {w.api.calls}")

    monkeypatch.setattr(w.api, "put", heard_at_once)
    monkeypatch.setattr(w.api, "_refuse", refused)
    rounds = 0

    async def get(resource: Resource, namespace: str, name: str) -> Json | None:
        nonlocal rounds
        rounds += resource.kind == "SpeculativeServing"
        return await Memory.get(w.api, resource, namespace, name)

    monkeypatch.setattr(w.api, "get", get)
    for mirror in w.store.mirrors:
        mirror.listed.set()
    working = asyncio.create_task(w.reconciler.run())
    w.sync()
    await asyncio.sleep(2.5)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)

    assert 2 <= rounds <= 4
    told = [write for write in w.api.writes if write.startswith("STATUS")]
    assert 1 <= len(told) <= 2  # the Job that the first round made, and no other text of the same failure


async def test_another_text_of_the_same_failure_is_written_once_a_minute() -> None:
    w = World(SERVING, node("n1"))
    texts = []
    for number in range(4):
        w.api.refuse["Service"] = ApiError(500, "InternalError", f"webhook failed, request {number}")
        with pytest.raises(ApiError):
            await w.round()
        texts.append(w.condition("Progressing")[2][-1])
        w.pass_time(1 if number < 2 else 60)

    assert texts == ["0", "1", "1", "3"]  # the second told of the Job, too
