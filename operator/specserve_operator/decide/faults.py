"""Why pods are not there or not ready, in few words, and what to do: from what controllers and kubelets say."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable

from specserve_operator.api.records import Pod

SLOW_START = dt.timedelta(minutes=2)
"""A pod that its kubelet prepares for longer lacks something."""

_IMAGE = "check engine.image and podTemplate's imagePullSecrets"
_WAYS_OUT = {
    "ErrImagePull": _IMAGE,
    "ImagePullBackOff": _IMAGE,
    "ErrImageNeverPull": _IMAGE,
    "InvalidImageName": "correct engine.image",
    "CreateContainerConfigError": "make what it names, or take it out of podTemplate",
}
"""The kubelet's word for why a container waits -> what to do."""

_REFUSALS = (
    ("exceeded quota", "raise the quota of the namespace, or ask for less"),
    ("violates PodSecurity", "set in podTemplate what it asks for, or allow it there"),
    ("no PriorityClass", "make it, or name another one in podTemplate"),
    ("serviceaccount", "make it, or name another one in podTemplate"),
)
"""Words of an admission's refusal -> what to do."""


def refusal(message: str) -> str:
    """Why the API server takes no pod of a Deployment or Job."""
    said = re.sub(r'pods "[^"]*" is forbidden: ', "", message).rstrip(".")
    way = next((f": {way}" for words, way in _REFUSALS if words in said), "")
    return f"pods are refused: {said}{way}"


def why_not_ready(pod: Pod, now: dt.datetime) -> str:
    """Why a pod is not ready; empty where nothing is wrong that anybody tells of."""
    if pod.phase == "Failed":
        return ": ".join(filter(None, (pod.reason, pod.told.rstrip("."))))
    if pod.waits_for in ("CrashLoopBackOff", "") and pod.ended:
        return _restarts(pod)
    if pod.waits_for in ("ContainerCreating", "PodInitializing"):
        slow = pod.scheduled_since is not None and now - pod.scheduled_since > SLOW_START
        return f"{pod.waiting}: a volume, a secret or the network is missing: kubectl describe pod {pod.name}" * slow
    way = _WAYS_OUT.get(pod.waits_for, "")
    return ": ".join(filter(None, (pod.waiting.rstrip("."), way)))


def _restarts(pod: Pod) -> str:
    container = pod.culprit
    if pod.ended == "OOMKilled":
        return f"container {container} runs out of memory (OOMKilled): raise its memory limit in podTemplate"
    log = f"kubectl logs {pod.name} -c {container} --previous"
    return f"container {container} ended ({pod.ended}) and is started again: {log}"


def causes(pods: Iterable[Pod], now: dt.datetime) -> list[str]:
    """Why pods are not ready, each cause once: of the first pod that has it by name."""
    told: dict[str, str] = {}
    for pod in sorted(pods, key=lambda p: p.name):
        why = "" if pod.ready else why_not_ready(pod, now)
        if why:
            told.setdefault(why.replace(pod.name, ""), why)
    return list(told.values())
