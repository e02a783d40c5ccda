"""The loop: a key is woken, its serving read, decided upon, and the plan carried out."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from specserve_operator.api.records import Ref
from specserve_operator.api.serving import ServingStatus
from specserve_operator.api.settings import Settings
from specserve_operator.decide import status
from specserve_operator.decide.core import decide
from specserve_operator.decide.model import Child
from specserve_operator.reconcile.apply import carry_out, write_status
from specserve_operator.reconcile.events import Teller
from specserve_operator.reconcile.observe import Observer
from specserve_operator.reconcile.queue import Cause, WorkQueue
from specserve_operator.store.client import SERVINGS, ApiError, Client
from specserve_operator.store.mirror import Store

log = logging.getLogger(__name__)

REFUSALS = {400, 403, 422}
"""Statuses by which the API server says that an object of ours is wrong; trying again changes nothing."""
RETOLD = dt.timedelta(seconds=60)
"""A status that says the same in other words is written this often at most."""


def _utc() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)


class Reconciler:
    """Workers over one queue. ``wake`` may be called at any time; work begins with ``run``."""

    def __init__(
        self, client: Client, store: Store, settings: Settings, package: bytes, clock: Callable[[], dt.datetime] = _utc
    ) -> None:
        self._client, self._store, self._settings, self._clock = client, store, settings, clock
        self._queue, self._teller = WorkQueue(), Teller(client)
        self.observer = Observer(client, store, settings, package, self._fleet_changed)
        self._applied: defaultdict[Ref, dict[Child, int]] = defaultdict(dict)
        self._told_at: dict[Ref, dt.datetime] = {}
        self._begun: dict[Ref, float] = {}
        """When the rounds began that run now."""
        self._ended_at = math.inf
        """When the last round ended, or work began."""
        store.servings.on_change(self._edited)
        for mirror in store.children:
            mirror.on_change(self._changed)
        store.sources.on_change(self._source_changed)

    def _edited(self, ref: Ref, before: Any, after: Any) -> None:
        self._queue.wake(ref, Cause.EDIT)

    def _source_changed(self, ref: Ref, before: Any, after: Any) -> None:
        for key in self.observer.reading(ref) & self._queue.known:
            self._queue.wake(key, Cause.SHARED)

    def _fleet_changed(self, key: Ref) -> None:
        self._queue.wake(key, Cause.SHARED)

    def _changed(self, ref: Ref, before: Any, after: Any) -> None:
        concerned = {key for record in (before, after) for key in self.observer.concerned(ref, record)}
        for key in concerned & self._queue.known:
            self._queue.wake(key, Cause.CHILD)

    async def run(self) -> None:
        """Work until cancelled; begins when every kind is listed, or nothing that exists could be told from nothing."""
        await self._store.listed()
        self._ended_at = time.monotonic()
        log.info("every kind is listed; %d serving(s) to look at", len(self._queue.known))
        async with asyncio.TaskGroup() as group:
            for number in range(self._settings.workers):
                group.create_task(self._work(), name=f"worker {number}")

    def wedged(self, seconds: float) -> str:
        """What has kept rounds from ending for so long, in words; empty where they end, or there is nothing to do."""
        now = time.monotonic()
        for key, begun in self._begun.items():
            if now - begun > seconds:
                return f"the round of {key.namespace}/{key.name} has not ended for {now - begun:.0f} s"
        if self._queue.waiting and now - self._ended_at > seconds:
            return f"{self._queue.waiting} serving(s) wait, and no round has ended for {now - self._ended_at:.0f} s"
        return ""

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            self._begun[key] = time.monotonic()
            try:
                again = await self.reconcile(key)
            except (ApiError, ValidationError) as error:
                pause = self._queue.failed(key, error.retry_after if isinstance(error, ApiError) else 0.0)
                level = logging.INFO if isinstance(error, ApiError) and error.status == 409 else logging.WARNING
                log.log(level, "%s/%s: %s; again in %.1f s", *key, error, pause)
            except Exception:
                log.exception("%s/%s: a fault of specserve; again in %.1f s", *key, self._queue.failed(key))
            else:
                if again is None:
                    self._queue.forget(key)
                    self._applied.pop(key, None)
                    self._told_at.pop(key, None)
                    self.observer.forget(key)
                else:
                    self._queue.done(key, again)
            finally:
                del self._begun[key]
                self._ended_at = time.monotonic()

    async def reconcile(self, key: Ref) -> float | None:
        """One round for one serving. Returns the seconds to the next, or None where the serving is gone.

        Raises:
            ApiError: something could not be read or written.
            ValidationError: the stored spec cannot be read by this version.
        """
        obj = await self._client.get(SERVINGS, *key)
        if obj is None:
            return None
        applied = self._applied[key]
        now = self._clock()
        snapshot = await self.observer.observe(obj, applied, now)
        # What others wrote is parsed there, profiles and messages: bounded, but not on the loop that renews the Lease.
        plan = await asyncio.to_thread(decide, snapshot)
        report, events = plan.status, plan.events
        failed = await carry_out(self._client, snapshot, plan, applied)
        if failed:
            refused = [f.error.message for f in failed if f.error.status in REFUSALS]
            hindered = [f"{f.what}: {f.error.message}" for f in failed if f.error.status not in REFUSALS]
            report = status.hindered(snapshot, report, refused, hindered)
            events = status.transitions(snapshot.serving.status, report)
        if self._is_news(key, snapshot.serving.status, report) and await write_status(
            self._client, obj, snapshot.serving.status, report
        ):
            self._told_at[key] = now
            for event in events:
                await self._teller.tell(snapshot.serving, event, now)
        if failed:
            raise failed[0].error
        return plan.again_in

    def _is_news(self, key: Ref, before: ServingStatus, after: ServingStatus) -> bool:
        told = self._told_at.get(key)
        return told is None or not status.retold(before, after) or abs(self._clock() - told) >= RETOLD
