"""Configuration of the one node: containerd, CNI, kubelet, kube-proxy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devcluster.binaries import Binaries
from devcluster.images.basic import PAUSE_IMAGE
from devcluster.namespaces import CGROUP_ROOT, NODE_ADDRESS, POD_CIDR
from devcluster.pki import Pki

NODE_NAME = "specserve-dev"

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"  # in the cluster's own mount namespace
PROXY_HEALTH_PORT = 10256

# ptp, not bridge: every packet between pods is routed by the node, so that ClusterIPs work without br_netfilter.
_CNI = {
    "cniVersion": "0.4.0",
    "name": "devcluster",
    "plugins": [
        {
            "type": "ptp",
            "ipMasq": False,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": POD_CIDR}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }
    ],
}


@dataclass(frozen=True)
class NodeFiles:
    """Where the node's configuration lies."""

    containerd: Path
    kubelet: Path
    proxy: Path


def write_node_files(folder: Path, data: Path, binaries: Binaries, pki: Pki) -> NodeFiles:
    """Write all configuration below `folder`; containerd keeps its images below `data`."""
    cni = folder / "cni"
    cni.mkdir(parents=True)
    _write_json(cni / "10-devcluster.conflist", _CNI)
    files = NodeFiles(folder / "containerd.toml", folder / "kubelet.json", folder / "proxy.json")
    files.containerd.write_text(containerd_toml(data, cni, binaries))
    _write_json(files.kubelet, kubelet_configuration(pki))
    _write_json(files.proxy, proxy_configuration(pki))
    return files


def containerd_toml(data: Path, cni: Path, binaries: Binaries) -> str:
    """containerd's configuration; `restrict_oom_score_adj` because machines may lack CAP_SYS_RESOURCE."""
    return f"""\
version = 2
root = "{data}"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{data}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{binaries.cni_folder}"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{binaries.runc}"
"""


def kubelet_configuration(pki: Pki) -> dict[str, object]:
    """KubeletConfiguration: cgroup v1 and swap are tolerated, images and nearly full disks are left alone."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": pki.file("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP_ROOT}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "makeIPTablesUtilChains": False,
    }


def proxy_configuration(pki: Pki) -> dict[str, object]:
    """KubeProxyConfiguration; conntrack limits are the machine's, and cannot be set from a network namespace."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(pki.kubeconfig("proxy"))},
        "mode": "iptables",
        "clusterCIDR": POD_CIDR,
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": f"{NODE_ADDRESS}:{PROXY_HEALTH_PORT}",
        "metricsBindAddress": "127.0.0.1:10249",
    }


def kubelet(files: NodeFiles, pki: Pki) -> list[str]:
    """The kubelet's command line."""
    return [
        "kubelet",
        f"--config={files.kubelet}",
        f"--kubeconfig={pki.kubeconfig('kubelet')}",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={NODE_ADDRESS}",
    ]


def proxy(files: NodeFiles) -> list[str]:
    """kube-proxy's command line."""
    return ["kube-proxy", f"--config={files.proxy}", f"--hostname-override={NODE_NAME}"]


def containerd(files: NodeFiles) -> list[str]:
    """containerd's command line."""
    return ["containerd", "--config", str(files.containerd)]


def _write_json(path: Path, data: Mapping[str, object]) -> None:
    path.write_text(json.dumps(data, indent=1))
