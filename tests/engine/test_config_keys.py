"""Further keys of the speculative config, asked of the installed vLLM: it has these, and takes what we let through."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from demopair.cache import Pair
from devcluster.pace import patience
from specserve_profiler.contract.request import Engine, Speculation
from specserve_profiler.dialect import render
from specserve_profiler.dialect.config_keys import OWNED, keys_of, refused_config

pytestmark = pytest.mark.vllm
JUDGE = Path(__file__).parent / "judge_config_keys.py"
INSTALLED = (0, 32)
ENGINE = Engine(command=(), args=("--dtype=bfloat16",), max_num_seqs=8, max_model_len=512)

FURTHER: dict[str, Any] = {
    "draft-tensor-parallel-size": 1,
    "attention_backend": "CPU_ATTN",
    "enforce_eager": True,
    "disable_padded_drafter_batch": False,
    "kv_cache_dtype": "auto",
    "max_model_len": 256,
    "moe_backend": "auto",
    "draft_load_config": {"load_format": "safetensors"},
    "rejection_sample_method": "block",
    "draft_sample_method": "probabilistic",
    "use_heterogeneous_vocab": False,
}
REFUSED: tuple[dict[str, Any], ...] = (
    {"tensor_parallel_size": 1},
    {"draft_tensor_parallel_size": 2},
    {"draft_tensor_parallel_size": 0},
    {"max_model_len": "long"},
    {"enforce_eager": "often"},
    {"draft_load_config": "safetensors"},
    {"draft_sample_method": "lucky"},
    {"rejection_sample_method": "fly"},
    {"index_share_for_mtp_iteration": True},
    {"synthetic_acceptance_length": 2.0},
    {"dspark_draft_topk": 4},
    {"atention_backend": "CPU_ATTN"},
    {"xpress_topc": 1},
)


@pytest.fixture(scope="module")
def answers(engine_python: Path, engine_environment: dict[str, str], pair: Pair) -> list[Any]:
    """The fields of vLLM's config, then what it makes of every arm with FURTHER, then of each of REFUSED."""
    further = _speculation(pair, FURTHER)
    configs = [
        render.measuring_config(further, 8),
        render.table_config(further, [(1, 4, 3), (5, 8, 1)]),
        render.static_config(further, 2),
        # Beside what is rendered, for what we refuse must reach the judge.
        *({**(render.static_config(_speculation(pair, {}), 3) or {}), **config} for config in REFUSED),
    ]
    lines = [list(render.serve_arguments(str(pair.target), None, ENGINE, config)) for config in configs]
    done = subprocess.run(
        [engine_python, JUDGE],
        input="".join(json.dumps(line) + "\n" for line in lines),
        env=engine_environment,
        capture_output=True,
        text=True,
        timeout=patience(300),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("@")]


def _speculation(pair: Pair, config: dict[str, Any]) -> Speculation:
    return Speculation(method="draft_model", model=str(pair.draft), max_tokens=3, config=config)


def test_the_installed_engine_has_just_the_keys_that_are_listed(answers: list[Any]) -> None:
    assert set(answers[0]) == set(keys_of(INSTALLED)) | set(OWNED)


def test_every_arm_reaches_the_engine_with_the_further_keys(answers: list[Any], pair: Pair) -> None:
    assert refused_config(_speculation(pair, FURTHER), 1, "0.32.0") == []
    measured, table, static = answers[1:4]
    for answer, tokens in ((measured, 3), (table, 3), (static, 2)):
        assert "refused" not in answer, answer
        assert answer["method"] == "draft_model" and answer["num_speculative_tokens"] == tokens
        assert answer["draft_tensor_parallel_size"] == 1 and answer["max_model_len"] == 256
        assert answer["enforce_eager"] is True and answer["draft_sample_method"] == "probabilistic"
        assert answer["rejection_sample_method"] == "block" and "CPU_ATTN" in answer["attention_backend"]
        assert "safetensors" in answer["draft_load_config"]
    assert table["num_speculative_tokens_per_batch_size"] == [[1, 4, 3], [5, 8, 1]]


def test_what_is_refused_would_have_ended_the_boot(answers: list[Any], pair: Pair) -> None:
    for config, answer in zip(REFUSED, answers[4:], strict=True):
        assert "refused" in answer, f"vLLM takes {config}"
        assert [key for key, _ in refused_config(_speculation(pair, config), 1, "0.32.0")] == list(config)
