"""What the environment with vLLM tells of an engine before it boots."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm
PROGRAM = """
import json, sys
from specserve_profiler.engine import installed
print(json.dumps({
    "version": installed.engine_version((sys.executable, "-m", "vllm.entrypoints.openai.api_server")),
    "cached": installed.model_config("org/drafter"),
    "other revision": installed.model_config("org/drafter", "v2"),
    "other model": installed.model_config("org/other"),
}))
"""


def test_version_and_cached_models_are_known_without_a_boot(run_in_engine: Callable[..., Any], tmp_path: Path) -> None:
    repository = tmp_path / "models--org--drafter"
    (repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (repository / "snapshots" / "abc" / "config.json").write_text('{"pard_token": 7}')

    done = run_in_engine("-c", PROGRAM, HF_HUB_CACHE=str(tmp_path))

    assert json.loads(done.stdout.splitlines()[-1]) == {
        "version": "0.32.0",
        "cached": {"pard_token": 7},
        "other revision": {},
        "other model": {},
    }
