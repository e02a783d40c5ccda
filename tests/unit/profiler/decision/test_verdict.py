"""What is served: predicted from the grid."""

import math
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.measured import SIZES, any_measurements, engine, measurements, rows

from specserve_profiler.contract.profile import Interval, Level, Measurements, SpotCheck
from specserve_profiler.decision.verdict import decide, undecided

PUBLISHED: Mapping[tuple[int, int], float | str] = {
    (1, 0): 6.52,
    (1, 1): 7.37,
    (1, 3): 8.84,
    (1, 5): 10.33,
    (64, 0): 7.77,
    (64, 1): 9.66,
    (64, 3): 13.50,
    (64, 5): 16.83,
    (256, 0): 14.49,
    (256, 1): 27.14,
    (256, 3): 41.85,
    (256, 5): 57.40,
}
"""The figures that vLLM's PR #32374 published for a dense model."""
PUBLISHED_AL = {0: 1.0, 1: 1.6812, 3: 2.2761, 5: 2.4289}
"""1 + .6812 + .3914 + .2035 + .1014 + .0514, up to each K."""
BASELINE = {1: 6.2, 64: 7.4, 256: 13.8}


def test_a_table_that_loses_at_one_batch_size_is_not_served() -> None:
    """K = 0 is best at 256 and still 5 % slower than no speculation: 13.8 / 14.49 = .952."""
    decision = decide(measurements(PUBLISHED, PUBLISHED_AL, BASELINE), 256)

    assert decision.verdict == "None"
    assert rows(decision) == [(1, 44, 3), (45, 166, 1), (167, 256, 0)]
    assert (
        decision.reason == "At batch size 256 the best K loses more than 2% against no speculation, beyond the error."
    )
    at_256 = decision.speedups[-1]
    assert (at_256.batch_size, at_256.over_baseline) == (256, pytest.approx(13.8 / 14.49))
    assert not at_256.verified


def test_the_same_loss_at_a_batch_size_without_load_does_not_count() -> None:
    decision = decide(measurements(PUBLISHED, PUBLISHED_AL, BASELINE), 256, {1: 1, 64: 1})

    assert decision.verdict == "Dynamic"


def test_the_same_loss_within_its_error_does_not_count() -> None:
    """The half-width at 256 is the root of two times 2.5 % squared, 3.5 %: .952 · e^.035 is above .98."""
    decision = decide(measurements(PUBLISHED, PUBLISHED_AL, BASELINE, error=0.025), 256)

    assert decision.verdict == "Dynamic"
    # by geometric mean over 1, 64, 256 the best is K = 1: .2281 · .1740 · .0619 > .1534 · .1287 · .0690 of K = 0
    assert decision.static_k == 1
    assert [round(s.over_static, 3) for s in decision.speedups] == [1.129, 1.0, 1.114]
    assert [round(s.over_baseline, 3) for s in decision.speedups] == [1.596, 1.288, 0.952]
    assert decision.speedups[-1].half_width == pytest.approx(0.025 * math.sqrt(2))
    # K = 1 alone is 14 % below no speculation at 256, which is beyond the error
    assert decision.reason.endswith("no single K keeps up with it at every batch size.")


def test_the_same_loss_within_the_drift_between_boots_does_not_count() -> None:
    measured = measurements(PUBLISHED, PUBLISHED_AL, BASELINE, boot_drift=0.05)

    assert decide(measured, 256).verdict == "Dynamic"


def test_one_k_best_everywhere_is_static() -> None:
    decision = decide(engine({0: 1, 1: 1.8, 2: 2.5}, lambda b, k: 10 + k), 32)

    assert (decision.verdict, decision.static_k) == ("Static", 2)
    assert rows(decision) == [(1, 32, 2)]
    # 2.5 / 12 against 1 / (10 / 1.1)
    assert decision.reason == (
        "K = 2 is best, or as good as the best, at every batch size, "
        "with 1.89 times the goodput of no speculation (± 0%)."
    )
    assert [s.over_static for s in decision.speedups] == [1.0] * 6


def moe(gain: float, error: float) -> Measurements:
    """K = 2 is ahead at 1, K = 1 at 64, each by a share ``gain``."""
    grid: dict[tuple[int, int], float | str] = {
        (1, 1): 10 * (1 + gain), (1, 2): 10.0, (64, 1): 20.0, (64, 2): 20.0 * (1 + gain),
    }  # fmt: skip
    return measurements(grid, {1: 1.9, 2: 1.9}, {1: 14.0, 64: 28.0}, error)


