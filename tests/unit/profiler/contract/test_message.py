"""A result leaves the pod through at most 3,000 bytes, and half of it is never taken for a whole one."""

import base64
import datetime as dt
import json
import zlib
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.measured import any_measurements, asked
from tests.unit.profiler import profiles_sample

from specserve_profiler.contract.message import LIMIT, TerminationError, decode, encode, read, write
from specserve_profiler.contract.packing import pack, unpack
from specserve_profiler.contract.precision import FORMS
from specserve_profiler.contract.profile import (
    Acceptance,
    AcceptanceContrast,
    Arm,
    ArmLoop,
    BaselineCell,
    Cell,
    Decision,
    Failure,
    Interval,
    Level,
    LoopPoint,
    Measurements,
    Profile,
    Row,
    Speedup,
    SpotCheck,
)
from specserve_profiler.decision.evidence import Evidence
from specserve_profiler.decision.verdict import decide

WARNINGS = tuple(f"Batch size {2**i}: the interval of the ITL is wider than 10 %; measure longer." for i in range(16))


def profile(
    batch_sizes: int,
    ks: int,
    *,
    warnings: tuple[str, ...] = (),
    skipped: int = 0,
    loops: int = 0,
    live: int = 0,
    ragged: bool = False,
) -> Profile:
    """A profile whose numbers have no pattern that a compressor could use.

    ``loops`` arms of 12 points (the third a table that was followed live), ``live`` single K that were, too; ``ragged``
    graphs without a stride.
    """
    random = Random(1)  # noqa: S311
    sizes = [2**i for i in range(batch_sizes)]

    def noise(low: float, high: float) -> float:
        return random.uniform(low, high)

    def interval(low: float, high: float) -> Interval:
        mean = noise(low, high)
        return Interval(mean=mean, half_width=mean * noise(0.001, 0.06))

    def arm_loop(index: int) -> ArmLoop:
        rows = tuple(
            Row(first=row.first, last=row.last, k=max(row.k - index, 0)) if i > 6 else row
            for i, row in enumerate(table)
        )
        arms = (
            Arm(kind="None"),
            Arm(kind="Table", rows=table),
            Arm(kind="Table", rows=rows),
            Arm(kind="Static", k=3),
            Arm(kind="Adaptive", k=ks - 1),
        )
        return ArmLoop(
            arm=arms[index],
            points=points(),
            live=index == 2,
        )

    def single(k: int) -> ArmLoop:
        return ArmLoop(arm=Arm(kind="Table", rows=(Row(first=1, last=sizes[-1], k=k),)), points=points(), live=True)

    def points() -> tuple[LoopPoint, ...]:
        return tuple(
            LoopPoint(concurrency=3 * i + 1, tokens_per_second=interval(20, 20000), ttft_ms=noise(10, 3000))
            for i in range(12)
        )

    def graphs(strides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(random.sample(range(1, 1024), 60))) if ragged else strides

    table = tuple(Row(first=1 if i == 0 else sizes[i - 1] + 1, last=size, k=i % ks) for i, size in enumerate(sizes))
    cells = [
        Cell(batch_size=size, k=k, itl_ms=noise(1, 900), spread=noise(0.001, 0.06), blocks=random.randint(4, 400))
        for size in sizes
        for k in range(ks)
    ]
    for index in range(skipped):
        cells[-1 - index] = Cell(batch_size=cells[-1 - index].batch_size, k=cells[-1 - index].k, skipped="does not fit")
    return Profile(
        key="specserve-0123456789ab",
        measured_at=dt.datetime(2026, 11, 3, 14, 15, 16, tzinfo=dt.timezone.utc),
        measurements=Measurements(
            engine_version="0.33.0rc1.dev123+g0123456",
            device="NVIDIA H100 80GB HBM3",
            scheduler="async",
            graph_sizes=graphs((1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))),
            grid=tuple(cells),
            levels=tuple(
                Level(
                    batch_size=size,
                    half_width=noise(0.001, 0.06),
                    cohorts=random.randint(2, 60),
                    dropped_steps=random.randint(0, 900),
                    stopped=random.choice(("Known", "Budget")),
                )
                for size in sizes
            ),
            acceptance=tuple(
                Acceptance(
                    k=k,
                    acceptance_length=interval(1, 5),
                    here=noise(0.001, 0.1),
                    prompts=random.randint(60, 80),
                    by_position=tuple(noise(0.01, 0.9) for _ in range(k)),
                )
                for k in range(ks)
            ),
            contrasts=tuple(
                AcceptanceContrast(k=other, other=k, half_width=noise(0.002, 0.05))
                for k, other in combinations(range(ks), 2)
            ),
            spot_check=SpotCheck(k=ks - 1, batch_size=sizes[-1], ratio=interval(0.95, 1.05)),
            baseline=tuple(
                BaselineCell(batch_size=size, itl_ms=interval(1, 900), blocks=random.randint(4, 99)) for size in sizes
            ),
            boot_drift=0.0317,
            boot_drift_measured=True,
            loops=(*map(arm_loop, range(loops)), *map(single, range(live))),
            mean_context_tokens=noise(100, 9000),
            distinct_prompts=80,
            seconds={
                stage: noise(1, 900) for stage in ("bootBaseline", "baseline", "boot", "acceptance", "grid", "total")
            },
        ),
        decision=Decision(
            verdict="Dynamic",
            reason="In the closed loop the table has 1.43 times the tokens/s of no speculation (± 2%).",
            table=table,
            static_k=3,
            capture_sizes=graphs(tuple(sorted({size * 4 for size in (1, 2, 4, *range(8, 129, 8))} | {51, 77, 201}))),
            speedups=tuple(
                Speedup(
                    batch_size=size,
                    over_baseline=noise(0.9, 3),
                    half_width=noise(0.001, 0.06),
                    over_static=noise(1, 2),
                    verified=True,
                )
                for size in [3 * i + 1 for i in range(12)] or sizes
            ),
            warnings=warnings,
        ),
    )


