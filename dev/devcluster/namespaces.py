"""The network and mount namespaces that the full cluster lives in, and the little that it must change outside them.

Everything that a kubelet, a CNI and kube-proxy scatter over a machine (mounts, bridges, iptables chains, sysctls of the
network) lands in namespaces that vanish with their last process. Outside remain: one veth end with two routes, a cgroup
per controller, six kernel sysctls that the kubelet sets, and empty folders that serve as mount points.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.processes import Identity, kill_all

HOST_LINK = "specserve-host"
NODE_LINK = "specserve-node"
HOST_ADDRESS = "10.245.0.1"
NODE_ADDRESS = "10.245.0.2"
LINK_CIDR = "10.245.0.0/30"
POD_CIDR = "10.244.0.0/24"
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"  # Kubernetes gives the first of SERVICE_CIDR to the service of the API server
CGROUP_ROOT = "specserve-devcluster"
CGROUPS = Path("/sys/fs/cgroup")

# Folders of the machine that the node's programs write to wherever they are told to live; each is covered by a folder
# of the state, in the cluster's mount namespace only.
COVERED = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers", "/run/containerd", "/run/netns")
SYSCTLS = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
)

_SETUP = f"""
ip link set lo up
ip addr add {NODE_ADDRESS}/30 dev {NODE_LINK}
ip link set {NODE_LINK} up
ip route add default via {HOST_ADDRESS}
echo 1 > /proc/sys/net/ipv4/ip_forward
"""


def holder(pause: Path) -> list[str]:
    """The command line of the process that makes the namespaces and keeps them open."""
    return ["unshare", "--mount", "--net", "--propagation", "private", str(pause)]


def inside(pid: int) -> list[str]:
    """What to put before a command line so that it runs in the namespaces that process `pid` keeps open."""
    return ["nsenter", "--target", str(pid), "--mount", "--net", "--"]


def wait_until_made(keeper: Identity, timeout: float = 10) -> None:
    """Wait until the holder has left this process's namespaces."""
    own = Path("/proc/self/ns/mnt").readlink()
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with suppress(OSError):
            process = Path("/proc", str(keeper.pid))
            if (process / "exe").readlink().name == "pause" and (process / "ns/mnt").readlink() != own:
                return
        if not keeper.alive:
            raise DevclusterError("unshare failed: making namespaces needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")
        time.sleep(0.01)
    raise DevclusterError(f"the namespaces were not made within {timeout:.0f} s")


def connect(keeper: Identity, covers: Path, env: Mapping[str, str]) -> None:
    """Lay the veth pair and the routes, and cover the `COVERED` folders by folders below `covers`."""
    pair = ["ip", "link", "add", HOST_LINK, "type", "veth", "peer", "name", NODE_LINK, "netns", str(keeper.pid)]
    _run(pair, env)
    _run(["ip", "addr", "add", f"{HOST_ADDRESS}/30", "dev", HOST_LINK], env)
    _run(["ip", "link", "set", HOST_LINK, "up"], env)
    script = "set -eu" + _SETUP
    for target in COVERED:
        source = covers / target.strip("/").replace("/", "-")
        source.mkdir(parents=True)
        script += f"mount --bind '{source}' '{target}'\n"
    _run([*inside(keeper.pid), "sh", "-c", script], env)
    for cidr in (POD_CIDR, SERVICE_CIDR):
        _run(["ip", "route", "add", cidr, "via", NODE_ADDRESS, "dev", HOST_LINK], env)


def read_routes(env: Mapping[str, str]) -> list[dict[str, object]]:
    """Every IPv4 route of this machine, as `ip -json route` tells them."""
    routes: list[dict[str, object]] = json.loads(_run(["ip", "-json", "-4", "route", "show", "table", "all"], env))
    return routes


