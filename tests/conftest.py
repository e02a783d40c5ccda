"""What tests of several folders share. Where a program or the control plane is missing, tests fail; none skips."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

import hypothesis
import pytest

from devcluster import Cluster
from devcluster.binaries import ensure_binaries
from devcluster.cache import Progress
from devcluster.pace import patience

# No deadlines, for machines are noisy. In CI the same examples each time; new ones are looked for elsewhere.
hypothesis.settings.register_profile(
    "specserve",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("specserve")

Golden = Callable[[str, str], None]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """etcd and a real API server on free loopback ports; no controllers, no nodes."""
    with Cluster.control_plane() as cluster:
        yield cluster


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares text with ``golden/NAME`` beside the test; with SPECSERVE_GOLDEN=write (``make golden``) writes it."""

    def check(name: str, text: str) -> None:
        path = request.path.parent / "golden" / name
        if os.environ.get("SPECSERVE_GOLDEN") == "write":
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), "read the difference; if it is meant, run `make golden`"

    return check


@pytest.fixture(scope="session")
def helm() -> Run:
    """Runs helm without a cluster; the test looks at returncode, stdout and stderr."""
    program = ensure_binaries(Progress(quiet=True), node=False, helm=True).path("helm")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=patience(60))

    return run
