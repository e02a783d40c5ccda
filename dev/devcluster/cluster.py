"""The Python face of a cluster: what tests and the demo use."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from devcluster import demolinks, lifecycle
from devcluster.api import ApiReader
from devcluster.binaries import Binaries, ensure_binaries
from devcluster.cache import Progress
from devcluster.errors import DevclusterError
from devcluster.pace import patience
from devcluster.state import State, default_folder, exclusive, full_cluster_folder, read_state

_START_TIMEOUT = 120.0
_HARMLESS = {"log", ".state"}  # kept logs, and a state that was never renamed into place


class Cluster:
    """A running cluster of this tool: the full one, or a control plane alone.

    As a context manager it is taken down at the end.
    """

    def __init__(self, state: State) -> None:
        self.state = state

    @classmethod
    def up(
        cls,
        folder: Path | None = None,
        *,
        progress: Progress | None = None,
        timeout: float = _START_TIMEOUT,
        keep_logs: bool = False,
    ) -> Cluster:
        """Start the full cluster of this machine; `timeout` seconds for each thing waited for.

        Leftovers of an interrupted start are taken away first. Raises DevclusterError when one already runs.
        """
        folder = (folder or default_folder()).resolve()
        progress = progress or Progress(quiet=True)
        with exclusive("full"):
            for old in {folder, full_cluster_folder() or folder}:
                _clear(old, progress)
            try:
                return cls(lifecycle.start_cluster(folder, progress, timeout))
            except BaseException:
                lifecycle.tear_down(folder, read_state(folder), keep_logs=keep_logs)
                raise

    @classmethod
    def control_plane(
        cls,
        folder: Path | None = None,
        *,
        controllers: bool = False,
        progress: Progress | None = None,
        timeout: float = 60,
        die_with_parent: bool = True,
    ) -> Cluster:
        """Start etcd and an API server (and the controller manager) on free loopback ports; any number may run.

        No root needed. `die_with_parent`: the kernel ends them with the calling thread, whatever happens to it.
        """
        folder = (folder or Path(tempfile.mkdtemp(prefix="devcluster-"))).resolve()
        progress = progress or Progress(quiet=True)
        with exclusive(folder):
            _clear(folder, progress)
            try:
                arguments = {"controllers": controllers, "die": die_with_parent}
                return cls(lifecycle.start_control_plane(folder, progress, timeout, **arguments))
            except BaseException:
                lifecycle.tear_down(folder, read_state(folder), keep_logs=False)
                raise

    @classmethod
    def running(cls, folder: Path | None = None) -> Cluster | None:
        """The cluster in a state folder (default: the full cluster of this machine); None where none was started."""
        folder = folder or full_cluster_folder()
        state = read_state(folder.resolve()) if folder else None
        return cls(state) if state is not None and state.complete and state.living() else None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def down(self, *, keep_logs: bool = False) -> None:
        """Take the cluster away with everything it made; nothing where that was done already."""
        with exclusive("full" if self.state.endpoint.in_namespace else self.state.folder):
            lifecycle.tear_down(self.state.folder, self.state, keep_logs=keep_logs)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state.kubeconfig

    @property
    def url(self) -> str:
        """The API server's URL."""
        return self.state.endpoint.url

    @property
    def node(self) -> str:
        """The name of the node."""
        if self.state.node is None:
            raise DevclusterError("a control plane alone has no node; use `up` without --control-plane-only")
        return self.state.node

    @property
    def audit_log(self) -> Path:
        """The audit log: one JSON event per line for every write."""
        return self.state.audit_log

    def audit_events(self) -> list[dict[str, Any]]:
        """All writes so far, oldest first (events of audit.k8s.io/v1, level Metadata)."""
        return [json.loads(line) for line in self.audit_log.read_text().splitlines() if line.endswith("}")]

    @cached_property
    def binaries(self) -> Binaries:
        """The programs of this cluster."""
        return ensure_binaries(Progress(quiet=True), node=self.state.endpoint.in_namespace)

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment with KUBECONFIG and PATH set, for programs that talk to the cluster."""
        path = f"{self.binaries.path('kubectl').parent}:{os.environ.get('PATH', '')}"
        return dict(os.environ) | {"KUBECONFIG": str(self.kubeconfig), "PATH": path}

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 120) -> str:
        """Run kubectl as administrator; returns its output, raises DevclusterError with its errors."""
        return _run([str(self.binaries.path("kubectl")), *arguments], self.environment, stdin, timeout)

    def get(self, *arguments: str) -> dict[str, Any]:
        """`kubectl get ... -o json`, parsed."""
        parsed: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "--output=json"))
        return parsed

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """`kubectl apply` some objects."""
        self.kubectl("apply", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def await_crd(self, name: str) -> None:
        """Wait until the API server serves a CRD. At first it has no conditions, which kubectl cannot wait for.

        Raises:
            DevclusterError: with kubectl's errors, where it still does not.
        """
        deadline = time.monotonic() + patience(20)
        while True:
            try:
                self.kubectl("wait", "--for=condition=Established", f"crd/{name}")
            except DevclusterError:
                if time.monotonic() > deadline:
                    raise
            else:
                return
            time.sleep(0.2)

    def helm(self, *arguments: str, timeout: float = 300) -> str:
        """Run helm as administrator; returns its output, raises DevclusterError with its errors."""
        helm = ensure_binaries(Progress(quiet=True), node=False, helm=True).path("helm")
        return _run([str(helm), *arguments], self.environment, None, timeout)

    def ctr(self, *arguments: str) -> str:
        """Run containerd's ctr on the node, in the namespace of Kubernetes."""
        return lifecycle.run_inside(self.state, self.binaries, ["ctr", "--namespace", "k8s.io", *arguments])

    def load_image(self, archive: Path) -> None:
        """Load a docker-archive tar into the node; use it with `imagePullPolicy: IfNotPresent` or `Never`."""
        if not archive.is_file():
            raise DevclusterError(f"{archive} is not a file; make images with `devcluster image`")
        lifecycle.import_image(self.state, self.binaries, archive)

    def pid(self, component: str) -> int:
        """The process id of a component; raises where it does not run."""
        running = self.state.running().get(component)
        if running is None or not running.identity.alive:
            known = ", ".join(sorted(self.state.running()))
            raise DevclusterError(f"{component} does not run; the components of this cluster are: {known}")
        return running.identity.pid

    def answers(self) -> bool:
        """Whether the API server says that it is ready."""
        return ApiReader(self.kubeconfig).ready()

    def kill(self, component: str, number: int = signal.SIGKILL, timeout: float = 10) -> None:
        """End one component by a signal and wait until it is gone."""
        self.pid(component)
        identity = self.state.running()[component].identity
        identity.send(number)
        deadline = time.monotonic() + timeout
        while identity.alive:
            if time.monotonic() > deadline:
                raise DevclusterError(f"{component} (process {identity.pid}) did not end within {timeout:.0f} s")
            time.sleep(0.02)

    def start(self, component: str) -> None:
        """Start a component that was killed, with the command line it had."""
        running = self.state.running().get(component)
        if running is None or running.identity.alive:
            raise DevclusterError(f"{component} already runs or is unknown")
        lifecycle.restart(self.state, running)

    def container_pid(self, namespace: str, pod: str, container: str) -> int:
        """The process id, on this machine, of the main process of a running container."""
        statuses = self.get("pod", pod, f"--namespace={namespace}")["status"].get("containerStatuses", [])
        ids = [status.get("containerID", "") for status in statuses if status["name"] == container]
        if not ids or not ids[0]:
            raise DevclusterError(f"pod {namespace}/{pod} has no running container {container!r}")
        identifier = ids[0].removeprefix("containerd://")
        return task_pid(self.ctr("tasks", "list"), identifier)

    def fake_device(self, node: str, resource: str, count: int) -> None:
        """Let a node offer `count` devices, such as nvidia.com/gpu, that it does not have; 0 takes them away."""
        offered = {resource: str(count) if count else None}
        patch = {"status": {"capacity": offered, "allocatable": offered}}
        self.kubectl("patch", "node", node, "--subresource=status", "--type=merge", f"--patch={json.dumps(patch)}")

    def link_demo(self, name: str, target: Path) -> Path:
        """Make `/var/lib/specserve-demo/NAME` on the node point to a folder of this machine."""
        return demolinks.link(name, target)

    def describe(self) -> dict[str, Any]:
        """What `status --json` prints."""
        state = self.state
        return {
            "kubeconfig": str(state.kubeconfig),
            "server": state.endpoint.url,
            "node": state.node,
            "auditLog": str(state.audit_log),
            "serviceCIDR": state.endpoint.service_cidr,
            "stateFolder": str(state.folder),
            "apiPort": state.endpoint.api_port,
            "etcdPort": state.endpoint.etcd_port,
            "pids": {name: run.identity.pid for name, run in state.running().items() if run.identity.alive},
            "ended": [name for name, run in state.running().items() if not run.identity.alive],
        }


