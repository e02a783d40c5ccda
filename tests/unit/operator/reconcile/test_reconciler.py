"""One round beside all else that the operator's process does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest
from tests.builders import SERVING, node
from tests.memory import Memory, World

from devcluster.pace import patience
from specserve_operator.api.records import Json, Ref
from specserve_operator.api.settings import Settings
from specserve_operator.decide.core import decide
from specserve_operator.decide.model import Plan, Snapshot
from specserve_operator.reconcile import reconciler
from specserve_operator.reconcile.queue import WorkQueue
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


@contextlib.asynccontextmanager
async def working(w: World) -> AsyncIterator[None]:
    """The reconciler's own workers, with a store that is up to date."""
    for mirror in w.store.mirrors:
        mirror.listed.set()
    running = asyncio.create_task(w.reconciler.run())
    w.sync()
    yield
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


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
    async with working(w):
        await asyncio.sleep(2.5)

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


@pytest.mark.parametrize("workers", [1, 4])
async def test_a_round_that_never_ends_is_told(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    w = World(SERVING, node("n1"), settings=Settings(workers=workers))

    async def never(*_: object) -> Json | None:
        await asyncio.Event().wait()
        return None

    monkeypatch.setattr(w.api, "get", never)
    async with working(w):
        await asyncio.sleep(0.3)
        assert w.reconciler.wedged(60) == ""
        assert w.reconciler.wedged(0.2) == "the round of team/chat has not ended for 0 s"


async def test_servings_that_wait_for_nobody_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every worker had gone."""
    w = World(SERVING, node("n1"))

    async def gone() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(w.reconciler, "_work", gone)
    async with working(w):
        await asyncio.sleep(0.3)
        assert w.reconciler.wedged(0.2) == "1 serving(s) wait, and no round has ended for 0 s"


async def test_an_operator_with_nothing_to_do_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    w = World(SERVING, node("n1"))
    assert w.reconciler.wedged(0) == ""  # it waits for its Lease
    ended, done = asyncio.Event(), WorkQueue.done

    def tell(queue: WorkQueue, key: Ref, again_in: float | None) -> None:
        done(queue, key, again_in)
        ended.set()

    monkeypatch.setattr(WorkQueue, "done", tell)
    async with working(w):
        await asyncio.wait_for(ended.wait(), patience(10))
        await asyncio.sleep(0.3)
        assert len(w.jobs) == 1
        assert w.reconciler.wedged(0.2) == ""
