"""``specserve-profile report``: profiles for people, as a page, as pictures, as text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specserve_profiler.cli import output
from specserve_profiler.cli.faults import FaultError
from specserve_profiler.cli.load import read_profile
from specserve_profiler.contract.profile import PartialProfile, Profile
from specserve_profiler.contract.reasons import exit_code, unwritable
from specserve_profiler.reports import text as terminal
from specserve_profiler.reports.serving import serving_words


def report(
    profiles: Annotated[
        list[Path], typer.Argument(help="Profiles, partial ones too: files, logs of Jobs, - for standard input.")
    ],
    out: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page (report.html, unless --text or --png is given).")
    ] = None,
    png: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the pictures here, too, as PNG files.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Print the report for a terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the names of the files written, as JSON.")] = False,
) -> int:
    """Show profiles: one self-contained HTML page, the same pictures as PNG files, or text for a terminal.

    \b
    Examples:
      specserve-profile report profile.json -o report.html --png pictures/
      kubectl logs JOB | specserve-profile report --text -
    """
    found = [read_profile(path) for path in profiles]
    if text and as_json:
        raise FaultError("--text and --json: give one of them; `table --json` and the profile itself are JSON")
    if text:
        output.put("\n".join(map(_text, found)))
    if out is None and not text and png is None:
        out = Path("report.html")
    output.check_writable(out)
    files = _write(found, out, png)
    if as_json:
        output.put_json({"files": [str(path) for path in files]})
    elif files:
        output.tell(*(f"written: {path}" for path in files))
    return 0


def _text(profile: Profile | PartialProfile) -> str:
    text = terminal.report(profile)
    if isinstance(profile, PartialProfile) or profile.request is None:
        return text
    return f"{text}\n{serving_words(profile, profile.request)}\n"


def show(profile: Annotated[Path, typer.Argument(help="The file that `run -o` wrote.")]) -> int:
    """The same as report --text.

    \b
    Example:
      specserve-profile show profile.json
    """
    return report([profile], text=True)


def _write(profiles: list[Profile | PartialProfile], out: Path | None, png: Path | None) -> list[Path]:
    if out is None and png is None:
        return []
    try:
        from specserve_profiler.reports.figures import pictures
        from specserve_profiler.reports.html import page
    except ModuleNotFoundError as error:
        raise FaultError(
            f"{error}: pictures need matplotlib: pip install 'specserve[report]'; --text needs nothing"
        ) from error
    written: list[Path] = []
    try:
        if out is not None:
            output.write(out, page(profiles))
            written.append(out)
        if png is not None:
            png.mkdir(parents=True, exist_ok=True)
            for index, profile in enumerate(profiles):
                for picture in pictures(profile):
                    number = f"{index + 1}-" if len(profiles) > 1 else ""
                    path = png / f"{number}{picture.name}.png"
                    output.write(path, picture.png())
                    written.append(path)
    except OSError as error:
        place = Path(error.filename or out or png or "")
        fault = unwritable(place, error, "give --output and --png a place with room that can be written to")
        raise FaultError(f"{fault.reason}: {fault}", exit_code(fault.reason)) from error
    return written
