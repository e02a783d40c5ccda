"""The real operator as a process, and a connection to the API server that can be cut."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar
from urllib.parse import urlsplit

from devcluster.pace import patience

LOOK_SECONDS = 0.2
"""Between two looks."""

ROOT = Path(__file__).parents[2]
T = TypeVar("T")
SETTINGS = {"SPECSERVE_LEASE_SECONDS": "6", "POD_NAMESPACE": "default"}


def wait_for(what: str, look: Callable[[], T | None], seconds: float = 20) -> T:
    """What ``look`` finds, as soon as that is something; fails where that takes far more than ``seconds``."""
    deadline = time.monotonic() + patience(seconds)
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience(seconds):.0f} s: {what}")
        time.sleep(0.1)
    return found


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
    return port


class OperatorProcess:
    """``python -m specserve_operator``. As a context manager it is ended as Kubernetes would end it."""

    def __init__(self, kubeconfig: Path, log: Path, identity: str, *, sources: Path = ROOT, **settings: str) -> None:
        self._log = log
        paths = [str(sources / folder) for folder in ("operator", "profiler_job")]
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SPECSERVE_")},
            **SETTINGS,
            **settings,
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": os.pathsep.join(paths),
            "POD_NAME": identity,
        }
        self.health = f"http://127.0.0.1:{free_port()}/healthz"
        command = [sys.executable, "-m", "specserve_operator", f"--health={self.health}"]
        with log.open("w") as output:
            self.process = subprocess.Popen(command, env=env, stdout=output, stderr=output)

    def __enter__(self) -> OperatorProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if error is not None:
            error.add_note(f"log of the operator:\n{self.log[-6000:]}")

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def leads(self) -> bool:
        return "holding the Lease" in self.log

    @property
    def answers(self) -> bool:
        """Whether it says that it is alive."""
        try:
            with urllib.request.urlopen(self.health, timeout=patience(5)) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def behind(self) -> list[str] | None:
        """Kinds whose watch is behind, as the probe is told; None where nobody answers it well."""
        try:
            with urllib.request.urlopen(self.health, timeout=patience(5)) as answer:
                return list(json.load(answer)["behind"])
        except OSError:
            return None

    def wait_until_it_leads(self, seconds: float = 20) -> None:
        wait_for("the operator leads", lambda: self.leads, seconds)

    def end(self, number: int = signal.SIGTERM, seconds: float = 10) -> int:
        """Its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(patience(seconds))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


class OperatorPod(threading.Thread):
    """An operator that the kubelet starts anew, under the same name, whenever its process ends."""

    def __init__(self, kubeconfig: Path, folder: Path, identity: str, **settings: str) -> None:
        super().__init__(daemon=True)
        self._start_one = lambda: OperatorProcess(
            kubeconfig, folder / f"{identity}-{self.starts}.log", identity, **settings
        )
        self.starts = 0
        self.process = self._start_one()
        self._ended = threading.Event()

    def __enter__(self) -> OperatorPod:
        self.process.wait_until_it_leads()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self.join()
        self.process.__exit__(kind, error, trace)

    def run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            if self.process.process.poll() is not None:
                self.starts += 1
                self.process = self._start_one()


class Link:
    """A TCP connection to the API server that can be cut and mended, and a kubeconfig that goes through it."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        server = urlsplit(config["clusters"][0]["cluster"]["server"])
        self._target = (server.hostname, server.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self.kubeconfig = folder / "link.kubeconfig"
        self.kubeconfig.write_text(json.dumps(config))
        self._whole = threading.Event()
        self._whole.set()
        self._ended = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every connection, and refuse new ones."""
        self._whole.clear()

    def mend(self) -> None:
        """Let connections through again."""
        self._whole.set()

    def close(self) -> None:
        self.cut()
        self._ended = True
        self._listener.close()

    def _accept(self) -> None:
        while not self._ended:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(here,), daemon=True).start()

    def _carry(self, here: socket.socket) -> None:
        with here:
            if not self._whole.is_set():
                return
            try:
                with socket.create_connection(self._target, timeout=patience(5)) as there:
                    self._pump(here, there)
            except OSError:
                return

    def _pump(self, here: socket.socket, there: socket.socket) -> None:
        other = {here: there, there: here}
        while self._whole.is_set():
            ready, _, _ = select.select([here, there], [], [], 0.05)
            for end in ready:
                data = end.recv(65536)
                if not data:
                    return
                other[end].sendall(data)
