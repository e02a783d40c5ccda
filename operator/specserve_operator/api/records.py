"""What the operator sees of a cluster: small frozen records, read from the API server's JSON.

A record keeps only what a decision needs, so that a fleet of thousands of nodes fits in memory.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from specserve_operator.api import names, stored
from specserve_profiler.contract.model import canonical_json
from specserve_profiler.contract.variables import expand

Json = dict[str, Any]


class Ref(NamedTuple):
    """Namespace and name; the namespace of a cluster-scoped object is empty."""

    namespace: str
    name: str


def ref_of(obj: Json) -> Ref:
    """Ref of an object in the API server's JSON."""
    meta = obj["metadata"]
    return Ref(meta.get("namespace", ""), meta["name"])


def _labels(obj: Json) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def _annotations(obj: Json) -> dict[str, str]:
    return obj["metadata"].get("annotations") or {}


def _owners(obj: Json) -> frozenset[str]:
    return frozenset(owner["uid"] for owner in obj["metadata"].get("ownerReferences") or ())


def _controller(obj: Json, kind: str) -> str:
    """UID of the controller of that kind that owns an object; empty where none does."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((str(o["uid"]) for o in owners if o.get("controller") and o.get("kind") == kind), "")


def is_ours(obj: Json, role: str) -> bool:
    """Whether an object says that specserve made it, and for what."""
    labels = _labels(obj)
    return labels.get(names.MANAGED_BY) == names.MANAGER and labels.get(names.ROLE, "") == role


def content_of(obj: Json) -> str:
    """Digest of what a ConfigMap holds, and of whether that can be changed."""
    content = [obj.get(field) for field in ("immutable", "data", "binaryData")]
    return hashlib.sha256(canonical_json(content).encode(errors="surrogatepass")).hexdigest()


LONGEST_TEXT = 128 * 1024
"""Of what others may have written: more is taken for nothing. No variable of a process is longer."""


def _bounded(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else ""


def parse_time(text: str) -> dt.datetime:
    """RFC 3339 as Kubernetes writes it, to an aware datetime."""
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00"))


def format_time(time: dt.datetime) -> str:
    """Aware datetime to RFC 3339 in UTC, whole seconds, as Kubernetes writes it."""
    return time.astimezone(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(text: str | None) -> dt.datetime | None:
    return parse_time(text) if text else None


_SUFFIXES = {
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("n", "u", "m"), start=-3)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}


def parse_quantity(text: str | int) -> Decimal:
    """A Kubernetes quantity (``4``, ``3500m``, ``16Gi``) as a number."""
    text = str(text)
    suffix = next((s for s in (text[-2:], text[-1:]) if s in _SUFFIXES), "")
    return Decimal(text.removesuffix(suffix)) * _SUFFIXES.get(suffix, 1)


def _whole(text: str, default: int) -> int:
    """A count from an annotation, which anybody may have edited."""
    return int(text) if text.isdecimal() and len(text) < 10 else default


def _condition(obj: Json, kind: str) -> Json | None:
    return next((c for c in obj.get("status", {}).get("conditions") or () if c["type"] == kind), None)


def _is_true(condition: Json | None) -> bool:
    return condition is not None and condition["status"] == "True"


def _devices(node: Json, of: str) -> dict[str, int]:
    amounts = node.get("status", {}).get(of) or {}
    return {name: int(parse_quantity(amount)) for name, amount in amounts.items() if name == "cpu" or "/" in name}


@dataclass(frozen=True)
class Node:
    """A node, as far as accelerators go."""

    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, int]
    """Resource -> whole units that pods may have."""
    usable: bool = True
    """Ready and not cordoned."""
    capacity: Mapping[str, int] = field(default_factory=dict)
    """Resource -> whole units that are there, healthy or not."""

    @classmethod
    def read(cls, obj: Json) -> Node:
        return cls(
            name=obj["metadata"]["name"],
            # Most are those of any other node: held once, they take a tenth of the memory.
            labels={sys.intern(label): sys.intern(value) for label, value in _labels(obj).items()},
            allocatable=_devices(obj, "allocatable"),
            capacity=_devices(obj, "capacity"),
            usable=_is_true(_condition(obj, "Ready")) and not obj.get("spec", {}).get("unschedulable", False),
        )


def _request(job: Json) -> str:
    pod = job.get("spec", {}).get("template", {}).get("spec", {})
    containers = pod.get("containers") or ()
    variables = (e for c in containers if c.get("name") == names.ENGINE_CONTAINER for e in c.get("env") or ())
    text = next((e.get("value", "") for e in variables if e.get("name") == names.REQUEST_VARIABLE), "")
    return expand(text, {})


JobState = Literal["Active", "Succeeded", "Failed"]


@dataclass(frozen=True)
class Job:
    """A profiling Job."""

    name: str
    uid: str
    key: str
    attempt: int
    state: JobState
    requested_by: str = ""
    reprofile: str = ""
    why: str = ""
    """``Reason: message`` of its start."""
    request: str = ""
    """JSON of what it was asked to measure."""
    owners: frozenset[str] = frozenset()
    finished_at: dt.datetime | None = None
    reason: str = ""
    """Why it failed, in the Job controller's words."""
    message: str = ""
    deleting: bool = False
    failures: int = 0
    """Attempts that failed one after the other before it."""
    created: dt.datetime | None = None
    inputs: str = ""
    """JSON of what its key is the hash of."""
    ours: bool = True
    """Made by specserve, and not a copy of what it made."""

    @classmethod
    def read(cls, obj: Json) -> Job:
        succeeded, failed = _condition(obj, "Complete"), _condition(obj, "Failed")
        finished = succeeded if _is_true(succeeded) else failed if _is_true(failed) else None
        annotations = _annotations(obj)
        attempt = _whole(annotations.get(names.ATTEMPT, ""), 1)
        name, key = obj["metadata"]["name"], _labels(obj).get(names.PROFILE_KEY, "")
        return cls(
            name=name,
            uid=obj["metadata"]["uid"],
            key=key,
            ours=is_ours(obj, names.ROLE_PROFILING) and name.startswith(f"{key}-"),
            attempt=attempt,
            failures=_whole(annotations.get(names.FAILURES, ""), attempt - 1),
            state="Active" if finished is None else "Succeeded" if finished is succeeded else "Failed",
            requested_by=annotations.get(names.REQUESTED_BY, ""),
            reprofile=annotations.get(names.REPROFILE, ""),
            why=annotations.get(names.WHY, ""),
            request=_bounded(_request(obj)),
            inputs=_bounded(annotations.get(names.KEY_INPUTS_OF_JOB, "")),
            owners=_owners(obj),
            finished_at=_time(finished.get("lastTransitionTime")) if finished else None,
            reason=finished.get("reason", "") if finished else "",
            message=finished.get("message", "") if finished else "",
            deleting="deletionTimestamp" in obj["metadata"],
            created=_time(obj["metadata"].get("creationTimestamp")),
        )


