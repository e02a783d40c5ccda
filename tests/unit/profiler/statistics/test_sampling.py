"""What the samplers ask for, when they end, and what they say of what could not be measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.profiler.simulator import Engine, dense, sample_acceptance, sample_grid

from specserve_profiler.contract.profile import Acceptance, AcceptanceContrast, Interval
from specserve_profiler.contract.steps import Finished, Step
from specserve_profiler.statistics.acceptance import WITHOUT_SPECULATION, AcceptanceResult, AcceptanceSampler, Generate
from specserve_profiler.statistics.sampling import Cohort, GridSampler

# --- acceptance ------------------------------------------------------------------------------------------------------


def orders(sampler: AcceptanceSampler, seconds: Callable[[Generate], float] = lambda _: 1.0) -> list[Generate]:
    """All that the sampler asks for, where an order takes ``seconds``; every text has ten steps of two tokens."""
    found: list[Generate] = []
    elapsed = 0.0
    while (order := sampler.next(elapsed)) is not None:
        found.append(order)
        elapsed += seconds(order)
        sampler.add(order, [Finished(0, "2" * 10, "g")] * len(order.prompts), seconds(order))
    return found


def test_every_k_sees_the_same_prompts_in_rounds() -> None:
    found = orders(AcceptanceSampler((0, 1, 3, 5), prompt_count=10, concurrency=4, seconds=1000))

    rounds = [found[i : i + 3] for i in range(0, 9, 3)]
    assert len(found) == 9
    assert [sorted(order.k for order in entry) for entry in rounds] == [[1, 3, 5]] * 3
    assert [{order.prompts for order in entry} for entry in rounds] == [{(0, 1, 2, 3)}, {(4, 5, 6, 7)}, {(8, 9)}]
    assert len({tuple(order.k for order in entry) for entry in rounds}) > 1  # the order of K is random


def test_one_round_at_least_and_no_other_that_is_not_affordable() -> None:
    assert len(orders(AcceptanceSampler((1, 2), 100, 8, seconds=0.1), lambda _: 60)) == 2
    # two orders of 10 s a round: 50 s are two rounds
    assert len(orders(AcceptanceSampler((1, 2), 100, 8, seconds=50), lambda _: 10)) == 4


def test_acceptance_ends_early_where_all_ratios_are_known() -> None:
    """All texts are alike, so 24 prompts say as much as 1,000."""
    found = orders(AcceptanceSampler((1, 2), 1000, 8, seconds=1e9))

    assert len(found) == 6


def test_at_temperature_zero_prompts_come_once_and_all_of_them_leave_nothing_open_here() -> None:
    result = sample_acceptance(Engine(seed=1), AcceptanceSampler((1, 3), 40, 16, seconds=1e9))

    assert [entry.prompts for entry in result.acceptance] == [0, 40, 40]
    assert [entry.here for entry in result.acceptance] == [0, 0, 0]
    assert all(entry.acceptance_length.half_width > 0.05 for entry in result.acceptance[1:])


def test_half_of_the_prompts_leave_the_finite_population_open() -> None:
    """sqrt(1 - 20 / 80) of the interval over prompts."""
    sampler = AcceptanceSampler((1,), 80, 20, seconds=0.1)
    entry = sample_acceptance(Engine(seed=1), sampler).acceptance[1]

    assert entry.prompts == 20
    assert entry.here == pytest.approx(entry.acceptance_length.half_width * 0.8660, rel=1e-3)


def test_above_temperature_zero_prompts_come_again_and_texts_of_a_prompt_tell_what_is_open_here() -> None:
    engine = Engine(seed=2, random_texts=True)
    took = 16 * 0.9  # what two K of 16 prompts take about, in seconds
    result = sample_acceptance(engine, AcceptanceSampler((1, 3), 16, 16, seconds=3 * took, temperature=0.8))

    entry = result.acceptance[2]
    assert entry.prompts % 16 == 0 and entry.prompts > 16
    assert 0 < entry.here < entry.acceptance_length.half_width


def test_acceptance_without_speculation_is_one() -> None:
    result = sample_acceptance(Engine(seed=1), AcceptanceSampler((0, 2), 40, 16, seconds=1e9))

    assert result.lengths[0] == 1
    assert result.half_width(2, 0) == result.half_width(0, 2) == result.contrasts[0].half_width
    relative = result.acceptance[1].acceptance_length.half_width / result.lengths[2]
    assert result.half_width(2, 0) == pytest.approx(relative, rel=1e-9)
    assert result.half_width(2, 2) == 0


def test_spot_check_has_the_first_prompts_again_at_the_middle_k() -> None:
    sampler = AcceptanceSampler((1, 2, 5), 30, 10, seconds=1e9, spot_concurrency=4)
    found = orders(sampler)

    assert found[-1] == Generate(prompts=tuple(range(10)), k=2, concurrency=4)
    check = sampler.result().spot_check
    assert check is not None
    assert (check.k, check.batch_size, check.ratio) == (2, 4, Interval(mean=1.0, half_width=0.0))


def test_spot_check_at_more_requests_at_once_has_as_many_prompts() -> None:
    found = orders(AcceptanceSampler((1,), 100, 8, seconds=20, spot_concurrency=24), lambda _: 2)
    assert found[-1] == Generate(prompts=tuple(range(24)), k=1, concurrency=24)


def test_spot_check_with_too_few_prompts_is_at_fewer_requests_at_once() -> None:
    """Eight prompts cannot make a batch of 32."""
    found = orders(AcceptanceSampler((1,), 8, 8, seconds=1e9, spot_concurrency=32))
    assert found[-1] == Generate(prompts=tuple(range(8)), k=1, concurrency=2)


def test_spot_check_sees_that_acceptance_depends_on_the_batch_size() -> None:
    """Here each text has 12 instead of 20 tokens in as many steps."""
    sampler = AcceptanceSampler((2,), 8, 8, seconds=1e9, spot_concurrency=2)
    order = sampler.next(0)
    assert order is not None
    sampler.add(order, [Finished(0, "2" * 10, "g")] * 8, 1)
    spot = sampler.next(1)
    assert spot is not None
    sampler.add(spot, [Finished(0, "1111111122", "g")] * 8, 1)

    check = sampler.result().spot_check
    assert check is not None and check.ratio.mean == pytest.approx(0.6)


def test_time_for_the_spot_check_is_kept_and_one_that_takes_too_long_is_left_out() -> None:
    # a round takes 20 s, the spot check twice the 10 s of its K: a fourth round would leave 5 of 85 s
    found = orders(AcceptanceSampler((1, 2), 100, 8, seconds=85, spot_concurrency=4), lambda _: 10)
    assert len(found) == 7 and found[-1].prompts == tuple(range(8))

    # one request at a time takes eight times as long: 80 of 75 s
    found = orders(AcceptanceSampler((1, 2), 100, 8, seconds=75, spot_concurrency=1), lambda _: 10)
    assert len(found) == 6 and all(order.concurrency == 8 for order in found)


def test_a_k_that_the_engine_does_not_survive_is_not_asked_for_again() -> None:
    sampler = AcceptanceSampler((1, 2, 3), 20, 10, seconds=1e9)
    asked = []
    while (order := sampler.next(0)) is not None:
        asked.append(order.k)
        if order.k == 2:
            sampler.fail(order, "the engine crashed")
        else:
            sampler.add(order, [Finished(0, "12" * 5, "g")] * 10, 1)
    result = sampler.result()

    assert asked.count(2) == 1 and asked.count(1) == asked.count(3) == 2
    assert dict(result.failed) == {2: "the engine crashed"}
    assert list(result.lengths) == [0, 1, 3]


def test_texts_that_end_at_once_are_left_out_and_nothing_else_is_an_error() -> None:
    sampler = AcceptanceSampler((1,), 3, 3, seconds=1e9)
    order = sampler.next(0)
    assert order is not None
    sampler.add(order, [Finished(0, "", "a"), Finished(0, "12", "b"), Finished(0, "22", "c")], 1)
    assert (sampler.result().lengths[1], sampler.result().acceptance[1].prompts) == (1.75, 2)

    sampler = AcceptanceSampler((1,), 3, 3, seconds=1e9)
    order = sampler.next(0)
    assert order is not None
    sampler.add(order, [Finished(0, "", "a")] * 3, 1)
    with pytest.raises(ValueError, match="every text ended with its first token"):
        sampler.result()


def test_acceptance_needs_prompts() -> None:
    with pytest.raises(ValueError, match="at least one prompt"):
        AcceptanceSampler((1,), 0, 3, seconds=1)


# --- grid ------------------------------------------------------------------------------------------------------------


def acceptance(lengths: dict[int, float], half_width: float = 0.001) -> AcceptanceResult:
    return AcceptanceResult(
        tuple(Acceptance(k=k, acceptance_length=Interval(mean=al), prompts=80) for k, al in lengths.items()),
        tuple(AcceptanceContrast(k=k, other=o, half_width=half_width) for k in lengths for o in lengths if o < k),
    )


AL = acceptance({0: 1.0, 1: 1.5, 2: 1.8, 3: 2.0})


def test_every_cell_is_measured_once_however_little_time_there_is() -> None:
    grid, _ = sample_grid(Engine(seed=1), GridSampler(dict.fromkeys((1, 8, 32), (0, 1, 2)), AL, 0.001, {}, 256))

    assert all(cell.itl_ms is not None and cell.blocks >= 1 for cell in grid.cells)
    assert len(grid.cells) == 9
    assert [level.stopped for level in grid.levels] == ["Budget"] * 3
    assert [level.half_width for level in grid.levels] == [1.0] * 3  # one cohort each says nothing of drift


def test_all_batch_sizes_come_once_before_any_comes_again_and_no_two_cohorts_have_a_seed() -> None:
    engine, sampler = Engine(seed=1), GridSampler(dict.fromkeys((1, 8, 32), (0, 1, 2)), AL, 20, {}, 256)
    found: list[Cohort] = []
    elapsed = 0.0
    while (order := sampler.next(elapsed)) is not None:
        found.append(order)
        steps, seconds = engine.cohort(order)
        sampler.add(order, steps, seconds)
        elapsed += seconds

    assert [cohort.batch_size for cohort in found[:3]] == [1, 8, 32]
    assert len({cohort.seed for cohort in found}) == len(found) > 6
    assert elapsed < 20 + 5


def test_cohorts_take_about_two_seconds_and_no_longer_than_the_texts() -> None:
    """6 steps of each of 3 K at 10 ms: a deck takes 0.18 s and 25.8 tokens."""

    def second(output_tokens: int) -> int:
        sampler = GridSampler({8: (0, 1, 2)}, AL, 100, {}, output_tokens)
        engine = Engine(lambda _, __: 10.0, noise=0, drift=0, stalls=0)
        first = sampler.next(0)
        assert first is not None and first.decks == 2
        sampler.add(first, *engine.cohort(first))
        cohort = sampler.next(1)
        assert cohort is not None
        return cohort.decks

    assert 9 <= second(output_tokens=1000) <= 12
    assert second(output_tokens=80) == 3


@pytest.mark.parametrize(("seconds", "block_steps"), [(30, 6), (17, 4), (10, 3), (1, 3)])
def test_blocks_are_as_long_as_leaves_twenty_of_each(seconds: float, block_steps: int) -> None:
    """Ten cells of 20 ms: 20 blocks of 6, 4 and 3 steps take 24, 16 and 12 s."""
    sampler = GridSampler(
        dict.fromkeys((1, 2, 4, 8, 16), (0, 1)), AL, seconds, dict.fromkeys((1, 2, 4, 8, 16), 20), 256
    )
    cohort = sampler.next(0)

    assert cohort is not None and cohort.block_steps == block_steps


def test_a_large_difference_is_known_after_twenty_decks() -> None:
    grid, seconds = sample_grid(Engine(seed=1), GridSampler({8: (0, 1)}, acceptance({0: 1, 1: 1.1}), 600, {}, 256))

    assert grid.levels[0].stopped == "Known"
    assert 20 <= grid.cells[0].blocks < 60
    assert seconds < 10


def test_a_k_that_is_surely_worse_leaves_and_its_cell_stays() -> None:
    """K = 3 costs ten times as much; 1 and 2 are alike."""
    cost = {1: 10.0, 2: 10.0, 3: 100.0}
    sampler = GridSampler({4: (1, 2, 3)}, acceptance({0: 1, 1: 1.5, 2: 1.5, 3: 2.0}), 60, {}, 256)
    grid, _ = sample_grid(Engine(lambda _, k: cost[k], seed=1), sampler)
    one, two, three = grid.cells

    assert 10 <= three.blocks < 30 < one.blocks == two.blocks
    assert three.itl_ms == pytest.approx(100, rel=0.05)
    assert three.spread > one.spread


def test_what_only_acceptance_leaves_open_does_not_use_up_the_time() -> None:
    """K = 1 and 2 are alike, their AL known to 5 %: no number of blocks can tell, and steps hardly vary."""
    engine = Engine(lambda _, __: 10.0, noise=0.005, drift=0, stalls=0, seed=1)
    grid, seconds = sample_grid(
        engine, GridSampler({4: (1, 2)}, acceptance({0: 1, 1: 1.5, 2: 1.5}, 0.05), 6000, {}, 256)
    )

    assert grid.levels[0].stopped == "Budget"
    assert seconds < 600


def test_a_cell_that_fails_is_marked_and_not_measured_again() -> None:
    engine, sampler = Engine(seed=1), GridSampler({4: (0, 1, 2)}, AL, 10, {}, 256)
    first = sampler.next(0)
    assert first is not None
    sampler.add(first, *engine.cohort(first))
    sampler.fail(4, 2, "the engine hung at K = 2")
    second = sampler.next(1)
    assert second is not None and second.ks == (0, 1)
    sampler.add(second, *engine.cohort(second))

    assert [cell.skipped for cell in sampler.result().cells] == [None, None, "the engine hung at K = 2"]


def test_a_k_without_acceptance_is_skipped_for_the_same_reason() -> None:
    measured = AcceptanceResult(AL.acceptance[:2], failed={2: "the engine crashed at K = 2"})
    grid, _ = sample_grid(Engine(seed=1), GridSampler({4: (0, 1, 2)}, measured, 1, {}, 256))

    assert [cell.skipped for cell in grid.cells] == [None, None, "the engine crashed at K = 2"]


def test_a_batch_size_that_never_fills_is_given_up_after_three_cohorts() -> None:
    """The engine holds 6 of 8 requests."""
    sampler = GridSampler({8: (0, 1)}, AL, 100, {}, 256)
    for _ in range(3):
        order = sampler.next(0)
        assert order is not None
        sampler.add(order, [Step(i * 10**7, 6, 6, 0, 6, 0, 100) for i in range(20)], 1)

    assert sampler.next(0) is None
    reason = (
        "never settled: 3 cohorts without a block of undisturbed steps, no step had more than 6 requests; "
        "give the engine more KV cache (or shorter texts) or leave batch size 8 out"
    )
    assert [cell.skipped for cell in sampler.result().cells] == [reason, reason]
    assert sampler.result().levels == ()


def test_cells_that_were_not_reached_say_so() -> None:
    sampler = GridSampler({4: (0,), 8: (0,)}, WITHOUT_SPECULATION, 100, {}, 256)
    order = sampler.next(0)
    assert order is not None
    sampler.add(order, *Engine(seed=1).cohort(order))

    assert [cell.skipped for cell in sampler.result().cells] == [None, "the run ended before"]


def test_baseline_ends_when_its_level_is_known() -> None:
    """A quiet machine: 0.1 % between cohorts."""
    engine = Engine(dense, noise=0.005, drift=0, stalls=0, seed=1)
    sampler = GridSampler({1: (0,), 16: (0,)}, WITHOUT_SPECULATION, 3000, {}, 256)
    grid, seconds = sample_grid(engine, sampler)

    assert [level.stopped for level in grid.levels] == ["Known", "Known"]
    assert seconds < 300
    for entry in grid.baseline():
        assert entry.itl_ms.mean == pytest.approx(dense(entry.batch_size, 0), rel=0.005)
        assert 0 < entry.itl_ms.half_width / entry.itl_ms.mean < 0.005


def test_mean_context_is_that_of_the_steps_that_count() -> None:
    """Cohorts lie around a context of 300 tokens."""
    grid, _ = sample_grid(Engine(seed=1), GridSampler({4: (0, 1, 2)}, AL, 10, {}, 256))

    assert grid.mean_context == pytest.approx(300, abs=3)


def test_disturbed_steps_are_counted_for_their_batch_size() -> None:
    grid, _ = sample_grid(Engine(seed=1, stalls=0.05), GridSampler({4: (0, 1, 2), 8: (0, 1, 2)}, AL, 20, {}, 256))

    assert all(level.dropped_steps > 10 for level in grid.levels)
    assert all(cell.itl_ms == pytest.approx(dense(cell.batch_size, cell.k), rel=0.08) for cell in grid.cells)
