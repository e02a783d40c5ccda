"""Measurements as a test wants them, and measurements as hypothesis draws them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hypothesis import strategies as st

from specserve_profiler.contract.profile import (
    Acceptance,
    Arm,
    ArmLoop,
    BaselineCell,
    Cell,
    Decision,
    Interval,
    LoopPoint,
    Measurements,
    Row,
)
from specserve_profiler.contract.request import ProfileRequest

SIZES = (1, 2, 4, 8, 16, 32)


def measurements(
    itl: Mapping[tuple[int, int], float | str],
    al: Mapping[int, float],
    baseline: Mapping[int, float],
    error: float = 0.0,
    **fields: object,
) -> Measurements:
    """Cells are ITL in ms, or the reason for skipping them; ``error`` is the relative half-width of everything."""
    values = {
        "engine_version": "0.32.0",
        "scheduler": "sync",
        "grid": tuple(
            Cell(batch_size=b, k=k, skipped=value)
            if isinstance(value, str)
            else Cell(batch_size=b, k=k, itl_ms=value, spread=error, blocks=20)
            for (b, k), value in itl.items()
        ),
        "acceptance": tuple(
            Acceptance(k=k, acceptance_length=interval(mean, error) if k else Interval(mean=1), prompts=80)
            for k, mean in al.items()
        ),
        "baseline": tuple(
            BaselineCell(batch_size=b, itl_ms=interval(mean, error), blocks=20) for b, mean in baseline.items()
        ),
        "mean_context_tokens": 96,
    }
    return Measurements.model_validate({**values, **fields})


def engine(
    al: Mapping[int, float],
    cost: Callable[[int, int], float],
    sizes: Sequence[int] = SIZES,
    error: float = 0.0,
    **fields: object,
) -> Measurements:
    """A grid from a cost model in ms; the baseline is 10 % quicker than K = 0."""
    grid: dict[tuple[int, int], float | str] = {(b, k): cost(b, k) for b in sizes for k in al}
    return measurements(grid, al, {b: cost(b, 0) / 1.1 for b in sizes}, error, **fields)


def asked(**changes: object) -> ProfileRequest:
    """What a Job might be asked for, with ``changes`` of its fields (by alias)."""
    return ProfileRequest.model_validate(
        {
            "key": "specserve-0123456789ab",
            "model": "/no/such/model",
            "speculation": {"method": "ngram", "maxTokens": 2},
            "engine": {"maxNumSeqs": 8, "maxModelLen": 512},
            "workload": {"promptTokens": 32, "outputTokens": 64},
            "prompts": {"path": "/prompts.jsonl"},
            "batchSizes": [1, 8],
            "measureSeconds": 20,
            "timeoutSeconds": 280,
            **changes,
        }
    )


def interval(mean: float, relative: float = 0.0) -> Interval:
    """An interval by its relative half-width."""
    return Interval(mean=mean, half_width=relative * mean)


def table(*rows: tuple[int, int, int]) -> tuple[Row, ...]:
    """Rows of (first, last, K)."""
    return tuple(Row(first=first, last=last, k=k) for first, last, k in rows)


def triples(rows: Sequence[Row]) -> list[tuple[int, int, int]]:
    """Rows as (first, last, K)."""
    return [(row.first, row.last, row.k) for row in rows]


def rows(decision: Decision) -> list[tuple[int, int, int]]:
    """The table of a decision as (first, last, K)."""
    return triples(decision.table)


def loop(arm: Arm, rates: Mapping[int, float], error: float = 0.01, ttft_ms: float = 20, **fields: object) -> ArmLoop:
    """A closed loop by concurrency -> tokens per second."""
    points = tuple(
        LoopPoint(concurrency=at, tokens_per_second=interval(rate, error), ttft_ms=ttft_ms)
        for at, rate in rates.items()
    )
    return ArmLoop.model_validate({"arm": arm, "points": points, **fields})


NONE = Arm(kind="None")


def static(k: int) -> Arm:
    """One K at every batch size."""
    return Arm(kind="Static", k=k)


def table_arm(*rows: tuple[int, int, int]) -> Arm:
    """A table as an arm."""
    return Arm(kind="Table", rows=table(*rows))


@st.composite
def any_measurements(draw: st.DrawFn) -> tuple[Measurements, int]:
    """Well-formed measurements of an engine without any order in it, and a maxNumSeqs."""
    sizes = sorted(draw(st.sets(st.integers(1, 300), min_size=1, max_size=6)))
    ks = sorted(draw(st.sets(st.integers(0, 8), min_size=1, max_size=5)))
    positive = st.floats(0.5, 500, allow_nan=False)
    al = {k: 1.0 if k == 0 else draw(st.floats(1.0, k + 1.0)) for k in ks}
    grid: dict[tuple[int, int], float | str] = {}
    for size in sizes:
        runs = draw(st.integers(1, len(ks)))
        grid |= {(size, k): draw(positive) if i < runs else "does not fit" for i, k in enumerate(ks)}
    baseline = {size: draw(positive) for size in sizes}
    graphs = tuple(sorted(draw(st.sets(st.integers(1, 600), max_size=12))))
    measured = measurements(
        grid, al, baseline, draw(st.floats(0, 0.3)), graph_sizes=graphs, boot_drift=draw(st.floats(0, 0.1))
    )
    return measured, sizes[-1] + draw(st.integers(0, 40))
