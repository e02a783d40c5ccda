"""The usual way to measure a grid: a boot of its own for each K.

It is given everything of ours but the one boot: the same clean steps of exactly B requests, the same whole generations,
the same prompts for every K, AL compared prompt by prompt. What is left between the two ways is the boots.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean
from typing import cast

from bench.rounds import StaticBoot
from bench.setting import Setting, in_a_boot
from specserve_profiler.contract.steps import Finished
from specserve_profiler.dialect import render
from specserve_profiler.session.console import Stage
from specserve_profiler.session.measure import Bench, Work, measure_acceptance, run_cohort
from specserve_profiler.statistics import estimate
from specserve_profiler.statistics.acceptance import AcceptanceSampler, Generate
from specserve_profiler.statistics.sampling import Cohort

_BLOCK_STEPS = 8
_CONCURRENCY = 16
_ITL_SHARE = 0.6
"""Of the time of a boot; the rest is for acceptance, as with us."""


async def static_boot(setting: Setting, k: int, generations: int) -> StaticBoot:
    """Boots the engine with one K and measures every batch size; K = 0 is no speculation."""
    request = setting.request(setting.pair.profile_prompts)
    seconds = setting.seconds / (setting.kmax + 1)

    async def measure(bench: Bench) -> tuple[dict[int, tuple[float, ...]], dict[int, tuple[float, float]]]:
        found = await _whole_generations(bench, k, generations) if k else {}
        length = sum(tokens for tokens, _ in found.values()) / sum(steps for _, steps in found.values()) if k else 1.0
        return await _cohorts(bench, k, setting.batch_sizes, length, _ITL_SHARE * seconds), found

    config = render.static_config(request.speculation, k)
    (cohorts, found), timed = await in_a_boot(request, f"static K = {k}" if k else "no speculation", config, measure)
    return StaticBoot(
        k=k,
        cohort_ms=cohorts,
        generations=found,
        boot_seconds=timed.boot_seconds,
        measuring_seconds=timed.measuring_seconds,
    )


class _Once:
    """Asks for one set of whole generations, and keeps what comes back."""

    def __init__(self, order: Generate) -> None:
        self._order: Generate | None = order
        self.finished: list[Finished] = []

    def next(self, elapsed: float) -> Generate | None:
        order, self._order = self._order, None
        return order

    def least(self) -> float:
        return 0.0

    def add(self, order: Generate, finished: Sequence[Finished], seconds: float) -> None:
        self.finished = list(finished)


async def _whole_generations(bench: Bench, k: int, count: int) -> dict[int, tuple[float, float]]:
    positions = tuple(range(min(count, len(bench.prompts.ids))))
    sampler = _Once(Generate(positions, k, _CONCURRENCY))
    await measure_acceptance(bench, cast(AcceptanceSampler, sampler), Work(), Stage(f"acceptance, K = {k}", 0.0))
    return {
        position: (float(entry.tokens), float(entry.verify_steps))
        for position, entry in zip(positions, sampler.finished, strict=True)
        if entry.verify_steps
    }


async def _cohorts(
    bench: Bench, k: int, batch_sizes: Sequence[int], length: float, seconds: float
) -> dict[int, tuple[float, ...]]:
    """ITL of each cohort, each as long as an output of the workload. Batch sizes take turns until the time is over."""
    stage = Stage(f"ITL, K = {k}", seconds)
    cohorts: dict[int, list[float]] = {size: [] for size in batch_sizes}
    decks = max(int(bench.workload.output_tokens / (length * _BLOCK_STEPS)), 1)
    began = time.monotonic()
    seed = 0
    while time.monotonic() - began < seconds or not all(cohorts.values()):
        size = min(batch_sizes, key=lambda candidate: (len(cohorts[candidate]), candidate))
        order = Cohort(batch_size=size, ks=(k,), block_steps=_BLOCK_STEPS, decks=decks, seed=seed)
        steps = await run_cohort(bench, order, {k: length}, stage)
        blocks = [deck[k] for deck in estimate.cohort_blocks(steps, size, _BLOCK_STEPS).decks]
        if not blocks:
            raise RuntimeError(f"batch size {size}, K = {k}: a cohort had no undisturbed block of steps")
        cohorts[size].append(fmean(blocks))
        seed += size
    return {size: tuple(values) for size, values in cohorts.items()}
