"""The commands of ``specserve-profile`` and how they end."""

from __future__ import annotations

import inspect
import io
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout, suppress
from importlib import import_module
from typing import Annotated, Any

import typer

from specserve_profiler import __version__
from specserve_profiler.cli import output
from specserve_profiler.cli.faults import FaultError
from specserve_profiler.contract.reasons import DISK, DONE, OWN_FAULT, SIGINT, USAGE, of_disk

NAME = "specserve-profile"
_REFUSED: Any = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")
"""What typer raises for wrong usage; its home has moved between versions."""

COMMANDS = {
    "run": "Boot vLLM, measure, and print the table and the --speculative-config to serve with.",
    "report": "Show profiles: as a page, as pictures, as text.",
    "compare": "Say what moved between two profiles, and whether it is more than chance.",
    "render": "Print a table, or what a profile decided, as arguments of vLLM.",
    "check": "Find what vLLM would refuse in a table, or take silently and mean otherwise.",
    "table": "Make a table from figures that you have, without an engine.",
    "refit": "Make a profile again from the raw records that run --keep-records left.",
    "job": "What a profiling Job in Kubernetes runs; people use run.",
    "show": "",
}
"""Each is a function of that name in a module of that name, which is imported where it is the one that is asked for."""
_HOMES = {"show": "report"}
_HELP = frozenset({"-h", "--help", "--version"})


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


_EPILOG = (
    "Exit codes: 0 done; 1 the profiler's own fault, or what is checked has an error; 2 wrong usage; "
    "3 the workload; 4 the engine does not boot; 5 it fails while it is measured; 6 out of time; 7 disk or output; "
    "130 and 143 interrupted by Ctrl-C and by SIGTERM."
)


def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Measures how many draft tokens (K) give vLLM the most tokens per second at each batch size: on your accelerator,
    with the models, the engine arguments and the prompts that you serve with.

    The result is a table for vLLM's --speculative-config, or the finding that one K, or no speculation, is better.

    \b
    Beside an installed vLLM:
      specserve-profile run --model meta-llama/Llama-3.1-8B-Instruct \\
          --method eagle3 --draft-model yuhuili/EAGLE3-LLaMA3.1-Instruct-8B \\
          --max-num-seqs 256 --max-model-len 8192 --dataset mt-bench \\
          -o profile.json -- --gpu-memory-utilization=0.9
      specserve-profile report profile.json -o report.html
    """


def _app(asked: str) -> typer.Typer:
    """The command line, with the command that is asked for; the others are only named."""
    app = typer.Typer(
        name=NAME,
        rich_markup_mode="rich",
        no_args_is_help=False,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback(help=_unfolded(_main), epilog=_EPILOG)(_main)
    for name, words in COMMANDS.items():
        if name == asked:
            home = import_module(f"specserve_profiler.cli.{_HOMES.get(name, name)}")
            function = getattr(home, name)
            app.command(name, help=_unfolded(function), epilog=getattr(home, "EPILOG", None))(function)
        else:
            app.command(name, help=words, hidden=not words)(lambda: None)
    return app


def _unfolded(function: Callable[..., Any]) -> str:
    """The words of a command, whose lines end where the terminal's do, but for examples (``\\b``)."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(text if text.startswith("\b") else " ".join(text.split()) for text in paragraphs)


def run_app(words: list[str]) -> int:
    """Runs one command. Returns its exit code; never raises for what a person gave."""
    before, for_engine = _split(words or ["--help"])
    asked = next((word for word in before if not word.startswith("-")), "")
    try:
        return _ended(asked, before, for_engine)
    except FaultError as fault:
        return _refuse(str(fault), asked, fault.code)
    except _REFUSED as error:
        return _refuse(error.format_message(), asked, USAGE)
    except (typer.Abort, KeyboardInterrupt):
        output.tell("interrupted")
        return SIGINT
    except Exception as error:
        return _own_fault(error)


def _ended(asked: str, words: list[str], for_engine: list[str] | None) -> int:
    """The exit code, once all is written. Raises FaultError where stdout cannot be written."""
    printed = io.StringIO()
    # Typer prints by itself and knows neither full disks nor closed streams; a terminal's colours stay its business.
    by_us = not _HELP.isdisjoint(words) and not sys.stdout.isatty()
    with redirect_stdout(printed) if by_us else nullcontext():
        code = _app(asked)(words, prog_name=NAME, standalone_mode=False, obj=for_engine)
    if printed.getvalue():
        output.put(printed.getvalue())
    return code if isinstance(code, int) else DONE


def _own_fault(error: Exception) -> int:
    """The profiler's own fault: the trace is for who mends it, not for who met it."""
    full = of_disk(error) if isinstance(error, OSError) else None
    if full is not None:
        output.tell(f"{NAME}: {full.reason}: {full}")
        return DISK
    text = f"{NAME}: a fault of its own: {error!r}. Please report it"
    with (
        suppress(OSError),
        tempfile.NamedTemporaryFile("w", prefix="specserve-fault-", suffix=".txt", delete=False) as file,
    ):
        traceback.print_exception(error, file=file)
        text += f" with {file.name}"
    output.tell(text)
    return OWN_FAULT


def _split(words: list[str]) -> tuple[list[str], list[str] | None]:
    """What is ours, and what comes after the ``--`` of ``run``: the engine's; None where there is none."""
    if words[:1] != ["run"] or "--" not in words:
        return words, None
    position = words.index("--")
    return words[:position], words[position + 1 :]


def _refuse(text: str, asked: str, code: int) -> int:
    name = f"{NAME} {asked}" if asked in COMMANDS else NAME
    first, *rest = text.split("\n")
    hint = [f"{name} --help teaches its use"] if code == USAGE else []
    output.tell(f"{name}: {first}", *(f"  {line}" for line in rest), *hint)
    return code
