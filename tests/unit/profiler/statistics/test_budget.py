"""How the time is shared out, and what is known of an engine's pace."""

import pytest
from tests.unit.profiler.simulator import Engine, dense

from specserve_profiler.contract.steps import Finished
from specserve_profiler.statistics.acceptance import WITHOUT_SPECULATION, AcceptanceSampler
from specserve_profiler.statistics.budget import AGAIN, BASELINE, BASELINE_LOOP, GRID, LOOP, STAGES, Budget, Pace
from specserve_profiler.statistics.sampling import GridSampler


def spend_shares(budget: Budget, stages: tuple[str, ...] = STAGES) -> list[float]:
    shares = []
    for stage in stages:
        shares.append(round(budget.share(stage), 6))
        budget.spent += shares[-1]
    return shares


def test_stages_that_take_their_share_take_all_of_the_time() -> None:
    assert spend_shares(Budget(100, "Table")) == [6, 8, 24, 30, 18, 14]
    assert spend_shares(Budget(100, "Off")) == [10, 0, 35, 45, 0, 10]


def test_what_a_stage_leaves_goes_to_the_later_ones_in_proportion() -> None:
    budget = Budget(100, "Table")
    budget.spent = 20  # baseline, its loop and acceptance: 18 less than their 38

    assert budget.share(GRID) == pytest.approx(80 * 30 / 62)
    assert budget.forecast(LOOP, GRID) == pytest.approx(80 * 18 / 62)


def test_no_stage_gets_what_later_ones_need_at_the_least() -> None:
    budget = Budget(100, "Table")
    budget.least = {GRID: 97}

    assert [budget.share(BASELINE), budget.share(GRID)] == [3, pytest.approx(100 * 30 / 62)]
    budget.spent = 110
    assert budget.share(GRID) == 0


def test_a_loop_gets_its_least_where_that_is_there() -> None:
    budget = Budget(20, "Table")
    budget.least = {BASELINE_LOOP: 5, LOOP: 5}

    assert budget.share(BASELINE_LOOP) == 5
    budget.spent = 16
    assert budget.share(LOOP) == 4


def test_every_arm_has_as_much_as_the_next() -> None:
    budget = Budget(118, "Full")
    assert spend_shares(budget, STAGES[:4]) == [6, 8, 24, 30]
    first = budget.share(LOOP)
    budget.spent, budget.arms = budget.spent + first, 1

    assert [first, budget.share(LOOP)] == [pytest.approx(18)] * 2
    budget.spent += 18
    assert budget.share(AGAIN) == pytest.approx(14)


def test_pace_is_linear_between_what_was_seen() -> None:
    pace = Pace.between(Pace({1: 10, 9: 26}, {1: 0.5}), (1, 5, 9, 16))

    assert pace == Pace({1: 10, 5: 18, 9: 26, 16: 26}, {1: 0.5, 5: 0.5, 9: 0.5, 16: 0.5})
    assert pace.cohort(5, 100) == pytest.approx(0.5 + 1.8)
    assert pace.slower(2).cohort(5, 100) == pytest.approx(0.5 + 3.6)
    assert pace.generations(5, 100) == pytest.approx(1.8)
    assert Pace().cohort(5, 100) == Pace.between(Pace(), (1,)).generations(5, 100) == 0


def test_a_trial_of_the_smallest_and_the_largest_batch_size_tells_how_long_a_round_takes() -> None:
    engine = Engine(dense, noise=0, drift=0, stalls=0)
    sampler = GridSampler(dict.fromkeys((1, 8, 32), (0,)), WITHOUT_SPECULATION, 0, {}, 256)
    tried = []
    while (order := sampler.trial()) is not None:
        tried.append((order.batch_size, order.decks))
        sampler.add(order, *engine.cohort(order))

    assert tried == [(1, 1), (32, 1)]
    sampler.foresee(0, sampler.pace())
    expected = sampler.least()
    order = sampler.next(0)
    assert order is not None and (order.batch_size, order.decks) == (8, 1)
    _, seconds = engine.cohort(order)
    assert expected == pytest.approx(seconds, rel=0.1)
    sampler.add(order, _, seconds)
    assert (sampler.least(), sampler.next(0)) == (0, None)


def test_a_first_round_that_would_not_fit_has_fewer_prompts() -> None:
    def round_of(seconds: float) -> int:
        sampler = AcceptanceSampler((1, 2), 100, 16, seconds, pace=lambda at_once: at_once)
        order = sampler.next(0)
        assert order is not None and order.concurrency == len(order.prompts)
        return len(order.prompts)

    assert [round_of(seconds) for seconds in (32, 31, 16, 15, 1)] == [16, 8, 8, 4, 4]


def test_the_other_k_of_a_first_round_get_fewer_prompts_where_the_first_one_was_slow() -> None:
    """16 prompts took 40 of 100 s: two more K would take 80 of the 60 that are left."""
    sampler = AcceptanceSampler((1, 2, 3), 100, 16, 100, pace=lambda _: 1)
    first = sampler.next(0)
    assert first is not None and len(first.prompts) == 16
    assert sampler.least() == 2
    sampler.add(first, [Finished(0, "2" * 10, "g")] * 16, 40)
    assert sampler.least() == 80
    second = sampler.next(40)

    assert second is not None and second.prompts == tuple(range(12))
    sampler.add(second, [Finished(0, "2" * 10, "g")] * 12, 30)
    third = sampler.next(70)
    assert third is not None and third.prompts == tuple(range(12))
    sampler.add(third, [Finished(0, "2" * 10, "g")] * 12, 30)
    assert sampler.next(100) is None
    assert {entry.prompts for entry in sampler.result().acceptance if entry.k} == {12}


def test_steps_beside_those_of_the_baseline() -> None:
    """16 ms a step at K = 2, beside 8 without speculation; K = 0 counts as 1."""
    sampler = AcceptanceSampler((2,), 100, 4, 100)
    order = sampler.next(0)
    assert order is not None
    sampler.add(order, [Finished(0, "2" * 10, "g")] * 4, 0.16)

    assert sampler.slower(Pace({4: 8.0})) == 1.5
