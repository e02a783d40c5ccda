"""Nodes of several types over a real API server and its controllers: a scheduler and kubelets that only say so.

``python -m tests.api.fleet [FOLDER]`` plays every story with the operator of a checkout (this one by default) and tells
how many replicas were ready when.
"""

from __future__ import annotations

import base64
import json
import ssl
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.api.operator_process import ROOT, OperatorProcess, wait_for
from tests.api.space import Space, add_node, install_crd
from tests.builders import A100, L4

from devcluster import Cluster
from devcluster.pace import patience
from specserve_operator.api import names
from specserve_operator.api.records import Json

GRACE_SECONDS = 10
SETTINGS = {"SPECSERVE_VARIANT_GRACE_SECONDS": str(GRACE_SECONDS), "SPECSERVE_LEASE_SECONDS": "60"}
"""Of the operator. A busy machine must not cost it its Lease."""
START_SECONDS = 6
"""From a pod on a node to a model that serves."""
LOOK_SECONDS = 0.2
"""Between two looks of the kubelets."""
REPLICAS = 6
PRODUCT, DEVICE = "nvidia.com/gpu.product", "nvidia.com/gpu"


class Api:
    """JSON to and from one API server, with the token of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._server, self._token = cluster["server"], config["users"][0]["user"]["token"]
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cadata=authority)),
        )

    def __call__(self, method: str, path: str, body: Json | None = None) -> Json:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._server + path, data, headers, method=method)
        with self._opener.open(request, timeout=patience(20)) as answer:
            found: Json = json.loads(answer.read())
        return found


class Kubelets:
    """Binds serving pods of one namespace to nodes with their labels and a free device, and lets them get ready."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._api, self._pods_path = Api(cluster.kubeconfig), f"/api/v1/namespaces/{namespace}/pods"
        self._bound_at: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Kubelets:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def pods(self) -> list[Json]:
        """Serving pods."""
        selector = f"?labelSelector={names.ROLE}%3D{names.ROLE_SERVING}"
        return list(self._api("GET", self._pods_path + selector)["items"])

    def ready(self) -> set[str]:
        """UIDs of those that are ready."""
        return {pod["metadata"]["uid"] for pod in self.pods() if _is(pod, "Ready")}

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self._look()
            except OSError:  # a pod that went meanwhile, or a conflict: the next look knows
                continue

    def _look(self) -> None:
        nodes = {node["metadata"]["name"]: node for node in self._api("GET", "/api/v1/nodes")["items"]}
        pods = self.pods()
        free = {name: int(node["status"].get("allocatable", {}).get(DEVICE, "0")) for name, node in nodes.items()}
        for pod in pods:
            if name := pod["spec"].get("nodeName"):
                free[name] = free.get(name, 0) - 1
        for pod in pods:
            where = f"{self._pods_path}/{pod['metadata']['name']}"
            if "deletionTimestamp" in pod["metadata"]:
                self._api("DELETE", where, {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})
            elif "nodeName" not in pod["spec"]:
                self._bind(pod, where, nodes, free)
            else:
                self._tell(pod, where, nodes.get(pod["spec"]["nodeName"]))

    def _bind(self, pod: Json, where: str, nodes: Mapping[str, Json], free: dict[str, int]) -> None:
        wanted = pod["spec"].get("nodeSelector", {}).items()
        for name, node in nodes.items():
            usable = _is(node, "Ready") and not node["spec"].get("unschedulable")
            if usable and free[name] > 0 and wanted <= node["metadata"].get("labels", {}).items():
                free[name] -= 1
                target = {"target": {"apiVersion": "v1", "kind": "Node", "name": name}}
                meta = {"metadata": {"name": pod["metadata"]["name"]}}
                self._api("POST", f"{where}/binding", {"apiVersion": "v1", "kind": "Binding", **meta, **target})
                return

    def _tell(self, pod: Json, where: str, node: Json | None) -> None:
        since = self._bound_at.setdefault(pod["metadata"]["uid"], time.monotonic())
        ready = node is not None and _is(node, "Ready") and time.monotonic() - since >= START_SECONDS
        if pod["status"]["phase"] == "Running" and ready == _is(pod, "Ready"):
            return
        condition = {"type": "Ready", "status": str(ready)}
        self._api("PATCH", f"{where}/status", {"status": {"phase": "Running", "conditions": [condition]}})


def _is(obj: Json, kind: str) -> bool:
    return any(c["type"] == kind and c["status"] == "True" for c in obj["status"].get("conditions") or ())


# What happens to nodes.


def cordon(cluster: Cluster, node: str, *, on: bool = True) -> None:
    cluster.kubectl("cordon" if on else "uncordon", node)


def tell_ready(cluster: Cluster, node: str, *, ready: bool) -> None:
    condition = {"type": "Ready", "status": "True" if ready else "Unknown", "reason": "Said", "message": ""}
    patch = json.dumps({"status": {"conditions": [condition]}})
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", f"--patch={patch}")


def offer(cluster: Cluster, node: str, devices: int) -> None:
    """What a device plugin says can be had; the devices stay."""
    patch = json.dumps({"status": {"allocatable": {DEVICE: str(devices)}}})
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", f"--patch={patch}")


