"""``specserve-profile check``: look at a table or a configuration before an engine does."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from specserve_profiler.cli import load, output
from specserve_profiler.cli.faults import FaultError
from specserve_profiler.cli.load import about_figures, parse_profile, read_text
from specserve_profiler.contract.profile import PartialProfile
from specserve_profiler.dialect.render import config_text, table_config
from specserve_profiler.engine.installed import model_config
from specserve_profiler.reports import elsewhere, pasted
from specserve_profiler.reports.lint import Finding, lint

_LIKE_A_TABLE = re.compile(r"\s*([\[{\"'“”„‘’\\\d]|map\[|--?s|vllm\s|(method|model|num_spec)\w*\s*:)")
_MOST_SHOWN = 2000
FOUND = 1
"""Exit code where something is wrong; warnings alone are 0."""


def check(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE|FILE",
            help="A table (1-16:4 17-64:2, or a list of rows), a --speculative-config, arguments of vllm serve, what "
            "render prints, a file with one of them, a profile, or - for standard input.",
        ),
    ],
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="vLLM's largest batch size: where the table must reach to.")
    ] = None,
    vllm_version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="vLLM that will serve it (that of the profile, else the newest)."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--for", metavar="sglang|trtllm", help="Another engine that shall take it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The findings as JSON.")] = False,
) -> int:
    """Find what vLLM would refuse in a table, and what it would take silently and mean otherwise.

    Exit code 1 where there is an error; warnings alone are 0.

    \b
    Examples:
      specserve-profile check "1-16:4 17-64:2" --max-num-seqs 256
      specserve-profile check '{"method": "eagle3", "model": "d",
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": \\[\\[1, 16, 4], \\[17, 64, 2]]}'
      specserve-profile render profile.json | specserve-profile check -
    """
    text, version = _text(table), load.vllm_version(vllm_version)
    if engine is not None:
        findings = _for_another(engine, text, max_num_seqs, version)
    else:
        findings = _for_vllm(_subject(text, table), max_num_seqs, version)
    if as_json:
        output.put_json({"findings": [finding.model_dump(mode="json") for finding in findings]})
    else:
        output.put_lines(map(str, findings) if findings else ["nothing to find"])
    return FOUND if any(finding.level == "error" for finding in findings) else 0


def _text(given: str) -> str:
    """The content of a file that is there, else the words themselves."""
    try:
        is_file = given == "-" or Path(given).is_file()
    except (OSError, ValueError):
        is_file = False
    if is_file:
        return read_text(Path(given))
    if not _LIKE_A_TABLE.match(given):
        raise FaultError(
            f"{given or 'nothing'}: neither a file that is there nor a table: give 1-16:4 17-64:2, or a file"
        )
    return given


@dataclass(frozen=True)
class _Subject:
    """What is checked, and what is known of where it is served."""

    text: str | None
    """None where the engine serves without speculation."""
    max_num_seqs: int | None = None
    version: str | None = None
    drafter: Mapping[str, Any] = field(default_factory=dict)
    """``config.json`` of the models, where it is on this machine."""
    target: Mapping[str, Any] = field(default_factory=dict)


def _for_vllm(subject: _Subject, max_num_seqs: int | None, version: str | None) -> tuple[Finding, ...]:
    """Findings for vLLM, on a text that need not be JSON yet."""
    text, size = subject.text, max_num_seqs or subject.max_num_seqs
    if text is None:
        return ()
    mangled = None if _parsed(text) is None and text.strip()[:1].isdigit() else pasted.untangle(text)
    if mangled is not None:
        inner = _for_vllm(replace(_with_drafter(mangled.value), max_num_seqs=subject.max_num_seqs), size, version)
        return (_unlike_json(mangled, inner), *inner)
    value = _parsed(text)
    other = elsewhere.recognise(value)
    if other is not None:
        return _of_another(other, value, size)
    return lint(text, size, version or subject.version, subject.drafter, subject.target)


def _unlike_json(mangled: pasted.Mangled, inner: tuple[Finding, ...]) -> Finding:
    text, sound = str(mangled), not any(finding.level == "error" for finding in inner)
    fix = f"{'write' if sound else 'as JSON, and still to mend:'} {text}"
    if len(text) > _MOST_SHOWN:
        fix = "write it as JSON"
    return Finding(level="error", where="text", message=f"is not what vLLM reads: {mangled.how}", fix=fix)


def _of_another(engine: elsewhere.Elsewhere, value: object, size: int | None) -> tuple[Finding, ...]:
    name = elsewhere.NAMES[engine]
    first = Finding(
        level="error",
        where="table",
        message=f"is in a form of {name}, which vLLM does not take",
        fix="measure a table for vLLM; --for looks at it for its own engine",
    )
    return (first, *(found for found in elsewhere.look(engine, value, size) if found.level != "error"))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _for_another(engine: str, text: str, size: int | None, version: str | None) -> tuple[Finding, ...]:
    """Findings for another engine, of JSON or YAML, or of what ``render --for`` printed."""
    from specserve_profiler.cli.written import WrittenError, read_written

    if version is not None:
        raise FaultError("--vllm-version: says nothing about another engine")
    try:
        value = read_written(text)
        if isinstance(value, dict) and "config" in value and "for" in value:
            value = value["config"]
        return elsewhere.look(elsewhere.named(engine), value, size)
    except WrittenError as error:
        raise FaultError(f"neither JSON nor YAML: {error}") from error
    except ValueError as error:
        raise FaultError(f"--for: {error}") from error


def _subject(text: str, name: str) -> _Subject:
    """A table or a config as it is, or from arguments; the table of a profile with what that knows of its engine."""
    try:
        found = pasted.from_arguments(text)
    except ValueError as error:
        raise FaultError(f"{name}: no words of a shell: {error}") from error
    if found is not None:
        given, size = found
        return replace(_with_drafter(None if given is None else _parsed(given), given), max_num_seqs=size)
    content = _parsed(text)
    if wrong := about_figures(content, name):
        raise FaultError(f"{name} holds no table{wrong}")
    if not isinstance(content, dict):
        return _Subject(text)
    if "config" in content and ("arguments" in content or "for" in content):
        return _with_drafter(content["config"])
    if "measurements" not in content:
        return _with_drafter(content, text)
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


def _with_drafter(content: Any, text: str | None = None) -> _Subject:
    """A config, as ``text`` has it where that is known, with what is on this machine of its draft model."""
    if content is None and text is None:
        return _Subject(None)
    model = content.get("model") if isinstance(content, dict) else None
    return _Subject(text or json.dumps(content), drafter=model_config(model) if isinstance(model, str) else {})
