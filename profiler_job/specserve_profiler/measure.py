"""Drives a running engine: whole generations for acceptance, cohorts of fixed size for ITL.

Both leave their traces in the step log of the probe; what they mean is ``estimate``'s to say.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from specserve_profiler import estimate
from specserve_profiler.console import Stage
from specserve_profiler.contract import Acceptance, Interval, Workload
from specserve_profiler.engine import Engine
from specserve_profiler.errors import ProfilingError
from specserve_profiler.records import Finished, Limits, Plan, Step, StepLog
from specserve_profiler.workload import Prompts, cohort_prompt_tokens

ACCEPTANCE_BATCH_SIZE = 16
"""Largest batch size for whole generations: acceptance does not depend on it, a small one wastes little at the end."""
BLOCK_STEPS = (6, 4, 3)
"""Steps of a block: the longest that lets every cell have ``WANTED_BLOCKS``. The first step does not count."""
WANTED_BLOCKS = 4
_POLL_SECONDS = 0.03
_COHORT_SECONDS = 2.0


@dataclass(frozen=True)
class Bench:
    """Everything that a measurement needs of one boot."""

    engine: Engine
    limits: Limits
    log: StepLog
    prompts: Prompts
    workload: Workload

    @property
    def mean_context(self) -> float:
        """Mean context of the workload: its prompt and half its output, in tokens."""
        return self.prompts.mean_tokens + self.workload.output_tokens / 2

    @property
    def request_tokens(self) -> int:
        """Length of a request at its end."""
        return min(math.ceil(self.prompts.mean_tokens) + self.workload.output_tokens, self.limits.max_model_len)


async def measure_acceptance(bench: Bench, ks: Sequence[int], batch_size: int, stage: Stage) -> tuple[Acceptance, ...]:
    """AL at each K > 0 from whole generations of the same prompts, up to the natural end of each text.

    In rounds of ``batch_size`` prompts, each at every K, as many as the time allows: a round tells what the next costs,
    and a machine that turns slow in the middle overruns the time by one round at most.
    """
    found: dict[int, list[Finished]] = defaultdict(list)
    order = random.Random(1)  # noqa: S311 - an order of measuring, no secret
    done, count = 0, min(batch_size, len(bench.prompts.ids))
    while count > 0:
        prompts = bench.prompts.batch(count, done)
        for k in order.sample(ks, len(ks)):
            stage.progress(f"K = {k}: {count} whole generations at batch size {batch_size}", at_once=True)
            found[k] += await _generate(bench, prompts, k, batch_size)
        done += count
        affordable = int(stage.left / (stage.elapsed / done))
        count = min(affordable, batch_size, len(bench.prompts.ids) - done) if affordable >= batch_size // 2 else 0
    return tuple(
        Acceptance(k=k, acceptance_length=_acceptance_length(k, found[k]), prompts=len(found[k])) for k in sorted(found)
    )


def _acceptance_length(k: int, requests: Sequence[Finished]) -> Interval:
    try:
        return estimate.acceptance_length(requests)
    except ValueError as error:
        raise ProfilingError(
            "PromptsInvalid",
            f"at K = {k} every text ended with its first token, so nothing was verified: use prompts that the model "
            "answers at length, or a larger workload.outputTokens",
        ) from error


async def _generate(bench: Bench, prompts: Sequence[Sequence[int]], k: int, concurrency: int) -> list[Finished]:
    """The finished requests of whole generations at one K."""
    await _settled(bench)
    Plan(ks=(k,)).write(bench.engine.directory)
    places = asyncio.Semaphore(concurrency)

    async def one(prompt: Sequence[int]) -> None:
        room = bench.limits.max_model_len - len(prompt)
        async with places:
            await bench.engine.complete(
                [prompt], max_tokens=min(bench.workload.output_tokens, room), temperature=bench.workload.temperature
            )

    await asyncio.gather(*(one(prompt) for prompt in prompts))
    _, finished = bench.log.new()
    if len(finished) != len(prompts):
        raise ProfilingError(
            "EngineFailed", f"{len(prompts)} generations at K = {k} left {len(finished)} records: the probe missed some"
        )
    return finished


@dataclass
class ItlSamples:
    """Blocks of a boot, and the steps that they come from."""

    blocks: dict[tuple[int, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    context_tokens: float = 0.0
    counted_steps: int = 0

    def add(self, steps: Sequence[Step], block_steps: int) -> None:
        """Takes in the steps of one cohort."""
        for cell, values in estimate.itl_blocks(steps, block_steps).items():
            self.blocks[cell] += values
        counted = sum(1 for _ in estimate.clean_steps(steps))
        self.context_tokens += estimate.mean_context(steps) * counted
        self.counted_steps += counted

    @property
    def mean_context(self) -> float:
        """Mean context of all steps that counted, in tokens."""
        return self.context_tokens / max(self.counted_steps, 1)


async def measure_itl(
    bench: Bench,
    cells: Mapping[int, Sequence[int]],
    acceptance: Mapping[int, float],
    step_ms: Mapping[int, float],
    stage: Stage,
) -> ItlSamples:
    """Blocks of every (batch size, K) in ``cells``, the batch size with the fewest always next, until the time is over.

    Every cell is measured at least once, however little time there is. ``acceptance`` has AL by K, ``step_ms`` a guess
    of ITL by batch size (empty where nothing is known); both only shape the cohorts.
    """
    samples = ItlSamples()
    block_steps = _block_steps(cells, step_ms, stage.seconds)
    decks = dict.fromkeys(cells, 0)
    cost: dict[int, float] = {}
    while True:
        affordable = [size for size in cells if size not in cost or cost[size] <= stage.left]
        if not affordable:
            return samples
        size = min(affordable, key=lambda candidate: (decks[candidate], candidate))
        repeats = _repeats(bench, cells[size], acceptance, block_steps, cost.get(size), stage.left)
        start = time.monotonic()
        cohort = Cohort(size, tuple(cells[size]), block_steps, repeats, start=sum(decks.values()) * 7)
        steps = await cohort.run(bench, acceptance, stage)
        samples.add(steps, block_steps)
        decks[size] += repeats
        cost[size] = (time.monotonic() - start) / repeats


def _block_steps(cells: Mapping[int, Sequence[int]], step_ms: Mapping[int, float], seconds: float) -> int:
    """The longest block with which every cell can have ``WANTED_BLOCKS`` in the time."""
    one_step_each = sum(step_ms.get(size, 0) * len(ks) for size, ks in cells.items()) / 1000
    fitting = (steps for steps in BLOCK_STEPS if steps * one_step_each * WANTED_BLOCKS <= seconds)
    return next(fitting, BLOCK_STEPS[-1])


def _repeats(
    bench: Bench, ks: Sequence[int], acceptance: Mapping[int, float], block_steps: int, cost: float | None, left: float
) -> int:
    """Decks of K in one cohort: more where steps are quick, as long as the workload's own output would be."""
    if cost is None:
        return 1
    window = deck_tokens(ks, acceptance, block_steps)
    room = max(bench.workload.output_tokens, window) / window
    return max(int(min(room, _COHORT_SECONDS / cost, left / cost)), 1)


