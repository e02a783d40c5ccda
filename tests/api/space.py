"""A namespace of a control plane, as a user of the API server sees it, and what else a test of the operator needs."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

from tests.api.conftest import CRD
from tests.api.operator_process import wait_for
from tests.api.resource import edited
from tests.builders import PROMPTS, SERVING

from devcluster import Cluster
from devcluster.api import ApiReader
from specserve_operator.api import names
from specserve_operator.api.records import Json

numbers = itertools.count(1)
GROUPS = {
    "deployments": "apis/apps/v1",
    "jobs": "apis/batch/v1",
    names.PLURAL: f"apis/{names.API_VERSION}",
}
"""Plural -> where the API server has it; else it is in ``api/v1``."""


def install_crd(cluster: Cluster, crd: Path = CRD) -> None:
    cluster.kubectl("apply", "--server-side", f"--filename={crd}")
    cluster.await_crd("speculativeservings.specserve.dev")


def add_node(cluster: Cluster, name: str, product: str, devices: int) -> None:
    """A Node that nobody runs: Ready, with devices."""
    labels = {"nvidia.com/gpu.product": product}
    cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    amounts = {"nvidia.com/gpu": str(devices), "cpu": "8"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    status = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
    cluster.kubectl("patch", "node", name, "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}")


class Space:
    """A namespace with prompts, as a user of the API server sees it."""

    def __init__(self, cluster: Cluster, name: str = "") -> None:
        self.cluster, self.name = cluster, name or f"team-{next(numbers)}"
        self._reader = ApiReader(cluster.kubeconfig)
        prompts = edited({"metadata.namespace": self.name, "metadata.uid": ""}, PROMPTS)
        del prompts["metadata"]["uid"]
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}}, prompts)

    def serving(self, name: str = "chat", **edits: Any) -> Json:
        spec = {f"spec.{path.replace('__', '.')}": value for path, value in edits.items()}
        metadata = {"name": name, "namespace": self.name}
        return edited({"metadata": metadata, **spec}, SERVING)

    def all(self, kind: str) -> dict[str, Json]:
        path = f"/{GROUPS.get(kind, 'api/v1')}/namespaces/{self.name}/{kind}"
        found = wait_for(f"{kind} can be listed", lambda: self._reader.object(path))
        return {obj["metadata"]["name"]: obj for obj in found["items"]}

    def status(self, name: str = "chat") -> Json:
        status: Json = self.all("speculativeservings")[name].get("status", {})
        return status

    def condition(self, kind: str, name: str = "chat") -> Json:
        found = (c for c in self.status(name).get("conditions", ()) if c["type"] == kind)
        return next(found, {})

    def put_prompts(self, name: str, text: str) -> None:
        meta = {"name": name, "namespace": self.name}
        data = {"prompts.jsonl": text}
        self.cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})

    def copies(self, prompts: str) -> set[str]:
        """Names of the copies of a ConfigMap's prompts."""
        found = self.all("configmaps")
        source = found[prompts]["metadata"]["uid"]
        return {n for n, c in found.items() if c["metadata"].get("labels", {}).get(names.PROMPTS_OF) == source}


def rests(space: Space) -> bool:
    """Whether nothing was written in a while. An operator that writes by itself never rests."""
    before = len(writes_in(space))
    time.sleep(2)
    return len(writes_in(space)) == before


def writes_in(space: Space) -> list[Json]:
    """Events of the audit log."""
    return [e for e in space.cluster.audit_events() if e.get("objectRef", {}).get("namespace") == space.name]


def uid(obj: Json | None) -> str:
    return str(obj["metadata"]["uid"]) if obj else ""


def restart_api_server(cluster: Cluster) -> None:
    cluster.kill("kube-apiserver")
    cluster.start("kube-apiserver")
    wait_for("the API server is ready", ApiReader(cluster.kubeconfig).ready, 60)
