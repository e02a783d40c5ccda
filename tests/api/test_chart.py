"""The chart on a real API server: installing, upgrading, uninstalling, and what the operator may do."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client, config
from tests.api.resource import MINIMAL, Json

from devcluster import Cluster, DevclusterError

pytestmark = pytest.mark.apiserver

CHART = str(Path(__file__).parents[2] / "charts" / "specserve")
CRD = "customresourcedefinition/speculativeservings.specserve.dev"
HOME = "specserve-system"
RELEASE = ("specserve", CHART, f"--namespace={HOME}")


@pytest.fixture(scope="module")
def installed() -> Iterator[Cluster]:
    """A control plane of its own, with the chart installed as the README says."""
    with Cluster.control_plane() as cluster:
        cluster.helm("install", *RELEASE, "--create-namespace")
        cluster.await_crd("speculativeservings.specserve.dev")
        yield cluster


@pytest.fixture(scope="module")
def reviews(installed: Cluster) -> client.AuthorizationV1Api:
    return client.AuthorizationV1Api(config.new_client_from_config(str(installed.kubeconfig)))


def may(reviews: client.AuthorizationV1Api, verb: str, resource: str, namespace: str) -> bool:
    """What ``kubectl auth can-i VERB RESOURCE`` answers the operator; resource is ``plural.group/subresource:name``."""
    resource, _, name = resource.partition(":")
    plural, _, sub = resource.partition("/")
    plural, _, group = plural.partition(".")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": sub,
        "name": name,
        "namespace": namespace,
    }
    user = f"system:serviceaccount:{HOME}:specserve"
    body = {"spec": {"user": user, "groups": ["system:serviceaccounts"], "resourceAttributes": attributes}}
    return bool(reviews.create_subject_access_review(body).status.allowed)


MAY = [
    ("speculativeservings.specserve.dev", "get list watch", "team"),
    ("speculativeservings.specserve.dev/status", "update", "team"),
    ("nodes", "list watch", ""),
    ("pods", "list watch", "team"),
    ("configmaps", "get list watch create", "team"),
    ("jobs.batch", "get list watch create patch delete", "team"),
    ("deployments.apps", "get list watch create patch delete", "team"),
    ("services", "get list watch create patch", "team"),
    ("events", "create patch", "team"),
    ("leases.coordination.k8s.io", "create", HOME),
    ("leases.coordination.k8s.io:specserve-operator", "get patch", HOME),
]
MAY_NOT = [
    ("speculativeservings.specserve.dev", "create update patch delete deletecollection", "team"),
    ("speculativeservings.specserve.dev/scale", "update patch", "team"),
    ("speculativeservings.specserve.dev/status", "get patch", "team"),
    ("nodes", "get create update patch delete", ""),
    ("nodes/status", "patch", ""),
    ("pods", "get create update patch delete", "team"),
    ("pods/exec", "create", "team"),
    ("pods/log", "get", "team"),
    ("pods/eviction", "create", "team"),
    ("configmaps", "update patch deletecollection", "team"),
    ("jobs.batch", "update deletecollection", "team"),
    ("deployments.apps", "update deletecollection", "team"),
    ("services", "update delete deletecollection", "team"),
    ("events", "get list watch update delete", "team"),
    ("secrets", "get list watch create update patch delete", "team"),
    ("secrets", "get list", HOME),
    ("serviceaccounts", "get list create", "team"),
    ("serviceaccounts/token", "create", "team"),
    ("namespaces", "get list create delete", ""),
    ("persistentvolumeclaims", "get list", "team"),
    ("customresourcedefinitions.apiextensions.k8s.io", "get list watch create patch", ""),
    ("clusterroles.rbac.authorization.k8s.io", "get create bind escalate", ""),
    ("roles.rbac.authorization.k8s.io", "create bind escalate", HOME),
    ("leases.coordination.k8s.io", "get create update", "team"),
    ("leases.coordination.k8s.io:another", "get update patch delete", HOME),
    ("leases.coordination.k8s.io:specserve-operator", "update delete", HOME),
]


@pytest.mark.parametrize(("resource", "verbs", "namespace"), MAY)
def test_the_operator_may(reviews: client.AuthorizationV1Api, resource: str, verbs: str, namespace: str) -> None:
    refused = [verb for verb in verbs.split() if not may(reviews, verb, resource, namespace)]

    assert refused == []


@pytest.mark.parametrize(("resource", "verbs", "namespace"), MAY_NOT)
def test_the_operator_may_not(reviews: client.AuthorizationV1Api, resource: str, verbs: str, namespace: str) -> None:
    allowed = [verb for verb in verbs.split() if may(reviews, verb, resource, namespace)]

    assert allowed == []


def test_the_example_that_helm_prints_is_accepted(installed: Cluster) -> None:
    notes = installed.helm("get", "notes", "specserve", f"--namespace={HOME}")
    example = textwrap.dedent(notes.split("<<EOF\n")[1].split("  EOF")[0]).replace("<", '"').replace(">", '"')

    answer = installed.kubectl("create", "--dry-run=server", "--filename=-", stdin=example)

    assert answer == "speculativeserving.specserve.dev/chat created (server dry run)\n"


def operators_pod(cluster: Cluster) -> Json:
    template = cluster.get("deployment", "specserve", f"--namespace={HOME}")["spec"]["template"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]}


def admit(cluster: Cluster, pod: Json) -> str:
    return cluster.kubectl("create", "--dry-run=server", "--namespace=strict", "--filename=-", stdin=json.dumps(pod))


@pytest.fixture
def strict(installed: Cluster) -> Iterator[Cluster]:
    """The cluster with a namespace ``strict`` that admits only pods of the standard ``restricted``."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    installed.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": labels}})
    yield installed
    installed.kubectl("delete", "namespace", "strict", "--wait=false")


def test_the_operators_pod_is_admitted_where_only_restricted_pods_are(strict: Cluster) -> None:
    pod = operators_pod(strict)
    loose = json.loads(json.dumps(pod))
    del loose["spec"]["containers"][0]["securityContext"]

    assert admit(strict, pod) == "pod/x created (server dry run)\n"
    with pytest.raises(DevclusterError, match='violates PodSecurity "restricted'):
        admit(strict, loose)


def test_an_upgrade_brings_its_schema(installed: Cluster, tmp_path: Path) -> None:
    older = shutil.copytree(CHART, tmp_path / "specserve")
    definition = older / "files" / "speculativeservings.yaml"
    definition.write_text(definition.read_text().replace("shortNames:\n    - ss", "shortNames:\n    - older"))
    names = ("get", CRD, "--output=jsonpath={.spec.names.shortNames}")

    installed.helm("upgrade", "specserve", str(older), f"--namespace={HOME}")
    assert installed.kubectl(*names) == '["older"]'

    installed.helm("upgrade", *RELEASE)
    assert installed.kubectl(*names) == '["ss"]'


def test_uninstalling_keeps_the_servings(installed: Cluster) -> None:
    installed.apply(MINIMAL)

    installed.helm("uninstall", "specserve", f"--namespace={HOME}")
    assert installed.get("ss", "chat")["spec"]["model"] == {"name": "org/target"}
    assert installed.get("deployments", f"--namespace={HOME}")["items"] == []
    assert installed.kubectl("get", "priorityclass", "--output=name", "--ignore-not-found", "specserve-profiling") == ""
