"""Closed loops at several client concurrencies, the same prompts at each for every arm."""

from __future__ import annotations

import time
from collections.abc import Sequence

from specserve_profiler.contract.profile import ArmLoop, LoopPoint
from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.session.closed_loop import closed_loop
from specserve_profiler.session.console import Stage, told
from specserve_profiler.session.lab import Lab
from specserve_profiler.session.measure import Bench
from specserve_profiler.statistics.budget import LEAST_SECONDS, linear

_APART = 97
"""Prompts between the first ones of two concurrencies."""


def told_arm(loop: ArmLoop) -> None:
    """The loops that just ran were those of an arm."""
    told("arm", arm=loop.arm, concurrencies=[point.concurrency for point in loop.points], live=loop.live)


class Loops:
    """Runs them, and remembers where there was no room."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.never_full: set[int] = set()
        """Client concurrencies that some arm could not serve at once: there is nothing to compare there."""
        self._overhead: dict[int, float] = {}
        """Concurrency -> seconds until all clients were served, and after the loop."""

    def least(self, concurrencies: Sequence[int]) -> float:
        """Seconds that loops take at the least."""
        known = {**self._lab.pace.overhead, **self._overhead}
        return sum(LEAST_SECONDS + linear(known, at) for at in concurrencies if at not in self.never_full)

    async def run(
        self, bench: Bench, concurrencies: Sequence[int], stage: Stage, after: Sequence[int] = ()
    ) -> tuple[LoopPoint, ...]:
        """A point at each concurrency that the engine can serve at once; those ``after`` share the stage's time."""
        points = []
        for index, concurrency in enumerate(concurrencies):
            if concurrency in self.never_full:
                continue
            if not bench.holds(concurrency):
                self._never_full(concurrency)
                self._lab.warn(
                    f"{concurrency} requests do not fit into the engine's KV cache at once: not verified there"
                )
                continue
            rest = [at for at in (*concurrencies[index:], *after) if at not in self.never_full]
            stage.expect(self.least(rest))
            seconds = LEAST_SECONDS + (stage.left - self.least(rest)) / len(rest)
            began = time.monotonic()
            try:
                points.append(await closed_loop(bench, concurrency, seconds, _APART * concurrency, stage))
                self._overhead[concurrency] = max(time.monotonic() - began - seconds, 0.0)
            except ProfilingError as error:
                if error.reason != "NothingToMeasure":
                    raise
                self._never_full(concurrency)
                self._lab.warn(f"not verified at {concurrency} clients: {error}")
        return tuple(points)

    def _never_full(self, concurrency: int) -> None:
        self.never_full.add(concurrency)
        told("never full", concurrency=concurrency)
