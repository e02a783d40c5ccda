"""From measurements to table and verdict."""

import math
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve_profiler.contract import Acceptance, BaselineCell, Cell, Decision, Interval, Measurements
from specserve_profiler.table import decide

SIZES = (1, 2, 4, 8, 16, 32)


def measurements(
    itl: Mapping[tuple[int, int], float | str],
    al: Mapping[int, float],
    baseline: Mapping[int, float],
    error: float = 0.0,
) -> Measurements:
    """Cells are ITL in ms, or the reason for skipping them; ``error`` is the relative half-width of everything."""

    def interval(mean: float) -> Interval:
        return Interval(mean=mean, half_width=error * mean)

    return Measurements(
        engine_version="0.32.0",
        scheduler="sync",
        grid=tuple(
            Cell(batch_size=b, k=k, skipped=value)
            if isinstance(value, str)
            else Cell(batch_size=b, k=k, itl_ms=interval(value), blocks=20)
            for (b, k), value in itl.items()
        ),
        acceptance=tuple(
            Acceptance(k=k, acceptance_length=interval(mean) if k else Interval(mean=1), prompts=80)
            for k, mean in al.items()
        ),
        baseline=tuple(BaselineCell(batch_size=b, itl_ms=interval(mean), blocks=20) for b, mean in baseline.items()),
        mean_context_tokens=96,
    )


def rows(decision: Decision) -> list[tuple[int, int, int]]:
    return [(row.first, row.last, row.k) for row in decision.table]


def engine(
    al: Mapping[int, float], cost: Callable[[int, int], float], sizes: Sequence[int] = SIZES, error: float = 0.0
) -> Measurements:
    """A grid from a cost model in ms; the baseline is 10 % quicker than K = 0."""
    grid = {(b, k): cost(b, k) for b in sizes for k in al}
    return measurements(grid, al, {b: cost(b, 0) / 1.1 for b in sizes}, error)


