"""Starting a cluster step by step, and taking it away again from whatever step it reached."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from devcluster import controlplane, demolinks, namespaces, node, processes
from devcluster.api import ApiReader
from devcluster.binaries import Binaries, ensure_binaries
from devcluster.cache import Progress
from devcluster.controlplane import Endpoint
from devcluster.errors import DevclusterError
from devcluster.images import ensure_basic_images
from devcluster.namespaces import API_SERVICE_ADDRESS, HOST_ADDRESS, NODE_ADDRESS, SERVICE_CIDR
from devcluster.pki import Pki, make_pki
from devcluster.processes import MARKER, Component, Identity, Running
from devcluster.state import POINTER, State, default_folder

HOLDER = "namespaces"


@dataclass(frozen=True)
class Starter:
    """Starts the components of one cluster and waits for them."""

    state: State
    binaries: Binaries
    progress: Progress
    timeout: float
    die_with_parent: bool = False

    def start(self, name: str, argv: list[str]) -> Identity:
        """Start a component, in the cluster's namespaces where it has some, and keep its record."""
        keeper = self.state.running().get(HOLDER)
        prefix = namespaces.inside(keeper.identity.pid) if keeper else []
        if self.die_with_parent:
            prefix = [*prefix, "setpriv", "--pdeathsig", "KILL", "--"]
        env = self.binaries.environment | {MARKER: str(self.state.folder)}
        component = Component(name, (*prefix, *argv), env, self.state.log(name))
        identity = processes.spawn(component)
        processes.save(self.state.records, Running(component, identity))
        return identity

    def wait(self, what: str, check: Callable[[], bool], needs: Iterable[str]) -> None:
        """Poll until `check()`; a dead component among `needs`, or the deadline, raises with the ends of their logs."""
        deadline = time.monotonic() + self.timeout
        while not check():
            running = self.state.running()
            dead = [name for name in needs if not running[name].identity.alive]
            if dead:
                raise DevclusterError(f"waiting for {what}: {dead[0]} ended\n{self._logs(dead[:1])}")
            if time.monotonic() > deadline:
                raise DevclusterError(f"waiting for {what}: not within {self.timeout:.0f} s\n{self._logs(needs)}")
            time.sleep(0.05)
        self.progress(what)

    def _logs(self, names: Iterable[str]) -> str:
        return "\n".join(f"  end of {self.state.log(name)}:\n{processes.tail(self.state.log(name))}" for name in names)


def start_control_plane(folder: Path, progress: Progress, timeout: float, *, controllers: bool, die: bool) -> State:
    """etcd and an API server on free loopback ports, and the controller manager if asked for. Needs no root."""
    binaries = ensure_binaries(progress, node=False)
    api, etcd, peer = _free_ports(3)
    endpoint = Endpoint("127.0.0.1", "127.0.0.1", api, etcd, peer, SERVICE_CIDR, in_namespace=False)
    state = State(folder, endpoint, None)
    state.save()
    starter = Starter(state, binaries, progress, timeout, die_with_parent=die)
    pki = make_pki(state.pki_folder, endpoint.url, ["127.0.0.1", API_SERVICE_ADDRESS], None, binaries.environment)
    _start_api_server(starter, pki, controllers=controllers)
    _wait_for_api_server(starter)
    if controllers:
        starter.start("kube-controller-manager", controlplane.controller_manager(pki, real_nodes=False))
        _wait_for_controllers(starter)
    complete = replace(state, complete=True)
    complete.save()
    return complete


def start_cluster(folder: Path, progress: Progress, timeout: float) -> State:
    """The full cluster, up to a Ready node. Needs root."""
    if os.geteuid() != 0:
        raise DevclusterError("the full cluster needs root (namespaces, cgroups); or use `up --control-plane-only`")
    binaries = ensure_binaries(progress)
    endpoint = Endpoint("0.0.0.0", NODE_ADDRESS, 6443, 2379, 2380, SERVICE_CIDR, in_namespace=True)
    namespaces.check_free(namespaces.read_routes(binaries.environment))  # before there is anything to undo
    made = namespaces.missing_folders([*namespaces.COVERED, str(folder.parent)])
    state = State(folder, endpoint, node.NODE_NAME, False, namespaces.read_sysctls(), tuple(made))
    state.save()
    starter = Starter(state, binaries, progress, timeout)
    _make_namespaces(starter)
    addresses = ["127.0.0.1", API_SERVICE_ADDRESS, NODE_ADDRESS, HOST_ADDRESS]
    pki = make_pki(state.pki_folder, endpoint.url, addresses, node.NODE_NAME, binaries.environment)
    _start_api_server(starter, pki, controllers=True)
    files = node.write_node_files(folder / "node", folder / "containerd", binaries, pki)
    starter.start("containerd", node.containerd(files))
    _import_basic_images(starter)
    _wait_for_api_server(starter)
    _start_rest(starter, pki, files)
    complete = replace(state, complete=True)
    complete.save()
    return complete


def _make_namespaces(starter: Starter) -> None:
    state = starter.state
    POINTER.symlink_to(state.folder)
    for path in state.made_folders:
        Path(path).mkdir(exist_ok=True)  # the state's parents are there by now
    keeper = starter.start(HOLDER, namespaces.holder(starter.binaries.path("pause")))
    namespaces.wait_until_made(keeper)
    namespaces.connect(keeper, state.folder / "covers", starter.binaries.environment)


