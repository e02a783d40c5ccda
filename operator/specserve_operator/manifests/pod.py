"""Pod templates of Job and Deployment: defaults, under the user's podTemplate, under what makes them correct."""

from __future__ import annotations

import re
from typing import Any

from specserve_operator.api import names
from specserve_operator.api.accelerator import Accelerator
from specserve_operator.api.records import Json
from specserve_operator.api.serving import ServingSpec
from specserve_operator.manifests.merge import merge


def engine_container(template: Json) -> Json:
    """The engine's container in a pod template; empty where the template has none."""
    containers = (template.get("spec") or {}).get("containers") or ()
    return next((c for c in containers if c.get("name") == names.ENGINE_CONTAINER), {})


def engine_env(spec: ServingSpec) -> list[Json]:
    """The engine's environment in the kubelet's order, without what specserve adds for Job or Deployment."""
    env: list[Json] = engine_container(merge({"spec": _defaults(spec)}, spec.pod_template)).get("env") or []
    return env


def render(spec: ServingSpec, accelerator: Accelerator, meta: Json, required: Json) -> Json:
    """A pod template for ``accelerator``.

    Args:
        spec: the serving's; its podTemplate lies between the defaults and ``required``.
        meta: labels and annotations that must be there.
        required: pod spec that must be there, its containers by name.
    """
    template = merge(
        merge({"metadata": {}, "spec": _defaults(spec)}, spec.pod_template), {"metadata": meta, "spec": required}
    )
    template["spec"] = _place(merge(template["spec"], _device(spec)), spec, accelerator)
    return template


def _defaults(spec: ServingSpec) -> Json:
    return {
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,
        "volumes": [
            {"name": "specserve-tmp", "emptyDir": {}},
            # vLLM's workers share memory; the runtime's default of 64 MiB kills it.
            {"name": "specserve-shm", "emptyDir": {"medium": "Memory"}},
        ],
        "containers": [
            {
                "name": names.ENGINE_CONTAINER,
                # Engines and their compilers write below HOME; the root file system is read-only.
                "env": [{"name": "HOME", "value": "/tmp"}, {"name": "USER", "value": "specserve"}],  # noqa: S108
                "volumeMounts": [
                    {"name": "specserve-tmp", "mountPath": "/tmp"},  # noqa: S108
                    {"name": "specserve-shm", "mountPath": "/dev/shm"},  # noqa: S108
                ],
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": True,
                    # Engines' images are made for root; another user is the podTemplate's to choose.
                    **({"runAsNonRoot": True} if _user(spec) else {}),
                },
            }
        ],
    }


def _user(spec: ServingSpec) -> int:
    """The engine's user as the podTemplate says it; 0 where it does not."""
    pod = (spec.pod_template.get("spec") or {}).get("securityContext") or {}
    own = engine_container(spec.pod_template).get("securityContext") or {}
    user = pod.get("runAsUser") if own.get("runAsUser") is None else own["runAsUser"]
    return user if isinstance(user, int) else 0


def _device(spec: ServingSpec) -> Json:
    resource, count = spec.accelerators.resource, str(spec.accelerators.per_replica)
    # Extended resources are asked for by their limit; a CPU limit would throttle the engine.
    amount = {"requests": {resource: count}} if resource == "cpu" else {"limits": {resource: count}}
    return {"containers": [{"name": names.ENGINE_CONTAINER, "resources": amount}]}


def _place(pod: Json, spec: ServingSpec, accelerator: Accelerator) -> Json:
    """On the selected nodes that have ``accelerator``, and on no others."""
    labels = {**spec.accelerators.node_selector, **dict(accelerator.selector)}
    # A node renamed by hand is another accelerator, whatever its vendor's labels say; so is one that has a label of
    # identityLabels where the nodes of this one have none.
    absent = [label for label in (names.ACCELERATOR, *spec.accelerators.identity_labels) if label not in labels]
    expressions: list[Json] = [{"key": label, "operator": "DoesNotExist"} for label in absent]
    placed = merge(pod, {"nodeSelector": labels})
    expressions += _unshared(accelerator)
    return _require(placed, expressions) if expressions else placed


def _unshared(accelerator: Accelerator) -> list[Json]:
    """Where its nodes say nothing of sharing: away from those of the same product whose devices are shared."""
    labels = dict(accelerator.selector)
    products = [label.removesuffix(".product") for label in labels if re.fullmatch(r"nvidia\.com/\S+\.product", label)]
    says = [f"{product}.sharing-strategy" for product in products]
    return [
        {"key": label, "operator": "NotIn", "values": ["mps", "time-slicing"]}
        for label in says
        if label not in labels and not accelerator.sharing
    ]


def _require(pod: Json, expressions: list[Json]) -> Json:
    """Add node requirements to *every* term: terms are alternatives, and one without them would be a way round."""
    path = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    found: Any = pod
    for field in path:
        found = (found or {}).get(field)
    terms = (found or {}).get("nodeSelectorTerms") or [{}]
    fenced = [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *expressions]} for term in terms]
    return merge(pod, {path[0]: {path[1]: {path[2]: {"nodeSelectorTerms": fenced}}}})