def test_the_largest_profile_fits_with_every_cell_interval_and_count() -> None:
    """16 batch sizes, 9 K, three arms at 12 points each: nothing but digits is lost."""
    worst = profile(16, 9, warnings=WARNINGS, loops=3)

    text = encode(worst)
    found = decode(text)

    assert len(text.encode()) <= LIMIT == 3000
    assert isinstance(found, Profile)
    before, after = worst.measurements, found.measurements
    assert len(after.grid) == 144
    for was, cell in zip(before.grid, after.grid, strict=True):
        assert (cell.batch_size, cell.k, cell.blocks) == (was.batch_size, was.k, was.blocks)
        assert cell.itl_ms == pytest.approx(was.itl_ms, rel=5e-4)
        assert was.spread <= cell.spread <= 1.1 * was.spread
    assert [len(loop.points) for loop in after.loops] == [12, 12, 12]
    assert [loop.arm for loop in after.loops] == [loop.arm for loop in before.loops]
    assert after.graph_sizes == before.graph_sizes and after.device == "NVIDIA H100 80GB HBM3"
    assert [level.stopped for level in after.levels] == [level.stopped for level in before.levels]
    assert [level.dropped_steps for level in after.levels] == [level.dropped_steps for level in before.levels]
    assert [(entry.k, entry.other) for entry in after.contrasts] == [(e.k, e.other) for e in before.contrasts]
    assert found.decision.table == worst.decision.table
    assert found.decision.capture_sizes == worst.decision.capture_sizes
    assert found.decision.warnings == WARNINGS
    assert len(after.acceptance[8].by_position) == 8


@pytest.mark.parametrize(("loops", "live", "warnings"), [(3, 0, 16), (5, 17, 0)])
def test_the_largest_profile_that_may_be_asked_for_leaves_the_pod(loops: int, live: int, warnings: int) -> None:
    """16 batch sizes, 17 K, graphs without a stride; every arm of ``verify: Full`` and every K followed live."""
    worst = profile(16, 17, warnings=WARNINGS, loops=loops, live=live, ragged=True, skipped=9)

    text = encode(worst)
    found = decode(text)

    assert len(text.encode()) <= LIMIT
    assert isinstance(found, Profile)
    before, after = worst.measurements, found.measurements
    assert len(before.contrasts) == 136 and len(after.grid) == 272
    for was, cell in zip(before.grid, after.grid, strict=True):
        assert (cell.batch_size, cell.k, cell.skipped) == (was.batch_size, was.k, was.skipped)
        assert cell.itl_ms == (None if was.itl_ms is None else pytest.approx(was.itl_ms, rel=5e-3))
        assert cell.blocks == pytest.approx(was.blocks, rel=0.05)
        assert was.spread <= cell.spread
    kept = [loop for loop in before.loops if not loop.live]
    assert [loop.arm for loop in after.loops] == [loop.arm for loop in kept]
    assert [len(loop.points) for loop in after.loops] == [12] * len(kept)
    assert [entry.k for entry in after.acceptance] == list(range(17))
    assert after.graph_sizes == before.graph_sizes
    assert after.levels[15].cohorts == before.levels[15].cohorts and after.spot_check is not None
    assert found.decision.table == worst.decision.table
    assert found.decision.capture_sizes == worst.decision.capture_sizes
    assert found.decision.reason == worst.decision.reason
    assert len(found.decision.warnings) == warnings


