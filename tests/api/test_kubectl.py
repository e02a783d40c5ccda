"""What a person sees and does with kubectl."""

from __future__ import annotations

import json

import pytest
from tests.api.resource import MINIMAL, Json, Refusal, Servings, edited

from devcluster import Cluster, DevclusterError

pytestmark = pytest.mark.apiserver

STATUS: Json = {
    "observedGeneration": 1,
    "replicas": 3,
    "readyReplicas": 2,
    "selector": "specserve.dev/serving=chat",
    "summary": "Tesla-T4: profiling, serves Static",
    "accelerators": [
        {
            "name": "tesla-t4",
            "product": "Tesla-T4",
            "speedup": None,
            "profile": {"state": "Profiling", "verdict": None, "configMap": None, "measuredAt": None},
            "missingSince": None,
        }
    ],
    "conditions": [
        {"type": "Accepted", "status": "True", "reason": "Valid"},
        {"type": "Ready", "status": "False", "reason": "Profiling", "message": "wait"},
    ],
}


def columns(table: str) -> list[list[str]]:
    """Cells of a kubectl table, the age left out."""
    rows = [[cell.strip() for cell in line.split("   ") if cell.strip()] for line in table.splitlines()]
    age = rows[0].index("AGE")
    return [row[:age] + row[age + 1 :] for row in rows]


def test_get_answers_whether_it_is_fine_and_if_not_why(cluster: Cluster, servings: Servings, chat: str) -> None:
    written = servings.put_status(chat, STATUS)
    assert isinstance(written, dict), written

    assert columns(cluster.kubectl("get", "ss")) == [
        ["NAME", "READY", "DESIRED", "UP", "SUMMARY"],
        ["chat", "False", "1", "2", "Tesla-T4: profiling, serves Static"],
    ]
    assert columns(cluster.kubectl("get", "ss", "--output=wide")) == [
        ["NAME", "READY", "DESIRED", "UP", "SUMMARY", "REASON", "METHOD", "MODEL"],
        ["chat", "False", "1", "2", "Tesla-T4: profiling, serves Static", "Profiling", "ngram", "org/target"],
    ]


def test_get_works_before_the_first_status(cluster: Cluster, chat: str) -> None:
    assert cluster.kubectl("get", "specserve").splitlines()[1].split()[:2] == ["chat", "1"]


def test_scale_sets_replicas_and_reads_the_selector(cluster: Cluster, servings: Servings, chat: str) -> None:
    servings.put_status(chat, STATUS)

    cluster.kubectl("scale", "ss", chat, "--replicas=5")

    path = f"/apis/specserve.dev/v1alpha1/namespaces/default/speculativeservings/{chat}"
    scale = json.loads(cluster.kubectl("get", "--raw", f"{path}/scale"))
    assert scale["spec"] == {"replicas": 5}
    assert scale["status"] == {"replicas": 3, "selector": "specserve.dev/serving=chat"}
    assert cluster.get("ss", chat)["spec"]["replicas"] == 5


def test_scale_beyond_the_bound_is_refused(cluster: Cluster, chat: str) -> None:
    with pytest.raises(DevclusterError, match=r"spec\.replicas in body should be less than or equal to 10000"):
        cluster.kubectl("scale", "ss", chat, "--replicas=10001")


def test_explain_says_what_a_field_means(cluster: Cluster) -> None:
    text = " ".join(cluster.kubectl("explain", "ss.spec.speculation.maxTokens").split())

    assert text.endswith("FIELD: maxTokens <integer> DESCRIPTION: Kmax: the largest K that is measured.")


def test_status_cannot_be_written_through_the_resource(servings: Servings, cluster: Cluster, chat: str) -> None:
    cluster.kubectl("patch", "ss", chat, "--type=merge", f"--patch={json.dumps({'status': STATUS})}")

    assert "status" not in cluster.get("ss", chat)


def test_server_side_apply_takes_nulls_and_keeps_the_replicas_of_an_autoscaler(cluster: Cluster) -> None:
    manifest = json.dumps(edited({"metadata.name": "applied", "spec.model.revision": None, "spec.engine.args": None}))
    apply = ("apply", "--server-side", "--field-manager=gitops", "--filename=-")

    cluster.kubectl(*apply, stdin=manifest)
    cluster.kubectl("scale", "ss", "applied", "--replicas=4")
    cluster.kubectl(*apply, stdin=manifest)

    spec = cluster.get("ss", "applied")["spec"]
    cluster.kubectl("delete", "ss", "applied")
    assert spec["replicas"] == 4
    assert spec["engine"]["args"] == []


def test_a_status_of_another_shape_is_refused(servings: Servings, chat: str) -> None:
    twice = STATUS | {"conditions": [STATUS["conditions"][0]] * 2}

    refused = servings.put_status(chat, twice)

    assert isinstance(refused, Refusal)
    assert refused.causes == (("status.conditions[1]", 'Duplicate value: {"type":"Accepted"}'),)


def test_two_servings_of_one_name_do_not_exist(servings: Servings, chat: str) -> None:
    refused = servings.create(MINIMAL)

    assert isinstance(refused, Refusal)
    assert refused.code == 409
