"""Arithmetic behind `bench profile`: variance between boots, time to an interval, agreement of two ways."""

import math

import pytest

from bench.order import interleaved, shuffled
from bench.precision import (
    Round,
    Way,
    against_baseline,
    agreements,
    between_ks,
    contenders,
    need,
    share_within,
    way,
)


def round_of(
    itl: dict[tuple[int, int], float], *, itl_variance: float = 0.0, acceptance_variance: float = 0.0
) -> Round:
    ks = sorted({k for _, k in itl})
    return Round(
        itl_ms=itl,
        itl_variance=dict.fromkeys(itl, itl_variance),
        acceptance={0: 1.0, 1: 1.5, 2: 2.0},
        acceptance_variance={(k, other): acceptance_variance for k in ks for other in ks if k < other},
        boot_seconds=60.0,
        measuring_seconds=30.0,
    )


def test_every_round_has_every_k_once_and_ours_in_the_middle_and_every_other_runs_backwards() -> None:
    assert interleaved(5, 3) == [
        [0, 1, 2, "ours", 3, 4, 5],
        [5, 4, 3, "ours", 2, 1, 0],
        [0, 1, 2, "ours", 3, 4, 5],
    ]


def test_arms_come_once_a_round_in_an_order_that_the_seed_decides() -> None:
    order = shuffled("abcdef", 2, seed=3)

    assert [sorted(arm for index, arm in order if index == number) for number in (0, 1)] == [list("abcdef")] * 2
    assert [index for index, _ in order] == [0] * 6 + [1] * 6
    assert order == shuffled("abcdef", 2, seed=3)
    assert order != shuffled("abcdef", 2, seed=4)
    assert [arm for index, arm in order if index == 0] != [arm for index, arm in order if index == 1]


def test_the_ratios_that_are_compared() -> None:
    assert between_ks((1, 8), 3) == [
        (1, (1, 2)), (1, (1, 3)), (1, (2, 3)),
        (8, (1, 2)), (8, (1, 3)), (8, (2, 3)),
    ]  # fmt: skip
    assert against_baseline((4,), 2) == [(4, (0, 1)), (4, (0, 2))]


def test_contenders_are_those_close_to_the_best_by_what_all_rounds_saw() -> None:
    # goodputs at batch size 1: .150, .154; at batch size 8: .15, .10; K = 0 never counts
    rounds = [round_of({(1, 0): 5.0, (1, 1): 10.0, (1, 2): 13.0, (8, 0): 5.0, (8, 1): 10.0, (8, 2): 20.0})]

    assert contenders(rounds, 0.05) == [(1, (1, 2))]
    assert contenders(rounds, 0.01) == []


def test_variance_between_boots_is_what_sampling_within_them_does_not_explain() -> None:
    rounds = [round_of({(1, 1): 10.0, (1, 2): 20.0}, itl_variance=0.001, acceptance_variance=0.0005)]
    rounds.append(
        round_of({(1, 1): 10.0, (1, 2): 20.0 * math.exp(0.2)}, itl_variance=0.001, acceptance_variance=0.0005)
    )

    found = way(rounds, [(1, (1, 2))])

    # log ratios 0 and 0.2 have the variance 0.02; two cells of 0.001 each explain 0.002 of it
    assert found.between == pytest.approx(0.018)
    assert found.within == pytest.approx(0.0025)
    assert (found.boot_seconds, found.measuring_seconds, found.seconds) == (60.0, 30.0, 90.0)
    assert found.half_width == pytest.approx(1.95996 * math.sqrt(0.0205), rel=1e-4)


def test_rounds_that_agree_better_than_their_intervals_have_no_drift() -> None:
    rounds = [round_of({(1, 1): 10.0, (1, 2): 20.0}, itl_variance=0.001)] * 2

    assert way(rounds, [(1, (1, 2))]).between == 0.0


def test_one_round_says_nothing_of_drift() -> None:
    with pytest.raises(ValueError, match="two rounds"):
        way([round_of({(1, 1): 10.0, (1, 2): 20.0})], [(1, (1, 2))])


def test_without_drift_half_the_interval_takes_four_times_the_measuring_and_the_same_boots() -> None:
    how = Way(within=0.0004, between=0.0, boot_seconds=50.0, measuring_seconds=100.0)

    found = need(how, how.half_width / 2)

    assert (found.repetitions, found.boot_seconds) == (1, 50.0)
    assert found.measuring_seconds == pytest.approx(400.0)


def test_drift_is_only_lowered_by_more_boots() -> None:
    how = Way(within=0.0001, between=0.0004, boot_seconds=200.0, measuring_seconds=100.0)

    found = need(how, 1.95996 * math.sqrt(0.0002))

    # n = 3: 600 s of boots and 3 x 0.01 / (3 x 0.0002 - 0.0004) = 150 s; n = 4: 800 + 100 s
    assert found.repetitions == 3
    assert found.seconds == pytest.approx(750.0, rel=1e-3)


def test_an_interval_that_was_reached_takes_no_longer_than_it_took() -> None:
    how = Way(within=0.0003, between=0.0002, boot_seconds=200.0, measuring_seconds=100.0)

    assert need(how, how.half_width).seconds <= 300.0 + 1e-6


@pytest.mark.parametrize(("half_width", "boots"), [(0.0, 50.0), (0.01, 0.0)])
def test_no_time_reaches_an_interval_of_nothing(half_width: float, boots: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        need(Way(within=0.01, between=0.0, boot_seconds=boots, measuring_seconds=1.0), half_width)


def test_two_ways_agree_where_their_difference_is_within_the_joint_interval() -> None:
    ours = [round_of({(1, 0): 5.0, (1, 1): 10.0, (1, 2): 20.0}, itl_variance=0.0001)] * 2
    theirs = [round_of({(1, 0): 5.0, (1, 1): 10.0, (1, 2): 20.6}, itl_variance=0.0001)] * 2

    found = agreements(ours, theirs, 2)

    assert [entry.what for entry in found] == ["AL(1)", "AL(2)", "ITL(1, 2) / ITL(1, 1)"]
    assert found[2].log_ratio == pytest.approx(-0.02956, abs=1e-5)  # log(2.00 / 2.06)
    # each way: two cells of 0.0001 over two rounds; both ways: 0.0002
    assert found[2].half_width == pytest.approx(1.95996 * math.sqrt(0.0002), rel=1e-4)
    assert [entry.within for entry in found] == [True, True, False]
    assert share_within(found) == pytest.approx(2 / 3)
