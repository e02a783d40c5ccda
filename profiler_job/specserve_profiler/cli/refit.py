"""``specserve-profile refit``: the estimators of today on the records of an earlier run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specserve_profiler.cli import output
from specserve_profiler.cli.faults import FaultError
from specserve_profiler.contract.bounded import read_bounded
from specserve_profiler.contract.profile import PartialProfile, Profile, short_table
from specserve_profiler.contract.reasons import exit_code, unwritable
from specserve_profiler.reports.kept import KeptError, read_kept
from specserve_profiler.reports.refit import refit as fitted
from specserve_profiler.reports.text import report


def refit(
    records: Annotated[Path, typer.Argument(metavar="FILE", help="What `run --keep-records FILE` wrote.")],
    out: Annotated[Path | None, typer.Option("--output", "-o", help="Write the profile here, as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The profile as JSON on stdout.")] = False,
) -> int:
    """Make a profile again from the raw records of a run, without an engine.

    For what changes after a measurement: a specserve that estimates or decides otherwise, or a doubt about what an
    old one did. Nothing is measured; every step and every request of that run is estimated anew, and the table and
    the verdict follow. What the same specserve makes of them is the profile of the run itself.

    \b
    Examples:
      specserve-profile run --config plan.yaml -o profile.json \\
          --keep-records records.gz
      specserve-profile refit records.gz -o again.json
      specserve-profile compare profile.json again.json
    """
    output.check_writable(out)
    try:
        run = read_kept(read_bounded(records))
        profile = fitted(run)
    except OSError as error:
        raise FaultError(f"{records} cannot be read: {error.strerror}") from error
    except KeptError as error:
        raise FaultError(f"{records}: {error}") from error
    if out is not None:
        try:
            output.write(out, profile.to_json() + "\n")
        except OSError as error:
            fault = unwritable(out, error, "give --output a place with room")
            raise FaultError(f"{fault.reason}: {fault}", exit_code(fault.reason)) from error
    output.put(profile.to_json() if as_json else report(profile))
    output.tell(_moved(run.result, profile))
    return 0


def _moved(then: Profile | PartialProfile, now: Profile | PartialProfile) -> str:
    """Whether the decision is another one."""
    if isinstance(then, PartialProfile) or isinstance(now, PartialProfile):
        return "the run ended early: there is no decision"
    before, after = (f"{p.decision.verdict}, {short_table(p.decision.table)}" for p in (then, now))
    return f"as it was decided then: {after}" if before == after else f"then: {before}\nnow: {after}"
