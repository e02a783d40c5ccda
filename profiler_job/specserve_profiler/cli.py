"""``specserve-profile``: measure a table where an engine runs, with or without Kubernetes."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from specserve_profiler import __version__, render
from specserve_profiler.contract import (
    METHODS_WITH_DRAFTER,
    Engine,
    Failure,
    Profile,
    ProfileRequest,
    Speculation,
    Workload,
)
from specserve_profiler.grid import default_batch_sizes
from specserve_profiler.job import run_job
from specserve_profiler.report import report

_DESCRIPTION = """\
Measures which number of draft tokens (K) gives vLLM the most tokens per second at each batch size, on the
accelerator, with the models, the engine arguments and the prompts that you serve with. The result is a table
for vLLM's --speculative-config, or the finding that one K, or no speculation at all, is better.

example, beside an installed vLLM:

  specserve-profile run --model meta-llama/Llama-3.1-8B-Instruct \\
      --method eagle3 --draft-model yuhuili/EAGLE3-LLaMA3.1-Instruct-8B --max-tokens 5 \\
      --max-num-seqs 256 --max-model-len 8192 \\
      --prompts prompts.jsonl -o profile.json -- --gpu-memory-utilization=0.9

prompts.jsonl holds one {"prompt": "text"} a line, of the kind that you serve: acceptance depends on it.
Everything after -- is passed to vLLM as it is.
"""
_ENGINE_ONLY = "it needs what the vLLM image has (aiohttp): run it there, or install specserve[profiler] beside vLLM"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 0 done, 1 no profile, 2 wrong usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    engine_arguments: list[str] = []
    if "--" in words:
        position = words.index("--")
        words, engine_arguments = words[:position], words[position + 1 :]
    parser = _parser()
    options = parser.parse_args(words)
    if options.command == "job":
        return run_job()
    if options.command == "show":
        return _show(parser, options.profile)
    return _run(parser, options, engine_arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specserve-profile", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    _add_run(commands.add_parser("run", help="boot the engine twice, measure, decide, print the result"))
    show = commands.add_parser("show", help="print a profile that was measured before")
    show.add_argument("profile", type=Path, help="the file that -o wrote")
    commands.add_parser("job", help="what a profiling Job runs: the request comes from SPECSERVE_REQUEST")
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    parser.epilog = "Everything after -- is passed to vLLM as it is, for example: -- --gpu-memory-utilization=0.9"
    add("--model", required=True, help="target model: a name or a path")
    add("--revision", help="revision of the target model")
    add("--method", required=True, help="draft_model, eagle, eagle3, mtp, dflash or ngram")
    add("--draft-model", help="draft model, for the methods that have one")
    add("--draft-revision", help="revision of the draft model")
    add("--max-tokens", type=int, default=5, metavar="KMAX", help="largest K to consider (default 5)")
    add("--max-num-seqs", type=int, required=True, help="vLLM's largest batch size; the table covers 1 to this")
    add("--max-model-len", type=int, required=True, help="vLLM's longest context, in tokens")
    add("--tensor-parallel-size", type=int, default=1, help="(default 1)")
    add("--prompts", type=Path, required=True, help='JSONL file: one {"prompt": "text"} a line, or ShareGPT')
    add("--prompt-tokens", type=int, default=512, help="prompts are cut to this (default 512)")
    add("--output-tokens", type=int, default=256, help="upper bound of a generation (default 256)")
    add("--temperature", type=float, default=0.0, help="(default 0)")
    add(
        "--batch-sizes",
        type=_batch_sizes,
        metavar="SIZES",
        help="comma-separated (default 1,2,4,... up to --max-num-seqs)",
    )
    add("--measure-seconds", type=float, default=600, help="time for measuring without the boots (default 600)")
    add("--timeout-seconds", type=float, default=3600, help="time for everything (default 3600)")
    add("--engine-command", default="vllm serve", help='how vLLM is started (default "vllm serve")')
    add("-o", "--output", type=Path, help="write the profile to this file, as JSON")


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace, engine_arguments: Sequence[str]) -> int:
    request = _request(parser, options, engine_arguments)
    try:
        from specserve_profiler.run import execute
    except ModuleNotFoundError as error:
        parser.error(f"{error}; {_ENGINE_ONLY}")
    _check_output(parser, options.output)
    result = execute(request)
    if isinstance(result, Failure):
        print(f"no profile: {result.reason}: {result.message}", file=sys.stderr)
        return 1
    if options.output is not None:
        options.output.write_text(result.to_json() + "\n", encoding="utf-8")
    print(f"\n{report(result)}")
    config = render.speculative_config(request.speculation, result.decision)
    if config is None:
        print("Serve without --speculative-config.")
    else:
        print(f"Serve with:\n  --speculative-config {shlex.quote(render.config_text(config))}")
    return 0


def _request(
    parser: argparse.ArgumentParser, options: argparse.Namespace, engine_arguments: Sequence[str]
) -> ProfileRequest:
    needs_drafter = options.method in METHODS_WITH_DRAFTER
    if needs_drafter != (options.draft_model is not None):
        parser.error(f"--draft-model: method {options.method} {'needs one' if needs_drafter else 'takes none'}")
    why = render.refused_speculation(options.method)
    if why is not None:
        parser.error(f"--method: {why}")
    for argument, reason in render.refused_arguments(engine_arguments):
        parser.error(f"after --: {argument}: {reason}")
    command = _command(parser, options.engine_command)
    try:
        return ProfileRequest(
            key="local",
            model=options.model,
            revision=options.revision,
            speculation=Speculation(
                method=options.method,
                model=options.draft_model,
                revision=options.draft_revision,
                max_tokens=options.max_tokens,
            ),
            engine=Engine(
                command=command,
                args=tuple(engine_arguments),
                max_num_seqs=options.max_num_seqs,
                max_model_len=options.max_model_len,
                tensor_parallel_size=options.tensor_parallel_size,
            ),
            workload=Workload(
                prompt_tokens=options.prompt_tokens,
                output_tokens=options.output_tokens,
                temperature=options.temperature,
            ),
            prompts=str(options.prompts.resolve()),
            batch_sizes=options.batch_sizes or default_batch_sizes(options.max_num_seqs),
            measure_seconds=options.measure_seconds,
            timeout_seconds=options.timeout_seconds,
        )
    except ValidationError as error:
        parser.error(_faults(error, "--"))


def _faults(error: ValidationError, mark: str = "") -> str:
    """What is wrong with which field, at most three of them."""
    faults = []
    for fault in error.errors()[:3]:
        field = ".".join(str(part) for part in fault["loc"])
        field = f"{mark}{field.replace('_', '-')}: " if field else ""
        faults.append(field + fault["msg"].removeprefix("Value error, "))
    return "; ".join(faults)


def _command(parser: argparse.ArgumentParser, text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        parser.error(f"--engine-command {text!r}: {error}")
    if not words:
        parser.error('--engine-command: give a command, such as "vllm serve"')
    return words


def _batch_sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give whole numbers with commas between, such as 1,8,64") from None


def _check_output(parser: argparse.ArgumentParser, path: Path | None) -> None:
    """Before an hour of measuring, not after it."""
    if path is None:
        return
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        parser.error(f"--output: {path} cannot be written: give a file in a folder that is there and can be written to")


_ANY_DRAFTER = Speculation(method="ngram", max_tokens=1)


def _show(parser: argparse.ArgumentParser, path: Path) -> int:
    try:
        profile = Profile.model_validate_json(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        parser.error(f"{path} cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        parser.error(f"{path} is no profile: {error}")
    except ValidationError as error:
        parser.error(f"{path} is no profile: {_faults(error)}")
    print(report(profile))
    # A profile does not know its drafter, so this is a part of the configuration only.
    part = render.speculative_config(_ANY_DRAFTER, profile.decision)
    if part is None:
        print("Serve without --speculative-config.")
    else:
        numbers = {name: value for name, value in part.items() if name.startswith("num_")}
        print(f"Serve with --speculative-config, beside method and model:\n  {render.config_text(numbers)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
