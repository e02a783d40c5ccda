"""The probe on vLLM's real schedulers, driven as the engine core drives them."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from demopair.cache import Pair
from specserve_profiler.contract.steps import Finished, Step
from specserve_profiler.engine.records import StepLog, read_limits

pytestmark = pytest.mark.vllm
DRIVER = Path(__file__).parent / "drive_probe.py"


class Driven:
    """What the loop saw, and what the probe wrote."""

    def __init__(self, mode: str, result: dict[str, Any], directory: Path) -> None:
        self.mode = mode
        self.scheduler: tuple[str, str] = (result["class"], result["base"])
        self.seen: list[dict[str, Any]] = result["seen"]
        self.limits = read_limits(directory)
        self.steps: list[Step]
        self.finished: list[Finished]
        self.steps, self.finished = StepLog(directory).new()


@pytest.fixture(scope="module", params=["sync", "async"])
def driven(
    request: pytest.FixtureRequest,
    run_in_engine: Callable[..., Any],
    pair: Pair,
    tmp_path_factory: pytest.TempPathFactory,
) -> Driven:
    directory = tmp_path_factory.mktemp(request.param)
    done = run_in_engine(DRIVER, request.param, pair.target, pair.draft, directory, SPECSERVE_PROBE_DIR=str(directory))
    return Driven(request.param, json.loads(done.stdout.splitlines()[-1]), directory)


def test_the_scheduler_that_the_configuration_selects_is_probed(driven: Driven) -> None:
    expected = {"sync": ("ProbingScheduler", "Scheduler"), "async": ("ProbingAsyncScheduler", "AsyncScheduler")}
    assert driven.scheduler == expected[driven.mode]
    assert driven.limits.scheduler == driven.mode
    assert (driven.limits.max_num_seqs, driven.limits.num_speculative_tokens) == (4, 3)
    assert driven.limits.draft_slots == 1  # a draft model takes one more slot per request
    assert driven.limits.kv_cache_tokens == 200 * 16
    assert driven.limits.vocabulary == 1024


def test_every_step_is_recorded_once_as_it_was_scheduled(driven: Driven) -> None:
    recorded = [(step.requests, step.tokens, step.k) for step in driven.steps]
    assert recorded == [(seen["requests"], seen["tokens"], seen["k"]) for seen in driven.seen]
    assert len(recorded) > 30


def test_the_recorded_k_is_what_the_next_step_verifies(driven: Driven) -> None:
    """K belongs to the step that drafts it, also where the next was scheduled before its output came."""
    checked = 0
    for (step, seen), (_, after) in pairwise(zip(driven.steps, driven.seen, strict=True)):
        for name, drafts in after["drafts"].items():
            if name in seen["delivered"]:
                assert drafts == step.k
                checked += 1
    assert checked > 40
    assert {step.k for step in driven.steps} == {0, 1, 2, 3}


def test_blocks_are_as_planned(driven: Driven) -> None:
    """Twenty steps of two requests in blocks of three: every K at least once, each block three steps long."""
    ks = [step.k for step in driven.steps[:19]]
    changes = [index for index, (before, after) in enumerate(pairwise(ks), 1) if before != after]
    assert changes == list(range(3, 19, 3))
    assert set(Counter(ks)) == {0, 1, 2, 3}


def test_prefills_and_emitted_tokens_are_told_apart(driven: Driven) -> None:
    """Emitted is what reaches the client: a text's last step is cut to its length."""
    for step, seen in zip(driven.steps, driven.seen, strict=True):
        assert (step.prefills > 0) == bool(seen["new"])
        assert step.emitted == sum(seen["delivered"].values())


def test_finished_texts_count_every_token_after_the_first_and_the_aborted_one_is_left_out(driven: Driven) -> None:
    found = {entry.request_id: entry for entry in driven.finished}
    assert {name: entry.tokens for name, entry in found.items()} == {"a": 39, "b": 59}
    for name, entry in found.items():
        verify_steps = [seen for seen in driven.seen if name in seen["delivered"] and name not in seen["new"]]
        assert entry.emitted == tuple(seen["delivered"][name] for seen in verify_steps)
        assert 0 < entry.ttft_us < 60_000_000
