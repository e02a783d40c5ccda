"""What measures: the profiling Job, the package it runs, and the ConfigMap that keeps its result."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping

from specserve_operator.api import names
from specserve_operator.api.accelerator import Accelerator
from specserve_operator.api.records import Json, format_time
from specserve_operator.api.serving import ServingSpec, SpeculativeServing
from specserve_operator.manifests import pod, request
from specserve_operator.manifests.common import digest, metadata, owner_reference
from specserve_profiler.contract import message, variables
from specserve_profiler.contract.key import KeyInputs
from specserve_profiler.contract.model import canonical_json
from specserve_profiler.contract.profile import Profile, short_table
from specserve_profiler.dialect import render

PACKAGE_MOUNT = "/specserve/package"

KEEP_FINISHED_SECONDS = 7 * 86400
"""A finished Job is kept for its log, and for the count of attempts that the pause between them grows by."""

LONGEST_INPUTS = 128 * 1024
"""Of 256 KiB that annotations may take. More is no request of a Job either: Linux takes no longer variable."""

STAY_AWAY = {
    "sidecar.istio.io/inject": "false",
    "linkerd.io/inject": "disabled",
    "kuma.io/sidecar-injection": "disabled",
}
"""Asks service meshes not to inject: a sidecar would share the termination message's space, and never ends."""

SERVING_ONLY = frozenset({"ports", "livenessProbe", "startupProbe", "lifecycle"})
"""What a podTemplate says of an engine that serves: probes would end the profiler, a host port would never be free."""


def package_name(package: bytes) -> str:
    """Name of the ConfigMap with the profiler's zip; says its content."""
    return f"specserve-profiler-{hashlib.sha256(package).hexdigest()[:12]}"


def package(namespace: str, content: bytes) -> Json:
    """The profiler's zip as an immutable ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(namespace, package_name(content), names.ROLE_PACKAGE, {}),
        "immutable": True,
        "binaryData": {names.PACKAGE_ZIP: base64.b64encode(content).decode()},
    }


def prompts_name(source_uid: str, content: str) -> str:
    """Name of the copy of a ConfigMap's prompts; says which, and the digest of its content."""
    return f"specserve-prompts-{digest([source_uid, content], 12)}"


def prompts(serving: SpeculativeServing, source_uid: str, content: str, text: str) -> Json:
    """The prompts of a ConfigMap as its key hashes them: an immutable copy, that goes with the ConfigMap itself.

    Args:
        source_uid: of the ConfigMap.
        content: digest of ``text``.
    """
    source = serving.spec.profile.workload.source.config_map
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": source.name if source else "", "uid": source_uid}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": prompts_name(source_uid, content),
            "namespace": serving.namespace,
            "labels": {names.MANAGED_BY: names.MANAGER, names.PROMPTS_OF: source_uid},
            "ownerReferences": [owner],
        },
        "immutable": True,
        "data": {names.PROMPTS_COPY: text},
    }


def requested_by(serving: SpeculativeServing) -> str:
    """Who asks for a Job, and with which spec: see ``names.REQUESTED_BY``."""
    spec = serving.spec.model_dump(mode="json", exclude_defaults=True, exclude={"replicas", "rollout"})
    return f"{serving.uid}/{digest(spec)}"


def job(
    serving: SpeculativeServing,
    accelerator: Accelerator,
    key: str,
    attempt: int,
    package_config_map: str,
    priority_class: str,
    why: str,
    *,
    inputs: KeyInputs,
    prompts_copy: str = "",
    failures: int = 0,
) -> Json:
    """The Job that measures ``key`` on ``accelerator``. It holds no credentials.

    Args:
        inputs: what the key is the hash of.
        prompts_copy: name of the ConfigMap with the prompts; empty where they are from elsewhere.
        failures: attempts that failed one after the other before it.
    """
    spec = serving.spec
    labels = {names.PROFILE_KEY: key}
    mounted = {names.PROMPTS: prompts_copy} if prompts_copy else {}
    pod_meta = {
        "labels": {names.MANAGED_BY: names.MANAGER, names.ROLE: names.ROLE_PROFILING, **labels,
                   "sidecar.istio.io/inject": "false"},
        "annotations": STAY_AWAY,
    }  # fmt: skip
    required: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        # Of the pod, not of the Job: the Job's own counts waiting for a device, and deletes the pod with its message.
        "activeDeadlineSeconds": spec.profile.timeout_seconds,
        "volumes": [
            {"name": "specserve-package", "configMap": {"name": package_config_map}},
            *_prompt_volumes(serving, prompts_copy),
        ],
        "containers": [_container(serving, key)],
    }
    if priority_class:
        required["priorityClassName"] = priority_class
    template = pod.render(spec, accelerator, pod_meta, required)
    # An ordinary sidecar never ends, and would keep the Job from completing; native ones are init containers.
    engine = pod.engine_container(template)
    template["spec"]["containers"] = [{field: engine[field] for field in engine if field not in SERVING_ONLY}]
    annotations = {
        names.ATTEMPT: str(attempt),
        names.FAILURES: str(failures),
        names.REQUESTED_BY: requested_by(serving),
        names.WHY: why,
    }
    if len((text := inputs.to_json()).encode()) <= LONGEST_INPUTS:
        annotations[names.KEY_INPUTS_OF_JOB] = text
    if names.REPROFILE in serving.annotations:
        annotations[names.REPROFILE] = serving.annotations[names.REPROFILE]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **metadata(serving.namespace, f"{key}-{attempt}", names.ROLE_PROFILING, {**labels, **mounted}, annotations),
            "ownerReferences": [owner_reference(serving, controller=False)],
        },
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": KEEP_FINISHED_SECONDS,
            "podReplacementPolicy": "Failed",
            # Preemption, eviction and the loss of a node are no failure of the measurement.
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": template,
        },
    }


