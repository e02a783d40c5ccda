"""kubectl as functions: the few things that the demo and the end-to-end tests do to a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster.pace import patience

Json = dict[str, Any]


@dataclass(frozen=True)
class Kube:
    """kubectl and helm against one cluster, in one namespace."""

    kubectl_path: Path
    helm_path: Path
    kubeconfig: Path
    namespace: str = "default"

    @property
    def environment(self) -> Mapping[str, str]:
        """For programs that talk to this cluster."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Output of kubectl.

        Raises:
            RuntimeError: with kubectl's own words.
        """
        return self._run([str(self.kubectl_path), "-n", self.namespace, *arguments], stdin)

    def helm(self, *arguments: str) -> str:
        """Output of helm. Raises RuntimeError with helm's own words."""
        return self._run([str(self.helm_path), *arguments], "")

    def get(self, *arguments: str) -> Json:
        """One object or a list, as JSON."""
        found: Json = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def items(self, *arguments: str) -> list[Json]:
        """The objects of a list."""
        found: list[Json] = self.get(*arguments)["items"]
        return found

    def apply(self, obj: Json | str) -> None:
        """Server-side apply of an object or of YAML."""
        self.kubectl(
            "apply", "--server-side", "--force-conflicts", "-f", "-",
            stdin=obj if isinstance(obj, str) else json.dumps(obj),
        )  # fmt: skip

    def patch(self, kind: str, name: str, body: Json) -> None:
        """Merge patch."""
        self.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(body))

    def label_node(self, node: str, label: str, value: str) -> None:
        """Set a label of a node, as a labeller would when a machine is swapped."""
        self.kubectl("label", "node", node, f"{label}={value}", "--overwrite")

    def serving(self, name: str) -> Json:
        """A SpeculativeServing, its status never missing."""
        obj = self.get("speculativeserving", name)
        obj.setdefault("status", {})
        return obj

    def _run(self, command: list[str], stdin: str) -> str:
        done = subprocess.run(
            command,
            input=stdin,
            text=True,
            capture_output=True,
            env=dict(self.environment),
            timeout=patience(300),
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{Path(command[0]).name} {' '.join(command[1:])}: {done.stderr.strip()}")
        return done.stdout


def wait_for(what: str, ready: Callable[[], Any], seconds: float, pause: float = 0.5) -> Any:
    """The first truthy answer of ``ready``.

    Raises:
        TimeoutError: none came in far more than ``seconds``; says what was waited for.
    """
    deadline = time.monotonic() + patience(seconds)
    while True:
        answer = ready()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {patience(seconds):.0f} s: {what}")
        time.sleep(pause)


def condition(serving: Json, kind: str) -> Json:
    """A condition of a serving; empty where it is not set."""
    found: Json = next((c for c in serving["status"].get("conditions", ()) if c["type"] == kind), {})
    return found


def variant(serving: Json, product: str) -> Json:
    """The status of one accelerator; empty where it is not there."""
    found: Json = next((a for a in serving["status"].get("accelerators", ()) if a["product"] == product), {})
    return found