def tear_down(folder: Path, state: State | None, *, keep_logs: bool) -> None:
    """Take away everything a cluster made, however far it came. Raises if a process or cgroup resists."""
    recorded = [running.identity for running in processes.load(folder / "run").values()]
    left = processes.kill_all(recorded)
    for _ in range(100):  # whatever was forked meanwhile, until a scan finds nothing
        found = processes.marked(folder)
        if not found:
            break
        left = processes.kill_all(found)
    if left:
        raise DevclusterError(f"processes {[identity.pid for identity in left]} do not end; run `down` again")
    if state is not None and state.endpoint.in_namespace:
        _undo_machine(state)
    namespaces.remove_state(folder, keep=("log",) if keep_logs else ())
    if folder == default_folder():
        namespaces.remove_folders([str(folder.parent)])  # ours by its name; kept logs may have kept it so far
    if state is not None and state.endpoint.in_namespace:
        namespaces.remove_folders(state.made_folders)
        if POINTER.is_symlink() and POINTER.readlink() == folder:
            POINTER.unlink()


def restart(state: State, running: Running) -> Identity:
    """Start a component again with the very command line it had."""
    identity = processes.spawn(running.component)
    processes.save(state.records, Running(running.component, identity))
    return identity


def run_inside(state: State, binaries: Binaries, command: list[str], stdin: Path | None = None) -> str:
    """Run a command in the cluster's namespaces; returns its output, raises DevclusterError with its errors."""
    keeper = state.running().get(HOLDER)
    if keeper is None or not keeper.identity.alive:
        raise DevclusterError("the cluster does not run (its namespaces are gone); run `up`")
    with ExitStack() as stack:
        source = stack.enter_context(stdin.open("rb")) if stdin else subprocess.DEVNULL
        done = subprocess.run(
            [*namespaces.inside(keeper.identity.pid), *command],
            env=binaries.environment,
            stdin=source,
            capture_output=True,
            check=False,
        )
    if done.returncode:
        raise DevclusterError(f"`{' '.join(command)}` failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode()


def _undo_machine(state: State) -> None:
    resisting = namespaces.remove_cgroups()
    if resisting:
        raise DevclusterError(f"cgroups {[str(path) for path in resisting]} cannot be removed; run `down` again")
    keeper = state.running().get(HOLDER)
    if keeper is not None:  # before it there was no link yet
        namespaces.disconnect(keeper.component.env)
    namespaces.restore_sysctls(state.sysctls)
    demolinks.remove_all()


def _start_api_server(starter: Starter, pki: Pki, *, controllers: bool) -> None:
    state = starter.state
    starter.start("etcd", controlplane.etcd(state.endpoint, state.folder / "etcd"))
    policy = state.folder / "audit-policy.json"
    argv = controlplane.api_server(state.endpoint, pki, policy, state.audit_log, controllers=controllers)
    starter.start("kube-apiserver", argv)


def _wait_for_api_server(starter: Starter) -> None:
    reader = ApiReader(starter.state.kubeconfig)
    starter.wait("API server ready", reader.ready, ["etcd", "kube-apiserver"])


def _wait_for_controllers(starter: Starter) -> None:
    reader = ApiReader(starter.state.kubeconfig)
    path = "/api/v1/namespaces/default/serviceaccounts/default"
    starter.wait("controllers work", lambda: reader.object(path) is not None, ["kube-controller-manager"])


def _import_basic_images(starter: Starter) -> None:
    images = ensure_basic_images(starter.binaries, starter.progress)
    socket_path = starter.state.folder / "covers/run-containerd/containerd.sock"
    starter.wait("containerd answers", socket_path.exists, ["containerd"])
    for image in images:
        import_image(starter.state, starter.binaries, image)


def import_image(state: State, binaries: Binaries, archive: Path) -> None:
    """Load a docker-archive tar into the node's containerd."""
    ctr = ["ctr", "--namespace", "k8s.io", "images", "import", "-"]
    run_inside(state, binaries, ctr, stdin=archive)


def _start_rest(starter: Starter, pki: Pki, files: node.NodeFiles) -> None:
    namespaces.make_cgroups()
    starter.start("kube-controller-manager", controlplane.controller_manager(pki, real_nodes=True))
    starter.start("kube-scheduler", controlplane.scheduler(pki))
    starter.start("kubelet", node.kubelet(files, pki))
    _bind_proxy_role(starter)
    starter.start("kube-proxy", node.proxy(files))
    demolinks.make_folder()
    _wait_for_controllers(starter)
    reader = ApiReader(starter.state.kubeconfig)
    starter.wait("node Ready", lambda: reader.node_ready(node.NODE_NAME), ["kubelet", "containerd"])
    starter.wait("kube-proxy answers", _proxy_answers, ["kube-proxy"])


def _bind_proxy_role(starter: Starter) -> None:
    role = ["--clusterrole=system:node-proxier", "--user=system:kube-proxy"]
    kubectl = [str(starter.binaries.path("kubectl")), f"--kubeconfig={starter.state.kubeconfig}"]
    command = [*kubectl, "create", "clusterrolebinding", "devcluster-proxy", *role]
    subprocess.run(command, check=True, capture_output=True)


def _proxy_answers() -> bool:
    with suppress(OSError), socket.create_connection((NODE_ADDRESS, node.PROXY_HEALTH_PORT), timeout=1):
        return True
    return False


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def interrupt_on_sigterm() -> None:
    """Let SIGTERM end this program as Ctrl-C does, so that what it started is taken away."""

    def handler(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, handler)
