"""One active operator: holds a Lease, and says when it is lost."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable

from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.baselock import BaseLock

from specserve_operator.api import names
from specserve_operator.api.records import Json
from specserve_operator.api.settings import Settings
from specserve_operator.store.client import LEASES, ApiError, Client

log = logging.getLogger(__name__)

NAME = f"{names.MANAGER}-operator"
CALL_SECONDS = 5.0
_FAILED = (ApiError, TimeoutError)


class PatientLock(BaseLock):  # type: ignore[misc]
    """The Lease as leader election wants it; an unreachable API server is a failed try, not the end.

    Not the library's LeaseLock: that of 37.0 cannot create a Lease (its own validation refuses the call), and lets
    connection errors through, which ends the election with the first dropped connection.
    """

    def __init__(self, client: Client, namespace: str, identity: str, seconds: float) -> None:
        super().__init__(NAME, namespace, identity)
        self._client, self._seconds = client, seconds
        self._held_until = -math.inf
        self.taken = asyncio.Event()
        """Set once somebody else is seen to hold what this process held."""
        self._lease: Json = {}
        """As read last: an update is refused where somebody changed it since."""

    async def get(self, name: str, namespace: str) -> tuple[bool, LeaderElectionRecord | ApiException]:
        """(True, record), or (False, why not)."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                lease = await self._client.get(LEASES, namespace, name)
        except _FAILED as error:
            return False, ApiException(reason=str(error) or repr(error))
        if lease is None:
            return False, ApiException(404, "NotFound", body=json.dumps({"code": 404}))
        self._lease = lease
        spec = lease.get("spec") or {}
        if self._held_until > -math.inf and spec.get("holderIdentity") not in (None, "", self.identity):
            self._held_until = -math.inf
            self.taken.set()
        fields = ("holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime")
        return True, LeaderElectionRecord(*(str(spec[field]) if spec.get(field) else None for field in fields))

    async def create(self, name: str, namespace: str, election_record: LeaderElectionRecord) -> bool:
        """Whether the Lease could be made."""
        body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {**self._held(election_record, {}), "leaseTransitions": 0},
        }
        return await self._hold("made", self._client.create(LEASES, body))

    async def update(self, name: str, namespace: str, updated_record: LeaderElectionRecord) -> bool:
        """Whether the Lease could be taken or renewed."""
        return await self._hold("renewed", self._put(self._held(updated_record, self._lease.get("spec") or {})))

    @property
    def held(self) -> bool:
        """Whether nobody else can hold the Lease now. Not so after a process was stopped for longer than it lasts."""
        return time.monotonic() < self._held_until

    async def _hold(self, what: str, call: Awaitable[Json]) -> bool:
        begun = time.monotonic()
        done = await self._try(what, call)
        if done:
            self._held_until = begun + self._seconds
        return done

    async def release(self) -> None:
        """Give the Lease back, so that the next operator need not wait until it expires. Failing is no harm."""
        found, record = await self.get(self.name, self.namespace)
        if found and isinstance(record, LeaderElectionRecord) and record.holder_identity == self.identity:
            await self._try("given back", self._put({"holderIdentity": ""}))

    @staticmethod
    def _held(record: LeaderElectionRecord, before: Json) -> Json:
        # The times of the record are local and without a zone; nobody but people reads those of a Lease.
        now = dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = before.get("holderIdentity") == record.holder_identity
        return {
            "holderIdentity": record.holder_identity,
            "leaseDurationSeconds": int(record.lease_duration),
            "acquireTime": before.get("acquireTime", now) if mine else now,
            "renewTime": now,
            "leaseTransitions": before.get("leaseTransitions", 0) + (not mine),
        }

    async def _put(self, spec: Json) -> Json:
        version = self._lease["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "spec": spec}
        return await self._client.patch(LEASES, self.namespace, self.name, body)

    @staticmethod
    async def _try(what: str, call: Awaitable[Json]) -> bool:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await call
        except _FAILED as error:
            log.warning("the Lease could not be %s: %s", what, str(error) or repr(error))
            return False
        return True


async def lead(client: Client, settings: Settings, work: Callable[[], Awaitable[None]]) -> None:
    """Wait for the Lease, then run ``work`` while it is held. Returns when it is lost; ``work`` has ended by then.

    The client writes nothing while the Lease may be another's: a process that was stopped and continued finds its
    work where it was, before it finds that its Lease is gone.

    Raises:
        Exception: whatever ``work`` raised.
    """
    elected = asyncio.Event()

    async def begin() -> None:
        elected.set()

    async def lost() -> None:
        return None

    async def taken() -> None:
        await lock.taken.wait()

    async def serve() -> None:
        await elected.wait()
        await work()

    seconds = settings.lease_seconds
    lock = PatientLock(client, settings.namespace, settings.identity, seconds)
    client.may_write = lambda: lock.held
    election = LeaderElection(Config(lock, seconds, seconds * 2 / 3, seconds / 6, begin, lost))
    tasks = {
        asyncio.create_task(election.run(), name="election"),
        # Not the election's own task for it: that one outlives an election that is cancelled.
        asyncio.create_task(serve(), name="work"),
        asyncio.create_task(taken(), name="taken"),
    }
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if elected.is_set():
            await lock.release()
