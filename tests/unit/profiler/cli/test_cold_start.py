"""What a command imports: someone who asks for help waits for that alone, and a shell's loop for each table."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tests.unit.profiler.cli.doors import ROOT, shell
from tests.unit.profiler.profiles_sample import profile

from devcluster.pace import patience
from specserve_profiler.cli.app import COMMANDS

HEAVY = {"pydantic", "yaml", "numpy", "aiohttp", "asyncio", "matplotlib", "jinja2", "vllm", "torch"}


def imported(*arguments: str) -> set[str]:
    """Names of all modules that a command leaves imported."""
    code = (
        "import sys; from specserve_profiler.__main__ import main; main()\n"
        "sys.stderr.write('\\n' + ' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={"PYTHONPATH": str(ROOT / "profiler_job")},
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=True,
    )
    assert done.stdout
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_help_imports_no_model_and_no_engine(arguments: list[str]) -> None:
    found = imported(*arguments)

    assert "typer" in found
    assert HEAVY & found == set()
    ours = {name for name in found if name.startswith("specserve_profiler.")}
    assert not any(name.startswith(f"specserve_profiler.cli.{command}") for command in COMMANDS for name in ours)


def test_a_table_waits_for_no_engine_and_no_picture(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(profile().to_json())

    for arguments in (
        ["table", str(path)],
        ["check", "1-16:4"],
        ["render", str(path)],
        ["report", "--text", str(path)],
    ):
        assert {"numpy", "aiohttp", "asyncio", "matplotlib", "jinja2"} & imported(*arguments) == set()


def test_a_job_imports_nothing_of_the_command_line() -> None:
    assert {"typer", "rich", "yaml", "specserve_profiler.cli"} & imported("job") == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_are_whole_lines_on_a_terminal_of_80_columns(command: str) -> None:
    """Else who copies one copies half of it; and no sentence is broken where a line of the source ends."""
    done = shell(f"profile {command} --help", COLUMNS="80").stdout
    module = import_module(f"specserve_profiler.cli.{'report' if command == 'show' else command}")
    words, _, examples = getattr(module, command).__doc__.replace("\\[", "[").partition("\b\n")

    shown = [line.strip() for line in done.splitlines()]
    assert examples and {line.strip() for line in examples.splitlines()} <= set(shown)
    for sentence in words.split("\n\n"):
        assert " ".join(sentence.split()) in " ".join(shown)
