"""The command line, as far as it goes without an engine: every command, what it prints where, and how it refuses."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.profiler.profiles_sample import TABLE, decision, partial, profile, request

from devcluster.pace import patience
from specserve_profiler.cli import main, output
from specserve_profiler.contract.profile import PartialProfile, Profile
from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.reports.flags import command_of
from specserve_profiler.reports.kept import read_kept
from specserve_profiler.reports.text import report

ROOT = Path(__file__).parents[4]
RUN = ["run", "--model=m", "--method=draft_model", "--draft-model=d", "--max-num-seqs=8", "--max-model-len=512"]
ALL = [*RUN, "--prompts=p"]
PROMPTS = "".join(f'{{"prompt": "text {number}"}}\n' for number in range(16))
ROWS = [[1, 8, 5], [9, 40, 3], [41, 120, 2], [121, 256, 1]]
FIGURES = {
    "batchSizes": [1, 64],
    "draftTokens": [0, 3],
    "itlMs": [[6.0, 9.0], [8.0, 30.0]],
    "acceptanceLength": [1, 2.4],
    "baselineItlMs": [6.0, 8.0],
}


def process(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "specserve_profiler", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "profiler_job"), "COLUMNS": "110", **changes},
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A finished profile in a file."""
    path = tmp_path / "profile.json"
    path.write_text(profile().to_json())
    return path


@pytest.fixture
def figures(tmp_path: Path) -> Path:
    """A grid file."""
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(FIGURES))
    return path


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> ProfileRequest:
    """The request that the arguments of ``run`` make."""
    before, mark, after = _parted(arguments)
    assert main(["run", *before, "--dry-run", "--json", *mark, *after]) == 0
    return ProfileRequest.model_validate_json(capsys.readouterr().out)


def _parted(arguments: tuple[str, ...]) -> tuple[list[str], list[str], list[str]]:
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at : at + 1], words[at + 1 :]


def test_help_of_every_command_teaches_by_example() -> None:
    top = process("--help")
    assert top.returncode == 0
    for command in ("run", "table", "render", "compare", "check", "report", "job"):
        assert f" {command} " in top.stdout
        help_ = process(command, "--help").stdout
        assert ("Example" in help_ and f" {command} " in help_) or command == "job"
    assert "6 out of time; 7 disk or output" in " ".join(top.stdout.split())


def test_job_is_the_same_by_either_door(tmp_path: Path) -> None:
    for code in ("import specserve_profiler.cli as c, sys; sys.exit(c.main(['job']))", None):
        words = ["-c", code] if code else ["-m", "specserve_profiler", "job"]
        log = tmp_path / "log"
        done = subprocess.run(
            [sys.executable, *words],
            env={"PYTHONPATH": str(ROOT / "profiler_job"), "SPECSERVE_TERMINATION_LOG": str(log)},
            capture_output=True,
            text=True,
            timeout=patience(60),
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert "no profile: RequestInvalid: SPECSERVE_REQUEST" in done.stdout
        assert log.exists()
        log.unlink()


# run: from flags and files to a request


def test_every_field_of_a_request_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    made = dry_run(
        capsys,
        "--model=m", "--revision=r1", "--method=eagle3", "--draft-model=d", "--draft-revision=r2", "--max-tokens=3",
        "--speculative-extra=attention-backend=FLASH_ATTN", "--speculative-extra=draft_tensor_parallel_size=2",
        '--speculative-extra=draft_load_config={"load_format": "auto"}', "--speculative-extra=code_revision=1234567",
        "--engine-command=python3 -m vllm serve", "--max-num-seqs=32", "--max-model-len=2048",
        "--tensor-parallel-size=2", "--dataset=org/talk:test", "--dataset-config=en", "--dataset-column=question",
        "--dataset-revision=r3", "--prompt-tokens=100", "--output-tokens=50", "--temperature=0.7", "--top-p=0.9",
        "--seed=5", "--batch-sizes=1,16,32", "--weights=1:5,32:1", "--measure-seconds=60", "--timeout-seconds=600",
        "--verify=full", "--key=mine", "--", "--enforce-eager", "--kv-cache-dtype=fp8",
    )  # fmt: skip

    assert made.model_dump(mode="json", by_alias=True) == {
        "schemaVersion": 2,
        "key": "mine",
        "model": "m",
        "revision": "r1",
        "speculation": {
            "method": "eagle3",
            "model": "d",
            "revision": "r2",
            "maxTokens": 3,
            "config": {
                "attention_backend": "FLASH_ATTN",
                "draft_tensor_parallel_size": 2,
                "draft_load_config": {"load_format": "auto"},
                "code_revision": "1234567",
            },
        },
        "engine": {
            "command": ["python3", "-m", "vllm", "serve"],
            "args": ["--enforce-eager", "--kv-cache-dtype=fp8"],
            "maxNumSeqs": 32,
            "maxModelLen": 2048,
            "tensorParallelSize": 2,
        },
        "workload": {"promptTokens": 100, "outputTokens": 50, "temperature": 0.7, "topP": 0.9, "seed": 5},
        "prompts": {
            "path": None,
            "hub": {"name": "org/talk", "config": "en", "split": "test", "column": "question", "revision": "r3"},
        },
        "batchSizes": [1, 16, 32],
        "measureSeconds": 60,
        "timeoutSeconds": 600,
        "verify": "Full",
        "weights": {"1": 5, "32": 1},
    }


def test_the_command_of_a_request_makes_the_same_request(capsys: pytest.CaptureFixture[str]) -> None:
    odd = request(
        model="it's <b>; rm",
        engine={"command": ["my vllm", "serve"], "args": ["--hf-overrides={\"a\": 1}"], "maxNumSeqs": 300,
                "maxModelLen": 99},
        weights={1: 0.25, 300: 3},
        workload={"promptTokens": 9, "outputTokens": 9, "temperature": 0.1, "topP": 0.5, "seed": 1},
        verify="Off",
        speculation={"method": "draft_model", "model": "d", "maxTokens": 2, "config": {
            "quantization": '"quoted"', "code_revision": "true", "kv_cache_dtype": "it's = fp8", "max_model_len": 64,
            "enforce_eager": False, "draft_load_config": {"load_format": "auto", "ignore_patterns": ["é", None]},
        }},
    )  # fmt: skip
    for wanted in (request(), odd):
        name, command, *words = shlex.split(command_of(wanted))
        assert (name, command) == ("specserve-profile", "run")
        assert dry_run(capsys, *words) == wanted


def test_what_is_default_is_not_in_the_command() -> None:
    assert command_of(request()) == (
        "specserve-profile run --model=org/target-8b --revision=abc123 --method=eagle3"
        " --draft-model=org/target-8b-eagle3 --max-num-seqs=256 --max-model-len=8192 --dataset=mt-bench"
        " --key=specserve-0123456789ab -- --gpu-memory-utilization=0.9"
    )


def test_flags_win_over_the_plan_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "model: m\nspeculation: {method: ngram, max_tokens: 4}\n"
        "engine: {maxNumSeqs: 8, maxModelLen: 512, args: [--enforce-eager]}\n"
        "prompts: {hub: {name: org/talk, split: test}}\nmeasureSeconds: 30\nverify: Off\nweights: {1: 5}\n"
    )

    made = dry_run(capsys, f"--config={plan}", "--max-tokens=2", "--prompts=/p.jsonl", "--", "--max-lora-rank=8")

    assert made.speculation.max_tokens == 2
    assert made.prompts.path == "/p.jsonl" and made.prompts.hub is None
    assert made.engine.args == ("--max-lora-rank=8",)
    assert made.measure_seconds == 30
    assert made.verify == "Off" and made.weights == {1: 5}
    assert made.batch_sizes == (1, 2, 4, 8)
    assert dry_run(capsys, f"--config={plan}").engine.args == ("--enforce-eager",)


