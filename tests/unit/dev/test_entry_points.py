"""`make venv` leaves the two programs beside its Python, runnable from any folder and without PYTHONPATH."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("program", "option", "says"),
    [("specserve-profile", "--version", "0.1.0\n"), ("specserve-operator", "--help", "usage: specserve-operator ")],
)
def test_the_environment_has_the_programs(program: str, option: str, says: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [Path(sys.executable).with_name(program), option]

    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(says)
