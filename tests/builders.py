"""Objects that tests of the operator begin with: a serving, nodes, profiles."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Mapping
from typing import Any

from specserve_operator.api.records import Json, format_time
from specserve_operator.api.serving import ServingSpec, SpeculativeServing
from specserve_profiler.contract.profile import (
    Acceptance,
    BaselineCell,
    Cell,
    Decision,
    Interval,
    Level,
    Measurements,
    Profile,
    Row,
    Speedup,
    Verdict,
)

NOW = dt.datetime(2026, 11, 3, 12, tzinfo=dt.timezone.utc)
NAMESPACE = "team"
L4, A100 = "NVIDIA-L4", "NVIDIA-A100-SXM4-80GB"


class _Remove:
    def __repr__(self) -> str:  # names of tests hold it, and are the same in every process
        return "REMOVE"


REMOVE = _Remove()

SERVING: Json = {
    "apiVersion": "specserve.dev/v1alpha1",
    "kind": "SpeculativeServing",
    "metadata": {"name": "chat", "namespace": NAMESPACE, "uid": "uid-chat", "generation": 1, "resourceVersion": "1"},
    "spec": {
        "replicas": 3,
        "model": {"name": "org/target", "revision": "abc123"},
        "speculation": {"method": "draft_model", "model": "org/drafter", "maxTokens": 4},
        "engine": {"image": "vllm/vllm-openai:v0.33.0", "maxNumSeqs": 64},
        "profile": {"workload": {"source": {"configMap": {"name": "prompts"}}}},
    },
}
PROMPTS: Json = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "prompts", "namespace": NAMESPACE, "uid": "uid-prompts"},
    "data": {"prompts.jsonl": '{"prompt": "Tell me about tables."}\n'},
}


def edited(obj: Json, edits: Mapping[str, Any]) -> Json:
    """A copy with values set at dotted paths; REMOVE takes a field out."""
    result = copy.deepcopy(obj)
    for path, value in edits.items():
        *parents, last = path.split(".")
        part = result
        for parent in parents:
            part = part.setdefault(parent, {})
        if value is REMOVE:
            del part[last]
        else:
            part[last] = copy.deepcopy(value)
    return result


def serving(edits: Mapping[str, Any] | None = None) -> SpeculativeServing:
    """A serving, with values set at dotted paths of its JSON."""
    return SpeculativeServing.read(edited(SERVING, edits or {}))


def spec(edits: Mapping[str, Any] | None = None) -> ServingSpec:
    """Its spec, with values set at dotted paths below ``spec``."""
    return serving({f"spec.{path}": value for path, value in (edits or {}).items()}).spec


def template(pod_spec: Json, **metadata: Any) -> dict[str, Any]:
    """Edits of a serving that set its podTemplate."""
    return {"spec.podTemplate": {"metadata": metadata, "spec": pod_spec} if metadata else {"spec": pod_spec}}


def node(
    name: str,
    product: str = L4,
    devices: int = 1,
    *,
    labels: Mapping[str, str] | None = None,
    ready: bool = True,
    cordoned: bool = False,
    resource: str = "nvidia.com/gpu",
) -> Json:
    """A node as the API server tells of it."""
    says = {"nvidia.com/gpu.product": product} if product else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {**says, **(labels or {})}},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "allocatable": {"cpu": "7910m", "memory": "16Gi", resource: str(devices)},
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
        },
    }


def profile(
    key: str,
    *,
    verdict: Verdict = "Dynamic",
    rows: tuple[tuple[int, int, int], ...] = ((1, 16, 4), (17, 64, 1)),
    static_k: int = 3,
    at: dt.datetime = NOW,
    capture_sizes: tuple[int, ...] = (),
) -> Profile:
    """A finished profile of two batch sizes."""
    return Profile(
        key=key,
        measured_at=at,
        measurements=Measurements(
            engine_version="0.33.0",
            scheduler="async",
            grid=tuple(
                Cell(batch_size=size, k=k, itl_ms=9.0 + k + size / 8, spread=0.004, blocks=40)
                for size in (1, 64)
                for k in (0, 1, 4)
            ),
            levels=tuple(Level(batch_size=size, half_width=0.02, cohorts=4, stopped="Known") for size in (1, 64)),
            acceptance=tuple(
                Acceptance(k=k, acceptance_length=Interval(mean=1 + k / 2, half_width=0.0625), prompts=80)
                for k in (0, 1, 4)
            ),
            baseline=tuple(
                BaselineCell(batch_size=size, itl_ms=Interval(mean=8.0 + size / 8, half_width=0.25), blocks=40)
                for size in (1, 64)
            ),
            mean_context_tokens=640,
            seconds={"boot": 60, "grid": 300},
        ),
        decision=Decision(
            verdict=verdict,
            reason="The table has the highest goodput.",
            table=tuple(Row(first=first, last=last, k=k) for first, last, k in rows),
            static_k=static_k,
            capture_sizes=capture_sizes,
            speedups=(
                Speedup(batch_size=1, over_baseline=2.0, over_static=1.0, verified=True),
                Speedup(batch_size=64, over_baseline=1.125, over_static=1.5),
            ),
        ),
    )


def later(seconds: float) -> str:
    """So many seconds after NOW, as Kubernetes writes it."""
    return format_time(NOW + dt.timedelta(seconds=seconds))
