"""Simulated controllers: Deployments with their ReplicaSets, Jobs, the scheduler, kubelets, the nodes' lifecycle.

Each does one step at a time when it is called, as late as whoever calls it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tests.builders import NAMESPACE
from tests.unit.operator.model.server import Hashes, Server, labels_of, owned_by, with_meta, with_spec, with_status

from specserve_operator.api import names
from specserve_operator.api.records import Json, format_time

DEVICE = "nvidia.com/gpu"
HASH = "pod-template-hash"


@dataclass
class ReplicaSet:
    """Pods of one template of a Deployment."""

    hash: str
    template: Json
    made: int
    """Order in which they were made."""
    size: int = 0
    ready: int = 0
    wanted: int = 0
    """Replicas of its Deployment when it was scaled last."""
    most: int = 0
    """The same with the surge."""


@dataclass(frozen=True)
class Wanted:
    """A Deployment's spec, as far as its controller goes."""

    replicas: int
    surge: int
    unavailable: int
    hash: str
    template: Json

    @classmethod
    def read(cls, obj: Json, hashes: Hashes) -> Wanted:
        spec = obj["spec"]
        rolling = spec["strategy"]["rollingUpdate"]
        surge, unavailable = rolling["maxSurge"], rolling["maxUnavailable"]
        replicas = spec["replicas"]
        unavailable = min(unavailable or int(not surge), replicas)
        return cls(replicas, surge, unavailable, hashes.of(spec["template"]), spec["template"])


def sync(sets: list[ReplicaSet], want: Wanted) -> bool:
    """One round of the Deployment controller upon its ReplicaSets, oldest first; says whether it changed a size."""
    before = [(s.hash, s.size) for s in sets]
    active = [s for s in sets if s.size]
    if any(s.wanted != want.replicas for s in active):
        _scale(sets, active, want)
    else:
        _roll(sets, want)
    for each in sets:
        each.wanted, each.most = want.replicas, want.replicas + want.surge
    return before != [(s.hash, s.size) for s in sets]


def _scale(sets: list[ReplicaSet], active: list[ReplicaSet], want: Wanted) -> None:
    newest = next((s for s in sets if s.hash == want.hash), None)
    if len(active) == 1:
        active[0].size = want.replicas
        return
    if newest is not None and newest.size == newest.ready == want.replicas == newest.wanted:
        for old in active:
            old.size = old.size if old is newest else 0
        return
    # In proportion to their sizes: a ReplicaSet without a ready pod keeps its share, too.
    allowed = want.replicas + want.surge if want.replicas else 0
    adding = allowed - sum(s.size for s in active)
    order = sorted(active, key=lambda s: (-s.size, -s.made if adding > 0 else s.made))
    added, sizes = 0, []
    for each in order:
        share = 0
        if adding:
            share = round(each.size * allowed / (each.most or allowed)) - each.size if want.replicas else -each.size
            left = adding - added
            share = max(0, min(share, left)) if adding > 0 else min(0, max(share, left))
        sizes.append(each.size + share)
        added += share
    sizes[0] += adding - added
    for each, size in zip(order, sizes, strict=True):
        each.size = max(size, 0)


def _roll(sets: list[ReplicaSet], want: Wanted) -> None:
    new = next((s for s in sets if s.hash == want.hash), None)
    if new is None:
        new = ReplicaSet(want.hash, want.template, made=max((s.made for s in sets), default=0) + 1)
        sets.append(new)
    old = [s for s in sets if s is not new]
    total = sum(s.size for s in sets)
    if new.size > want.replicas:
        new.size = want.replicas
        return
    more = min(want.replicas + want.surge - total, want.replicas - new.size)
    if more > 0:
        new.size += more
        return
    surplus = total - (want.replicas - want.unavailable) - (new.size - new.ready)
    if surplus <= 0:
        return
    for each in old:  # what is not ready goes first
        gone = min(each.size - each.ready, surplus)
        each.size -= gone
        surplus -= gone
    spare = sum(s.ready for s in sets) - (want.replicas - want.unavailable)
    for each in old:
        gone = max(min(each.size, spare, each.ready), 0)
        each.size -= gone
        each.ready = min(each.ready, each.size)
        spare -= gone