@dataclass(frozen=True)
class Pod:
    """A profiling or serving pod."""

    name: str
    role: str
    serving: str = ""
    variant: str = ""
    job: str = ""
    """UID of the Job that owns it. A label is anybody's to set, and a Job made again has the name of the one before."""
    node: str = ""
    phase: str = "Pending"
    ready: bool = False
    deleting: bool = False
    waiting: str = ""
    """Why it has not started: the scheduler's or the kubelet's message."""
    unscheduled_since: dt.datetime | None = None
    """Since when no node takes it."""
    termination: str = ""
    """Termination message of the engine container."""
    reason: str = ""
    """Why the pod or its engine container ended, in the kubelet's word: ``DeadlineExceeded``, ``OOMKilled``."""
    disrupted: bool = False
    """Preempted, evicted or lost with its node: its end says nothing about what it ran."""
    told: str = ""
    """What the kubelet says of the pod as a whole, such as why it was evicted."""
    culprit: str = ""
    """The container that it waits for, or that ended before."""
    waits_for: str = ""
    """Why that container waits, in the kubelet's word: ``ImagePullBackOff``."""
    ended: str = ""
    """How it ended the last time: ``OOMKilled``, ``exit code 1``."""
    scheduled_since: dt.datetime | None = None

    @classmethod
    def read(cls, obj: Json) -> Pod:
        labels, status = _labels(obj), obj.get("status", {})
        containers = status.get("containerStatuses") or ()
        engine: Json = next((c.get("state", {}) for c in containers if c["name"] == names.ENGINE_CONTAINER), {})
        scheduled, culprit = _condition(obj, "PodScheduled"), _culprit(status)
        waiting: Json = (culprit.get("state") or {}).get("waiting") or engine.get("waiting") or {}
        wait = waiting.get("message") or waiting.get("reason", "")
        homeless = scheduled if scheduled is not None and scheduled["status"] == "False" else None
        if homeless is not None:
            wait = homeless.get("message", "")
        terminated = engine.get("terminated") or {}
        return cls(
            name=obj["metadata"]["name"],
            role=labels.get(names.ROLE, ""),
            serving=labels.get(names.SERVING, ""),
            variant=labels.get(names.VARIANT, ""),
            job=_controller(obj, "Job"),
            node=obj.get("spec", {}).get("nodeName", ""),
            phase=status.get("phase", "Pending"),
            ready=_is_true(_condition(obj, "Ready")),
            deleting="deletionTimestamp" in obj["metadata"],
            waiting=wait,
            unscheduled_since=_time(homeless.get("lastTransitionTime")) if homeless is not None else None,
            termination=_bounded(terminated.get("message", "")),
            reason=status.get("reason") or terminated.get("reason", ""),
            disrupted=_is_true(_condition(obj, "DisruptionTarget")),
            told=status.get("message", ""),
            culprit=culprit.get("name", ""),
            waits_for=waiting.get("reason", ""),
            ended=_end_of(culprit),
            scheduled_since=_time(scheduled.get("lastTransitionTime")) if scheduled and homeless is None else None,
        )


