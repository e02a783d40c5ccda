"""What goes wrong, provoked for real: each has a reason, a message with the way out, an exit code. None leaves a thing.

Those that fail at boot are started together, for they wait most of the time.
"""

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.engine.running_job import RunningJob, request_of, start_job

from demopair.cache import Pair
from devcluster.pace import patience
from specserve_profiler.contract.message import read
from specserve_profiler.contract.profile import Failure, Profile
from specserve_profiler.session.job import BEGIN, END

pytestmark = pytest.mark.vllm
Start = Callable[..., RunningJob]


@pytest.fixture(scope="module")
def start(
    engine_python: Path, engine_environment: dict[str, str], pair: Pair, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Start]:
    jobs: list[RunningJob] = []

    def run(*before: str, changes: dict[str, Any] | None = None, **variables: str) -> RunningJob:
        briefly = {"batchSizes": [8], "measureSeconds": 4, "verify": "Off"}
        request = request_of(engine_python, pair, **{**briefly, **(changes or {})})
        log = tmp_path_factory.mktemp("job") / "termination-log"
        jobs.append(start_job(engine_python, request, {**engine_environment, **variables}, log, before))
        return jobs[-1]

    yield run
    for job in jobs:
        job.end()


@pytest.fixture(scope="module")
def failing(start: Start, pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunningJob]]:
    """A Job for each failure at boot, all of them running."""
    folder = tmp_path_factory.mktemp("bad")
    damaged = shutil.copytree(pair.target, folder / "damaged")
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    foreign = shutil.copytree(pair.draft, folder / "foreign")
    config = json.loads((foreign / "config.json").read_text())
    (foreign / "config.json").write_text(json.dumps({**config, "vocab_size": 777}))
    (folder / "full").mkdir()
    # A disk of one page, in a mount namespace of the Job's own.
    tiny = 'mount -t tmpfs -o size=4k tmpfs "$0" && exec "$@"'
    private = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    mt_bench = {"hub": {"name": "philschmid/mt-bench", "column": "turns"}}
    with ExitStack() as stack:
        jobs = {
            "disk": start(*private, "sh", "-c", tiny, str(folder / "full"), TMPDIR=str(folder / "full")),
            "port": start(),
            "dataset": start(
                changes={"prompts": mt_bench},
                HF_ENDPOINT="http://127.0.0.1:9",
                HF_HUB_OFFLINE="0",
                HF_HOME=str(folder / "hub"),
            ),
            "memory": start(VLLM_CPU_KVCACHE_SPACE="4000"),
            "damaged": start(changes={"model": str(damaged)}),
            "drafter": start(
                changes={
                    "speculation": {"method": "draft_model", "model": str(foreign), "maxTokens": 3},
                    "measureSeconds": 1,
                }
            ),
        }
        _fill_disk(jobs["disk"], folder / "full")
        _take_ports(jobs["port"], stack)
        yield jobs


def _fill_disk(job: RunningJob, folder: Path) -> None:
    """Takes all of the Job's disk, as soon as it has made the folder that the engine's probe writes to."""
    job.wait_for("booting the engine")
    Path(f"/proc/{job.process.pid}/root{folder}/taken").write_bytes(bytes(4096))


def _take_ports(job: RunningJob, stack: ExitStack) -> None:
    """Listens on every port that the Job gives its engine, long before the engine gets there."""
    seen = 0
    for _ in range(3):
        found = job.wait_for(r"booting the engine: .*--port=(\d+)", after=seen)
        seen += found.end()
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", int(found[1])))
        listener.listen()


@pytest.mark.parametrize(
    ("name", "reason", "code", "cause", "way_out"),
    [
        (
            "port",
            "PortInUse",
            4,
            "while it started: OSError: [Errno 98] Address already in use.",
            "End what listens there, or run it again.",
        ),
        (
            "dataset",
            "DatasetUnreachable",
            3,
            "dataset philschmid/mt-bench cannot be read (",
            "set HF_ENDPOINT to a mirror, or download the dataset and give it as a file",
        ),
        (
            "memory",
            "OutOfMemory",
            4,
            "on kv cache allocation is less than requested memory for kv (4000.0 GiB)",
            "Set VLLM_CPU_KVCACHE_SPACE (GiB) to what the machine or the container's memory limit leaves",
        ),
        (
            "damaged",
            "ModelUnreadable",
            4,
            "SafetensorError: Error while deserializing header",
            "Its weights are damaged or cut short: download them again.",
        ),
        ("disk", "DiskFull", 7, "No space left on device", "Free some, or give the folder that it names, TMPDIR"),
        (
            "drafter",
            "DrafterMismatch",
            4,
            "the draft model has a vocabulary of 777 tokens, its target one of 1024",
            "choose a drafter that was made for this target",
        ),
    ],
)
def test_a_failure_at_boot(
    failing: dict[str, RunningJob], name: str, reason: str, code: int, cause: str, way_out: str
) -> None:
    job = failing[name]

    assert job.wait() == code, job.text[-3000:]
    failure = read(job.log)
    assert isinstance(failure, Failure) and failure.reason == reason
    assert cause in failure.message and way_out in failure.message
    assert f"[specserve] no profile: {reason}: {failure.message}" in job.text
    if name == "port":
        assert job.text.count("another program took the engine's port") == 2
        return  # the ports are the test's own
    assert job.left() == {}


def _freeze_in_a_cell(job: RunningJob) -> tuple[int, int]:
    """Stops the engine core in a cell of the grid with K > 0; what the cell is."""
    core, directory = job.engine_core(), job.probe_directory()
    while time.monotonic() < job.deadline:
        os.kill(core, signal.SIGSTOP)
        cell = tuple(map(int, (directory / "cell").read_text().split()))
        if cell in {(8, 1), (8, 2), (8, 3)}:
            return cell[0], cell[1]
        os.kill(core, signal.SIGCONT)
        time.sleep(0.02)
    raise AssertionError("it never was in such a cell")


@pytest.mark.timed
def test_an_engine_that_crashes_in_one_cell_and_hangs_in_another_costs_these_cells_and_no_more(start: Start) -> None:
    timeout = patience(200)
    job = start(changes={"measureSeconds": 24, "timeoutSeconds": timeout})
    lost: dict[str, tuple[int, int]] = {}
    seen = 0
    for what in ("crash", "hang"):
        seen += job.wait_for(r"grid \d+ % batch size 8", after=seen).end()
        lost[what] = _freeze_in_a_cell(job)
        if what == "crash":
            os.kill(job.engine_core(), signal.SIGKILL)
        seen += job.wait_for("the engine is booted anew, without that cell", after=seen).end()

    assert job.wait() == 0, job.text[-3000:]
    profile = Profile.model_validate_json(job.text.split(BEGIN)[1].split(END)[0])
    cells = {(cell.batch_size, cell.k): cell for cell in profile.measurements.grid}
    assert set(cells) == {(8, k) for k in range(4)}
    assert {where for where, cell in cells.items() if cell.itl_ms is None} == set(lost.values())
    assert "ended" in (cells[lost["crash"]].skipped or "")
    assert (cells[lost["hang"]].skipped or "").startswith(
        f"the engine made no step for {min(timeout / 10, 120):.0f} s with work to do"
    )
    assert sum("was given up" in warning for warning in profile.decision.warnings) == 2
    # That its processes and their shared memory would be seen at all:
    assert any(title.startswith("VLLM::EngineCore") for title in job.titles) and job.shared
    assert job.left() == {}
