"""Why a pod is not ready, in few words, and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import NOW, later

from specserve_operator.api.records import Json, Pod
from specserve_operator.decide.faults import causes, refusal, why_not_ready


def pod(name: str = "chat-1", **status: Any) -> Pod:
    return Pod.read({"metadata": {"name": name}, "spec": {"nodeName": "n1"}, "status": status})


def container(state: Json, last: Json | None = None, name: str = "engine") -> Json:
    return {"name": name, "ready": False, "state": state, "lastState": {"terminated": last} if last else {}}


def waiting(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def scheduled(since: float) -> Json:
    return {"type": "PodScheduled", "status": "True", "lastTransitionTime": later(since)}


NO_NODE = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient cpu."}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({"conditions": [NO_NODE]}, "0/1 nodes are available: 1 Insufficient cpu", id="no node"),
        pytest.param(
            {"containerStatuses": [container(waiting("ImagePullBackOff", 'Back-off pulling image "x:1"'))]},
            'Back-off pulling image "x:1": check engine.image and podTemplate\'s imagePullSecrets',
            id="image",
        ),
        pytest.param(
            {"containerStatuses": [container(waiting("CreateContainerConfigError", 'secret "hub" not found'))]},
            'secret "hub" not found: make what it names, or take it out of podTemplate',
            id="secret",
        ),
        pytest.param(
            {
                "containerStatuses": [
                    container(
                        waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container=engine pod=chat-1"),
                        {"reason": "OOMKilled", "exitCode": 137},
                    )
                ]
            },
            "container engine runs out of memory (OOMKilled): raise its memory limit in podTemplate",
            id="memory",
        ),
        pytest.param(
            {"containerStatuses": [container({"running": {}}, {"reason": "Error", "exitCode": 1})]},
            "container engine ended (exit code 1) and is started again: kubectl logs chat-1 -c engine --previous",
            id="crash",
        ),
        pytest.param(
            {
                "initContainerStatuses": [
                    container(waiting("CrashLoopBackOff"), {"reason": "Error", "exitCode": 2}, "fetch")
                ],
                "containerStatuses": [container(waiting("PodInitializing"))],
            },
            "container fetch ended (exit code 2) and is started again: kubectl logs chat-1 -c fetch --previous",
            id="init container",
        ),
        pytest.param(
            {"conditions": [scheduled(-121)], "containerStatuses": [container(waiting("ContainerCreating"))]},
            "ContainerCreating: a volume, a secret or the network is missing: kubectl describe pod chat-1",
            id="volume",
        ),
        pytest.param(
            {"conditions": [scheduled(-119)], "containerStatuses": [container(waiting("ContainerCreating"))]},
            "",
            id="just started",
        ),
        pytest.param(
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            "Evicted: The node was low on resource: memory",
            id="evicted",
        ),
        pytest.param({"containerStatuses": [container({"running": {}})]}, "", id="loading"),
    ],
)  # fmt: skip
def test_why_a_pod_is_not_ready(status: Json, expected: str) -> None:
    assert why_not_ready(pod(**status), NOW) == expected


def test_a_cause_that_many_pods_have_is_told_once() -> None:
    crash = {"containerStatuses": [container({"running": {}}, {"reason": "Error", "exitCode": 1})]}
    image = {"containerStatuses": [container(waiting("ErrImagePull"))]}
    well = {"conditions": [{"type": "Ready", "status": "True"}], **crash}

    pods = [pod("chat-3", **image), pod("chat-2", **crash), pod("chat-1", **crash), pod("chat-4", **well)]
    assert causes(pods, NOW) == [
        "container engine ended (exit code 1) and is started again: kubectl logs chat-1 -c engine --previous",
        "ErrImagePull: check engine.image and podTemplate's imagePullSecrets",
    ]


SAYS = (
    'violates PodSecurity "restricted:latest": seccompProfile (pod or container "engine" must set'
    ' securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")'
)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (f'pods "chat-x-" is forbidden: {SAYS}', f"{SAYS}: set in podTemplate what it asks for, or allow it there"),
        (
            'pods "chat-x-" is forbidden: no PriorityClass with name high was found',
            "no PriorityClass with name high was found: make it, or name another one in podTemplate",
        ),
        ("an admission webhook said no.", "an admission webhook said no"),
    ],
)
def test_why_no_pod_is_taken(message: str, expected: str) -> None:
    assert refusal(message) == f"pods are refused: {expected}"
