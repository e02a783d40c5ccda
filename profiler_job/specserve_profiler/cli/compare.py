"""``specserve-profile compare``: what moved between two profiles, and is it more than chance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specserve_profiler.cli import output
from specserve_profiler.cli.load import read_finished
from specserve_profiler.reports import compare as comparing


def compare(
    before: Annotated[Path, typer.Argument(help="The older profile.")],
    after: Annotated[Path, typer.Argument(help="The newer one.")],
    everything: Annotated[bool, typer.Option("--all", help="What did not move, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All comparisons with their ratios, as JSON.")] = False,
) -> int:
    """Say what moved between two profiles: ITL, acceptance, table and verdict, and whether it is more than chance.

    Errors of both and the drift between boots count; of twenty pairs that are alike, at most one gives a false alarm.

    \b
    Example:
      specserve-profile compare last-month.json profile.json
    """
    found = comparing.compare(read_finished(before), read_finished(after))
    if as_json:
        output.put_json(found.model_dump(mode="json", by_alias=True))
        return 0
    lines = list(found.sentences)
    if everything:
        told = set(lines)
        sentences = [part.sentence for part in found.chosen]
        sentences += [part.sentence for part in (*found.acceptance, *found.itl)]
        lines += [sentence for sentence in sentences if sentence not in told]
    output.put_lines(lines)
    return 0
