"""Every bound and rule of the schema: an object that it lets through, one that it refuses, and in which words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.api.resource import MINIMAL, REMOVE, Json, Refusal, Servings, edited

from specserve_operator.api.serving import ServingSpec

pytestmark = pytest.mark.apiserver

CRD = Path(__file__).parents[2] / "crds" / "speculativeservings.yaml"
Edits = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One bound or rule."""

    rule: str
    """Where the schema says it: path and keyword, or path and message of a CEL rule."""
    accepted: Edits
    refused: Edits
    fault: tuple[str, str]
    """Field and message of the refusal."""
    also: Edits = field(default_factory=dict)
    """What else must be set for the object to be right otherwise."""


def number(path: str, low: int, high: int, *, at_low: Edits | None = None, at_high: Edits | None = None) -> list[Case]:
    too_low = f"Invalid value: {low - 1}: {path} in body should be greater than or equal to {low}"
    too_high = f"Invalid value: {high + 1}: {path} in body should be less than or equal to {high}"
    return [
        Case(f"{path} minimum", {path: low}, {path: low - 1}, (path, too_low), at_low or {}),
        Case(f"{path} maximum", {path: high}, {path: high + 1}, (path, too_high), at_high or {}),
    ]


def text(path: str, low: int, high: int, *, fill: str = "x", also: Edits | None = None) -> list[Case]:
    short, long = fill[:low], fill + "x" * (high - len(fill))
    too_long = (path, f"Too long: may not be more than {high} bytes")
    cases = [Case(f"{path} maxLength", {path: long}, {path: long + "x"}, too_long, also or {})]
    if low:
        too_short = f'Invalid value: "{short[1:]}": {path} in body should be at least {low} chars long'
        accepted = {path: fill + "x" * (low - len(fill))}
        cases.append(Case(f"{path} minLength", accepted, {path: short[1:]}, (path, too_short), also or {}))
    return cases


def word(path: str, words: tuple[str, ...]) -> list[Case]:
    listed = ", ".join(f'"{each}"' for each in words)
    fault = (path, f'Unsupported value: "Other": supported values: {listed}')
    return [Case(f"{path} enum", {path: each}, {path: "Other"}, fault) for each in words]


def required(path: str, value: Any) -> Case:
    return Case(f"{path} required", {path: value}, {path: REMOVE}, (path, "Required value"))


def items(path: str, high: int, item: Any = "x") -> Case:
    fault = (path, f"Too many: {high + 1}: must have at most {high} items")
    return Case(f"{path} maxItems", {path: [item] * high}, {path: [item] * (high + 1)}, fault)


def rule(path: str, message: str, accepted: Edits, refused: Edits, at: str = "") -> Case:
    return Case(f"{path} {message}", accepted, refused, (at or path, f'Invalid value: "object": {message}'))


SOURCE = "spec.profile.workload.source"
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
DATA_KEY = "^[-._a-zA-Z0-9]+$"
BATCH_SIZES = "spec.profile.batchSizes"
NODE_SELECTOR = "spec.accelerators.nodeSelector"
IDENTITY = "spec.accelerators.identityLabels"
DRAFTER = {"spec.speculation.method": "eagle3", "spec.speculation.model": "org/drafter"}
FROM_CONFIG_MAP = {SOURCE: {"configMap": {"name": "prompts"}}}
FROM_HUB = {SOURCE: {"huggingFace": {"dataset": "org/prompts"}}}
HUB = f"{SOURCE}.huggingFace"
DATASET = "^[-._a-zA-Z0-9]+(/[-._a-zA-Z0-9]+)?$"
WEIGHTS = "spec.profile.weights"
ONE_SOURCE = "set exactly one of mtBench, huggingFace, configMap and path"
LABEL_KEY = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
NAME = (
    "at most 40 of a-z, 0-9 and -, beginning with a letter and not ending with -, because Services and Deployments are"
    " named after it"
)
MODEL = "needed by draft_model, eagle, eagle3 and dflash, and not taken by mtp and ngram"

