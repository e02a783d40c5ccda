"""Keys that want to be looked at: deduplicated, never handled twice at a time, backed off one by one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from specserve_operator.api.records import Ref

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.5, 60.0


@dataclass
class _Key:
    failures: int = 0
    running: bool = False
    woken: bool = False
    """Woken while it ran: what it saw may be stale, so it runs once more."""
    timer: asyncio.TimerHandle | None = None


class WorkQueue:
    """An asyncio work queue of refs. Not thread-safe: everything runs on one loop."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[Ref] = asyncio.Queue()
        self._waiting: set[Ref] = set()
        self._keys: dict[Ref, _Key] = {}

    @property
    def known(self) -> frozenset[Ref]:
        """Every key that was woken and not forgotten."""
        return frozenset(self._keys)

    def wake(self, ref: Ref) -> None:
        """Have ``ref`` looked at soon. Many wakes before that are one."""
        key = self._keys.setdefault(ref, _Key())
        self._stop_timer(key)
        if key.running:
            key.woken = True
        elif ref not in self._waiting:
            self._waiting.add(ref)
            self._ready.put_nowait(ref)

    def wake_after(self, ref: Ref, seconds: float) -> None:
        """Have ``ref`` looked at in ``seconds``, or sooner where something wakes it."""
        key = self._keys.setdefault(ref, _Key())
        self._stop_timer(key)
        key.timer = asyncio.get_running_loop().call_later(seconds, self.wake, ref)

    async def take(self) -> Ref:
        """The next key; it must be handed back by ``done``, ``failed`` or ``forget``."""
        ref = await self._ready.get()
        self._waiting.discard(ref)
        self._keys.setdefault(ref, _Key()).running = True
        return ref

    def done(self, ref: Ref, again_in: float | None) -> None:
        """``ref`` was handled; look again after ``again_in`` seconds (None: only when woken)."""
        self._hand_back(ref, again_in, failures=0)

    def failed(self, ref: Ref) -> float:
        """``ref`` could not be handled. Returns the pause until the next try, in seconds, doubling up to a minute."""
        failures = self._keys[ref].failures + 1
        pause = min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 30), LAST_RETRY_SECONDS)
        self._keys[ref].woken = False  # an event must not undercut the pause
        self._hand_back(ref, pause, failures)
        return pause

    def forget(self, ref: Ref) -> None:
        """``ref`` is gone for good, unless it was woken meanwhile."""
        woken = self._keys[ref].woken
        self._stop_timer(self._keys.pop(ref))
        if woken:
            self.wake(ref)

    def _hand_back(self, ref: Ref, again_in: float | None, failures: int) -> None:
        key = self._keys[ref]
        key.running, key.failures = False, failures
        if key.woken:
            key.woken = False
            self.wake(ref)
        elif again_in is not None:
            self.wake_after(ref, again_in)

    @staticmethod
    def _stop_timer(key: _Key) -> None:
        if key.timer is not None:
            key.timer.cancel()
            key.timer = None