def check_free(routes: Iterable[Mapping[str, object]]) -> None:
    """Raise where a route of this machine (`ip -json route`) overlaps the cluster's networks."""
    ours = [ipaddress.ip_network(cidr) for cidr in (LINK_CIDR, POD_CIDR, SERVICE_CIDR)]
    for route in routes:
        destination = str(route["dst"])
        if destination == "default":
            continue
        network = ipaddress.ip_network(destination, strict=False)
        for cidr in ours:
            if network.version == 4 and network.prefixlen and cidr.overlaps(network):
                raise DevclusterError(
                    f"this machine already has a route to {destination} (device {route.get('dev')}), which the "
                    f"cluster needs for {cidr}; another cluster may be running: stop it, or use its KUBECONFIG"
                )


def disconnect(env: Mapping[str, str]) -> None:
    """Remove the veth pair (and with it its routes); nothing where there is none."""
    if Path("/sys/class/net", HOST_LINK).exists():
        _run(["ip", "link", "del", HOST_LINK], env)


def read_sysctls() -> dict[str, str]:
    """The kernel settings that a kubelet changes."""
    return {name: Path("/proc/sys", name).read_text().strip() for name in SYSCTLS}


def restore_sysctls(saved: Mapping[str, str]) -> None:
    """Write back what `read_sysctls` read."""
    for name, value in saved.items():
        path = Path("/proc/sys", name)
        if path.read_text().strip() != value:
            path.write_text(value)


def missing_folders(paths: Iterable[str]) -> list[str]:
    """The folders, parents first, that must be made so that `paths` exist."""
    missing: list[str] = []
    for path in paths:
        chain = [folder for folder in (Path(path), *Path(path).parents) if not folder.exists()]
        missing += [str(folder) for folder in reversed(chain) if str(folder) not in missing]
    return missing


def remove_folders(made: Iterable[str]) -> None:
    """Remove the folders that were made as mount points, children first, as far as they are empty."""
    for path in reversed(list(made)):
        with suppress(OSError):
            Path(path).rmdir()


def cgroup_folders() -> list[Path]:
    """Our cgroup in every hierarchy of this machine (one with cgroup v2, one per controller with v1)."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS / CGROUP_ROOT]
    return [folder / CGROUP_ROOT for folder in sorted(CGROUPS.iterdir()) if (folder / "cgroup.procs").exists()]


def make_cgroups() -> None:
    """Make our cgroup, below which the kubelet makes those of the pods."""
    for folder in cgroup_folders():
        folder.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):  # cgroup v1 starts them empty, which admits no process
            own, parent = folder / name, folder.parent / name
            if own.exists() and parent.exists() and not own.read_text().strip():
                own.write_text(parent.read_text())


def processes_in_cgroups() -> list[Identity]:
    """Every process of every container."""
    pids: set[int] = set()
    for folder in cgroup_folders():
        for procs in folder.rglob("cgroup.procs"):
            with suppress(OSError):
                pids.update(int(pid) for pid in procs.read_text().split())
    return [identity for pid in sorted(pids) if (identity := Identity.of(pid))]


def remove_cgroups(timeout: float = 10) -> list[Path]:
    """Kill what runs in our cgroups and remove them; returns those that would not go."""
    deadline = time.monotonic() + timeout
    while (left := [folder for folder in cgroup_folders() if folder.exists()]) and time.monotonic() < deadline:
        kill_all(processes_in_cgroups(), timeout=1)
        for folder in left:
            _remove_tree(folder)
        time.sleep(0.02)
    return left


def _remove_tree(folder: Path) -> None:
    for path, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            Path(path).rmdir()


def remove_state(folder: Path, keep: Iterable[str] = ()) -> None:
    """Remove everything in `folder` but the names in `keep`, and the folder itself when it is then empty."""
    for entry in _entries(folder):
        if entry.name in keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.ENOENT}:
            raise


def _entries(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.iterdir())) if folder.is_dir() else iter(())


def _run(command: list[str], env: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True, check=False)
    if done.returncode:
        raise DevclusterError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
