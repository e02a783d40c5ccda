"""Calls to an API server that refuses some, and is not to be flooded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from specserve_operator.store import client as module
from specserve_operator.store.client import CONFIG_MAPS, DEPLOYMENTS, LEASES, SERVINGS, ApiError, Client
from specserve_operator.store.pace import Pace

THERE = {"metadata": {"name": "x", "namespace": "team"}}
BUSY = {"code": 429, "reason": "TooManyRequests", "message": "slow down"}
BROKEN = {"code": 500, "reason": "InternalError", "message": "etcdserver: leader changed"}
CONFLICT = {"code": 409, "reason": "Conflict", "message": "the object has been modified"}
TAKEN = {"code": 409, "reason": "AlreadyExists", "message": "x is there"}
CUT = {"code": 0}


class Server:
    """Answers with what it was told to, one after the other; then with what was asked for."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.asked: list[str] = []
        self.together = self.most = 0
        self.seconds = 0.0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        self.together += 1
        self.most = max(self.most, self.together)
        await asyncio.sleep(self.seconds)
        self.together -= 1
        answer = self.answers.pop(0) if self.answers else THERE
        if answer is CUT:
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(answer, status=answer.get("code") or 200, headers=self.headers)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def client(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setattr(module, "RETRY_PAUSES", (0.01, 0.02, 0.03))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    async with Client(Configuration(host=f"http://{host}:{port}")) as connected:
        yield connected
    await runner.cleanup()


@pytest.mark.parametrize(
    "refusal", [BUSY, BROKEN, CUT, {"code": 503, "reason": "ServiceUnavailable"}], ids=lambda r: str(r["code"])
)
async def test_a_call_that_was_refused_for_the_moment_is_made_again(
    client: Client, server: Server, refusal: dict[str, Any]
) -> None:
    server.answers = [refusal, refusal]
    assert await client.apply(DEPLOYMENTS, THERE) == THERE
    assert len(server.asked) == 3

    server.answers = [refusal, refusal, refusal]
    assert await client.get(CONFIG_MAPS, "team", "x") == THERE


async def test_a_call_that_is_refused_again_and_again_fails(client: Client, server: Server) -> None:
    server.answers = [BROKEN] * 9

    with pytest.raises(ApiError, match="leader changed"):
        await client.create(CONFIG_MAPS, THERE)
    assert len(server.asked) == 4


async def test_an_apply_in_conflict_is_made_again_and_a_status_is_not(client: Client, server: Server) -> None:
    """What the status is put on top of has to be read anew."""
    server.answers = [CONFLICT]
    await client.apply(DEPLOYMENTS, THERE)
    server.answers = [CONFLICT]
    await client.patch(DEPLOYMENTS, "team", "x", {}, strategic=True)
    assert len(server.asked) == 4

    server.answers = [CONFLICT]
    with pytest.raises(ApiError, match="409 Conflict"):
        await client.replace_status(SERVINGS, THERE)


@pytest.mark.parametrize("refusal", [TAKEN, {"code": 403, "reason": "Forbidden"}, {"code": 422, "reason": "Invalid"}])
async def test_what_stays_refused_is_asked_once(client: Client, server: Server, refusal: dict[str, Any]) -> None:
    server.answers = [refusal]

    with pytest.raises(ApiError):
        await client.create(CONFIG_MAPS, THERE)
    assert len(server.asked) == 1


async def test_the_lease_is_asked_for_whatever_else_is_under_way(client: Client, server: Server) -> None:
    client._pace = Pace(at_once=0)  # nothing else could be sent
    client.may_write = lambda: False
    server.answers = [BROKEN, BUSY]
    assert await client.get(LEASES, "team", "x") == THERE
    server.answers = [BROKEN]
    assert await client.patch(LEASES, "team", "x", {}) == THERE

    server.answers, asked = [CONFLICT], len(server.asked)
    with pytest.raises(ApiError, match="409 Conflict"):  # another has it now
        await client.patch(LEASES, "team", "x", {})
    assert len(server.asked) == asked + 1


async def test_retry_after_is_waited_for(client: Client, server: Server) -> None:
    server.answers, server.headers = [BUSY], {"Retry-After": "1"}
    begun = time.monotonic()

    await client.get(CONFIG_MAPS, "team", "x")

    assert time.monotonic() - begun >= 1


@pytest.mark.parametrize(("header", "seconds"), [("30", 30), ("86400", 60), ("soon", 0), ("-1", 0)])
async def test_a_long_retry_after_is_told_to_who_may_wait(
    client: Client, server: Server, header: str, seconds: float
) -> None:
    server.answers, server.headers = [BUSY] * 9, {"Retry-After": header}

    for call in (client.get(CONFIG_MAPS, "team", "x"), client.watch(CONFIG_MAPS, "1").__anext__()):
        with pytest.raises(ApiError) as raised:
            await call
        assert raised.value.retry_after == seconds


async def test_no_try_is_made_once_the_lease_may_be_anothers(client: Client, server: Server) -> None:
    server.answers = [BROKEN] * 9
    client.may_write = lambda: len(server.asked) < 2

    with pytest.raises(ApiError, match="NotLeading"):
        await client.apply(DEPLOYMENTS, THERE)
    assert len(server.asked) == 2


async def test_no_more_than_a_few_requests_are_under_way_at_once(client: Client, server: Server) -> None:
    client._pace, server.seconds = Pace(at_once=3), 0.02

    await asyncio.gather(*(client.get(CONFIG_MAPS, "team", "x") for _ in range(20)))

    assert len(server.asked) == 20
    assert server.most == 3


async def test_requests_come_at_a_rate_after_a_burst(client: Client, server: Server) -> None:
    client._pace = Pace(per_second=20, burst=10)
    begun = time.monotonic()

    await asyncio.gather(*(client.get(CONFIG_MAPS, "team", "x") for _ in range(30)))

    assert time.monotonic() - begun >= 0.95