BOUNDS: list[Case] = [
    *number("spec.replicas", 0, 10000),
    required("spec.model", {"name": "org/target"}),
    required("spec.model.name", "org/target"),
    *text("spec.model.name", 1, 512),
    *text("spec.model.revision", 0, 128),
    required("spec.speculation", {"method": "ngram"}),
    required("spec.speculation.method", "ngram"),
    Case(
        "spec.speculation.method enum",  # RULES have an accepted case for each method
        {"spec.speculation.method": "mtp"},
        {"spec.speculation.method": "medusa"},
        (
            "spec.speculation.method",
            'Unsupported value: "medusa": supported values: "draft_model", "eagle", "eagle3", "mtp", "dflash", "ngram"',
        ),
    ),
    *text("spec.speculation.model", 1, 512, also=DRAFTER),
    *text("spec.speculation.revision", 0, 128, also=DRAFTER),
    *number("spec.speculation.maxTokens", 1, 16, at_low={"spec.speculation.staticTokens": 1}),
    Case(
        "spec.speculation.config maxProperties",
        {"spec.speculation.config": {f"k{n}": [n, {"any": "thing"}] for n in range(32)}},
        {"spec.speculation.config": {f"k{n}": "" for n in range(33)}},
        ("spec.speculation.config", "Too many: 33: must have at most 32 items"),
    ),
    *word("spec.speculation.beforeProfile", ("Static", "Off", "Wait")),
    *number("spec.speculation.staticTokens", 1, 16, at_high={"spec.speculation.maxTokens": 16}),
    required("spec.engine", {"image": "vllm"}),
    required("spec.engine.image", "vllm"),
    *text("spec.engine.image", 1, 512),
    Case(
        "spec.engine.image pattern",
        {"spec.engine.image": "registry:5000/vllm/vllm-openai@sha256:0123"},
        {"spec.engine.image": "vllm openai"},
        ("spec.engine.image", r"""Invalid value: "vllm openai": spec.engine.image in body should match '^\S+$'"""),
    ),
    Case(
        "spec.engine.command minItems",
        {"spec.engine.command": ["vllm"]},
        {"spec.engine.command": []},
        ("spec.engine.command", "Invalid value: 0: spec.engine.command in body should have at least 1 items"),
    ),
    items("spec.engine.command", 16),
    Case(
        "spec.engine.command[] maxLength",
        {"spec.engine.command": ["x" * 4096]},
        {"spec.engine.command": ["x" * 4097]},
        ("spec.engine.command[0]", "Too long: may not be more than 4096 bytes"),
    ),
    items("spec.engine.args", 128),
    Case(
        "spec.engine.args[] maxLength",
        {"spec.engine.args": ["x" * 4096]},
        {"spec.engine.args": ["x", "x" * 4097]},
        ("spec.engine.args[1]", "Too long: may not be more than 4096 bytes"),
    ),
    *number("spec.engine.maxNumSeqs", 1, 4096),
    *number("spec.engine.maxModelLen", 16, 16777216, at_low={"spec.profile.workload.outputTokens": 8}),
    *number("spec.engine.tensorParallelSize", 1, 64),
    *text("spec.accelerators.resource", 1, 253),
    *number("spec.accelerators.perReplica", 1, 1024),
    Case(
        f"{NODE_SELECTOR} maxProperties",
        {NODE_SELECTOR: {f"k{n}": "" for n in range(32)}},
        {NODE_SELECTOR: {f"k{n}": "" for n in range(33)}},
        (NODE_SELECTOR, "Too many: 33: must have at most 32 items"),
    ),
    Case(
        f"{NODE_SELECTOR}{{}} maxLength",
        {NODE_SELECTOR: {"pool": "x" * 63}},
        {NODE_SELECTOR: {"pool": "x" * 64}},
        (f"{NODE_SELECTOR}.pool", "Too long: may not be more than 63 bytes"),
    ),
    Case(
        f"{NODE_SELECTOR}{{}} pattern",
        {NODE_SELECTOR: {"pool": "NVIDIA-H100-80GB-HBM3"}},
        {NODE_SELECTOR: {"pool": "two words"}},
        (
            f"{NODE_SELECTOR}.pool",
            f"Invalid value: \"two words\": {NODE_SELECTOR}.pool in body should match '{LABEL_VALUE}'",
        ),
    ),
    items(IDENTITY, 8),
    Case(
        f"{IDENTITY}[] minLength",
        {IDENTITY: ["x"]},
        {IDENTITY: [""]},
        (f"{IDENTITY}[0]", f'Invalid value: "": {IDENTITY}[0] in body should be at least 1 chars long'),
    ),
    Case(
        f"{IDENTITY}[] maxLength",
        {IDENTITY: ["x" * 253 + "/" + "x" * 63]},
        {IDENTITY: ["x" * 253 + "/" + "x" * 64]},
        (f"{IDENTITY}[0]", "Too long: may not be more than 317 bytes"),
    ),
    Case(
        f"{IDENTITY}[] pattern",
        {IDENTITY: ["nvidia.com/gpu.memory"]},
        {IDENTITY: ["nvidia.com/"]},
        (
            f"{IDENTITY}[0]",
            f"Invalid value: \"nvidia.com/\": {IDENTITY}[0] in body should match '{LABEL_KEY}'",
        ),
    ),
    required("spec.profile", {"workload": {"source": {"path": "/prompts.jsonl"}}}),
    required("spec.profile.workload", {"source": {"path": "/prompts.jsonl"}}),
    required(SOURCE, {"path": "/prompts.jsonl"}),
    Case(
        f"{SOURCE}.configMap.name required",
        {SOURCE: {"configMap": {"name": "prompts"}}},
        {SOURCE: {"configMap": {"key": "prompts.jsonl"}}},
        (f"{SOURCE}.configMap.name", "Required value"),
    ),
    *text(f"{SOURCE}.configMap.name", 1, 253, also=FROM_CONFIG_MAP),
    *text(f"{SOURCE}.configMap.key", 1, 253, also=FROM_CONFIG_MAP),
    *(
        Case(
            f"{SOURCE}.configMap.{field} pattern",
            {f"{SOURCE}.configMap.{field}": good},
            {f"{SOURCE}.configMap.{field}": "../../other/configmaps/theirs"},
            (
                f"{SOURCE}.configMap.{field}",
                (
                    f'Invalid value: "../../other/configmaps/theirs": {SOURCE}.configMap.{field} in body should match'
                    f" '{pattern}'"
                ),
            ),
            FROM_CONFIG_MAP,
        )
        for field, good, pattern in (("name", "chat-prompts.v2", OBJECT_NAME), ("key", "Prompts_2.jsonl", DATA_KEY))
    ),
    *text(f"{SOURCE}.path", 2, 1024, fill="/x"),
    Case(
        f"{SOURCE}.path pattern",
        {f"{SOURCE}.path": "/data/prompts.jsonl"},
        {f"{SOURCE}.path": "prompts.jsonl"},
        (f"{SOURCE}.path", f"Invalid value: \"prompts.jsonl\": {SOURCE}.path in body should match '^/'"),
    ),
    Case(f"{HUB}.dataset required", FROM_HUB, {SOURCE: {"huggingFace": {}}}, (f"{HUB}.dataset", "Required value")),
    *text(f"{HUB}.dataset", 1, 256, also=FROM_HUB),
    Case(
        f"{HUB}.dataset pattern",
        {f"{HUB}.dataset": "philschmid/mt-bench"},
        {f"{HUB}.dataset": "https://hub/org/data"},
        (
            f"{HUB}.dataset",
            f"Invalid value: \"https://hub/org/data\": {HUB}.dataset in body should match '{DATASET}'",
        ),
        FROM_HUB,
    ),
    *text(f"{HUB}.config", 1, 256, also=FROM_HUB),
    *text(f"{HUB}.split", 1, 256, also=FROM_HUB),
    *text(f"{HUB}.column", 1, 256, also=FROM_HUB),
    *text(f"{HUB}.revision", 1, 128, also=FROM_HUB),
    *number("spec.profile.workload.promptTokens", 1, 1048576),
    *number("spec.profile.workload.outputTokens", 8, 1048576, at_high={"spec.engine.maxModelLen": 16777216}),
    *number("spec.profile.workload.temperature", 0, 2),
    Case(
        "spec.profile.workload.topP minimum",
        {"spec.profile.workload.topP": 0.01},
        {"spec.profile.workload.topP": 0},
        (
            "spec.profile.workload.topP",
            "Invalid value: 0: spec.profile.workload.topP in body should be greater than 0",
        ),
    ),
    Case(
        "spec.profile.workload.topP maximum",
        {"spec.profile.workload.topP": 1},
        {"spec.profile.workload.topP": 1.1},
        (
            "spec.profile.workload.topP",
            "Invalid value: 1.1: spec.profile.workload.topP in body should be less than or equal to 1",
        ),
    ),
    *number("spec.profile.workload.seed", 0, 2147483647),
    Case(
        f"{BATCH_SIZES} maxItems",
        {BATCH_SIZES: list(range(1, 17))},
        {BATCH_SIZES: list(range(1, 18))},
        (BATCH_SIZES, "Too many: 17: must have at most 16 items"),
    ),
    Case(
        f"{BATCH_SIZES}[] minimum",
        {BATCH_SIZES: [1, 2]},
        {BATCH_SIZES: [0, 2]},
        (f"{BATCH_SIZES}[0]", f"Invalid value: 0: {BATCH_SIZES}[0] in body should be greater than or equal to 1"),
    ),
    Case(
        f"{BATCH_SIZES}[] maximum",
        {BATCH_SIZES: [4096], "spec.engine.maxNumSeqs": 4096},
        {BATCH_SIZES: [4097], "spec.engine.maxNumSeqs": 4096},
        (f"{BATCH_SIZES}[0]", f"Invalid value: 4097: {BATCH_SIZES}[0] in body should be less than or equal to 4096"),
    ),
    Case(
        f"{WEIGHTS} maxItems",
        {WEIGHTS: [{"batchSize": n, "weight": 1} for n in range(1, 17)]},
        {WEIGHTS: [{"batchSize": n, "weight": 1} for n in range(1, 18)]},
        (WEIGHTS, "Too many: 17: must have at most 16 items"),
    ),
    Case(
        f"{WEIGHTS}[] batchSize is a key",
        {WEIGHTS: [{"batchSize": 1, "weight": 1}, {"batchSize": 2, "weight": 1}]},
        {WEIGHTS: [{"batchSize": 2, "weight": 1}, {"batchSize": 2, "weight": 3}]},
        (f"{WEIGHTS}[1]", 'Duplicate value: {"batchSize":2}'),
    ),
    *(
        Case(
            f"{WEIGHTS}[].{field} required",
            {WEIGHTS: [{"batchSize": 1, "weight": 1}]},
            {WEIGHTS: [{"batchSize": 1, "weight": 1}, {other: 2}]},
            (f"{WEIGHTS}[1].{field}", "Required value"),
        )
        for field, other in (("batchSize", "weight"), ("weight", "batchSize"))
    ),
    *(
        Case(
            f"{WEIGHTS}[].{field} {bound}",
            {WEIGHTS: [{"batchSize": 1, "weight": 1, field: good}], "spec.engine.maxNumSeqs": 4096},
            {WEIGHTS: [{"batchSize": 1, "weight": 1, field: bad}], "spec.engine.maxNumSeqs": 4096},
            (f"{WEIGHTS}[0].{field}", f"Invalid value: {bad}: {WEIGHTS}[0].{field} in body should be {words}"),
        )
        for field, bound, good, bad, words in (
            ("batchSize", "minimum", 1, 0, "greater than or equal to 1"),
            ("batchSize", "maximum", 4096, 4097, "less than or equal to 4096"),
            ("weight", "minimum", 0.5, -1, "greater than or equal to 0"),
            ("weight", "maximum", 1000000, 1000001, "less than or equal to 1000000"),
        )
    ),
    *word("spec.profile.verify", ("Table", "Full", "Off")),
    *number("spec.profile.measureSeconds", 10, 86400, at_high={"spec.profile.timeoutSeconds": 172800}),
    *number("spec.profile.timeoutSeconds", 60, 172800, at_low={"spec.profile.measureSeconds": 10}),
    *word("spec.profile.driverPolicy", ("Ignore", "Major", "Full")),
    *number("spec.rollout.maxSurge", 0, 1000),
    *number("spec.rollout.maxUnavailable", 0, 1000, at_low={"spec.rollout.maxSurge": 1}),
    *number("spec.rollout.progressDeadlineSeconds", 60, 86400),
]

