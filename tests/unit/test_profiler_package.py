"""The package as a zip: the same bytes every time, small enough for a ConfigMap, and importable where it lies."""

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from specserve_profiler.contract import Failure
from specserve_profiler.package import build_zip
from specserve_profiler.termination import read


def test_zip_is_deterministic_small_and_holds_every_module() -> None:
    content = build_zip()

    assert content == build_zip()
    assert len(content) < 300_000
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    assert {"specserve_profiler/__init__.py", "specserve_profiler/contract.py", "specserve_profiler/probe.py"} <= set(
        names
    )
    assert names == sorted(names) and all(name.endswith(".py") for name in names)
    assert not any("/cli" in name for name in names)


def test_profiler_runs_from_the_zip_alone(tmp_path: Path) -> None:
    path = tmp_path / "profiler.zip"
    path.write_bytes(build_zip())
    environment = {**os.environ, "PYTHONPATH": str(path), "PYTHONSAFEPATH": "1"}

    done = subprocess.run(
        [sys.executable, "-m", "specserve_profiler", "job"],
        env={**environment, "SPECSERVE_TERMINATION_LOG": str(tmp_path / "log")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert "no profile: RequestInvalid: SPECSERVE_REQUEST" in done.stdout, done.stderr
    result = read(tmp_path / "log")
    assert isinstance(result, Failure) and result.reason == "RequestInvalid"


def test_a_job_needs_nothing_of_the_command_line(tmp_path: Path) -> None:
    """Not typer, rich, YAML or matplotlib; the zip alone says so where it is asked for another command."""
    path = tmp_path / "profiler.zip"
    path.write_bytes(build_zip())
    code = (
        "import sys, runpy\n"
        "for name in ('typer', 'rich', 'yaml', 'matplotlib'): sys.modules[name] = None\n"
        "sys.argv[1:] = ['show', 'x']\n"
        "import specserve_profiler.run, specserve_profiler.report\n"
        "runpy.run_module('specserve_profiler', run_name='__main__')\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(path), "PYTHONSAFEPATH": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 2
    assert done.stderr == "this copy of the profiler knows one command: python -m specserve_profiler job\n"


def test_nothing_but_what_every_engine_image_has_is_needed() -> None:
    """The pure half loads with pydantic and the standard library alone."""
    code = (
        "import sys\n"
        "for name in ('numpy', 'aiohttp', 'vllm', 'torch'): sys.modules[name] = None\n"
        "import specserve_profiler.contract, specserve_profiler.termination, specserve_profiler.grid\n"
        "import specserve_profiler.estimate, specserve_profiler.table, specserve_profiler.render\n"
        "import specserve_profiler.package\n"
    )
    root = Path(__file__).parents[2] / "profiler_job"

    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