def test_a_table_is_served_where_it_beats_the_best_single_k_beyond_its_interval() -> None:
    """5 % each way: known to hypot(.01 · sqrt(2), .01 · sqrt(2)) = 2 % it is a table, known to 6 % it is not."""
    surely, perhaps = decide(moe(0.05, 0.01), 64), decide(moe(0.05, 0.03), 64)

    assert surely.verdict == "Dynamic" and [k for _, _, k in rows(surely)] == [2, 1]
    assert surely.reason.endswith("it beats K = 1, the best single K, at batch size 1.")
    assert perhaps.verdict == "Static"
    assert perhaps.reason.endswith("the table is nowhere better by more than 1% beyond the error.")


def test_a_table_that_is_surely_better_but_hardly_is_not_served() -> None:
    """Ahead by 0.8 % without any error."""
    assert decide(moe(0.008, 0), 64).verdict == "Static"


def test_a_table_is_served_where_no_single_k_runs_everywhere() -> None:
    grid: dict[tuple[int, int], float | str] = {(1, 1): "gave up", (1, 2): 10.0, (64, 1): 20.0, (64, 2): "no room"}
    decision = decide(measurements(grid, {1: 1.9, 2: 1.9}, {1: 14.0, 64: 28.0}, 0.2 / 3), 64)

    assert (decision.verdict, decision.static_k) == ("Dynamic", 0)
    assert "no single K keeps up with it at every batch size" in decision.reason


def test_no_gain_beyond_the_error_means_no_speculation() -> None:
    """2 % gain, each quantity known to 5 %."""
    decision = decide(engine({0: 1, 1: 1.2 * 1.02 / 1.1}, lambda b, k: 10, error=0.05), 32)

    assert decision.verdict == "None"
    assert "no gain beyond the error" in decision.reason


def test_a_gain_within_the_drift_between_boots_is_no_gain_yet() -> None:
    """8 % gain without error but for boots that differ by 10 %; a second boot may tell."""
    measured = engine({0: 1, 1: 1.18}, lambda b, k: 10.0, boot_drift=0.1)
    decision = decide(measured, 32)

    assert decision.verdict == "None" and undecided(decision, measured)
    known = measured.model_copy(update={"boot_drift": 0.02, "boot_drift_measured": True})
    assert decide(known, 32).verdict == "Static" and not undecided(decide(known, 32), known)
    clear = engine({0: 1, 1: 1.8}, lambda b, k: 10.0, boot_drift=0.1)
    assert not undecided(decide(clear, 32), clear)


def test_a_loss_within_the_drift_is_undecided_too() -> None:
    measured = measurements(PUBLISHED, PUBLISHED_AL, BASELINE, boot_drift=0.05)

    assert undecided(decide(measured, 256), measured)
    assert not undecided(decide(measured, 256, {1: 1}), measured, {1: 1})


def test_before_a_gain_on_the_whole_is_given_up_for_one_loss_the_baseline_is_booted_again() -> None:
    """A sure loss at 256 by the assumed drift of 1 %; on the whole the table gains, and the machine may be unquiet."""
    measured = measurements(PUBLISHED, PUBLISHED_AL, {1: 6.52, 64: 9.0, 256: 14.0}, boot_drift=0.01)
    decision = decide(measured, 256)

    assert decision.verdict == "None" and decision.reason.startswith("At batch size 256 the best K loses more than 2%")
    assert undecided(decision, measured)
    known = measured.model_copy(update={"boot_drift_measured": True})
    assert not undecided(decide(known, 256), known)


def test_drafting_that_never_helps_is_none_even_where_k0_looks_faster_than_the_baseline() -> None:
    grid: dict[tuple[int, int], float | str] = {(b, k): 10.0 + 20 * k for b in SIZES for k in (0, 1)}
    decision = decide(measurements(grid, {0: 1, 1: 1.5}, dict.fromkeys(SIZES, 11.0)), 32)

    assert (decision.verdict, rows(decision), decision.static_k) == ("None", [(1, 32, 0)], 0)
    assert "the drafter only costs" in decision.reason


def test_load_decides_the_static_k() -> None:
    assert decide(moe(0.05, 0.03), 64, {1: 9, 64: 1}).static_k == 2
    assert decide(moe(0.05, 0.03), 64, {1: 1, 64: 9}).static_k == 1


def test_a_batch_size_without_any_cell_is_left_out_with_a_warning() -> None:
    grid: dict[tuple[int, int], float | str] = {(b, k): 10.0 for b in (1, 16) for k in (0, 1)}
    grid |= {(32, 0): "no room", (32, 1): "no room"}
    decision = decide(measurements(grid, {0: 1, 1: 1.8}, {1: 9.0, 16: 9.0, 32: 9.0}), 32)

    assert rows(decision) == [(1, 32, 1)]
    assert [s.batch_size for s in decision.speedups] == [1, 16]
    assert "Batch size 32 could not be measured: no room." in decision.warnings