RULES: list[Case] = [
    rule("", NAME, {"metadata.name": "a" * 40}, {"metadata.name": "a" * 41}, at="metadata.name"),
    rule("", NAME, {"metadata.name": "llama-3"}, {"metadata.name": "3-llama"}, at="metadata.name"),
    rule("", NAME, {"metadata.name": "llama-3"}, {"metadata.name": "llama.3"}, at="metadata.name"),
    *(
        rule(
            "spec.speculation",
            MODEL,
            {"spec.speculation": {"method": method, "model": "org/drafter"}},
            {"spec.speculation": {"method": method}},
            at="spec.speculation.model",
        )
        for method in ("draft_model", "eagle", "eagle3", "dflash")
    ),
    *(
        rule(
            "spec.speculation",
            MODEL,
            {"spec.speculation": {"method": method}},
            {"spec.speculation": {"method": method, "model": "org/drafter"}},
            at="spec.speculation.model",
        )
        for method in ("mtp", "ngram")
    ),
    rule(
        "spec.speculation",
        "must not exceed maxTokens",
        {"spec.speculation.maxTokens": 1, "spec.speculation.beforeProfile": "Off"},
        {"spec.speculation.maxTokens": 1},
        at="spec.speculation.staticTokens",
    ),
    rule(
        "spec.speculation",
        "set model too, or leave the revision out",
        {"spec.speculation": {"method": "eagle3", "model": "org/drafter", "revision": "main"}},
        {"spec.speculation": {"method": "ngram", "revision": "main"}},
        at="spec.speculation.revision",
    ),
    rule(
        "spec.accelerators",
        "each key must be a label key, such as nvidia.com/gpu.product",
        {NODE_SELECTOR: {"nvidia.com/gpu.product": "Tesla-T4"}},
        {NODE_SELECTOR: {"gpu product": "Tesla-T4"}},
        at=NODE_SELECTOR,
    ),
    rule(SOURCE, ONE_SOURCE, FROM_CONFIG_MAP, {SOURCE: {}}),
    *(
        rule(SOURCE, ONE_SOURCE, {SOURCE: one}, {SOURCE: {**one, **other}})
        for one, other in (
            ({"path": "/prompts.jsonl"}, {"configMap": {"name": "prompts"}}),
            ({"mtBench": {}}, {"path": "/prompts.jsonl"}),
            ({"huggingFace": {"dataset": "org/prompts"}}, {"mtBench": {}}),
            ({"configMap": {"name": "prompts"}}, {"huggingFace": {"dataset": "org/prompts"}, "mtBench": {}}),
        )
    ),
    rule(
        "spec.profile",
        "at least one must be above 0",
        {WEIGHTS: [{"batchSize": 1, "weight": 0}, {"batchSize": 2, "weight": 0.5}]},
        {WEIGHTS: [{"batchSize": 1, "weight": 0}, {"batchSize": 2, "weight": 0}]},
        at=WEIGHTS,
    ),
    rule(
        "spec",
        "no batchSize may exceed spec.engine.maxNumSeqs",
        {WEIGHTS: [{"batchSize": 64, "weight": 1}], "spec.engine.maxNumSeqs": 64},
        {WEIGHTS: [{"batchSize": 65, "weight": 1}], "spec.engine.maxNumSeqs": 64},
        at=WEIGHTS,
    ),
    rule(
        "spec.profile",
        "must exceed measureSeconds by the time that the engine takes to boot twice",
        {"spec.profile.measureSeconds": 899, "spec.profile.timeoutSeconds": 900},
        {"spec.profile.measureSeconds": 900, "spec.profile.timeoutSeconds": 900},
        at="spec.profile.timeoutSeconds",
    ),
    rule(
        "spec.profile",
        "must be increasing, each size once",
        {BATCH_SIZES: [1, 2, 4]},
        {BATCH_SIZES: [1, 4, 2]},
        at=BATCH_SIZES,
    ),
    rule(
        "spec.profile",
        "must be increasing, each size once",
        {BATCH_SIZES: []},
        {BATCH_SIZES: [1, 2, 2]},
        at=BATCH_SIZES,
    ),
    rule(
        "spec",
        "none may exceed spec.engine.maxNumSeqs",
        {BATCH_SIZES: [1, 64], "spec.engine.maxNumSeqs": 64},
        {BATCH_SIZES: [1, 65], "spec.engine.maxNumSeqs": 64},
        at=BATCH_SIZES,
    ),
    rule(
        "spec",
        "must be smaller than spec.engine.maxModelLen",
        {"spec.profile.workload.outputTokens": 511, "spec.engine.maxModelLen": 512},
        {"spec.profile.workload.outputTokens": 512, "spec.engine.maxModelLen": 512},
        at="spec.profile.workload.outputTokens",
    ),
    rule(
        "spec.rollout",
        "must not be 0 where maxSurge is 0, or no pod could ever be replaced",
        {"spec.rollout": {"maxSurge": 1, "maxUnavailable": 0}},
        {"spec.rollout": {"maxUnavailable": 0}},
        at="spec.rollout.maxUnavailable",
    ),
]

