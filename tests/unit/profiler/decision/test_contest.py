"""What is served once arms were seen in the closed loop, and how a table is repaired."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.measured import NONE, loop, measurements, rows, static, table, table_arm, triples

from specserve_profiler.contract.profile import ArmLoop, Decision, Measurements
from specserve_profiler.decision.contest import check_points, repaired
from specserve_profiler.decision.verdict import decide, undecided

TABLE = table_arm((1, 16, 2), (17, 64, 1))
BASE = loop(NONE, {1: 100, 16: 800, 64: 1600})
GOOD = {1: 150.0, 16: 1200.0, 64: 1900.0}


def seen(*loops: ArmLoop, drift: float = 0.0) -> Measurements:
    """K = 2 is ahead by 10 % at 1, K = 1 by 10 % at 64, both far above the baseline."""
    grid: dict[tuple[int, int], float | str] = {(1, 1): 11.0, (1, 2): 10.0, (64, 1): 20.0, (64, 2): 22.0}
    base = {1: 14.0, 64: 28.0}
    return measurements(grid, {1: 1.9, 2: 1.9}, base, 0.01, loops=loops, boot_drift=drift)


def verdict(*loops: ArmLoop, drift: float = 0.0) -> Decision:
    return decide(seen(*loops, drift=drift), 64)


def test_a_table_that_holds_in_the_closed_loop_is_served_with_what_was_seen() -> None:
    decision = verdict(BASE, loop(TABLE, GOOD))

    assert decision.verdict == "Dynamic"
    assert rows(decision) == [(1, 16, 2), (17, 64, 1)]
    assert [(s.batch_size, round(s.over_baseline, 3), s.verified) for s in decision.speedups] == [
        (1, 1.5, True), (16, 1.5, True), (64, 1.188, True),
    ]  # fmt: skip
    assert decision.speedups[0].half_width == pytest.approx(0.01 * math.sqrt(2))
    # 1.5 · 1.5 · 1.1875 to a third; sqrt(2) · 1 % / sqrt(3)
    assert decision.reason == "In the closed loop the table has 1.39 times the tokens/s of no speculation (± 1%)."


def test_a_table_that_loses_to_no_speculation_in_the_closed_loop_is_not_served() -> None:
    """The grid predicts 1.9 times at 64; seen is 5 % less, known to 1.4 %."""
    decision = verdict(BASE, loop(TABLE, {**GOOD, 64: 1520.0}))

    assert decision.verdict == "None"
    assert decision.reason == (
        "In the closed loop the table loses more than 2% against no speculation at concurrency 64, beyond the error."
    )
    assert [s.verified for s in decision.speedups] == [True] * 3


def test_the_same_loss_within_the_drift_between_boots_is_no_loss_but_worth_another_boot() -> None:
    loops = BASE, loop(TABLE, {**GOOD, 64: 1520.0})

    assert verdict(*loops, drift=0.06).verdict == "Dynamic"
    assert undecided(verdict(*loops, drift=0.06), seen(*loops, drift=0.06))
    assert not undecided(verdict(BASE, loop(TABLE, GOOD), drift=0.06), seen(BASE, loop(TABLE, GOOD), drift=0.06))


def test_the_static_k_is_served_where_the_table_is_not_ahead_of_it() -> None:
    decision = verdict(BASE, loop(TABLE, GOOD), loop(static(1), {1: 149, 16: 1200, 64: 1895}))

    assert (decision.verdict, decision.static_k) == ("Static", 1)
    assert "static K = 1 has 1.3" in decision.reason and "measured beside it: table 1-16:2 17-64:1" in decision.reason


def test_the_table_is_served_where_it_is_ahead_of_the_static_k_somewhere_and_behind_nowhere() -> None:
    decision = verdict(BASE, loop(TABLE, GOOD), loop(static(1), {1: 130, 16: 1200, 64: 1900}))

    assert decision.verdict == "Dynamic"
    assert [round(s.over_static, 3) for s in decision.speedups] == [round(150 / 130, 3), 1.0, 1.0]


def test_the_static_k_is_served_where_the_table_loses_to_it_anywhere() -> None:
    decision = verdict(BASE, loop(TABLE, GOOD), loop(static(1), {1: 130, 16: 1200, 64: 2100}))

    assert (decision.verdict, decision.static_k) == ("Static", 1)


def test_adaptive_verification_is_served_where_it_wins() -> None:
    adaptive = loop({"kind": "Adaptive", "k": 2}, {1: 180, 16: 1300, 64: 2000})  # type: ignore[arg-type]
    behind = loop({"kind": "Adaptive", "k": 2}, {1: 180, 16: 1300, 64: 1700})  # type: ignore[arg-type]

    assert verdict(BASE, loop(TABLE, GOOD), adaptive).verdict == "Adaptive"
    assert verdict(BASE, loop(TABLE, GOOD), behind).verdict == "Dynamic"


def test_an_engine_that_does_not_serve_with_the_table_means_no_speculation() -> None:
    failed = ArmLoop(arm=TABLE, failed="EngineFailed: assertion")
    decision = verdict(BASE, failed)

    assert decision.verdict == "None" and decision.speedups == ()
    assert decision.warnings[-1] == ("The engine does not serve with table 1-16:2 17-64:1: EngineFailed: assertion.")
    assert verdict(BASE, failed, loop(static(1), GOOD)).verdict == "Static"


def test_a_baseline_alone_in_the_closed_loop_leaves_the_prediction() -> None:
    decision = verdict(BASE)

    assert decision.verdict == "Dynamic" and not any(s.verified for s in decision.speedups)


def test_late_first_tokens_are_told() -> None:
    """90 ms is more than 1.5 times 30 ms and 50 ms above it; 45 ms is not."""
    decision = verdict(loop(NONE, {1: 100}, ttft_ms=30), loop(TABLE, {1: 150}, ttft_ms=90))
    quiet = verdict(loop(NONE, {1: 100}, ttft_ms=30), loop(TABLE, {1: 150}, ttft_ms=46))

    assert decision.verdict == "Dynamic"
    assert (
        "5% of first tokens take longer than 90 ms at concurrency 1, 30 ms without speculation" in decision.warnings[-1]
    )
    assert quiet.warnings == ()


def live(rates: dict[int, float], *table_rows: tuple[int, int, int]) -> ArmLoop:
    return loop(table_arm(*table_rows), rates, live=True)


EDGES = {**GOOD, 17: 1000.0}
"""The table at 17, just beyond its edge, where 1,200 would be normal."""


def test_an_edge_at_which_the_table_loses_is_moved() -> None:
    """At 17 both single K do better; K = 2 is best on both sides of the edge: it gets the batch sizes up to 40."""
    singles = live({16: 1210, 17: 1260}, (1, 64, 2)), live({16: 1000, 17: 1240}, (1, 64, 1))

    found = repaired(TABLE.rows, (loop(TABLE, EDGES), *singles))

    assert found is not None and triples(found) == [(1, 40, 2), (41, 64, 1)]


def test_an_edge_moves_the_other_way_where_the_other_k_is_better() -> None:
    singles = live({16: 1000, 17: 1260}, (1, 64, 2)), live({16: 1210, 17: 1240}, (1, 64, 1))

    found = repaired(TABLE.rows, (loop(TABLE, EDGES), *singles))

    assert found is not None and triples(found) == [(1, 8, 2), (9, 64, 1)]


def test_rows_become_one_where_nothing_else_was_looked_at() -> None:
    singles = live({16: 1210, 17: 1260}, (1, 64, 2)), live({16: 1000, 17: 1240}, (1, 64, 1))

    found = repaired(TABLE.rows, (loop(TABLE, {16: 1200, 17: 1000}), *singles))

    assert found is not None and triples(found) == [(1, 64, 2)]


def test_a_table_that_holds_at_its_edges_needs_no_repair() -> None:
    singles = live({16: 1210, 17: 1215}, (1, 64, 2)), live({16: 1000, 17: 1200}, (1, 64, 1))

    assert repaired(TABLE.rows, (loop(TABLE, {**GOOD, 17: 1200}), *singles)) is None
    assert repaired(TABLE.rows, (loop(TABLE, EDGES),)) is None
    assert repaired(TABLE.rows, ()) is None


def test_a_loss_within_its_interval_needs_no_repair() -> None:
    singles = live({16: 1210, 17: 1260}, (1, 64, 2)), live({16: 1000, 17: 1240}, (1, 64, 1))

    assert repaired(TABLE.rows, (loop(TABLE, EDGES, error=0.25), *singles)) is None


def test_a_repaired_table_that_holds_is_served() -> None:
    singles = live({16: 1210, 17: 1260}, (1, 64, 2)), live({16: 1000, 17: 1240}, (1, 64, 1))
    better = live({**GOOD, 17: 1255}, (1, 40, 2), (41, 64, 1))

    decision = verdict(BASE, loop(TABLE, EDGES), *singles, better)

    assert decision.verdict == "Dynamic" and rows(decision) == [(1, 40, 2), (41, 64, 1)]


def test_a_repaired_table_that_does_not_boot_is_not_served_for_having_been_followed() -> None:
    singles = live({16: 1210, 17: 1260}, (1, 64, 2)), live({16: 1000, 17: 1240}, (1, 64, 1))
    better = live({**GOOD, 17: 1255}, (1, 40, 2), (41, 64, 1))
    hangs = ArmLoop(arm=better.arm, failed="the run ended before the engine was up")

    decision = verdict(BASE, loop(TABLE, EDGES), *singles, better, hangs)

    assert rows(decision) != [(1, 40, 2), (41, 64, 1)]


def test_a_table_that_still_loses_at_its_edge_gives_way_to_the_static_k() -> None:
    singles = live({16: 1210, 17: 1260}, (1, 64, 2)), live({16: 1000, 17: 1240}, (1, 64, 1))
    decision = verdict(BASE, loop(TABLE, EDGES), *singles)

    assert (decision.verdict, decision.static_k) == ("Static", 1)
    assert decision.reason.startswith("At concurrency 17 the table loses more than 2% to one K of its own, so K = 1 is")
    assert "set profile.verify to Full" in decision.warnings[0]
    assert not any(s.verified for s in decision.speedups)


def test_a_single_k_that_was_seen_to_lose_is_not_served_instead() -> None:
    singles = live({16: 1210, 17: 1260}, (1, 64, 2)), live({16: 1000, 17: 1240}, (1, 64, 1))
    lost = loop(static(1), {1: 90, 16: 800, 64: 1600})

    assert verdict(BASE, loop(TABLE, EDGES), *singles, lost).verdict == "None"


def test_points_lie_at_between_and_across_the_edges() -> None:
    rows = table((1, 8, 3), (9, 32, 2), (33, 256, 1))

    # ends 1 and 256; edges 8, 9, 32, 33; between: sqrt(8), sqrt(9 · 32), sqrt(33 · 256)
    assert check_points(rows, (1, 8, 64, 256), 256) == (1, 3, 8, 9, 17, 32, 33, 92, 256)


def test_points_end_with_what_was_measured() -> None:
    assert check_points(table((1, 8, 3), (9, 256, 1)), (1, 8, 64), 256) == (1, 3, 8, 9, 24, 64)
    assert check_points(table((1, 256, 3)), (1, 512), 256) == (1, 16, 256)
    assert check_points(table((1, 1, 3)), (1,), 1) == (1,)


def test_of_many_edges_the_first_twelve_points_are_looked_at() -> None:
    many = table(*((i * 10 + 1, i * 10 + 10, i % 2) for i in range(20)))

    points = check_points(many, (1, 200), 200)

    assert len(points) == 12 and points[0] == 1 and points[-1] == 200


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([TABLE, table_arm((1, 64, 1)), static(1), static(2)]),
            st.dictionaries(st.sampled_from([1, 16, 17, 64]), st.floats(1, 5000), max_size=4),
            st.booleans(),
        ),
        max_size=5,
    ),
    st.dictionaries(st.sampled_from([1, 16, 64]), st.floats(1, 5000), max_size=3),
)
def test_whatever_the_closed_loop_shows_there_is_a_decision(
    arms: list[tuple[object, dict[int, float], bool]], base: dict[int, float]
) -> None:
    loops = [loop(arm, rates, live=is_live) for arm, rates, is_live in arms]  # type: ignore[arg-type]
    measured = seen(loop(NONE, base), *loops)
    decision = decide(measured, 64)

    assert decision.reason.endswith(".") and decision.table[-1].last == 64
    repaired(TABLE.rows, loops)
    undecided(decision, measured)