def test_further_keys_of_a_plan_file_stay_as_the_engine_calls_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "model: m\nspeculation: {method: ngram, max_tokens: 4, config: {prompt_lookup_max: 6, prompt-lookup-min: 2}}\n"
        "engine: {maxNumSeqs: 8, maxModelLen: 512}\nprompts: {path: /p}\n"
    )

    assert dry_run(capsys, f"--config={plan}").speculation.config == {"prompt_lookup_max": 6, "prompt_lookup_min": 2}
    # Flags stand in the place of all of them, as those of the weights do.
    given = dry_run(capsys, f"--config={plan}", "--speculative-extra=prompt_lookup_max=3").speculation.config
    assert given == {"prompt_lookup_max": 3}
    assert main(["run", f"--config={plan}", "--dry-run"]) == 0
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out)
    assert dry_run(capsys, f"--config={printed}").speculation.config == {"prompt_lookup_max": 6, "prompt_lookup_min": 2}


def test_without_further_keys_a_request_is_written_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ALL, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["speculation"] == {
        "method": "draft_model", "model": "d", "maxTokens": 5,
    }  # fmt: skip


def test_what_is_served_has_the_further_keys_and_a_report_tells_them(tmp_path: Path) -> None:
    """From a profile to the arguments of the engine, through the process."""
    asked = request()
    speculation = asked.speculation.model_copy(update={"config": {"attention_backend": "FLASH_ATTN"}})
    measured = profile().model_copy(update={"request": asked.model_copy(update={"speculation": speculation})})
    path = tmp_path / "profile.json"
    path.write_text(measured.to_json())

    rendered = process("render", str(path))
    assert rendered.returncode == 0, rendered.stderr
    config = json.loads(shlex.split(rendered.stdout)[1])
    assert (config["attention_backend"], config["method"]) == ("FLASH_ATTN", "eagle3")
    assert "measured with" not in rendered.stderr

    other = process("render", str(path), "--speculative-extra=attention_backend=FLASHINFER", "--json")
    answer = json.loads(other.stdout)
    assert answer["config"]["attention_backend"] == "FLASHINFER"
    assert "measured with eagle3 org/target-8b-eagle3 attention_backend=FLASH_ATTN: what it decided" in (
        " ".join(answer["warnings"])
    )
    # The keys of one method are nothing to another.
    assert (
        "attention_backend" not in json.loads(process("render", str(path), "--method=mtp", "--json").stdout)["config"]
    )

    told = " ".join(process("report", "--text", str(path)).stdout.split())
    assert "eagle3 org/target-8b-eagle3 attention_backend=FLASH_ATTN, Kmax" in told
    page = tmp_path / "report.html"
    assert process("report", str(path), "-o", str(page)).returncode == 0
    assert "--speculative-extra=attention_backend=FLASH_ATTN" in page.read_text()
    assert "further keys" in page.read_text()


