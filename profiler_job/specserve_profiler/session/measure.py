"""Drives a running engine through what the samplers ask for: whole generations, and cohorts of fixed size.

What to measure next, and when enough is known, is ``sampling``'s to say; what the records mean, ``estimate``'s.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.contract.request import Workload
from specserve_profiler.contract.steps import Finished, Limits, Plan, Step
from specserve_profiler.engine.records import CELL_FILE, StepLog, write_plan
from specserve_profiler.engine.server import Engine
from specserve_profiler.prompts.workload import Prompts, cohort_prompt_tokens
from specserve_profiler.session.console import Stage, best_so_far, told
from specserve_profiler.statistics.acceptance import AcceptanceSampler, Generate
from specserve_profiler.statistics.sampling import Cohort, GridSampler

_POLL_SECONDS = 0.03
UNSURE = 1.5
"""A first round may take this many times what was foreseen: so much is said to be left."""


@dataclass(frozen=True)
class Bench:
    """Everything that a measurement needs of one boot."""

    engine: Engine
    limits: Limits
    log: StepLog
    prompts: Prompts
    workload: Workload
    hang_seconds: float = 120.0
    """An engine with work to do that makes no step for so long hangs."""

    @property
    def mean_context(self) -> float:
        """Mean context of the workload: its prompt and half its output, in tokens."""
        return self.prompts.mean_tokens + self.workload.output_tokens / 2

    @property
    def request_tokens(self) -> int:
        """Length of a request at its end."""
        return min(math.ceil(self.prompts.mean_tokens) + self.workload.output_tokens, self.limits.max_model_len)

    @property
    def sampling(self) -> dict[str, Any]:
        """What the workload says of sampling, as the engine takes it. Without a seed, which would slow it down."""
        work = self.workload
        return {"temperature": work.temperature, **({"top_p": work.top_p} if work.temperature > 0 else {})}

    def holds(self, concurrency: int) -> bool:
        """Whether so many requests at their full length run at once."""
        tokens = concurrency * (self.request_tokens + self.limits.num_speculative_tokens)
        return concurrency <= self.limits.max_num_seqs and tokens <= self.limits.kv_cache_tokens

    async def generate(
        self, prompt: Sequence[int], request_id: str, most: int | None = None, **parameters: Any
    ) -> None:
        """One whole generation, to its natural end, the workload's length, or ``most`` tokens."""
        room = min(self.workload.output_tokens, self.limits.max_model_len - len(prompt))
        limit = room if most is None else max(min(room, most), 1)
        await self.engine.complete([prompt], request_id=request_id, max_tokens=limit, **self.sampling, **parameters)


def read_cell(engine: Engine) -> tuple[int, int] | None:
    """(batch size, K) that the probe wrote down last; None where it wrote none."""
    try:
        batch_size, k = (engine.directory / CELL_FILE).read_text(encoding="utf-8").split()
    except (FileNotFoundError, ValueError):
        return None
    return int(batch_size), int(k)


def blamed(order: Generate | Cohort | None, last: tuple[int, int] | None) -> tuple[int, tuple[int, ...]] | None:
    """(batch size, its K) that an engine was lost in, from the cohort and the cell that it ran ``last``.

    An engine that ended before all requests decoded, in a prefill, did not get to any one K: the batch size is too
    large for it. None where it was no cohort.
    """
    if not isinstance(order, Cohort):
        return None
    if last is not None and last[0] == order.batch_size and last[1] in order.ks:
        return order.batch_size, (last[1],)
    return order.batch_size, order.ks


@dataclass
class Work:
    """How long a stage has measured, and what it measures now. Its clock stands while the engine boots anew."""

    seconds: float = 0.0
    order: Generate | Cohort | None = None
    _began: float | None = field(default=None, repr=False)

    @property
    def elapsed(self) -> float:
        """Seconds measured so far."""
        return self.seconds + (0.0 if self._began is None else time.monotonic() - self._began)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts the time inside."""
        self._began = time.monotonic()
        try:
            yield
        finally:
            self.seconds, self._began = self.elapsed, None


async def measure_acceptance(bench: Bench, sampler: AcceptanceSampler, work: Work, stage: Stage) -> None:
    """Whole generations at one K each, as the sampler asks, until it asks for no more."""
    with work.running():
        stage.expect(UNSURE * sampler.least())
        while (order := sampler.next(work.elapsed)) is not None:
            work.order = order
            stage.progress(
                f"K = {order.k}: {len(order.prompts)} whole generations at batch size {order.concurrency}", at_once=True
            )
            began = time.monotonic()
            finished = await _generations(bench, order)
            seconds = time.monotonic() - began
            sampler.add(order, finished, seconds)
            told("generated", order=order, finished=finished, seconds=seconds)
            stage.expect(UNSURE * sampler.least())
        work.order = None


async def _generations(bench: Bench, order: Generate) -> list[Finished]:
    """The finished requests of whole generations at one K, in the order of the prompts."""
    await settled(bench)
    write_plan(Plan(ks=(order.k,)), bench.engine.directory)
    places = asyncio.Semaphore(order.concurrency)
    names = {f"g{index}x": position for index, position in enumerate(order.prompts)}

    async def one(name: str, position: int) -> None:
        async with places:
            await bench.generate(bench.prompts.ids[position], name)

    everything = asyncio.gather(*(one(name, position) for name, position in names.items()))
    finished: dict[str, Finished] = {}
    async with _cancelled_at_the_end(everything):
        async for _, ended in _records(bench, everything):
            finished |= {our_id(entry.request_id): entry for entry in ended}
        await everything
        finished |= {our_id(entry.request_id): entry for entry in bench.log.new()[1]}
    missing = names.keys() - finished.keys()
    if missing:
        raise ProfilingError(
            "EngineFailed",
            f"{len(names)} generations at K = {order.k} left {len(finished)} records: the probe missed some",
        )
    return [finished[name] for name in names]


def our_id(request_id: str) -> str:
    """The id that we gave a request: vLLM makes ``cmpl-<ours>-<index>`` of it, and may append more."""
    return request_id.split("-")[1] if "-" in request_id else request_id


async def measure_itl(
    bench: Bench, sampler: GridSampler, lengths: Mapping[int, float], work: Work, stage: Stage
) -> None:
    """Cohorts as the sampler asks, until it asks for no more. ``lengths`` (AL by K) only shapes their prompts."""
    with work.running():
        stage.expect(UNSURE * sampler.least())
        while (order := sampler.next(work.elapsed)) is not None:
            await _measure_cohort(bench, sampler, order, lengths, work, stage)
            stage.expect(UNSURE * sampler.least())
            if len(order.ks) > 1:
                best_so_far(sampler.best())
        work.order = None


async def try_pace(bench: Bench, sampler: GridSampler, work: Work, stage: Stage) -> None:
    """The sampler's trial cohorts, without speculation."""
    with work.running():
        while (order := sampler.trial()) is not None:
            await _measure_cohort(bench, sampler, order, {}, work, stage)
        work.order = None