_USUAL = ("ContainerCreating", "PodInitializing")
"""What every container waits for before it starts."""


def _culprit(status: Json) -> Json:
    """Status of the first container that cannot start, or ended and is not ready again; empty where none did."""
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waits = ((container.get("state") or {}).get("waiting") or {}).get("reason", "") not in ("", *_USUAL)
        if waits or (_end_of(container) and not container.get("ready")):
            return dict(container)
    return {}


def _end_of(container: Json) -> str:
    """How a container that is started again ended, in a word."""
    last: Json = (container.get("lastState") or {}).get("terminated") or {}
    if not last:
        return ""
    return "OOMKilled" if last.get("reason") == "OOMKilled" else f"exit code {last.get('exitCode', '?')}"


def _edited_by_others(obj: Json) -> bool:
    """Whether somebody else wrote into the spec since our own last apply, as the API server kept account.

    Scaling goes by a subresource and does not count, nor does what controllers note in annotations.
    """
    entries = obj["metadata"].get("managedFields") or ()
    ours = max((e.get("time", "") for e in entries if e.get("manager") == names.MANAGER and _of_spec(e)), default="")
    return any(e.get("time", "") >= ours for e in entries if e.get("manager") != names.MANAGER and _of_spec(e))


def _of_spec(entry: Json) -> bool:
    return not entry.get("subresource") and bool((entry.get("fieldsV1") or {}).get("f:spec"))