CASES = BOUNDS + RULES
KEYWORDS = {
    *("minimum", "maximum", "minLength", "maxLength", "pattern", "enum"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
}


def declared(path: str, schema: Json) -> Iterator[str]:
    """Every bound and rule of a schema, named as the cases name them."""
    yield from (f"{path} {keyword}" for keyword in schema if keyword in KEYWORDS)
    yield from (f"{path}.{name} required" for name in schema.get("required", ()))
    yield from (f"{path} {entry['message']}" for entry in schema.get("x-kubernetes-validations", ()))
    yield from (f"{path}[] {key} is a key" for key in schema.get("x-kubernetes-list-map-keys", ()))
    if "items" in schema:
        yield from declared(f"{path}[]", schema["items"])
    if path != "spec.podTemplate.metadata":  # strings, without bounds
        yield from declared_below(path, schema)


def declared_below(path: str, schema: Json) -> Iterator[str]:
    if "additionalProperties" in schema:
        yield from declared(f"{path}{{}}", schema["additionalProperties"])
    for name, below in schema.get("properties", {}).items():
        yield from declared(f"{path}.{name}".removeprefix("."), below)


def test_every_bound_and_rule_of_the_schema_has_a_case() -> None:
    root = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec_only = root | {"properties": {"spec": root["properties"]["spec"]}, "required": []}

    assert {case.rule for case in CASES} == set(declared("", spec_only))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule} {json.dumps(case.refused, default=str)[:60]}")
