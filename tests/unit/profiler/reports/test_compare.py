"""Two profiles: what moved, and is it more than chance."""

import datetime as dt
from random import Random

import pytest
from tests.measured import engine

from specserve_profiler.contract.profile import Acceptance, Interval, Level, Measurements, Profile
from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.decision.verdict import decide
from specserve_profiler.reports.compare import _holm, compare

SIZES = (1, 8, 64)
REQUEST = {
    "key": "specserve-0123456789ab",
    "model": "org/target",
    "speculation": {"method": "ngram", "maxTokens": 2},
    "engine": {"maxNumSeqs": 64, "maxModelLen": 2048},
    "workload": {"promptTokens": 512, "outputTokens": 256},
    "prompts": {"path": "/prompts.jsonl"},
    "batchSizes": [1, 8, 64],
    "measureSeconds": 600,
    "timeoutSeconds": 3600,
}


def profile(measured: Measurements, **request: object) -> Profile:
    return Profile(
        key="specserve-0123456789ab",
        measured_at=dt.datetime(2026, 11, 3, tzinfo=dt.timezone.utc),
        measurements=measured,
        decision=decide(measured, 64),
        request=ProfileRequest.model_validate({**REQUEST, **request}) if request else None,
    )


def measured(
    slower: float = 1.0, al: float = 1.9, error: float = 0.005, drift: float = 0.0, **fields: object
) -> Measurements:
    """ITL grows with the batch size; K = 1 is best at each where its AL is 1.9, K = 2 where it is 1.3."""

    def cost(b: int, k: int) -> float:
        return slower * (10 + k + 0.01 * b * k)

    return engine({0: 1, 1: al, 2: 2.0}, cost, SIZES, error, boot_drift=drift, **fields)


def test_the_same_profile_twice_has_not_moved() -> None:
    found = compare(profile(measured()), profile(measured()))

    assert found.identity == () and not any(moved.significant for moved in (*found.itl, *found.acceptance))
    # 3 batch sizes of 3 K and the baseline, AL of K = 1 and 2
    assert found.sentences[-1] == "Nothing moved beyond chance (14 comparisons, Holm at 5%)."
    assert found.sentences[0] == f"The verdict stays {profile(measured()).decision.verdict}."


def test_an_engine_that_got_slower_is_told_cell_by_cell() -> None:
    found = compare(profile(measured()), profile(measured(slower=1.1)))

    cell = next(moved for moved in found.itl if (moved.batch_size, moved.k) == (8, 1))
    assert cell.ratio == pytest.approx(1.1) and cell.significant
    assert cell.half_width == pytest.approx((0.005**2 * 2 + 0.0005**2) ** 0.5)
    assert cell.sentence == "ITL at batch size 8 of K = 1 moved by +10.0% (± 0.7%)."
    assert all(moved.significant for moved in found.itl)
    assert "ITL at batch size 64 of the baseline moved by +10.0% (± 0.7%)." in found.sentences
    assert found.sentences[-1] == "What moved changes neither table nor verdict."


def test_the_same_change_within_the_drift_between_boots_is_chance() -> None:
    found = compare(profile(measured()), profile(measured(slower=1.1, drift=0.12)))

    assert not any(moved.significant for moved in found.itl)
    assert found.itl[0].half_width == pytest.approx((0.12**2 + 0.005**2 * 2 + 0.0005**2) ** 0.5)


def test_measured_drift_is_that_of_one_boot_against_two_and_here_it_is_one_against_one() -> None:
    found = compare(profile(measured()), profile(measured(drift=0.06, boot_drift_measured=True)))

    # 0.06 x sqrt(2 / 1.5)
    assert found.itl[0].half_width == pytest.approx((0.06928**2 + 0.005**2 * 2 + 0.0005**2) ** 0.5, abs=1e-5)


def test_what_all_k_of_a_batch_size_share_is_part_of_the_error() -> None:
    levels = tuple(Level(batch_size=size, half_width=0.12, cohorts=9, stopped="Known") for size in SIZES)

    found = compare(profile(measured()), profile(measured(slower=1.1, levels=levels)))

    assert [moved.k for moved in found.itl if moved.significant] == [None] * 3


def test_acceptance_that_fell_is_told_and_so_is_what_it_did_to_the_table() -> None:
    found = compare(profile(measured()), profile(measured(al=1.3)))

    assert [moved.k for moved in found.acceptance if moved.significant] == [1]
    assert "The acceptance length of K = 1 moved by -31.6% (± 0.7%)." in found.sentences
    assert found.chosen[0].before == 1 and found.chosen[0].after == 2
    assert found.chosen[0].sentence == "At batch size 1 the table goes from K = 1 to K = 2."


def with_acceptance(mean: float, half_width: float, here: float) -> Measurements:
    entries = tuple(
        Acceptance(k=k, acceptance_length=Interval(mean=mean if k else 1, half_width=half_width), here=here, prompts=80)
        for k in (0, 1)
    )
    return engine({0: 1, 1: 1.8}, lambda b, k: 10 + k, SIZES, acceptance=entries)


def test_the_same_prompts_are_compared_without_what_other_prompts_would_change() -> None:
    """AL 1.8 and 1.7: known to .2 over prompts like these, to .02 over these."""
    before, after = with_acceptance(1.8, 0.2, 0.02), with_acceptance(1.7, 0.2, 0.02)

    same = compare(profile(before, model="org/target"), profile(after, model="org/target"))
    other = compare(profile(before, model="org/target"), profile(after, prompts={"path": "/others.jsonl"}))

    assert same.acceptance[0].significant and not other.acceptance[0].significant
    assert [(d.field, d.before, d.after) for d in other.identity] == [
        ("prompts.path", "/prompts.jsonl", "/others.jsonl")
    ]


def test_identities_that_differ_are_named() -> None:
    after = measured().model_copy(update={"engine_version": "0.33.0", "graph_sizes": (1, 2, 4)})

    found = compare(profile(measured(), model="org/target"), profile(after, model="org/other"))

    assert [difference.field for difference in found.identity] == ["engine version", "captured graphs", "model"]
    assert found.sentences[0] == "They are not of one identity: engine version is 0.32.0, then 0.33.0."


def test_profiles_without_a_cell_in_common_say_so() -> None:
    other = engine({0: 1, 3: 2.2}, lambda b, k: 10 + k, (2, 4))

    found = compare(profile(engine({0: 1, 1: 1.5}, lambda b, k: 10 + k, (1, 8))), profile(other))

    assert found.itl == () and found.sentences[-1] == "They have no batch size and K in common."


def test_holm_stops_at_the_first_that_stands() -> None:
    """.05 / 4, / 3, / 2, / 1: .011 falls, .016 falls, .03 stands, and so does .001's opposite, .04."""
    assert _holm([0.04, 0.011, 0.03, 0.016]) == [False, True, False, True]
    assert _holm([]) == []


def test_noise_alone_moves_something_in_at_most_one_of_twenty_comparisons() -> None:
    """Nothing moved, errors are as claimed: over 400 pairs of profiles, 5 % plus three standard errors of .011."""
    random = Random(7)  # noqa: S311

    def noisy() -> Profile:
        sigma = 0.02 / 1.96
        found = engine({0: 1, 1: 1.8, 2: 2.0}, lambda b, k: (10 + k) * random.gauss(1, sigma), SIZES, error=0.02)
        return profile(found)

    wrong = sum(any(moved.significant for moved in compare(noisy(), noisy()).itl) for _ in range(400))

    assert wrong / 400 <= 0.05 + 3 * 0.011