def lowest(sets: Iterable[ReplicaSet], want: Wanted) -> int:
    """Pods that stay ready whatever becomes of the new ones: the controller's answer to ``want`` to its end."""
    copies = [replace(s) for s in sets]
    for _ in range(100):
        changed = sync(copies, want)
        for each in copies:
            each.ready = min(each.ready, each.size)
        if not changed:
            break
    return sum(s.ready for s in copies)


def is_ready(pod: Json) -> bool:
    return condition(pod, "Ready") == "True"


def condition(obj: Json, kind: str) -> str:
    return next((c["status"] for c in obj.get("status", {}).get("conditions") or () if c["type"] == kind), "")


def with_condition(obj: Json, kind: str, status: str, at: str, **more: str) -> Json:
    """A copy with a condition set; its time changes with its status."""
    held = obj.get("status", {}).get("conditions") or []
    old = next((c for c in held if c["type"] == kind), None)
    since = old.get("lastTransitionTime", at) if old and old["status"] == status else at
    new = {"type": kind, "status": status, "lastTransitionTime": since, **more}
    return with_status(obj, conditions=[*(c for c in held if c["type"] != kind), new])


def needs(pod: Json) -> int:
    """Devices that a pod asks for."""
    engine = next(c for c in pod["spec"]["containers"] if c["name"] == names.ENGINE_CONTAINER)
    return int(engine.get("resources", {}).get("limits", {}).get(DEVICE, 0))


