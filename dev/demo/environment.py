"""Everything the main job needs around it: engine environment, model pair, cluster, images, the chart."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.console import Console, DemoError, Told
from demo.kube import Kube, wait_for
from demopair.cache import built_pair
from demopair.provide import ensure_pair
from devcluster import Cluster, DevclusterError
from devcluster import take_down as take_cluster_down
from devcluster.binaries import ensure_binaries
from devcluster.cache import Progress
from devcluster.enginevenv import ensure_engine
from devcluster.images import RECIPES
from devcluster.pace import patience

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "cpu-demo.yaml"
CHART = ROOT / "charts" / "specserve"
SERVING = "demo"
ACCELERATOR_LABEL = "specserve.dev/accelerator"
DEVICE = "specserve.dev/demo-device"
OPERATOR_NAMESPACE = "specserve-system"
RELEASE = "specserve"

GRACE_SECONDS = 10


@dataclass(frozen=True)
class Environment:
    """A cluster that is ready for the main job."""

    kube: Kube
    node: str
    cluster: Cluster | None
    """The embedded cluster; None where KUBECONFIG names another."""
    operator_namespace: str = OPERATOR_NAMESPACE

    def service_url(self, name: str) -> str:
        """URL of a Service by its ClusterIP, which the embedded cluster routes from this machine."""
        address = self.kube.get("service", name)["spec"]["clusterIP"]
        return f"http://{address}:8000"

    def heldout_prompts(self, count: int) -> list[str]:
        """Prompts of the demo's corpus that were not used for profiling."""
        lines = built_pair().heldout_prompts.read_text().splitlines()[:count]
        return [json.loads(line)["prompt"] for line in lines]

    def operator_pid(self) -> int:
        """Process id of the operator on this machine.

        Raises:
            RuntimeError: it does not run just now.
        """
        if self.cluster is None:
            raise RuntimeError("the operator's process is known on the embedded cluster only")
        kube = Kube(self.kube.kubectl_path, self.kube.helm_path, self.kube.kubeconfig, self.operator_namespace)
        pods = [p["metadata"]["name"] for p in kube.items("pods", "-l", f"app.kubernetes.io/instance={RELEASE}")]
        if len(pods) != 1:
            raise RuntimeError(f"{len(pods)} operator pods, not one")
        try:
            return self.cluster.container_pid(self.operator_namespace, pods[0], "operator")
        except DevclusterError as error:
            raise RuntimeError(str(error)) from error

    def audit_events(self) -> list[dict[str, Any]]:
        """Every write to the API server so far."""
        if self.cluster is None:
            raise RuntimeError("the audit log is known on the embedded cluster only")
        return self.cluster.audit_events()

    @property
    def shell_hint(self) -> str:
        """What puts a shell in reach of this cluster."""
        if self.cluster is None:
            return f"export KUBECONFIG={self.kube.kubeconfig}"
        return 'eval "$(PYTHONPATH=dev python3 -m devcluster env)"'


def ensure_engine_parts(console: Console) -> None:
    """The vLLM environment and the demo's model pair, from the cache or made now."""
    progress = Told(console)
    engine = ensure_engine(progress)
    ensure_pair(engine.python, console.say)


def ensure_cluster_parts(console: Console) -> None:
    """The cluster's programs and the images, from the cache or made now."""
    progress = Told(console)
    ensure_binaries(progress, helm=True)
    for name in RECIPES:
        RECIPES[name](progress)


