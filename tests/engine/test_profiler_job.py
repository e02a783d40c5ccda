"""A profiling Job's container as it runs in a pod, but for the pod: from the zip, against real vLLM."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine.running_job import RunningJob, request_of, start_job

from demopair.cache import Pair
from devcluster.pace import patience
from specserve_profiler.contract.message import read
from specserve_profiler.contract.profile import Failure, PartialProfile, Profile
from specserve_profiler.session.job import BEGIN, BEGIN_PARTIAL, END, END_PARTIAL

pytestmark = pytest.mark.vllm
Start = Callable[..., RunningJob]


@pytest.fixture
def start(engine_python: Path, engine_environment: dict[str, str], pair: Pair, tmp_path: Path) -> Iterator[Start]:
    jobs: list[RunningJob] = []

    def run(**changes: Any) -> RunningJob:
        request = request_of(engine_python, pair, **changes)
        jobs.append(start_job(engine_python, request, engine_environment, tmp_path / "termination-log"))
        return jobs[-1]

    yield run
    for job in jobs:
        job.end()


@pytest.mark.timed
def test_a_job_measures_a_profile_and_leaves_nothing_behind(engine_python: Path, pair: Pair, start: Start) -> None:
    # As most engines are deployed: with a prefix cache.
    engine = request_of(engine_python, pair)["engine"] | {"args": ["--dtype=bfloat16", "--enforce-eager"]}
    speculation = request_of(engine_python, pair)["speculation"] | {"config": {"draft-tensor-parallel-size": 1}}
    job = start(engine=engine, speculation=speculation, measureSeconds=45)  # time for the closed loop, too
    job.wait_for("booting the engine: baseline")
    assert not job.ready  # "loading the model"
    job.wait_for("measuring starts")
    time.sleep(0.2)
    assert job.ready
    job.wait_for(END)

    assert job.wait() == 0
    profile = read(job.log)
    assert isinstance(profile, Profile)
    measured = profile.measurements
    assert profile.key == "specserve-0123456789ab"
    assert (measured.engine_version.split("+")[0], measured.scheduler, measured.device) == ("0.32.0", "sync", "cpu")
    assert measured.graph_sizes == ()  # --enforce-eager
    assert [(cell.batch_size, cell.k) for cell in measured.grid] == [(b, k) for b in (1, 8) for k in range(4)]
    itl = {(c.batch_size, c.k): c.itl_ms for c in measured.grid if c.itl_ms is not None and c.blocks >= 1}
    assert len(itl) == 8
    assert itl[8, 3] > 1.1 * itl[8, 0]  # eight requests verify 32 tokens, not 8
    al = {entry.k: entry.acceptance_length.mean for entry in measured.acceptance}
    assert al[0] == 1
    # The pair accepts .66 .38 .28 by position; a K of its own starts at other places of the text.
    assert [al[1], al[2], al[3]] == pytest.approx([1.66, 2.04, 2.32], abs=0.2)
    assert {(entry.k, entry.other) for entry in measured.contrasts} >= {(2, 1), (3, 1), (3, 2)}
    assert [cell.batch_size for cell in measured.baseline] == [1, 8]
    # prompts of 32 tokens at most, and half of 64
    assert 40 < measured.mean_context_tokens < 75
    assert (profile.decision.table[0].first, profile.decision.table[-1].last) == (1, 8)
    baseline = next(loop for loop in measured.loops if loop.arm.kind == "None")
    assert [point.concurrency for point in baseline.points] == [1, 8]
    # As many tokens a second as steps of so many requests give, less what prefills take; a TTFT of a step at least.
    shares = [p.tokens_per_second.mean * itl[p.concurrency, 0] / 1000 / p.concurrency for p in baseline.points]
    assert all(0.3 < share < 1.5 for share in shares), shares
    assert all(point.ttft_ms > 0.3 * itl[point.concurrency, 0] for point in baseline.points)

    full = Profile.model_validate_json(job.text.split(BEGIN)[1].split(END)[0])
    assert (full.decision.verdict, full.decision.table) == (profile.decision.verdict, profile.decision.table)
    assert {"boot baseline", "baseline", "boot every K", "acceptance", "grid", "total"} <= set(
        full.measurements.seconds
    )
    assert full.request is not None and full.request.model.endswith("target")
    assert full.request.speculation.config == {"draft_tensor_parallel_size": 1}
    booted = re.findall(r"non-default args: .*'speculative_config': (\{.*)", job.text)  # vLLM's own word
    assert booted and all("'draft_tensor_parallel_size': 1" in config for config in booted)
    assert "[specserve] grid " in job.text and "batch size 8" in job.text and "s left" in job.text
    assert job.left() == {}


def test_a_job_that_is_stopped_while_it_measures_says_so_and_keeps_what_it_measured(start: Start) -> None:
    job = start()
    job.wait_for(r"\] baseline took")

    job.process.send_signal(signal.SIGTERM)

    assert job.wait(patience(20)) == 143
    failure = read(job.log)
    assert isinstance(failure, Failure) and failure.reason == "Interrupted"
    # The stage is over as soon as it says what it took.
    assert re.search("busy with: (measuring|stopping the engine|booting the engine): ", failure.message)
    partial = PartialProfile.model_validate_json(job.text.split(BEGIN_PARTIAL)[1].split(END_PARTIAL)[0])
    assert partial.partial.startswith("Interrupted: ")
    assert [cell.batch_size for cell in partial.measurements.baseline] == [1, 8]
    assert job.left() == {}


def test_a_profiler_that_is_killed_leaves_no_engine(start: Start) -> None:
    job = start()
    job.wait_for("measuring starts")

    os.kill(job.process.pid, signal.SIGKILL)
    job.wait()

    while job.processes() and time.monotonic() < job.deadline:
        time.sleep(0.1)
    assert job.processes() == set()
