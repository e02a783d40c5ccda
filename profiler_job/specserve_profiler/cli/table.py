"""``specserve-profile table``: rows from figures, by plain arithmetic, or those that a profile decided on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from specserve_profiler.cli import output
from specserve_profiler.cli.faults import FaultError
from specserve_profiler.cli.load import read_finished, read_profile
from specserve_profiler.contract.profile import Measurements, Row, short_table
from specserve_profiler.decision.table import TIE
from specserve_profiler.reports.given import GivenGrid, GridError, grid_of, over_baseline, read_grid, rows_from_grid
from specserve_profiler.reports.suspects import suspects


def table(
    profile: Annotated[
        Path | None, typer.Argument(help="A profile: its table, or with the options below one from its grid.")
    ] = None,
    grid: Annotated[
        Path | None, typer.Option(help="Figures that you have, as JSON or CSV, instead of a profile.")
    ] = None,
    acceptance: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The speculation_profile.json of the draft model, for a grid without one."),
    ] = None,
    tie: Annotated[
        float | None, typer.Option(help=f"Share of goodput within which the smaller K is taken ({TIE:g}).")
    ] = None,
    interpolate_k: Annotated[
        bool, typer.Option("--interpolate-k", help="Consider every K between those given, linear in K.")
    ] = False,
    max_batch: Annotated[
        int | None, typer.Option(metavar="B", help="Last batch size of the table (the largest given).")
    ] = None,
    short: Annotated[bool, typer.Option("--short", help="Print 1-16:4 17-64:2 instead of a list.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Rows and speedups as a JSON object.")] = False,
) -> int:
    """Make a table from given figures, without an engine: K of the best goodput at each batch size.

    ITL is linear between batch sizes. Rows are \\[first batch size, last batch size, K], as vLLM takes them. Tokens per
    second by batch size and K (tokensPerSecond) do in the place of itlMs, and then acceptance need not be known.

    \b
    Examples, with the grid in figures.json:
      {"batchSizes": \\[1, 64], "draftTokens": \\[0, 3],
       "itlMs": \\[\\[6.5, 8.8], \\[7.8, 13.5]], "acceptanceLength": \\[1, 2.3]}
      specserve-profile table --grid figures.json --interpolate-k
      specserve-profile table --grid itl.csv \\
          --acceptance DRAFTER/speculation_profile.json
      specserve-profile table profile.json --short
      specserve-profile render --method ngram \\
          --rows "$(specserve-profile table --grid figures.json)"
    """
    if (profile is None) == (grid is None):
        raise FaultError(
            "give either a profile or --grid FILE: figures.json or figures.csv, or a profile that `run` wrote"
        )
    if acceptance is not None and grid is None:
        raise FaultError("--acceptance: goes with --grid; a profile has its own")
    asked = tie is not None or interpolate_k or max_batch is not None
    warnings: tuple[str, ...] = ()
    if profile is not None and not asked:
        decision = read_finished(profile).decision
        rows = decision.table
        served = decision.verdict == "Dynamic"
        ratios = {entry.batch_size: entry.over_baseline for entry in decision.speedups} if served else {}
        if not served:
            output.tell(f"the verdict is {decision.verdict}, not this table: {decision.reason}")
    else:
        given = _given(profile, grid, acceptance)
        warnings = (*given.doubts(), *suspects(given))
        try:
            rows = rows_from_grid(
                given, tie=TIE if tie is None else tie, interpolate_k=interpolate_k, max_batch=max_batch
            )
        except ValueError as error:
            raise FaultError(_as_flag(str(error))) from error
        ratios = over_baseline(given, rows, interpolate_k=interpolate_k)
    if as_json:
        output.put_json({**_values(rows, ratios), **({"warnings": warnings} if warnings else {})})
        return 0
    for warning in warnings:
        output.tell(f"warning: {warning}")
    output.put(short_table(rows) if short else json.dumps([[row.first, row.last, row.k] for row in rows]))
    if ratios:
        output.tell("over no speculation: " + ", ".join(f"{size}: {ratio:.2f}x" for size, ratio in ratios.items()))
    return 0


def _given(profile: Path | None, grid: Path | None, acceptance: Path | None) -> GivenGrid:
    try:
        if profile is not None:
            return measured_grid(read_profile(profile).measurements)
        assert grid is not None  # noqa: S101 - one of the two is given
        return read_grid(grid, acceptance)
    except GridError as error:
        flag = "--acceptance" if str(error).startswith(f"{acceptance}: ") else "--grid"
        raise FaultError(f"{profile}: {error}" if profile is not None else f"{flag}: {error}") from error
    except OSError as error:
        flag = "--acceptance" if error.filename == str(acceptance) else "--grid"
        raise FaultError(f"{flag}: {error.filename or grid} cannot be read: {error.strerror}") from error


def measured_grid(measured: Measurements) -> GivenGrid:
    """The means of a profile's grid. Raises GridError where there are none."""
    cells = {(cell.batch_size, cell.k): cell.itl_ms for cell in measured.grid}
    lengths = {entry.k: entry.acceptance_length.mean for entry in measured.acceptance}
    ks = sorted({k for _, k in cells} & set(lengths))
    sizes = [size for size in sorted({size for size, _ in cells}) if any(cells.get((size, k)) for k in ks)]
    baseline = {cell.batch_size: cell.itl_ms.mean for cell in measured.baseline}
    return grid_of(
        {
            "batchSizes": sizes,
            "draftTokens": ks,
            "itlMs": [[cells.get((size, k)) for k in ks] for size in sizes],
            "acceptanceLength": [lengths[k] for k in ks],
            "baselineItlMs": [baseline.get(size) for size in sizes] if baseline else None,
        }
    )


def _values(rows: tuple[Row, ...], ratios: dict[int, float]) -> dict[str, Any]:
    return {
        "rows": [[row.first, row.last, row.k] for row in rows],
        "short": short_table(rows),
        "overBaseline": {str(size): round(ratio, 4) for size, ratio in ratios.items()},
    }


def _as_flag(text: str) -> str:
    name, colon, rest = text.partition(": ")
    return f"--{name.replace('_', '-')}: {rest}" if colon else text
