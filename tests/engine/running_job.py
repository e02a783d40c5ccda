"""A profiling Job's process under test, and all that it started: what of it is left when it has ended."""

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demopair.cache import Pair
from devcluster.pace import patience
from specserve_profiler.engine.processes import SharedFile, members, shared_memory
from specserve_profiler.engine.server import free_port


@dataclass
class RunningJob:
    """A Job and what it has printed. Its processes and their shared memory are looked at while it runs."""

    process: "subprocess.Popen[str]"
    mark: str
    """``NAME=value`` in the environment of all its processes, and of nobody else's."""
    log: Path
    """Its termination message."""
    ready_port: int
    temporaries: Path
    """Its temporary directory."""
    deadline: float
    """On the clock of time.monotonic(); by then it has ended by itself."""
    lines: list[str] = field(default_factory=list)
    shared: set[SharedFile] = field(default_factory=set)
    titles: set[str] = field(default_factory=set)
    """What its processes called themselves."""

    def __post_init__(self) -> None:
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        threading.Thread(target=self._look, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def _look(self) -> None:
        while self.process.poll() is None:
            pids = self.processes()
            self.shared |= shared_memory(pids)
            self.titles |= {title_of(pid) for pid in pids}
            time.sleep(0.3)

    @property
    def text(self) -> str:
        """All that it has printed."""
        return "".join(list(self.lines))

    @property
    def ready(self) -> bool:
        """Whether it measures."""
        return _listens(self.ready_port)

    def processes(self) -> set[int]:
        """Its processes, itself included as long as it runs."""
        return members(self.process.pid, self.mark.encode())

    def wait_for(self, pattern: str, after: int = 0) -> re.Match[str]:
        """Waits until it has printed something, in what came after the first ``after`` characters, or has ended."""
        while True:
            ended = not self._reading.is_alive() or time.monotonic() > self.deadline
            if found := re.search(pattern, self.text[after:]):
                return found
            assert not ended, f"no {pattern!r}: {self.text[-3000:]}"
            time.sleep(0.05)

    def wait(self, seconds: float = math.inf) -> int:
        """Its exit code, ``seconds`` from now at most."""
        try:
            return self.process.wait(min(seconds, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended: {self.text[-3000:]}") from None

    def engine_core(self) -> int:
        """The process id of vLLM's engine core."""
        return next(pid for pid in self.processes() if title_of(pid).startswith("VLLM::EngineCore"))

    def probe_directory(self) -> Path:
        """Where the probe of the engine that runs now writes."""
        environment = Path(f"/proc/{self.engine_core()}/environ").read_bytes().decode()
        return Path(environment.partition("SPECSERVE_PROBE_DIR=")[2].partition("\0")[0])

    def left(self) -> dict[str, list[str]]:
        """What it left behind: processes, open ports, shared memory, temporary files. Empty where nothing."""
        found = {
            "processes": [f"{pid} {title_of(pid)}" for pid in self.processes()],
            "ports": [port for port in sorted(set(re.findall(r"--port=(\d+)", self.text))) if _listens(int(port))],
            "shared memory": [file.path for file in self.shared if Path(file.path).exists()],
            "temporary files": sorted(entry.name for entry in self.temporaries.iterdir()),
        }
        return {what: names for what, names in found.items() if names}

    def end(self) -> None:
        """Ends it, whatever state it is in."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience(30))
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(patience(5))
        shutil.rmtree(self.temporaries, ignore_errors=True)


def request_of(python: Path, pair: Pair, **changes: Any) -> dict[str, Any]:
    """What a Job is asked: the demo pair, briefly, with ``changes`` of its fields."""
    return {
        "schemaVersion": 2,
        "key": "specserve-0123456789ab",
        "model": str(pair.target),
        "speculation": {"method": "draft_model", "model": str(pair.draft), "maxTokens": 3},
        "engine": {
            "command": [str(python), "-m", "vllm.entrypoints.openai.api_server"],
            "args": ["--dtype=bfloat16", "--enforce-eager", "--no-enable-prefix-caching"],
            "maxNumSeqs": 8,
            "maxModelLen": 512,
        },
        "workload": {"promptTokens": 32, "outputTokens": 64},
        "prompts": {"path": str(pair.profile_prompts)},
        "batchSizes": [1, 8],
        "measureSeconds": 20,
        "timeoutSeconds": patience(280),
        **changes,
    }


def start_job(
    python: Path, request: Mapping[str, Any], environment: Mapping[str, str], log: Path, before: Sequence[str] = ()
) -> RunningJob:
    """A Job's process, as its container runs it; ``before`` is a command that runs it."""
    port = free_port()
    given = environment.get("TMPDIR")
    temporaries = tempfile.mkdtemp(prefix="job-") if given in (None, os.environ.get("TMPDIR")) else str(given)
    process = subprocess.Popen(
        [*before, str(python), "-m", "specserve_profiler", "job"],
        env={
            **environment,
            "TMPDIR": temporaries,
            "SPECSERVE_REQUEST": json.dumps(request),
            "SPECSERVE_READY_PORT": str(port),
            "SPECSERVE_TERMINATION_LOG": str(log),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + request["timeoutSeconds"] + patience(20)
    return RunningJob(process, f"SPECSERVE_READY_PORT={port}", log, port, Path(temporaries), deadline)


def title_of(pid: int) -> str:
    """What a process calls itself; empty where it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
