"""Goodput between measured cells, the load by batch size, and how well ratios are known."""

import math

import pytest
from tests.measured import engine, interval, measurements

from specserve_profiler.contract.profile import Acceptance, AcceptanceContrast, Level
from specserve_profiler.decision.evidence import Evidence
from specserve_profiler.decision.surface import Surface, shares


def test_itl_between_measured_sizes_is_linear_without_graphs() -> None:
    surface = Surface({2: 2.0}, {(8, 2): 10.0, (16, 2): 18.0})

    assert surface.itl_ms(12, 2) == 14.0
    assert surface.goodputs(12) == {2: 2.0 / 14.0}
    assert [surface.itl_ms(size, 2) for size in (1, 8, 16, 40)] == [10.0, 10.0, 18.0, 18.0]


def test_a_step_costs_what_the_graph_costs_that_it_is_padded_to() -> None:
    """K = 1: 9 requests are 18 tokens, run in the graph of 32; so do 16 requests. 17 are 34 tokens, run eagerly."""
    surface = Surface({1: 1.8}, {(4, 1): 10.0, (16, 1): 20.0, (32, 1): 40.0}, graph_sizes=(8, 16, 32))

    assert [surface.padded(size, 1) for size in (3, 4, 5, 8, 9, 16, 17)] == [4, 4, 8, 8, 16, 16, 17]
    assert [surface.itl_ms(size, 1) for size in (9, 12, 16)] == [20.0, 20.0, 20.0]
    # 5 to 8 requests are padded to 8: a third of the way from 4 to 16
    assert surface.itl_ms(5, 1) == surface.itl_ms(8, 1) == pytest.approx(10 + 10 / 3)
    assert surface.itl_ms(24, 1) == 30.0


def test_each_k_has_its_own_stairs() -> None:
    """5 requests: with K = 0 padded to 8 of them, with K = 3 (20 tokens) to 32 tokens, that is 8 of them; 4 fit 16."""
    surface = Surface({0: 1.0, 3: 2.5}, {(1, 0): 8.0, (1, 3): 9.0, (8, 0): 15.0, (8, 3): 23.0}, (1, 2, 4, 8, 16, 32))

    assert surface.padded(5, 0) == 8 and surface.padded(4, 3) == 4 and surface.padded(5, 3) == 8
    assert surface.itl_ms(4, 3) == pytest.approx(9 + 14 * 3 / 7)


def test_measured_sizes_in_one_graph_keep_their_own_figure() -> None:
    surface = Surface({0: 1.0}, {(5, 0): 10.0, (8, 0): 12.0}, graph_sizes=(8,))

    assert [surface.itl_ms(size, 0) for size in (5, 6, 8)] == [10.0, 11.0, 12.0]


def test_a_cell_that_cannot_run_is_not_interpolated_across() -> None:
    surface = Surface({0: 1.0, 4: 3.0}, {(1, 0): 1.0, (1, 4): 1.0, (9, 0): 1.0})

    assert set(surface.goodputs(1)) == {0, 4} and set(surface.goodputs(2)) == {0}


def test_sizes_between_two_that_share_no_k_take_those_of_the_larger() -> None:
    surface = Surface({0: 1.0, 4: 3.0}, {(1, 4): 1.0, (9, 0): 2.0})

    assert surface.goodputs(5) == {0: 0.5}


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({}, [1 / 3, 1 / 3, 1 / 3]),
        ({4: 3, 16: 1}, [0, 0.75, 0.25]),
        ({7: 1}, [0, 0.75, 0.25]),
        ({100: 2}, [0, 0, 1]),
        ({1: 0, 4: 5}, [0, 1, 0]),
    ],
)
def test_load_is_shared_between_the_measured_sizes_around_it(weights: dict[int, float], expected: list[float]) -> None:
    assert list(shares(weights, (1, 4, 16)).values()) == expected


def test_a_load_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no batch size has a weight above 0"):
        shares({4: 0.0}, (1, 4))


