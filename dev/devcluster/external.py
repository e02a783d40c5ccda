"""Clusters that are not ours: `up` leaves them alone, and only says whether they answer."""

from __future__ import annotations

import os
import shutil
import subprocess

from devcluster.binaries import ensure_binaries
from devcluster.cache import Progress
from devcluster.errors import DevclusterError

KIND_NAME = "specserve"


def found(progress: Progress) -> bool:
    """Whether another cluster serves instead of ours: the one KUBECONFIG names, or kind where Docker answers.

    Raises DevclusterError when KUBECONFIG is set but its cluster does not answer.
    """
    if os.environ.get("KUBECONFIG"):
        _check_named(progress)
        return True
    if shutil.which("kind") and _docker_answers():
        _ensure_kind(progress)
        return True
    return False


def _check_named(progress: Progress) -> None:
    kubectl = str(ensure_binaries(progress, node=False).path("kubectl"))
    done = subprocess.run(
        [kubectl, "get", "--raw=/readyz", "--request-timeout=10s"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DevclusterError(
            f"KUBECONFIG={os.environ['KUBECONFIG']} is set, but its cluster does not answer "
            f"({done.stderr.strip()}); fix it, or unset KUBECONFIG to start the embedded cluster"
        )
    progress(f"KUBECONFIG={os.environ['KUBECONFIG']} answers: using that cluster, starting nothing")


def _docker_answers() -> bool:
    if not shutil.which("docker"):
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=20).returncode == 0


def _ensure_kind(progress: Progress) -> None:
    """A thin path, not covered by tests: `kind delete cluster --name specserve` ends what it starts."""
    listed = subprocess.run(["kind", "get", "clusters"], capture_output=True, text=True, check=True).stdout.split()
    if KIND_NAME not in listed:
        progress("Docker answers: starting a cluster with kind")
        subprocess.run(["kind", "create", "cluster", "--name", KIND_NAME, "--wait", "120s"], check=True)
    progress(f"kind cluster {KIND_NAME!r} is up (context kind-{KIND_NAME}); the embedded cluster is not needed")
