"""``specserve-profile run``: from a person's wishes to a request, and from an outcome to what they see."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from specserve_profiler.cli import output, plan
from specserve_profiler.cli.faults import FaultError
from specserve_profiler.cli.live import EngineLog, LiveView
from specserve_profiler.contract.profile import Failure, PartialProfile, Profile
from specserve_profiler.contract.reasons import exit_code, unwritable
from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.reports.flags import as_flags
from specserve_profiler.reports.kept import Keeper
from specserve_profiler.reports.serving import serving_words
from specserve_profiler.reports.text import report
from specserve_profiler.session.console import EngineLine, Event, Lines, Listener, Told, observing

if TYPE_CHECKING:
    from specserve_profiler.session.run import Outcome

MODELS, ENGINE, WORKLOAD, MEASURING, OUTPUT = "Models", "Engine", "Workload", "Measuring", "Plan and output"
EPILOG = (
    "Everything after -- is handed to vLLM as it is. Next: specserve-profile report profile.json shows it, and "
    "specserve-profile render profile.json | xargs vllm serve TARGET serves it. Exit codes: specserve-profile --help."
)


def run(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Option(help="Target model: a name or a path.", rich_help_panel=MODELS, show_default=False)
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Its revision.", rich_help_panel=MODELS)] = None,
    method: Annotated[
        str | None, typer.Option(help="draft_model, eagle, eagle3, mtp, dflash or ngram.", rich_help_panel=MODELS)
    ] = None,
    draft_model: Annotated[
        str | None, typer.Option(help="Draft model, for the methods that have one.", rich_help_panel=MODELS)
    ] = None,
    draft_revision: Annotated[str | None, typer.Option(help="Its revision.", rich_help_panel=MODELS)] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="KMAX", help="Largest K to consider (5).", rich_help_panel=MODELS)
    ] = None,
    speculative_extra: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A further key of vLLM's --speculative-config, such as attention_backend=FLASH_ATTN; several times "
            "for several. Instead of all those of --config.",
            rich_help_panel=MODELS,
        ),
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="vLLM's largest batch size; the table covers 1 to this.", rich_help_panel=ENGINE)
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="vLLM's longest context, in tokens.", rich_help_panel=ENGINE)
    ] = None,
    tensor_parallel_size: Annotated[
        int | None, typer.Option(help="Accelerators of one engine (1).", rich_help_panel=ENGINE)
    ] = None,
    engine_command: Annotated[
        str | None, typer.Option(help='How vLLM is started ("vllm serve").', rich_help_panel=ENGINE)
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help='JSONL of prompts like those that you serve: {"prompt": "..."}, OpenAI chats, ShareGPT and others.',
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Instead of --prompts: mt-bench, or ORG/NAME\\[:SPLIT] of a Hugging Face hub.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    dataset_config: Annotated[
        str | None, typer.Option(help="Configuration of the dataset.", rich_help_panel=WORKLOAD)
    ] = None,
    dataset_column: Annotated[
        str | None, typer.Option(help="Column that holds the prompts.", rich_help_panel=WORKLOAD)
    ] = None,
    dataset_revision: Annotated[
        str | None, typer.Option(help="Revision of the dataset.", rich_help_panel=WORKLOAD)
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(help="Prompts are cut to this (512).", rich_help_panel=WORKLOAD)
    ] = None,
    output_tokens: Annotated[
        int | None, typer.Option(help="Upper bound of a generation (256).", rich_help_panel=WORKLOAD)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Of sampling; 0 is greedy (0).", rich_help_panel=WORKLOAD)
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling (1).", rich_help_panel=WORKLOAD)] = None,
    seed: Annotated[
        int | None, typer.Option(help="Which prompts are drawn, in which order (0).", rich_help_panel=WORKLOAD)
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES",
            help="Those to measure, such as 1,8,64 (1,2,4,... max-num-seqs).",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="LOAD",
            help="Your load: 1:5,32:1 is five times as much time at batch size 1 as at 32 (all alike).",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    measure_seconds: Annotated[
        float | None, typer.Option(help="Most time for measuring, boots excluded (600).", rich_help_panel=MEASURING)
    ] = None,
    timeout_seconds: Annotated[
        float | None, typer.Option(help="Time for everything (3600).", rich_help_panel=MEASURING)
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE|FULL|OFF",
            help="Prove the table against no speculation in a serving loop (Table), against the best single K, too "
            "(Full), or not at all (Off).",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Plan file: a request in YAML or JSON, or a profile to repeat; - for standard input.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Name that the profile gets (local).", rich_help_panel=OUTPUT)] = None,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the profile here, as JSON.", rich_help_panel=OUTPUT)
    ] = None,
    engine_log: Annotated[
        Path | None, typer.Option(help="Write the engine's log here.", rich_help_panel=OUTPUT)
    ] = None,
    keep_records: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep all raw records here, for `refit`.", rich_help_panel=OUTPUT),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the request (a plan file) and end.", rich_help_panel=OUTPUT)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The profile, or the failure, as JSON on stdout.", rich_help_panel=OUTPUT)
    ] = False,
) -> int:
    """Boot the engine, measure, decide, and print the result: the table and the --speculative-config to serve with.

    Needs vLLM beside it and takes minutes. Each flag sets a field of a plan file (--config), and wins over it.
    Ctrl-C stops the engine and keeps what was measured as a partial profile.

    \b
    Examples:
      specserve-profile run --model TARGET --method eagle3 --draft-model DRAFTER \\
          --max-num-seqs 128 --max-model-len 8192 \\
          --prompts prompts.jsonl -o profile.json
      specserve-profile run --config plan.yaml -- --enforce-eager
    """
    wanted = plan.read_plan(config) if config is not None else {}
    flags: dict[str, Any] = {
        "model": model,
        "revision": revision,
        "speculation.method": method,
        "speculation.model": draft_model,
        "speculation.revision": draft_revision,
        "speculation.maxTokens": max_tokens,
        "speculation.config": plan.extras(speculative_extra) if speculative_extra else None,
        "engine.command": None if engine_command is None else plan.words(engine_command),
        "engine.maxNumSeqs": max_num_seqs,
        "engine.maxModelLen": max_model_len,
        "engine.tensorParallelSize": tensor_parallel_size,
        "prompts.path": None if prompts is None else str(prompts.resolve()),
        "prompts.hub": None if dataset is None else plan.dataset(dataset),
        "prompts.hub.config": dataset_config,
        "prompts.hub.column": dataset_column,
        "prompts.hub.revision": dataset_revision,
        "workload.promptTokens": prompt_tokens,
        "workload.outputTokens": output_tokens,
        "workload.temperature": temperature,
        "workload.topP": top_p,
        "workload.seed": seed,
        "batchSizes": None if batch_sizes is None else plan.sizes(batch_sizes),
        "weights": None if weights is None else plan.weights(weights),
        "measureSeconds": measure_seconds,
        "timeoutSeconds": timeout_seconds,
        "verify": None if verify is None else verify.capitalize(),
        "key": key,
    }
    request = plan.build(wanted, flags, context.obj)
    if dry_run:
        output.put(request.to_json() if as_json else _plan_text(request))
        return 0
    plan.check_models(request)
    output.check_all_writable({"--output": out, "--engine-log": engine_log, "--keep-records": keep_records})
    keeper = Keeper() if keep_records is not None else None
    outcome = _execute(request, engine_log, keeper)
    kept = keeper is None or _kept(keep_records, keeper, outcome)
    return _finish(request, outcome, out, as_json=as_json) or (0 if kept else exit_code("OutputUnwritable"))


def _kept(path: Path | None, keeper: Keeper, outcome: Outcome) -> bool:
    """Writes the records; whether that went well."""
    assert path is not None  # noqa: S101 - there is a keeper
    try:
        output.write(path, keeper.finish(outcome.profile or outcome.partial or outcome.failure))
    except OSError as error:
        fault = unwritable(path, error, "the records are lost, the result is not")
        output.tell(f"{fault.reason}: {fault}")
        return False
    return True


def _execute(request: ProfileRequest, engine_log: Path | None, keeper: Keeper | None) -> Outcome:
    try:
        from specserve_profiler.session.run import execute
    except ModuleNotFoundError as error:
        raise FaultError(
            f"{error}: run needs what the vLLM image has; "
            "run it there, or pip install 'specserve[profiler]' beside vLLM"
        ) from error
    with _watching(engine_log, keeper):
        return execute(request)


def _keeping(listener: Listener, keeper: Keeper | None) -> Listener:
    def listen(event: Event) -> None:
        if keeper is not None and isinstance(event, Told):
            keeper.take(event.what, event.values)
        listener(event)

    return listen


@contextmanager
def _watching(engine_log: Path | None, keeper: Keeper | None) -> Iterator[None]:
    """A live view on a terminal, else one line per event; both on stderr, for stdout has the result."""
    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        with _lines(engine_log) as listener, observing(_keeping(listener, keeper)):
            yield
        return
    if engine_log is None:
        descriptor, name = tempfile.mkstemp(prefix="specserve-engine-", suffix=".log")
        os.close(descriptor)
        engine_log = Path(name)
    with LiveView(console, engine_log) as view, observing(_keeping(view, keeper)):
        yield
    console.print(f"engine log: {engine_log}", style="dim", highlight=False)


@contextmanager
def _lines(engine_log: Path | None) -> Iterator[Listener]:
    lines = Lines(lambda: sys.stderr)
    if engine_log is None:
        yield lines
        return
    with EngineLog(engine_log) as log:

        def listen(event: Event) -> None:
            if isinstance(event, EngineLine):
                log.write(event.text)
            else:
                lines(event)

        yield listen


def _finish(request: ProfileRequest, outcome: Outcome, out: Path | None, *, as_json: bool) -> int:
    result = outcome.profile or outcome.partial
    written = _written(out, result) if result is not None else None
    try:
        return _told(request, outcome, out, written, as_json=as_json)
    except FaultError as fault:  # stdout cannot be written
        if result is None or written is not None:
            raise
        raise FaultError(f"{fault}; the result is in {_rescued(result)}", fault.code) from fault


def _rescued(result: Profile | PartialProfile) -> str:
    """The name of a file with a result that went nowhere else; or why there is none."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix="specserve-profile-", suffix=".json", delete=False) as file:
            file.write(result.to_json() + "\n")
    except OSError as error:
        return f"no file either: {error.strerror}"
    return file.name


