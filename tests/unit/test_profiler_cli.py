"""The command line, the report and the Job's entry point, as far as they go without an engine."""

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path

import pytest

from specserve_profiler.cli import main
from specserve_profiler.contract import (
    Acceptance,
    BaselineCell,
    Cell,
    Failure,
    Interval,
    Measurements,
    Profile,
    Row,
    short_table,
)
from specserve_profiler.job import run_job
from specserve_profiler.report import WIDTH, report
from specserve_profiler.table import decide
from specserve_profiler.termination import read

RUN = ["run", "--model=m", "--method=draft_model", "--draft-model=d", "--max-num-seqs=8", "--max-model-len=512"]


def profile(sizes: tuple[int, ...] = (1, 8), kmax: int = 2) -> Profile:
    """ITL 10 ms + 2 ms per draft token of each request of 8; AL 1.0, 1.7, 2.2, then .1 more each."""
    al = [1.0, 1.7, 2.2] + [2.2 + 0.1 * i for i in range(1, kmax - 1)]
    cells = [
        Cell(batch_size=b, k=k, itl_ms=Interval(mean=10 + k * (1 + b / 4), half_width=0.3), blocks=20)
        for b in sizes
        for k in range(kmax + 1)
    ]
    cells[-1] = Cell(batch_size=cells[-1].batch_size, k=cells[-1].k, skipped="no room in the KV cache")
    measured = Measurements(
        engine_version="0.32.0",
        scheduler="sync",
        grid=tuple(cells),
        acceptance=tuple(
            Acceptance(k=k, acceptance_length=Interval(mean=al[k], half_width=0.02 if k else 0), prompts=80 if k else 0)
            for k in range(kmax + 1)
        ),
        baseline=tuple(BaselineCell(batch_size=b, itl_ms=Interval(mean=9.5, half_width=0.2), blocks=20) for b in sizes),
        mean_context_tokens=96.4,
        seconds={"bootBaseline": 25.2, "grid": 46.0, "total": 155.0},
    )
    return Profile(
        key="specserve-0123456789ab",
        measured_at=dt.datetime(2026, 11, 3, 14, 15, tzinfo=dt.timezone.utc),
        measurements=measured,
        decision=decide(measured, sizes[-1]),
    )


def test_report_shows_grid_choice_verdict_and_speedups() -> None:
    text = report(profile())

    assert "vLLM 0.32.0 (sync scheduler), mean context 96 tokens" in text
    assert "K = 1   1.70  ±1%    80 generations" in text
    # ITL of batch size 1, K = 2 is 12.5 ms: 2.2 tokens in 12.5 ms are 176 a second, the best
    assert "[176]" in text
    # at batch size 8, K = 1 is 13 ms: 8 · 1.7 / 13 ms = 1046 a second
    assert "[1046]" in text
    assert "- not measured at (batch/K) 8/2: no room in the KV cache" in text
    assert "Table    1-1:2 2-8:1   (batch sizes:K)   best single K: 1" in text
    assert "Verdict Dynamic: The table has 1.44 times the goodput of no speculation" in text
    # 2.2 / 12.5 ms against 1 / 9.5 ms, and against 1.7 / 11.25 ms of K = 1
    assert "1                 1.67x                1.16x  █████████████\n" in text


def test_report_of_the_largest_grid_fits_a_terminal() -> None:
    text = report(profile(tuple(2**i for i in range(16)), 8))

    assert max(map(len, text.splitlines())) <= WIDTH == 100


def test_short_table() -> None:
    assert short_table([Row(first=1, last=16, k=4), Row(first=17, last=64, k=0)]) == "1-16:4 17-64:0"


