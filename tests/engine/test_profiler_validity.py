"""One boot that switches K against servers that run one K alone: the same drafts accepted, the same times.

Greedy, on real vLLM. The bench (``make bench-profile``) compares times more closely, with boots repeated.
"""

import asyncio
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demopair.cache import Pair
from devcluster.pace import patience
from specserve_profiler.contract.request import Engine, ProfileRequest, PromptSource, Speculation, Workload
from specserve_profiler.contract.steps import Finished
from specserve_profiler.dialect import render
from specserve_profiler.engine.records import StepLog, read_limits
from specserve_profiler.engine.server import Engine as Running
from specserve_profiler.prompts.workload import Prompts, load, tokenize
from specserve_profiler.session.boots import Boots
from specserve_profiler.session.console import Stage
from specserve_profiler.session.measure import Bench, Work, measure_acceptance, measure_itl
from specserve_profiler.statistics.acceptance import AcceptanceSampler, Generate
from specserve_profiler.statistics.sampling import GridResult, GridSampler

pytestmark = [pytest.mark.vllm, pytest.mark.timed]

BATCH_SIZE = 4
PROMPTS = 12
DRIFT = 0.13
"""What ITL was seen to differ by between two boots on such machines (docs/method.md)."""
MOST_BOOTS = 3


@dataclass
class Seen:
    """What one boot did at each K."""

    chains: dict[int, list[str]]
    """K -> what each verify step of each prompt's generation put out."""
    itl_ms: dict[int, float]
    spread: dict[int, float]


class _Recording(AcceptanceSampler):
    """One round of prompts at every K, and all that came of it."""

    def __init__(self, ks: Sequence[int]) -> None:
        super().__init__(ks, PROMPTS, PROMPTS, seconds=1e9)
        self.finished: dict[int, list[Finished]] = {}

    def add(self, order: Generate, finished: Sequence[Finished], seconds: float) -> None:
        super().add(order, finished, seconds)
        self.finished[order.k] = list(finished)


@pytest.fixture(autouse=True)
def _as_the_engine_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")


def request_of(python: Path, pair: Pair, method: str, kmax: int) -> ProfileRequest:
    return ProfileRequest(
        key="validity",
        model=str(pair.target),
        speculation=Speculation.model_validate(
            {"method": method, "model": str(pair.draft) if method == "draft_model" else None, "maxTokens": kmax}
        ),
        engine=Engine(
            command=(str(python), "-m", "vllm.entrypoints.openai.api_server"),
            args=("--dtype=bfloat16", "--enforce-eager", "--no-enable-prefix-caching"),
            max_num_seqs=16,
            max_model_len=512,
        ),
        workload=Workload(prompt_tokens=32, output_tokens=96),
        prompts=PromptSource(path=str(pair.profile_prompts)),
        batch_sizes=(BATCH_SIZE,),
        measure_seconds=60,
        timeout_seconds=patience(600),
    )


def seen(request: ProfileRequest, config: Mapping[str, Any] | None, ks: Sequence[int]) -> Seen:
    """One boot: whole generations of the same prompts at each K, then cohorts. A static server has one K, its own."""

    async def measure(running: Running) -> Seen:
        limits = read_limits(running.directory)
        entries = await load(request.prompts)
        prompts = await tokenize(entries, running, request.workload, limits.max_model_len)
        bench = Bench(running, limits, StepLog(running.directory), Prompts(prompts.ids[:PROMPTS]), request.workload)
        recording = _Recording(ks)
        await measure_acceptance(bench, recording, Work(), Stage("generations", 10))
        found = recording.result()
        sampler = GridSampler({BATCH_SIZE: ks}, found, 12.0, {}, request.workload.output_tokens)
        await measure_itl(bench, sampler, found.lengths, Work(), Stage("cohorts", 12))
        grid: GridResult = sampler.result()
        return Seen(
            {k: [entry.chain for entry in finished] for k, finished in recording.finished.items()},
            {cell.k: cell.itl_ms for cell in grid.cells if cell.itl_ms is not None},
            {cell.k: math.hypot(cell.spread, grid.levels[0].half_width) for cell in grid.cells},
        )

    return asyncio.run(Boots(request).boot(f"K {', '.join(map(str, ks))}", config, measure))


def assert_agrees(ratio: float, spread: float, boots: Callable[[], float]) -> None:
    """That a log ratio of times seen in one boot is what servers of their own have; ``boots`` measures those anew.

    Boots differ by more than cells of one boot, and by how much depends on the machine: where one comparison does not
    agree they are repeated, and what they are seen to differ by counts.
    """
    found: list[float] = []
    for number in range(1, MOST_BOOTS + 1):
        found.append(boots())
        between = max(DRIFT, 2 * statistics.stdev(found) if number > 1 else 0) / math.sqrt(number)
        if abs(ratio - statistics.mean(found)) < math.hypot(spread, between):
            return
    raise AssertionError(f"{ratio:+.3f} in one boot, in others {', '.join(f'{one:+.3f}' for one in found)}")


def test_a_draft_model_drafts_and_costs_the_same_beside_other_k_as_alone(engine_python: Path, pair: Pair) -> None:
    request = request_of(engine_python, pair, "draft_model", 3)
    together = seen(request, render.measuring_config(request.speculation, 16), (1, 2, 3))
    assert together.chains[1] != together.chains[3]
    assert sum(map(len, together.chains[3])) > 200  # that many verify steps agree below

    def alone() -> float:
        one, three = (seen(request, render.static_config(request.speculation, k), (k,)) for k in (1, 3))
        assert together.chains[1] == one.chains[1]
        assert together.chains[3] == three.chains[3]
        return math.log(three.itl_ms[3] / one.itl_ms[1])

    ratio = math.log(together.itl_ms[3] / together.itl_ms[1])
    assert ratio > 0.05  # three drafts cost more than one
    assert_agrees(ratio, math.hypot(together.spread[1], together.spread[3]), alone)


def test_ngrams_are_accepted_beside_other_k_as_alone(engine_python: Path, pair: Pair) -> None:
    """An n-gram drafter often finds nothing; those steps count as well."""
    request = request_of(engine_python, pair, "ngram", 3)
    together = seen(request, render.measuring_config(request.speculation, 16), (1, 3))
    texts = ["".join(chain) for chain in together.chains[3]]
    assert any("1" in text and text.strip("1") for text in texts)  # some steps accept, some do not

    def alone() -> float:
        three = seen(request, render.static_config(request.speculation, 3), (3,))
        assert together.chains[3] == three.chains[3]
        return math.log(three.itl_ms[3] / together.itl_ms[3])

    assert_agrees(0.0, together.spread[3], alone)