def test_a_profile_is_a_plan_to_measure_again(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run(capsys, f"--config={stored}") == request()


def test_the_plan_that_a_dry_run_prints_is_a_plan_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = dry_run(capsys, *ALL[1:])
    assert main([*ALL, "--dry-run"]) == 0
    plan = tmp_path / "plan.yaml"
    plan.write_text(capsys.readouterr().out)

    assert dry_run(capsys, f"--config={plan}") == made


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run"], "--model: is needed\n  --method (speculation.method): is needed\n  --max-num-seqs (engine"),
        ([*RUN], "--prompts or --dataset (prompts): is needed"),
        ([*ALL, "--dataset=mt-bench"], "--prompts or --dataset (prompts): give exactly one of path and hub"),
        ([*RUN, "--dataset=:test"], "--dataset: ':test': give mt-bench or ORG/NAME[:SPLIT]"),
        ([*RUN[:2], "--method=medusa", *RUN[4:], "--prompts=p"], "--method: method medusa cannot be used with a table"),
        ([*RUN[:2], "--method=magic", *RUN[4:], "--prompts=p"], "--method: how method magic honours a table is not"),
        ([*RUN[:3], *RUN[4:], "--prompts=p"], "--draft-model: method draft_model needs one"),
        (["run", "--model=m", "--method=ngram", *RUN[3:], "--prompts=p"], "--draft-model: method ngram takes none"),
        ([*ALL, "--batch-sizes=1,16"], "--batch-sizes (batchSizes): 16 exceeds maxNumSeqs 8"),
        ([*ALL, "--batch-sizes=few"], "--batch-sizes: 'few': give whole numbers with commas between"),
        ([*ALL, "--weights=1"], "--weights: '1': give BATCH_SIZE:SHARE with commas between, such as 1:5,32:1"),
        ([*ALL, "--weights=1:-1"], "--weights (weights.1): must be greater than or equal to 0, is -1.0"),
        ([*ALL, "--max-tokens=99"], "--max-tokens (speculation.maxTokens): must be less than or equal to 16, is 99"),
        ([*ALL, "--max-tokens=many"], "--max-tokens"),
        ([*ALL, "--top-p=0"], "--top-p (workload.topP): must be greater than 0, is 0.0"),
        ([*ALL, "--verify=maybe"], "--verify: must be 'Table', 'Full' or 'Off', is 'Maybe'"),
        (
            [*ALL, "--measure-seconds=600", "--timeout-seconds=300"],
            "--timeout-seconds (timeoutSeconds): 300 leaves no time for two boots beside measureSeconds 600",
        ),
        ([*ALL, "--measure-seconds=inf"], "--measure-seconds (measureSeconds): must be a finite number, is inf"),
        ([*ALL, "--engine-command="], '--engine-command: give a command, such as "vllm serve"'),
        ([*ALL, "--engine-command='vllm"], '--engine-command: "\'vllm": No closing quotation'),
        ([*ALL, "--output=/no/such/p.json"], "--output: /no/such/p.json cannot be written"),
        ([*ALL, "--output=/"], "--output: / cannot be written"),
        ([*ALL, "--engine-log=/no/such/log"], "--engine-log: /no/such/log cannot be written"),
        ([*ALL, "--", "--port=1"], "engine argument --port=1: specserve sets --port itself"),
        ([*ALL, "--speculative-extra=x"], "--speculative-extra: 'x': give KEY=VALUE, such as attention_backend="),
        ([*ALL, "--speculative-extra==x"], "--speculative-extra: '=x': give KEY=VALUE"),
        ([*ALL, *["--speculative-extra=max_model_len=9"] * 2], "--speculative-extra: max_model_len is given twice"),
        (
            [*ALL, "--speculative-extra=num-speculative-tokens=3"],
            "--speculative-extra (speculation.config.num_speculative_tokens): specserve sets it: set --max-tokens",
        ),
        (
            [*ALL, "--speculative-extra=atention_backend=X", "--speculative-extra=enforce_eager=often"],
            (
                "--speculative-extra (speculation.config.atention_backend): vLLM 0.33 knows no such key; did you mean "
                "attention_backend?\n  --speculative-extra (speculation.config.enforce_eager): takes true or false, not"
            ),
        ),
        (
            [*ALL, "--tensor-parallel-size=4", "--speculative-extra=draft-tensor-parallel-size=2"],
            "--speculative-extra (speculation.config.draft_tensor_parallel_size): takes 1 or --tensor-parallel-size",
        ),
        ([*ALL, "--speculative-extra=a b=1"], "--speculative-extra (speculation.config): 'a b' is no key: give names"),
        (
            ["render", "--rows=1-4:3", "--method=ngram", "--speculative-extra=model=x"],
            "config.model): specserve sets it",
        ),
        (
            ["render", "--rows=1-4:3", "--method=ngram", "--vllm-version=0.32.0", "--speculative-extra=xpress_topc=1"],
            "(speculation.config.xpress_topc): vLLM 0.32 does not know it: it came with 0.33",
        ),
        ([*ALL, "--modl=x"], "No such option: --modl"),
        (["fly"], "No such command 'fly'"),
        (["run", "--config=/no/such/plan.yaml"], "--config: /no/such/plan.yaml cannot be read: No such file"),
        (["table"], "give either a profile or --grid FILE"),
        (["table", "--grid=/no/such"], "--grid: /no/such cannot be read: No such file or directory"),
        (["render"], "give either a profile or --rows"),
        (["render", "--rows=1-4:3"], "--method: the profile does not say how the engine drafts"),
        (["render", "--rows=2-4:3", "--method=ngram"], "--rows: table: row 2-4: must begin at 1"),
        (["render", "--rows=lots", "--method=ngram"], "--rows: 'lots': give"),
        (["render", "--rows=1-4:3", "--method=eagle"], "--draft-model: method eagle needs one"),
        (["render", "--rows=1-4:17", "--method=ngram"], "--rows: must be less than or equal to 16, is 17"),
        (
            ["render", "--rows=1-4:3", "--method=ngram", "--vllm-version=0.20.0"],
            "--vllm-version: vLLM 0.20.0 knows no tables",
        ),
        (["render", "--rows=1-4:3", "--method=ngram", "--vllm-version=new"], "--vllm-version: 'new': give one such as"),
        (["check", "1-4:2", "--vllm-version=new"], "--vllm-version: 'new': give one such as 0.33.0"),
        (["check", ""], "nothing: neither a file that is there nor a table"),
        (["check", "table.json"], "table.json: neither a file that is there nor a table"),
        (["check", "1-4:2", "--max-num-seqs=0"], "--max-num-seqs"),
        (["compare", "/no/such/file", "/no/such/file"], "/no/such/file cannot be read: No such file or directory"),
        (["report", "/no/such/file"], "/no/such/file cannot be read: No such file or directory"),
        (["show", "/no/such/file"], "/no/such/file cannot be read: No such file or directory"),
    ],
)
def test_wrong_usage_says_what_is_wrong_on_stderr(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2

    told = capsys.readouterr()
    assert expected in told.err
    assert told.err.endswith("--help teaches its use\n")
    assert "Traceback" not in told.err and "pydantic" not in told.err
    assert told.out == ""


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[1]", "must hold the fields of a request, such as model: and engine:"),
        ("a: [", "is neither YAML nor JSON: while parsing a flow node"),
        ("model: 5", "--model: must be a valid string, is 5"),
        ("engine: {command: vllm serve}", "--engine-command (engine.command): must be a list, is 'vllm serve'"),
        ("modle: m", "modle: there is no such field; did you mean model?"),
        ("speculation: {method: ngram, maxTokenz: 4}", "speculation.maxTokenz: there is no such field; did you mean"),
        ("prompts: {hub: {nam: x}}", "prompts.hub.nam: there is no such field; did you mean name?"),
    ],
)
def test_a_wrong_plan_file_says_what_is_wrong(
    content: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(content)

    assert main(["run", f"--config={plan}"]) == 2
    assert expected in capsys.readouterr().err


# table and render


def test_table_prints_rows_and_nothing_else_on_stdout(figures: Path) -> None:
    done = process("table", "--grid", str(figures), "--tie", "0")

    # AL/ITL of K = 0 and 3 at batch size 1: 1/6 against 2.4/9; at 24 about 1/6.73 against 2.4/16.7, at 23 2.4/16.3
    assert done.stdout == "[[1, 21, 3], [22, 64, 0]]\n"
    assert done.stderr == "over no speculation: 1: 1.60x, 64: 1.00x\n"
    assert done.returncode == 0


def test_table_of_the_figures_that_vllm_published(tmp_path: Path) -> None:
    """PR #32374's three rows; its own table from five batch sizes has the same last three rows."""
    itl = {1: (6.52, 7.37, 8.84, 10.33), 64: (7.77, 9.66, 13.50, 16.83), 256: (14.49, 27.14, 41.85, 57.40)}
    published = {
        "batchSizes": list(itl),
        "draftTokens": [0, 1, 3, 5],
        "itlMs": list(itl.values()),
        "acceptancePerPosition": [0.6812, 0.3914, 0.2035, 0.1014, 0.0514],
    }
    path = tmp_path / "published.json"
    path.write_text(json.dumps(published))

    done = process("table", "--grid", str(path), "--interpolate-k", "--tie", "0")

    assert done.stdout == "[[1, 5, 3], [6, 110, 2], [111, 169, 1], [170, 256, 0]]\n"


def test_table_takes_what_a_draft_checkpoint_carries_and_tells_a_suspect(tmp_path: Path) -> None:
    """AL 1.5 and 1.75: K = 2 at 1 and 8 (1.75 / 12 against 1 / 10), K = 0 at 64 (1 / 20 against 1.75 / 44)."""
    cells = [f"{size},{k},{10 + k}" for size in (1, 8) for k in (0, 1, 2)] + [
        "32,1,90",
        "64,0,20",
        "64,1,32",
        "64,2,44",
    ]
    (tmp_path / "grid.csv").write_text("\n".join(["batch_size,k,itl_ms", *cells]))
    carried = {"schema_version": "1.0", "conditional_accept_rates": [0.5, 0.5], "num_speculative_tokens": 2}
    (tmp_path / "speculation_profile.json").write_text(json.dumps(carried))
    words = ["table", "--grid", str(tmp_path / "grid.csv"), "--acceptance", str(tmp_path / "speculation_profile.json")]

    done = process(*words)
    assert done.returncode == 0
    assert json.loads(done.stdout)[0] == [1, 8, 2] and json.loads(done.stdout)[-1] == [64, 64, 0]
    told = "batch size 32, K = 1: 2.81 times slower than at both batch size 8 and 64: suspect; measure it again"
    assert done.stderr == f"warning: {told}\n"
    assert json.loads(process(*words, "--json").stdout)["warnings"] == [told]
    assert "--acceptance: goes with --grid" in process("table", "x.json", *words[3:]).stderr
    missing = process(*words[:3], "--acceptance", str(tmp_path / "none.json"))
    assert f"--acceptance: {tmp_path / 'none.json'} cannot be read: No such file" in missing.stderr
    (tmp_path / "list.json").write_text("[0.5, 0.5]")
    other = process(*words[:3], "--acceptance", str(tmp_path / "list.json"))
    assert f"--acceptance: {tmp_path / 'list.json'}: a JSON object is needed" in other.stderr


@pytest.mark.parametrize(("batch", "expected"), [("1000000", 0), ("10000000", 2), ("0", 2), ("9" * 400, 2)])
def test_the_last_batch_size_of_a_table_is_bounded(batch: str, expected: int, figures: Path) -> None:
    done = process("table", "--grid", str(figures), "--tie=0", "--max-batch", batch)

    assert done.returncode == expected
    if expected:
        assert f"--max-batch: {batch[:8]}" in done.stderr and len(done.stderr) < 400
    else:
        assert done.stdout == "[[1, 21, 3], [22, 1000000, 0]]\n"


def test_table_in_other_forms(figures: Path, stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", f"--grid={figures}", "--tie=0", "--max-batch=100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "rows": [[1, 21, 3], [22, 100, 0]],
        "short": "1-21:3 22-100:0",
        "overBaseline": {"1": 1.6, "64": 1.0},
    }
    assert main(["table", str(stored)]) == 0
    assert json.loads(capsys.readouterr().out) == ROWS
    assert main(["table", "--short", "--", str(stored)]) == 0
    assert capsys.readouterr().out == "1-8:5 9-40:3 41-120:2 121-256:1\n"
    assert main(["table", str(stored), "--max-batch=2", "--tie=0.1"]) == 0
    assert json.loads(capsys.readouterr().out) == [[1, 2, 3]]


def test_the_table_of_a_profile_comes_with_what_the_verdict_says_of_it(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["table", str(stored)]) == 0
    assert "over no speculation: 1: 2.15x, 8: 2.02x, 40: 1.43x" in capsys.readouterr().err
    static = decision().model_copy(update={"verdict": "Static", "reason": "K = 2 is as good everywhere."})
    stored.write_text(profile(decision=static).to_json())
    assert main(["table", str(stored), "--json"]) == 0
    told = capsys.readouterr()
    assert told.err == "the verdict is Static, not this table: K = 2 is as good everywhere.\n"
    assert json.loads(told.out)["overBaseline"] == {}


def test_render_tells_where_another_drafter_was_measured(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", str(stored), "--draft-model=other/drafter"]) == 0
    told = capsys.readouterr()
    assert '"model":"other/drafter"' in told.out
    assert "warning: the profile was measured with eagle3 org/target-8b-eagle3: what it decided may be" in told.err


def test_a_table_that_never_drafts_renders_to_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "--rows=1-16:0", "--method=ngram"]) == 0
    assert capsys.readouterr() == ("", "serve without --speculative-config: there is nothing to add\n")


