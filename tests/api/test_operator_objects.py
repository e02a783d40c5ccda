"""What a real API server says of the objects that the operator makes, and of how it merges."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.builders import NAMESPACE
from tests.manifests.cases import CASES

from devcluster import Cluster
from specserve_operator.api.records import Json
from specserve_operator.manifests.merge import MERGE_KEYS, RETAIN_KEYS
from specserve_operator.store.client import PODS, RESOURCES, Client

pytestmark = pytest.mark.apiserver

PRIORITY_CLASS = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "specserve-profiling"},
    "value": -10,
    "preemptionPolicy": "Never",
}


@pytest.fixture
async def client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    async with await Client.connect() as connected:
        yield connected


@pytest.fixture(scope="module", autouse=True)
def surroundings(cluster: Cluster) -> None:
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, PRIORITY_CLASS)


def left_out(said: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Where the API server did not keep what was said."""
    if isinstance(said, dict) and isinstance(kept, dict):
        for field, value in said.items():
            yield from left_out(value, kept.get(field), f"{path}.{field}")
    elif isinstance(said, list) and isinstance(kept, list) and len(said) == len(kept):
        for index, (one, other) in enumerate(zip(said, kept, strict=True)):
            yield from left_out(one, other, f"{path}[{index}]")
    elif said != kept:
        yield f"{path}: {said!r} became {kept!r}"


@pytest.mark.parametrize("name", CASES)
async def test_every_object_is_accepted_strictly_and_kept_as_it_is(name: str, client: Client) -> None:
    obj = CASES[name]()

    kept = await client.create(RESOURCES[obj["kind"]], obj, dry_run=True)

    assert list(left_out(obj, kept)) == []


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith(("job", "deployment"))])
async def test_every_pod_is_accepted(name: str, client: Client) -> None:
    """A Job or a Deployment is taken with pods that admission would refuse one by one."""
    template = CASES[name]()["spec"]["template"]
    metadata = {"generateName": "pod-", "namespace": NAMESPACE, **template.get("metadata", {})}

    answer = await client.create(
        PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}, dry_run=True
    )

    assert answer["spec"]["containers"][0]["name"] == "engine"


def merge_keys(schemas: Json, name: str, seen: set[str], extension: str) -> Iterator[tuple[str, str]]:
    """(field, value of the extension) of a schema and all that it refers to."""
    if name in seen:
        return
    seen.add(name)
    for field, schema in schemas[name].get("properties", {}).items():
        if extension in schema:
            yield field, schema[extension]
        for reference in references(schema):
            yield from merge_keys(schemas, reference, seen, extension)


def references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].rpartition("/")[2]
        for inner in schema.values():
            yield from references(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from references(inner)


def test_merge_keys_are_those_that_the_api_server_publishes(cluster: Cluster) -> None:
    schemas = json.loads(cluster.kubectl("get", "--raw", "/openapi/v3/api/v1"))["components"]["schemas"]
    pod = "io.k8s.api.core.v1.PodSpec"

    published = set(merge_keys(schemas, pod, set(), "x-kubernetes-patch-merge-key"))
    strategies = set(merge_keys(schemas, pod, set(), "x-kubernetes-patch-strategy"))

    assert published == set(MERGE_KEYS.items())
    assert {field for field, strategy in strategies if strategy == "merge,retainKeys"} == RETAIN_KEYS