def fits(pod: Json, node: Json) -> bool:
    """Whether labels and taints let the pod onto the node."""
    labels, spec = labels_of(node), pod["spec"]
    if condition(node, "Ready") != "True" or node["spec"].get("unschedulable"):
        return False
    if any(labels.get(k) != v for k, v in (spec.get("nodeSelector") or {}).items()):
        return False
    required = (
        (spec.get("affinity") or {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    )
    terms = (required or {}).get("nodeSelectorTerms") or [{}]
    return any(all(_matches(e, labels) for e in term.get("matchExpressions") or ()) for term in terms)


def _matches(expression: Json, labels: dict[str, str]) -> bool:
    key, values = expression["key"], expression.get("values", ())
    return {
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
        "In": key in labels and labels[key] in values,
        "NotIn": labels.get(key) not in values,
    }[expression["operator"]]


class Controllers:
    """All of them, over one server."""

    def __init__(self, server: Server) -> None:
        self.server, self.hashes = server, Hashes()
        self.sets: dict[str, list[ReplicaSet]] = {}
        """UID of a Deployment -> its ReplicaSets, oldest first."""
        self._made = 0
        self.starts: Callable[[Json, Json], None] = lambda pod, node: None
        """Told when a node takes a pod."""

    @property
    def _time(self) -> str:
        return format_time(self.server.now)

    # Deployments.

    def pods_of(self, uid: str) -> list[Json]:
        return [p for p in self.server.all("Pod") if owned_by(p, uid)]

    def counted(self, deployment: Json) -> list[ReplicaSet]:
        """Its ReplicaSets as they stand, with the ready pods that there are now."""
        uid = deployment["metadata"]["uid"]
        sets = self.sets.setdefault(uid, [])
        pods = self.pods_of(uid)
        for each in sets:
            each.ready = sum(is_ready(p) for p in pods if labels_of(p)[HASH] == each.hash)
        return sets

    def lowest(self, deployment: Json) -> int:
        """Pods that stay ready whatever becomes of its new ones."""
        return lowest(self.counted(deployment), Wanted.read(deployment, self.hashes))

    def deployment(self, name: str) -> None:
        """Its controller and that of its ReplicaSets look once, then tell the status."""
        obj = self.server.get("Deployment", name)
        if obj is None:
            return
        sets, want = self.counted(obj), Wanted.read(obj, self.hashes)
        sync(sets, want)
        for each in sets:
            self._fill(obj, each)
        self.sets[obj["metadata"]["uid"]] = [s for s in sets if s.size or s.hash == want.hash]
        self.tell_status(name)

    def _fill(self, deployment: Json, replica_set: ReplicaSet) -> None:
        uid = deployment["metadata"]["uid"]
        pods = [p for p in self.pods_of(uid) if labels_of(p)[HASH] == replica_set.hash]
        for _ in range(replica_set.size - len(pods)):
            self._made_pod(deployment, replica_set.template, {HASH: replica_set.hash})
        unready_first = sorted(
            pods,
            key=lambda p: (bool(p["spec"].get("nodeName")), is_ready(p), -int(p["metadata"]["uid"].split("-")[-1])),
        )
        for pod in unready_first[: max(len(pods) - replica_set.size, 0)]:
            self.server.remove("Pod", pod["metadata"]["name"])

    def _made_pod(self, owner: Json, template: Json, labels: dict[str, str]) -> None:
        self._made += 1
        name, uid = owner["metadata"]["name"], owner["metadata"]["uid"]
        meta = {
            "name": f"{name}-{self._made}",
            "namespace": NAMESPACE,
            "labels": {**template["metadata"]["labels"], **labels},
            "ownerReferences": [{"kind": owner["kind"], "name": name, "uid": uid, "controller": True}],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}
        self.server.put({**pod, "status": {"phase": "Pending"}})

    def tell_status(self, name: str) -> None:
        obj = self.server.get("Deployment", name)
        if obj is None:
            return
        want = self.hashes.of(obj["spec"]["template"])
        pods = self.pods_of(obj["metadata"]["uid"])
        status = {
            "observedGeneration": obj["metadata"]["generation"],
            "replicas": len(pods),
            "updatedReplicas": sum(labels_of(p)[HASH] == want for p in pods),
            "readyReplicas": sum(map(is_ready, pods)),
        }
        self.server.put({**obj, "status": status}, "deployment-controller", subresource="status")

    # Pods and nodes.

    def set_ready(self, pod: Json, ready: bool) -> None:
        self.server.put(with_condition(pod, "Ready", str(ready), self._time))

    def schedule(self) -> None:
        """Every pod without a node gets one, where one fits: serving pods first, for Jobs have less priority."""
        waiting = [
            p for p in self.server.all("Pod") if not p["spec"].get("nodeName") and p["status"]["phase"] == "Pending"
        ]
        if not waiting:
            return
        free = self._free()
        for pod in sorted(waiting, key=lambda p: labels_of(p).get(names.ROLE) != names.ROLE_SERVING):
            node = next(
                (n for n in self.server.all("Node") if free[n["metadata"]["name"]] >= needs(pod) and fits(pod, n)), None
            )
            if node is None:
                told = {"message": "0 nodes are available", "reason": "Unschedulable"}
                self.server.put(with_condition(pod, "PodScheduled", "False", self._time, **told))
                continue
            free[node["metadata"]["name"]] -= needs(pod)
            bound = with_spec(pod, nodeName=node["metadata"]["name"])
            self.server.put(with_condition(bound, "PodScheduled", "True", self._time))
            self.starts(bound, node)

    def _free(self) -> dict[str, int]:
        free = {
            n["metadata"]["name"]: int(n["status"]["allocatable"].get(DEVICE, "0")) for n in self.server.all("Node")
        }
        for pod in self.server.all("Pod"):
            node = pod["spec"].get("nodeName")
            if node in free and pod["status"]["phase"] in ("Pending", "Running"):
                free[node] -= needs(pod)
        return free

    def kubelet(self, name: str) -> None:
        """A bound pod goes on by one step: it runs, then it is ready. Not where its profile is missing."""
        pod = self.server.get("Pod", name)
        if pod is None or not pod["spec"].get("nodeName") or pod["status"]["phase"] not in ("Pending", "Running"):
            return
        node = self.server.get("Node", pod["spec"]["nodeName"])
        if node is None or condition(node, "Ready") != "True" or not self._has_profile(pod):
            return
        if pod["status"]["phase"] == "Pending":
            self.server.put(with_status(pod, phase="Running"))
        elif not is_ready(pod):
            self.set_ready(pod, True)

    def _has_profile(self, pod: Json) -> bool:
        name = profile_of(pod)
        return not name or self.server.get("ConfigMap", name) is not None

    def node_lifecycle(self, name: str) -> None:
        """Pods of a node that is not Ready are not; those of one that is gone are gone."""
        node = self.server.get("Node", name)
        for pod in self.server.all("Pod"):
            if pod["spec"].get("nodeName") != name or pod["status"]["phase"] not in ("Pending", "Running"):
                continue
            if node is None:
                self._disrupt(pod)
            elif condition(node, "Ready") != "True" and is_ready(pod):
                self.set_ready(pod, False)

    def evict(self, name: str) -> None:
        """Pods on a node end, as some minutes after it stopped being Ready, or when it is drained."""
        for pod in self.server.all("Pod"):
            if pod["spec"].get("nodeName") == name and pod["status"]["phase"] in ("Pending", "Running"):
                self._disrupt(pod)

    def _disrupt(self, pod: Json) -> None:
        if labels_of(pod).get(names.ROLE) == names.ROLE_PROFILING:  # stays until its Job has counted it
            ended = with_condition(with_status(pod, phase="Failed"), "DisruptionTarget", "True", self._time)
            self.server.put(with_condition(ended, "Ready", "False", self._time))
        else:
            self.server.remove("Pod", pod["metadata"]["name"])

    # Jobs.

    def job(self, name: str) -> None:
        """Its controller looks once: a pod is made, or the Job has ended."""
        job = self.server.get("Job", name)
        if job is None or finished(job):
            return
        pods = self.pods_of(job["metadata"]["uid"])
        ended = [p for p in pods if p["status"]["phase"] in ("Succeeded", "Failed") and not _disrupted(p)]
        if ended:
            good = ended[0]["status"]["phase"] == "Succeeded"
            self.end_job(job, "Complete" if good else "Failed")
        elif not any(p["status"]["phase"] in ("Pending", "Running") for p in pods):
            labels = {"batch.kubernetes.io/controller-uid": job["metadata"]["uid"]}
            self._made_pod(job, job["spec"]["template"], labels)

    def end_job(self, job: Json, kind: str) -> None:
        told = {"reason": "BackoffLimitExceeded", "message": "reached its limit"} if kind == "Failed" else {}
        self.server.put(with_condition(job, kind, "True", self._time, **told))

    def terminate(self, pod: Json, message: str, *, good: bool) -> None:
        """A pod's engine container ends and leaves a message."""
        state = {"terminated": {"message": message, "reason": "Completed" if good else "Error"}}
        ended = with_status(
            pod,
            phase="Succeeded" if good else "Failed",
            containerStatuses=[{"name": names.ENGINE_CONTAINER, "state": state}],
        )
        self.server.put(with_condition(ended, "Ready", "False", self._time))

    def orphan(self, kind: str, name: str) -> None:
        """Somebody takes the owner references away."""
        obj = self.server.get(kind, name)
        if obj is not None:
            self.server.put(with_meta(obj, ownerReferences=None))


def finished(job: Json) -> bool:
    return "True" in (condition(job, "Complete"), condition(job, "Failed"))


def _disrupted(pod: Json) -> bool:
    return condition(pod, "DisruptionTarget") == "True"


def profile_of(pod: Json) -> str:
    """Name of the profile ConfigMap that a pod's engine gets its configuration from; empty where there is none."""
    engine = next(c for c in pod["spec"]["containers"] if c["name"] == names.ENGINE_CONTAINER)
    sources = (e.get("valueFrom", {}).get("configMapKeyRef") for e in engine.get("env") or ())
    return next((s["name"] for s in sources if s and s.get("key") == names.SPECULATIVE_CONFIG), "")