def test_the_last_row_is_extended_with_a_warning() -> None:
    decision = decide(engine({0: 1, 1: 1.8}, lambda b, k: 10 + k, sizes=(2, 8)), 64)

    assert rows(decision) == [(1, 64, 1)]
    assert decision.warnings[0].startswith("Batch sizes above 8 were not measured: the last row is extended to 64.")
    assert decision.warnings[1].startswith("Batch sizes below 2 were not measured: they take the K of 2.")


def test_what_is_not_well_known_is_told() -> None:
    measured = engine(
        {0: 1, 1: 1.8},
        lambda b, k: 10 + k,
        sizes=(1, 8),
        error=0.2,
        levels=(
            Level(batch_size=1, half_width=0.01, cohorts=9, stopped="Known"),
            Level(batch_size=8, half_width=0.01, cohorts=2, stopped="Budget"),
        ),
        spot_check=SpotCheck(k=1, batch_size=8, ratio=Interval(mean=0.9, half_width=0.03)),
    )
    warnings = " ".join(decide(measured, 8).warnings)

    assert "The goodput at batch size 1, 8 is known to no better than ± 10%" in warnings
    assert "The time ended before the best K at batch size 8 was known" in warnings
    assert "At batch size 8 the acceptance length of K = 1 is 0.90 times (± 0.03)" in warnings


def test_capture_sizes_are_given_for_a_table_where_the_engine_uses_graphs() -> None:
    """A table on the engine's stairs, 1-10:2 11-16:1 17-30:2 31-64:1: 3, 6, 12, 24, 30 tokens for K = 2, and so on.

    21 requests of K = 2 are the most that fit the largest graph, 32 of K = 1.
    """
    measured = moe(0.05, 0.01).model_copy(update={"graph_sizes": (1, 2, 4, 8, 16, 32, 64)})
    decision = decide(measured, 64)

    assert decision.verdict == "Dynamic"
    assert rows(decision) == [(1, 10, 2), (11, 16, 1), (17, 30, 2), (31, 64, 1)]
    assert decision.capture_sizes == (3, 6, 12, 22, 24, 30, 32, 51, 62, 63, 64)
    assert decide(moe(0.05, 0.01), 64).capture_sizes == ()
    assert decide(moe(0.008, 0).model_copy(update={"graph_sizes": (1, 2, 4)}), 64).capture_sizes == ()


@pytest.mark.parametrize(
    ("grid", "baseline", "expected"),
    [
        ({(1, 0): "no room"}, {1: 9.0}, "no cell of the grid was measured"),
        ({(1, 0): 10.0}, {2: 9.0}, "baseline was not measured"),
    ],
)
def test_nothing_to_decide_on_is_an_error(
    grid: dict[tuple[int, int], float | str], baseline: dict[int, float], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        decide(measurements(grid, {0: 1.0}, baseline), 4)


@settings(max_examples=150, deadline=None)
@given(any_measurements(), st.dictionaries(st.integers(1, 400), st.floats(0.1, 9), max_size=3))
def test_every_well_formed_measurement_has_a_decision(
    case: tuple[Measurements, int], weights: dict[int, float]
) -> None:
    measured, max_num_seqs = case
    decision = decide(measured, max_num_seqs, weights)

    assert decision.table[0].first == 1 and decision.table[-1].last == max_num_seqs
    assert decision.reason.endswith(".")
    if decision.verdict == "Static":
        assert decision.static_k > 0
    if decision.verdict == "Dynamic":
        assert len(decision.table) > 1
    undecided(decision, measured, weights)


@settings(max_examples=80, deadline=None)
@given(any_measurements(), st.floats(0.01, 100))
def test_the_unit_of_time_does_not_matter(case: tuple[Measurements, int], factor: float) -> None:
    measured, max_num_seqs = case

    def scaled(interval: Interval) -> Interval:
        return Interval(mean=interval.mean * factor, half_width=interval.half_width * factor)

    slower = measured.model_copy(
        update={
            "grid": tuple(
                c if c.itl_ms is None else c.model_copy(update={"itl_ms": c.itl_ms * factor}) for c in measured.grid
            ),
            "baseline": tuple(c.model_copy(update={"itl_ms": scaled(c.itl_ms)}) for c in measured.baseline),
        }
    )
    before, after = decide(measured, max_num_seqs), decide(slower, max_num_seqs)

    assert after.verdict == before.verdict
    assert [s.over_baseline for s in after.speedups] == pytest.approx([s.over_baseline for s in before.speedups])