def prepare(console: Console, namespace: str = "default", grace_seconds: int = GRACE_SECONDS) -> Environment:
    """Bring everything up; what is cached or runs already is used.

    Raises:
        DemoError: something is missing that the demo cannot make, with the way out.
    """
    progress = Told(console)
    with console.act("Engine and model pair", "at once; the first time 5 to 10 minutes"):
        engine = ensure_engine(progress)
        pair = ensure_pair(engine.python, console.say)
    with console.act("Cluster", "10 seconds; the first time 10 minutes"):
        binaries = ensure_binaries(progress, helm=True)
        cluster = None if os.environ.get("KUBECONFIG") else Cluster.running() or Cluster.up(progress=progress)
        kubeconfig = cluster.kubeconfig if cluster else Path(os.environ["KUBECONFIG"])
        kube = Kube(binaries.path("kubectl"), binaries.path("helm"), kubeconfig, namespace)
        node = _this_machines_node(kube)
        console.say(f"node {node} is Ready")
    with console.act("Images and chart", "20 seconds; the first time 2 minutes"):
        archives = _load_images(cluster, progress, console)
        for name, target in (("venv", engine.venv), ("python", engine.base_prefix), ("models", pair.folder)):
            _link(name, target, cluster)
        _offer_device(kube, node)
        _install(kube, archives["operator"].parent.name, grace_seconds, console)
        if namespace != "default":
            kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    return Environment(kube, node, cluster)


def take_down(console: Console) -> None:
    """Remove what ``prepare`` made on the cluster, and the embedded cluster itself."""
    if not os.environ.get("KUBECONFIG"):
        console.say("cluster taken down" if take_cluster_down(None) else "no cluster runs")
        return
    binaries = ensure_binaries(Told(console), node=False, helm=True)
    kube = Kube(binaries.path("kubectl"), binaries.path("helm"), Path(os.environ["KUBECONFIG"]))
    kube.kubectl("delete", "ss", SERVING, "--ignore-not-found")
    kube.helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--ignore-not-found", "--wait")
    console.say(f"release {RELEASE} removed; its CRD and the measured profiles stay")


def _this_machines_node(kube: Kube) -> str:
    """The node that is this machine: the demo's pods mount the engine from its file system."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    nodes = kube.items("nodes")
    for node in nodes:
        if node["status"]["nodeInfo"]["bootID"] == boot:
            name: str = node["metadata"]["name"]
            return name
    raise DemoError(
        "no node of this cluster is this machine. The demo's pods mount vLLM and the models by hostPath, so it needs a"
        " node here: unset KUBECONFIG for the embedded cluster, or install the chart and apply examples/serving.yaml."
    )


def _load_images(cluster: Cluster | None, progress: Progress, console: Console) -> dict[str, Path]:
    archives = {name: make(progress) for name, make in RECIPES.items()}
    for archive in archives.values():
        if cluster is not None:
            cluster.load_image(archive)
        else:
            console.say(f"load {archive} into the nodes of your cluster if it does not have this image yet")
    return archives


def _link(name: str, target: Path, cluster: Cluster | None) -> None:
    if cluster is not None:
        cluster.link_demo(name, target)
        return
    from devcluster import demolinks

    demolinks.link(name, target)


def _offer_device(kube: Kube, node: str) -> None:
    """One device that does not exist: what asks for it has the node to itself."""
    path = DEVICE.replace("/", "~1")
    patch = [{"op": "add", "path": f"/status/{part}/{path}", "value": "1"} for part in ("capacity", "allocatable")]
    kube.kubectl("patch", "node", node, "--subresource=status", "--type=json", f"--patch={json.dumps(patch)}")


def _install(kube: Kube, image: str, grace_seconds: int, console: Console) -> None:
    values = {
        "podAnnotations": {"specserve.dev/image": image},  # the tag stays: this restarts the pod for another image
        "image": {"repository": "specserve.local/operator", "tag": "dev", "pullPolicy": "IfNotPresent"},
        "operator": {"variantGraceSeconds": grace_seconds},
    }
    releases = json.loads(kube.helm("list", "--namespace", OPERATOR_NAMESPACE, "--pending", "--output", "json"))
    if any(release["name"] == RELEASE for release in releases):  # helm was interrupted, and would refuse for good
        kube.helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        kube.helm(
            "upgrade", "--install", RELEASE, str(CHART), "--namespace", OPERATOR_NAMESPACE, "--create-namespace",
            "--values", file.name, "--wait", "--timeout", f"{patience(60):.0f}s",
        )  # fmt: skip
    wait_for("the CRD", lambda: kube.kubectl("get", "crd", "speculativeservings.specserve.dev"), 30)
    console.say(f"helm installed {CHART.name} in {OPERATOR_NAMESPACE}")
