"""Figures that somebody else measured, from a JSON or a CSV file, and their table. Pure but for reading the file.

JSON, with one row of ``itlMs`` a batch size and in it one value a K (null where the cell cannot run), acceptance either
as lengths by K or as unconditional rates by draft position, and the baseline if it is known:

    {"batchSizes": [1, 64], "draftTokens": [0, 3], "itlMs": [[6.5, 8.8], [7.8, 13.5]],
     "acceptancePerPosition": [0.68, 0.39, 0.2], "baselineItlMs": [6.2, 7.4]}

Or ``tokensPerSecond`` (and ``baselineTokensPerSecond``) in place of ``itlMs``, of the whole engine, or of one request
with ``"per": "request"``. One request's tokens/s are AL / ITL, which is goodput itself: acceptance need not be known,
and where it is, ITL = 1000 AL / (tokens/s of one request).

CSV, one cell a line in any order, a cell that cannot run left out; the acceptance length stands in at least one line of
each K above 0; the baseline is K ``none``; ``tokens_per_second`` or ``tokens_per_second_per_request`` may stand in the
place of ``itl_ms``:

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, Strict, ValidationError, model_validator

from specserve_profiler.contract.bounded import read_bounded
from specserve_profiler.contract.model import Model
from specserve_profiler.contract.profile import Row
from specserve_profiler.decision.surface import Surface
from specserve_profiler.decision.table import TIE, best_rows, k_at
from specserve_profiler.reports.drafter import Number, Rate, SpeculationProfile, between

MOST_REQUESTS = 1_000_000
"""Largest batch size of a table: no engine runs so many."""
MOST_TOKENS = 128
"""Largest K: no drafter proposes so many."""
_COLUMNS = ("batch_size", "k", "itl_ms", "acceptance_length")
_SPEEDS: Mapping[str, Literal["engine", "request"]] = {
    "tokens_per_second": "engine",
    "tokens_per_second_per_request": "request",
}
_BASELINE = "none"
_MOST_SHOWN = 80
T = TypeVar("T")


class GridError(ValueError):
    """The file is no grid. The message names the field or the line, and the way out."""


def _axis(least: int, most: int) -> Callable[[Sequence[int]], Sequence[int]]:
    def check(values: Sequence[int]) -> Sequence[int]:
        if not values:
            raise ValueError("empty")
        if values[0] < least:
            raise ValueError(f"{values[0]} is below {least}")
        for before, after in pairwise(values):
            if after <= before:
                raise ValueError(f"{after} comes after {before}; they must increase, each once")
        if values[-1] > most:
            raise ValueError(f"{_short(str(values[-1]))} is above {most}")
        return values

    return check


def _no_gap(values: object) -> object:
    if isinstance(values, list | tuple) and any(value is None or value != value for value in values):
        raise ValueError("null and NaN are no acceptance; leave that K out of the grid")
    return values


Whole = Annotated[int, Strict()]
Ms = Annotated[Number, AfterValidator(between(1e-6, 1e9, "is no duration; give milliseconds above 0"))]
Speed = Annotated[Number, AfterValidator(between(1e-6, 1e12, "is no speed; give tokens per second above 0"))]


class GivenGrid(Model):
    """Means without errors."""

    batch_sizes: Annotated[tuple[Whole, ...], AfterValidator(_axis(1, MOST_REQUESTS))]
    """Increasing."""
    draft_tokens: Annotated[tuple[Whole, ...], AfterValidator(_axis(0, MOST_TOKENS))]
    """Every K of the grid, increasing."""
    itl_ms: tuple[tuple[Ms | None, ...], ...] | None = None
    """One tuple a batch size, one value a K; None for a cell that cannot run. Exactly one of this and the next."""
    tokens_per_second: tuple[tuple[Speed | None, ...], ...] | None = None
    acceptance_length: Annotated[tuple[Number, ...], BeforeValidator(_no_gap)] | None = None
    """One value a K; exactly one of this and the next two is there, or with ``tokens_per_second`` none."""
    acceptance_per_position: Annotated[tuple[Rate, ...], BeforeValidator(_no_gap)] | None = None
    """Unconditional rate of each draft position, at least up to the largest K."""
    speculation_profile: SpeculationProfile | None = None
    """Instead of both: what the draft checkpoint carries."""
    baseline_itl_ms: tuple[Ms | None, ...] | None = None
    """One value a batch size."""
    baseline_tokens_per_second: tuple[Speed | None, ...] | None = None
    per: Literal["engine", "request"] = "engine"
    """Whose tokens per second these are."""

    @model_validator(mode="after")
    def _fits(self) -> GivenGrid:
        _check_cells(self)
        _check_acceptance(self)
        if self.baseline_itl_ms is not None and self.baseline_tokens_per_second is not None:
            raise ValueError("give one of baselineItlMs and baselineTokensPerSecond")
        for name, values in (
            ("baselineItlMs", self.baseline_itl_ms),
            ("baselineTokensPerSecond", self.baseline_tokens_per_second),
        ):
            if values is not None:
                _check_length(name, values, "batchSizes", self.batch_sizes)
        return self

    @property
    def acceptance_known(self) -> bool:
        """Whether the grid says how many tokens a step emits."""
        return any((self.acceptance_length, self.acceptance_per_position, self.speculation_profile))

    def cells(self) -> dict[tuple[int, int], float]:
        """(Batch size, K) -> ms of one step; where acceptance is not known, of one token of a request."""
        rows = self.itl_ms if self.itl_ms is not None else self.tokens_per_second
        lengths = self.acceptance()
        return {
            (size, k): value if self.itl_ms is not None else lengths[k] * self._ms_per_token(size, value)
            for size, row in zip(self.batch_sizes, rows or (), strict=True)
            for k, value in zip(self.draft_tokens, row, strict=True)
            if value is not None
        }

    def baseline(self) -> dict[int, float]:
        """Batch size -> ms of one step without speculation, as far as it is given."""
        speeds = self.baseline_tokens_per_second
        values = self.baseline_itl_ms if speeds is None else speeds
        return {
            size: value if speeds is None else self._ms_per_token(size, value)
            for size, value in zip(self.batch_sizes, values or (None,) * len(self.batch_sizes), strict=True)
            if value is not None
        }

    def acceptance(self) -> dict[int, float]:
        """K -> AL as far as it is given, at every K of the grid; 1 for each where none is."""
        if self.speculation_profile is not None:
            return self.speculation_profile.lengths(self.draft_tokens)
        if self.acceptance_per_position is not None:
            return dict(enumerate(accumulate(self.acceptance_per_position, initial=1.0)))
        return dict(zip(self.draft_tokens, self.acceptance_length or (1.0,) * len(self.draft_tokens), strict=True))

    def doubts(self) -> tuple[str, ...]:
        """What makes the acceptance of a draft checkpoint doubtful here."""
        profile = self.speculation_profile
        return tuple(profile.warnings(self.draft_tokens)) if profile is not None else ()

    def surface(self, *, interpolate_k: bool = False) -> Surface:
        """Its goodputs. With ``interpolate_k`` each K between two of the grid has an ITL linear between theirs.

        Raises ValueError for ``interpolate_k`` where acceptance is not known: tokens per second are not linear in K.
        """
        if interpolate_k and not self.acceptance_known:
            raise ValueError(
                "interpolate_k: tokensPerSecond alone does not say what a K between two would accept; "
                "give acceptanceLength or acceptancePerPosition, too"
            )
        first, last = self.draft_tokens[0], self.draft_tokens[-1]
        ks = tuple(range(first, last + 1)) if interpolate_k else self.draft_tokens
        cells, lengths = self.cells(), self.acceptance()
        itl = {
            (size, k): value
            for size in self.batch_sizes
            for row in [{k: cells[size, k] for k in self.draft_tokens if (size, k) in cells}]
            for k in ks
            if (value := _linear(row, k, self.draft_tokens)) is not None
        }
        return Surface({k: length for k in ks if (length := _linear(lengths, k)) is not None}, itl)

    def _ms_per_token(self, size: int, speed: float) -> float:
        """Of one request."""
        return 1000 / speed * (size if self.per == "engine" else 1)


def grid_of(values: Mapping[str, object]) -> GivenGrid:
    """The grid of these fields. Raises GridError."""
    try:
        return GivenGrid.model_validate(values)
    except ValidationError as error:
        raise GridError(_explained(error, GivenGrid, values)) from error


def read_grid(path: Path, drafter: Path | None = None) -> GivenGrid:
    """The grid in a file: CSV where its name says so, else JSON. Raises GridError; OSError where it cannot be read.

    ``drafter`` is a draft checkpoint's ``speculation_profile.json``, for a grid without acceptance.
    """
    known = {} if drafter is None else {"speculationProfile": _from(drafter, _json_object)}
    parse = parse_csv if path.suffix.lower() == ".csv" else parse_json
    return _from(path, lambda text: parse(text, known))


def _from(path: Path, parse: Callable[[str], T]) -> T:
    try:
        return parse(read_bounded(path).decode("utf-8-sig").replace("\r\n", "\n"))
    except UnicodeDecodeError as error:
        raise GridError(f"{path} is no UTF-8 text: {error}") from error
    except GridError as error:
        raise GridError(f"{path}: {error}") from error


def parse_json(text: str, known: Mapping[str, object] = MappingProxyType({})) -> GivenGrid:
    """The grid in a JSON text; ``known`` are fields that it does not have."""
    if not text.strip():
        raise GridError("the file is empty: it needs batchSizes, draftTokens, itlMs and acceptanceLength")
    form = 'a grid is a JSON object: {"batchSizes": [...], "draftTokens": [...], "itlMs": [[...]], ...}'
    values = _json_object(text, form)
    for name in known.keys() & values.keys():
        raise GridError(f"{name}: given twice; leave one out")
    return grid_of({**values, **known})


def _json_object(text: str, form: str = "a JSON object is needed") -> dict[str, Any]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise GridError(f"line {error.lineno}: no valid JSON: {error.msg} (column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise GridError(f"no JSON that can be read: {error}") from error
    if not isinstance(values, dict):
        raise GridError(form)
    return values


def parse_csv(text: str, known: Mapping[str, object] = MappingProxyType({})) -> GivenGrid:
    """The grid in a CSV text; ``known`` are fields that it cannot have."""
    cells: dict[tuple[int, int | None], float] = {}
    lengths: dict[int, float] = {0: 1.0}
    lines = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    try:
        lines.fieldnames = [name.strip() for name in lines.fieldnames or ()]
        figure = _figure(lines.fieldnames)
        for values in lines:
            _take(f"line {lines.line_num}", _line(f"line {lines.line_num}", values, figure), cells, lengths)
    except csv.Error as error:
        raise GridError(f"line {lines.line_num + 1}: no valid CSV: {error}") from error
    sizes, ks = sorted({size for size, k in cells if k is not None}), sorted({k for _, k in cells if k is not None})
    if not ks:
        raise GridError("no cell: the file needs one line for each batch size and K")
    per = _SPEEDS.get(figure)
    name, baseline = ("itlMs", "baselineItlMs") if per is None else ("tokensPerSecond", "baselineTokensPerSecond")
    fields: dict[str, object] = {name: [[cells.get((size, k)) for k in ks] for size in sizes], "per": per or "engine"}
    if any(k is None for _, k in cells):
        fields[baseline] = [cells.get((size, None)) for size in sizes]
    missing, given = [str(k) for k in ks if k not in lengths], len(lengths) > 1
    if missing and (given or not (known or per)):
        raise GridError(f"acceptance_length: missing for K = {', '.join(missing)}; give it in one line of each K")
    if not missing and (given or not known):
        fields["acceptanceLength"] = [lengths[k] for k in ks]
    return grid_of({"batchSizes": sizes, "draftTokens": ks, **fields, **known})


class _Line(BaseModel):
    """One line of a CSV."""

    batch_size: Annotated[int, Field(ge=1)]
    k: Annotated[int, Field(ge=0)] | None
    figure: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    acceptance_length: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None


def _figure(columns: Sequence[str]) -> str:
    """The column with the figures: ``itl_ms``, or tokens per second."""
    for name in ("itl_ms", *_SPEEDS):
        wanted = [name if column == "itl_ms" else column for column in _COLUMNS]
        if sorted(columns) in (sorted(wanted), sorted(wanted[:3])):
            return name
    raise GridError(
        f"line 1: the columns are {','.join(_COLUMNS)}; found {_short(','.join(columns)) or 'nothing'} "
        f"({' or '.join(_SPEEDS)} may stand in the place of itl_ms)"
    )


def _line(where: str, values: Mapping[str | None, Any], figure: str) -> _Line:
    if None in values:
        raise GridError(f"{where}: more values than columns")
    k, length = ((values.get(name) or "").strip() for name in ("k", "acceptance_length"))
    given = {
        "batch_size": values["batch_size"],
        "k": None if k.lower() == _BASELINE else k,
        "figure": values[figure],
        "acceptance_length": length or None,
    }
    try:
        return _Line.model_validate(given)
    except ValidationError as error:
        raise GridError(f"{where}: {_explained(error, _Line).replace('figure:', f'{figure}:', 1)}") from error


def _take(where: str, line: _Line, cells: dict[tuple[int, int | None], float], lengths: dict[int, float]) -> None:
    size, k = line.batch_size, line.k
    if cells.setdefault((size, k), line.figure) != line.figure:
        what = f"the baseline of batch size {size}" if k is None else f"batch size {size}, K = {k}"
        raise GridError(f"{where}: {what} is given twice; keep one line, or its mean")
    length = line.acceptance_length
    if k is not None and length is not None and lengths.setdefault(k, length) != length:
        raise GridError(f"{where}: acceptance_length of K = {k} was {lengths[k]:g} before; one K has one")


def _check_cells(grid: GivenGrid) -> None:
    given = {"itlMs": grid.itl_ms, "tokensPerSecond": grid.tokens_per_second}
    name, rows = next(((name, rows) for name, rows in given.items() if rows is not None), ("itlMs", None))
    if rows is None:
        raise ValueError("itlMs: missing; give it or tokensPerSecond")
    if None not in given.values():
        raise ValueError("give one of itlMs and tokensPerSecond")
    _check_length(name, rows, "batchSizes", grid.batch_sizes)
    for index, row in enumerate(rows):
        _check_length(f"{name}[{index}]", row, "draftTokens", grid.draft_tokens)
        if all(value is None for value in row):
            raise ValueError(f"{name}[{index}]: no K runs at batch size {grid.batch_sizes[index]}; leave it out")


def _check_acceptance(grid: GivenGrid) -> None:
    lengths, rates = grid.acceptance_length, grid.acceptance_per_position
    ways = sum(way is not None for way in (lengths, rates, grid.speculation_profile))
    if ways > 1 or (not ways and grid.tokens_per_second is None):
        raise ValueError(
            "give exactly one of acceptanceLength (one a K) and acceptancePerPosition (one a position), "
            "or neither and the speculation_profile.json of the drafter"
        )
    if lengths is not None:
        _check_length("acceptanceLength", lengths, "draftTokens", grid.draft_tokens)
        for k, length in zip(grid.draft_tokens, lengths, strict=True):
            if not 1 <= length <= k + 1:
                raise ValueError(
                    f"acceptanceLength: {length:g} at K = {k} is outside 1 to {k + 1}; "
                    "it counts the token of the target itself: 1 + accepted drafts"
                )
    if rates is not None:
        _check_rates(rates, grid.draft_tokens[-1])
    if grid.speculation_profile is not None:
        try:
            grid.speculation_profile.lengths(grid.draft_tokens)
        except ValueError as error:
            raise ValueError(f"speculationProfile: {error}") from error


def _check_rates(rates: Sequence[float], kmax: int) -> None:
    if len(rates) < kmax:
        raise ValueError(f"acceptancePerPosition: {len(rates)} rates, but draftTokens goes to {kmax}: one a position")
    for index, (before, after) in enumerate(pairwise(rates)):
        if after > before:
            raise ValueError(
                f"acceptancePerPosition[{index + 1}]: {after:g} is above the one before; rates are unconditional: "
                "multiply conditional ones up"
            )


def _check_length(name: str, values: Sequence[object], other: str, expected: Sequence[object]) -> None:
    if len(values) != len(expected):
        raise ValueError(f"{name}: {len(values)} values, but {other} has {len(expected)}")


_WORDS = {
    "tuple_type": "must be a list",
    **dict.fromkeys(("model_type", "dict_type"), "must be an object"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "{given} is not a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "{given} is not a number"),
    "literal_error": "must be {expected}",
    "greater_than_equal": "{plain} is below {ge}",
    "less_than_equal": "{plain} is above {le}",
    **dict.fromkeys(("greater_than", "finite_number"), "{plain} must be finite and above 0"),
    "value_error": "{error}",
}


def _explained(error: ValidationError, model: type[BaseModel], values: Iterable[str] = ()) -> str:
    """The first fault, a misspelt field before a missing one before any other."""
    faults = error.errors(include_url=False)
    unknown = sorted(str(fault["loc"][-1]) for fault in faults if fault["type"] == "extra_forbidden")
    if unknown:
        fields = ", ".join(field.alias or name for name, field in model.model_fields.items())
        return f"unknown field {_short(', '.join(unknown))}: the fields are {fields}"
    missing = [str(fault["loc"][-1]) for fault in faults if fault["type"] == "missing"]
    if missing:
        return f"{', '.join(missing + ['itlMs'] * ({'itlMs', 'tokensPerSecond'}.isdisjoint(values)))}: missing"
    fault = faults[0]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"]).removeprefix(".")
    given, words = _short(repr(fault["input"])), _WORDS.get(fault["type"])
    if words is None:
        return f"{where}: {fault['msg']}"
    told = words.format(given=given, plain=given.strip("'"), **fault.get("ctx", {}))
    return f"{where}: {told}".removeprefix(": ")


def _short(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _linear(values: Mapping[int, float], at: int, among: Sequence[int] = ()) -> float | None:
    """The value at a key, linear between the keys around it; None where one of these (``among`` them) has none."""
    if at in values:
        return values[at]
    for low, high in pairwise(among or sorted(values)):
        if low < at < high and low in values and high in values:
            return values[low] + (values[high] - values[low]) * (at - low) / (high - low)
    return None


def rows_from_grid(
    grid: GivenGrid, *, tie: float = TIE, interpolate_k: bool = False, max_batch: int | None = None
) -> tuple[Row, ...]:
    """The table of given figures, by plain arithmetic: ITL linear between batch sizes, nothing merged.

    ``max_batch`` ends the table; None for the largest batch size of the grid. Raises ValueError for a ``tie`` outside
    [0, 1), a ``max_batch`` outside 1 to ``MOST_REQUESTS``, and ``interpolate_k`` where acceptance is not known.
    """
    if not 0 <= tie < 1:
        raise ValueError(f"tie: {tie:g} is no share of goodput from 0 to below 1; 0.005 is half a per cent")
    last = grid.batch_sizes[-1] if max_batch is None else max_batch
    if last < 1:
        raise ValueError(f"max_batch: {last} is below 1")
    if last > MOST_REQUESTS:
        raise ValueError(f"max_batch: {_short(str(last))} is above {MOST_REQUESTS}: no engine runs so many requests")
    return best_rows(grid.surface(interpolate_k=interpolate_k), last, tie)


def over_baseline(grid: GivenGrid, rows: Sequence[Row], *, interpolate_k: bool = False) -> dict[int, float]:
    """Batch size -> goodput of a table over that of the baseline; empty where no baseline is given."""
    surface = grid.surface(interpolate_k=interpolate_k)
    return {
        size: goodputs[k_at(rows, size)] * itl
        for size, itl in grid.baseline().items()
        if k_at(rows, size) in (goodputs := surface.goodputs(size))
    }
