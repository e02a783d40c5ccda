"""The profiler on a GPU: the same path as on the CPU, with the async scheduler and captured graphs.

Skipped without a GPU. Needs a Python with a CUDA build of vLLM in SPECSERVE_GPU_PYTHON (default: the current one).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from demopair.provide import ensure_pair
from devcluster.pace import patience
from specserve_profiler.contract.profile import Profile

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no NVIDIA GPU on this machine"),
]

ROOT = Path(__file__).resolve().parents[2]


def test_a_grid_is_measured_with_the_async_scheduler(tmp_path: Path) -> None:
    python = Path(os.environ.get("SPECSERVE_GPU_PYTHON", sys.executable))
    pair = ensure_pair(python, print)
    output = tmp_path / "profile.json"
    command = [
        python, "-m", "specserve_profiler", "run",
        "--engine-command", f"{python} -m vllm.entrypoints.openai.api_server",
        "--model", pair.target, "--method", "draft_model", "--draft-model", pair.draft, "--max-tokens", "3",
        "--max-num-seqs", "16", "--max-model-len", "1024", "--prompts", pair.profile_prompts,
        "--prompt-tokens", "32", "--output-tokens", "96", "--batch-sizes", "1,4,16", "--measure-seconds", "30",
        "-o", output, "--", "--no-enable-prefix-caching", "--gpu-memory-utilization=0.4",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "profiler_job"), "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, env=environment, check=True, timeout=patience(900))

    profile = Profile.model_validate_json(output.read_text())
    assert profile.measurements.scheduler == "async"
    assert {(c.batch_size, c.k) for c in profile.measurements.grid if c.itl_ms} == {
        (b, k) for b in (1, 4, 16) for k in range(4)
    }
    lengths = {a.k: a.acceptance_length.mean for a in profile.measurements.acceptance}
    assert 1.4 < lengths[1] < 1.9
