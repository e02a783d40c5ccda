"""What a machine tells of an engine before it boots."""

import json
import sys
from pathlib import Path

import pytest
from tests.measured import asked as asked_for

from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.contract.steps import Limits
from specserve_profiler.dialect.support import Measured, Refused, Warned
from specserve_profiler.engine import installed


def request(drafter: Path, **changes: object) -> ProfileRequest:
    speculation = {"method": "eagle3", "model": str(drafter), "maxTokens": 3}
    return asked_for(**{"speculation": speculation, **changes})


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


@pytest.mark.parametrize(("layers", "kind"), [(3, Warned), (1, Measured)])
def test_the_modules_of_the_target_are_counted_in_its_folder(tmp_path: Path, layers: int, kind: type) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_nextn_predict_layers": layers}))
    asked = request(tmp_path, model=str(tmp_path), speculation={"method": "mtp", "maxTokens": 3})
    limits = Limits("0.32.0", "async", 32, 1024, 8192, 8192, 65536, 0, 3, runner="V2")

    assert type(installed.confirm(asked, limits)) is kind


@pytest.mark.parametrize(
    ("draft", "target", "why"),
    [
        (777, 1024, "the draft model has a vocabulary of 777 tokens, its target one of 1024"),
        (1024, 1024, None),
        (None, 1024, None),
        (777, None, None),
    ],
)
def test_a_draft_model_with_another_vocabulary_is_told_by_the_files(
    tmp_path: Path, draft: int | None, target: int | None, why: str | None
) -> None:
    for name, size in (("draft", draft), ("target", target)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({} if size is None else {"vocab_size": size}))
    speculation = {"method": "draft_model", "model": str(tmp_path / "draft"), "maxTokens": 3}
    asked = request(tmp_path / "draft", model=str(tmp_path / "target"), speculation=speculation)

    assert installed.drafter_mismatch(asked) == why
    # an EAGLE head may have a smaller one, with a mapping
    assert installed.drafter_mismatch(request(tmp_path / "draft", model=str(tmp_path / "target"))) is None


def test_only_the_vllm_beside_this_interpreter_tells_its_version(tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.symlink_to(sys.executable)

    assert installed.engine_version((str(other), "-m", "vllm.entrypoints.openai.api_server")) is None
    assert installed.engine_version(("no-such-program", "serve")) is None
    assert installed.engine_version(()) is None


@pytest.mark.parametrize(
    ("config", "method", "told"),
    [
        ({"max_position_embeddings": 512}, "draft_model", True),
        ({"max_position_embeddings": 512, "rope_parameters": {"rope_type": "default"}}, "draft_model", True),
        ({"max_position_embeddings": 512, "rope_scaling": {"rope_type": "yarn", "factor": 4}}, "draft_model", False),
        ({"max_position_embeddings": 1024}, "draft_model", False),
        ({"max_position_embeddings": "many"}, "draft_model", False),
        ({}, "draft_model", False),
        ({"max_position_embeddings": 512}, "eagle3", False),
    ],
)
def test_a_drafter_that_knows_fewer_positions_than_contexts_have(
    tmp_path: Path, config: dict[str, object], method: str, told: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = request(tmp_path, speculation={"method": method, "model": str(tmp_path), "maxTokens": 3})

    found = installed.short_drafter(asked.model_copy(update={"engine": asked.engine.model_copy(update=LONG)}))

    assert (found or "").startswith("the draft model knows 512 positions, engine.maxModelLen is 1024") is told


LONG = {"max_model_len": 1024}


def test_models_that_are_paths_are_looked_at_and_names_are_not(tmp_path: Path) -> None:
    (tmp_path / "mistral").mkdir()
    (tmp_path / "mistral" / "params.json").write_text("{}")
    (tmp_path / "m.gguf").write_text("")
    for model in (f"{tmp_path}/mistral", f"{tmp_path}/m.gguf", "org/name", "name", "s3://bucket/a/b", "x" * 300):
        assert installed.unreadable_models(request(tmp_path / "mistral", model=model)) == []

    assert installed.unreadable_models(request(tmp_path / "no", model="/no\x00/x")) == [
        "model /no\x00/x: there is no such folder",
        f"speculation.model {tmp_path}/no: there is no such folder",
    ]
