"""The commands of ``specserve-profile`` and how they end."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from specserve_profiler import __version__
from specserve_profiler.cli import check, compare, render, report, run, table
from specserve_profiler.cli.faults import FaultError
from specserve_profiler.contract.reasons import OWN_FAULT, SIGINT, USAGE
from specserve_profiler.session.job import run_job

NAME = "specserve-profile"
_REFUSED: Any = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")
"""What typer raises for wrong usage; its home has moved between versions."""

app = typer.Typer(
    name=NAME,
    rich_markup_mode="rich",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback(
    epilog="Exit codes: 0 done; 1 the profiler's own fault, or what is checked has an error; 2 wrong usage; "
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


app.command("run", epilog=run.EPILOG)(run.run)
app.command("table")(table.table)
app.command("render")(render.render)
app.command("compare")(compare.compare)
app.command("check")(check.check)
app.command("report")(report.report)
app.command("show", hidden=True)(report.show)


@app.command()
def job() -> None:
    """What a profiling Job runs: the request comes from SPECSERVE_REQUEST, the result leaves by the termination log.

    \b
    Example, inside the engine's image:
      python -m specserve_profiler job
    """
    raise typer.Exit(run_job())


def run_app(words: list[str]) -> int:
    """Runs one command. Returns its exit code; never raises for what a person gave."""
    before, for_engine = _split(words or ["--help"])
    try:
        code = app(before, prog_name=NAME, standalone_mode=False, obj=for_engine)
        return code if isinstance(code, int) else 0
    except FaultError as fault:
        return _refuse(str(fault), before, fault.code)
    except _REFUSED as error:
        return _refuse(error.format_message(), before, USAGE)
    except (typer.Abort, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        return SIGINT
    except BrokenPipeError:
        # The reader of stdout went away; else the interpreter would complain while it closes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OWN_FAULT
    except Exception as error:
        return _own_fault(error)


def _own_fault(error: Exception) -> int:
    """The profiler's own fault: the trace is for who mends it, not for who met it."""
    with tempfile.NamedTemporaryFile("w", prefix="specserve-fault-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    sys.stderr.write(f"{NAME}: a fault of its own: {error!r}. Please report it with {file.name}\n")
    return OWN_FAULT


def _split(words: list[str]) -> tuple[list[str], list[str] | None]:
    """What is ours, and what comes after the ``--`` of ``run``: the engine's; None where there is none."""
    if words[:1] != ["run"] or "--" not in words:
        return words, None
    position = words.index("--")
    return words[:position], words[position + 1 :]


def _refuse(text: str, words: Sequence[str], code: int) -> int:
    command = next((word for word in words if not word.startswith("-")), "")
    known = command in {info.name or "job" for info in app.registered_commands}
    name = f"{NAME} {command}" if known else NAME
    hint = f"\n{name} --help teaches its use" if code == USAGE else ""
    sys.stderr.write(f"{name}: {text}".replace("\n", "\n  ") + f"{hint}\n")
    return code
