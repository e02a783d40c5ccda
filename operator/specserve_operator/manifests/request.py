"""A serving's spec in the profiler's words: what is asked of a Job, and what its key hashes."""

from __future__ import annotations

from specserve_operator.api.accelerator import Accelerator
from specserve_operator.api.records import Json
from specserve_operator.api.serving import ServingSpec
from specserve_operator.manifests.common import digest
from specserve_operator.manifests.pod import engine_container
from specserve_profiler.contract.key import KeyInputs
from specserve_profiler.contract.model import SCHEMA_VERSION
from specserve_profiler.contract.request import (
    MT_BENCH,
    Engine,
    HubDataset,
    ProfileRequest,
    PromptSource,
    Speculation,
    Workload,
)
from specserve_profiler.statistics import grid

PROMPTS_MOUNT = "/specserve/prompts"


def engine(spec: ServingSpec) -> Engine:
    """The engine as the profiler takes it."""
    e = spec.engine
    return Engine(
        command=e.command,
        args=e.args,
        max_num_seqs=e.max_num_seqs,
        max_model_len=e.max_model_len,
        tensor_parallel_size=e.tensor_parallel_size,
    )


def speculation(spec: ServingSpec) -> Speculation:
    """Speculation as the profiler takes it."""
    s = spec.speculation
    return Speculation(method=s.method, model=s.model, revision=s.revision, max_tokens=s.max_tokens, config=s.config)


def workload(spec: ServingSpec) -> Workload:
    """The workload as the profiler takes it."""
    w = spec.profile.workload
    return Workload(
        prompt_tokens=w.prompt_tokens,
        output_tokens=w.output_tokens,
        temperature=w.temperature,
        top_p=w.top_p,
        seed=w.seed,
    )


def weights(spec: ServingSpec) -> dict[int, float]:
    """Share of the load by batch size, as the profiler takes it."""
    return {entry.batch_size: entry.weight for entry in spec.profile.weights}


def batch_sizes(spec: ServingSpec) -> tuple[int, ...]:
    """The batch sizes to measure, increasing."""
    return tuple(sorted(spec.profile.batch_sizes)) or grid.default_batch_sizes(spec.engine.max_num_seqs)


def prompts(spec: ServingSpec) -> PromptSource:
    """Where the profiling container finds the prompts."""
    source = spec.profile.workload.source
    dataset = hub_dataset(spec)
    if dataset is not None:
        return PromptSource(hub=dataset)
    return PromptSource(path=source.path or (f"{PROMPTS_MOUNT}/{source.config_map.key}" if source.config_map else ""))


def hub_dataset(spec: ServingSpec) -> HubDataset | None:
    """The dataset of a hub that the prompts are from, if they are."""
    source = spec.profile.workload.source
    if source.mt_bench is not None:
        return MT_BENCH
    found = source.hugging_face
    if found is None:
        return None
    return HubDataset(
        name=found.dataset, config=found.config, split=found.split, column=found.column, revision=found.revision
    )


def _workload_source(spec: ServingSpec, prompts_digest: str) -> str:
    dataset = hub_dataset(spec)
    if dataset is None:
        return spec.profile.workload.source.path or f"sha256:{prompts_digest}"
    chosen = {"config": dataset.config, "split": dataset.split, "column": dataset.column}
    told = [f"{name}={value}" for name, value in chosen.items() if value is not None]
    return " ".join([f"hub:{dataset.name}@{dataset.revision or 'main'}", *told])


def profile_request(spec: ServingSpec, key: str) -> ProfileRequest:
    """What the Job is asked to do."""
    return ProfileRequest(
        key=key,
        model=spec.model.name,
        revision=spec.model.revision,
        speculation=speculation(spec),
        engine=engine(spec),
        workload=workload(spec),
        prompts=prompts(spec),
        batch_sizes=batch_sizes(spec),
        measure_seconds=spec.profile.measure_seconds,
        timeout_seconds=spec.profile.timeout_seconds,
        verify=spec.profile.verify,
        weights=weights(spec),
    )


def key_inputs(spec: ServingSpec, accelerator: Accelerator, driver: str | None, prompts_digest: str) -> KeyInputs:
    """All that a table of this serving on ``accelerator`` depends on.

    Args:
        prompts_digest: of the ConfigMap's prompts; empty where they are from elsewhere.
    """
    container = engine_container(spec.pod_template)
    resources = container.get("resources") or {}
    return KeyInputs(
        schema_version=SCHEMA_VERSION,
        model=spec.model.name,
        revision=spec.model.revision,
        speculation=speculation(spec),
        image=spec.engine.image,
        engine=engine(spec),
        env=tuple(sorted((e["name"], _env_value(e)) for e in container.get("env") or ()))
        + tuple(("*", digest(e)) for e in container.get("envFrom") or ()),
        resources={
            f"{kind}.{name}": str(amount)
            for kind in ("limits", "requests")
            for name, amount in (resources.get(kind) or {}).items()
        }
        | {f"perReplica.{spec.accelerators.resource}": str(spec.accelerators.per_replica)},
        workload=workload(spec),
        workload_source=_workload_source(spec, prompts_digest),
        batch_sizes=batch_sizes(spec),
        verify=spec.profile.verify,
        weights=weights(spec),
        accelerator=accelerator.identity(),
        driver=driver,
    )


def _env_value(entry: Json) -> str:
    # A reference is named, never followed: a secret's value must not reach a key.
    return f"from:{digest(entry['valueFrom'])}" if "valueFrom" in entry else str(entry.get("value", ""))


def python_of(spec: ServingSpec) -> str:
    """The interpreter that runs the profiler: the engine's own where the command names one, else the image's."""
    first = spec.engine.command[0]
    return first if first.rpartition("/")[2].startswith("python") else "python3"
