"""A mirror's watch: how often it is asked for, and what is known of one that is behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from specserve_operator.api.records import Json, Node, Ref
from specserve_operator.store import mirror as module
from specserve_operator.store.client import NODES, ApiError, Page, Resource
from specserve_operator.store.mirror import Mirror, Store

N1: Json = {"metadata": {"name": "n1", "resourceVersion": "7"}}
BOOKMARK = ("BOOKMARK", {"metadata": {"resourceVersion": "9"}})


class Watched:
    """Stands for the client: lists one node; every watch says the same, then fails or ends."""

    def __init__(self, *events: tuple[str, Json], seconds: float = 0, error: ApiError | None = None) -> None:
        self._events, self._seconds, self._error = events, seconds, error
        self.since: list[str] = []
        self.lists = 0

    async def list_page(self, resource: Resource, **options: Any) -> Page:
        self.lists += 1
        return Page([N1] if resource is NODES else [], "5", "")

    async def watch(self, resource: Resource, since: str, selector: str = "") -> AsyncIterator[tuple[str, Json]]:
        self.since.append(since)
        for event in self._events:
            yield event
        await asyncio.sleep(self._seconds)
        if self._error:
            raise self._error


@contextlib.asynccontextmanager
async def mirrored(client: Any) -> AsyncIterator[Mirror[Node]]:
    mirror = Mirror(NODES, Node.read)
    running = asyncio.create_task(mirror.run(client))
    await asyncio.sleep(0)
    yield mirror
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("events", [(), (BOOKMARK,)], ids=["nothing", "a bookmark"])
async def test_a_proxy_that_ends_watches_at_once_is_not_flooded(
    events: tuple[tuple[str, Json], ...], caplog: pytest.LogCaptureFixture
) -> None:
    client = Watched(*events)
    with caplog.at_level(logging.WARNING):
        async with mirrored(client):
            await asyncio.sleep(2)

    assert 2 <= len(client.since) <= 3  # after 0, 0.5 and 1.5 s
    assert client.lists == 1
    assert "nodes: the watch was ended at once; again in 0.5 s" in caplog.messages


async def test_a_watch_that_ends_in_its_time_is_taken_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORT_SECONDS", 0.05)
    client = Watched(BOOKMARK, seconds=0.1)
    async with mirrored(client) as mirror:
        await asyncio.sleep(0.55)
        assert mirror.behind < 0.3

    assert len(client.since) >= 4
    assert client.since[:2] == ["5", "9"]


async def test_an_api_server_that_is_busy_is_left_alone_for_as_long_as_it_says() -> None:
    client = Watched(error=ApiError(429, "TooManyRequests", "slow down", 30))
    async with mirrored(client):
        await asyncio.sleep(0.7)

    assert len(client.since) == 1


async def test_a_version_that_is_too_old_is_listed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY_SECONDS", 0.01)
    client = Watched(error=ApiError(410, "Expired", "too old"))
    async with mirrored(client) as mirror:
        await asyncio.sleep(0.1)
        assert mirror.get(Ref("", "n1")) is not None

    assert client.lists >= 2


async def test_how_far_a_mirror_is_behind_and_whether_it_still_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = Mirror(NODES, Node.read)
    assert (mirror.behind, mirror.idle) == (0, None)  # one that does not run

    monkeypatch.setattr(module, "FIRST_RETRY_SECONDS", 0.2)
    silent = Watched(seconds=0.2, error=ApiError(0, "WatchBroken", "no end came in time"))
    begun = time.monotonic()
    async with mirrored(silent) as mirror:
        await asyncio.sleep(1)
        assert mirror.behind >= 0.9
        assert mirror.idle is not None and mirror.idle < time.monotonic() - begun - 0.2


async def test_a_mirror_that_does_nothing_any_more_is_wedged_and_one_that_is_refused_is_behind() -> None:
    store = Store.empty()
    assert (store.wedged(0), store.behind(0)) == ("", {})  # the operator waits for its Lease

    hanging: Any = Watched(seconds=36_000)
    refused: Any = Watched(error=ApiError(503, "ServiceUnavailable", "", 0.05))
    running = [asyncio.create_task(store.nodes.run(hanging)), asyncio.create_task(store.jobs.run(refused))]
    await asyncio.sleep(1.2)

    assert store.wedged(1) == "the mirror of nodes has done nothing for 1 s"
    assert store.wedged(60) == ""
    assert set(store.behind(1)) == {"nodes", "jobs"}
    assert store.behind(60) == {}
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
