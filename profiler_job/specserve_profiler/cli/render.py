"""``specserve-profile render``: what to put behind ``vllm serve``."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from specserve_profiler.cli import load, output, plan
from specserve_profiler.cli.faults import FaultError, clipped, explain
from specserve_profiler.cli.load import read_finished
from specserve_profiler.contract.profile import Arm, Decision, Profile, Row
from specserve_profiler.contract.request import METHODS_WITH_DRAFTER, Speculation
from specserve_profiler.dialect import render as rendering
from specserve_profiler.dialect.support import RUNNER_VARIABLE, Refused, Warned, foresee
from specserve_profiler.engine.installed import model_config
from specserve_profiler.reports import elsewhere
from specserve_profiler.reports.flags import extra_words
from specserve_profiler.reports.serving import arm_arguments

_FLAGS = {
    "method": "--method",
    "model": "--draft-model",
    "revision": "--draft-revision",
    "max_tokens": "--rows",
    "config": "--speculative-extra",
}
"""Fields of the speculation and what says them here."""
_SHORT = re.compile(r"(\d+)-(\d+):(\d+)")


def render(
    profile: Annotated[Path | None, typer.Argument(help="A profile: what its verdict says is rendered.")] = None,
    rows: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help='Instead of a profile: "\\[\\[1,16,4],\\[17,64,2]]" or "1-16:4 17-64:2".'),
    ] = None,
    vllm_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="vLLM that will serve (that of the profile, else the newest).")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Method, where the profile does not say it or another one shall serve.")
    ] = None,
    draft_model: Annotated[str | None, typer.Option(help="Draft model, likewise.")] = None,
    draft_revision: Annotated[str | None, typer.Option(help="Its revision.")] = None,
    speculative_extra: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A further key of --speculative-config (those of the profile)."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--for", metavar="sglang|trtllm", help="Write the table for another engine, to measure it there."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Arguments, configuration and warnings as JSON.")] = False,
) -> int:
    """Print the arguments of vLLM that serve a table, for one version of vLLM, quoted for a shell.

    What that version would ignore or break on is refused, with the way out. A table is right for the engine that it was
    measured on; with --for SGLang or TensorRT-LLM get its form, and you what does not carry over.

    \b
    Examples:
      specserve-profile render profile.json
      specserve-profile render --rows "1-16:4 17-64:2" --method ngram \\
          --vllm-version 0.33.0
      specserve-profile render profile.json --for sglang > adaptive.json
    """
    if (profile is None) == (rows is None):
        raise FaultError('give either a profile or --rows "1-16:4 17-64:2"')
    found = read_finished(profile) if profile is not None else None
    arm = rendering.decided_arm(found.decision) if found is not None else Arm(kind="Table", rows=parse_rows(rows or ""))
    capture = found.decision.capture_sizes if found is not None else ()
    args = found.request.engine.args if found is not None and found.request is not None else ()
    version = load.vllm_version(vllm_version) or (found.measurements.engine_version if found is not None else None)
    given = {"method": method, "model": draft_model, "revision": draft_revision}
    extras = {"config": plan.extras(speculative_extra)} if speculative_extra else {}
    speculation = _speculation(found, arm, given | extras)
    request = found.request if found is not None else None
    plan.check_extras(speculation, request.engine.tensor_parallel_size if request is not None else None, version)
    if engine is not None:
        if vllm_version is not None:
            raise FaultError("--vllm-version: says nothing about another engine")
        return _elsewhere(engine, arm, speculation, list(_measured_otherwise(speculation, found)), as_json)
    try:
        config = rendering.arm_config(speculation, arm, version)
        words = arm_arguments(speculation, arm, capture, args, version)
    except ValueError as error:
        raise FaultError(f"--vllm-version: {error}") from error
    warnings = (
        [] if config is None else [*_measured_otherwise(speculation, found), *_warnings(speculation, version, found)]
    )
    if as_json:
        output.put_json({"arguments": words, "config": config, "warnings": warnings})
        return 0
    for warning in warnings:
        output.tell(f"warning: {warning}")
    if config is None:
        output.tell("serve without --speculative-config: there is nothing to add")
    else:
        output.put(shlex.join(words))
    return 0


def _elsewhere(engine: str, arm: Arm, speculation: Speculation, warnings: list[str], as_json: bool) -> int:
    """The table in another engine's form: the form on stdout, everything that does not carry over on stderr."""
    if arm.kind != "Table":
        raise FaultError(f"--for: what was decided is no table but {arm.kind}: there is nothing to write")
    try:
        name = elsewhere.named(engine)
        written = elsewhere.write(name, arm.rows, speculation)
    except ValueError as error:
        raise FaultError(f"--for: {error}") from error
    warnings += written.notes
    if as_json:
        output.put_json(
            {"for": name, "arguments": list(written.arguments), "config": written.config, "warnings": warnings}
        )
        return 0
    output.tell(*(f"warning: {warning}" for warning in warnings))
    if written.arguments:
        output.tell(f"serve with: {shlex.join(written.arguments)}, where FILE holds what is printed")
    output.put(written.text)
    return 0


