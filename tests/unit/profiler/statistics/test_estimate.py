"""From records of steps and requests to ITL, acceptance and throughput."""

import math

import pytest

from specserve_profiler.contract.profile import Interval
from specserve_profiler.contract.steps import Finished, Step
from specserve_profiler.statistics import estimate
from specserve_profiler.statistics.paired import level_fits, paired_fit


def steps(*entries: tuple[float, int, int, int]) -> list[Step]:
    """Steps from (ms since the step before, requests, K, prefills)."""
    time = 0.0
    found = []
    for milliseconds, requests, k, prefills in entries:
        time += milliseconds
        found.append(Step(int(time * 1e6), requests, requests * (k + 1), k, requests, prefills, 100))
    return found


# --- blocks ----------------------------------------------------------------------------------------------------------


def test_first_step_of_a_block_and_steps_next_to_a_prefill_do_not_count() -> None:
    found = estimate.cohort_blocks(
        steps(
            (0, 4, 2, 4),  # the prefill
            (90, 4, 2, 0),  # verifies what the prefill step drafted
            (20, 4, 2, 0),
            (50, 4, 0, 0),  # verifies two drafts, drafts none: belongs to neither
            (10, 4, 0, 0),
            (12, 4, 0, 0),
            (70, 4, 2, 0),
            (24, 4, 2, 0),
            (26, 4, 2, 0),
            (30, 3, 2, 0),  # one request has left
            (30, 3, 2, 0),
        ),
        batch_size=4,
        block_steps=3,
    )

    assert found.decks == ({2: 20.0, 0: 11.0}, {2: 25.0})
    assert (found.dropped, found.counted, found.context, found.largest) == (0, 5, 100.0, 4)
    assert found.seconds == pytest.approx(0.212)


def test_a_preemption_inside_the_window_is_counted_and_its_block_left_out() -> None:
    found = estimate.cohort_blocks(
        steps(
            (0, 4, 2, 4),
            (9, 4, 2, 0),
            (9, 4, 1, 0),
            (10, 4, 1, 0),
            (10, 4, 1, 0),
            (9, 4, 2, 0),
            (9, 3, 2, 0),  # preempted
            (9, 4, 2, 1),  # and taken up again
            (9, 4, 0, 0),
            (11, 4, 0, 0),
            (13, 4, 0, 0),
        ),
        batch_size=4,
        block_steps=3,
    )

    assert found.decks == ({1: 10.0, 0: 12.0},)
    assert found.dropped == 2


def test_a_stall_is_dropped_and_counted() -> None:
    """51 ms are more than ten times the median of 5 ms, 50 ms are not."""
    entries = [(0, 1, 3, 1), *[(ms, 1, 3, 0) for ms in (5.0, 5.0, 51.0, 5.0, 5.0, 5.0, 50.0)]]
    found = estimate.cohort_blocks(steps(*entries), batch_size=1, block_steps=8)

    assert found.decks == ({3: pytest.approx(14.0)},)
    assert (found.dropped, found.counted) == (1, 5)


def test_one_k_for_a_long_time_is_cut_into_blocks_and_a_short_rest_left_out() -> None:
    found = estimate.cohort_blocks(
        steps((0, 2, 0, 2), *[(10, 2, 0, 0)] * 5, *[(20, 2, 0, 0)] * 5, (90, 2, 0, 0)), batch_size=2, block_steps=5
    )

    # the prefill belongs to the first block, and the step after it does not count: 10 10 10 | 10 20 20 20 20 | 20 90
    assert found.decks == ({0: 10.0}, {0: 18.0}, {0: 55.0})


def test_an_engine_that_never_holds_the_cohort_gives_no_block() -> None:
    found = estimate.cohort_blocks(steps((0, 3, 1, 3), (5, 3, 1, 0), (5, 3, 1, 0)), batch_size=4, block_steps=3)

    assert (found.decks, found.largest, found.seconds) == ((), 3, 0.0)
    assert estimate.cohort_blocks([], 4, 3).decks == ()


# --- how K compare ---------------------------------------------------------------------------------------------------


