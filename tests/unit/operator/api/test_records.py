"""What the operator keeps of objects, whatever anybody wrote into them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import node

from specserve_operator.api.records import (
    ConfigMap,
    Deployment,
    Job,
    Json,
    Node,
    Pod,
    Service,
    format_time,
    parse_quantity,
    parse_time,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4", 4),
        (4, 4),
        ("3500m", Decimal("3.5")),
        ("16Gi", 16 * 2**30),
        ("1.5Ki", 1536),
        ("2k", 2000),
        ("1e3", 1000),
        ("12E", 12 * 10**18),
        ("0", 0),
        ("100u", Decimal("0.0001")),
    ],
)
def test_quantities(text: str | int, expected: Decimal | int) -> None:
    assert parse_quantity(text) == expected


def test_times_are_read_and_written_as_kubernetes_does() -> None:
    assert parse_time("2026-11-03T12:00:05Z") == dt.datetime(2026, 11, 3, 12, 0, 5, tzinfo=dt.timezone.utc)
    assert parse_time("2026-11-03T12:00:05.123456Z").microsecond == 123456
    tokyo = dt.timezone(dt.timedelta(hours=9))
    assert format_time(dt.datetime(2026, 11, 3, 12, 0, 5, 999, tzinfo=tokyo)) == "2026-11-03T03:00:05Z"


def test_a_node_keeps_its_devices_and_cpus_in_whole_units() -> None:
    assert Node.read(node("n1", devices=8)).allocatable == {"cpu": 7, "nvidia.com/gpu": 8}


def test_an_empty_node_can_be_read() -> None:
    assert Node.read({"metadata": {"name": "n1"}}) == Node("n1", {}, {}, usable=False)


def job(conditions: list[Json] | None = None, **annotations: str) -> Job:
    meta = {
        "name": "specserve-k-2",
        "uid": "u",
        "labels": {
            "specserve.dev/profile-key": "specserve-k",
            "specserve.dev/role": "profiling",
            "app.kubernetes.io/managed-by": "specserve",
        },
        "annotations": {f"specserve.dev/{name.replace('_', '-')}": text for name, text in annotations.items()},
        "ownerReferences": [{"uid": "one"}, {"uid": "two"}],
    }
    return Job.read({"metadata": meta, "status": {"conditions": conditions} if conditions is not None else {}})


def test_a_running_job() -> None:
    assert job(attempt="2", requested_by="u/abc", reprofile="x", why="Requested: x") == Job(
        "specserve-k-2", "u", "specserve-k", 2, "Active", "u/abc", "x", "Requested: x", "", frozenset({"one", "two"}),
        failures=1,
    )  # fmt: skip


def test_failures_in_a_row_are_those_of_the_annotation_and_for_older_jobs_all_earlier_attempts() -> None:
    assert job(attempt="7", failures="0").failures == 0
    assert job(attempt="7", failures="nonsense").failures == 6
    assert job(attempt="7").failures == 6


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        (
            [{"name": "engine", "env": [{"name": "A", "value": "1"}, {"name": "SPECSERVE_REQUEST", "value": "{}"}]}],
            "{}",
        ),
        ([{"name": "engine", "env": [{"name": "SPECSERVE_REQUEST", "value": '{"a":"$$(B) $$"}'}]}], '{"a":"$(B) $"}'),
        ([{"name": "other", "env": [{"name": "SPECSERVE_REQUEST", "value": "{}"}]}, {"name": "engine"}], ""),
        ([], ""),
    ],
)
def test_a_job_remembers_what_it_was_asked_for(containers: list[Json], expected: str) -> None:
    spec = {"template": {"spec": {"containers": containers}}}
    read = Job.read({"metadata": {"name": "specserve-k-2", "uid": "u"}, "spec": spec})
    assert read.request == expected


def test_a_job_is_finished_only_when_its_controller_says_so() -> None:
    target = {"type": "FailureTarget", "status": "True", "lastTransitionTime": "2026-11-03T12:00:00Z"}
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "m",
              "lastTransitionTime": "2026-11-03T12:00:00Z"}  # fmt: skip

    assert job([target]).state == "Active"
    assert job([{**failed, "status": "False"}]).state == "Active"
    ended = job([target, failed])
    assert (ended.state, ended.reason, ended.message) == ("Failed", "BackoffLimitExceeded", "m")
    assert ended.finished_at == parse_time("2026-11-03T12:00:00Z")
    assert job([{"type": "Complete", "status": "True"}]).state == "Succeeded"


@given(st.text() | st.from_regex(r"\d{1,9000}", fullmatch=True))
def test_whatever_an_attempt_says_a_job_can_be_read(text: str) -> None:
    assert job(attempt=text).attempt >= 0


def pod(status: Json, **meta: Any) -> Pod:
    return Pod.read({"metadata": {"name": "p", **meta}, "spec": {"nodeName": "n1"}, "status": status})


def test_what_others_wrote_is_kept_within_bounds() -> None:
    long = "x" * 200_000
    engine = {"name": "engine", "env": [{"name": "SPECSERVE_REQUEST", "value": long}]}
    spec = {"template": {"spec": {"containers": [engine]}}}
    meta = {"name": "j", "uid": "u", "annotations": {"specserve.dev/key-inputs": long}}
    found = Job.read({"metadata": meta, "spec": spec})
    ended = {"name": "engine", "state": {"terminated": {"message": long}}}

    assert (found.request, found.inputs) == ("", "")
    assert pod({"containerStatuses": [ended]}).termination == ""


@pytest.mark.parametrize(
    ("owner", "job"),
    [
        ({"kind": "Job", "uid": "uid-of-the-job", "controller": True}, "uid-of-the-job"),
        ({"kind": "Job", "uid": "uid-of-the-job"}, ""),
        ({"kind": "ReplicaSet", "uid": "uid-of-the-job", "controller": True}, ""),
    ],
)
def test_a_pod_is_of_the_job_that_controls_it(owner: dict[str, Any], job: str) -> None:
    assert pod({}, ownerReferences=[owner], labels={"batch.kubernetes.io/controller-uid": "another"}).job == job


def test_a_pod_without_a_device_tells_what_the_scheduler_says() -> None:
    scheduled = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}

    assert pod({"conditions": [scheduled]}).waiting == "0/1 nodes are available"


def test_a_pod_that_cannot_start_tells_what_the_kubelet_says() -> None:
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    other = {"waiting": {"reason": "PodInitializing"}}

    assert pod({"containerStatuses": [{"name": "engine", "state": state}]}).waiting == "Back-off pulling image"
    assert pod({"containerStatuses": [{"name": "engine", "state": other}]}).waiting == "PodInitializing"


def test_only_the_engine_container_speaks_for_the_pod() -> None:
    statuses = [
        {"name": "proxy", "state": {"terminated": {"message": "bye", "reason": "Error"}}},
        {"name": "engine", "state": {"terminated": {"message": "the result", "reason": "OOMKilled"}}},
    ]

    found = pod({"phase": "Failed", "containerStatuses": statuses})
    assert (found.termination, found.reason, found.node) == ("the result", "OOMKilled", "n1")
    assert pod({"phase": "Failed", "reason": "DeadlineExceeded"}).reason == "DeadlineExceeded"


def test_a_disrupted_pod() -> None:
    assert pod({"conditions": [{"type": "DisruptionTarget", "status": "True"}]}).disrupted
    assert pod({}, deletionTimestamp="2026-11-03T12:00:00Z").deleting
    assert not pod({}).disrupted


def test_a_deployment_with_a_stalled_rollout() -> None:
    obj = {
        "metadata": {"name": "d", "generation": 3, "labels": {"specserve.dev/variant": "x"}},
        "spec": {"replicas": 2},
        "status": {
            "observedGeneration": 2,
            "readyReplicas": 1,
            "conditions": [{"type": "Progressing", "status": "False", "message": "has timed out"}],
        },
    }

    found = Deployment.read(obj)
    assert (found.stalled, found.current, found.ready, found.replicas) == ("has timed out", False, 1, 2)


@pytest.mark.parametrize(
    ("read", "more"),
    [
        (Node.read, {}),
        (Pod.read, {}),
        (ConfigMap.read, {}),
        (Job.read, {}),
        (Deployment.read, {"spec": {}}),
        (Service.read, {}),
    ],
)
def test_objects_that_say_next_to_nothing_can_be_read(read: Any, more: Json) -> None:
    meta = {"name": "x", "uid": "u", "resourceVersion": "7"}

    for nothing in ({}, {"labels": None, "annotations": None}):
        assert read({"metadata": {**meta, **nothing}, **more}).name == "x"


def test_a_deployment_rolls_until_the_last_old_pod_of_a_surge_is_gone() -> None:
    status = {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 2, "readyReplicas": 1}
    obj = {"metadata": {"name": "chat-l4", "generation": 2}, "spec": {"replicas": 2}, "status": status}

    assert Deployment.read(obj).rolls
    assert not Deployment.read({**obj, "status": {**status, "replicas": 2, "readyReplicas": 2}}).rolls
