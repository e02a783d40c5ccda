"""The package as a zip: the same bytes every time, small enough for a ConfigMap, and importable where it lies."""

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pydantic

from devcluster.pace import patience
from specserve_profiler.contract.message import read
from specserve_profiler.contract.package import bare, build_zip
from specserve_profiler.contract.profile import Failure


def test_zip_is_deterministic_small_and_holds_every_module() -> None:
    content = build_zip()

    assert content == build_zip()
    assert len(content) <= 135_219  # what release 0.1 had
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    wanted = {"__init__", "__main__", "contract/profile", "dialect/render", "engine/probe", "session/job"}
    assert {f"specserve_profiler/{name}.py" for name in wanted} <= set(names)
    assert names == sorted(names) and all(name.endswith(".py") for name in names)
    assert not any("/cli/" in name or "/reports/" in name for name in names)


def test_what_the_zip_leaves_out_of_a_module_is_its_docstrings() -> None:
    source = 'from __future__ import annotations\n\nX = """a\nb"""\n"""Of X,\nmore."""\n\ndef f():\n    """Does."""\n'

    assert bare(f'"""Module.\n\nText."""\n{source}') == (
        '""\n\n\nfrom __future__ import annotations\n\nX = """a\nb"""\n""\n\n\ndef f():\n    ""\n'
    )


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
        timeout=patience(60),
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
        "import specserve_profiler.session.run, specserve_profiler.engine.server\n"
        "runpy.run_module('specserve_profiler', run_name='__main__')\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(path), "PYTHONSAFEPATH": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patience(60),
    )

    assert done.returncode == 2
    assert done.stderr == "this copy of the profiler knows one command: python -m specserve_profiler job\n"


def test_the_pure_rooms_need_pydantic_alone(tmp_path: Path) -> None:
    """As in an environment that has nothing else: each module of them loads with pydantic and what pydantic needs."""
    for name in ("pydantic", "pydantic_core", "annotated_types", "typing_extensions.py", "typing_inspection"):
        (tmp_path / name).symlink_to(Path(pydantic.__file__).parents[1] / name)
    root = Path(__file__).parents[4] / "profiler_job"
    rooms = ("contract", "dialect", "statistics", "decision")
    modules = [
        ".".join(path.relative_to(root).with_suffix("").parts)
        for room in rooms
        for path in sorted((root / "specserve_profiler" / room).glob("*.py"))
    ]
    assert len(modules) > 20
    code = f"import {', '.join(modules)}"

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = [{str(root)!r}, {str(tmp_path)!r}]; {code}"],
        capture_output=True,
        text=True,
        timeout=patience(60),
    )

    assert done.returncode == 0, done.stderr
