"""Pure parts of the embedded cluster: what is written, refused and read."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomllib

from devcluster import controlplane, demolinks, node
from devcluster.binaries import Binaries
from devcluster.cluster import take_down, task_pid
from devcluster.controlplane import Endpoint
from devcluster.errors import DevclusterError
from devcluster.images import PAUSE_IMAGE
from devcluster.namespaces import check_free, missing_folders, remove_folders, remove_state
from devcluster.pki import Pki
from devcluster.state import State, read_state

LOOPBACK = Endpoint("127.0.0.1", "127.0.0.1", 1001, 1002, 1003, "10.96.0.0/16", in_namespace=False)


def test_the_containerd_configuration_is_toml_and_names_our_programs() -> None:
    text = node.containerd_toml(Path("/s/containerd"), Path("/s/cni"), Binaries({}, Path("/deb")))
    cri = tomllib.loads(text)["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["sandbox_image"] == PAUSE_IMAGE == "specserve.local/pause:dev"
    assert cri["cni"] == {"bin_dir": "/deb/usr/lib/cni", "conf_dir": "/s/cni"}
    assert cri["containerd"]["runtimes"]["runc"]["options"]["BinaryName"] == "/deb/usr/sbin/runc"


@pytest.mark.parametrize("taken", ["10.96.3.0/24", "10.0.0.0/8", "10.244.0.7", "10.245.0.0/30"])
def test_a_machine_that_uses_our_networks_is_refused_with_the_way_out(taken: str) -> None:
    with pytest.raises(DevclusterError, match=r"already has a route to .* \(device eth1\).*KUBECONFIG"):
        check_free([{"dst": "default", "dev": "eth0"}, {"dst": taken, "dev": "eth1"}])


def test_other_networks_are_none_of_our_business() -> None:
    check_free([{"dst": "default"}, {"dst": "192.168.1.0/24"}, {"dst": "10.1.0.0/16"}, {"dst": "127.0.0.0/8"}])


def test_an_api_server_on_loopback_is_no_endpoint_of_its_service(tmp_path: Path) -> None:
    flags = controlplane.api_server(LOOPBACK, Pki(tmp_path), tmp_path / "policy", tmp_path / "log", controllers=False)
    assert "--bind-address=127.0.0.1" in flags
    assert "--secure-port=1001" in flags
    assert "--etcd-servers=http://127.0.0.1:1002" in flags
    assert "--endpoint-reconciler-type=none" in flags
    assert "--anonymous-auth=false" in flags
    assert "--disable-admission-plugins=ServiceAccount" in flags


def test_the_main_process_of_a_container_is_read_from_ctr() -> None:
    listing = "TASK    PID     STATUS\naaa     4040    RUNNING\nbbb     0       STOPPED\n"
    assert task_pid(listing, "aaa") == 4040
    for absent in ("bbb", "ccc"):
        with pytest.raises(DevclusterError, match="does not run"):
            task_pid(listing, absent)


def test_the_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = State(tmp_path / "s", LOOPBACK, "n", True, {"kernel/panic": "1"}, ("/a", "/a/b"))
    state.save()
    assert read_state(tmp_path / "s") == state
    assert read_state(tmp_path) is None


def test_only_folders_that_were_made_and_are_empty_are_removed(tmp_path: Path) -> None:
    deep, full = tmp_path / "a" / "b", tmp_path / "c"
    made = missing_folders([str(deep), str(full), str(tmp_path)])
    assert made == [str(tmp_path / "a"), str(deep), str(full)]
    for path in made:
        Path(path).mkdir()
    (full / "somebody's").touch()
    remove_folders(made)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_logs_can_be_kept(tmp_path: Path) -> None:
    for name in ("log", "etcd"):
        (tmp_path / "s" / name).mkdir(parents=True)
    remove_state(tmp_path / "s", keep=("log",))
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["log"]
    remove_state(tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_down_leaves_a_folder_that_is_no_clusters_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DevclusterError, match="holds no cluster"):
        take_down(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_a_demo_link_has_a_plain_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(DevclusterError, match="one plain name"):
        demolinks.link(name, tmp_path)