def test_a_profile_with_a_reason_of_its_own_for_each_skipped_cell_leaves_the_pod() -> None:
    """17 K at large batch sizes are more tokens than a step takes, a different number in each cell."""
    worst = profile(16, 17, warnings=WARNINGS, loops=5, live=17, ragged=True)
    cells = [
        cell
        if index < 152
        else Cell(batch_size=cell.batch_size, k=cell.k, skipped=f"a step takes {1e5 + index:.0f} tokens, not 8192")
        for index, cell in enumerate(worst.measurements.grid)
    ]
    worst = worst.model_copy(update={"measurements": worst.measurements.model_copy(update={"grid": tuple(cells)})})

    text = encode(worst)
    found = decode(text)

    assert len(text.encode()) <= LIMIT
    assert isinstance(found, Profile)
    skipped = [cell.skipped for cell in found.measurements.grid if cell.skipped]
    assert len(skipped) == 120 and all(reason.startswith("a step take") for reason in skipped)


def test_every_contrast_travels_as_a_run_writes_them_and_as_nobody_does() -> None:
    usual = profile(6, 6)
    odd = usual.model_copy(
        update={"measurements": usual.measurements.model_copy(update={"contrasts": usual.measurements.contrasts[3:]})}
    )
    for original in (usual, odd):
        found = decode(encode(original))

        assert isinstance(found, Profile)
        assert [(entry.k, entry.other) for entry in found.measurements.contrasts] == [
            (entry.k, entry.other) for entry in original.measurements.contrasts
        ]


def test_a_ratio_without_its_contrast_is_known_no_better_than_with_it() -> None:
    original = profiles_sample.profile()
    form = next(form for form in FORMS if not form.contrasts)
    found = unpack(json.loads(json.dumps(pack(original, form))))

    assert found.measurements.contrasts == ()
    evidence = [Evidence.of(entry.measurements, 256) for entry in (original, found)]
    before, after = (entry.log_ratio(16, 3, 2) for entry in evidence)
    assert after.half_width >= before.half_width


def test_what_does_not_fit_gives_up_loops_before_digits_of_means_and_those_before_words_and_never_a_cell() -> None:
    warning = "Batch size 1 is known to no better than 10 %: measure longer."
    worst = profile(16, 9, loops=3, warnings=(warning,))
    found = [unpack(json.loads(json.dumps(pack(worst, form)))) for form in FORMS]

    assert all(len(p.measurements.grid) == 144 for p in found)
    assert [len(p.measurements.acceptance[8].by_position) for p in found] == [8] * 3 + [0] * 10
    assert [bool(p.measurements.seconds) for p in found] == [True] * 4 + [False] * 9
    assert [len(p.measurements.loops) for p in found] == [3] * 5 + [2] * 8
    assert [p.measurements.grid[0].itl_ms == found[0].measurements.grid[0].itl_ms for p in found] == [True] * 6 + [
        False
    ] * 7
    assert [len(p.measurements.contrasts) for p in found] == [36] * 7 + [0] * 6
    assert [p.decision.warnings for p in found] == [(warning,)] * 9 + [(warning[:39] + "…",)] + [()] * 3
    assert [p.measurements.grid[0].blocks == worst.measurements.grid[0].blocks for p in found] == [True] * 11 + [
        False
    ] * 2
    assert {p.decision.reason for p in found} == {worst.decision.reason}
    sizes = [len(encode(worst, limit)) for limit in (3000, 2700, 2500, 2200)]
    assert sizes == sorted(sizes, reverse=True)
    with pytest.raises(ValueError, match="does not fit into 1000 bytes"):
        encode(worst, 1000)


