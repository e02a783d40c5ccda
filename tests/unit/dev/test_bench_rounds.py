"""What either way of measuring found, in the form in which they are compared."""

import datetime as dt
import math

import pytest

from bench.rounds import StaticBoot, cohort_variance, round_of_boots, round_of_profile
from specserve_profiler.contract.profile import (
    Acceptance,
    AcceptanceContrast,
    BaselineCell,
    Cell,
    Decision,
    Interval,
    Level,
    Measurements,
    Profile,
    Row,
)


def boot(k: int, cohorts: tuple[float, ...], generations: dict[int, tuple[float, float]]) -> StaticBoot:
    return StaticBoot(
        k=k, cohort_ms={8: cohorts}, generations=generations, boot_seconds=30.0, measuring_seconds=20.0 + k
    )


def test_a_cohort_is_the_unit_and_all_cells_tell_together_how_cohorts_differ() -> None:
    # logs 0 and 0.2: squares 0.02 with one degree; logs 0, 0: none with one degree; a lone cohort tells nothing
    assert cohort_variance([(1.0, math.exp(0.2)), (3.0, 3.0), (5.0,)]) == pytest.approx(0.01)


def test_cells_that_were_measured_once_tell_nothing_of_their_spread() -> None:
    with pytest.raises(ValueError, match="--seconds"):
        cohort_variance([(1.0,), (2.0,)])


def test_a_round_of_boots() -> None:
    found = round_of_boots(
        [
            boot(0, (10.0, 10.0), {}),
            boot(1, (12.0, 12.0 * math.exp(0.2)), {0: (15.0, 10.0), 1: (15.0, 10.0)}),
            boot(2, (20.0,), {0: (20.0, 10.0), 1: (40.0, 20.0)}),
        ]
    )

    assert found.itl_ms == {(8, 0): 10.0, (8, 1): pytest.approx(6.0 + 6.0 * math.exp(0.2)), (8, 2): 20.0}
    assert found.itl_variance == {
        (8, 0): pytest.approx(0.005), (8, 1): pytest.approx(0.005), (8, 2): pytest.approx(0.01)
    }  # fmt: skip
    assert found.acceptance == {0: 1.0, 1: 1.5, 2: 2.0}
    assert found.acceptance_variance == {(0, 1): 0.0, (0, 2): 0.0, (1, 2): 0.0}  # every prompt has the mean itself
    assert (found.boot_seconds, found.measuring_seconds) == (90.0, 63.0)


def profile(skipped: str | None = None) -> Profile:
    measured = Measurements(
        engine_version="0.32.0",
        scheduler="sync",
        grid=(
            Cell(batch_size=8, k=0, itl_ms=11.0, spread=0.5, blocks=9),
            Cell(batch_size=8, k=1, itl_ms=13.0, spread=0.0196, blocks=9),
            Cell(batch_size=8, k=2, itl_ms=None if skipped else 21.0, spread=0.0392, blocks=9, skipped=skipped),
        ),
        levels=(Level(batch_size=8, half_width=0.0588, cohorts=9, stopped="Known"),),
        acceptance=(
            Acceptance(k=0, acceptance_length=Interval(mean=1), prompts=0),
            Acceptance(k=1, acceptance_length=Interval(mean=1.5, half_width=0.0294), prompts=9),
            Acceptance(k=2, acceptance_length=Interval(mean=2, half_width=0.0392), prompts=9),
        ),
        contrasts=(AcceptanceContrast(k=2, other=1, half_width=0.0098),),
        baseline=(BaselineCell(batch_size=8, itl_ms=Interval(mean=9.0, half_width=0.1764), blocks=9),),
        seconds={
            "boot baseline": 30.0,
            "baseline": 5.0,
            "boot every K": 31.0,
            "grid": 40.0,
            "stops": 2.0,
            "total": 120,
        },
    )
    decision = Decision(verdict="None", reason="-", table=(Row(first=1, last=8, k=0),), static_k=0)
    when = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    return Profile(key="k", measured_at=when, measurements=measured, decision=decision)


def test_a_profile_is_a_round_with_the_baseline_in_the_place_of_k_0() -> None:
    found = round_of_profile(profile())

    assert found.itl_ms == {(8, 0): 9.0, (8, 1): 13.0, (8, 2): 21.0}
    # standard errors: .01 and .02 beside each other; the baseline .01, and .03 that all K share
    assert found.itl_variance == {
        (8, 1): pytest.approx(0.0001, rel=1e-3),
        (8, 2): pytest.approx(0.0004, rel=1e-3),
        (8, 0): pytest.approx(0.0001 + 0.0009, rel=1e-3),
    }
    assert found.acceptance_variance == {
        (0, 1): pytest.approx(0.0001, rel=1e-3),
        (0, 2): pytest.approx(0.0001, rel=1e-3),
        (1, 2): pytest.approx(0.000025, rel=1e-3),
    }
    assert (found.boot_seconds, found.measuring_seconds) == (63.0, 57.0)


def test_ways_are_not_compared_on_cells_that_one_lacks() -> None:
    with pytest.raises(ValueError, match=r"\(8, 2\): too large"):
        round_of_profile(profile("too large"))