# The figures that vLLM's PR #32374 published for a dense model.
PUBLISHED = {
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
PUBLISHED_AL = {0: 1.0, 1: 1.6812, 3: 2.2761, 5: 2.4289}
"""1 + .6812 + .3914 + .2035 + .1014 + .0514, up to each K."""


def test_published_figures_give_the_rows_worked_out_by_hand() -> None:
    """Up to 64, with x = b - 1: K = 1 is within 0.5 % of K = 3 where
    1.6812 (8.84 + 4.66 x / 63) >= .995 · 2.2761 (7.37 + 2.29 x / 63), that is x >= 43.5, so from batch size 45.
    Up to 256, with x = b - 64: K = 0 is within 0.5 % of K = 1 where
    9.66 + 17.48 x / 192 >= .995 · 1.6812 (7.77 + 6.72 x / 192), that is x >= 102.7, so from batch size 167.
    """
    decision = decide(measurements(PUBLISHED, PUBLISHED_AL, {1: 6.2, 64: 7.4, 256: 13.8}), 256)

    assert rows(decision) == [(1, 44, 3), (45, 166, 1), (167, 256, 0)]


def test_a_table_that_loses_at_one_batch_size_is_not_served() -> None:
    """K = 0 is best at 256 and still 5 % slower than no speculation: 13.8 / 14.49 = .952."""
    decision = decide(measurements(PUBLISHED, PUBLISHED_AL, {1: 6.2, 64: 7.4, 256: 13.8}), 256)

    assert decision.verdict == "None"
    assert (
        decision.reason == "At batch size 256 the best K loses more than 2% against no speculation, beyond the error."
    )
    at_256 = decision.speedups[-1]
    assert (at_256.batch_size, at_256.over_baseline) == (256, pytest.approx(13.8 / 14.49))


def test_the_same_loss_within_its_error_does_not_count() -> None:
    """The half-width at 256 is the root of two times 2.5 % squared, 3.5 %: .952 · e^.035 is above .98."""
    decision = decide(measurements(PUBLISHED, PUBLISHED_AL, {1: 6.2, 64: 7.4, 256: 13.8}, error=0.025), 256)

    assert decision.verdict == "Dynamic"
    # by geometric mean over 1, 64, 256 the best is K = 1: .2281 · .1740 · .0619 > .1534 · .1287 · .0690 of K = 0
    assert decision.static_k == 1
    assert [round(s.over_static, 3) for s in decision.speedups] == [1.129, 1.0, 1.114]
    assert [round(s.over_baseline, 3) for s in decision.speedups] == [1.596, 1.288, 0.952]


def test_compute_bound_batches_take_smaller_k() -> None:
    """ITL grows with the tokens of a step: best K falls, and no single K is near it everywhere."""
    decision = decide(engine({0: 1, 1: 1.7, 2: 2.15, 3: 2.4}, lambda b, k: 10 + 0.5 * k + 0.1 * b * (k + 1)), 32)

    ks = [row.k for row in decision.table]
    assert decision.verdict == "Dynamic"
    assert ks == [3, 2]


def test_one_k_best_everywhere_is_static() -> None:
    decision = decide(engine({0: 1, 1: 1.8, 2: 2.5}, lambda b, k: 10 + k), 32)

    assert (decision.verdict, decision.static_k) == ("Static", 2)
    assert rows(decision) == [(1, 32, 2)]
    # 2.5 / 12 against 1 / (10 / 1.1)
    assert decision.reason == "K = 2 is best at every batch size, with 1.89 times the goodput of no speculation (± 0%)."


def test_one_k_within_one_percent_of_the_table_everywhere_is_static() -> None:
    grid = {(b, k): 10.0 + k for b in (1, 8, 64) for k in (0, 1, 2)} | {(64, 2): 11.5}
    decision = decide(measurements(grid, {0: 1, 1: 1.9, 2: 2.06}, {1: 9.0, 8: 9.0, 64: 9.0}), 64)

    # K = 1: 1.9 / 11 = .1727 everywhere. K = 2: 2.06 / 12 = .1717, and 2.06 / 11.5 = .1791 at 64: 3.6 % over K = 1.
    assert decision.static_k == 2 and decision.verdict == "Static"
    assert [row.k for row in decision.table] == [1, 2]
    assert "within 1% of the table" in decision.reason


def test_no_gain_beyond_the_error_means_no_speculation() -> None:
    """2 % gain, each quantity known to 5 %."""
    decision = decide(engine({0: 1, 1: 1.02 / 1.1}, lambda b, k: 10 / (1 + 0.2 * k), error=0.05), 32)

    assert decision.verdict == "None"
    assert "no gain beyond the error" in decision.reason


def test_drafting_that_never_helps_is_none_even_where_k0_looks_faster_than_the_baseline() -> None:
    grid = {(b, k): 10.0 + 20 * k for b in SIZES for k in (0, 1)}
    decision = decide(measurements(grid, {0: 1, 1: 1.5}, dict.fromkeys(SIZES, 11.0)), 32)

    assert (decision.verdict, rows(decision)) == ("None", [(1, 32, 0)])
    assert "the drafter only costs" in decision.reason


def test_ties_go_to_the_smaller_k() -> None:
    decision = decide(engine({0: 1, 1: 1.8, 2: 1.8 * 1.2 * 1.004}, lambda b, k: 10 * 1.2**k if k else 9), 32)

    assert {row.k for row in decision.table} == {1}


def test_a_best_k_that_is_not_monotone_is_kept() -> None:
    """Mixtures of experts: more drafts cost most at middle batch sizes."""
    cost = {1: 1.0, 8: 5.0, 64: 1.0}
    decision = decide(engine({0: 1, 1: 1.8, 4: 3.0}, lambda b, k: 10 + cost[b] * k, sizes=(1, 8, 64)), 64)

    assert [row.k for row in decision.table] == [4, 1, 4]


def test_a_narrow_row_is_merged_where_that_costs_little() -> None:
    """K = 2 is best only at 32 by 1 %: the row would be a few batch sizes wide."""
    sizes = (16, 32, 48)
    grid = {(b, k): 10.0 for b in sizes for k in (1, 2)} | {(32, 2): 9.8} | {(16, 2): 12.0, (48, 2): 12.0}
    base = dict.fromkeys(sizes, 15.0)

    merged = decide(measurements(grid, {1: 2.0, 2: 2.0}, base), 48)
    kept = decide(measurements({**grid, (32, 2): 7.0}, {1: 2.0, 2: 2.0}, base), 48)

    assert rows(merged) == [(1, 48, 1)]
    assert 2 in {row.k for row in kept.table}


def test_skipped_cells_are_never_chosen_nor_interpolated_across() -> None:
    reason = "a step takes 96 tokens, max_num_batched_tokens is 64"
    grid: dict[tuple[int, int], float | str] = {(b, k): 10.0 for b in (1, 16, 32) for k in (0, 1, 2)}
    grid[32, 2] = reason
    decision = decide(measurements(grid, {0: 1, 1: 1.8, 2: 2.6}, {1: 9.0, 16: 9.0, 32: 9.0}), 32)

    assert rows(decision) == [(1, 16, 2), (17, 32, 1)]


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
    assert decision.warnings[1] == "Batch sizes below 2 were not measured: they take the K of 2."


def test_a_wide_interval_is_told() -> None:
    decision = decide(engine({0: 1, 1: 1.8}, lambda b, k: 10 + k, sizes=(1, 8), error=0.2), 8)

    assert any("batch size 1, 8 is known to no better than ± 10%" in warning for warning in decision.warnings)


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


@st.composite
def any_measurements(draw: st.DrawFn) -> tuple[Measurements, int]:
    sizes = sorted(draw(st.sets(st.integers(1, 300), min_size=1, max_size=6)))
    ks = sorted(draw(st.sets(st.integers(0, 8), min_size=1, max_size=5)))
    positive = st.floats(0.5, 500, allow_nan=False)
    al = {k: 1.0 if k == 0 else draw(st.floats(1.0, k + 1.0)) for k in ks}
    grid: dict[tuple[int, int], float | str] = {}
    for size in sizes:
        runs = draw(st.integers(1, len(ks)))
        grid |= {(size, k): draw(positive) if i < runs else "does not fit" for i, k in enumerate(ks)}
    baseline = {size: draw(positive) for size in sizes}
    return measurements(grid, al, baseline, draw(st.floats(0, 0.3))), sizes[-1] + draw(st.integers(0, 40))


@settings(max_examples=150, deadline=None)
@given(any_measurements())
def test_every_table_covers_all_batch_sizes_once_and_picks_only_what_runs(case: tuple[Measurements, int]) -> None:
    measured, max_num_seqs = case
    decision = decide(measured, max_num_seqs)

    assert decision.table[0].first == 1 and decision.table[-1].last == max_num_seqs
    for before, after in zip(decision.table, decision.table[1:], strict=False):
        assert after.first == before.last + 1 and after.k != before.k
    al = {entry.k: entry.acceptance_length.mean for entry in measured.acceptance}
    cells = {(c.batch_size, c.k): c.itl_ms.mean for c in measured.grid if c.itl_ms is not None}
    for size in {b for b, _ in cells}:
        chosen = next(row.k for row in decision.table if row.first <= size <= row.last)
        best = max(al[k] / itl for (b, k), itl in cells.items() if b == size)
        assert al[chosen] / cells[size, chosen] >= 0.98 * best


@settings(max_examples=80, deadline=None)
@given(any_measurements(), st.floats(0.01, 100))
def test_the_unit_of_time_does_not_matter(case: tuple[Measurements, int], factor: float) -> None:
    measured, max_num_seqs = case

    def scaled(interval: Interval) -> Interval:
        return Interval(mean=interval.mean * factor, half_width=interval.half_width * factor)

    slower = measured.model_copy(
        update={
            "grid": tuple(
                c if c.itl_ms is None else c.model_copy(update={"itl_ms": scaled(c.itl_ms)}) for c in measured.grid
            ),
            "baseline": tuple(c.model_copy(update={"itl_ms": scaled(c.itl_ms)}) for c in measured.baseline),
        }
    )
    before, after = decide(measured, max_num_seqs), decide(slower, max_num_seqs)

    assert after.verdict == before.verdict
    assert [s.over_baseline for s in after.speedups] == pytest.approx([s.over_baseline for s in before.speedups])


def test_a_verdict_that_ships_beats_the_baseline_by_its_own_speedups() -> None:
    decision = decide(engine({0: 1, 1: 1.7, 2: 2.2}, lambda b, k: 10 + k + 0.05 * b * k, error=0.01), 32)

    assert decision.verdict in ("Dynamic", "Static")
    assert math.prod(s.over_baseline for s in decision.speedups) > 1
    assert all(s.over_baseline > 0.98 for s in decision.speedups)
