"""A profile as a short list of numbers, and back. Pure.

Positional, and by columns: like numbers stand together, which is what deflate needs. Numbers are rounded as far as a
``Precision`` says. Half-widths are rounded up, so that no interval gets narrower on the way.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, combinations, pairwise, product
from typing import Any

from specserve_profiler.contract.precision import Precision
from specserve_profiler.contract.profile import (
    Acceptance,
    AcceptanceContrast,
    Arm,
    ArmLoop,
    BaselineCell,
    Cell,
    Decision,
    Interval,
    Level,
    LoopPoint,
    Measurements,
    Profile,
    Row,
    Speedup,
    SpotCheck,
)

_VERDICTS = ("Dynamic", "Static", "None", "Adaptive")
_SCHEDULERS = ("sync", "async")
_KINDS = ("None", "Static", "Table", "Adaptive")
_STOPPED = ("Known", "Budget")
_UNITS = tuple(10**decimals for decimals in range(5))
_REASON = 200
"""Characters that the reason of a verdict keeps in every form: people read it before anything else."""


def pack(profile: Profile, precision: Precision) -> list[Any]:
    """The profile without its ``request``."""
    return _Packer(precision).profile(profile)


def unpack(packed: list[Any]) -> Profile:
    """What ``pack`` packed. Raises any error for anything else: it builds nothing longer than ``packed``."""
    schema, key, measured_at, measured, decision = packed
    return Profile(
        schema_version=schema,
        key=key,
        measured_at=dt.datetime.fromtimestamp(measured_at, dt.timezone.utc),
        measurements=_measurements(measured),
        decision=_decision(decision),
    )


class _Packer:
    def __init__(self, precision: Precision) -> None:
        self._precision = precision

    def profile(self, profile: Profile) -> list[Any]:
        return [
            profile.schema_version,
            profile.key,
            int(profile.measured_at.timestamp()),
            self._measurements(profile.measurements, profile.decision.table),
            self._decision(profile.decision),
        ]

    def _measurements(self, m: Measurements, served: Sequence[Row]) -> list[Any]:
        spot = m.spot_check
        return [
            m.engine_version,
            m.device,
            _SCHEDULERS.index(m.scheduler),
            _gaps(m.graph_sizes),
            self._grid(m.grid),
            [
                [level.batch_size for level in m.levels],
                self._errors(level.half_width for level in m.levels),
                [level.cohorts for level in m.levels],
                [level.dropped_steps for level in m.levels],
                [_STOPPED.index(level.stopped) for level in m.levels],
            ],
            [
                [entry.k for entry in m.acceptance],
                *self._intervals(entry.acceptance_length for entry in m.acceptance),
                self._errors(entry.here for entry in m.acceptance),
                [entry.prompts for entry in m.acceptance],
                [self._rates(entry.by_position) for entry in m.acceptance],
            ],
            self._contrasts(m),
            [] if spot is None else [spot.k, spot.batch_size, *self._intervals([spot.ratio])],
            [
                [cell.batch_size for cell in m.baseline],
                *self._intervals(cell.itl_ms for cell in m.baseline),
                [cell.blocks for cell in m.baseline],
            ],
            [self._error(m.boot_drift), int(m.boot_drift_measured)],
            [self._loop(loop) for loop in m.loops if self._precision.live or not _judges_only(loop, served)],
            [_rounded(m.mean_context_tokens, 4), m.distinct_prompts],
            [[stage, _rounded(value, 3)] for stage, value in m.seconds.items()] if self._precision.seconds else [],
        ]

    def _grid(self, cells: Sequence[Cell]) -> list[Any]:
        """Axes, places where they are not all of the product in order, reasons, then a column each.

        In the column of ITL a skipped cell has the negative number of its reason, from -1.
        """
        places = [(cell.batch_size, cell.k) for cell in cells]
        sizes, ks = sorted({size for size, _ in places}), sorted({k for _, k in places})
        skipped = [None if cell.skipped is None else self._short(cell.skipped) for cell in cells]
        reasons = list(dict.fromkeys(reason for reason in skipped if reason is not None))
        return [
            sizes,
            ks,
            [] if places == list(product(sizes, ks)) else _flat(places),
            reasons,
            [
                -1 - reasons.index(reason) if reason is not None else self._mean(cell.itl_ms or 0.0)
                for cell, reason in zip(cells, skipped, strict=True)
            ],
            self._errors(cell.spread for cell in cells),
            [self._blocks(cell.blocks) for cell in cells],
        ]

    def _contrasts(self, m: Measurements) -> list[Any]:
        """Pairs of K and half-widths; no pairs where they are all of those with an acceptance, in order."""
        kept = m.contrasts if self._precision.contrasts else ()
        pairs = [(entry.k, entry.other) for entry in kept]
        return [
            [] if pairs == _every_pair([entry.k for entry in m.acceptance]) else _flat(pairs),
            self._errors(entry.half_width for entry in kept),
        ]

    def _loop(self, loop: ArmLoop) -> list[Any]:
        return [
            _KINDS.index(loop.arm.kind),
            loop.arm.k,
            _flat((row.first, row.last, row.k) for row in loop.arm.rows),
            [point.concurrency for point in loop.points],
            *self._intervals(point.tokens_per_second for point in loop.points),
            [_rounded(point.ttft_ms, 3) for point in loop.points],
            None if loop.failed is None else self._short(loop.failed),
            int(loop.live),
        ]

    def _decision(self, decision: Decision) -> list[Any]:
        return [
            _VERDICTS.index(decision.verdict),
            self._short(decision.reason, at_least=_REASON),
            _flat((row.first, row.last, row.k) for row in decision.table),
            decision.static_k,
            _gaps(decision.capture_sizes),
            [
                [entry.batch_size for entry in decision.speedups],
                [_rounded(entry.over_baseline, self._precision.mean) for entry in decision.speedups],
                self._errors(entry.half_width for entry in decision.speedups),
                [_rounded(entry.over_static, self._precision.mean) for entry in decision.speedups],
                [int(entry.verified) for entry in decision.speedups],
            ],
            [self._short(warning) for warning in decision.warnings] if self._precision.warnings else [],
        ]

    def _mean(self, value: float) -> float | int:
        return _rounded(value, self._precision.mean)

    def _blocks(self, value: int) -> float | int:
        return value if self._precision.blocks is None else _rounded(value, self._precision.blocks)

    def _error(self, value: float) -> float | int:
        return _rounded_up(value, self._precision.error)

    def _errors(self, values: Iterable[float]) -> list[float | int]:
        return [self._error(value) for value in values]

    def _intervals(self, intervals: Iterable[Interval]) -> tuple[list[float | int], list[float | int]]:
        entries = list(intervals)
        return [self._mean(entry.mean) for entry in entries], self._errors(entry.half_width for entry in entries)

    def _rates(self, rates: Sequence[float]) -> list[int]:
        """Rates as whole numbers; the first says their decimals."""
        decimals = self._precision.rates
        return [decimals, *(round(rate * 10**decimals) for rate in rates)] if decimals and rates else []

    def _short(self, text: str, at_least: int = 0) -> str:
        words = max(self._precision.words, at_least)
        return text if len(text) <= words else text[: words - 1] + "…"


def _judges_only(loop: ArmLoop, served: Sequence[Row]) -> bool:
    """Whether a table was followed only to judge the edges of the one that is served."""
    return loop.live and loop.arm.rows != served


def _every_pair(ks: Sequence[int]) -> list[tuple[int, int]]:
    """All pairs of some K, the later one first, as a run writes them."""
    return [(other, k) for k, other in combinations(ks, 2)]


def _measurements(packed: list[Any]) -> Measurements:
    (version, device, scheduler, graphs, grid, levels, acceptance, contrasts, spot) = packed[:9]
    (baseline, drift, loops, rest, seconds) = packed[9:]
    context, prompts = rest
    pairs, errors = contrasts
    known: Sequence[Sequence[int]] = _chunks(pairs, 2)
    if errors and not pairs:
        _expect(math.comb(len(acceptance[0]), 2), errors)
        known = _every_pair(acceptance[0])
    return Measurements(
        engine_version=version,
        device=device,
        scheduler=_SCHEDULERS[scheduler],
        graph_sizes=_ungapped(graphs),
        grid=tuple(_cells(*grid)),
        levels=tuple(
            Level(batch_size=size, half_width=error, cohorts=n, dropped_steps=dropped, stopped=_STOPPED[stopped])
            for size, error, n, dropped, stopped in zip(*levels, strict=True)
        ),
        acceptance=tuple(
            Acceptance(
                k=k,
                acceptance_length=Interval(mean=mean, half_width=error),
                here=here,
                prompts=n,
                by_position=tuple(rate / _UNITS[rates[0]] for rate in rates[1:]),
            )
            for k, mean, error, here, n, rates in zip(*acceptance, strict=True)
        ),
        contrasts=tuple(
            AcceptanceContrast(k=k, other=other, half_width=error)
            for (k, other), error in zip(known, errors, strict=True)
        ),
        spot_check=None if not spot else SpotCheck(k=spot[0], batch_size=spot[1], ratio=_interval(*spot[2:])),
        baseline=tuple(
            BaselineCell(batch_size=size, itl_ms=Interval(mean=mean, half_width=error), blocks=blocks)
            for size, mean, error, blocks in zip(*baseline, strict=True)
        ),
        boot_drift=drift[0],
        boot_drift_measured=bool(drift[1]),
        loops=tuple(_unpacked_loop(*loop) for loop in loops),
        mean_context_tokens=context,
        distinct_prompts=prompts,
        seconds=dict(seconds),
    )


def _cells(
    sizes: list[int],
    ks: list[int],
    places: list[int],
    reasons: list[str],
    itl: list[float],
    spreads: list[float],
    blocks: list[int],
) -> Iterator[Cell]:
    if not places:
        _expect(len(sizes) * len(ks), itl)  # before there are so many
    pairs = _chunks(places, 2) if places else list(product(sizes, ks))
    for (size, k), value, spread, n in zip(pairs, itl, spreads, blocks, strict=True):
        skipped = reasons[-1 - int(value)] if value < 0 else None
        itl_ms = value if skipped is None else None
        yield Cell(batch_size=size, k=k, itl_ms=itl_ms, spread=spread, blocks=n, skipped=skipped)


def _unpacked_loop(
    kind: int,
    k: int | None,
    rows: list[int],
    concurrencies: list[int],
    means: list[float],
    errors: list[float],
    ttft: list[float],
    failed: str | None,
    live: int,
) -> ArmLoop:
    return ArmLoop(
        arm=Arm(kind=_KINDS[kind], k=k, rows=_rows(rows)),
        points=tuple(
            LoopPoint(concurrency=at, tokens_per_second=Interval(mean=mean, half_width=error), ttft_ms=ms)
            for at, mean, error, ms in zip(concurrencies, means, errors, ttft, strict=True)
        ),
        failed=failed,
        live=bool(live),
    )


def _decision(packed: list[Any]) -> Decision:
    verdict, reason, rows, static_k, sizes, speedups, warnings = packed
    return Decision(
        verdict=_VERDICTS[verdict],
        reason=reason,
        table=_rows(rows),
        static_k=static_k,
        capture_sizes=_ungapped(sizes),
        speedups=tuple(
            Speedup(batch_size=size, over_baseline=base, half_width=error, over_static=static, verified=bool(verified))
            for size, base, error, static, verified in zip(*speedups, strict=True)
        ),
        warnings=tuple(warnings),
    )


def _expect(length: int, column: Sequence[Any]) -> None:
    if length != len(column):
        raise ValueError(f"{len(column)} values where {length} belong")


def _interval(means: list[float], errors: list[float]) -> Interval:
    return Interval(mean=means[0], half_width=errors[0])


def _rows(numbers: list[int]) -> tuple[Row, ...]:
    return tuple(Row(first=first, last=last, k=k) for first, last, k in _chunks(numbers, 3))


def _rounded(value: float, digits: int) -> float | int:
    """To so many significant digits; whole numbers without a point."""
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _rounded_up(value: float, digits: int) -> float | int:
    """Not less than ``value``, which is not negative."""
    rounded = _rounded(value, digits)
    if rounded >= value:
        return rounded
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return _rounded(rounded + unit, digits)


def _gaps(sizes: Sequence[int]) -> list[int]:
    """Increasing numbers as the step to each from the one before: strides repeat, which is what deflate needs."""
    return [after - before for before, after in pairwise((0, *sizes))]


def _ungapped(gaps: list[int]) -> tuple[int, ...]:
    return tuple(accumulate(gaps))


def _flat(groups: Iterable[Sequence[int]]) -> list[int]:
    return [number for group in groups for number in group]


def _chunks(numbers: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return list(zip(*(numbers[start::size] for start in range(size)), strict=True))