def _prompt_volumes(serving: SpeculativeServing, copy: str) -> list[Json]:
    source = serving.spec.profile.workload.source.config_map
    if source is None:
        return []
    items = [{"key": names.PROMPTS_COPY, "path": source.key}]
    return [{"name": "specserve-prompts", "configMap": {"name": copy, "items": items}}]


def _container(serving: SpeculativeServing, key: str) -> Json:
    spec = serving.spec
    users = {e["name"]: e for e in pod.engine_container(spec.pod_template).get("env") or ()}
    # Before the user's own path, which may be where the engine lies.
    path = f"{PACKAGE_MOUNT}/{names.PACKAGE_ZIP}:{users.get('PYTHONPATH', {}).get('value', '')}".rstrip(":")
    mounts = [{"name": "specserve-package", "mountPath": PACKAGE_MOUNT, "readOnly": True}]
    if spec.profile.workload.source.config_map is not None:
        mounts.append({"name": "specserve-prompts", "mountPath": request.PROMPTS_MOUNT, "readOnly": True})
    return {
        "name": names.ENGINE_CONTAINER,
        "image": spec.engine.image,
        "command": [request.python_of(spec), "-m", "specserve_profiler", "job"],
        "env": [
            {"name": "PYTHONPATH", "value": path},
            {"name": "PYTHONUNBUFFERED", "value": "1"},
            {"name": names.REQUEST_VARIABLE, "value": variables.escape(request.profile_request(spec, key).to_json())},
            {"name": "SPECSERVE_READY_PORT", "value": str(names.READY_PORT)},
            *_values(spec),
        ],
        # Ready means measuring; before that the model is being loaded. Slow to turn back: an ending pod loads nothing.
        "readinessProbe": {"tcpSocket": {"port": names.READY_PORT}, "periodSeconds": 2, "failureThreshold": 3},
        "volumeMounts": mounts,
        # Where the profiler writes its result; the log must not take its place.
        "terminationMessagePath": str(message.DEFAULT_PATH),
        "terminationMessagePolicy": "File",
    }


def _values(spec: ServingSpec) -> list[Json]:
    """What the engine's command line refers to, by the kubelet itself: Secrets among it, which we never see."""
    texts = (*spec.engine.command, spec.model.name, spec.model.revision or "", *spec.engine.args)
    named = [name for name in variables.references(*texts) if re.fullmatch("[-._a-zA-Z][-._a-zA-Z0-9]*", name)]
    return [{"name": f"{variables.VALUE_PREFIX}{name}", "value": f"$({name})"} for name in named]


def profile(namespace: str, result: Profile, inputs: KeyInputs, reprofile: str = "", job_uid: str = "") -> Json:
    """The immutable ConfigMap of a finished profile, named by its key and its content."""
    version = result.measurements.engine_version
    config = render.speculative_config(inputs.speculation, result.decision, version)
    text = canonical_json(result.model_dump(mode="json", by_alias=True))
    data = {
        names.PROFILE_JSON: text,
        names.KEY_INPUTS: inputs.to_json(),
        names.TABLE_JSON: canonical_json([[row.first, row.last, row.k] for row in result.decision.table]),
        names.SUMMARY: _summary(result, inputs.accelerator),
    }
    if config is not None:
        data[names.SPECULATIVE_CONFIG] = render.config_text(config)
    # A request is part of the content: what was measured for it is another object, whatever the figures.
    name = f"{result.key}-{hashlib.sha256((text + reprofile).encode()).hexdigest()[:8]}"
    annotations = {name: text for name, text in ((names.REPROFILE, reprofile), (names.JOB, job_uid)) if text}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(namespace, name, names.ROLE_PROFILE, {names.PROFILE_KEY: result.key}, annotations),
        "immutable": True,
        "data": data,
    }


def _summary(result: Profile, accelerator: Mapping[str, str]) -> str:
    decision, m = result.decision, result.measurements
    lines = [
        f"{accelerator.get('product', 'accelerator')}, vLLM {m.engine_version}, {format_time(result.measured_at)}",
        f"verdict: {decision.verdict} - {decision.reason}",
        f"table: {short_table(decision.table)}",
        *(
            f"batch size {s.batch_size}: {s.over_baseline:.2f} x baseline, {s.over_static:.2f} x the best static K"
            f" ({'verified' if s.verified else 'predicted'})"
            for s in decision.speedups
        ),
        *(f"warning: {warning}" for warning in decision.warnings),
    ]
    return "\n".join(lines) + "\n"
