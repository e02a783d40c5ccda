"""``specserve-profile check``: look at a table or a configuration before an engine does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from specserve_profiler.cli import load, output
from specserve_profiler.cli.faults import FaultError
from specserve_profiler.cli.load import about_figures, parse_profile, read_text
from specserve_profiler.contract.profile import PartialProfile
from specserve_profiler.dialect.lint import lint
from specserve_profiler.dialect.render import config_text, table_config
from specserve_profiler.engine.installed import model_config

FOUND = 1
"""Exit code where something is wrong; warnings alone are 0."""


def check(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE|FILE",
            help="A table (1-16:4 17-64:2, or a list of rows), a --speculative-config, a file with one of them, "
            "a profile, or - for standard input.",
        ),
    ],
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="vLLM's largest batch size: where the table must reach to.")
    ] = None,
    vllm_version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="vLLM that will serve it (that of the profile, else the newest)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The findings as JSON.")] = False,
) -> int:
    """Find what vLLM would refuse in a table, and what it would take silently and mean otherwise.

    Exit code 1 where there is an error; warnings alone are 0.

    \b
    Examples:
      specserve-profile check "1-16:4 17-64:2" --max-num-seqs 256
      specserve-profile check '{"method": "eagle3", "model": "d", "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": \\[\\[1, 16, 4], \\[17, 64, 2]]}'
    """
    subject = _subject(_text(table), table)
    findings = lint(
        subject.text,
        max_num_seqs or subject.max_num_seqs,
        load.vllm_version(vllm_version) or subject.version,
        drafter=subject.drafter,
        target=subject.target,
    )
    if as_json:
        output.put_json({"findings": [finding.model_dump(mode="json") for finding in findings]})
    else:
        output.put_lines(map(str, findings) if findings else ["nothing to find"])
    return FOUND if any(finding.level == "error" for finding in findings) else 0


def _text(given: str) -> str:
    """The content of a file that is there, else the words themselves."""
    try:
        is_file = given == "-" or Path(given).is_file()
    except OSError:
        is_file = False
    if is_file:
        return read_text(Path(given))
    if given.strip()[:1] not in ("[", "{", '"') and not given.strip()[:1].isdigit():
        raise FaultError(
            f"{given or 'nothing'}: neither a file that is there nor a table: give 1-16:4 17-64:2, or a file"
        )
    return given


@dataclass(frozen=True)
class _Subject:
    """What is checked, and what is known of where it is served."""

    text: str
    max_num_seqs: int | None = None
    version: str | None = None
    drafter: Mapping[str, Any] = field(default_factory=dict)
    """``config.json`` of the models, where it is on this machine."""
    target: Mapping[str, Any] = field(default_factory=dict)


def _subject(text: str, name: str) -> _Subject:
    """A table or a config as it is; the table of a profile with what the profile knows of its engine."""
    try:
        content: Any = json.loads(text)
    except ValueError:
        return _Subject(text)
    if wrong := about_figures(content, name):
        raise FaultError(f"{name} holds no table{wrong}")
    if not isinstance(content, dict) or "measurements" not in content:
        model = content.get("model") if isinstance(content, dict) else None
        return _Subject(text, drafter=model_config(model) if isinstance(model, str) else {})
    profile = parse_profile(text, name)
    if isinstance(profile, PartialProfile):
        raise FaultError(f"{name} is a partial profile ({profile.partial}): it has no table")
    rows, request = [(row.first, row.last, row.k) for row in profile.decision.table], profile.request
    config = None if request is None else table_config(request.speculation, rows)
    if request is None:
        return _Subject(json.dumps(rows))
    return _Subject(
        json.dumps(rows) if config is None else config_text(config),
        request.engine.max_num_seqs,
        profile.measurements.engine_version,
        drafter=model_config(request.speculation.model, request.speculation.revision),
        target=model_config(request.model, request.revision),
    )
