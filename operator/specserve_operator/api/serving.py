"""``SpeculativeServing``: the one source of its schema, its docs and its CRD.

Reading ignores unknown fields (a rollback of the operator must not choke on what a newer one stored); writing refuses
them, because the CRD's schema is strict. Every string, list and map is bounded, so that CEL rules stay within the API
server's cost budget. Rules across fields are CEL: see ``Rule``.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from specserve_profiler.contract.profile import Verdict
from specserve_profiler.contract.request import Method, Verify

Name = Annotated[str, Field(min_length=1, max_length=253)]
_LABEL = "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_LABEL_KEY = f"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_LABEL}$"
LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=_LABEL_KEY)]
LabelValue = Annotated[str, Field(max_length=63, pattern=f"^({_LABEL})?$")]
ObjectName = Annotated[
    str,
    Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
]
DataKey = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
Argument = Annotated[str, Field(max_length=4096)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=32)]

_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
PodTemplate = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "properties": {
                "metadata": {
                    "type": "object",
                    "description": "Labels and annotations of the pods.",
                    "properties": {
                        "labels": {**_STRINGS, "description": "Labels beside those that specserve sets."},
                        "annotations": {**_STRINGS, "description": "Annotations, such as those of a mesh."},
                    },
                },
                "spec": {**_ANYTHING, "description": "Any field of a pod's spec, as in `kubectl explain pod.spec`."},
            },
        }
    ),
]
"""The API server checks no more than the outer shape: a bad pod spec is found by a dry run of what is made of it."""

_LIST_BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
_LIST_BY_TYPE = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
_LIST_BY_BATCH_SIZE = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["batchSize"]}


class Rule(BaseModel):
    """A CEL rule of the CRD, and what a person reads who breaks it."""

    model_config = ConfigDict(frozen=True)
    rule: str
    message: str
    field: str = ""
    """The field at fault, below the part that carries the rule: ``.model``. Empty: the part itself."""


class Part(BaseModel):
    """A part of the resource: frozen, camelCase on the wire, unknown fields ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)
    rules: ClassVar[tuple[Rule, ...]] = ()


class ModelReference(Part):
    """The target model."""

    name: Annotated[str, Field(min_length=1, max_length=512, description="Hub name, or a path inside the container.")]
    revision: Annotated[str | None, Field(max_length=128, description="Commit, tag or branch.")] = None


class SpeculationSpec(Part):
    """How the engine drafts, and what serves until a table is measured."""

    method: Annotated[Method, Field(description="Drafting method, in vLLM's own words.")]
    model: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=512,
            description="Draft model. Needed by draft_model, eagle, eagle3 and dflash; not taken by mtp and ngram.",
        ),
    ] = None
    revision: Annotated[str | None, Field(max_length=128, description="Revision of the draft model.")] = None
    max_tokens: Annotated[int, Field(ge=1, le=16, description="Kmax: the largest K that is measured.")] = 5
    config: Annotated[
        dict[str, Any],
        Field(
            max_length=32,
            description="Further keys of vLLM's --speculative-config, such as attention_backend, in what is measured"
            " and in what serves. Those that specserve sets itself are refused (condition Accepted), and so are those"
            " that vLLM does not know.",
        ),
    ] = {}
    before_profile: Annotated[
        Literal["Static", "Off", "Wait"],
        Field(
            description="What serves until a first table exists: a fixed K (Static, see staticTokens), no speculation"
            " (Off), or nothing (Wait). On a fleet without a free device choose Wait: what serves holds the device"
            " that the profiling Job needs."
        ),
    ] = "Static"
    static_tokens: Annotated[int, Field(ge=1, le=16, description="The fixed K of beforeProfile: Static.")] = 2

    rules = (
        Rule(
            rule="self.method in ['mtp', 'ngram'] ? !has(self.model) : has(self.model)",
            message="needed by draft_model, eagle, eagle3 and dflash, and not taken by mtp and ngram",
            field=".model",
        ),
        Rule(
            rule="self.beforeProfile != 'Static' || self.staticTokens <= self.maxTokens",
            message="must not exceed maxTokens",
            field=".staticTokens",
        ),
        Rule(
            rule="!has(self.revision) || has(self.model)",
            message="set model too, or leave the revision out",
            field=".revision",
        ),
    )


class EngineSpec(Part):
    """The engine. Profiled and served with the very same image, command and args."""

    image: Annotated[
        str,
        Field(min_length=1, max_length=512, pattern=r"^\S+$", description="A vLLM image; nothing is added to it."),
    ]
    command: Annotated[
        tuple[Argument, ...], Field(min_length=1, max_length=16, description="What starts vLLM's API server.")
    ] = ("vllm", "serve")
    args: Annotated[
        tuple[Argument, ...],
        Field(max_length=128, description="Engine arguments, except those that specserve sets itself."),
    ] = ()
    max_num_seqs: Annotated[int, Field(ge=1, le=4096, description="Largest batch size.")] = 256
    max_model_len: Annotated[
        int, Field(ge=16, le=16777216, description="Longest prompt and generation together, in tokens.")
    ] = 8192
    tensor_parallel_size: Annotated[
        int, Field(ge=1, le=64, description="Devices that share one replica's weights.")
    ] = 1


