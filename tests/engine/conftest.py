"""Real vLLM for the CPU, and the demo pair to run in it."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from demopair.cache import Pair
from demopair.provide import ensure_pair
from devcluster.cache import Progress
from devcluster.enginevenv import ensure_engine
from devcluster.pace import patience
from specserve_profiler.contract.package import build_zip

RunInEngine = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The interpreter of the environment with vLLM."""
    return ensure_engine(Progress(quiet=True)).python


@pytest.fixture(scope="session")
def pair(engine_python: Path) -> Pair:
    """The demo pair, trained where the cache lacks it."""
    return ensure_pair(engine_python, print)


@pytest.fixture(scope="session")
def profiler_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profiler as the operator publishes it."""
    path = tmp_path_factory.mktemp("zip") / "profiler.zip"
    path.write_bytes(build_zip())
    return path


@pytest.fixture(scope="session")
def engine_environment(profiler_zip: Path) -> dict[str, str]:
    """The environment of a profiling Job's container: the profiler from its zip, nothing of this checkout."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPECSERVE"))}
    return {
        **inherited,
        "PYTHONPATH": str(profiler_zip),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


@pytest.fixture(scope="session")
def run_in_engine(engine_python: Path, engine_environment: dict[str, str]) -> RunInEngine:
    """Runs a program of the engine's environment to its end and returns what it printed."""

    def run(*arguments: object, **variables: str) -> "subprocess.CompletedProcess[str]":
        words: Sequence[str] = [str(engine_python), *map(str, arguments)]
        done = subprocess.run(
            words, env={**engine_environment, **variables}, capture_output=True, text=True, timeout=patience(180)
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done

    return run
