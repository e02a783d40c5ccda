"""Shows a serving's progress while it happens: its status as it changes, and the profiler's own lines."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable

from demo.console import Console, DemoError
from demo.kube import Json, Kube, condition, variant
from devcluster.pace import patience

JOB_MARK = "[specserve]"


class Follower:
    """Prints every change of one serving, and the progress lines of its profiling pods, until told to stop."""

    def __init__(self, kube: Kube, name: str, console: Console) -> None:
        self._kube, self._name, self._console = kube, name, console
        self._said = ""
        self._logs: dict[str, subprocess.Popen[str]] = {}

    def until(self, done: Callable[[Json], bool], what: str, seconds: float) -> Json:
        """Follow until ``done`` says so of the serving, and return it.

        Raises:
            DemoError: not in far more than ``seconds``, or the profile failed; with the last summary.
        """
        deadline = time.monotonic() + patience(seconds)
        try:
            while True:
                serving = self._kube.serving(self._name)
                self._tell(serving)
                if done(serving):
                    return serving
                profiled = condition(serving, "Profiled")
                if profiled.get("reason") == "Failed":
                    raise DemoError(f"profiling failed: {profiled['message']}")
                if condition(serving, "Accepted").get("status") == "False":
                    raise DemoError(condition(serving, "Accepted")["message"])
                if time.monotonic() > deadline:
                    raise DemoError(f"{what}: not within {patience(seconds):.0f} s. Last word: {self._said}")
                self._follow_pods()
                time.sleep(1)
        finally:
            self._stop_logs()

    def _tell(self, serving: Json) -> None:
        summary = serving["status"].get("summary", "")
        if summary and summary != self._said:
            self._said = summary
            self._console.say(f"status: {summary}")

    def _follow_pods(self) -> None:
        for pod in self._kube.items("pods", "-l", "specserve.dev/role=profiling"):
            name = pod["metadata"]["name"]
            if name not in self._logs and pod["status"].get("phase") == "Running":
                self._logs[name] = self._follow_log(name)

    def _follow_log(self, pod: str) -> subprocess.Popen[str]:
        command = [str(self._kube.kubectl_path), "-n", self._kube.namespace, "logs", "-f", "--since=5s", pod]
        process = subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=dict(self._kube.environment)
        )
        threading.Thread(target=self._print, args=(process,), daemon=True).start()
        return process

    def _print(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(JOB_MARK):
                self._console.say(f"  job: {line.removeprefix(JOB_MARK).strip()}")

    def _stop_logs(self) -> None:
        for process in self._logs.values():
            process.terminate()
            process.wait(timeout=patience(10))
        self._logs.clear()


def profiled(product: str, before: str = "") -> Callable[[Json], bool]:
    """Whether the profile of an accelerator is there, one that is not in ConfigMap ``before``."""

    def ready(serving: Json) -> bool:
        profile = variant(serving, product).get("profile", {})
        return bool(profile.get("state") == "Ready" and profile.get("configMap") != before)

    return ready


def serves_profile(product: str) -> Callable[[Json], bool]:
    """Whether an accelerator's pods are ready and use its profile."""

    def ready(serving: Json) -> bool:
        found = variant(serving, product)
        uses = found.get("serving") and found.get("serving") == found.get("profile", {}).get("configMap")
        return bool(uses) and found["ready"] >= max(found["replicas"], 1)

    return ready