class AcceleratorsSpec(Part):
    """Where to serve: every type of accelerator among the selected nodes gets a table of its own."""

    resource: Annotated[
        str,
        Field(
            min_length=1,
            max_length=253,
            description="Resource that pods ask for: nvidia.com/gpu, amd.com/gpu, a MIG resource, or cpu.",
        ),
    ] = "nvidia.com/gpu"
    per_replica: Annotated[int, Field(ge=1, le=1024, description="How many of the resource one replica takes.")] = 1
    node_selector: Annotated[Labels, Field(description="Only nodes with these labels.")] = {}
    allow_shared: Annotated[
        bool, Field(description="Also use time-sliced and MPS devices, whose timings depend on their neighbours.")
    ] = False
    identity_labels: Annotated[
        tuple[LabelKey, ...],
        Field(max_length=8, description="Node labels that tell two accelerators of one product apart."),
    ] = ()

    rules = (
        Rule(
            rule=f"self.nodeSelector.all(k, k.size() <= 317 && k.matches('{_LABEL_KEY}'))",
            message="each key must be a label key, such as nvidia.com/gpu.product",
            field=".nodeSelector",
        ),
    )


class ConfigMapSource(Part):
    """A key of a ConfigMap of the same namespace."""

    name: Annotated[ObjectName, Field(description="Name of the ConfigMap.")]
    key: Annotated[
        DataKey,
        Field(
            description='JSON lines: `{"prompt": text}`, OpenAI chats, ShareGPT, or another form of docs/profiler.md.'
        ),
    ] = "prompts.jsonl"


class MtBenchSource(Part):
    """The prompts of MT-Bench. There is nothing to choose."""


class HuggingFaceSource(Part):
    """A dataset of a Hugging Face hub."""

    dataset: Annotated[
        str,
        Field(
            min_length=1,
            max_length=256,
            pattern="^[-._a-zA-Z0-9]+(/[-._a-zA-Z0-9]+)?$",
            description="Name on the hub, such as org/name.",
        ),
    ]
    config: Annotated[
        str | None, Field(min_length=1, max_length=256, description="Configuration, where the dataset has several.")
    ] = None
    split: Annotated[str, Field(min_length=1, max_length=256, description="Split.")] = "train"
    column: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=256,
            description="Column of the prompts. Empty: the first of prompt, messages, conversations, turns, question"
            " and text that the dataset has.",
        ),
    ] = None
    revision: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=128,
            description="Commit, tag or branch. Give a commit: what a branch holds may change without a new profile.",
        ),
    ] = None


class WorkloadSource(Part):
    """Where the prompts come from: exactly one."""

    mt_bench: Annotated[
        MtBenchSource | None,
        Field(
            description="`{}`: the 80 prompts of MT-Bench, from a Hugging Face hub that the Job can reach. A first"
            " impression; your own traffic may accept more or less."
        ),
    ] = None
    hugging_face: Annotated[
        HuggingFaceSource | None,
        Field(
            description="A dataset of a Hugging Face hub that the Job can reach. HF_ENDPOINT, HF_TOKEN and HF_HOME of"
            " the engine's container apply."
        ),
    ] = None
    config_map: Annotated[ConfigMapSource | None, Field(description="JSONL in a ConfigMap.")] = None
    path: Annotated[
        str | None,
        Field(
            min_length=2,
            max_length=1024,
            pattern="^/",
            description="JSONL file inside the engine container, on a volume of podTemplate.",
        ),
    ] = None

    rules = (
        Rule(
            rule="[has(self.mtBench), has(self.huggingFace), has(self.configMap), has(self.path)]"
            ".exists_one(given, given)",
            message="set exactly one of mtBench, huggingFace, configMap and path",
        ),
    )


class WorkloadSpec(Part):
    """What is generated while measuring: prompts like those of production. Acceptance depends on them."""

    source: WorkloadSource
    prompt_tokens: Annotated[int, Field(ge=1, le=1048576, description="Prompts are cut to this length.")] = 512
    output_tokens: Annotated[int, Field(ge=8, le=1048576, description="Generations are cut at this length.")] = 256
    temperature: Annotated[float, Field(ge=0, le=2, description="Sampling temperature; 0 is greedy.")] = 0
    top_p: Annotated[
        float, Field(gt=0, le=1, description="Nucleus of sampling; 1 is everything. Of no effect at temperature 0.")
    ] = 1
    seed: Annotated[
        int, Field(ge=0, le=2147483647, description="Of the order of the prompts, and of which are held out.")
    ] = 0


