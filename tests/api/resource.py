"""A minimal SpeculativeServing, and a client that is fast enough to try hundreds of variations of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client, config
from tests import builders

Json = dict[str, Any]
REMOVE = builders.REMOVE

MINIMAL: Json = {
    "apiVersion": "specserve.dev/v1alpha1",
    "kind": "SpeculativeServing",
    "metadata": {"name": "chat", "namespace": "default"},
    "spec": {
        "model": {"name": "org/target"},
        "speculation": {"method": "ngram"},
        "engine": {"image": "vllm"},
        "profile": {"workload": {"source": {"path": "/prompts.jsonl"}}},
    },
}


def edited(edits: Mapping[str, Any], base: Json = MINIMAL) -> Json:
    """A copy of an object with values set at dotted paths; REMOVE takes a field out."""
    return builders.edited(base, edits)


@dataclass(frozen=True)
class Refusal:
    """What the API server says of an object that it does not take."""

    code: int
    message: str
    causes: tuple[tuple[str, str], ...] = ()
    """Field and message of each fault."""


class Servings:
    """SpeculativeServings of the namespace ``default``, written with strict field validation."""

    _WHERE = ("specserve.dev", "v1alpha1", "default", "speculativeservings")

    def __init__(self, kubeconfig: Path) -> None:
        self._api = client.CustomObjectsApi(config.new_client_from_config(str(kubeconfig)))

    def create(self, obj: Json, *, dry_run: bool = False) -> Json | Refusal:
        """The object as the API server completes it, or what it has against it."""
        options = {"dry_run": "All"} if dry_run else {}
        return _answer(
            lambda: self._api.create_namespaced_custom_object(*self._WHERE, obj, field_validation="Strict", **options)
        )

    def put_status(self, name: str, status: Json) -> Json | Refusal:
        """Replace the status of an existing object."""
        obj = self._api.get_namespaced_custom_object(*self._WHERE, name)
        obj["status"] = status
        return _answer(
            lambda: self._api.replace_namespaced_custom_object_status(
                *self._WHERE, name, obj, field_validation="Strict"
            )
        )

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._api.delete_namespaced_custom_object(*self._WHERE, name)


def _answer(call: Any) -> Json | Refusal:
    try:
        answer: Json = call()
    except client.ApiException as error:
        status = json.loads(error.body)
        causes = status.get("details", {}).get("causes", ())
        return Refusal(error.status, status["message"], tuple((c.get("field", ""), c["message"]) for c in causes))
    return answer