def take_down(folder: Path | None, *, keep_logs: bool = False) -> bool:
    """`down` for a state folder (default: the full cluster), whole or half; False where there was nothing."""
    folder = (folder or full_cluster_folder() or default_folder()).resolve()
    state = read_state(folder)
    if state is None and not folder.exists():
        return False
    if state is None and {entry.name for entry in folder.iterdir()} - _HARMLESS:
        raise DevclusterError(f"{folder} holds no cluster; nothing was touched")
    with exclusive(folder if state is not None and not state.endpoint.in_namespace else "full"):
        lifecycle.tear_down(folder, state, keep_logs=keep_logs)
    return True


def task_pid(listing: str, identifier: str) -> int:
    """The process id of a container in the output of `ctr tasks list`; raises where it is not running."""
    for line in listing.splitlines()[1:]:
        fields = line.split()
        if fields[0] == identifier and fields[2] == "RUNNING":
            return int(fields[1])
    raise DevclusterError(f"container {identifier[:12]} does not run")


def _clear(folder: Path, progress: Progress) -> None:
    state = read_state(folder)
    if state is not None and state.complete and state.living():
        raise DevclusterError(
            f"a cluster already runs (state in {folder}, KUBECONFIG={state.kubeconfig}); "
            f"use it, or end it with `down --state {folder}`"
        )
    if state is not None:
        progress(f"taking away what an interrupted start left ({folder})")
        lifecycle.tear_down(folder, state, keep_logs=False)
    elif folder.is_dir() and {entry.name for entry in folder.iterdir()} - _HARMLESS:
        raise DevclusterError(f"{folder} is not empty and no state of a cluster; name another folder with --state")
    elif folder.is_dir():
        shutil.rmtree(folder)


def _run(command: list[str], env: Mapping[str, str], stdin: str | None, timeout: float) -> str:
    done = subprocess.run(
        command,
        env=dict(env),
        input=stdin or "",
        capture_output=True,
        text=True,
        timeout=patience(timeout),
        check=False,
    )
    if done.returncode:
        shown = " ".join([Path(command[0]).name, *command[1:]])
        raise DevclusterError(f"`{shown}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
