"""From step records to ITL, acceptance length and goodput."""

import math

import pytest

from specserve_profiler import estimate
from specserve_profiler.contract import Interval
from specserve_profiler.records import Finished, Step


def steps(*entries: tuple[float, int, int, int]) -> list[Step]:
    """Steps from (ms since the step before, requests, K, prefills)."""
    time = 0.0
    found = []
    for milliseconds, requests, k, prefills in entries:
        time += milliseconds
        found.append(Step(int(time * 1e6), requests, requests * (k + 1), k, requests, prefills, 100))
    return found


def test_first_step_of_a_block_and_steps_next_to_a_prefill_do_not_count() -> None:
    found = estimate.itl_blocks(
        steps(
            (0, 4, 2, 4),  # the prefill
            (90, 4, 2, 0),  # verifies what the prefill step drafted
            (20, 4, 2, 0),
            (22, 4, 2, 0),
            (50, 4, 0, 0),  # verifies two drafts, drafts none: belongs to neither
            (10, 4, 0, 0),
            (12, 4, 0, 0),
            (70, 4, 2, 0),
            (24, 4, 2, 0),
            (26, 4, 2, 0),
            (30, 3, 2, 0),  # one request has left
            (30, 5, 2, 1),  # and another came
            (30, 5, 2, 0),
        ),
        block_steps=3,
    )

    assert found == {(4, 2): [21.0, 25.0], (4, 0): [11.0]}


def test_one_k_for_a_long_time_is_cut_into_blocks_and_a_short_rest_left_out() -> None:
    found = estimate.itl_blocks(steps(*[(10, 2, 0, 0)] * 2, *[(20, 2, 0, 0)] * 3, (90, 2, 0, 0)), block_steps=5)

    # intervals 10 20 20 20 | 90, and one interval is less than half of four
    assert found == {(2, 0): [17.5]}


def test_mean_context_is_that_of_the_steps_that_count() -> None:
    entries = steps((0, 1, 1, 1), (5, 1, 1, 0), (5, 1, 1, 0), (5, 1, 1, 0))
    grown = [step._replace(context=100 + 10 * index) for index, step in enumerate(entries)]

    assert estimate.mean_context(grown) == 125
    assert estimate.mean_context([]) == 0


def test_acceptance_length_is_a_ratio_over_generations() -> None:
    """(20 + 40 + 33) tokens in (10 + 10 + 10) steps; residuals -11, 9, 2: 3/2 · (121 + 81 + 4) = 309."""
    interval = estimate.acceptance_length(
        [Finished(10, 20, "a"), Finished(10, 40, "b"), Finished(10, 33, "c"), Finished(0, 0, "ended at once")]
    )

    assert interval.mean == pytest.approx(3.1)
    assert interval.half_width == pytest.approx(4.303 * math.sqrt(309) / 30)


def test_no_verify_step_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="no pair"):
        estimate.acceptance_length([Finished(0, 0, "a")])


def test_spread_is_pooled_over_the_k_of_a_batch_size() -> None:
    """Relative deviations .1 .1 of K = 1 and 0 0 of K = 2: spread sqrt(.02 / 2) = .1, t of two degrees 4.303."""
    found = estimate.itl_intervals({(8, 1): [9.0, 11.0], (8, 2): [20.0, 20.0], (16, 1): [5.0]})

    one, blocks = found[8, 1]
    assert (one.mean, blocks) == (10.0, 2)
    assert one.half_width == pytest.approx(4.303 * 0.1 * 10 / math.sqrt(2))
    assert found[8, 2][0].half_width == pytest.approx(2 * one.half_width)
    assert found[16, 1][0] == Interval(mean=5.0, half_width=5.0)


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.706), (4, 2.776), (10, 2.228), (11, 2.201), (20, 2.086), (60, 2.000)]
)
def test_t_quantile(degrees: int, expected: float) -> None:
    assert estimate.t_quantile(degrees) == pytest.approx(expected, abs=3e-3)


def test_goodput_carries_both_errors() -> None:
    """2 tokens in 40 ms are 50 a second; 3 % and 4 % add up to 5 %."""
    found = estimate.goodput(Interval(mean=2, half_width=0.06), Interval(mean=40, half_width=1.6))

    assert found.mean == pytest.approx(50)
    assert found.half_width == pytest.approx(2.5)
