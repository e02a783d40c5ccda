"""The operator with the chart's rights and no others: nothing is refused, and no right is there that nothing uses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.operator_process import OperatorProcess, wait_for
from tests.api.space import Space, add_node, restart_api_server
from tests.api.test_chart import HOME, RELEASE

from devcluster import Cluster
from devcluster.controlplane import AUDIT_POLICY
from specserve_operator.api.records import Json

pytestmark = pytest.mark.apiserver

USER = f"system:serviceaccount:{HOME}:specserve"
SETTINGS = {"POD_NAMESPACE": HOME, "SPECSERVE_VARIANT_GRACE_SECONDS": "1"}
Right = tuple[str, str, str]
"""API group, resource with its subresource, verb."""


@pytest.fixture(scope="module")
def plane() -> Iterator[Cluster]:
    """The chart is installed, and the audit log has what the operator reads, too."""
    with Cluster.control_plane() as cluster:
        policy = {**AUDIT_POLICY, "rules": [{"level": "Metadata", "users": [USER]}]}
        (cluster.state.folder / "audit-policy.json").write_text(json.dumps(policy))
        restart_api_server(cluster)
        cluster.helm("install", *RELEASE, "--create-namespace")
        cluster.await_crd("speculativeservings.specserve.dev")
        add_node(cluster, "n1", "NVIDIA-L4", 4)
        yield cluster


def kubeconfig_of_the_operator(cluster: Cluster, folder: Path) -> Path:
    token = cluster.kubectl("create", "token", "specserve", f"--namespace={HOME}").strip()
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = folder / "operator.kubeconfig"
    path.write_text(json.dumps(config))
    return path


def granted(cluster: Cluster) -> set[Right]:
    """What the chart's roles say."""
    roles = (cluster.get("clusterrole", "specserve"), cluster.get("role", "specserve", f"--namespace={HOME}"))
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(events: list[Json]) -> set[Right]:
    found = set()
    for event in events:
        ref = event["objectRef"]
        resource = "/".join(part for part in (ref["resource"], ref.get("subresource", "")) if part)
        found.add((ref.get("apiGroup", ""), resource, event["verb"]))
        if event["verb"] == "patch" and event["responseStatus"]["code"] == 201:  # an apply that makes it asks for both
            found.add((ref.get("apiGroup", ""), resource, "create"))
    return found


def test_every_right_is_used_and_none_is_missing(plane: Cluster, tmp_path: Path) -> None:
    space = Space(plane)
    config = kubeconfig_of_the_operator(plane, tmp_path)
    with OperatorProcess(config, tmp_path / "first.log", "first", **SETTINGS) as first:
        first.wait_until_it_leads()
        everything_once(space)
        told(space)
        assert first.end() == 0
    with OperatorProcess(config, tmp_path / "second.log", "second", **SETTINGS) as second:
        second.wait_until_it_leads()
        told(space)  # the same again: the Event is counted
        wait_for("the Event is counted", lambda: counts(space) == {"InvalidSpec": 2})

    events = [e for e in plane.audit_events() if e["user"]["username"] == USER and "objectRef" in e]
    assert events
    refused = [e["requestURI"] for e in events if e["responseStatus"]["code"] == 403]
    assert refused == []
    assert granted(plane) - used(events) == set()


def everything_once(space: Space) -> None:
    """A Job, shared by two; one that an edit makes useless; an accelerator that comes and goes."""
    plane = space.cluster
    plane.apply(space.serving("one"))
    wait_for("a Job", lambda: space.all("jobs"))
    plane.apply(space.serving("two"))
    wait_for("two owners", lambda: owners(space) == {"one", "two"})

    plane.apply(space.serving("three", engine__maxNumSeqs=8))
    wait_for("its Job", lambda: owners(space) == {"one", "two", "three"})
    plane.apply(space.serving("three"))
    wait_for("its own Job is gone", lambda: len(space.all("jobs")) == 1)

    add_node(plane, "n2", "NVIDIA-A100-SXM4-80GB", 4)
    wait_for("a second variant of each", lambda: len(space.all("deployments")) == 6)
    plane.kubectl("delete", "node", "n2")
    wait_for("it is gone", lambda: len(space.all("deployments")) == 3, 30)

    source = {"configMap": {"name": "other"}}
    space.put_prompts("other", '{"prompt": "First."}\n')
    plane.apply(space.serving("four", profile__workload__source=source))
    (first,) = wait_for("a copy of its prompts", lambda: space.copies("other"))
    space.put_prompts("other", '{"prompt": "Second."}\n')
    plane.apply(space.serving("four", profile__workload__source=source, replicas=2))
    wait_for("another copy alone", lambda: len(space.copies("other") - {first}) == 1 == len(space.copies("other")))


def owners(space: Space) -> set[str]:
    jobs = space.all("jobs").values()
    return {owner["name"] for job in jobs for owner in job["metadata"]["ownerReferences"]}


def told(space: Space) -> None:
    """One is told that its spec cannot be served, and mends it."""
    space.cluster.apply(space.serving("one", engine__args=["--port=1"]))
    wait_for("it is refused", lambda: space.condition("Accepted", "one").get("status") == "False")
    wait_for("an Event says so", lambda: counts(space))
    space.cluster.apply(space.serving("one"))
    wait_for("it is accepted", lambda: space.condition("Accepted", "one").get("status") == "True")


def counts(space: Space) -> dict[str, int]:
    return {e["reason"]: e["count"] for e in space.all("events").values() if e["reason"] == "InvalidSpec"}
