"""What is rendered is what vLLM reads, and what is refused would have come through."""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from devcluster.pace import patience
from specserve_profiler.contract.request import Engine, Speculation
from specserve_profiler.dialect import render
from specserve_profiler.dialect.arguments import most_values, refused_arguments

pytestmark = pytest.mark.vllm
PARSER = Path(__file__).parent / "parse_arguments.py"

SMUGGLED: list[tuple[list[str], str]] = [
    (["-sc", '{"method": "ngram"}'], "speculative_config"),
    (["-sc={}"], "speculative_config"),
    (["-s", '{"method": "ngram"}'], "speculative_config"),
    (["--speculative_config", '{"method": "ngram"}'], "speculative_config"),
    (["--speculative", '{"method": "ngram"}'], "speculative_config"),
    (["--speculative-config.method", "ngram"], "speculative_config"),
    (["-sc.method=ngram"], "speculative_config"),
    (["--spec-tok", "3"], "spec_tokens"),
    (["--spec_method=ngram"], "spec_method"),
    (["--max_num_seqs=7"], "max_num_seqs"),
    (["--max-num-se", "7"], "max_num_seqs"),
    (["--max-model=77"], "max_model_len"),
    (["-tp", "2"], "tensor_parallel_size"),
    (["-t", "2"], "tensor_parallel_size"),
    (["--scheduler_cls=x.y"], "scheduler_cls"),
    (["--rev=x"], "revision"),
    (["--model", "other"], "model"),
    (["--por", "8111"], "port"),
    (["--hos=::1"], "host"),
    (["-dp=2"], "data_parallel_size"),
    (["--data_parallel_size", "2"], "data_parallel_size"),
    (["-dcp", "2"], "decode_context_parallel_size"),
    (["-pp", "2"], "pipeline_parallel_size"),
    (["--api-k", "secret"], "api_key"),
]


@pytest.fixture(scope="module")
def parse(engine_python: Path, engine_environment: dict[str, str]) -> Any:
    def run(lines: list[Any]) -> list[dict[str, Any] | None]:
        done = subprocess.run(
            [engine_python, PARSER],
            input="".join(json.dumps(line) + "\n" for line in lines),
            env=engine_environment,
            capture_output=True,
            text=True,
            timeout=patience(120),
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return [json.loads(line) for line in done.stdout.splitlines()[-len(lines) :]]

    return run


def test_rendered_arguments_and_smuggled_spellings_mean_to_vllm_what_we_say(parse: Any) -> None:
    speculation = Speculation(method="draft_model", model="org/draft", max_tokens=5)
    config = render.measuring_config(speculation, 32)
    engine = Engine(command=(), args=("--dtype=bfloat16",), max_num_seqs=32, max_model_len=1024, tensor_parallel_size=2)
    rendered = render.serve_arguments("org/target", "main", engine, config, host="127.0.0.1", port=8123)

    ours, *smuggled = parse([list(rendered), *(arguments for arguments, _ in SMUGGLED)])

    assert ours == {
        "model": "org/target",
        "revision": "main",
        "host": "127.0.0.1",
        "port": 8123,
        "max_num_seqs": 32,
        "max_model_len": 1024,
        "tensor_parallel_size": 2,
        "dtype": "bfloat16",
        "speculative_config": config,
    }
    for (arguments, flag), found in zip(SMUGGLED, smuggled, strict=True):
        assert found is not None and list(found) == [flag], f"vLLM reads {arguments} as {found}"
        assert refused_arguments(arguments), f"{arguments} would have passed"


def test_we_know_how_many_values_each_flag_takes(parse: Any) -> None:
    taken, stray = parse(["flags", ["--model=m", "--enforce-eager", "x"]])
    values = {None: 1, "?": 1, 0: 0, "+": math.inf}
    checked = {flag: nargs for flag, nargs in taken.items() if not refused_arguments([flag])}

    assert stray["model_tag"] == "x"
    assert len(checked) > 200
    assert [flag for flag, nargs in checked.items() if most_values(flag) != values[nargs]] == []
