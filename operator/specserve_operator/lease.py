"""One active operator: holds a Lease, and says when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiohttp
from kubernetes.aio.client import ApiClient
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

from specserve_operator.api import names
from specserve_operator.api.settings import Settings

NAME = f"{names.MANAGER}-operator"
CALL_SECONDS = 5.0

T = TypeVar("T")


class PatientLock(LeaseLock):  # type: ignore[misc]
    """A lease lock for which an unreachable API server is a failed try, not the end.

    The library's own lets connection errors through, and so ends the election with the first dropped connection.
    """

    async def get(self, name: str, namespace: str) -> tuple[bool, Any]:
        try:
            return await _in_time(super().get(name, namespace))
        except _UNREACHABLE as error:
            return False, ApiException(status=0, reason=repr(error))

    async def create(self, name: str, namespace: str, election_record: Any) -> bool:
        return await _or_false(super().create(name, namespace, election_record))

    async def update(self, name: str, namespace: str, updated_record: Any) -> bool:
        return await _or_false(super().update(name, namespace, updated_record))


_UNREACHABLE = (aiohttp.ClientError, TimeoutError, OSError)


async def _in_time(call: Awaitable[T]) -> T:
    async with asyncio.timeout(CALL_SECONDS):
        return await call


async def _or_false(call: Awaitable[bool]) -> bool:
    try:
        return await _in_time(call)
    except _UNREACHABLE:
        return False


async def lead(api_client: ApiClient, settings: Settings, work: Callable[[], Awaitable[None]]) -> None:
    """Wait for the Lease, then run ``work`` while it is held. Returns when it is lost (``work`` is cancelled).

    Raises:
        Exception: whatever ``work`` raised.
    """
    failure: BaseException | None = None
    ended = asyncio.Event()

    async def guarded() -> None:
        nonlocal failure
        try:
            await work()
        except Exception as error:
            failure = error
        finally:
            ended.set()

    async def lost() -> None:
        return None

    lock = PatientLock(NAME, settings.namespace, settings.identity, api_client)
    seconds = settings.lease_seconds
    election = LeaderElection(Config(lock, seconds, seconds * 2 / 3, seconds / 6, guarded, lost))
    contest = asyncio.create_task(election.run(), name="election")
    over = asyncio.create_task(ended.wait(), name="work ended")
    try:
        await asyncio.wait({contest, over}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (contest, over):
            task.cancel()
        await asyncio.gather(contest, over, return_exceptions=True)
    if failure is not None:
        raise failure