class BatchWeight(Part):
    """Share of the load at one batch size."""

    batch_size: Annotated[int, Field(ge=1, le=4096, description="Requests that decode at once.")]
    weight: Annotated[
        float, Field(ge=0, le=1000000, description="Share of the time, in any unit: hours of a day, per cent, counts.")
    ]


class ProfileSpec(Part):
    """How to measure."""

    workload: WorkloadSpec
    batch_sizes: Annotated[
        tuple[Annotated[int, Field(ge=1, le=4096)], ...],
        Field(max_length=16, description="Measured batch sizes, increasing. Empty: 1, 2, 4, ... maxNumSeqs."),
    ] = ()
    weights: Annotated[
        tuple[BatchWeight, ...],
        Field(
            max_length=16,
            description="How often the fleet works at which batch size. It decides where one table is best at some"
            " sizes and another at others. Empty: all measured sizes alike.",
            json_schema_extra=_LIST_BY_BATCH_SIZE,
        ),
    ] = ()
    verify: Annotated[
        Verify,
        Field(
            description="Whether the finished table is served against the engine without speculation before it ships"
            " (Table), against the best fixed K too (Full, one more boot), or not at all (Off)."
        ),
    ] = "Table"
    measure_seconds: Annotated[
        int, Field(ge=10, le=86400, description="Time for measuring, the engine's boots not counted.")
    ] = 900
    timeout_seconds: Annotated[
        int, Field(ge=60, le=172800, description="Time for the whole Job once it runs; waiting is not counted.")
    ] = 3600
    driver_policy: Annotated[
        Literal["Ignore", "Major", "Full"], Field(description="Which driver changes ask for a new profile.")
    ] = "Major"

    rules = (
        Rule(
            rule="self.timeoutSeconds > self.measureSeconds",
            message="must exceed measureSeconds by the time that the engine takes to boot twice",
            field=".timeoutSeconds",
        ),
        Rule(
            rule="self.batchSizes.isSorted() && self.batchSizes.all(i, self.batchSizes.exists_one(j, j == i))",
            message="must be increasing, each size once",
            field=".batchSizes",
        ),
        Rule(
            rule="self.weights.size() == 0 || self.weights.exists(w, w.weight > 0.0)",
            message="at least one must be above 0",
            field=".weights",
        ),
    )


class RolloutSpec(Part):
    """How pods are replaced. Without spare devices a surge would never be scheduled, so it is 0 unless asked for."""

    max_surge: Annotated[int, Field(ge=0, le=1000, description="Pods above replicas while rolling.")] = 0
    max_unavailable: Annotated[int, Field(ge=0, le=1000, description="Pods below replicas while rolling.")] = 1
    progress_deadline_seconds: Annotated[
        int, Field(ge=60, le=86400, description="Time in which a new pod must become ready.")
    ] = 1800

    rules = (
        Rule(
            rule="self.maxSurge + self.maxUnavailable > 0",
            message="must not be 0 where maxSurge is 0, or no pod could ever be replaced",
            field=".maxUnavailable",
        ),
    )


class ServingSpec(Part):
    """What to serve."""

    replicas: Annotated[int, Field(ge=0, le=10000, description="Over all accelerators.")] = 1
    model: ModelReference
    speculation: SpeculationSpec
    engine: EngineSpec
    accelerators: AcceleratorsSpec = AcceleratorsSpec()
    profile: ProfileSpec
    pod_template: Annotated[
        PodTemplate,
        Field(
            description="Pod metadata and spec, merged under what specserve sets, for Job and Deployment alike."
            " The engine's container is called engine."
        ),
    ] = {}
    rollout: RolloutSpec = RolloutSpec()

    rules = (
        Rule(
            rule="self.profile.batchSizes.all(b, b <= self.engine.maxNumSeqs)",
            message="none may exceed spec.engine.maxNumSeqs",
            field=".profile.batchSizes",
        ),
        Rule(
            rule="self.profile.weights.all(w, w.batchSize <= self.engine.maxNumSeqs)",
            message="no batchSize may exceed spec.engine.maxNumSeqs",
            field=".profile.weights",
        ),
        Rule(
            rule="self.profile.workload.outputTokens < self.engine.maxModelLen",
            message="must be smaller than spec.engine.maxModelLen",
            field=".profile.workload.outputTokens",
        ),
    )