def test_bound_or_rule(case: Case, servings: Servings) -> None:
    accepted = servings.create(edited({**case.also, **case.accepted}), dry_run=True)
    refused = servings.create(edited({**case.also, **case.refused}), dry_run=True)

    assert isinstance(accepted, dict), accepted
    assert isinstance(refused, Refusal)
    assert refused.code == 422
    assert case.fault in refused.causes


@pytest.mark.parametrize(
    ("edits", "field"),
    [
        ({"spec.replica": 1}, "spec.replica"),
        ({"spec.engine.maxNumSeq": 8}, "spec.engine.maxNumSeq"),
        ({"spec.podTemplate": {"tolerations": []}}, "spec.podTemplate.tolerations"),
        ({"spec.podTemplate": {"metadata": {"name": "x"}}}, "spec.podTemplate.metadata.name"),
        ({"spec.profile.workload.source": {"mtBench": {"seed": 1}}}, "spec.profile.workload.source.mtBench.seed"),
    ],
)
def test_a_field_that_does_not_exist_is_refused(edits: Edits, field: str, servings: Servings) -> None:
    refused = servings.create(edited(edits), dry_run=True)

    assert isinstance(refused, Refusal)
    assert refused.code == 400
    assert refused.message.endswith(f'strict decoding error: unknown field "{field}"')


