"""What is measured, and what cannot run."""

import pytest

from specserve_profiler.contract.steps import Limits
from specserve_profiler.statistics.grid import candidates, default_batch_sizes, plan_grid

LIMITS = Limits(
    engine_version="0.32.0",
    scheduler="sync",
    max_num_seqs=32,
    max_model_len=1024,
    max_num_batched_tokens=128,
    max_num_scheduled_tokens=100,
    kv_cache_tokens=4000,
    draft_slots=1,
    num_speculative_tokens=5,
)


@pytest.mark.parametrize(
    ("max_num_seqs", "expected"),
    [(1, (1,)), (2, (1, 2)), (32, (1, 2, 4, 8, 16, 32)), (48, (1, 2, 4, 8, 16, 32, 48))],
)
def test_batch_sizes_double_up_to_the_largest_itself(max_num_seqs: int, expected: tuple[int, ...]) -> None:
    assert default_batch_sizes(max_num_seqs) == expected


def test_candidates_are_all_k_with_zero() -> None:
    assert candidates(3) == (0, 1, 2, 3)


def test_cells_that_cannot_run_carry_the_reason() -> None:
    cells = {(t.batch_size, t.k): t.skipped for t in plan_grid((8, 24, 32, 64), (0, 3, 5), LIMITS, 100)}

    assert cells[8, 5] is None
    assert cells[24, 0] is None
    assert cells[24, 3] is None
    assert cells[24, 5] == "a step takes 168 tokens, max_num_batched_tokens is 128"
    assert cells[64, 0] == "the engine runs at most 32 requests at once"
    assert cells[32, 3] == "a step takes 160 tokens, max_num_batched_tokens is 128"
    assert len(cells) == 12


def test_scheduled_tokens_and_kv_cache_bound_a_cell_too() -> None:
    cells = {(t.batch_size, t.k): t.skipped for t in plan_grid((26, 32), (3, 0), LIMITS, 130)}

    assert cells[26, 0] is None
    assert cells[32, 0] == "the requests take 4320 tokens of KV cache, the engine has 4000"
    wide = {
        t.k: t.skipped
        for t in plan_grid((25,), (3, 4), LIMITS.__class__(**{**LIMITS.__dict__, "max_num_batched_tokens": 999}), 100)
    }
    assert wide == {3: None, 4: "a step takes 125 tokens, the engine schedules at most 100"}