def test_show_prints_the_report_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    path.write_text(profile().to_json())

    assert main(["show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(report(profile()))
    rows = [[row.first, row.last, row.k] for row in profile().decision.table]
    numbers = json.loads(shown.splitlines()[-1])
    assert numbers == {
        "num_speculative_tokens": max(k for _, _, k in rows), "num_speculative_tokens_per_batch_size": rows
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show", "/no/such/file"], "/no/such/file cannot be read: No such file or directory"),
        ([], "the following arguments are required: command"),
        (["run"], "--model"),
        ([*RUN], "--prompts"),
        ([*RUN[:2], "--method=medusa", *RUN[4:], "--prompts=p"], "method medusa cannot be used with a table"),
        ([*RUN[:3], *RUN[4:], "--prompts=p"], "--draft-model: method draft_model needs one"),
        (["run", "--model=m", "--method=ngram", *RUN[3:], "--prompts=p"], "--draft-model: method ngram takes none"),
        ([*RUN, "--prompts=p", "--batch-sizes=1,16"], "batchSizes: 16 exceeds maxNumSeqs 8"),
        ([*RUN, "--prompts=p", "--batch-sizes=few"], "--batch-sizes: 'few': give whole numbers with commas between"),
        ([*RUN, "--prompts=p", "--max-tokens=99"], "error: --max-tokens: Input should be less than or equal to 16\n"),
        (
            [*RUN, "--prompts=p", "--measure-seconds=600", "--timeout-seconds=300"],
            "timeoutSeconds: 300 leaves no time for two boots beside measureSeconds 600",
        ),
        ([*RUN, "--prompts=p", "--measure-seconds=inf"], "error: --measure-seconds: Input should be a finite number\n"),
        ([*RUN, "--prompts=p", "--engine-command="], '--engine-command: give a command, such as "vllm serve"'),
        ([*RUN, "--prompts=p", "--engine-command='vllm"], '--engine-command "\'vllm": No closing quotation'),
        ([*RUN, "--prompts=p", "--output=/no/such/p.json"], "--output: /no/such/p.json cannot be written"),
        ([*RUN, "--prompts=p", "--output=/"], "--output: / cannot be written"),
        ([*RUN, "--prompts=p", "--", "--port=1"], "after --: --port=1: specserve sets --port itself"),
    ],
)
def test_wrong_usage_says_what_is_wrong(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xe3\x00", "is no profile: 'utf-8' codec can't decode"),
        (b"\xef\xbb\xbf{}", "is no profile: key: Field required; measuredAt: Field required; "),
        (b"", "is no profile: Invalid JSON: EOF while parsing a value at line 1 column 0\n"),
    ],
)
def test_what_is_no_profile_is_not_shown(
    content: bytes, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content)

    with pytest.raises(SystemExit) as caught:
        main(["show", str(path)])

    assert caught.value.code == 2
    assert f"{path} {expected}" in capsys.readouterr().err


def test_a_job_outside_a_pod_says_that_nobody_takes_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_job({"SPECSERVE_TERMINATION_LOG": "/no/such/file"}) == 1

    assert (
        "the result cannot be handed over: /no/such/file: No such file or directory; outside a pod set"
        " SPECSERVE_TERMINATION_LOG\n" in capsys.readouterr().out
    )


def test_a_run_that_fails_ends_with_one_and_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "x"}\n')

    code = main([*RUN, f"--prompts={prompts}", "--output-tokens=64", "--engine-command=/no/such/vllm serve"])

    assert code == 1
    assert "no profile: EngineFailed: engine.command '/no/such/vllm' cannot be started" in capsys.readouterr().err


def request(**changes: object) -> str:
    values = {
        "key": "specserve-0123456789ab",
        "model": "m",
        "speculation": {"method": "ngram", "maxTokens": 2},
        "engine": {"command": ["/no/such/vllm", "serve"], "maxNumSeqs": 4, "maxModelLen": 512},
        "workload": {"promptTokens": 32, "outputTokens": 32},
        "prompts": "/no/such/prompts.jsonl",
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

    assert code == 1
    assert isinstance(result, Failure)
    assert result.reason == reason
    assert message in result.message


def stuck_job(tmp_path: Path, **changes: object) -> "subprocess.Popen[str]":
    """A Job whose engine never becomes healthy."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "x"}\n')
    engine = {
        "command": [sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(600)"],
        "maxNumSeqs": 4,
        "maxModelLen": 512,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "specserve_profiler", "job"],
        env={
            "PYTHONPATH": str(Path(__file__).parents[2] / "profiler_job"),
            "SPECSERVE_REQUEST": request(prompts=str(prompts), engine=engine, **changes),
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

    assert job.wait(20) == 1
    result = read(tmp_path / "log")
    assert isinstance(result, Failure) and result.reason == "Interrupted"
    assert "booting the baseline without speculation" in result.message


def test_a_job_ends_before_its_deadline_with_what_it_reached(tmp_path: Path) -> None:
    job = stuck_job(tmp_path, timeoutSeconds=3, measureSeconds=1)

    assert job.wait(20) == 1
    result = read(tmp_path / "log")
    assert isinstance(result, Failure) and result.reason == "TimedOut"
    assert "booting the baseline without speculation" in result.message