def test_an_ordinary_profile_keeps_four_digits_words_and_skipped_cells() -> None:
    original = profile(6, 6, warnings=("the last row is extended from 32 to 64",), skipped=2, loops=2)

    found = decode(encode(original))

    assert isinstance(found, Profile)
    assert found.key == original.key and found.measured_at == original.measured_at
    assert found.decision.reason == original.decision.reason
    assert found.decision.warnings == ("the last row is extended from 32 to 64",)
    assert [cell.skipped for cell in found.measurements.grid[-3:]] == [None, "does not fit", "does not fit"]
    assert found.measurements.grid[0].itl_ms == pytest.approx(original.measurements.grid[0].itl_ms, rel=5e-4)
    assert found.measurements.seconds["total"] == pytest.approx(original.measurements.seconds["total"], rel=5e-3)
    assert found.measurements.acceptance[5].by_position == pytest.approx(
        original.measurements.acceptance[5].by_position, abs=5e-4
    )
    assert found.measurements.boot_drift == 0.032 and found.measurements.boot_drift_measured
    assert found.measurements.spot_check is not None and found.measurements.spot_check.batch_size == 32


def test_no_interval_gets_narrower_on_the_way() -> None:
    original = profile(16, 9, loops=3)
    for form in FORMS:
        found = unpack(json.loads(json.dumps(pack(original, form))))
        for was, cell in zip(original.measurements.grid, found.measurements.grid, strict=True):
            assert cell.spread >= was.spread


def test_what_was_asked_for_stays_behind() -> None:
    with_request = profile(6, 6).model_copy(update={"request": asked()})

    assert encode(with_request) == encode(profile(6, 6))


@settings(max_examples=60, deadline=None)
@given(any_measurements())
def test_every_profile_comes_back_up_to_rounding(case: tuple[Measurements, int]) -> None:
    measured, max_num_seqs = case
    original = profile(1, 1).model_copy(update={"measurements": measured, "decision": decide(measured, max_num_seqs)})

    text = encode(original)
    found = decode(text)

    assert isinstance(found, Profile)
    assert encode(found) == text
    assert [(c.batch_size, c.k, c.skipped) for c in found.measurements.grid] == [
        (c.batch_size, c.k, c.skipped) for c in measured.grid
    ]
    assert found.measurements.graph_sizes == measured.graph_sizes
    assert found.decision.table == original.decision.table
    assert found.decision.capture_sizes == original.decision.capture_sizes
    assert [s.over_baseline for s in found.decision.speedups] == pytest.approx(
        [s.over_baseline for s in original.decision.speedups], rel=5e-4
    )


@settings(max_examples=100, deadline=None)
@given(st.recursive(st.none() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=30))
def test_foreign_content_in_a_whole_message_is_refused_and_nothing_else(content: object) -> None:
    from specserve_profiler.contract.message import _frame

    body = base64.b85encode(zlib.compress(json.dumps(content).encode())).decode()
    with pytest.raises(TerminationError, match="does not hold a valid profile"):
        decode(_frame("profile", body))


def test_failure_stays_readable_and_comes_back_whole() -> None:
    failure = Failure(
        reason="EngineFailed", message="vLLM ended with exit code 1: ValueError: no such model. Check model.name."
    )

    text = encode(failure)

    assert "ValueError: no such model" in text
    assert decode(text) == failure


def test_failure_with_a_long_foreign_message_is_shortened_to_fit() -> None:
    failure = Failure(reason="EngineFailed", message="模型不存在" * 300)

    text = encode(failure)
    found = decode(text)

    assert len(text.encode()) <= LIMIT
    assert isinstance(found, Failure)
    assert found.message.startswith("模型不存在") and found.message.endswith("…")


def test_a_message_cut_short_says_how_much_arrived() -> None:
    text = encode(profile(6, 6))

    with pytest.raises(TerminationError, match=r"cut short: \d+ of \d+ bytes arrived") as caught:
        decode(text[:500])

    assert "sidecar" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        ("Traceback (most recent call last):\n  boom", "not from the profiler"),
        ("specserve:9:profile:3:0123456789ab:abc", "different releases"),
        (encode(Failure(reason="TimedOut", message="x"))[:-3] + '9"}', "altered"),
        (encode(Failure(reason="TimedOut", message="x")) + "more", "altered"),
    ],
)
def test_foreign_text_is_refused_with_the_reason(text: str, expected: str) -> None:
    with pytest.raises(TerminationError, match=expected):
        decode(text)


def test_a_whole_message_with_wrong_content_is_refused() -> None:
    from specserve_profiler.contract.message import _frame

    body = base64.b85encode(zlib.compress(json.dumps([1, 2, 3]).encode())).decode()
    with pytest.raises(TerminationError, match="does not hold a valid profile"):
        decode(_frame("profile", body))


def test_written_message_is_read_back(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "termination-log"
    path.write_text("something longer that was here before " * 500)
    failure = Failure(reason="Interrupted", message="The pod was asked to stop.")

    write(failure, path)

    assert read(path) == failure