class Condition(Part):
    """As in the Kubernetes API conventions."""

    type: Annotated[str, Field(max_length=64, description="What it is about.")]
    status: Annotated[Literal["True", "False", "Unknown"], Field(description="Whether it holds.")]
    reason: Annotated[str, Field(max_length=64, description="Why, in one word.")]
    message: Annotated[str, Field(max_length=2048, description="Why, and what to do next.")] = ""
    observed_generation: Annotated[int, Field(description="Generation of the spec that it is about.")] = 0
    last_transition_time: Annotated[str, Field(max_length=32, description="When status changed last.")] = ""


ProfileState = Literal["Missing", "Queued", "Profiling", "Ready", "Failed"]


class ProfileStatus(Part):
    """The profile of one accelerator."""

    state: Annotated[ProfileState, Field(description="How far it is.")]
    key: Annotated[str, Field(max_length=63, description="Hash of everything that the measurement depends on.")] = ""
    config_map: Annotated[str | None, Field(max_length=253, description="Where it is kept.")] = None
    reason: Annotated[str, Field(max_length=64, description="Why it is being measured, or why that failed.")] = ""
    message: Annotated[str, Field(max_length=2048, description="What happened, and what to do next.")] = ""
    measured_at: Annotated[str | None, Field(max_length=32, description="When it was measured.")] = None
    verdict: Annotated[
        Verdict | None,
        Field(
            description="What wins: a table (Dynamic), one K (Static), no speculation (None), or vLLM's adaptive"
            " verification (Adaptive)."
        ),
    ] = None


class SpeedupStatus(Part):
    """Throughput as a ratio, geometric mean over batch sizes: as verified in a closed loop, else as predicted."""

    over_baseline: Annotated[str, Field(max_length=16, description="Over the engine without speculation.")]
    over_static: Annotated[str, Field(max_length=16, description="Over the best single K.")]


class AcceleratorStatus(Part):
    """One variant: this serving on one accelerator."""

    name: Annotated[str, Field(max_length=63, description="Slug of the accelerator, part of its Deployment's name.")]
    product: Annotated[str, Field(max_length=253, description="As the nodes' labels call it.")]
    nodes: Annotated[int, Field(description="Nodes that have it.")] = 0
    capacity: Annotated[int, Field(description="Replicas that fit on its nodes, usable just now or not.")] = 0
    replicas: Annotated[int, Field(description="Replicas that it should have.")] = 0
    ready: Annotated[int, Field(description="Replicas that serve.")] = 0
    serving: Annotated[
        str, Field(max_length=253, description="Profile ConfigMap in use, Static, Off, or empty when nothing serves.")
    ] = ""
    table: Annotated[str, Field(max_length=1024, description="Short form: first-last:K.")] = ""
    speedup: SpeedupStatus | None = None
    profile: ProfileStatus
    missing_since: Annotated[
        str | None, Field(max_length=32, description="Since when no node has it; removed after the grace period.")
    ] = None


class ServingStatus(Part):
    """What is."""

    observed_generation: Annotated[int, Field(description="Generation of the spec that this is about.")] = 0
    replicas: Annotated[int, Field(description="Serving pods.")] = 0
    ready_replicas: Annotated[int, Field(description="Serving pods that are ready.")] = 0
    selector: Annotated[str, Field(max_length=512, description="Label selector of serving pods, for autoscalers.")] = ""
    summary: Annotated[str, Field(max_length=512, description="Is it fine, and if not, why.")] = ""
    accelerators: Annotated[
        tuple[AcceleratorStatus, ...],
        Field(max_length=64, description="One per type of accelerator.", json_schema_extra=_LIST_BY_NAME),
    ] = ()
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16,
            description="Accepted, AcceleratorsFound, Profiled, Available, Progressing and Ready.",
            json_schema_extra=_LIST_BY_TYPE,
        ),
    ] = ()


class SpeculativeServing(Part):
    """Serves a model with speculative decoding that is right for the hardware it runs on."""

    name: Name
    namespace: Name
    uid: str
    generation: int
    annotations: dict[str, str] = {}
    deleting: bool = False
    spec: ServingSpec
    status: ServingStatus = ServingStatus()

    rules = (
        Rule(
            rule="self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            message="at most 40 of a-z, 0-9 and -, beginning with a letter and not ending with -, because Services and"
            " Deployments are named after it",
            field=".metadata.name",
        ),
    )

    @classmethod
    def read(cls, obj: dict[str, Any]) -> SpeculativeServing:
        """From the API server's JSON.

        Raises:
            pydantic.ValidationError: the object was stored under a schema that this operator cannot read.
        """
        meta = obj["metadata"]
        return cls(
            name=meta["name"],
            namespace=meta["namespace"],
            uid=meta["uid"],
            generation=meta.get("generation", 0),
            annotations=meta.get("annotations") or {},
            deleting="deletionTimestamp" in meta,
            spec=obj["spec"],
            status=obj.get("status") or {},
        )
