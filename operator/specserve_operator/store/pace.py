"""How fast the API server is asked: so many requests at once, so many a second."""

from __future__ import annotations

import asyncio
from types import TracebackType

AT_ONCE = 16
"""Requests in flight. All service accounts of a cluster share about 245 seats of the API server (API Priority and
Fairness, level ``workload-low`` at its defaults): one operator may have a fifteenth, which keeps its workers busy."""
PER_SECOND, BURST = 200.0, 400
"""More than the rounds of a thousand servings ask for at a start on one core; what a loop gone wild is held to."""


class Pace:
    """An async context manager around a request; waits until it may be sent."""

    def __init__(self, at_once: int = AT_ONCE, per_second: float = PER_SECOND, burst: int = BURST) -> None:
        self._seats = asyncio.Semaphore(at_once)
        self._interval, self._lead = 1 / per_second, burst / per_second
        self._due = 0.0
        """When the next request is due at an even pace, on the loop's clock; it may run ahead by a burst."""

    async def turn(self) -> None:
        """Wait for the rate alone: a watch holds no seat."""
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now - self._lead) + self._interval
        await asyncio.sleep(max(0.0, self._due - now))

    async def __aenter__(self) -> None:
        await self.turn()
        await self._seats.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seats.release()
