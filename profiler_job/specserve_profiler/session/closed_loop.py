"""The closed loop: what a client sees of an engine that is served as it will be deployed.

Pure decode steps leave out what a server also does: prefills, and batches that are never quite the same size. Only a
loop that is refilled shows what an arm is worth, so speedups that are promised come from here.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Sequence

from specserve_profiler.contract.profile import LoopPoint, Row
from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.contract.steps import Finished, Plan, Step
from specserve_profiler.engine.records import withdraw_plan, write_plan
from specserve_profiler.session.console import Stage, told
from specserve_profiler.session.measure import Bench, our_id, settled
from specserve_profiler.statistics import estimate

_POLL_SECONDS = 0.1


def follow_own_table(bench: Bench) -> None:
    """The engine drafts as it was booted to: its own table, or its one K."""
    withdraw_plan(bench.engine.directory)


def follow(bench: Bench, rows: Sequence[Row]) -> None:
    """The engine drafts by another table than the one it was booted with, no K of which is larger."""
    plan = Plan(ks=(), rows=tuple((row.first, row.last, row.k) for row in rows))
    write_plan(plan, bench.engine.directory)


async def closed_loop(bench: Bench, concurrency: int, seconds: float, start: int, stage: Stage) -> LoopPoint:
    """``concurrency`` clients that send one request after the other, for ``seconds`` from when all of them are served.

    Held-out prompts from position ``start`` on, so that every arm gets the same ones in the same order. The first
    request of a client ends after a random part of its length: clients are out of step from the beginning, as they are
    after a long time. No loop finds what an earlier one left in the engine's prefix cache. Raises ProfilingError
    (EngineHung, or NothingToMeasure where the loop never was full).
    """
    await settled(bench)
    steps, finished = await _Loop(bench, concurrency, start).run(seconds, stage)
    # The first request of each client came in one burst with all the others.
    first = {request_id(start + client) for client in range(concurrency)}
    later = [entry for entry in finished if our_id(entry.request_id) not in first] or finished
    told("loop", concurrency=concurrency, steps=steps, finished=later)
    try:
        return estimate.loop_point(concurrency, steps, later)
    except ValueError as error:
        raise ProfilingError("NothingToMeasure", f"closed loop at concurrency {concurrency}: {error}") from error


def request_id(position: int) -> str:
    """Of the request with the prompt at a position of the loop."""
    return f"v{position}x"


class _Loop:
    def __init__(self, bench: Bench, concurrency: int, start: int) -> None:
        self._bench = bench
        self._concurrency = concurrency
        self._next = start
        self._shares = random.Random(start)  # noqa: S311 - lengths of texts, no secret
        self._salt = uuid.uuid4().hex

    async def run(self, seconds: float, stage: Stage) -> tuple[list[Step], list[Finished]]:
        clients = [asyncio.create_task(self._client(self._shares.random())) for _ in range(self._concurrency)]
        everyone = asyncio.gather(*clients)
        try:
            return await self._watch(everyone, seconds, stage)
        finally:
            everyone.cancel()
            await asyncio.gather(everyone, return_exceptions=True)

    async def _watch(
        self, clients: asyncio.Future[list[None]], seconds: float, stage: Stage
    ) -> tuple[list[Step], list[Finished]]:
        steps: list[Step] = []
        finished: list[Finished] = []
        full_since: float | None = None
        began = last = time.monotonic()
        while full_since is None or time.monotonic() - full_since < seconds:
            await asyncio.wait({clients}, timeout=_POLL_SECONDS)
            if clients.done():
                clients.result()
            new_steps, new_finished = self._bench.log.new()
            steps += new_steps
            finished += new_finished
            now = time.monotonic()
            if new_steps:
                last = now
            elif now - last > self._bench.hang_seconds:
                raise ProfilingError("EngineHung", f"no step for {self._bench.hang_seconds:.0f} s in the closed loop")
            if full_since is None and any(estimate.is_full(step, self._concurrency) for step in new_steps):
                full_since = now
            if full_since is None and now - began > self._bench.hang_seconds:
                raise ProfilingError(
                    "NothingToMeasure",
                    f"the engine did not run {self._concurrency} requests at once within {now - began:.0f} s",
                )
            stage.progress(f"closed loop, concurrency {self._concurrency}")
        return steps, finished

    async def _client(self, first_share: float) -> None:
        prompts = self._bench.prompts.heldout
        most: int | None = max(round(first_share * self._bench.workload.output_tokens), 1)
        while True:
            position, self._next = self._next, self._next + 1
            prompt = prompts.ids[position % len(prompts.ids)]
            await self._bench.generate(prompt, request_id(position), most, cache_salt=self._salt)
            most = None
