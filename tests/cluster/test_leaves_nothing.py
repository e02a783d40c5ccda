"""Whatever happens to `up`, nothing of a cluster stays on the machine after `down`, or after the next `up`."""

from __future__ import annotations

import signal
import time

import pytest

from devcluster import Cluster
from devcluster.pace import patience
from devcluster.state import default_folder

from .conftest import assert_unchanged, machine, run_devcluster, start_devcluster
from .test_full_cluster import container, web_server

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("no_cluster_yet")]


def interrupt_up_at(component: str, number: signal.Signals) -> tuple[int, str]:
    """Start `up`, send it a signal as soon as a component has its record, return its exit status and output."""
    process = start_devcluster("up")
    deadline = time.monotonic() + patience(60)
    while not (default_folder() / "run" / f"{component}.json").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    output, _ = process.communicate(timeout=patience(60))
    return process.returncode, output


def test_down_leaves_nothing_of_running_pods_and_their_volumes() -> None:
    before = machine()
    assert run_devcluster("up")[0] == 0
    cluster = Cluster.running()
    assert cluster is not None
    deployment, service = web_server("web", "x")
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    deployment["spec"]["template"]["spec"] |= {
        "volumes": volumes,
        "containers": [container("exec sleep 1000", volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}])],
    }
    cluster.apply(deployment, service)
    cluster.kubectl("rollout", "status", "deployment/web", f"--timeout={patience(40):.0f}s")
    during = machine()
    assert during["links"] != before["links"]
    assert during["processes"] != before["processes"]

    assert run_devcluster("down") == (0, "down\n")

    assert_unchanged(before)
    assert run_devcluster("down") == (0, "nothing runs here\n")


def test_ctrl_c_in_the_middle_of_up_takes_everything_away() -> None:
    before = machine()
    status, output = interrupt_up_at("kubelet", signal.SIGINT)
    assert status == 130
    assert "interrupted" in output
    assert_unchanged(before)


@pytest.mark.parametrize("component", ["namespaces", "kubelet"])
def test_down_cleans_up_after_an_up_that_was_killed(component: str) -> None:
    before = machine()
    interrupt_up_at(component, signal.SIGKILL)
    assert Cluster.running() is None
    assert run_devcluster("down") == (0, "down\n")
    assert_unchanged(before)


def test_the_next_up_recovers_from_one_that_was_killed() -> None:
    before = machine()
    interrupt_up_at("containerd", signal.SIGKILL)
    status, output = run_devcluster("up")
    assert status == 0, output
    assert "interrupted start" in output
    assert run_devcluster("down", "--keep-logs")[0] == 0
    assert [path.name for path in default_folder().iterdir()] == ["log"]
    assert run_devcluster("down") == (0, "down\n")
    assert_unchanged(before)
