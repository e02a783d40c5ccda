"""What serves: a Deployment per variant and one Service over all."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from specserve_operator.api import names
from specserve_operator.api.accelerator import Accelerator
from specserve_operator.api.records import Json
from specserve_operator.api.serving import ServingSpec, SpeculativeServing
from specserve_operator.manifests import pod, request
from specserve_operator.manifests.common import digest, metadata, owner_reference, serving_labels
from specserve_profiler.contract import variables
from specserve_profiler.contract.model import canonical_json
from specserve_profiler.dialect import render

CONFIG_VARIABLE = "SPECSERVE_SPECULATIVE_CONFIG"

PLACEMENT = frozenset({
    "affinity", "imagePullSecrets", "nodeSelector", "preemptionPolicy", "priority", "priorityClassName",
    "schedulerName", "schedulingGates", "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints",
})  # fmt: skip
"""Fields of a pod's spec that say where and when it runs, not what: they reach also an engine that is held."""

LONGEST_REVISION = 32_768
"""Characters; a longer one is not kept, and such a Deployment is held as it is."""


@dataclass(frozen=True)
class Arm:
    """How a variant drafts: from a profile, at a fixed K, or not at all."""

    kind: Literal["Profile", "Static", "Off"]
    config_map: str = ""
    """The profile, for kind Profile."""
    speculates: bool = True
    """False where the profile's verdict is None."""
    capture_sizes: tuple[int, ...] = ()
    """Token counts whose graphs the profile was verified with; empty: the engine's own choice."""

    @property
    def label(self) -> str:
        """For the status: the profile's name, Static or Off."""
        return self.config_map or self.kind


def variant_name(serving: SpeculativeServing, accelerator: Accelerator) -> str:
    """Name of a variant's Deployment."""
    return f"{serving.name}-{accelerator.slug}"


def deployment_hash(serving: SpeculativeServing, accelerator: Accelerator, arm: Arm) -> str:
    """Hash of all that a Deployment is rendered from, its replicas apart."""
    spec = serving.spec.model_dump(
        mode="json",
        exclude_defaults=True,
        include={"model", "speculation", "engine", "accelerators", "pod_template", "rollout"},
        exclude={"speculation": {"before_profile"}},
    )
    if arm.kind != "Static":
        spec["speculation"].pop("static_tokens", None)
    drafts = [arm.kind, arm.config_map, arm.speculates, *([list(arm.capture_sizes)] if arm.capture_sizes else [])]
    return digest([spec, accelerator.identity(), dict(accelerator.selector), *drafts])


def revision(spec: ServingSpec, arm: Arm) -> str:
    """What a Deployment serves, without where its pods go, as JSON for its annotation; empty where it is too long."""
    parts = {"model", "speculation", "engine"}
    said = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, include=parts)
    said["accelerators"] = {"resource": spec.accelerators.resource, "perReplica": spec.accelerators.per_replica}
    said["pod"] = {f: v for f, v in (spec.pod_template.get("spec") or {}).items() if f not in PLACEMENT}
    text = canonical_json({**said, "arm": asdict(arm)})
    return text if len(text) <= LONGEST_REVISION else ""


def held(spec: ServingSpec, text: str) -> tuple[ServingSpec, Arm]:
    """What a Deployment goes on serving, as ``revision`` kept it, placed as ``spec`` says now.

    Raises:
        ValueError: it was not kept, or somebody edited it.
    """
    try:
        said: dict[str, Any] = json.loads(text)
        arm, pod_spec = said.pop("arm"), said.pop("pod")
        now = spec.model_dump(mode="json", by_alias=True)
        pod_spec |= {f: v for f, v in (spec.pod_template.get("spec") or {}).items() if f in PLACEMENT}
        said["accelerators"] = {**now["accelerators"], **said["accelerators"]}
        others = {f: v for f, v in spec.pod_template.items() if f != "spec" or not v}
        said["podTemplate"] = {**others, "spec": pod_spec} if pod_spec else others
        sizes = tuple(int(size) for size in arm.pop("capture_sizes"))
        return ServingSpec.model_validate({**now, **said}), Arm(**arm, capture_sizes=sizes)
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"no serving revision: {text[:200]!r}") from error


def deployment(serving: SpeculativeServing, accelerator: Accelerator, arm: Arm, replicas: int) -> Json:
    """The Deployment of one variant."""
    spec = serving.spec
    labels = {**serving_labels(serving), names.VARIANT: accelerator.slug}
    meta = {
        "labels": {**labels, names.MANAGED_BY: names.MANAGER},
        "annotations": {names.PROFILE: arm.label},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            **metadata(
                serving.namespace,
                variant_name(serving, accelerator),
                names.ROLE_SERVING,
                {names.SERVING: serving.name, names.VARIANT: accelerator.slug},
                {
                    names.APPLIED_HASH: deployment_hash(serving, accelerator, arm),
                    names.PROFILE: arm.label,
                    names.ACCELERATOR_IDENTITY: accelerator.to_json(),
                    names.REVISION: revision(spec, arm),
                },
            ),
            "ownerReferences": [owner_reference(serving, controller=True)],
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": spec.rollout.progress_deadline_seconds,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxSurge": spec.rollout.max_surge,
                    "maxUnavailable": spec.rollout.max_unavailable,
                },
            },
            "template": pod.render(spec, accelerator, meta, {"containers": [_engine(serving, arm)]}),
        },
    }


def service(serving: SpeculativeServing) -> Json:
    """The one Service, named like the serving, over the pods of all variants."""
    spec = {
        "selector": serving_labels(serving),
        "ports": [{"name": "http", "port": names.ENGINE_PORT, "targetPort": names.ENGINE_PORT, "protocol": "TCP"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            **metadata(
                serving.namespace,
                serving.name,
                names.ROLE_SERVING,
                {names.SERVING: serving.name},
                {names.APPLIED_HASH: digest(spec)},
            ),
            "ownerReferences": [owner_reference(serving, controller=True)],
        },
        "spec": spec,
    }


def _engine(serving: SpeculativeServing, arm: Arm) -> Json:
    spec = serving.spec
    command = len(spec.engine.command)
    config: str | None = None
    env: list[Json] = []
    if arm.kind == "Static":
        static = render.static_config(request.speculation(spec), spec.speculation.static_tokens)
        config = variables.escape(render.config_text(static)) if static else None
    elif arm.kind == "Profile" and arm.speculates:
        config = f"$({CONFIG_VARIABLE})"
        source = {"name": arm.config_map, "key": names.SPECULATIVE_CONFIG}
        env = [{"name": CONFIG_VARIABLE, "valueFrom": {"configMapKeyRef": source}}]
    health: Json = {"httpGet": {"path": "/health", "port": names.ENGINE_PORT}}
    line = render.serve_arguments(
        spec.model.name,
        spec.model.revision,
        request.engine(spec),
        config,
        port=names.ENGINE_PORT,
        capture_sizes=arm.capture_sizes,
    )
    return {
        "name": names.ENGINE_CONTAINER,
        "image": spec.engine.image,
        "command": list(line[:command]),
        "args": list(line[command:]),
        "env": env,
        "ports": [{"name": "http", "containerPort": names.ENGINE_PORT, "protocol": "TCP"}],
        # Loading weights takes as long as a rollout may take; only then do the other probes count.
        "startupProbe": {
            **health,
            "periodSeconds": 5,
            "timeoutSeconds": 5,
            "failureThreshold": -(-spec.rollout.progress_deadline_seconds // 5),
        },
        "readinessProbe": {**health, "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {**health, "periodSeconds": 20, "timeoutSeconds": 20, "failureThreshold": 6},
    }
