"""The Job's entry point, as far as it goes without an engine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.profiler.profiles_sample import profile

from devcluster.pace import patience
from specserve_profiler.cli.load import parse_profile
from specserve_profiler.contract.message import read
from specserve_profiler.contract.profile import Failure, Profile
from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.session.job import run_job
from specserve_profiler.session.run import Outcome


def test_a_job_outside_a_pod_says_that_nobody_takes_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_job({"SPECSERVE_TERMINATION_LOG": "/no/such/file"}) == 2

    assert (
        "OutputUnwritable: /no/such/file: No such file or directory: outside a pod set SPECSERVE_TERMINATION_LOG\n"
        in capsys.readouterr().out
    )


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Profile:
    """A finished profile, which every Job of this test comes to without an engine."""
    found = profile()
    monkeypatch.setattr("specserve_profiler.session.run.execute", lambda *_: Outcome(profile=found))
    return found


def test_a_profile_that_does_not_fit_is_a_failure_with_a_reason_and_whole_in_the_log(
    measured: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    monkeypatch.setattr("specserve_profiler.contract.message.encode.__defaults__", (700,))

    code = run_job({"SPECSERVE_REQUEST": request(), "SPECSERVE_TERMINATION_LOG": str(path)})

    assert code == 7
    assert read(path) == Failure(
        reason="OutputUnwritable",
        message="the result does not fit into 700 bytes; measure fewer batch sizes or a smaller Kmax. "
        "All of it is in the log of this pod.",
    )
    assert parse_profile(capsys.readouterr().out, "log") == measured


def test_a_profile_that_cannot_be_written_ends_with_seven_and_is_in_the_log(
    measured: Profile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_job({"SPECSERVE_REQUEST": request(), "SPECSERVE_TERMINATION_LOG": "/dev/full"}) == 7

    told = capsys.readouterr().out
    assert parse_profile(told, "log") == measured
    assert "OutputUnwritable: /dev/full: No space left on device: outside a pod set" in told


def request(**changes: object) -> str:
    values = {
        "key": "specserve-0123456789ab",
        "model": "m",
        "speculation": {"method": "ngram", "maxTokens": 2},
        "engine": {"command": ["/no/such/vllm", "serve"], "maxNumSeqs": 4, "maxModelLen": 512},
        "workload": {"promptTokens": 32, "outputTokens": 32},
        "prompts": {"path": "/no/such/prompts.jsonl"},
        "batchSizes": [1, 4],
        "measureSeconds": 5,
        "timeoutSeconds": 60,
    }
    return json.dumps({**values, **changes})


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        ("", "RequestInvalid", "SPECSERVE_REQUEST"),
        ('{"model": "m"}', "RequestInvalid", "speculation"),
        (request(), "PromptsInvalid", "prompts /no/such/prompts.jsonl cannot be read"),
        (
            request(engine={"args": ["-sc={}"], "maxNumSeqs": 4, "maxModelLen": 512}),
            "ArgumentsInvalid",
            "engine.args -sc={}: specserve sets -sc itself",
        ),
        (
            request(workload={"promptTokens": 32, "outputTokens": 500}),
            "WorkloadInvalid",
            "workload.outputTokens 500 leaves no room for a prompt in engine.maxModelLen 512",
        ),
    ],
)
def test_a_job_leaves_its_failure_in_the_termination_message(
    tmp_path: Path, text: str, reason: str, message: str
) -> None:
    path = tmp_path / "log"

    code = run_job({"SPECSERVE_REQUEST": text, "SPECSERVE_TERMINATION_LOG": str(path)})
    result = read(path)

    assert code == (3 if reason in ("PromptsInvalid", "WorkloadInvalid") else 2)
    assert isinstance(result, Failure)
    assert result.reason == reason
    assert message in result.message


def stuck_job(tmp_path: Path, **changes: object) -> "subprocess.Popen[str]":
    """A Job whose engine never becomes healthy."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "text {number}"}}\n' for number in range(16)))
    engine = {
        "command": [sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(600)"],
        "maxNumSeqs": 4,
        "maxModelLen": 512,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "specserve_profiler", "job"],
        env={
            "PYTHONPATH": str(Path(__file__).parents[4] / "profiler_job"),
            "SPECSERVE_REQUEST": request(prompts={"path": str(prompts)}, engine=engine, **changes),
            "SPECSERVE_TERMINATION_LOG": str(tmp_path / "log"),
        },
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_job_that_is_asked_to_stop_says_so(tmp_path: Path) -> None:
    job = stuck_job(tmp_path)
    assert job.stdout is not None
    assert any(line == "[engine] loading\n" for line in job.stdout)

    job.terminate()

    assert job.wait(patience(20)) == 143
    result = read(tmp_path / "log")
    assert isinstance(result, Failure) and result.reason == "Interrupted"
    assert "booting the engine: baseline" in result.message


def test_a_job_ends_before_its_deadline_with_what_it_reached(tmp_path: Path) -> None:
    job = stuck_job(tmp_path, timeoutSeconds=patience(1), measureSeconds=1)

    assert job.wait(patience(20)) == 6
    result = read(tmp_path / "log")
    assert isinstance(result, Failure) and result.reason == "TimedOut"
    assert "booting the engine: baseline" in result.message


def test_the_command_line_is_what_the_kubelet_makes_of_it_where_the_engine_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ProfileRequest] = []

    def execute(request: ProfileRequest, *_: object) -> Outcome:
        asked.append(request)
        return Outcome(profile=profile())

    monkeypatch.setattr("specserve_profiler.session.run.execute", execute)
    written = json.loads(request())
    written["model"] = "$(MODELS)/target"
    written["engine"]["args"] = ["--served-model-name=$(NAME)", "--chat-template={{ $$x }} $(PATH) $(GONE)"]
    environment = {
        "SPECSERVE_VALUE_MODELS": "/models",
        "SPECSERVE_VALUE_NAME": 'a "quoted" $(name)',
        "SPECSERVE_VALUE_GONE": "$(GONE)",
        "PATH": "/usr/bin",  # of the image: the kubelet does not know it
    }

    run_job(
        {
            "SPECSERVE_REQUEST": json.dumps(written),
            "SPECSERVE_TERMINATION_LOG": str(tmp_path / "log"),
            **environment,
        }
    )

    assert asked[0].model == "/models/target"
    assert asked[0].engine.args == (
        '--served-model-name=a "quoted" $(name)',
        "--chat-template={{ $x }} $(PATH) $(GONE)",
    )