@dataclass(frozen=True)
class Deployment:
    """Deployment of one variant."""

    name: str
    serving: str
    variant: str
    generation: int
    replicas: int
    uid: str = ""
    ready: int = 0
    updated: int = 0
    """Pods of its newest template."""
    total: int = 0
    """Pods of any of its templates."""
    current: bool = False
    """Its controller has seen the newest generation."""
    stalled: str = ""
    """Message of a rollout that missed its deadline."""
    refused: str = ""
    """Why the API server takes no pod of it: quota, policy."""
    applied_hash: str = ""
    profile: str = ""
    accelerator: str = ""
    """JSON of the accelerator's identity."""
    revision: str = ""
    """What it serves, see ``names.REVISION``."""
    served: bool = False
    """All its pods were available once, of the template that it has now."""
    deleting: bool = False
    owners: frozenset[str] = frozenset()
    edited: bool = False
    """Somebody else wrote into its spec since our own last apply."""

    @property
    def rolls(self) -> bool:
        """Whether pods are being replaced by a newer template. Not so where only further ones are refused."""
        complete = self.updated >= self.total and (self.updated >= self.replicas or bool(self.refused))
        return not (self.current and complete)

    @classmethod
    def read(cls, obj: Json) -> Deployment:
        labels, annotations, status = _labels(obj), _annotations(obj), obj.get("status", {})
        progressing, failure = _condition(obj, "Progressing"), _condition(obj, "ReplicaFailure")
        stalled = progressing is not None and progressing["status"] == "False"
        return cls(
            name=obj["metadata"]["name"],
            serving=labels.get(names.SERVING, ""),
            variant=labels.get(names.VARIANT, ""),
            generation=obj["metadata"].get("generation", 0),
            uid=obj["metadata"].get("uid", ""),
            replicas=obj["spec"].get("replicas", 1),
            ready=status.get("readyReplicas", 0),
            updated=status.get("updatedReplicas", 0),
            total=status.get("replicas", 0),
            current=status.get("observedGeneration", 0) >= obj["metadata"].get("generation", 0),
            stalled=progressing.get("message", "") if stalled and progressing else "",
            refused=failure.get("message", "") if failure and _is_true(failure) else "",
            applied_hash=annotations.get(names.APPLIED_HASH, ""),
            profile=annotations.get(names.PROFILE, ""),
            accelerator=annotations.get(names.ACCELERATOR_IDENTITY, ""),
            revision=annotations.get(names.REVISION, ""),
            served=progressing is not None and progressing.get("reason") == "NewReplicaSetAvailable",
            deleting="deletionTimestamp" in obj["metadata"],
            owners=_owners(obj),
            edited=_edited_by_others(obj),
        )


@dataclass(frozen=True)
class Service:
    """The Service over all variants of a serving."""

    name: str
    serving: str
    generation: int
    """Its resourceVersion: a Service has no generation, and changes as seldom."""
    applied_hash: str = ""
    deleting: bool = False
    owners: frozenset[str] = frozenset()
    edited: bool = False
    """Somebody else wrote into its spec since our own last apply."""

    @classmethod
    def read(cls, obj: Json) -> Service:
        return cls(
            name=obj["metadata"]["name"],
            serving=_labels(obj).get(names.SERVING, ""),
            generation=int(obj["metadata"]["resourceVersion"]),
            applied_hash=_annotations(obj).get(names.APPLIED_HASH, ""),
            deleting="deletionTimestamp" in obj["metadata"],
            owners=_owners(obj),
            edited=_edited_by_others(obj),
        )


@dataclass(frozen=True)
class Serving:
    """A SpeculativeServing, as far as it may be edited. Its status is ours: a change of that alone is no news."""

    name: str
    uid: str
    generation: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Those of specserve."""
    deleting: bool = False

    @classmethod
    def read(cls, obj: Json) -> Serving:
        return cls(
            name=obj["metadata"]["name"],
            uid=obj["metadata"]["uid"],
            generation=obj["metadata"].get("generation", 0),
            annotations={k: v for k, v in _annotations(obj).items() if k.startswith(f"{names.GROUP}/")},
            deleting="deletionTimestamp" in obj["metadata"],
        )


@dataclass(frozen=True)
class ConfigMap:
    """A profile, or what claims to be one; the profiler's package, or whatever else has our label."""

    name: str
    role: str
    key: str = ""
    reprofile: str = ""
    job: str = ""
    """UID of the Job that measured it."""
    content: stored.Stored | stored.Unusable | None = None
    """Of a profile."""
    package: str = ""
    """Digest of what the package holds: it is mounted as code."""
    deleting: bool = False

    @classmethod
    def read(cls, obj: Json) -> ConfigMap:
        role, key = _labels(obj).get(names.ROLE, ""), _labels(obj).get(names.PROFILE_KEY, "")
        name, reprofile = obj["metadata"]["name"], _annotations(obj).get(names.REPROFILE, "")
        profile = role == names.ROLE_PROFILE
        return cls(
            name=name,
            role=role,
            key=key,
            reprofile=reprofile,
            job=_annotations(obj).get(names.JOB, ""),
            content=stored.read(name, key, reprofile, obj.get("data") or {}) if profile else None,
            package=content_of(obj) if role == names.ROLE_PACKAGE else "",
            deleting="deletionTimestamp" in obj["metadata"],
        )

    @classmethod
    def too_large(cls, head: Json) -> ConfigMap:
        """From the metadata alone, where the rest is not worth reading."""
        return replace(cls.read({"metadata": head["metadata"]}), content=stored.Unusable(stored.TOO_LARGE))