async def _measure_cohort(
    bench: Bench, sampler: GridSampler, order: Cohort, lengths: Mapping[int, float], work: Work, stage: Stage
) -> None:
    work.order = order
    began = time.monotonic()
    steps = await run_cohort(bench, order, lengths, stage)
    seconds = time.monotonic() - began
    sampler.add(order, steps, seconds)
    told("cohort", order=order, steps=steps, seconds=seconds)


async def run_cohort(bench: Bench, order: Cohort, lengths: Mapping[int, float], stage: Stage) -> list[Step]:
    """All steps of a cohort, up to the wanted number or the first completion; then it is aborted.

    Its prompts are so long that the window lies around the workload's mean context.
    """
    wanted = order.block_steps * len(order.ks) * order.decks + 1
    window = order.block_steps * order.decks * sum(lengths.get(k, 1.0) for k in order.ks)
    most = wanted * (max(order.ks) + 1) + 2
    length = cohort_prompt_tokens(bench.mean_context, window, bench.limits.max_model_len, round(window) + 2)
    prompts = bench.prompts.cohort(order.batch_size, length, order.seed)
    room = min(most, bench.limits.max_model_len - length)
    await settled(bench)
    plan = Plan(ks=order.ks, block_steps=order.block_steps, batch_size=order.batch_size, seed=order.seed)
    write_plan(plan, bench.engine.directory)
    call = asyncio.ensure_future(
        bench.engine.complete(prompts, max_tokens=room, min_tokens=room, ignore_eos=True, **bench.sampling)
    )
    steps: list[Step] = []
    async with _cancelled_at_the_end(call):
        async for new, _ in _records(bench, call):
            steps += new
            ks = ", ".join(map(str, order.ks))
            stage.progress(f"batch size {order.batch_size}: K {ks} in blocks of {order.block_steps} steps")
            if _decoding(steps, order.batch_size) >= wanted:
                return steps
        call.result()
        steps += bench.log.new()[0]
    return steps


def _decoding(steps: Sequence[Step], batch_size: int) -> int:
    """Steps of the full cohort since the last prefill."""
    count = 0
    for step in reversed(steps):
        if step.prefills or step.requests != batch_size:
            break
        count += 1
    return count


async def _records(bench: Bench, work: asyncio.Future[Any]) -> AsyncIterator[tuple[list[Step], list[Finished]]]:
    """What the probe writes while ``work`` is under way. Raises ProfilingError (EngineHung) where nothing comes."""
    last = time.monotonic()
    while not work.done():
        await asyncio.wait({work}, timeout=_POLL_SECONDS)
        records = bench.log.new()
        now = time.monotonic()
        if records[0]:
            last = now
        elif now - last > bench.hang_seconds:
            raise ProfilingError(
                "EngineHung", f"the engine made no step for {bench.hang_seconds:.0f} s with work to do"
            )
        yield records


@asynccontextmanager
async def _cancelled_at_the_end(work: asyncio.Future[Any]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        work.cancel()
        # Not awaited by itself: that would swallow the cancellation of the whole run.
        await asyncio.gather(work, return_exceptions=True)


async def settled(bench: Bench) -> None:
    """Waits until the engine does nothing: aborted requests leave it a step or two later."""
    quiet = max(0.05, 2 * bench.log.pace)
    deadline = time.monotonic() + bench.hang_seconds
    while time.monotonic() < deadline:
        await asyncio.sleep(quiet)
        steps, _ = bench.log.new()
        if not steps:
            return
        quiet = max(quiet, 2 * bench.log.pace)
    raise ProfilingError("EngineHung", "the engine goes on with requests that were given up")
