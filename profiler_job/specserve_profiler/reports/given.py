"""Figures that somebody else measured, from a JSON or a CSV file, and their table. Pure but for reading the file.

JSON, with one row of ``itlMs`` a batch size and in it one value a K (null where the cell cannot run), acceptance either
as lengths by K or as unconditional rates by draft position, and the baseline if it is known:

    {"batchSizes": [1, 64], "draftTokens": [0, 3], "itlMs": [[6.5, 8.8], [7.8, 13.5]],
     "acceptancePerPosition": [0.68, 0.39, 0.2], "baselineItlMs": [6.2, 7.4]}

CSV, one cell a line in any order, a cell that cannot run left out; the acceptance length stands in at least one line of
each K above 0; the baseline is K ``none``:

    batch_size,k,itl_ms,acceptance_length
    1,none,6.2,
    1,0,6.5,
    1,3,8.8,2.28
    64,3,13.5,
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NoReturn

from specserve_profiler.contract.profile import Row
from specserve_profiler.decision.surface import Surface
from specserve_profiler.decision.table import TIE, best_rows, k_at

_COLUMNS = ("batch_size", "k", "itl_ms", "acceptance_length")
_FIELDS = (
    "batchSizes",
    "draftTokens",
    "itlMs",
    "acceptanceLength",
    "acceptancePerPosition",
    "baselineItlMs",
)
_BASELINE = "none"


class GridError(ValueError):
    """The file is no grid. The message names the field or the line, and the way out."""


@dataclass(frozen=True)
class GivenGrid:
    """Means without errors."""

    batch_sizes: tuple[int, ...]
    """Increasing."""
    draft_tokens: tuple[int, ...]
    """Every K of the grid, increasing."""
    itl_ms: tuple[tuple[float | None, ...], ...]
    """One tuple a batch size, one value a K; None for a cell that cannot run."""
    acceptance_length: tuple[float, ...] | None = None
    """One value a K; exactly one of this and the next is there."""
    acceptance_per_position: tuple[float, ...] | None = None
    """Unconditional rate of each draft position, at least up to the largest K."""
    baseline_itl_ms: tuple[float | None, ...] | None = None
    """One value a batch size."""

    def __post_init__(self) -> None:
        """Raises GridError for figures that make no grid."""
        _check_axis("batchSizes", self.batch_sizes, least=1)
        _check_axis("draftTokens", self.draft_tokens, least=0)
        _check_itl(self)
        _check_acceptance(self)
        if self.baseline_itl_ms is not None:
            _check_length("baselineItlMs", self.baseline_itl_ms, "batchSizes", self.batch_sizes)
            _check_positive("baselineItlMs", self.baseline_itl_ms)

    def surface(self, *, interpolate_k: bool = False) -> Surface:
        """Its goodputs. With ``interpolate_k`` each K between two of the grid has an ITL linear between theirs.

        So has its AL, unless acceptance is given by position.
        """
        first, last = self.draft_tokens[0], self.draft_tokens[-1]
        ks = tuple(range(first, last + 1)) if interpolate_k else self.draft_tokens
        itl = {
            (size, k): value
            for size, given in zip(self.batch_sizes, self.itl_ms, strict=True)
            for k in ks
            if (value := _between(dict(zip(self.draft_tokens, given, strict=True)), k)) is not None
        }
        return Surface({k: self._acceptance(k) for k in ks}, itl)

    def _acceptance(self, k: int) -> float:
        if self.acceptance_per_position is not None:
            return list(accumulate(self.acceptance_per_position, initial=1.0))[k]
        lengths = dict(zip(self.draft_tokens, self.acceptance_length or (), strict=True))
        value = _between(lengths, k)
        assert value is not None  # noqa: S101 - lengths are given for every K
        return value


def read_grid(path: Path) -> GivenGrid:
    """The grid in a file: CSV where its name says so, else JSON. Raises GridError; OSError where it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise GridError(f"{path} is no UTF-8 text: {error}") from error
    try:
        return parse_csv(text) if path.suffix.lower() == ".csv" else parse_json(text)
    except GridError as error:
        raise GridError(f"{path}: {error}") from error


