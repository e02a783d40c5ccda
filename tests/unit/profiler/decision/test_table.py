"""The table: K for every batch size, ties, merging, and rows from somebody else's figures."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.measured import any_measurements, engine, measurements, table, triples

from specserve_profiler.contract.profile import Measurements
from specserve_profiler.decision.evidence import Evidence
from specserve_profiler.decision.surface import Surface
from specserve_profiler.decision.table import LOSS, TIE, best_rows, merged_rows
from specserve_profiler.reports.given import GivenGrid, over_baseline, rows_from_grid


def merged(
    measured: Measurements, max_num_seqs: int, weights: dict[int, float] | None = None
) -> list[tuple[int, int, int]]:
    return triples(merged_rows(Evidence.of(measured, max_num_seqs), max_num_seqs, weights or {}))


PUBLISHED = GivenGrid(
    batch_sizes=(1, 64, 256),
    draft_tokens=(0, 1, 3, 5),
    itl_ms=((6.52, 7.37, 8.84, 10.33), (7.77, 9.66, 13.50, 16.83), (14.49, 27.14, 41.85, 57.40)),
    acceptance_per_position=(0.6812, 0.3914, 0.2035, 0.1014, 0.0514),
    baseline_itl_ms=(6.2, 7.4, 13.8),
)
"""The figures that vLLM's PR #32374 published for a dense model, and a baseline that it did not."""


def test_published_figures_give_the_published_rows() -> None:
    """The last three rows are those that the PR itself got from its full data."""
    rows = rows_from_grid(PUBLISHED, tie=0, interpolate_k=True)

    assert triples(rows) == [(1, 5, 3), (6, 110, 2), (111, 169, 1), (170, 256, 0)]


def test_published_figures_at_measured_k_with_ties_give_the_rows_worked_out_by_hand() -> None:
    """Up to 64, with x = b - 1: K = 1 is within 0.5 % of K = 3 where
    1.6812 (8.84 + 4.66 x / 63) >= .995 · 2.2761 (7.37 + 2.29 x / 63), that is x >= 43.5, so from batch size 45.
    Up to 256, with x = b - 64: K = 0 is within 0.5 % of K = 1 where
    9.66 + 17.48 x / 192 >= .995 · 1.6812 (7.77 + 6.72 x / 192), that is x >= 102.7, so from batch size 167.
    """
    assert triples(rows_from_grid(PUBLISHED)) == [(1, 44, 3), (45, 166, 1), (167, 256, 0)]


def test_the_table_of_a_grid_ends_where_it_is_told() -> None:
    assert triples(rows_from_grid(PUBLISHED, max_batch=100)) == [(1, 44, 3), (45, 100, 1)]
    assert triples(rows_from_grid(PUBLISHED, max_batch=512))[-1] == (167, 512, 0)
    with pytest.raises(ValueError, match="tie: 1 is no share"):
        rows_from_grid(PUBLISHED, tie=1)
    with pytest.raises(ValueError, match="max_batch: 0 is below 1"):
        rows_from_grid(PUBLISHED, max_batch=0)


def test_given_figures_are_compared_with_a_given_baseline() -> None:
    ratios = over_baseline(PUBLISHED, table((1, 64, 3), (65, 256, 0)))

    assert ratios == pytest.approx({1: 2.2761 / 8.84 * 6.2, 64: 2.2761 / 13.5 * 7.4, 256: 13.8 / 14.49})


def test_compute_bound_batches_take_smaller_k() -> None:
    """K = 2 is ahead where 2.15 (11.5 + .4 b) > 2.4 (11 + .3 b), that is b > 11.96."""
    measured = engine({0: 1, 1: 1.7, 2: 2.15, 3: 2.4}, lambda b, k: 10 + 0.5 * k + 0.1 * b * (k + 1))

    assert triples(best_rows(Evidence.of(measured, 32).surface, 32, tie=0)) == [(1, 11, 3), (12, 32, 2)]