def parse_rows(text: str) -> tuple[Row, ...]:
    """A table from JSON rows or from the short form. Raises FaultError."""
    try:
        values = json.loads(text) if text.lstrip().startswith("[") else _short_rows(text)
        table = tuple(Row(first=first, last=last, k=k) for first, last, k in values)
        if not table:
            raise FaultError("--rows: the table is empty; its first row begins at batch size 1")
        Decision(verdict="Dynamic", reason="", table=table, static_k=0)
    except ValidationError as error:
        raise FaultError(explain(error, Decision, _rows_field)) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise FaultError(f'--rows: {clipped(repr(text))}: give "[[1,16,4],[17,64,2]]" or "1-16:4 17-64:2"') from error
    return table


def _rows_field(field: str) -> str:
    return "--rows: table" if field == "table" else "--rows"


def _short_rows(text: str) -> list[list[int]]:
    words = text.replace(",", " ").split()
    matches = [_SHORT.fullmatch(word) for word in words]
    if not all(matches):
        raise ValueError(text)
    return [[int(number) for number in match.groups()] for match in matches if match is not None]


def _speculation(profile: Profile | None, arm: Arm, given: dict[str, Any]) -> Speculation:
    known = profile.request.speculation if profile is not None and profile.request is not None else None
    kmax = max([row.k for row in arm.rows] + [arm.k or 0, 1])
    method = given["method"]
    if known is None and method is None:
        raise FaultError("--method: the profile does not say how the engine drafts; give one, such as eagle3")
    values: dict[str, Any] = known.model_dump() if known is not None else {"max_tokens": kmax}
    if method is not None and known is not None and method != known.method:
        values.update(model=None, revision=None, config={})
    values |= {name: value for name, value in given.items() if value is not None}
    if values["method"] in METHODS_WITH_DRAFTER:
        if values.get("model") is None:
            raise FaultError(f"--draft-model: method {values['method']} needs one")
    elif given["model"] is not None or given["revision"] is not None:
        flag = "--draft-model" if given["model"] is not None else "--draft-revision"
        raise FaultError(f"{flag}: method {values['method']} has no draft model: leave it out")
    try:
        return Speculation.model_validate(values)
    except ValidationError as error:
        raise FaultError(explain(error, Speculation, lambda field: _FLAGS.get(field, field))) from error


def _measured_otherwise(speculation: Speculation, profile: Profile | None) -> Iterator[str]:
    known = profile.request.speculation if profile is not None and profile.request is not None else speculation
    if known.model_copy(update={"max_tokens": speculation.max_tokens}) != speculation:
        measured = " ".join(filter(None, (known.method, known.model, known.revision, *extra_words(known.config))))
        yield f"the profile was measured with {measured}: what it decided may be wrong for another drafter"


def _warnings(speculation: Speculation, version: str | None, profile: Profile | None) -> list[str]:
    """What the engine makes of a table, as far as the version, the environment and the models on this machine tell."""
    request = profile.request if profile is not None else None
    target = {} if request is None else model_config(request.model, request.revision)
    drafter = model_config(speculation.model, speculation.revision)
    answer = foresee(speculation, version, os.environ, drafter, target)
    if isinstance(answer, Refused):
        raise FaultError(str(answer))
    if not isinstance(answer, Warned):
        return []
    unknown = f" (where the engine uses Model Runner V2; {RUNNER_VARIABLE}=0 in its environment chooses V1)"
    return [answer.reason + ("" if RUNNER_VARIABLE in os.environ else unknown)]