def deck_tokens(ks: Sequence[int], acceptance: Mapping[int, float], block_steps: int) -> float:
    """Tokens that a request puts out while every K has one block."""
    return block_steps * sum(acceptance.get(k, 1.0) for k in ks)


@dataclass(frozen=True)
class Cohort:
    """Exactly ``batch_size`` requests that decode together, every K in blocks of random order, without refill."""

    batch_size: int
    ks: tuple[int, ...]
    block_steps: int
    repeats: int
    start: int
    """Position in the prompts; also the seed of the order."""

    async def run(self, bench: Bench, acceptance: Mapping[int, float], stage: Stage) -> list[Step]:
        """All steps of the cohort, up to the wanted number or the first completion; then it is aborted."""
        wanted = self.block_steps * len(self.ks) * self.repeats + 1
        window = deck_tokens(self.ks, acceptance, self.block_steps) * self.repeats
        most = wanted * (max(self.ks) + 1) + 2
        length = cohort_prompt_tokens(bench.mean_context, window, bench.limits.max_model_len, round(window) + 2)
        prompts = bench.prompts.cohort(self.batch_size, length, self.start)
        room = min(most, bench.limits.max_model_len - length)
        await _settled(bench)
        plan = Plan(ks=self.ks, block_steps=self.block_steps, batch_size=self.batch_size, seed=self.start)
        plan.write(bench.engine.directory)
        call = asyncio.create_task(
            bench.engine.complete(
                prompts, max_tokens=room, min_tokens=room, ignore_eos=True, temperature=bench.workload.temperature
            )
        )
        steps: list[Step] = []
        try:
            while not call.done() and _decoding(steps, self.batch_size) < wanted:
                await asyncio.wait({call}, timeout=_POLL_SECONDS)
                steps += bench.log.new()[0]
                stage.progress(f"batch size {self.batch_size}: {len(self.ks)} K in blocks of {self.block_steps} steps")
            if call.done():
                call.result()
        finally:
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
        return steps


def _decoding(steps: Sequence[Step], batch_size: int) -> int:
    """Steps of the full cohort since the last prefill."""
    count = 0
    for step in reversed(steps):
        if step.prefills or step.requests != batch_size:
            break
        count += 1
    return count


async def _settled(bench: Bench) -> None:
    """Waits until the engine does nothing: aborted requests leave it a step or two later."""
    quiet = 0.05
    while True:
        await asyncio.sleep(quiet)
        steps, _ = bench.log.new()
        if not steps:
            return
        if len(steps) > 1:
            quiet = max(quiet, 2 * (steps[-1].time_ns - steps[-2].time_ns) / 1e9)