def test_a_best_k_that_is_not_monotone_is_kept() -> None:
    """Mixtures of experts: more drafts cost most at middle batch sizes."""
    cost = {1: 1.0, 8: 5.0, 64: 1.0}
    measured = engine({0: 1, 1: 1.8, 4: 3.0}, lambda b, k: 10 + cost[b] * k, sizes=(1, 8, 64))

    assert [k for _, _, k in merged(measured, 64)] == [4, 1, 4]


def test_ties_go_to_the_smaller_k() -> None:
    measured = engine({0: 1, 1: 1.8, 2: 1.8 * 1.2 * 1.004}, lambda b, k: 10 * 1.2**k if k else 9)

    assert merged(measured, 32) == [(1, 32, 1)]
    assert triples(best_rows(Evidence.of(measured, 32).surface, 32, tie=0)) == [(1, 32, 2)]


def test_a_narrow_row_is_merged_where_that_costs_little() -> None:
    """K = 2 is best only round 32, by 2 %: of 20, 4 and 40 batch sizes."""
    grid: dict[tuple[int, int], float | str] = {(b, 1): 10.0 for b in (1, 30, 32, 34, 64)}
    grid |= {(1, 2): 12.0, (30, 2): 10.3, (32, 2): 9.85, (34, 2): 10.3, (64, 2): 12.0}
    base = dict.fromkeys((1, 30, 32, 34, 64), 15.0)

    assert merged(measurements(grid, {1: 2.0, 2: 2.0}, base), 64) == [(1, 64, 1)]
    assert [k for _, _, k in merged(measurements({**grid, (32, 2): 7.0}, {1: 2.0, 2: 2.0}, base), 64)] == [1, 2, 1]


def test_a_wide_row_is_merged_only_while_the_difference_may_be_noise() -> None:
    """K = 2 is 1 % better at 16 and 32, half of all batch sizes. Known to .4 % it stays, known to 3.5 % it does not."""
    grid: dict[tuple[int, int], float | str] = {(b, k): 10.0 for b in (1, 8, 16, 32) for k in (1, 2)}
    grid |= {(16, 2): 9.9, (32, 2): 9.9, (1, 2): 11.0, (8, 2): 11.0}
    base = dict.fromkeys((1, 8, 16, 32), 15.0)

    assert [k for _, _, k in merged(measurements(grid, {1: 2.0, 2: 2.0}, base, error=0.002), 32)] == [1, 2]
    assert merged(measurements(grid, {1: 2.0, 2: 2.0}, base, error=0.02), 32) == [(1, 32, 1)]


def test_load_decides_between_tables_of_as_many_rows() -> None:
    """K = 1 wins by 1.5 % at 1, K = 2 by 1.5 % at 32, and both may be noise: one row, for the batch size in use."""
    grid: dict[tuple[int, int], float | str] = {(1, 1): 10.0, (1, 2): 10.15, (32, 1): 20.3, (32, 2): 20.0}
    measured = measurements(grid, {1: 2.0, 2: 2.0}, {1: 15.0, 32: 30.0}, error=0.02)

    assert merged(measured, 32, {1: 9, 32: 1}) == [(1, 32, 1)]
    assert merged(measured, 32, {1: 1, 32: 9}) == [(1, 32, 2)]


def test_skipped_cells_are_never_chosen_nor_interpolated_across() -> None:
    grid: dict[tuple[int, int], float | str] = {(b, k): 10.0 for b in (1, 16, 32) for k in (0, 1, 2)}
    grid[32, 2] = "a step takes 96 tokens, max_num_batched_tokens is 64"

    assert merged(measurements(grid, {0: 1, 1: 1.8, 2: 2.6}, {1: 9.0, 16: 9.0, 32: 9.0}), 32) == [
        (1, 16, 2),
        (17, 32, 1),
    ]


