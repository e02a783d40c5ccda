"""What this machine looks like, to compare before and after a cluster, and the command line as a user runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from devcluster import Cluster, take_down
from devcluster.binaries import ensure_binaries
from devcluster.cache import Progress
from devcluster.namespaces import COVERED, SYSCTLS
from devcluster.pace import patience
from devcluster.state import POINTER, default_folder

DEV = Path(__file__).parents[2] / "dev"
NODE_PROGRAMS = {"containerd", "containerd-shim-runc-v2", "kubelet", "kube-proxy", "kube-scheduler", "pause", "runc"}
CommandLine = Callable[..., subprocess.CompletedProcess[str]]


def start_devcluster(*arguments: str) -> subprocess.Popen[str]:
    """Start `python -m devcluster` as a user would, without a KUBECONFIG."""
    env = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"} | {"PYTHONPATH": str(DEV)}
    command = [sys.executable, "-m", "devcluster", *arguments]
    return subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A test run in a shell's background inherits that Ctrl-C is ignored; a user's terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def run_devcluster(*arguments: str) -> tuple[int, str]:
    """Run it to its end; returns exit status and output."""
    process = start_devcluster(*arguments)
    output, _ = process.communicate(timeout=patience(120))
    return process.returncode, output


def node_processes() -> set[str]:
    """The programs of a node that run on this machine, as `pid name`; only the one full cluster has any."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                name = (entry / "exe").readlink().name
                if name in NODE_PROGRAMS:
                    found.add(f"{entry.name} {name}")
    return found


def machine() -> dict[str, set[str]]:
    """Everything of this machine that a cluster touches."""
    env = ensure_binaries(Progress(quiet=True)).environment

    def lines(*command: str) -> set[str]:
        output = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        return {line for line in output.splitlines() if not line.startswith("#")}

    folders = [Path(path) for path in (*COVERED, "/var/lib/specserve-demo", str(default_folder().parent))]
    return {
        "mounts": set(Path("/proc/self/mounts").read_text().splitlines()),
        "links": lines("ip", "-brief", "link"),
        "addresses": lines("ip", "-brief", "address"),
        "routes": lines("ip", "route", "show", "table", "all"),
        "network namespaces": {path.name for path in Path("/run/netns").glob("*")},
        "cgroups": {str(path) for path in Path("/sys/fs/cgroup").rglob("*") if path.is_dir()},
        "iptables": lines("iptables-save") | lines("ip6tables-save"),
        "sysctls": {
            f"{name}={Path('/proc/sys', name).read_text().strip()}" for name in (*SYSCTLS, "net/ipv4/ip_forward")
        },
        "processes": node_processes(),
        "folders": {str(path) for path in folders if path.exists()},
        "pointer": {str(path) for path in [POINTER] if path.is_symlink()},
    }


def assert_unchanged(before: dict[str, set[str]]) -> None:
    """Compare, naming what was added or lost."""
    after = machine()
    changes = {
        kind: {"added": after[kind] - before[kind], "lost": before[kind] - after[kind]}
        for kind in before
        if after[kind] != before[kind]
    }
    assert changes == {}


@pytest.fixture(scope="module")
def no_cluster_yet() -> Iterator[None]:
    """These tests start the one full cluster of a machine, so none may run; what a failed test left goes at the end."""
    running = Cluster.running()
    if running is not None:
        pytest.fail(f"a cluster runs on this machine (state in {running.state.folder}); `devcluster down` it first")
    take_down(None)
    yield
    take_down(None)


@pytest.fixture(scope="module")
def cluster(no_cluster_yet: None) -> Iterator[Cluster]:
    """A full cluster, started as a user starts it."""
    status, output = run_devcluster("up")
    assert status == 0, output
    running = Cluster.running()
    assert running is not None
    with running:
        yield running