def parse_json(text: str) -> GivenGrid:
    """The grid in a JSON text."""
    if not text.strip():
        raise GridError("the file is empty: it needs batchSizes, draftTokens, itlMs and acceptanceLength")
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise GridError(f"line {error.lineno}: no valid JSON: {error.msg} (column {error.colno})") from error
    if not isinstance(values, dict):
        raise GridError('a grid is a JSON object: {"batchSizes": [...], "draftTokens": [...], "itlMs": [[...]], ...}')
    unknown = sorted(set(values) - set(_FIELDS))
    if unknown:
        raise GridError(f"unknown field {', '.join(unknown)}: the fields are {', '.join(_FIELDS)}")
    missing = [name for name in _FIELDS[:3] if name not in values]
    if missing:
        raise GridError(f"{', '.join(missing)}: missing")
    return GivenGrid(
        batch_sizes=_integers("batchSizes", values["batchSizes"]),
        draft_tokens=_integers("draftTokens", values["draftTokens"]),
        itl_ms=tuple(_numbers(f"itlMs[{i}]", row) for i, row in enumerate(_list("itlMs", values["itlMs"]))),
        acceptance_length=_present("acceptanceLength", values.get("acceptanceLength")),
        acceptance_per_position=_present("acceptancePerPosition", values.get("acceptancePerPosition")),
        baseline_itl_ms=_numbers("baselineItlMs", values["baselineItlMs"]) if values.get("baselineItlMs") else None,
    )


def parse_csv(text: str) -> GivenGrid:
    """The grid in a CSV text."""
    lines = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    columns = [name.strip() for name in lines.fieldnames or ()]
    if set(columns) not in ({*_COLUMNS}, {*_COLUMNS[:3]}) or len(columns) != len(set(columns)):
        raise GridError(f"line 1: the columns are {','.join(_COLUMNS)}; found {','.join(columns) or 'nothing'}")
    lines.fieldnames = columns
    cells: dict[tuple[int, int], float] = {}
    baseline: dict[int, float] = {}
    lengths: dict[int, float] = {}
    for line in lines:
        where = f"line {lines.line_num}"
        _read_line(where, line, cells, baseline, lengths)
    if not cells:
        raise GridError("no cell: the file needs one line for each batch size and K")
    sizes, ks = sorted({size for size, _ in cells}), sorted({k for _, k in cells})
    lengths.setdefault(0, 1.0)
    missing = [str(k) for k in ks if k not in lengths]
    if missing:
        raise GridError(f"acceptance_length: missing for K = {', '.join(missing)}; give it in one line of each K")
    return GivenGrid(
        batch_sizes=tuple(sizes),
        draft_tokens=tuple(ks),
        itl_ms=tuple(tuple(cells.get((size, k)) for k in ks) for size in sizes),
        acceptance_length=tuple(lengths[k] for k in ks),
        baseline_itl_ms=tuple(baseline.get(size) for size in sizes) if baseline else None,
    )


def _read_line(
    where: str,
    line: Mapping[str | None, Any],
    cells: dict[tuple[int, int], float],
    baseline: dict[int, float],
    lengths: dict[int, float],
) -> None:
    if None in line:
        raise GridError(f"{where}: more values than columns")
    size = _whole(f"{where}: batch_size", line["batch_size"], least=1)
    itl = _above_zero(f"{where}: itl_ms", line["itl_ms"])
    if (line["k"] or "").strip().lower() == _BASELINE:
        if baseline.setdefault(size, itl) != itl:
            raise GridError(f"{where}: the baseline of batch size {size} is given twice; keep one line")
        return
    k = _whole(f"{where}: k", line["k"], least=0)
    if (size, k) in cells:
        raise GridError(f"{where}: batch size {size}, K = {k} is given twice; keep one line, or its mean")
    cells[size, k] = itl
    if (line.get("acceptance_length") or "").strip():
        length = _above_zero(f"{where}: acceptance_length", line["acceptance_length"])
        if lengths.setdefault(k, length) != length:
            raise GridError(f"{where}: acceptance_length of K = {k} was {lengths[k]:g} before; one K has one")


def _check_axis(name: str, values: Sequence[int], least: int) -> None:
    if not values:
        raise GridError(f"{name}: empty")
    if values[0] < least:
        raise GridError(f"{name}: {values[0]} is below {least}")
    for before, after in pairwise(values):
        if after <= before:
            raise GridError(f"{name}: {after} comes after {before}; they must increase, each once")


def _check_itl(grid: GivenGrid) -> None:
    _check_length("itlMs", grid.itl_ms, "batchSizes", grid.batch_sizes)
    for index, row in enumerate(grid.itl_ms):
        _check_length(f"itlMs[{index}]", row, "draftTokens", grid.draft_tokens)
        _check_positive(f"itlMs[{index}]", row)
        if all(value is None for value in row):
            raise GridError(f"itlMs[{index}]: no K runs at batch size {grid.batch_sizes[index]}; leave it out")


