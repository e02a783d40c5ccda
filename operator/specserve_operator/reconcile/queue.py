"""Keys that want to be looked at: deduplicated, never handled twice at a time, backed off one by one."""

from __future__ import annotations

import asyncio
from collections.abc import KeysView
from dataclasses import dataclass
from enum import IntEnum

from specserve_operator.api.records import Ref

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.5, 60.0
UNDERCUT_SECONDS = 1.0
"""A failed key is not tried again sooner than this because a child changed: it may be its own try that changed it."""


class Cause(IntEnum):
    """Why a key is woken, and so what it does to the pause of one that failed."""

    SHARED = 0
    """Something changed that others look at too, such as a node: the pause stands."""
    CHILD = 1
    """A child changed: the pause ends early."""
    EDIT = 2
    """The serving itself changed: it is tried at once, and pauses begin anew."""


@dataclass
class _Key:
    failures: int = 0
    failed_at: float | None = None
    """On the loop's clock, while the pause after a failure lasts."""
    running: bool = False
    woken: Cause | None = None
    """Woken while it ran: what it saw may be stale, so it runs once more."""
    timer: asyncio.TimerHandle | None = None


class WorkQueue:
    """An asyncio work queue of refs. Not thread-safe: everything runs on one loop."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[Ref] = asyncio.Queue()
        self._waiting: set[Ref] = set()
        self._keys: dict[Ref, _Key] = {}

    @property
    def known(self) -> KeysView[Ref]:
        """Every key that was woken and not forgotten."""
        return self._keys.keys()

    @property
    def waiting(self) -> int:
        """How many keys could be taken now."""
        return len(self._waiting)

    def wake(self, ref: Ref, cause: Cause = Cause.CHILD) -> None:
        """Have ``ref`` looked at soon, or after its pause where it failed. Many wakes before that are one."""
        key = self._keys.setdefault(ref, _Key())
        if key.running:
            key.woken = cause if key.woken is None else max(key.woken, cause)
        elif key.failed_at is None or cause is Cause.EDIT:
            key.failures = 0 if cause is Cause.EDIT else key.failures
            self._make_ready(ref)
        elif cause is Cause.CHILD and key.timer is not None:
            loop = asyncio.get_running_loop()
            due = min(key.timer.when(), key.failed_at + UNDERCUT_SECONDS)
            self.wake_after(ref, due - loop.time())

    def wake_after(self, ref: Ref, seconds: float) -> None:
        """Have ``ref`` looked at in ``seconds``, or sooner where something wakes it."""
        key = self._keys.setdefault(ref, _Key())
        self._stop_timer(key)
        key.timer = asyncio.get_running_loop().call_later(max(seconds, 0.0), self._make_ready, ref)

    async def take(self) -> Ref:
        """The next key; it must be handed back by ``done``, ``failed`` or ``forget``."""
        ref = await self._ready.get()
        self._waiting.discard(ref)
        self._keys.setdefault(ref, _Key()).running = True
        return ref

    def done(self, ref: Ref, again_in: float | None) -> None:
        """``ref`` was handled; look again after ``again_in`` seconds (None: only when woken)."""
        self._hand_back(ref, again_in, failures=0)

    def failed(self, ref: Ref, least: float = 0.0) -> float:
        """``ref`` could not be handled. Returns the pause until the next try, in seconds, doubling up to a minute.

        Args:
            least: what the API server asked to wait, in seconds.
        """
        key = self._keys[ref]
        failures = key.failures + 1
        pause = max(min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 30), LAST_RETRY_SECONDS), least)
        # What a failing round itself changed must not undercut its pause; what somebody asked for since then is new.
        edited = key.woken is Cause.EDIT
        key.woken = None
        self._hand_back(ref, pause, failures)
        key.failed_at = asyncio.get_running_loop().time()
        if edited:
            self.wake(ref, Cause.EDIT)
        return pause

    def forget(self, ref: Ref) -> None:
        """``ref`` is gone for good, unless it was woken meanwhile."""
        woken = self._keys[ref].woken
        self._stop_timer(self._keys.pop(ref))
        if woken is not None:
            self.wake(ref)

    def _hand_back(self, ref: Ref, again_in: float | None, failures: int) -> None:
        key = self._keys[ref]
        key.running, key.failures = False, failures
        woken, key.woken = key.woken, None
        if woken is not None:
            self.wake(ref, woken)
        elif again_in is not None:
            self.wake_after(ref, again_in)

    def _make_ready(self, ref: Ref) -> None:
        key = self._keys[ref]
        self._stop_timer(key)
        key.failed_at = None
        if ref not in self._waiting:
            self._waiting.add(ref)
            self._ready.put_nowait(ref)

    @staticmethod
    def _stop_timer(key: _Key) -> None:
        if key.timer is not None:
            key.timer.cancel()
            key.timer = None
