"""The trained demo pair has the acceptance that the demo needs, the same early and late in a generation."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from demopair.provide import ensure_pair
from devcluster.cache import Progress
from devcluster.enginevenv import ensure_engine
from devcluster.pace import patience

DEV = Path(__file__).parents[2] / "dev"
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def found() -> dict[str, list[float]]:
    """What `python -m demopair acceptance` prints, run as a user does."""
    python = ensure_engine(Progress(quiet=True)).python
    ensure_pair(python, print)
    command = [python, "-m", "demopair", "acceptance", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(DEV)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=patience(120))
    parsed: dict[str, list[float]] = json.loads(done.stdout)
    return parsed


def test_rates_by_position(found: dict[str, list[float]]) -> None:
    assert found["rates"] == pytest.approx([0.66, 0.38, 0.28, 0.17, 0.15], abs=0.05)


def test_rates_are_the_same_early_and_late(found: dict[str, list[float]]) -> None:
    # About 850 early and 600 late steps: 0.07 is three standard errors of the difference.
    assert found["late"] == pytest.approx(found["early"], abs=0.07)
    assert found["late"] == pytest.approx([0.66, 0.38, 0.28, 0.17, 0.15], abs=0.08)


def test_texts_end_by_themselves(found: dict[str, list[float]]) -> None:
    assert found["ended"] == 1.0
    assert 100 < found["mean_length"] < 160
