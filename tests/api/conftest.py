"""A control plane that knows SpeculativeServing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.resource import MINIMAL, Servings

from devcluster import Cluster

CRD = Path(__file__).parents[2] / "crds" / "speculativeservings.yaml"


@pytest.fixture(scope="session")
def cluster(control_plane: Cluster) -> Cluster:
    """The control plane with the CRD that the project ships."""
    control_plane.kubectl("apply", "--server-side", f"--filename={CRD}")
    control_plane.await_crd("speculativeservings.specserve.dev")
    control_plane.kubectl("api-resources")  # kubectl looks for categories in what it has discovered before
    return control_plane


@pytest.fixture(scope="session")
def servings(cluster: Cluster) -> Servings:
    """Client of the resource."""
    return Servings(cluster.kubeconfig)


@pytest.fixture
def chat(servings: Servings) -> Iterator[str]:
    """Name of a minimal SpeculativeServing that exists during the test."""
    created = servings.create(MINIMAL)
    assert isinstance(created, dict), created
    yield "chat"
    servings.delete("chat")
