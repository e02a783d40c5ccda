"""Leading: who holds the Lease works, and nobody works who does not."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord

from devcluster.pace import patience
from specserve_operator import lease
from specserve_operator.api.records import Json
from specserve_operator.api.settings import Settings
from specserve_operator.lease import PatientLock, lead
from specserve_operator.store.client import ApiError, Resource

LEASE_SECONDS = 36_000


class Leases:
    """Stands for the client, as far as a Lease goes."""

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.may_write = lambda: False
        self.unreachable = False
        self._version = 0

    def _keep(self, obj: Json) -> Json:
        self._version += 1
        self.lease = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        return self.lease

    def _reach(self) -> None:
        if self.unreachable:
            raise ApiError(0, "Unreachable", "connection refused")

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        self._reach()
        assert (resource.kind, namespace, name) == ("Lease", "system", "specserve-operator")
        return self.lease

    async def create(self, resource: Resource, obj: Json) -> Json:
        self._reach()
        if self.lease is not None:
            raise ApiError(409, "AlreadyExists", "")
        return self._keep(obj)

    async def patch(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        self._reach()
        assert self.lease is not None
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "")
        return self._keep({**self.lease, "spec": {**self.lease["spec"], **body["spec"]}})

    @property
    def holder(self) -> str:
        return self.lease["spec"]["holderIdentity"] if self.lease else ""


@pytest.fixture(autouse=True)
def _a_try_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries come every second, and a Lease lasts longer than any test waits."""

    def config(lock: PatientLock, seconds: float, renew: float, retry: float, *callbacks: Any) -> Config:
        assert 0 < retry < renew < seconds
        return Config(lock, seconds, renew, 1, *callbacks)

    monkeypatch.setattr(lease, "Config", config)


def settings(identity: str) -> Settings:
    return Settings(namespace="system", identity=identity, lease_seconds=LEASE_SECONDS)


class Worker:
    """Work that goes on until cancelled."""

    def __init__(self) -> None:
        self.started, self.ended = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


async def test_the_first_leads_and_a_second_waits_until_it_gives_the_lease_back() -> None:
    leases: Any = Leases()
    first, second = Worker(), Worker()
    one = asyncio.create_task(lead(leases, settings("one"), first))
    await asyncio.wait_for(first.started.wait(), patience(10))
    two = asyncio.create_task(lead(leases, settings("two"), second))
    await asyncio.sleep(0.1)
    assert (leases.holder, second.started.is_set()) == ("one", False)

    one.cancel()
    await asyncio.gather(one, return_exceptions=True)
    assert first.ended.is_set()
    assert leases.holder == ""

    await asyncio.wait_for(second.started.wait(), patience(10))  # at its next try, not when the Lease expires
    assert leases.holder == "two"
    assert leases.lease["spec"]["leaseTransitions"] == 1
    two.cancel()
    await asyncio.gather(two, return_exceptions=True)


async def test_work_that_fails_is_told_and_the_lease_given_back() -> None:
    leases: Any = Leases()

    async def work() -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await asyncio.wait_for(lead(leases, settings("one"), work), patience(10))
    assert leases.holder == ""


async def test_a_lease_that_is_taken_away_ends_the_work_and_stays_with_the_other() -> None:
    leases: Any = Leases()
    worker = Worker()
    leading = asyncio.create_task(lead(leases, settings("one"), worker))
    await asyncio.wait_for(worker.started.wait(), patience(10))

    await leases.patch(None, "", "", {"metadata": leases.lease["metadata"], "spec": {"holderIdentity": "two"}})
    await asyncio.wait_for(leading, patience(10))  # at the next look: not after tries for two thirds of the Lease

    assert worker.ended.is_set()
    assert leases.holder == "two"


async def test_nothing_is_written_once_the_lease_may_be_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    leases: Any = Leases()
    worker = Worker()
    leading = asyncio.create_task(lead(leases, settings("one"), worker))
    await asyncio.wait_for(worker.started.wait(), patience(10))
    assert leases.may_write()

    now = time.monotonic()
    monkeypatch.setattr(lease.time, "monotonic", lambda: now + LEASE_SECONDS - 1000)
    assert leases.may_write()
    # As after a process was stopped and continued.
    monkeypatch.setattr(lease.time, "monotonic", lambda: now + LEASE_SECONDS)
    assert not leases.may_write()

    monkeypatch.undo()
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def test_an_unreachable_api_server_is_a_failed_try_and_not_the_end() -> None:
    leases: Any = Leases()
    leases.unreachable = True
    worker = Worker()
    leading = asyncio.create_task(lead(leases, settings("one"), worker))
    await asyncio.sleep(0.2)
    assert not leading.done()

    leases.unreachable = False
    await asyncio.wait_for(worker.started.wait(), patience(10))
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def test_an_api_server_that_never_answers_does_not_hold_up_the_election(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "CALL_SECONDS", 0.05)

    class Silent(Leases):
        async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
            await asyncio.Event().wait()
            return None

    silent: Any = Silent()
    lock = PatientLock(silent, "system", "one", 6)
    found, why = await asyncio.wait_for(lock.get("specserve-operator", "system"), patience(10))

    assert not found
    assert "TimeoutError" in str(why)


async def test_renewing_keeps_the_time_of_taking() -> None:
    leases: Any = Leases()
    lock = PatientLock(leases, "system", "one", 6)
    record = LeaderElectionRecord("one", "6", None, None)
    assert await lock.create("specserve-operator", "system", record)
    taken = leases.lease["spec"]["acquireTime"]

    await lock.get("specserve-operator", "system")
    assert await lock.update("specserve-operator", "system", record)
    assert leases.lease["spec"]["acquireTime"] == taken
    assert leases.lease["spec"]["renewTime"] >= taken
    assert leases.lease["spec"]["leaseTransitions"] == 0

    assert not await lock.update("specserve-operator", "system", record)  # what was read is old by now
