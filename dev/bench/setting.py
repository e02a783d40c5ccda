"""What all benches share: the real vLLM for the CPU, the demo pair, and what is asked of the profiler."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bench.show import say
from demopair.cache import Pair
from demopair.provide import ensure_pair
from devcluster.cache import Progress
from devcluster.enginevenv import ensure_engine
from specserve_profiler.contract.profile import Profile
from specserve_profiler.contract.request import Engine, ProfileRequest, PromptSource, Speculation, Verify, Workload
from specserve_profiler.engine.records import StepLog, read_limits
from specserve_profiler.engine.server import Engine as RunningEngine
from specserve_profiler.prompts.workload import load, tokenize
from specserve_profiler.session.boots import Boots
from specserve_profiler.session.measure import Bench
from specserve_profiler.session.run import execute

MAX_NUM_SEQS = 32
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
_LONGEST_SECONDS = 7200.0

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """One engine, and which cells of it are measured."""

    python: Path
    """Interpreter of an environment with vLLM."""
    pair: Pair
    kmax: int
    batch_sizes: tuple[int, ...]
    seconds: float
    """Time for measuring of one profile, or of all boots together of the other way."""

    @classmethod
    def prepared(cls, kmax: int, batch_sizes: Sequence[int], seconds: float) -> Setting:
        """Installs vLLM and trains the pair where the cache lacks them. Sets the engine's environment."""
        os.environ.update(_ENVIRONMENT)
        python = ensure_engine(Progress()).python
        return cls(python, ensure_pair(python, say), kmax, tuple(batch_sizes), seconds)

    def request(self, prompts: Path, verify: Verify = "Off") -> ProfileRequest:
        """What the profiler is asked for."""
        return ProfileRequest(
            key="specserve-bench",
            model=str(self.pair.target),
            speculation=Speculation(method="draft_model", model=str(self.pair.draft), max_tokens=self.kmax),
            engine=Engine(
                command=(str(self.python), "-m", "vllm.entrypoints.openai.api_server"),
                args=("--dtype=bfloat16", "--enforce-eager", "--no-enable-prefix-caching"),
                max_num_seqs=MAX_NUM_SEQS,
                max_model_len=1024,
            ),
            workload=Workload(prompt_tokens=32, output_tokens=96),
            prompts=PromptSource(path=str(prompts)),
            batch_sizes=self.batch_sizes,
            measure_seconds=self.seconds,
            timeout_seconds=_LONGEST_SECONDS,
            verify=verify,
        )

    def profile(self, verify: Verify = "Off") -> Profile:
        """One profile by the product's own code. Raises RuntimeError where it fails."""
        outcome = execute(self.request(self.pair.profile_prompts, verify))
        if outcome.profile is None:
            assert outcome.failure is not None
            raise RuntimeError(f"{outcome.failure.reason}: {outcome.failure.message}")
        return outcome.profile


@dataclass(frozen=True)
class Timed:
    """What a boot's measurement gave, and what it took."""

    boot_seconds: float
    """Booting and stopping."""
    measuring_seconds: float


async def in_a_boot(
    request: ProfileRequest,
    name: str,
    config: Mapping[str, Any] | None,
    measure: Callable[[Bench], Awaitable[T]],
    extra: Sequence[str] = (),
) -> tuple[T, Timed]:
    """Boots one engine by itself, measures, stops it. Raises ProfilingError."""
    entries = await load(request.prompts)

    async def with_bench(engine: RunningEngine) -> tuple[T, float]:
        began = time.monotonic()
        limits = read_limits(engine.directory)
        prompts = await tokenize(entries, engine, request.workload, limits.max_model_len)
        result = await measure(Bench(engine, limits, StepLog(engine.directory), prompts, request.workload))
        return result, time.monotonic() - began

    start = time.monotonic()
    result, measuring = await Boots(request).boot(name, config, with_bench, extra)
    return result, Timed(time.monotonic() - start - measuring, measuring)
