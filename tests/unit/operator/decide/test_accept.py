"""What is refused before anything is made of it, with the way out."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import spec

from specserve_operator.decide.accept import note, refusal


def engine(**fields: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": {"containers": [{"name": "engine", **fields}]}}}


def node_affinity(required: Any) -> dict[str, Any]:
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return {"podTemplate": {"spec": {"affinity": affinity}}}


def test_a_usual_spec_is_accepted() -> None:
    assert refusal(spec()) is None
    assert refusal(spec({"engine.args": ["--gpu-memory-utilization=0.9", "--enforce-eager"]})) is None
    further = {"attention-backend": "FLASH_ATTN", "draft_tensor_parallel_size": 1, "draft_load_config": {"a": [1]}}
    assert refusal(spec({"speculation.config": further})) is None


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        pytest.param(
            {"engine.args": ["-sc", "{}"]},
            "engine.args: -sc: specserve sets -sc itself: set speculation, further keys in speculation.config; its"
            " table is measured",
            id="owned flag",
        ),
        pytest.param(
            {"engine.args": ["--max_num_seqs=8"]},
            "engine.args: --max_num_seqs=8: specserve sets --max-num-seqs itself: set engine.maxNumSeqs",
            id="owned flag in another spelling",
        ),
        pytest.param(
            {"speculation.config": {"num-speculative-tokens": 3, "attention_backend": "FLASH_ATTN"}},
            "speculation.config.num_speculative_tokens: specserve sets it: set speculation.maxTokens",
            id="owned key with dashes",
        ),
        pytest.param(
            {"speculation.config": {"draft_tensor_parallel_size": 2}, "engine.tensorParallelSize": 4},
            "speculation.config.draft_tensor_parallel_size: takes 1 or engine.tensorParallelSize (4), not 2",
            id="a drafter on other devices",
        ),
        pytest.param(
            {"speculation.config": {"atention_backend": "FLASH_ATTN"}, "engine.image": "mirror/vllm:v0.32.0"},
            "speculation.config.atention_backend: vLLM 0.32 knows no such key; did you mean attention_backend?",
            id="mistyped key",
        ),
        pytest.param(
            {"speculation.config": {"fly_window_size": 2}, "engine.image": "mirror/vllm:v0.32.0"},
            "speculation.config.fly_window_size: vLLM 0.32 does not know it: it came with 0.33",
            id="key of a newer release",
        ),
        pytest.param(
            {"speculation.config": {"parallel_drafting": True}},
            "speculation.method: the drafter makes all its drafts in one pass (P-EAGLE, PARD), and vLLM lays them out"
            " for Kmax whatever K is: with K < Kmax the step fails or its drafts are wrong: use a drafter that drafts"
            " one token after the other, or serve with a fixed K and no table",
            id="parallel drafting",
        ),
        pytest.param(
            {"speculation.config": {"attention backend": "FLASH_ATTN"}},
            "speculation.config: 'attention backend' is no key: give names such as attention_backend",
            id="no key",
        ),
        pytest.param(
            {"speculation.config": {"a-b": 1, "a_b": 1}},
            "speculation.config: one key is there twice, with dashes and with underscores: give it once",
            id="a key twice",
        ),
        pytest.param(
            {"speculation.config": {"quantization": "x" * 2048}},
            "speculation.config: it has 1 keys and 2068 bytes, at most 32 and 2048 are taken",
            id="too long",
        ),
        pytest.param(
            {"speculation.config": {"draft_load_config": {"a": [[[[[[[[[[[[]]]]]]]]]]]]}}},
            "speculation.config: its values are nested more than 8 deep",
            id="too deep",
        ),
        pytest.param(
            engine(env=[{"name": "PYTHONPATH", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
            "podTemplate: env PYTHONPATH of container engine: give a literal value; specserve adds the profiler to it",
            id="PYTHONPATH by reference",
        ),
        pytest.param(
            {"speculation": {"method": "mtp"}, "engine.image": "vllm/vllm-openai:v0.29.1"},
            "speculation.method: vLLM 0.29 drafts Kmax tokens on Model Runner V2 whatever the table says with mtp: use"
            " 0.32 or newer, or set VLLM_USE_V2_MODEL_RUNNER=0 in the engine's environment",
            id="engine that ignores the table",
        ),
        pytest.param(
            {"engine.image": "vllm/vllm-openai:v0.23.0"},
            "speculation.method: vLLM 0.23 knows no tables: use 0.24 or newer",
            id="engine without tables",
        ),
        pytest.param(
            engine(image="mine", args=["x"]),
            "podTemplate: container engine: move image, args to spec.engine",
            id="engine twice",
        ),
        pytest.param(
            {"podTemplate": {"spec": {"containers": "engine"}}},
            "podTemplate.spec.containers: must be a list of objects, each with its name",
            id="containers is a text",
        ),
        pytest.param(
            {"podTemplate": {"spec": {"containers": [{"image": "x"}]}}},
            "podTemplate.spec.containers: must be a list of objects, each with its name",
            id="container without a name",
        ),
        pytest.param(
            engine(env=[{"name": "A", "value": "1"}, "B=2"]),
            "podTemplate.spec.containers[0].env: must be a list of objects, each with its name",
            id="env as a shell would have it",
        ),
        pytest.param(
            engine(resources=["cpu"]),
            "podTemplate.spec.containers[0].resources: must be an object",
            id="resources is a list",
        ),
        pytest.param(
            engine(envFrom={"secretRef": {"name": "keys"}}),
            "podTemplate.spec.containers[0].envFrom: must be a list of objects",
            id="envFrom is an object",
        ),
        pytest.param(
            engine(resources={"limits": "cpu=2"}),
            "podTemplate.spec.containers[0].resources.limits: must be an object",
            id="limits is a text",
        ),
        pytest.param(
            {"podTemplate": {"spec": []}}, "podTemplate.spec: must be an object", id="spec is a list"
        ),
        pytest.param(
            {"podTemplate": {"metadata": "x"}}, "podTemplate.metadata: must be an object", id="metadata is a text"
        ),
        pytest.param(
            {"podTemplate": {"spec": {"containers": {}}}},
            "podTemplate.spec.containers: must be a list of objects, each with its name",
            id="containers is an object",
        ),
        pytest.param(
            engine(env=[{"name": 5, "value": "1"}]),
            "podTemplate.spec.containers[0].env: must be a list of objects, each with its name",
            id="env with a number for a name",
        ),
        pytest.param(
            engine(env=[{"name": "A", "value": 0}]),
            "podTemplate.spec.containers[0].env[0].value: must be a text: quote it",
            id="env with a number for a value",
        ),
        pytest.param(
            engine(env=[{"name": "A", "value": "1"}, {"name": "B"}, {"name": "A", "value": "2"}]),
            "podTemplate.spec.containers[0].env: name A is there twice",
            id="env twice",
        ),
        pytest.param(
            {"podTemplate": {"spec": {"containers": [{"name": "engine"}, {"name": "engine", "tty": True}]}}},
            "podTemplate.spec.containers: name engine is there twice",
            id="container twice",
        ),
        pytest.param(
            {"podTemplate": {"spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "a"}]}}},
            "podTemplate.spec: two containers are called a",
            id="init container called like a container",
        ),
        pytest.param(
            engine(ports=[{"containerPort": 9000}, {"containerPort": 9000, "protocol": "TCP"}]),
            "podTemplate.spec.containers[0].ports: containerPort 9000 is there twice",
            id="port twice",
        ),
        pytest.param(
            engine(ports=[{"containerPort": "9000"}]),
            "podTemplate.spec.containers[0].ports: must be a list of objects, each with its containerPort",
            id="port is a text",
        ),
        pytest.param(
            engine(securityContext=[]),
            "podTemplate.spec.containers[0].securityContext: must be an object",
            id="securityContext is a list",
        ),
        pytest.param(
            node_affinity([]),
            "podTemplate.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution: must be an object",
            id="node affinity written like pod affinity",
        ),
        pytest.param(
            node_affinity({"nodeSelectorTerms": ["zone-a"]}),
            "podTemplate.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms:"
            " must be a list of objects",
            id="terms are texts",
        ),
    ],
)  # fmt: skip
def test_refusals_name_the_field_and_the_way_out(edits: dict[str, Any], expected: str) -> None:
    assert refusal(spec(edits)) == expected


@pytest.mark.parametrize(
    "pod_spec",
    [
        {"containers": None, "volumes": None, "affinity": None},
        {"nodeSelector": {"env": "production", "ports": "many"}},
        {
            "affinity": {
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "zone", "labelSelector": {"matchLabels": {"volumes": "x"}}}
                    ]
                }
            }
        },
        {"tolerations": [{"operator": "Exists"}], "unheardOf": {"field": 1}},
        {"containers": [{"name": "a", "ports": [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53}]}]},
        {"volumes": [{"name": "a", "csi": {"driver": "d", "volumeAttributes": {"env": "production"}}}]},
        {"dnsConfig": {"options": [{"name": "ndots", "value": "2"}]}},
        {
            "topologySpreadConstraints": [
                {"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
                {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
            ]
        },
    ],
)
def test_what_only_looks_odd_is_left_to_the_api_server(pod_spec: dict[str, Any]) -> None:
    assert refusal(spec({"podTemplate": {"spec": pod_spec}})) is None


def test_all_reasons_are_told_at_once() -> None:
    problem = refusal(spec({"engine.args": ["--port=1", "--host=h"], **engine(image="mine")}))

    assert problem is not None
    assert problem.split("; ") == [
        "engine.args: --port=1: specserve sets --port itself: specserve chooses the port",
        "engine.args: --host=h: specserve sets --host itself: specserve chooses the address",
        "podTemplate: container engine: move image to spec.engine",
    ]


def runner(value: str) -> dict[str, Any]:
    return engine(env=[{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": value}])


def test_the_environment_may_choose_a_runner_that_honours_the_table() -> None:
    old = {"speculation": {"method": "mtp"}, "engine.image": "vllm/vllm-openai:v0.29.1"}
    assert refusal(spec({**old, **runner("0")})) is None
    assert refusal(spec({**old, **runner("1")})) is not None


def test_an_accepted_spec_whose_table_gains_less_says_so() -> None:
    assert note(spec({"speculation": {"method": "eagle3", "model": "org/drafter"}})) == ""
    assert note(spec(runner("0"))) == ""
    known = note(spec(runner("1")))
    assert known.startswith("Model Runner V2 drafts Kmax tokens with draft_model and then cuts to K")
    assert note(spec()).startswith(known) and "VLLM_USE_V2_MODEL_RUNNER=0 in its env chooses V1" in note(spec())


def env(*entries: dict[str, Any]) -> dict[str, Any]:
    return engine(env=list(entries))


TOKEN = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}


@pytest.mark.parametrize(
    ("args", "entries"),
    [
        (["--served-model-name=$(NAME)"], [{"name": "NAME", "value": "chat"}]),
        (["--hf-token", "$(TOKEN)"], [TOKEN]),
        (["--download-dir=$(HOME)/models"], []),
        (["--chat-template=$$(NAME)"], [{"name": "NAME", "value": "--port=9"}]),
        (["--served-model-name=$(NOWHERE)"], []),
    ],
)
def test_a_variable_may_be_a_value(args: list[str], entries: list[dict[str, Any]]) -> None:
    assert refusal(spec({"engine.args": args, **env(*entries)})) is None


OURS = "specserve sets this variable, and not the same in Job and Deployment"
TAKEN = "vLLM would take it for the model, whatever model.name says"
PORT = "engine.args: --port=9: specserve sets --port itself: specserve chooses the port"


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ({"engine.args": ["$(A)"], **env({"name": "A", "value": "--port=9"})}, PORT),
        ({"engine.args": ["--p$(A)"], **env({"name": "A", "value": "ort=9"})}, PORT),
        (
            {"engine.args": ["$(B)"], **env({"name": "A", "value": "9"}, {"name": "B", "value": "--port=$(A)"})},
            PORT,
        ),
        (
            {"engine.args": ["--seed", "$(A)"], **env({"name": "A", "value": "--port=9"})},
            PORT,
        ),
        (
            {"engine.args": ["--$(TOKEN)=9"], **env(TOKEN)},
            "engine.args: --$(TOKEN)=9: a variable may be a value, not the name of a flag",
        ),
        (
            {"engine.args": ["--enforce-eager", "$(TOKEN)"], **env(TOKEN)},
            f"engine.args: $(TOKEN): it is no value of --enforce-eager: {TAKEN}",
        ),
        (
            {"engine.args": ["--seed=$(SPECSERVE_READY_PORT)"]},
            f"engine.args: $(SPECSERVE_READY_PORT): {OURS}",
        ),
        (
            {"model": {"name": "$(A)"}, **env({"name": "A", "value": "--port=9"})},
            "model.name: --port=9: the engine would take it for a flag",
        ),
        (
            {"speculation.model": "$(MODELS)/drafter"},
            "speculation.model: $(MODELS): variables are not expanded here; write the value itself",
        ),
        (
            {"speculation.config": {"draft_load_config": {"download_dir": "$(MODELS)"}}},
            "speculation.config: $(MODELS): variables are not expanded here; write the value itself",
        ),
    ],
)
def test_a_variable_brings_no_flag_back(edits: dict[str, Any], expected: str) -> None:
    assert refusal(spec(edits)) == expected