def test_two_k_of_one_boot_are_compared_without_what_they_share() -> None:
    """The contrast of AL is .01, both spreads are .02: sqrt(.01² + 2 · .02²) = .03. Neither level nor drift counts."""
    measured = engine(
        {0: 1, 1: 1.5, 2: 2},
        lambda b, k: 10 + k,
        error=0.02,
        contrasts=(AcceptanceContrast(k=2, other=1, half_width=0.01),),
        levels=(Level(batch_size=4, half_width=0.3, cohorts=5, stopped="Known"),),
        boot_drift=0.2,
    )
    evidence = Evidence.of(measured, 32)

    assert evidence.log_ratio(4, 1, 2).half_width == pytest.approx(0.03)
    assert evidence.log_ratio(4, 1, 2).mean == pytest.approx(math.log(1.5 / 11 / (2 / 12)))
    # No contrast with K = 0, whose AL is 1 by definition: sqrt(.02² + 2 · .02²)
    assert evidence.log_ratio(4, 1, 0).half_width == pytest.approx(0.02 * math.sqrt(3))
    assert evidence.log_ratio(4, 2, 2).half_width == 0


def test_against_the_baseline_everything_counts() -> None:
    """AL .02, spread .02, level .03, baseline .02, drift .1: sqrt(.0004 · 3 + .0009 + .01) = .11."""
    measured = engine(
        {0: 1, 1: 1.5},
        lambda b, k: 10 + k,
        error=0.02,
        levels=(Level(batch_size=4, half_width=0.03, cohorts=5, stopped="Known"),),
        boot_drift=0.1,
    )

    ratio = Evidence.of(measured, 32).over_baseline(4, 1)

    assert ratio.half_width == pytest.approx(0.11)
    assert ratio.mean == pytest.approx(math.log(1.5 / 11 * 10 / 1.1))


@pytest.mark.parametrize(
    ("contrast", "half_width"),
    [
        (0.05, 0.025),  # independent: hypot(.03, .04) / 2
        (0.03, math.sqrt(0.0009 + 0.0016 + 2 * 0.0008) / 2),  # cov = (.0009 + .0016 - .0009) / 2 = .0008
        (0.01, 0.035),  # err together: (.03 + .04) / 2
        (None, 0.035),  # not known: together
    ],
)
def test_acceptance_of_two_k_errs_together(contrast: float | None, half_width: float) -> None:
    """K = 1 at half of the load, known to 3 %, K = 2 at the other, known to 4 %; all else is known."""
    measured = measurements({(1, 2): 10.0, (8, 1): 10.0}, {1: 1.5, 2: 2.0}, {1: 10.0, 8: 10.0}).model_copy(
        update={
            "acceptance": tuple(
                Acceptance(k=k, acceptance_length=interval(al, error), prompts=80)
                for k, al, error in [(1, 1.5, 0.03), (2, 2.0, 0.04)]
            ),
            "contrasts": () if contrast is None else (AcceptanceContrast(k=2, other=1, half_width=contrast),),
        }
    )

    against = Evidence.of(measured, 8).against_baseline({1: 2, 8: 1}, {})
    assert against.half_width == pytest.approx(half_width)


def test_drift_between_boots_does_not_average_out_over_batch_sizes() -> None:
    measured = measurements(
        {(b, 1): 10.0 for b in (1, 2, 4, 8)}, {1: 1.5}, dict.fromkeys((1, 2, 4, 8), 10.0), boot_drift=0.1
    )
    noisy = measurements({(b, 0): 10.0 for b in (1, 2, 4, 8)}, {0: 1.0}, dict.fromkeys((1, 2, 4, 8), 10.0), error=0.1)

    assert Evidence.of(measured, 8).against_baseline(dict.fromkeys((1, 2, 4, 8), 1), {}).half_width == pytest.approx(
        0.1
    )
    # independent errors do: sqrt(2) · .1 / sqrt(4)
    half_width = Evidence.of(noisy, 8).against_baseline(dict.fromkeys((1, 2, 4, 8), 0), {}).half_width
    assert half_width == pytest.approx(0.1 * math.sqrt(2) / 2)
