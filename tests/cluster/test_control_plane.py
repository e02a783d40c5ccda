"""A control plane alone: quick, any number of them, and gone with whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from devcluster import Cluster
from devcluster.pace import patience
from devcluster.processes import Identity

from .conftest import DEV, run_devcluster

pytestmark = pytest.mark.cluster


def test_two_start_and_share_nothing(tmp_path: Path) -> None:
    with Cluster.control_plane(tmp_path / "a") as first, Cluster.control_plane(tmp_path / "b") as second:
        first.kubectl("create", "namespace", "only-here")
        assert "only-here" not in second.kubectl("get", "namespaces")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_api_server_comes_back_with_its_data(tmp_path: Path) -> None:
    with Cluster.control_plane(tmp_path / "a") as cluster:
        cluster.kubectl("create", "namespace", "kept")
        cluster.kill("kube-apiserver")
        cluster.start("kube-apiserver")
        deadline = time.monotonic() + patience(20)
        while not cluster.answers():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "kept" in cluster.kubectl("get", "namespaces")


def test_controllers_make_pods_but_let_hand_made_nodes_be(tmp_path: Path) -> None:
    with Cluster.control_plane(tmp_path / "a", controllers=True) as cluster:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "made-by-hand"}}
        cluster.apply(node)
        cluster.fake_device("made-by-hand", "nvidia.com/gpu", 8)
        cluster.kubectl("create", "deployment", "d", "--image=none")
        cluster.kubectl("wait", "--for=create", "pod", "--selector=app=d", f"--timeout={patience(20):.0f}s")
        assert cluster.get("node", "made-by-hand")["status"]["allocatable"]["nvidia.com/gpu"] == "8"


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = """
import time
from devcluster import Cluster
c = Cluster.control_plane()
print(c.pid("etcd"), c.pid("kube-apiserver"), flush=True)
time.sleep(36_000)
"""
    env = os.environ | {"PYTHONPATH": str(DEV), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    etcd, api_server = process.stdout.readline().split()
    identities = [Identity.of(int(etcd)), Identity.of(int(api_server))]
    assert None not in identities
    process.send_signal(signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + patience(5)
    while any(identity is not None and identity.alive for identity in identities):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_from_the_command_line_it_stays_until_down(tmp_path: Path) -> None:
    folder = str(tmp_path / "cp")
    status, output = run_devcluster("up", "--control-plane-only", "--state", folder)
    assert status == 0, output
    assert f"export KUBECONFIG={folder}/pki/admin.kubeconfig" in output
    assert run_devcluster("up", "--control-plane-only", "--state", folder)[0] == 1
    assert run_devcluster("down", "--state", folder) == (0, "down\n")
    assert not Path(folder).exists()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cp").mkdir()
    (tmp_path / "cp" / "notes.txt").write_text("mine")
    status, output = run_devcluster("up", "--control-plane-only", "--state", str(tmp_path / "cp"))
    assert status == 1
    assert "not empty" in output
    assert (tmp_path / "cp" / "notes.txt").read_text() == "mine"