def test_k_are_compared_within_their_decks() -> None:
    """The machine is twice as slow in the second deck; K = 2 takes 3 times as long as K = 0 in both."""
    fit = paired_fit([{0: 10.0, 2: 30.0}, {2: 60.0, 0: 20.0}])

    assert math.exp(fit.effects[2] - fit.effects[0]) == pytest.approx(3)
    assert fit.spread() == {0: pytest.approx(0, abs=1e-6), 2: pytest.approx(0, abs=1e-6)}


def test_a_missing_block_is_no_guess() -> None:
    """K = 1 was not seen in the deck that was five times as slow."""
    fit = paired_fit([{0: 10.0, 1: 15.0, 2: 20.0}, {0: 50.0, 2: 100.0}])

    assert math.exp(fit.effects[1] - fit.effects[0]) == pytest.approx(1.5)
    assert dict(fit.blocks) == {0: 2, 1: 1, 2: 2}


def test_spread_of_two_k() -> None:
    """Log ratios .1 and .3: mean .2, standard error .1, t of one degree 12.706; each K has half of the variance."""
    fit = paired_fit([{0: 1.0, 1: math.exp(0.1)}, {0: 1.0, 1: math.exp(0.3)}])

    spread = fit.spread()
    assert fit.effects[1] - fit.effects[0] == pytest.approx(0.2)
    assert math.hypot(spread[0], spread[1]) == pytest.approx(12.706 * 0.1)