def test_spec_is_required(servings: Servings) -> None:
    refused = servings.create(edited({"spec": REMOVE}), dry_run=True)

    assert isinstance(refused, Refusal)
    assert ("spec", "Required value") in refused.causes


@pytest.mark.parametrize(
    ("path", "value", "kind"),
    [
        ("spec.replicas", "two", "integer"),
        ("spec.replicas", 1.5, "integer"),
        ("spec.engine.args", "--seed=1", "array"),
        ("spec.accelerators.allowShared", "yes", "boolean"),
        ("spec.podTemplate", [], "object"),
    ],
)
def test_a_value_of_another_type_is_refused(path: str, value: Any, kind: str, servings: Servings) -> None:
    refused = servings.create(edited({path: value}), dry_run=True)

    assert isinstance(refused, Refusal)
    assert any(at == path and f"{path} in body must be of type {kind}" in message for at, message in refused.causes)


def test_null_says_the_same_as_leaving_an_optional_field_out(servings: Servings) -> None:
    nulls = {
        "spec.model.revision": None,
        "spec.speculation.model": None,
        "spec.speculation.revision": None,
        "spec.profile.workload.source.configMap": None,
        "spec.profile.workload.source.mtBench": None,
        "spec.profile.workload.source.huggingFace": None,
        "spec.engine.args": None,
    }
    answer = servings.create(edited(nulls), dry_run=True)

    assert isinstance(answer, dict), answer
    assert answer["spec"]["engine"]["args"] == []


