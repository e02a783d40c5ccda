"""Merges pod templates as Kubernetes would: maps by key, lists by the merge keys of its OpenAPI, other lists whole."""

from __future__ import annotations

from typing import Any

from specserve_operator.api.records import Json

MERGE_KEYS: dict[str, str] = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "ports": "containerPort",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Field of a pod spec -> ``x-kubernetes-patch-merge-key`` of its items. A test compares it with a real API server."""

RETAIN_KEYS = frozenset({"resourceClaims", "volumes"})
"""Lists whose items are unions as a whole (``x-kubernetes-patch-strategy: merge,retainKeys``): the upper item wins."""

_UNIONS = (
    frozenset({"value", "valueFrom"}),  # of an env var
    frozenset({"exec", "grpc", "httpGet", "tcpSocket"}),  # of a probe
)
"""Fields of which an object may have one only."""


def merge(under: Json, over: Json) -> Json:
    """``over`` laid on ``under``. Neither is changed; where both say something, ``over`` wins; null says nothing."""
    said = {field: value for field, value in over.items() if value is not None}
    displaced = frozenset[str]().union(*(union for union in _UNIONS if not union.isdisjoint(said))) - said.keys()
    kept = {field: value for field, value in under.items() if field not in displaced}
    return kept | {field: _merge_value(field, under.get(field), value) for field, value in said.items()}


def _merge_value(field: str, under: Any, over: Any) -> Any:
    if isinstance(under, dict) and isinstance(over, dict):
        return merge(under, over)
    if field in MERGE_KEYS and isinstance(under, list) and isinstance(over, list):
        return _merge_list(under, over, MERGE_KEYS[field], whole=field in RETAIN_KEYS)
    return over


def _merge_list(under: list[Any], over: list[Any], key: str, *, whole: bool) -> list[Any]:
    upper = {item.get(key): item for item in over}
    merged = []
    for item in under:
        above = upper.pop(item.get(key), None)
        merged.append(item if above is None else above if whole else merge(item, above))
    return merged + list(upper.values())