def test_figures_in_place_of_a_table_or_a_profile_show_the_way(
    figures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("check", "table", "report", "render"):
        assert main([command, str(figures)]) == 2
        assert f"its figures make a table: specserve-profile table --grid {figures}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"itlMs": [[6.0, 9.0]]}, "itlMs: 1 values, but batchSizes has 2"),
        ({"batchSizes": "few"}, "batchSizes: must be a list"),
        ({"acceptanceLength": None}, "give exactly one of acceptanceLength"),
        ({"colour": 1}, "unknown field colour"),
    ],
)
def test_a_wrong_grid_file_says_what_is_wrong(
    changes: dict[str, object], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.json"
    path.write_text(json.dumps({**FIGURES, **changes}))

    assert main(["table", f"--grid={path}"]) == 2
    assert expected in capsys.readouterr().err


def test_render_is_what_a_shell_hands_to_the_engine(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", str(stored)]) == 0
    words = shlex.split(capsys.readouterr().out)

    assert words[0] == "--speculative-config"
    assert json.loads(words[1]) == {
        "method": "eagle3",
        "model": "org/target-8b-eagle3",
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": ROWS,
    }
    assert words[2:] == ["--cudagraph-capture-sizes", "1", "2", "4", "8", "16"]


def test_render_of_rows_warns_of_what_the_version_makes_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "--rows=1-4:3,5-9:0", "--method=ngram", "--vllm-version=0.33.0", "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["config"]["num_speculative_tokens_per_batch_size"] == [[1, 4, 3], [5, 9, 0]]
    assert any("Model Runner V2" in warning for warning in told["warnings"])


# check


def test_check_tells_errors_from_warnings_by_its_exit_code(
    tmp_path: Path, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "1-16:4 17-256:2", "--max-num-seqs=256"]) == 0
    assert capsys.readouterr().out == "nothing to find\n"
    assert main(["check", "1-16:4 17-64:2", "--max-num-seqs=256"]) == 0
    assert capsys.readouterr().out.startswith(
        "warning: [17, 64, 2]: ends below max_num_seqs 256; vLLM carries K = 2 on"
    )
    path = tmp_path / "table.json"
    path.write_text("[[2, 4, 1]]")
    assert main(["check", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert found == [
        {
            "level": "error",
            "where": "[2, 4, 1]",
            "message": "the first row must begin at batch size 1",
            "fix": "write [1, 4, 1]",
        }
    ]
    assert main(["check", str(stored)]) == 0
    assert main(["check", str(stored), "--max-num-seqs=512"]) == 0
    assert "[121, 256, 1]: ends below max_num_seqs 512" in capsys.readouterr().out


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile of a target with three MTP modules."""
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text('{"num_nextn_predict_layers": 3}')
    asked = request(model=str(tmp_path / "target"), speculation={"method": "mtp", "maxTokens": 5})
    path = tmp_path / "mtp.json"
    path.write_text(profile(request=asked).to_json())
    return path


def test_what_an_engine_makes_of_the_models_is_told_before_it_serves(
    modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "Model Runner V2 drafts Kmax tokens with several MTP modules and then cuts to K"

    assert main(["render", str(modules)]) == 0
    assert f"warning: {told}" in (err := capsys.readouterr().err) and "VLLM_USE_V2_MODEL_RUNNER=0 in its" in err
    assert main(["check", str(modules)]) == 0
    assert f"warning: method: {told}" in capsys.readouterr().out
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    assert main(["render", str(modules)]) == 0
    assert capsys.readouterr().err == ""

    (tmp_path / "config.json").write_text('{"pard_token": 7}')
    config = {
        "method": "draft_model",
        "model": str(tmp_path),
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 64, 4]],
    }
    assert main(["check", json.dumps(config)]) == 1
    assert "error: method: the drafter makes all its drafts in one pass" in capsys.readouterr().out
    assert main(["render", "--rows=1-64:4", "--method=draft_model", f"--draft-model={tmp_path}"]) == 2
    assert "the drafter makes all its drafts in one pass" in capsys.readouterr().err


def test_check_of_a_config_knows_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 4, "num_speculative_tokens_per_batch_size": [[1, 64, 4]]}

    assert main(["check", json.dumps(config), "--vllm-version=0.20.0"]) == 1
    assert capsys.readouterr().out.startswith("error: method: vLLM 0.20 knows no tables; use 0.24 or newer")
    assert main(["check", json.dumps(config), "--vllm-version=0.26.0"]) == 0


# compare


def test_compare_says_what_moved_and_what_is_chance(
    tmp_path: Path, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(stored), str(stored)]) == 0
    same = capsys.readouterr().out
    assert "The verdict stays Dynamic.\nThe table stays 1-8:5 9-40:3 41-120:2 121-256:1.\n" in same
    assert "Nothing moved beyond chance" in same

    grid = tuple(
        cell.model_copy(update={"itl_ms": 2 * cell.itl_ms}) if cell.batch_size == 8 and cell.itl_ms else cell
        for cell in profile().measurements.grid
    )
    other = profile(
        measurements=profile().measurements.model_copy(update={"grid": grid, "device": "NVIDIA L40S"}),
        decision=profile().decision.model_copy(update={"verdict": "Static"}),
    )
    path = tmp_path / "other.json"
    path.write_text(other.to_json())
    assert main(["compare", str(stored), str(path)]) == 0
    moved = capsys.readouterr().out
    assert "device is NVIDIA L4, then NVIDIA L40S" in moved
    assert "The verdict goes from Dynamic to Static" in moved
    assert moved.count("ITL at batch size 8 ") == 6 and "ITL at batch size 16 " not in moved
    assert main(["compare", str(stored), str(path), "--all"]) == 0
    assert "no more than chance" in capsys.readouterr().out


def test_compare_as_json(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(stored), str(stored), "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["verdicts"] == ["Dynamic", "Dynamic"]
    assert {(entry["batchSize"], entry["k"]) for entry in told["itl"]} >= {(1, 0), (256, 4)}
    assert not any(entry["significant"] for entry in told["itl"] + told["acceptance"])


# reports


def test_report_as_text_is_that_of_the_job(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = report(Profile.model_validate_json(stored.read_text())) + (
        '\nServe with:\n  --speculative-config \'{"method":"eagle3","model":"org/target-8b-eagle3",'
        '"num_speculative_tokens":5,"num_speculative_tokens_per_batch_size":[[1,8,5],[9,40,3],[41,120,2],[121,256,1]]}\''
        " --cudagraph-capture-sizes 1 2 4 8 16\n"
    )
    assert main(["report", "--text", str(stored)]) == 0
    assert capsys.readouterr().out == expected
    log = tmp_path / "log"
    log.write_text(
        f"[specserve] x\n-----BEGIN SPECSERVE PROFILE-----\n{stored.read_text()}\n-----END SPECSERVE PROFILE-----\n"
    )
    assert main(["show", str(log)]) == 0
    assert capsys.readouterr().out == expected


def test_report_writes_a_page_and_pictures(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, pictures = tmp_path / "out.html", tmp_path / "new" / "pictures"

    assert main(["report", str(stored), "-o", str(page), "--png", str(pictures), "--json"]) == 0

    files = json.loads(capsys.readouterr().out)["files"]
    assert files[0] == str(page) and page.read_text().startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in pictures.iterdir()) == [
        "acceptance-length.png", "acceptance.png", "goodput.png", "itl.png", "loops.png", "speedup-baseline.png",
        "speedup-static.png", "table.png",
    ]  # fmt: skip
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures.iterdir())
    assert len(files) == 9


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xe3\x00", "is no text: 'utf-8' codec can't decode"),
        (b"\xef\xbb\xbf{}", "is no profile: it has no measurements"),
        (b"", "is no profile: not JSON: Expecting value"),
        (b'{"measurements": {}}', "is no profile: key: is needed\n  measuredAt: is needed"),
        (b'{"measurements": {}, "schemaVersion": 1}', "is a profile of schema version 1, this tool reads version 2"),
    ],
)
def test_what_is_no_profile_is_not_shown(
    content: bytes, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content)

    assert main(["show", str(path)]) == 2
    assert f"{path} {expected}" in capsys.readouterr().err


def test_a_partial_profile_is_shown_but_serves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "partial.json"
    begin, end = (f"-----{word} SPECSERVE PARTIAL PROFILE-----" for word in ("BEGIN", "END"))
    path.write_text(f"[specserve] x\n{begin}\n{partial().to_json()}\n{end}\n[specserve] no profile: TimedOut\n")

    assert main(["show", str(path)]) == 0
    assert capsys.readouterr().out.startswith("PARTIAL profile")
    assert main(["render", str(path)]) == 2
    assert "is a partial profile (TimedOut: no profile within 3580 s" in capsys.readouterr().err


# what run leaves behind


def test_a_partial_profile_never_replaces_a_finished_one(stored: Path) -> None:
    assert output.place_for(stored, partial()) == stored.with_name("profile.json.partial")
    assert output.place_for(stored, profile()) == stored
    stored.write_text(partial().to_json())
    assert output.place_for(stored, partial()) == stored
    stored.unlink()
    assert output.place_for(stored, partial()) == stored


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("old")
    path.chmod(0o640)

    with pytest.raises(OSError, match="No space left"):
        output.write(Path("/dev/full"), "x" * 100)
    output.write(path, "new")

    assert path.read_text() == "new" and path.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.json"]


def test_run_without_an_engine_ends_with_the_reason_and_its_exit_code(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(PROMPTS)
    flags = [*RUN, f"--prompts={prompts}", "--output-tokens=64", "--engine-command=/no/such/vllm serve", "--json"]

    done = process(*flags)

    assert done.returncode == 4
    told = json.loads(done.stdout)
    assert told["partial"] is None
    assert told["failure"]["reason"] == "EngineFailed" and "/no/such/vllm" in told["failure"]["message"]
    assert "no profile: EngineFailed: " in done.stderr and "Traceback" not in done.stderr


def test_run_with_unreadable_prompts_ends_with_three(tmp_path: Path) -> None:
    done = process(*RUN, f"--prompts={tmp_path}/none.jsonl", "--output-tokens=64")

    assert done.returncode == 3
    assert "no profile: PromptsInvalid: " in done.stderr and "none.jsonl" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(("signal_name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_run_that_is_asked_to_stop_says_by_what(signal_name: str, code: int, tmp_path: Path) -> None:
    import signal

    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(PROMPTS)
    engine = f"{sys.executable} -c \"import time; print('loading', flush=True); time.sleep(600)\""
    running = subprocess.Popen(
        [sys.executable, "-m", "specserve_profiler", *RUN, f"--prompts={prompts}", f"--engine-command={engine}",
         "--output-tokens=64", "-o", str(tmp_path / "out.json")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "profiler_job")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert running.stderr is not None
    assert any(line == "[engine] loading\n" for line in running.stderr)

    running.send_signal(getattr(signal, signal_name))

    _, told = running.communicate(timeout=patience(20))
    assert running.returncode == code
    assert "no profile: Interrupted: " in told
    assert not (tmp_path / "out.json").exists()


class Run:
    """What ``run`` does with an outcome, by a stand-in for the engine's half."""

    @staticmethod
    def finish(outcome: object, *flags: str) -> subprocess.CompletedProcess[str]:
        """Runs the command in a process where ``execute`` answers with ``outcome``."""
        code = (
            "import sys\n"
            "from specserve_profiler.session import run\n"
            "from specserve_profiler.contract.profile import *\n"
            f"run.execute = lambda request, *rest: {outcome}\n"
            "from specserve_profiler.cli import main\n"
            "sys.exit(main(sys.argv[1:]))\n"
        )
        return subprocess.run(
            [sys.executable, "-c", code, *ALL, *flags],
            env={**os.environ, "PYTHONPATH": str(ROOT / "profiler_job")},
            capture_output=True,
            text=True,
            timeout=patience(60),
            check=False,
        )

    @classmethod
    def profile(cls, *flags: str) -> subprocess.CompletedProcess[str]:
        """With a finished profile."""
        return cls.finish(f"run.Outcome(profile=Profile.model_validate_json({profile().to_json()!r}))", *flags)

    @classmethod
    def partial(cls, *flags: str) -> subprocess.CompletedProcess[str]:
        """With what was measured before the time was over."""
        failure = "Failure(reason='TimedOut', message='no profile within 3580 s')"
        kept = f"PartialProfile.model_validate_json({partial().to_json()!r})"
        return cls.finish(f"run.Outcome(failure={failure}, partial={kept})", *flags)


def test_a_finished_run_prints_the_report_and_what_to_serve_with(tmp_path: Path) -> None:
    out = tmp_path / "p.json"

    done = Run.profile("-o", str(out))

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(report(Profile.model_validate_json(out.read_text())))
    assert 'Serve with:\n  --speculative-config \'{"method":"draft_model","model":"d",' in done.stdout
    assert Profile.model_validate_json(out.read_text()) == profile()


def test_raw_records_are_kept_with_what_they_led_to(tmp_path: Path) -> None:
    finished, ended = tmp_path / "finished.gz", tmp_path / "ended.gz"

    assert Run.profile("--keep-records", str(finished)).returncode == 0
    assert Run.partial("--keep-records", str(ended)).returncode == 6

    assert read_kept(finished.read_bytes()).result == profile()
    assert read_kept(ended.read_bytes()).result == partial()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["ended.gz", "finished.gz"]


def test_records_that_cannot_be_kept_cost_no_profile(tmp_path: Path) -> None:
    refused = process(*RUN, "--output-tokens=64", f"--prompts={ROOT}/README.md", f"--keep-records={tmp_path}/no/r.gz")
    assert refused.returncode == 2
    assert f"--keep-records: {tmp_path}/no/r.gz cannot be written" in refused.stderr

    done = Run.profile("--keep-records=/dev/full", "--json")
    assert done.returncode == 7
    assert "OutputUnwritable: /dev/full: No space left on device" in done.stderr
    assert Profile.model_validate_json(done.stdout) == profile()


def test_the_engines_log_goes_where_it_is_asked_for(tmp_path: Path) -> None:
    prompts, log = tmp_path / "prompts.jsonl", tmp_path / "engine.log"
    prompts.write_text(PROMPTS)
    engine = f"{sys.executable} -c \"print('no weights'); raise SystemExit(3)\""

    done = process(
        *RUN, f"--prompts={prompts}", f"--engine-command={engine}", "--output-tokens=64", f"--engine-log={log}"
    )

    assert done.returncode == 4
    assert log.read_text() == "no weights\n" and "[engine]" not in done.stderr


def test_a_full_disk_loses_nothing() -> None:
    done = Run.profile("-o", "/dev/full")

    assert done.returncode == 7
    assert "OutputUnwritable: /dev/full: No space left on device" in done.stderr
    assert Profile.model_validate_json(done.stdout.strip().splitlines()[-1]) == profile()
    as_json = Run.profile("-o", "/dev/full", "--json")
    assert as_json.returncode == 7
    assert Profile.model_validate_json(as_json.stdout) == profile()


def test_what_an_ended_run_measured_is_in_its_json_where_it_is_in_no_file() -> None:
    for flags in (["-o", "/dev/full"], []):
        done = Run.partial(*flags, "--json")

        assert done.returncode == 6
        assert PartialProfile.model_validate(json.loads(done.stdout)["partial"]) == partial()
    unwritten = Run.partial("-o", "/dev/full")
    assert unwritten.returncode == 6
    assert PartialProfile.model_validate_json(unwritten.stdout) == partial()
    assert "OutputUnwritable: /dev/full: No space left on device: the result is on stdout" in unwritten.stderr


def test_a_report_that_cannot_be_written_says_where_and_ends_with_seven(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(stored), "-o", "/dev/full"]) == 7
    assert "OutputUnwritable: /dev/full: No space left on device: give --output" in capsys.readouterr().err


def test_an_ended_run_keeps_what_it_measured_beside_the_finished_one(stored: Path) -> None:
    done = Run.partial("-o", str(stored), "--json")

    assert done.returncode == 6
    assert Profile.model_validate_json(stored.read_text()) == profile()
    kept = stored.with_name("profile.json.partial")
    assert PartialProfile.model_validate_json(kept.read_text()) == partial()
    assert json.loads(kept.read_text())["partial"].startswith("TimedOut: ")
    assert json.loads(done.stdout) == {
        "failure": {"reason": "TimedOut", "message": "no profile within 3580 s"},
        "partial": str(kept),
    }


def test_a_fault_of_its_own_is_told_without_a_trace(tmp_path: Path) -> None:
    done = Run.finish("1 / 0", "-o", str(tmp_path / "p.json"))

    assert done.returncode == 1
    assert "a fault of its own: ZeroDivisionError" in done.stderr and "Traceback" not in done.stderr


def test_rows_of_the_sample_are_its_table() -> None:
    assert [[row.first, row.last, row.k] for row in TABLE] == ROWS
