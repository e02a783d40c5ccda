"""What the examples say is taken by a real API server and by the operator."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from devcluster import Cluster
from specserve_operator.api.serving import SpeculativeServing
from specserve_operator.decide.accept import refusal

pytestmark = pytest.mark.apiserver

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.yaml"))


def test_there_are_examples() -> None:
    assert [path.name for path in EXAMPLES] == ["cpu-demo.yaml", "serving.yaml"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_accepted(cluster: Cluster, path: Path) -> None:
    said = cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-f", str(path), "-o", "yaml")
    stored = yaml.safe_load(said)
    assert refusal(SpeculativeServing.read({**stored, "metadata": {**stored["metadata"], "uid": "u"}}).spec) is None
