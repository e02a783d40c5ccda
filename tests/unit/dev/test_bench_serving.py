"""What `bench serving` concludes from closed loops."""

import datetime as dt
import math
from pathlib import Path

import pytest

from bench.picture import draw
from bench.serving_report import Loops, against_best, curves, promise
from specserve_profiler.contract.profile import (
    Acceptance,
    AcceptanceContrast,
    Arm,
    ArmLoop,
    BaselineCell,
    Cell,
    Decision,
    Interval,
    LoopPoint,
    Measurements,
    Profile,
    Row,
)

NONE = Arm(kind="None")
STATIC = Arm(kind="Static", k=2)
TABLE = Arm(kind="Table", rows=(Row(first=1, last=1, k=2), Row(first=2, last=8, k=1)))


def loops(round_: int, arm: Arm, *rates: tuple[int, float, float]) -> Loops:
    points = tuple(
        LoopPoint(concurrency=c, tokens_per_second=Interval(mean=mean, half_width=half_width), ttft_ms=10.0 * c)
        for c, mean, half_width in rates
    )
    return Loops(round=round_, arm=arm, points=points, boot_seconds=30.0)


def test_one_round_keeps_the_interval_of_each_loop() -> None:
    (curve,) = curves([loops(0, TABLE, (1, 50.0, 1.0), (8, 200.0, 6.0))])

    assert curve.arm == TABLE
    assert [(rate.mean, rate.half_width) for rate in curve.tokens_per_second.values()] == [
        (pytest.approx(50.0), pytest.approx(1.0)),
        (pytest.approx(200.0), pytest.approx(6.0)),
    ]
    assert curve.ttft_ms == {1: 10.0, 8: 80.0}


def test_two_rounds_bring_in_what_boots_differ_by() -> None:
    low, high = 100.0, 100.0 * math.exp(0.1)

    (curve,) = curves([loops(0, NONE, (1, low, 0.0)), loops(1, NONE, (1, high, 0.0))])

    rate = curve.tokens_per_second[1]
    assert rate.mean == pytest.approx(100.0 * math.exp(0.05))
    # logs 0 and 0.1: variance 0.005, of the mean of two 0.0025
    assert rate.half_width / rate.mean == pytest.approx(1.95996 * 0.05, rel=1e-4)


def test_the_table_is_held_against_the_best_other_arm_at_every_concurrency() -> None:
    found = against_best(
        curves(
            [
                loops(0, NONE, (1, 40.0, 0.0), (8, 210.0, 0.0)),
                loops(0, STATIC, (1, 60.0, 0.6), (8, 180.0, 0.0)),
                loops(0, TABLE, (1, 60.6, 0.0), (8, 199.5, 0.0)),
            ]
        )
    )

    assert [(entry.concurrency, entry.best, entry.close) for entry in found] == [(1, STATIC, True), (8, NONE, False)]
    assert found[0].share.mean == pytest.approx(1.01)
    assert found[0].share.half_width == pytest.approx(0.0101)
    assert found[1].share.mean == pytest.approx(0.95)
    assert [entry.surely_behind for entry in found] == [False, True]


def test_a_share_below_the_mark_within_its_interval_is_not_surely_behind() -> None:
    (found,) = against_best(curves([loops(0, NONE, (1, 100.0, 2.0)), loops(0, TABLE, (1, 97.0, 0.0))]))

    assert (found.close, found.surely_behind) == (False, False)


def profile() -> Profile:
    measured = Measurements(
        engine_version="0.32.0",
        scheduler="sync",
        grid=(
            Cell(batch_size=8, k=1, itl_ms=10.0, spread=0.03, blocks=20),
            Cell(batch_size=8, k=2, itl_ms=16.0, spread=0.04, blocks=20),
        ),
        acceptance=(
            Acceptance(k=1, acceptance_length=Interval(mean=1.5), prompts=9),
            Acceptance(k=2, acceptance_length=Interval(mean=2.0), prompts=9),
        ),
        contrasts=(AcceptanceContrast(k=1, other=2, half_width=0.0),),
        baseline=(BaselineCell(batch_size=8, itl_ms=Interval(mean=8.0), blocks=9),),
    )
    decision = Decision(verdict="Dynamic", reason="-", table=TABLE.rows, static_k=1)
    return Profile(
        key="k", measured_at=dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc), measurements=measured, decision=decision
    )


@pytest.mark.parametrize(("seen", "kept"), [(120.0, True), (114.5, True), (112.0, False), (130.0, False)])
def test_a_promise_is_kept_within_the_joint_interval(seen: float, kept: bool) -> None:
    found = promise(profile(), curves([loops(0, STATIC, (8, 100.0, 0.0)), loops(0, TABLE, (8, seen, 0.0))]), 2)

    assert found.batch_size == 8
    assert found.predicted.mean == pytest.approx(1.2)  # (1.5 / 10) / (2 / 16)
    assert found.predicted.half_width == pytest.approx(1.2 * 0.05)
    assert found.seen.mean == pytest.approx(seen / 100)
    assert found.kept is kept


def test_what_a_token_costs_beside_its_steps_draws_a_promise_to_one() -> None:
    """Steps: 1200 and 1000 tokens/s. The baseline makes 1000 of steps and 500 in its loop: 1 ms a token more."""
    pure = profile()
    loop = ArmLoop(arm=NONE, points=(LoopPoint(concurrency=8, tokens_per_second=Interval(mean=500.0), ttft_ms=20),))
    served = pure.model_copy(update={"measurements": pure.measurements.model_copy(update={"loops": (loop,)})})

    found = promise(served, curves([loops(0, STATIC, (8, 100.0, 0.0)), loops(0, TABLE, (8, 109.0, 0.0))]), 2)

    assert found.predicted.mean == pytest.approx(2.0 / (1 / 1.2 + 1))
    assert found.predicted.half_width == pytest.approx(2.0 / (1 / 1.2 + 1) * 0.05 * 0.5)


def test_the_picture_names_every_arm_and_is_the_same_every_time(tmp_path: Path) -> None:
    found = curves(
        [
            loops(0, NONE, (1, 40.0, 1.0), (8, 210.0, 3.0)),
            loops(0, STATIC, (1, 60.0, 1.0), (8, 180.0, 3.0)),
            loops(0, TABLE, (1, 60.0, 1.0), (8, 205.0, 3.0)),
        ]
    )

    draw(found, tmp_path / "one.svg")
    draw(found, tmp_path / "two.svg")

    picture = (tmp_path / "one.svg").read_text()
    for text in ("no speculation", "static K = 2", "table 1-1:2 2-8:1", "client concurrency", "tokens per second"):
        assert text in picture
    assert picture == (tmp_path / "two.svg").read_text()