def test_a_k_that_left_the_decks_early_takes_what_its_pairs_do_not_know() -> None:
    decks = [{0: 10.0, 1: 20.0 * (1 + 0.02 * (-1) ** i), 2: 30.0 * (1 + 0.02 * (-1) ** (i // 2))} for i in range(8)]
    fit = paired_fit([*decks, *[{0: 10.0, 1: 20.0 * (1 + 0.02 * (-1) ** i)} for i in range(72)]])

    spread = fit.spread()
    for k, other in [(0, 1), (0, 2), (1, 2)]:
        known = estimate.t_quantile(max(fit.degrees[k], fit.degrees[other])) * math.sqrt(fit.variance[k, other])
        assert math.hypot(spread[k], spread[other]) >= known * 0.999
    assert spread[2] > 2 * spread[1]


def test_one_deck_tells_nothing_of_the_spread_and_one_k_needs_none() -> None:
    assert paired_fit([{0: 10.0, 1: 20.0}]).spread() == {0: 1.0, 1: 1.0}
    assert paired_fit([{0: 10.0}, {0: 12.0}]).spread() == {0: 0.0}


def test_a_k_that_shares_no_deck_with_the_others_is_left_out() -> None:
    fit = paired_fit([{0: 10.0, 1: 20.0}, {0: 10.0, 1: 21.0}, {5: 90.0}])

    assert set(fit.effects) == {0, 1}


def test_level_has_the_cohort_as_its_unit() -> None:
    """Cohorts at 9 and 11 ms, five blocks each: deviation sqrt(.02 / 1), over sqrt(2); t of one degree 12.706.

    So it is wider than the mean, and cut there. Eight cohorts tell more: sqrt(.08 / 7) / sqrt(8) x 2.365.
    """
    nine, eleven = [{0: 9.0}] * 5, [{0: 11.0}] * 5

    two = level_fits({4: [nine, eleven]}, {4: {0: 0.0}})[4]
    eight = level_fits({4: [nine, eleven] * 4}, {4: {0: 0.0}})[4]

    assert (two.ms, two.half_width) == (10.0, 1.0)
    assert eight.half_width == pytest.approx(2.365 * math.sqrt(0.08 / 7 / 8), rel=1e-3)


def test_a_batch_size_with_one_cohort_has_the_deviation_of_the_others() -> None:
    cohorts = [[{0: 9.0}], [{0: 11.0}]] * 4
    levels = level_fits({4: cohorts, 8: [[{0: 20.0}]]}, {4: {0: 0.0}, 8: {0: 0.0}})

    assert levels[8].ms == 20.0
    assert levels[8].half_width == pytest.approx(levels[4].half_width * math.sqrt(8), rel=1e-6)
    assert level_fits({8: [[{0: 20.0}]]}, {8: {0: 0.0}})[8].half_width == 1.0


def test_cohorts_that_are_like_their_neighbours_tell_less() -> None:
    """Four slow cohorts and then four fast ones are no eight independent ones."""
    slow_then_fast = [[{0: 11.0}]] * 4 + [[{0: 9.0}]] * 4
    mixed = [[{0: 11.0}], [{0: 9.0}]] * 4

    drifting = level_fits({4: slow_then_fast}, {4: {0: 0.0}})[4].half_width
    assert drifting > 2 * level_fits({4: mixed}, {4: {0: 0.0}})[4].half_width


# --- acceptance ------------------------------------------------------------------------------------------------------


def test_acceptance_length_is_a_ratio_over_generations() -> None:
    """(20 + 40 + 33) tokens in (10 + 10 + 10) steps; residuals -11, 9, 2: 3/2 · (121 + 81 + 4) = 309."""
    interval = estimate.ratio_interval([(20, 10), (40, 10), (33, 10)])

    assert interval.mean == pytest.approx(3.1)
    assert interval.half_width == pytest.approx(4.303 * math.sqrt(309) / 30)


def test_no_verify_step_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="no pair"):
        estimate.ratio_interval([])


def test_the_ratio_of_two_k_on_the_same_prompts_is_known_better_than_either() -> None:
    """Prompts differ by a factor of two, K = 2 is 1.5 times K = 1 on each."""
    one = estimate.influences({0: (20, 10), 1: (40, 10), 2: (30, 10)})
    two = estimate.influences({0: (30, 10), 1: (60, 10), 2: (45, 10)})

    assert sum(one.values()) == pytest.approx(0)
    assert estimate.log_ratio_half_width(one, two) == pytest.approx(0, abs=1e-9)
    # residuals -10, 10, 0 of 90 tokens: 4.303 x sqrt(3 / 2 x 200) / 90
    assert estimate.log_ratio_half_width(one, {}) == pytest.approx(4.303 * math.sqrt(300) / 90)
    assert estimate.log_ratio_half_width({0: 0.0}, {}) == 1.0


def test_acceptance_by_position_is_unconditional_and_counts_steps_without_drafts() -> None:
    """Steps with 1, 1, 2 and 4 tokens: half accepted a first draft, a quarter a second and a third."""
    assert estimate.by_position([Finished(0, "11", "a"), Finished(0, "24", "b")], 4) == (0.5, 0.25, 0.25, 0.0)


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.706), (4, 2.776), (10, 2.228), (11, 2.201), (20, 2.086), (60, 2.000)]
)
def test_t_quantile(degrees: int, expected: float) -> None:
    assert estimate.t_quantile(degrees) == pytest.approx(expected, abs=3e-3)


def test_relative() -> None:
    assert estimate.relative(Interval(mean=40, half_width=1)) == 0.025


# --- closed loop -----------------------------------------------------------------------------------------------------


def loop(
    requests: list[int], milliseconds: list[float], emitted: list[int], prefills: list[int] | None = None
) -> list[Step]:
    time = 0.0
    found = []
    begun = prefills or [0] * len(requests)
    for count, ms, tokens, new in zip(requests, milliseconds, emitted, begun, strict=True):
        time += ms
        found.append(Step(int(time * 1e6), count, count, 0, tokens, new, 100))
    return found


def test_throughput_is_that_of_the_full_loop_without_ramp_and_drain() -> None:
    """17 full steps of 10 ms with 4 tokens each, the ramp and the drain a hundred times as slow."""
    requests = [1, 2, 4, *[4] * 16, 2, 1]
    milliseconds = [1000.0] * 3 + [10.0] * 16 + [1000.0] * 2

    found = estimate.loop_throughput(loop(requests, milliseconds, [4] * 21), concurrency=4)

    assert found.mean == pytest.approx(400)
    assert found.half_width == pytest.approx(0, abs=1e-6)


