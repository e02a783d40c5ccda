"""A result leaves the pod through at most 3,000 bytes, and half of it is never taken for a whole one."""

import base64
import datetime as dt
import json
import zlib

import pytest

from specserve_profiler.contract import (
    Acceptance,
    BaselineCell,
    Cell,
    Decision,
    Failure,
    Interval,
    Measurements,
    Profile,
    Row,
    Speedup,
)
from specserve_profiler.termination import LIMIT, TerminationError, decode, encode, read, write


def profile(batch_sizes: int, ks: int, *, warnings: tuple[str, ...] = (), skipped: int = 0) -> Profile:
    """A profile whose numbers have no pattern that a compressor could use."""
    state = 12345

    def noise(low: float, high: float) -> float:
        nonlocal state
        state = (state * 1103515245 + 12345) % 2**31
        return low + (high - low) * state / 2**31

    sizes = [2**i for i in range(batch_sizes)]
    cells = [
        Cell(
            batch_size=size,
            k=k,
            itl_ms=Interval(mean=noise(1, 900), half_width=noise(0.01, 30)),
            blocks=int(noise(4, 400)),
        )
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
            scheduler="async",
            grid=tuple(cells),
            acceptance=tuple(
                Acceptance(k=k, acceptance_length=Interval(mean=noise(1, 5), half_width=noise(0.01, 0.2)), prompts=80)
                for k in range(ks)
            ),
            baseline=tuple(
                BaselineCell(
                    batch_size=size,
                    itl_ms=Interval(mean=noise(1, 900), half_width=noise(0.01, 9)),
                    blocks=int(noise(4, 99)),
                )
                for size in sizes
            ),
            mean_context_tokens=noise(100, 9000),
            seconds={
                stage: noise(1, 900) for stage in ("bootBaseline", "baseline", "boot", "acceptance", "grid", "total")
            },
        ),
        decision=Decision(
            verdict="Dynamic",
            reason="The table has 1.43 times the goodput of no speculation and 1.12 times that of the best single K.",
            table=tuple(
                Row(first=1 if i == 0 else sizes[i - 1] + 1, last=size, k=i % ks) for i, size in enumerate(sizes)
            ),
            static_k=3,
            speedups=tuple(
                Speedup(batch_size=size, over_baseline=noise(0.9, 3), over_static=noise(1, 2)) for size in sizes
            ),
            warnings=warnings,
        ),
    )


def test_largest_grid_fits_with_every_cell_interval_and_count() -> None:
    warnings = tuple(
        f"Batch size {2**i}: the interval of the ITL is wider than 10 %; measure longer." for i in range(16)
    )
    worst = profile(16, 9, warnings=warnings)

    text = encode(worst)
    found = decode(text)

    assert len(text.encode()) <= LIMIT == 3000
    assert isinstance(found, Profile)
    assert len(found.measurements.grid) == 144
    for before, after in zip(worst.measurements.grid, found.measurements.grid, strict=True):
        assert before.itl_ms is not None and after.itl_ms is not None
        assert (after.batch_size, after.k, after.blocks) == (before.batch_size, before.k, before.blocks)
        assert after.itl_ms.mean == pytest.approx(before.itl_ms.mean, rel=5e-3)
        assert after.itl_ms.half_width == pytest.approx(before.itl_ms.half_width, rel=0.35)
    assert found.decision.table == worst.decision.table
    assert [cell.blocks for cell in found.measurements.baseline] == [
        cell.blocks for cell in worst.measurements.baseline
    ]
    assert [s.batch_size for s in found.decision.speedups] == [s.batch_size for s in worst.decision.speedups]


def test_ordinary_profile_keeps_four_digits_words_and_skipped_cells() -> None:
    original = profile(6, 6, warnings=("the last row is extended from 32 to 64",), skipped=2)

    found = decode(encode(original))

    assert isinstance(found, Profile)
    assert found.key == original.key and found.measured_at == original.measured_at
    assert found.decision.reason == original.decision.reason
    assert found.decision.warnings == ("the last row is extended from 32 to 64",)
    assert [cell.skipped for cell in found.measurements.grid[-3:]] == [None, "does not fit", "does not fit"]
    first, was = found.measurements.grid[0].itl_ms, original.measurements.grid[0].itl_ms
    assert first is not None and was is not None and first.mean == pytest.approx(was.mean, rel=5e-4)
    assert found.measurements.seconds["total"] == pytest.approx(original.measurements.seconds["total"], rel=5e-3)


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
    from specserve_profiler.termination import _frame

    body = base64.b85encode(zlib.compress(json.dumps([1, 2, 3]).encode())).decode()
    with pytest.raises(TerminationError, match="does not hold a valid profile"):
        decode(_frame("profile", body))


def test_written_message_is_read_back(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "termination-log"
    path.write_text("something longer that was here before " * 500)
    failure = Failure(reason="Interrupted", message="The pod was asked to stop.")

    write(failure, path)

    assert read(path) == failure
