"""A profiling Job's container as it runs in a pod, but for the pod: from the zip, against real vLLM."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from demopair.cache import Pair
from specserve_profiler.contract import Failure, Profile
from specserve_profiler.engine import free_port
from specserve_profiler.job import BEGIN, END
from specserve_profiler.termination import read

pytestmark = pytest.mark.vllm


@dataclass
class Job:
    """A running Job and what it has printed."""

    process: "subprocess.Popen[str]"
    log: Path
    ready_port: int
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def wait_for(self, text: str, seconds: float = 150) -> None:
        deadline = time.monotonic() + seconds
        while not any(text in line for line in list(self.lines)):
            assert self.process.poll() is None, "".join(self.lines[-20:])
            assert time.monotonic() < deadline, f"no {text!r} in {seconds} s"
            time.sleep(0.1)

    @property
    def ready(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.ready_port), timeout=1):
            return True
        return False

    def leftovers(self) -> list[str]:
        """Command lines of processes that still carry the environment of this Job."""
        mark = f"SPECSERVE_READY_PORT={self.ready_port}\0".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text())
        return found


@pytest.fixture
def start(engine_python: Path, engine_environment: dict[str, str], pair: Pair, tmp_path: Path) -> Iterator[Any]:
    jobs: list[Job] = []

    def run(**changes: Any) -> Job:
        request = {
            "key": "specserve-0123456789ab",
            "model": str(pair.target),
            "speculation": {"method": "draft_model", "model": str(pair.draft), "maxTokens": 3},
            "engine": {
                "command": [str(engine_python), "-m", "vllm.entrypoints.openai.api_server"],
                "args": ["--dtype=bfloat16", "--enforce-eager", "--no-enable-prefix-caching"],
                "maxNumSeqs": 8,
                "maxModelLen": 512,
            },
            "workload": {"promptTokens": 32, "outputTokens": 64},
            "prompts": str(pair.profile_prompts),
            "batchSizes": [1, 8],
            "measureSeconds": 20,
            "timeoutSeconds": 280,
            **changes,
        }
        port = free_port()
        process = subprocess.Popen(
            [engine_python, "-m", "specserve_profiler", "job"],
            env={
                **engine_environment,
                "SPECSERVE_REQUEST": json.dumps(request),
                "SPECSERVE_READY_PORT": str(port),
                "SPECSERVE_TERMINATION_LOG": str(tmp_path / "termination-log"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        jobs.append(Job(process, tmp_path / "termination-log", port))
        return jobs[-1]

    yield run
    for job in jobs:
        if job.process.poll() is None:
            job.process.terminate()
            job.process.wait(30)


def test_a_job_measures_a_profile_and_leaves_nothing_behind(start: Any) -> None:
    job = start()
    job.wait_for("booting the baseline without speculation")
    assert not job.ready  # "loading the model"
    job.wait_for("measuring starts")
    time.sleep(0.2)
    assert job.ready
    job.wait_for(END, 240)

    assert job.process.wait(10) == 0
    profile = read(job.log)
    assert isinstance(profile, Profile)
    measured = profile.measurements
    assert profile.key == "specserve-0123456789ab"
    assert (measured.engine_version.split("+")[0], measured.scheduler) == ("0.32.0", "sync")
    assert [(cell.batch_size, cell.k) for cell in measured.grid] == [(b, k) for b in (1, 8) for k in range(4)]
    itl = {(c.batch_size, c.k): c.itl_ms.mean for c in measured.grid if c.itl_ms is not None and c.blocks >= 1}
    assert len(itl) == 8
    assert itl[8, 3] > 1.1 * itl[8, 0]  # eight requests verify 32 tokens, not 8
    al = {entry.k: entry.acceptance_length.mean for entry in measured.acceptance}
    assert al[0] == 1
    # The pair accepts .66 .38 .28 by position; a K of its own starts at other places of the text.
    assert [al[1], al[2], al[3]] == pytest.approx([1.66, 2.04, 2.32], abs=0.2)
    assert [cell.batch_size for cell in measured.baseline] == [1, 8]
    # prompts of 32 tokens at most, and half of 64
    assert 40 < measured.mean_context_tokens < 75
    assert (profile.decision.table[0].first, profile.decision.table[-1].last) == (1, 8)
    assert {"bootBaseline", "baseline", "bootEngine", "acceptance", "grid", "total"} <= set(measured.seconds)

    text = "".join(job.lines)
    full = Profile.model_validate_json(text.split(BEGIN)[1].split(END)[0])
    assert full.decision == profile.decision.model_copy(update={"speedups": full.decision.speedups})
    assert "[specserve] grid " in text and "batch size 8" in text and "s left" in text
    assert job.leftovers() == []


def test_a_job_that_is_stopped_while_it_measures_says_so_and_stops_the_engine(start: Any) -> None:
    job = start()
    job.wait_for("measuring starts")

    job.process.send_signal(signal.SIGTERM)

    assert job.process.wait(25) == 1
    failure = read(job.log)
    assert isinstance(failure, Failure) and failure.reason == "Interrupted"
    assert "measuring the baseline" in failure.message
    assert job.leftovers() == []


def test_a_profiler_that_is_killed_leaves_no_engine(start: Any) -> None:
    job = start()
    job.wait_for("measuring starts")

    os.kill(job.process.pid, signal.SIGKILL)
    job.process.wait(5)

    for _ in range(300):
        if not job.leftovers():
            break
        time.sleep(0.1)
    assert job.leftovers() == []


def test_a_wrong_model_is_named(start: Any) -> None:
    job = start(model="/no/such/model")

    assert job.process.wait(120) == 1
    failure = read(job.log)
    assert isinstance(failure, Failure) and failure.reason == "EngineFailed"
    assert "while it started" in failure.message and "/no/such/model" in failure.message
    assert job.leftovers() == []