def _check_acceptance(grid: GivenGrid) -> None:
    lengths, rates = grid.acceptance_length, grid.acceptance_per_position
    if (lengths is None) == (rates is None):
        raise GridError("give exactly one of acceptanceLength (one a K) and acceptancePerPosition (one a position)")
    if lengths is not None:
        _check_length("acceptanceLength", lengths, "draftTokens", grid.draft_tokens)
        for k, length in zip(grid.draft_tokens, lengths, strict=True):
            if not 1 <= length <= k + 1:
                raise GridError(
                    f"acceptanceLength: {length:g} at K = {k} is outside 1 to {k + 1}; "
                    "it counts the token of the target itself: 1 + accepted drafts"
                )
    if rates is not None:
        _check_rates(rates, grid.draft_tokens[-1])


def _check_rates(rates: Sequence[float], kmax: int) -> None:
    if len(rates) < kmax:
        raise GridError(f"acceptancePerPosition: {len(rates)} rates, but draftTokens goes to {kmax}: one a position")
    for index, rate in enumerate(rates):
        if not 0 <= rate <= 1:
            raise GridError(f"acceptancePerPosition[{index}]: {rate:g} is outside 0 to 1")
        if index and rate > rates[index - 1]:
            raise GridError(
                f"acceptancePerPosition[{index}]: {rate:g} is above the one before; rates are unconditional: "
                "multiply conditional ones up"
            )


def _check_length(name: str, values: Sequence[object], other: str, expected: Sequence[object]) -> None:
    if len(values) != len(expected):
        raise GridError(f"{name}: {len(values)} values, but {other} has {len(expected)}")


def _check_positive(name: str, values: Sequence[float | None]) -> None:
    for index, value in enumerate(values):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise GridError(f"{name}[{index}]: {value:g} is no duration; give milliseconds above 0")


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise GridError(f"{name}: must be a list")
    return value


def _numbers(name: str, value: Any) -> tuple[float | None, ...]:
    for index, entry in enumerate(_list(name, value)):
        if entry is not None and (isinstance(entry, bool) or not isinstance(entry, int | float)):
            _refuse(f"{name}[{index}]", entry, "a number")
    return tuple(value)


def _present(name: str, value: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    numbers = tuple(entry for entry in _numbers(name, value) if entry is not None and math.isfinite(entry))
    if len(numbers) != len(value):
        raise GridError(f"{name}: null and NaN are no acceptance; leave that K out of the grid")
    return numbers


def _integers(name: str, value: Any) -> tuple[int, ...]:
    for index, entry in enumerate(_list(name, value)):
        if isinstance(entry, bool) or not isinstance(entry, int):
            _refuse(f"{name}[{index}]", entry, "a whole number")
    return tuple(value)


def _whole(where: str, text: str | None, least: int) -> int:
    try:
        value = int(text or "")
    except ValueError:
        _refuse(where, text, "a whole number")
    if value < least:
        raise GridError(f"{where}: {value} is below {least}")
    return value


def _above_zero(where: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        _refuse(where, text, "a number")
    if not (math.isfinite(value) and value > 0):
        raise GridError(f"{where}: {value:g} must be finite and above 0")
    return value


def _refuse(where: str, value: object, expected: str) -> NoReturn:
    raise GridError(f"{where}: {value!r} is not {expected}")


def _between(values: Mapping[int, float | None], at: int) -> float | None:
    """The value at a key, linear between the keys around it; None where one of these has none."""
    if at in values:
        return values[at]
    for low, high in pairwise(sorted(values)):
        one, two = values[low], values[high]
        if low < at < high and one is not None and two is not None:
            return one + (two - one) * (at - low) / (high - low)
    return None


def rows_from_grid(
    grid: GivenGrid, *, tie: float = TIE, interpolate_k: bool = False, max_batch: int | None = None
) -> tuple[Row, ...]:
    """The table of given figures, by plain arithmetic: ITL linear between batch sizes, nothing merged.

    ``max_batch`` ends the table; None for the largest batch size of the grid. Raises ValueError for a ``tie`` outside
    [0, 1) or a ``max_batch`` below 1.
    """
    if not 0 <= tie < 1:
        raise ValueError(f"tie: {tie:g} is no share of goodput from 0 to below 1; 0.005 is half a per cent")
    last = grid.batch_sizes[-1] if max_batch is None else max_batch
    if last < 1:
        raise ValueError(f"max_batch: {last} is below 1")
    return best_rows(grid.surface(interpolate_k=interpolate_k), last, tie)


def over_baseline(grid: GivenGrid, rows: Sequence[Row], *, interpolate_k: bool = False) -> dict[int, float]:
    """Batch size -> goodput of a table over that of the baseline; empty where no baseline is given."""
    surface = grid.surface(interpolate_k=interpolate_k)
    return {
        size: goodputs[k_at(rows, size)] * itl
        for size, itl in zip(grid.batch_sizes, grid.baseline_itl_ms or (), strict=False)
        if itl is not None and k_at(rows, size) in (goodputs := surface.goodputs(size))
    }
