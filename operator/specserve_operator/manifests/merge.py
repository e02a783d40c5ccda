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
    "ports": "containerPort",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Field of a pod spec -> ``x-kubernetes-patch-merge-key`` of its items. A test compares it with a real API server."""


def merge(under: Json, over: Json) -> Json:
    """``over`` laid on ``under``. Neither is changed; where both say something, ``over`` wins."""
    merged = {**under, **{field: _merge_value(field, under.get(field), value) for field, value in over.items()}}
    return _without_second_source(merged, over)


def _merge_value(field: str, under: Any, over: Any) -> Any:
    if isinstance(under, dict) and isinstance(over, dict):
        return merge(under, over)
    if field in MERGE_KEYS and isinstance(under, list) and isinstance(over, list):
        return _merge_list(under, over, MERGE_KEYS[field])
    return over


def _merge_list(under: list[Any], over: list[Any], key: str) -> list[Any]:
    upper = {item.get(key): item for item in over}
    kept = [merge(item, upper.pop(item.get(key))) if item.get(key) in upper else item for item in under]
    return kept + list(upper.values())


def _without_second_source(merged: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    # A union (an env var's value or valueFrom) must not end up with both members.
    for one, other in (("value", "valueFrom"), ("valueFrom", "value")):
        if one in over and other in merged and other not in over:
            merged.pop(other)
    return merged
