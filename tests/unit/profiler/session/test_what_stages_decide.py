"""What the stages of a run decide by themselves: whom to blame, what to verify, where to look beside an edge."""

from typing import Any

import pytest
from tests.measured import loop, table_arm, triples

from specserve_profiler.contract.profile import Decision, Speedup
from specserve_profiler.decision.contest import check_points, repaired
from specserve_profiler.session.arms import beside_edges, promising
from specserve_profiler.session.measure import blamed
from specserve_profiler.statistics.acceptance import Generate
from specserve_profiler.statistics.grid import Target, runnable, spread
from specserve_profiler.statistics.sampling import Cohort

COHORT = Cohort(batch_size=64, ks=(0, 1, 3), block_steps=4, decks=1, seed=0)


@pytest.mark.parametrize(
    ("last", "lost"),
    [
        ((64, 3), (64, (3,))),
        ((16, 3), (64, (0, 1, 3))),  # lost while 16 of them were prefilled: no one K did it
        ((64, 5), (64, (0, 1, 3))),
        (None, (64, (0, 1, 3))),
    ],
)
def test_the_cell_that_an_engine_was_lost_in(last: Any, lost: Any) -> None:
    assert blamed(COHORT, last) == lost


def test_whole_generations_are_no_cell() -> None:
    assert blamed(Generate((0, 1), k=2, concurrency=2), (2, 2)) is None
    assert blamed(None, (2, 2)) is None


def test_an_edge_is_looked_at_from_both_sides_also_where_the_baseline_was_there() -> None:
    """The table 1-16:2 17-64:1 loses at 17 to K = 2: its edge moves. 16 is one of the baseline's concurrencies."""
    arm = table_arm((1, 16, 2), (17, 64, 1))
    points = sorted({1, 16, 64, *check_points(arm.rows, [1, 16, 64], 64)})

    beside = beside_edges(arm, points)

    assert beside == {1: [16, 17], 2: [16, 17]}
    seen = [
        loop(arm, {1: 100, 16: 900, 17: 800, 64: 1500}),
        loop(table_arm((1, 64, 2)), {16: 910, 17: 930}, live=True),
        loop(table_arm((1, 64, 1)), {16: 850, 17: 860}, live=True),
    ]
    other = repaired(arm.rows, seen)
    assert other is not None and triples(other) == [(1, 40, 2), (41, 64, 1)]


def test_one_row_has_no_edges() -> None:
    assert beside_edges(table_arm((1, 64, 2)), [1, 64]) == {}


@pytest.mark.parametrize(
    ("verdict", "rows", "gains", "worth"),
    [
        ("Dynamic", ((1, 8, 2), (9, 64, 1)), [1.3, 1.1], True),
        ("None", ((1, 8, 2), (9, 64, 1)), [1.3, 0.9], True),  # the error is larger than the gain; the loop may tell
        ("None", ((1, 8, 2), (9, 64, 1)), [0.9, 0.95], False),
        ("None", ((1, 64, 0),), [1.2], False),  # K = 0 only runs the drafter
    ],
)
def test_what_is_worth_a_boot_to_verify(verdict: Any, rows: Any, gains: list[float], worth: bool) -> None:
    speedups = tuple(Speedup(batch_size=size, over_baseline=gain, over_static=1) for size, gain in enumerate(gains, 1))
    decision = Decision(verdict=verdict, reason="", table=table_arm(*rows).rows, static_k=1, speedups=speedups)

    assert promising(decision) is worth


def test_batch_sizes_of_which_nothing_can_run_are_left_out() -> None:
    targets = [Target(1, 0), Target(1, 1), Target(8, 0, "no room"), Target(16, 1)]
    assert runnable(targets) == {1: [0, 1], 16: [1]}


def test_a_few_batch_sizes_are_spread_over_all_with_both_ends() -> None:
    assert spread((1, 2, 4, 8, 16, 32), 4) == (1, 4, 8, 32)
    assert spread((1, 8), 4) == (1, 8)
    assert spread((4,), 4) == (4,)
