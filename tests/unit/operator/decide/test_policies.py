"""Why a profile is measured again: each reason, and which wins."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import A100, L4, spec

from specserve_operator.api.accelerator import Accelerator
from specserve_operator.decide.policies import why_measure
from specserve_operator.manifests.request import key_inputs
from specserve_profiler.contract.key import KeyInputs, profile_key


def inputs(
    edits: dict[str, Any] | None = None, product: str = L4, driver: str | None = "550", prompts: str = "aa"
) -> KeyInputs:
    return key_inputs(spec(edits), Accelerator("nvidia", product), driver, prompts)


def with_env(entry: dict[str, Any]) -> dict[str, Any]:
    return {"podTemplate": {"spec": {"containers": [{"name": "engine", "env": [entry]}]}}}


USED = inputs()


@pytest.mark.parametrize(
    ("wanted", "reason", "message"),
    [
        (inputs(product=A100), "AcceleratorChanged", f"accelerator {L4} -> {A100}"),
        (inputs({"model.name": "org/other"}), "ModelChanged", "model changed"),
        (inputs({"model.revision": "def456"}), "ModelChanged", "revision changed"),
        (inputs({"speculation.maxTokens": 3}), "ModelChanged", "speculation changed"),
        (inputs({"speculation.config": {"max_model_len": 99}}), "ModelChanged", "speculation changed"),
        (inputs({"engine.image": "vllm/vllm-openai:v0.34.0"}), "EngineChanged", "image changed"),
        (inputs({"engine.args": ["--enforce-eager"]}), "EngineChanged", "engine changed"),
        (inputs({"engine.maxNumSeqs": 32, "profile.batchSizes": [1]}), "EngineChanged", "engine changed"),
        (inputs(with_env({"name": "A", "value": "1"})), "EngineChanged", "env changed"),
        (inputs({"accelerators.perReplica": 2}), "EngineChanged", "resources changed"),
        (inputs({"profile.workload.outputTokens": 64}), "WorkloadChanged", "workload changed"),
        (inputs({"profile.workload.topP": 0.9}), "WorkloadChanged", "workload changed"),
        (inputs({"profile.workload.seed": 1}), "WorkloadChanged", "workload changed"),
        (inputs(prompts="bb"), "WorkloadChanged", "workload_source changed"),
        (inputs({"profile.workload.source": {"mtBench": {}}}), "WorkloadChanged", "workload_source changed"),
        (inputs({"profile.verify": "Off"}), "WorkloadChanged", "verify changed"),
        (inputs({"profile.weights": [{"batchSize": 8, "weight": 1}]}), "WorkloadChanged", "weights changed"),
        (inputs({"profile.batchSizes": [1, 8]}), "WorkloadChanged", "batch_sizes changed"),
        (inputs(driver="570"), "DriverChanged", "driver 550 -> 570"),
        (USED.model_copy(update={"schema_version": 3}), "SchemaChanged", "profile schema 2 -> 3"),
    ],
)  # fmt: skip
def test_every_change_that_a_table_depends_on_has_its_reason(wanted: KeyInputs, reason: str, message: str) -> None:
    assert profile_key(wanted) != profile_key(USED)
    assert why_measure(USED, wanted) == (reason, message)


@pytest.mark.parametrize(
    "edits",
    [
        {"replicas": 9},
        {"speculation.beforeProfile": "Wait"},
        {"speculation.staticTokens": 1},
        {"rollout.maxSurge": 1},
        {"profile.timeoutSeconds": 7200},
        {"profile.measureSeconds": 60},
        {"podTemplate": {"spec": {"tolerations": [{"operator": "Exists"}]}}},
        {"profile.batchSizes": [1, 2, 4, 8, 16, 32, 64]},
        {"profile.verify": "Table", "profile.weights": [], "profile.workload.topP": 1, "profile.workload.seed": 0},
        {"speculation.config": {}},
    ],
)
def test_what_a_table_does_not_depend_on_asks_for_no_measurement(edits: dict[str, Any]) -> None:
    assert profile_key(inputs(edits)) == profile_key(USED)


def test_without_a_profile_in_use_it_is_the_first() -> None:
    assert why_measure(None, USED) == ("ProfileMissing", "no profile yet")


def test_the_same_inputs_mean_that_the_profile_was_deleted() -> None:
    assert why_measure(USED, USED) == ("ProfileMissing", "the stored profile is gone")


def test_a_request_goes_before_any_other_reason() -> None:
    assert why_measure(USED, inputs(driver="570"), "tuesday") == ("Requested", "annotation reprofile=tuesday")


def test_the_accelerator_goes_before_what_changed_with_it() -> None:
    assert why_measure(USED, inputs(product=A100, driver="570")).reason == "AcceleratorChanged"


def test_a_key_never_holds_what_a_secret_holds() -> None:
    reference = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    wanted = inputs(with_env(reference))

    ((name, value),) = wanted.env
    assert name == "TOKEN"
    assert value.startswith("from:")
    assert "hub" not in value


def test_the_key_of_a_serving_stays_the_same_for_ever() -> None:
    """Another one would measure a whole fleet again. (It is one per schema of what is stored.)"""
    assert profile_key(USED) == "specserve-02710f43337b"


def test_dashes_and_underscores_in_a_further_key_are_one_profile() -> None:
    dashes, underscores = (
        inputs({"speculation.config": {key: "FLASH_ATTN"}}) for key in ("attention-backend", "attention_backend")
    )
    assert profile_key(dashes) == profile_key(underscores) == "specserve-09c87b73c6c7"


def hub(**fields: Any) -> str:
    return inputs({"profile.workload.source": {"huggingFace": fields}}).workload_source


def test_a_dataset_is_named_with_all_that_chooses_its_prompts() -> None:
    assert hub(dataset="org/data") == "hub:org/data@main split=train"
    assert (
        hub(dataset="org/data", config="en", split="test", column="question", revision="0ab1")
        == "hub:org/data@0ab1 config=en split=test column=question"
    )
    assert inputs({"profile.workload.source": {"mtBench": {}}}).workload_source == (
        "hub:philschmid/mt-bench@main split=train column=turns"
    )
