"""The scheduler's and the kubelet's part, for nodes that nobody runs: pods are bound, become ready, and end."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import urllib3
from kubernetes import client, config
from tests.builders import profile

from specserve_operator.api import names
from specserve_operator.api.records import Json
from specserve_profiler.contract.message import encode

LOOK_SECONDS = 0.3
"""Between two looks."""

FAILED = (client.ApiException, urllib3.exceptions.HTTPError, OSError, ValueError)
RUNNING = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")]


class Nodes(threading.Thread):
    """While it runs, every pod of the operator's goes to a node that its selector fits; profiling pods succeed."""

    def __init__(self, kubeconfig: Path, labels: Mapping[str, Mapping[str, str]]) -> None:
        """labels: node -> its labels."""
        super().__init__(daemon=True)
        self._api: Any = client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))
        self._labels = labels
        self._ended = threading.Event()

    def __enter__(self) -> Nodes:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self._look()
            except FAILED:  # the API server is away, or somebody was faster: at the next look
                continue

    def _look(self) -> None:
        options = {"label_selector": names.ROLE, "_preload_content": False, "_request_timeout": 5}
        for pod in json.loads(self._api.list_pod_for_all_namespaces(**options).data)["items"]:
            if not pod["spec"].get("nodeName"):
                self._bind(pod)
            elif pod["status"].get("phase") == "Pending":
                self._set(pod, self._ended_well(pod) if _measures(pod) else _ready(pod))

    def _bind(self, pod: Json) -> None:
        wanted = pod["spec"].get("nodeSelector", {}).items()
        fitting = [node for node, labels in self._labels.items() if wanted <= labels.items()]
        if fitting:
            meta = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
            body = {"metadata": meta, "target": {"apiVersion": "v1", "kind": "Node", "name": fitting[0]}}
            self._api.create_namespaced_pod_binding(**meta, body=body, _preload_content=False)

    def _set(self, pod: Json, status: Json) -> None:
        meta = pod["metadata"]
        self._api.patch_namespaced_pod_status(
            meta["name"], meta["namespace"], {"status": status}, _preload_content=False
        )

    @staticmethod
    def _ended_well(pod: Json) -> Json:
        message = encode(profile(pod["metadata"]["labels"][names.PROFILE_KEY]))
        state = {"terminated": {"exitCode": 0, "reason": "Completed", "message": message}}
        return {"phase": "Succeeded", "containerStatuses": _containers(pod, state, ready=False)}


def _measures(pod: Json) -> bool:
    return bool(pod["metadata"]["labels"][names.ROLE] == names.ROLE_PROFILING)


def _ready(pod: Json) -> Json:
    state = {"running": {"startedAt": "2026-11-03T12:00:00Z"}}
    return {"phase": "Running", "conditions": RUNNING, "containerStatuses": _containers(pod, state, ready=True)}


def _containers(pod: Json, state: Json, *, ready: bool) -> list[Json]:
    return [
        {"name": c["name"], "image": c["image"], "imageID": "", "ready": ready, "restartCount": 0, "state": state}
        for c in pod["spec"]["containers"]
    ]
