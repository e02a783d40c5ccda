"""What a table gives away, and how several tables of one engine differ."""

import datetime as dt

import pytest

from bench.pooled import pooled
from bench.regret import choices, regret, repeats
from specserve_profiler.contract.profile import (
    Acceptance,
    BaselineCell,
    Cell,
    Decision,
    Interval,
    Measurements,
    Profile,
    Row,
)

GOODPUTS = {1: {1: 0.8, 2: 1.0}, 2: {1: 0.99, 2: 1.0}, 3: {1: 1.0, 2: 0.5}}


def rows(*triples: tuple[int, int, int]) -> tuple[Row, ...]:
    return tuple(Row(first=first, last=last, k=k) for first, last, k in triples)


def profile(itl: dict[tuple[int, int], float], blocks: int, al: float, prompts: int) -> Profile:
    measured = Measurements(
        engine_version="0.32.0",
        scheduler="sync",
        grid=tuple(
            Cell(batch_size=size, k=k, itl_ms=ms, blocks=blocks)
            if ms
            else Cell(batch_size=size, k=k, skipped="too large")
            for (size, k), ms in itl.items()
        ),
        acceptance=(
            Acceptance(k=0, acceptance_length=Interval(mean=1), prompts=0),
            Acceptance(k=1, acceptance_length=Interval(mean=al), prompts=prompts),
        ),
        baseline=(BaselineCell(batch_size=1, itl_ms=Interval(mean=4.0), blocks=10),),
    )
    decision = Decision(verdict="None", reason="-", table=rows((1, 4, 0)), static_k=0)
    when = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    return Profile(key="k", measured_at=when, measurements=measured, decision=decision)


def test_a_table_chooses_for_every_batch_size_of_its_rows() -> None:
    assert choices(rows((1, 2, 3), (3, 3, 0))) == {1: 3, 2: 3, 3: 0}


def test_regret_is_the_share_of_the_best_goodput_that_is_given_away() -> None:
    assert regret(GOODPUTS.__getitem__, rows((1, 3, 1))) == pytest.approx({1: 0.2, 2: 0.01, 3: 0.0})


def test_tables_are_compared_at_every_batch_size() -> None:
    found = repeats(GOODPUTS.__getitem__, [rows((1, 2, 2), (3, 3, 1)), rows((1, 1, 2), (2, 3, 1)), rows((1, 3, 1))])

    assert [entry.ks for entry in found] == [(2, 2, 1), (2, 1, 1), (1, 1, 1)]
    assert [entry.differs for entry in found] == [True, True, False]
    assert [entry.usual_k for entry in found] == [2, 1, 1]
    assert [max(entry.lost) for entry in found] == pytest.approx([0.2, 0.01, 0.0])
    assert [entry.within(0.015) for entry in found] == [False, True, True]


def test_profiles_are_pooled_by_their_blocks_so_that_what_a_profile_has_in_common_cancels() -> None:
    quiet = profile({(1, 0): 10.0, (1, 1): 20.0}, blocks=30, al=1.5, prompts=10)
    busy = profile({(1, 0): 20.0, (1, 1): 40.0}, blocks=10, al=1.5, prompts=10)  # twice as slow throughout

    found = pooled([quiet, busy])

    first, second = found.grid
    assert first.itl_ms == pytest.approx(10 * 2**0.25)
    assert second.itl_ms == pytest.approx(20 * 2**0.25)
    assert (first.blocks, second.blocks) == (40, 40)
    assert found.acceptance[1].acceptance_length.mean == pytest.approx(1.5)
    assert found.acceptance[1].prompts == 20
    assert found.baseline[0].blocks == 20


def test_acceptance_is_pooled_by_prompts() -> None:
    found = pooled([profile({(1, 1): 1.0}, 1, 1.0, prompts=10), profile({(1, 1): 1.0}, 1, 2.0, prompts=30)])

    assert found.acceptance[0].acceptance_length.mean == pytest.approx(2**0.75)


def test_a_cell_that_one_profile_lacks_is_not_pooled() -> None:
    whole = profile({(1, 0): 10.0, (1, 1): 20.0}, 10, 1.5, 10)
    partial = profile({(1, 0): 10.0, (1, 1): 0.0}, 10, 1.5, 10)

    assert [(cell.batch_size, cell.k) for cell in pooled([whole, partial]).grid] == [(1, 0)]


def test_profiles_with_nothing_in_common_cannot_be_pooled() -> None:
    with pytest.raises(ValueError, match="every profile"):
        pooled([profile({(1, 0): 10.0}, 1, 1.5, 1), profile({(2, 0): 10.0}, 1, 1.5, 1)])