def test_any_field_of_a_pod_passes_in_pod_template(servings: Servings) -> None:
    template = {
        "metadata": {"labels": {"team": "search"}, "annotations": {"note": "x"}},
        "spec": {"tolerations": [{"operator": "Exists"}], "somethingNew": {"deep": [1]}},
    }
    answer = servings.create(edited({"spec.podTemplate": template}), dry_run=True)

    assert isinstance(answer, dict), answer
    assert answer["spec"]["podTemplate"] == template


def test_the_api_server_fills_in_defaults(servings: Servings) -> None:
    answer = servings.create(MINIMAL, dry_run=True)

    assert isinstance(answer, dict), answer
    assert answer["spec"] == {
        "replicas": 1,
        "model": {"name": "org/target"},
        "speculation": {"method": "ngram", "maxTokens": 5, "config": {}, "beforeProfile": "Static", "staticTokens": 2},
        "engine": {
            "image": "vllm",
            "command": ["vllm", "serve"],
            "args": [],
            "maxNumSeqs": 256,
            "maxModelLen": 8192,
            "tensorParallelSize": 1,
        },
        "accelerators": {
            "resource": "nvidia.com/gpu",
            "perReplica": 1,
            "nodeSelector": {},
            "allowShared": False,
            "identityLabels": [],
        },
        "profile": {
            "workload": {
                "source": {"path": "/prompts.jsonl"},
                "promptTokens": 512,
                "outputTokens": 256,
                "temperature": 0,
                "topP": 1,
                "seed": 0,
            },
            "batchSizes": [],
            "weights": [],
            "verify": "Table",
            "measureSeconds": 900,
            "timeoutSeconds": 3600,
            "driverPolicy": "Major",
        },
        "podTemplate": {},
        "rollout": {"maxSurge": 0, "maxUnavailable": 1, "progressDeadlineSeconds": 1800},
    }


def test_defaults_fill_in_what_a_part_leaves_out(servings: Servings) -> None:
    answer = servings.create(edited({"spec.rollout": {"maxSurge": 1}}), dry_run=True)

    assert isinstance(answer, dict), answer
    assert answer["spec"]["rollout"] == {"maxSurge": 1, "maxUnavailable": 1, "progressDeadlineSeconds": 1800}


def test_the_models_have_the_defaults_that_the_api_server_fills_in(servings: Servings) -> None:
    answer = servings.create(MINIMAL, dry_run=True)

    assert isinstance(answer, dict), answer
    assert ServingSpec.model_validate(answer["spec"]) == ServingSpec.model_validate(MINIMAL["spec"])
