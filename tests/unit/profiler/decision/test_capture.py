"""Captured graphs: no batch size of a table is padded further than the engine's own stride."""

from bisect import bisect_left
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.measured import table

from specserve_profiler.contract.profile import Row
from specserve_profiler.decision.capture import capture_sizes, missing_sizes, padding
from specserve_profiler.decision.table import rows_of

STRIDE = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""What vLLM captures by itself, up to 512."""


def test_sizes_are_the_strides_times_the_tokens_of_a_step() -> None:
    """K = 3 up to 12, then K = 1. Counts 1, 2, 4, 8, 12 (the edge) of 4 tokens; 13 (the edge), 16, 24, 32 of 2."""
    sizes = capture_sizes(table((1, 12, 3), (13, 32, 1)), STRIDE, 32)

    assert sizes == (4, 8, 16, 26, 32, 48, 64)


def test_nothing_is_captured_beyond_the_engine_s_largest_graph() -> None:
    """102 requests of 5 tokens are the most that fit 512."""
    sizes = capture_sizes(table((1, 256, 4)), STRIDE, 256)

    assert sizes[-2:] == (480, 510)


def test_an_eager_engine_captures_nothing() -> None:
    assert capture_sizes(table((1, 32, 3)), (), 32) == ()


def test_the_plain_union_of_a_measured_grid_would_pad_by_more() -> None:
    """Why it is not taken: 66 requests of K = 1 (132 tokens) would be padded to 256, here to 144."""
    union = sorted({2**i * 2 for i in range(9)})

    assert padding(66, 1, union) == 124
    assert padding(66, 1, capture_sizes(table((1, 256, 1)), STRIDE, 256)) == 12


def test_graphs_that_an_engine_lacks_are_named() -> None:
    assert missing_sizes((4, 8, 16), (8, 32)) == (4, 16)
    assert missing_sizes((), (8,)) == ()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 90)), min_size=1, max_size=5),
    st.sampled_from([STRIDE, STRIDE[:20], (1, 2, 4, 8, 16, 32, 64, 128, 256), (3, 5, 100)]),
)
def test_no_batch_size_is_padded_further_than_to_the_next_count_of_the_stride(
    runs: list[tuple[int, int]], stride: tuple[int, ...]
) -> None:
    rows: tuple[Row, ...] = rows_of(k for k, width in runs for _ in range(width))
    sizes = capture_sizes(rows, stride, rows[-1].last)

    assert all(size <= stride[-1] for size in sizes)
    assert all(before < after for before, after in pairwise(sizes))
    for row in rows:
        for size in range(row.first, row.last + 1):
            if size * (row.k + 1) <= stride[-1]:
                following = stride[bisect_left(stride, size)]
                padded = padding(size, row.k, sizes)
                assert padded is not None and padded <= (following - size) * (row.k + 1)
