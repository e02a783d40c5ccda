"""What a machine tells of an engine before it boots."""

import sys
from pathlib import Path

import pytest

from specserve_profiler import installed
from specserve_profiler.contract import ProfileRequest
from specserve_profiler.engines import Measured, Refused


def request(drafter: Path, **changes: object) -> ProfileRequest:
    return ProfileRequest.model_validate(
        {
            "key": "k",
            "model": "/no/such/model",
            "speculation": {"method": "eagle3", "model": str(drafter), "maxTokens": 3},
            "engine": {"maxNumSeqs": 8, "maxModelLen": 512},
            "workload": {"promptTokens": 32, "outputTokens": 64},
            "prompts": {"path": "/prompts.jsonl"},
            "batchSizes": [1, 8],
            "measureSeconds": 20,
            "timeoutSeconds": 280,
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ('{"speculators_model_type": "peagle"}', Refused),
        ('{"model_type": "llama"}', Measured),
        ("[1]", Measured),
        ("no JSON", Measured),
        (None, Measured),
    ],
)
def test_a_parallel_drafter_is_refused_by_the_file_in_its_folder(
    tmp_path: Path, content: str | None, kind: type
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)

    assert type(installed.foresee(request(tmp_path))) is kind


def test_only_the_vllm_beside_this_interpreter_tells_its_version(tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.symlink_to(sys.executable)

    assert installed.engine_version((str(other), "-m", "vllm.entrypoints.openai.api_server")) is None
    assert installed.engine_version(("no-such-program", "serve")) is None
    assert installed.engine_version(()) is None
