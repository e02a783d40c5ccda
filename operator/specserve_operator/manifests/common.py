"""What every child has: metadata, owner, hash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from specserve_operator.api import names
from specserve_operator.api.records import Json
from specserve_operator.api.serving import SpeculativeServing
from specserve_profiler.contract.model import canonical_json


def digest(value: Any, length: int = 16) -> str:
    """Hex digest of a JSON value; equal values have equal digests."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def owner_reference(serving: SpeculativeServing, *, controller: bool) -> Json:
    """Owner reference to a serving. It never blocks the serving's deletion."""
    reference = {
        "apiVersion": names.API_VERSION, "kind": names.KIND, "name": serving.name, "uid": serving.uid,
        "blockOwnerDeletion": False,
    }  # fmt: skip
    return {**reference, "controller": True} if controller else reference


def metadata(
    namespace: str, name: str, role: str, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> Json:
    """Metadata of a child, with the labels by which the store selects."""
    meta: Json = {
        "name": name,
        "namespace": namespace,
        "labels": {names.MANAGED_BY: names.MANAGER, names.ROLE: role, **labels},
    }
    if annotations:
        meta["annotations"] = dict(annotations)
    return meta


def serving_labels(serving: SpeculativeServing) -> dict[str, str]:
    """Labels that exactly the serving pods of ``serving`` have: the Service's and the autoscaler's selector."""
    return {names.SERVING: serving.name, names.ROLE: names.ROLE_SERVING}