def _told(request: ProfileRequest, outcome: Outcome, out: Path | None, written: Path | None, *, as_json: bool) -> int:
    if outcome.profile is not None:
        if as_json:
            output.put(outcome.profile.to_json())
        else:
            output.put(f"{report(outcome.profile)}\n{serving_words(outcome.profile, request)}")
        if out is None or written is not None:
            return 0
        if not as_json:
            output.put(outcome.profile.to_json())
        return exit_code("OutputUnwritable")
    failure = outcome.failure or Failure(reason="ProfilerFailed", message="the run ended without a result")
    failure = failure.model_copy(update={"message": as_flags(failure.message)})
    if as_json:
        kept = _dumped(outcome.partial) if written is None else str(written)
        output.put_json({"failure": failure.model_dump(mode="json"), "partial": kept})
    output.tell(f"no profile: {failure.reason}: {failure.message}")
    if written is not None:
        output.tell(f"what was measured until then is in {written}: specserve-profile report {written}")
    elif out is not None and outcome.partial is not None and not as_json:
        output.put(outcome.partial.to_json())
    return _code(failure, outcome.signal)


def _written(out: Path | None, result: Profile | PartialProfile) -> Path | None:
    """The file that holds the result now; None where none was asked for or it could not be written."""
    if out is None:
        return None
    place = output.place_for(out, result)
    try:
        output.write(place, result.to_json() + "\n")
    except OSError as error:
        fault = unwritable(place, error, "the result is on stdout, so that it is not lost")
        output.tell(f"{fault.reason}: {fault}")
        return None
    return place


def _dumped(partial: PartialProfile | None) -> dict[str, Any] | None:
    return None if partial is None else partial.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _code(failure: Failure, signal: int | None) -> int:
    return 128 + signal if failure.reason == "Interrupted" and signal is not None else exit_code(failure.reason)


def _plan_text(request: ProfileRequest) -> str:
    import yaml

    values = request.model_dump(mode="json", by_alias=True, exclude_none=True)
    # What a terminal must not get is written as YAML escapes it, with all else that is no ASCII.
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=request.to_json().isprintable())