def label(cluster: Cluster, node: str, product: str | None) -> None:
    cluster.kubectl("label", "node", node, f"{PRODUCT}={product}" if product else f"{PRODUCT}-", "--overwrite")


def _both(act: Callable[[Cluster, str], None]) -> Callable[[Cluster], None]:
    def acts(cluster: Cluster) -> None:
        for node in ("n1", "n2"):
            act(cluster, node)

    return acts


@dataclass(frozen=True)
class Story:
    """Nodes with 6 ready replicas, what happens to them, and what is set right after ``back_at`` seconds."""

    title: str
    nodes: tuple[tuple[str, str, int], ...]
    """(name, product, devices)."""
    happens: Callable[[Cluster], None]
    back: Callable[[Cluster], None] = lambda cluster: None
    back_at: float = 20


_TWO = (("n1", L4, 3), ("n2", A100, 3))
STORIES = {
    "new type": Story(
        "a node of a new type comes",
        (("n1", L4, 6),),
        lambda cluster: add_node(cluster, "n2", A100, 6),
    ),
    "cordon": Story(
        "one of two types is cordoned for 20 s",
        _TWO,
        lambda cluster: cordon(cluster, "n1"),
        lambda cluster: cordon(cluster, "n1", on=False),
    ),
    "not Ready": Story(
        "all nodes are not Ready for 20 s",
        _TWO,
        _both(lambda cluster, node: tell_ready(cluster, node, ready=False)),
        _both(lambda cluster, node: tell_ready(cluster, node, ready=True)),
    ),
    "device plugin": Story(
        "the device plugin of one type restarts (20 s)",
        _TWO,
        lambda cluster: offer(cluster, "n1", 0),
        lambda cluster: offer(cluster, "n1", 3),
    ),
    "labels": Story(
        "the only type loses its labels for 20 s, twice the grace",
        (("n1", L4, 6),),
        lambda cluster: label(cluster, "n1", None),
        lambda cluster: label(cluster, "n1", L4),
    ),
}


@dataclass(frozen=True)
class Told:
    """What was seen of one story."""

    ready: tuple[tuple[float, int], ...]
    """(seconds since it happened, ready replicas), about four times a second."""
    lost: int
    """Pods that served before and are gone at the end."""
    deployments: Mapping[str, int]
    """Variant -> replicas at the end."""

    @property
    def fewest(self) -> int:
        return min(count for _, count in self.ready)

    def at(self, seconds: float) -> int:
        return next((count for when, count in self.ready if when >= seconds), self.ready[-1][1])


def play(cluster: Cluster, story: Story, seconds: float = 35) -> Told:
    """From 6 ready replicas to so many seconds after it happened. The operator must run already."""
    for name, product, devices in story.nodes:
        add_node(cluster, name, product, devices)
    space = Space(cluster)
    cluster.kubectl("wait", "--for=create", "serviceaccount/default", f"--namespace={space.name}")
    with Kubelets(cluster, space.name) as kubelets:
        cluster.apply(space.serving(replicas=REPLICAS, speculation__beforeProfile="Off"))
        wait_for("all replicas are ready", lambda: len(kubelets.ready()) == REPLICAS, 60)
        before = kubelets.ready()
        seen: list[tuple[float, int]] = []
        story.happens(cluster)
        began, back = time.monotonic(), False
        while (now := time.monotonic() - began) < seconds:
            if not back and now >= story.back_at:
                story.back(cluster)
                back = True
            seen.append((now, len(kubelets.ready())))
            time.sleep(0.25)
        after = {pod["metadata"]["uid"] for pod in kubelets.pods()}
        made = {
            d["metadata"]["labels"][names.VARIANT]: d["spec"]["replicas"] for d in space.all("deployments").values()
        }
        cluster.kubectl("delete", "ss/chat", f"--namespace={space.name}")
        wait_for("its pods are gone", lambda: not kubelets.pods(), 60)
    cluster.kubectl("delete", "nodes", "--all")
    return Told(tuple(seen), len(before - after), made)


COLUMNS = (0, 1, 2, 5, 10, 12, 15, 20, 25, 30, 34)
"""Seconds."""


def main(folder: Path) -> None:
    """Play every story with the operator of a checkout, and write a table."""
    sys.stdout.write(f"| seconds after | {' | '.join(map(str, COLUMNS))} | pods lost |\n")
    sys.stdout.write(f"|---|{'---|' * (len(COLUMNS) + 1)}\n")
    with (
        tempfile.TemporaryDirectory() as logs,
        Cluster.control_plane(controllers=True, timeout=patience(60)) as cluster,
    ):
        install_crd(cluster, folder / "crds" / "speculativeservings.yaml")
        for number, story in enumerate(STORIES.values()):
            log = Path(logs, f"{number}.log")
            with OperatorProcess(cluster.kubeconfig, log, f"operator-{number}", sources=folder, **SETTINGS) as operator:
                operator.wait_until_it_leads(60)
                told = play(cluster, story)
            counts = " | ".join(str(told.at(seconds)) for seconds in COLUMNS)
            sys.stdout.write(f"| {story.title} | {counts} | {told.lost} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
