"""What tests of several folders share. Where a program or the control plane is missing, tests fail; none skips."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from devcluster import Cluster
from devcluster.binaries import ensure_binaries
from devcluster.cache import Progress

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """etcd and a real API server on free loopback ports; no controllers, no nodes."""
    with Cluster.control_plane() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def helm() -> Run:
    """Runs helm without a cluster; the test looks at returncode, stdout and stderr."""
    program = ensure_binaries(Progress(quiet=True), node=False, helm=True).path("helm")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=60)

    return run
