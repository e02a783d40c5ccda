"""What the end-to-end tests share: resources, waits, counts. Every wait says what it waited for."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from demo.environment import ACCELERATOR_LABEL, EXAMPLE, Environment
from demo.kube import Json, Kube, variant, wait_for

FIRST, SECOND = "e2e-cpu-a", "e2e-cpu-b"
BATCH_SIZES = [1, 4, 16]
MEASURE_SECONDS = 90
JOB_SECONDS, ROLLOUT_SECONDS = 600.0, 300.0


def serving(name: str, replicas: int) -> Json:
    """The demo's resource under another name, measured more briefly."""
    obj: Json = yaml.safe_load(EXAMPLE.read_text())
    obj["metadata"]["name"] = name
    obj["spec"]["replicas"] = replicas
    obj["spec"]["engine"]["maxNumSeqs"] = max(BATCH_SIZES)
    obj["spec"]["profile"].update(batchSizes=BATCH_SIZES, measureSeconds=MEASURE_SECONDS)
    return obj


def relabel(environment: Environment, product: str) -> None:
    """As when the machine behind a node is swapped for one with another accelerator."""
    environment.kube.label_node(environment.node, ACCELERATOR_LABEL, product)


def jobs(kube: Kube) -> list[str]:
    """Names of all profiling Jobs, sorted."""
    return sorted(j["metadata"]["name"] for j in kube.items("jobs", "-l", "specserve.dev/role=profiling"))


def profiles(kube: Kube) -> list[str]:
    """Names of all profile ConfigMaps, sorted."""
    return sorted(c["metadata"]["name"] for c in kube.items("configmaps", "-l", "specserve.dev/role=profile"))


def deployments(kube: Kube, name: str) -> list[str]:
    """Names of the Deployments of a serving, sorted."""
    return sorted(d["metadata"]["name"] for d in kube.items("deployments", "-l", f"specserve.dev/serving={name}"))


def profile_state(kube: Kube, name: str, product: str) -> Json:
    """``status.accelerators[].profile`` of one accelerator; empty where it is not there."""
    found: Json = variant(kube.serving(name), product).get("profile", {})
    return found


def job_pod(kube: Kube, job: str) -> Json | None:
    """The pod of a Job."""
    return next(iter(kube.items("pods", "-l", f"batch.kubernetes.io/job-name={job}")), None)


def serves(kube: Kube, name: str, product: str) -> bool:
    """Whether the accelerator's pods are ready with its newest profile."""
    found = variant(kube.serving(name), product)
    return bool(
        found and found.get("serving") and found["serving"] == found["profile"].get("configMap") and found["ready"] == 1
    )


@dataclass(frozen=True)
class OperatorProcess:
    """The operator's main process, as this machine sees it."""

    pid: int
    started: str

    @classmethod
    def of(cls, environment: Environment) -> OperatorProcess:
        pid = environment.operator_pid()
        return cls(pid, _start_time(pid))

    @property
    def alive(self) -> bool:
        """Whether this very process runs; a number may be given away again."""
        try:
            return _start_time(self.pid) == self.started
        except FileNotFoundError:
            return False

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it."""
        assert self.alive
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.send(signal.SIGKILL)
        wait_for("the operator's end", lambda: not self.alive, 10)

    def resident_mib(self) -> float:
        """Resident set size."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        kilobytes = next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]
        return int(kilobytes) / 1024


def _start_time(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def operators_writes(environment: Environment, since: float, until: float) -> list[dict[str, Any]]:
    """Requests by which the operator wrote, from the API server's audit log, between two times (Unix seconds)."""
    user = f"system:serviceaccount:{environment.operator_namespace}:specserve"
    return [
        event
        for event in environment.audit_events()
        if event["user"]["username"] == user and since <= _seconds(event["requestReceivedTimestamp"]) <= until
    ]


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def pause(seconds: float) -> tuple[float, float]:
    """Let time pass; returns its begin and end (Unix seconds)."""
    began = time.time()
    time.sleep(seconds)
    return began, time.time()