def test_prefills_and_the_wait_for_the_next_request_are_part_of_the_loop() -> None:
    """Every fourth step is a long prefill with one token, before it one request is missing."""
    requests = [4] + [4, 4, 3, 4] * 40
    milliseconds = [10.0] + [10.0, 10.0, 10.0, 30.0] * 40
    emitted = [4] + [4, 4, 3, 1] * 40

    found = estimate.loop_throughput(loop(requests, milliseconds, emitted), concurrency=4)

    assert found.mean == pytest.approx(12 / 0.060)
    assert found.half_width < 1


def test_windows_tell_how_well_throughput_is_known() -> None:
    """Eight windows of 20 steps, half of them twice as slow: rates of 400 and 200 tokens/s."""
    milliseconds = [10.0] + ([10.0] * 20 + [20.0] * 20) * 4
    found = estimate.loop_throughput(loop([4] * 161, milliseconds, [4] * 161), concurrency=4)

    # ratio of sums 640 / 2.4; residuals 80 - 266.7 x .2 and 80 - 266.7 x .4: 26.7; 2.365 x sqrt(8/7 x 8 x 711) / 2.4
    assert found.mean == pytest.approx(266.67, abs=0.01)
    assert found.half_width == pytest.approx(79.4, abs=0.5)


def test_a_window_is_as_long_as_a_request() -> None:
    """Four requests of 16 steps, with 1 and 3 tokens in turn: windows of 16 and 48 tokens in .16 s, 200 tokens/s.

    Residuals of 16: 3.182 x sqrt(4/3 x 4 x 256) / .64 = 183.7. Eight windows of 8 steps would say 89.
    """
    begun = [*([1] + [0] * 15) * 4, 0]
    found = estimate.loop_throughput(loop([1] * 65, [10.0] * 65, [1, *([1] * 16 + [3] * 16) * 2], begun), 1)

    assert found.mean == pytest.approx(200)
    assert found.half_width == pytest.approx(183.7, abs=0.1)


def test_windows_that_are_like_their_neighbours_tell_less() -> None:
    """Two requests of 32 steps: eight windows of 8 steps, 8 8 8 8 24 24 24 24 tokens, residuals of 8.

    r = 5/8, for short series 5/8 + (1 + 15/8) / 8 = .984, at most .9: the variance is 19 times 8/7 x 8 x 64.
    """
    begun = [*([1] + [0] * 31) * 2, 0]
    found = estimate.loop_throughput(loop([1] * 65, [10.0] * 65, [1, *[1] * 32, *[3] * 32], begun), 1)

    assert found.mean == pytest.approx(200)
    assert found.half_width == pytest.approx(2.365 * math.sqrt(19 * 8 / 7 * 8 * 64) / 0.64, rel=1e-3)


@pytest.mark.parametrize(("concurrency", "least"), [(1, 1), (9, 9), (10, 9), (11, 10), (20, 18), (256, 231)])
def test_a_loop_is_full_with_nine_tenths_of_its_clients(concurrency: int, least: int) -> None:
    def is_full(requests: int) -> bool:
        return estimate.is_full(loop([requests], [10.0], [requests])[0], concurrency)

    assert is_full(least) and not is_full(least - 1)


def test_a_large_loop_that_misses_a_request_in_every_step_is_full() -> None:
    """20 clients, 19 or 18 in a step; the ramp with 17 is a hundred times as slow."""
    requests = [17, 17, *[18, 19] * 20]
    milliseconds = [1000.0, 1000.0, *[10.0] * 40]

    assert estimate.loop_throughput(loop(requests, milliseconds, [37] * 42), 20).mean == pytest.approx(3700)
    with pytest.raises(ValueError, match="never had 18 requests in its steps, but at most 17"):
        estimate.loop_throughput(loop([17] * 9, [10.0] * 9, [37] * 9), 20)


def test_a_loop_that_never_was_full_is_an_error() -> None:
    with pytest.raises(ValueError, match="never had 8 requests in its steps, but at most 4"):
        estimate.loop_throughput(loop([4] * 5, [10.0] * 5, [4] * 5), concurrency=8)