def test_a_row_may_end_on_the_engine_s_stairs() -> None:
    """K = 1 of 17 requests is 34 tokens, padded to 64; of 16 it fits 32. From 17 on K = 0 pays for 32."""
    stairs = (16, 32, 64)

    def cost(b: int, k: int) -> float:
        tokens = b * (k + 1)
        return {16: 10.0, 32: 12.0, 64: 24.0}[next(size for size in stairs if size >= tokens)]

    measured = engine({0: 1.0, 1: 1.7}, cost, sizes=(1, 8, 16, 17, 32), graph_sizes=stairs)

    assert merged(measured, 32) == [(1, 16, 1), (17, 32, 0)]


@settings(max_examples=150, deadline=None)
@given(any_measurements(), st.dictionaries(st.integers(1, 400), st.floats(0.1, 9), max_size=3))
def test_a_table_covers_every_batch_size_once_and_gives_away_no_more_than_allowed(
    case: tuple[Measurements, int], weights: dict[int, float]
) -> None:
    measured, max_num_seqs = case
    rows = merged_rows(Evidence.of(measured, max_num_seqs), max_num_seqs, weights)
    surface: Surface = Evidence.of(measured, max_num_seqs).surface

    assert rows[0].first == 1 and rows[-1].last == max_num_seqs
    for before, after in pairwise(rows):
        assert after.first == before.last + 1 and after.k != before.k
    assert max(surface.cost(size, row.k) for row in rows for size in range(row.first, row.last + 1)) <= LOSS
    assert len(rows) <= len(best_rows(surface, max_num_seqs))


@settings(max_examples=60, deadline=None)
@given(any_measurements())
def test_without_merging_every_k_is_within_the_tie_of_the_best(case: tuple[Measurements, int]) -> None:
    measured, max_num_seqs = case
    surface = Evidence.of(measured, max_num_seqs).surface

    for row in best_rows(surface, max_num_seqs):
        assert all(surface.cost(size, row.k) <= TIE + 1e-12 for size in range(row.first, row.last + 1))


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=4, unique=True),
    st.lists(st.lists(st.one_of(st.none(), st.floats(1, 50)), min_size=3, max_size=3), min_size=4, max_size=4),
    st.tuples(st.floats(1, 2), st.floats(1, 3)),
    st.sampled_from([0.0, TIE, 0.2]),
    st.integers(1, 500),
)
def test_rows_found_by_halving_are_those_of_every_batch_size(
    sizes: list[int], ms: list[list[float | None]], lengths: tuple[float, float], tie: float, last: int
) -> None:
    """At a crossing both K are as good, so a K counts as right where it gives away no more than it may."""
    itl = {
        (size, k): value
        for size, row in zip(sorted(sizes), ms, strict=False)
        for k, value in zip((0, 2, 4), [row[0] or 9.0, *row[1:]], strict=True)
        if value is not None
    }
    surface = Surface({0: 1.0, 2: lengths[0], 4: lengths[1]}, itl)
    rows = best_rows(surface, last, tie)

    assert [row.first for row in rows] == [1, *(row.last + 1 for row in rows[:-1])] and rows[-1].last == last
    assert all(one.k != two.k for one, two in pairwise(rows))
    for row in rows:
        for size in range(row.first, row.last + 1):
            smaller = [k for k in surface.goodputs(size) if k < row.k]
            assert surface.cost(size, row.k) <= tie + 1e-9
            assert all(surface.cost(size, k) > tie - 1e-9 for k in smaller)


def test_a_table_of_a_million_batch_sizes_takes_no_walk() -> None:
    """K = 0 is ahead where 9.66 + 17.48 u > 1.6812 (7.77 + 6.72 u), u = (b - 64) / 999936, that is b > 550455.8."""
    rows = rows_from_grid(PUBLISHED, tie=0, interpolate_k=True, max_batch=1_000_000)
    assert triples(rows) == [(1, 5, 3), (6, 110, 2), (111, 169, 1), (170, 1_000_000, 0)]

    far = PUBLISHED.model_copy(update={"batch_sizes": (1, 64, 1_000_000)})
    surface = far.surface()
    assert triples(best_rows(surface, 1_000_000, tie=0))[-1] == (550_456, 1_000_000, 0)
    assert surface.best_k(550_455, 0) == 1 and len(surface._known) < 1000
