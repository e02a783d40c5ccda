"""An API server in memory, with the client's methods, and a clock: what tests of whole rounds run against.

It knows as much of Kubernetes as the operator relies on: versions, generations, names that are taken, labels.
Schemas and validation are the business of ``tests/api``, which asks a real API server.
"""

from __future__ import annotations

import copy
import datetime as dt
import json
from collections.abc import Iterable
from typing import Any

from tests.builders import NAMESPACE, NOW, PROMPTS, edited

from specserve_operator.api import names
from specserve_operator.api.records import Json, Ref, format_time, ref_of
from specserve_operator.api.serving import ServingStatus, SpeculativeServing
from specserve_operator.api.settings import Settings
from specserve_operator.decide.core import decide
from specserve_operator.decide.model import Child, Plan, Snapshot
from specserve_operator.manifests.profiling import profile as profile_config_map
from specserve_operator.reconcile.reconciler import Reconciler
from specserve_operator.store.client import RESOURCES, ApiError, Page, Resource
from specserve_operator.store.mirror import Store
from specserve_profiler.contract.key import KeyInputs
from specserve_profiler.contract.message import encode
from specserve_profiler.contract.profile import Failure, Profile

PACKAGE = b"the profiler's zip"


class Memory:
    """Stands for ``store.client.Client``. Every call counts; one of them may be made to fail."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[Ref, Json]] = {kind: {} for kind in RESOURCES}
        self.writes: list[str] = []
        """``VERB Kind name`` of every write that was carried out."""
        self.fail_at = 0
        """Number of the call that fails; 0: none does."""
        self.fail_after = False
        """Whether the failing call is carried out all the same, and only its answer is lost."""
        self.calls = 0
        self.refuse: dict[str, ApiError] = {}
        """``Kind`` or ``VERB Kind`` -> how each write of it is answered."""
        self._version = 100

    def put(self, obj: Json) -> Json:
        """Store an object as whoever else might: a user, the kubelet, a controller."""
        ref, kind = ref_of(obj), obj["kind"]
        before = self.objects[kind].get(ref)
        stored = copy.deepcopy(obj)
        meta = stored["metadata"]
        self._version += 1
        meta["resourceVersion"] = str(self._version)
        meta.setdefault("uid", before["metadata"]["uid"] if before else f"uid-{ref.name}-{self._version}")
        if kind != "Service":
            old = before["metadata"]["generation"] if before else 0
            same = before is not None and before.get("spec") == stored.get("spec")
            meta["generation"] = old if same else old + 1
        self.objects[kind][ref] = stored
        return copy.deepcopy(stored)

    def of(self, kind: str, name: str) -> Json | None:
        """An object of the tests' namespace."""
        return self.objects[kind].get(Ref("" if kind == "Node" else NAMESPACE, name))

    def names(self, kind: str) -> list[str]:
        """Names of all objects of a kind, sorted."""
        return sorted(ref.name for ref in self.objects[kind])

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        self._call()
        return copy.deepcopy(self.objects[resource.kind].get(Ref(namespace, name)))

    async def get_small(self, resource: Resource, namespace: str, name: str, most: int) -> Json | None:
        found = await self.get(resource, namespace, name)
        if found is not None and len(json.dumps(found)) > most:
            raise ApiError(413, "TooLarge", f"{name}: larger than {most} bytes")
        return found

    async def list_page(
        self, resource: Resource, namespace: str = "", selector: str = "", more: str = "", limit: int = 500
    ) -> Page:
        self._call()
        items = [
            {"metadata": copy.deepcopy(obj["metadata"])} if resource.heads else copy.deepcopy(obj)
            for ref, obj in self.objects[resource.kind].items()
            if (not namespace or ref.namespace == namespace) and _selects(selector, obj)
        ]
        return Page(items, str(self._version), "")

    async def create(self, resource: Resource, obj: Json, *, dry_run: bool = False) -> Json:
        fails = self._call()
        self._refuse("POST", resource)
        ref = ref_of(obj)
        if ref in self.objects[resource.kind]:
            raise ApiError(409, "AlreadyExists", f'{resource.plural} "{ref.name}" already exists')
        return obj if dry_run else self._write("POST", obj, fails)

    async def apply(self, resource: Resource, obj: Json) -> Json:
        fails = self._call()
        self._refuse("APPLY", resource)
        before = self.objects[resource.kind].get(ref_of(obj))
        kept = {"status": before["status"]} if before and "status" in before else {}
        if before:
            obj = edited(obj, {"metadata.uid": before["metadata"]["uid"]})
        return self._write("APPLY", {**obj, **kept}, fails)

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Json, *, strategic: bool = False
    ) -> Json:
        fails = self._call()
        before = self.objects[resource.kind].get(Ref(namespace, name))
        if before is None:
            raise ApiError(404, "NotFound", f'{resource.plural} "{name}" not found')
        if strategic and "ownerReferences" in body["metadata"]:
            held = before["metadata"].get("ownerReferences", [])
            owners = {o["uid"]: o for o in [*held, *body["metadata"]["ownerReferences"]]}
            kept = [o for o in owners.values() if o.get("$patch") != "delete"]
            body = edited(body, {"metadata.ownerReferences": kept})
        return self._write("PATCH", _merged(before, body), fails)

    async def replace_status(self, resource: Resource, obj: Json) -> Json:
        fails = self._call()
        before = self.objects[resource.kind][ref_of(obj)]
        if before["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        return self._write("STATUS", {**before, "status": obj["status"]}, fails)

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str = "", version: str = "") -> None:
        fails = self._call()
        before = self.objects[resource.kind].get(Ref(namespace, name))
        if before is not None and version not in ("", before["metadata"]["resourceVersion"]):
            raise ApiError(409, "Conflict", "the object has been modified")
        if before is not None and uid in ("", before["metadata"]["uid"]):
            del self.objects[resource.kind][Ref(namespace, name)]
            self.writes.append(f"DELETE {resource.kind} {name}")
        if fails:
            raise ApiError(0, "Unreachable", "the answer was lost")

    def _refuse(self, verb: str, resource: Resource) -> None:
        for what in (resource.kind, f"{verb} {resource.kind}"):
            if what in self.refuse:
                raise self.refuse[what]

    def _call(self) -> bool:
        self.calls += 1
        if self.calls == self.fail_at and not self.fail_after:
            raise ApiError(500, "InternalError", "injected")
        return self.calls == self.fail_at

    def _write(self, verb: str, obj: Json, fails: bool) -> Json:
        self.writes.append(f"{verb} {obj['kind']} {obj['metadata']['name']}")
        stored = self.put(obj)
        if fails:
            raise ApiError(0, "Unreachable", "the answer was lost")
        return stored


def _selects(selector: str, obj: Json) -> bool:
    label, equals, value = selector.partition("=")
    labels = obj["metadata"].get("labels") or {}
    return not label or (labels.get(label) == value if equals else label in labels)


def _merged(under: Any, over: Any) -> Any:
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    return {**under, **{field: _merged(under.get(field), value) for field, value in over.items()}}


_ROLLED_OUT = {"conditions": [{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]}


class World:
    """One namespace with a clock. What controllers and people would do is done by calling its methods."""

    def __init__(self, *objects: Json, settings: Settings | None = None) -> None:
        self.api = Memory()
        self.settings = settings or Settings()
        self.now = NOW
        self.store = Store.empty()
        self.reconciler = self._operator()
        for obj in (PROMPTS, *objects):
            self.api.put(obj)

    def restart_operator(self) -> None:
        """A new process: whatever was in memory only is gone."""
        self.store = Store.empty()
        self.reconciler = self._operator()

    def _operator(self) -> Reconciler:
        return Reconciler(self.api, self.store, self.settings, PACKAGE, lambda: self.now)  # type: ignore[arg-type]

    async def round(self, name: str = "chat") -> float | None:
        """The operator looks once, with a store that is up to date."""
        self.sync()
        return await self.reconciler.reconcile(Ref(NAMESPACE, name))

    async def settle(self, *servings: str, rounds: int = 8) -> None:
        """Rounds until none writes any more; fails where that does not come."""
        for _ in range(rounds):
            before = len(self.api.writes)
            for name in servings or ("chat",):
                await self.round(name)
            if len(self.api.writes) == before:
                return
        raise AssertionError(f"still writing after {rounds} rounds: {self.api.writes[-12:]}")

    async def plan(self, name: str = "chat") -> Plan:
        """What would be done now, without doing it."""
        return decide(await self.snapshot(name))

    async def snapshot(self, name: str = "chat", applied: dict[Child, int] | None = None) -> Snapshot:
        self.sync()
        obj = self.api.objects["SpeculativeServing"][Ref(NAMESPACE, name)]
        return await self.reconciler.observer.observe(obj, applied or {}, self.now)

    def sync(self) -> None:
        """The store hears of everything that happened."""
        for mirror in (m for m in self.store.mirrors if m is not self.store.sources):
            held = {
                ref: obj
                for ref, obj in self.api.objects[mirror.resource.kind].items()
                if mirror.resource.kind in ("Node", names.KIND) or _selects(names.ROLE, obj)
            }
            for ref in [ref for ref in mirror._items if ref not in held]:
                mirror._set(ref, None)
            for obj in held.values():
                mirror._hear("ADDED", obj)

    def pass_time(self, seconds: float) -> None:
        self.now += dt.timedelta(seconds=seconds)

    # What people do.

    def edit(self, edits: dict[str, Any], name: str = "chat") -> None:
        """Edit the serving."""
        self.api.put(edited(self._obj("SpeculativeServing", name), edits))

    def label(self, node: str, label: str, value: str | None) -> None:
        """Label a node; None takes the label away."""
        obj = self._obj("Node", node)
        labels = {**obj["metadata"]["labels"], label: value}
        self.api.put(edited(obj, {"metadata.labels": {k: v for k, v in labels.items() if v is not None}}))

    def remove(self, kind: str, name: str) -> None:
        del self.api.objects[kind][Ref("" if kind == "Node" else NAMESPACE, name)]

    # What controllers and kubelets do.

    def image(self, deployment: str) -> str:
        """Of its engine."""
        return str(self._obj("Deployment", deployment)["spec"]["template"]["spec"]["containers"][0]["image"])

    def roll_out(self, *, ready: bool = True) -> None:
        """Every Deployment gets its pods."""
        for obj in self._all("Deployment"):
            count = obj["spec"]["replicas"]
            status = {"observedGeneration": obj["metadata"]["generation"], "updatedReplicas": count}
            self.api.put(
                {**obj, "status": {**status, **(_ROLLED_OUT if ready else {}), "readyReplicas": count * ready}}
            )

    def ready(self, deployment: str, count: int) -> None:
        """So many of its pods are ready, all of its newest template."""
        obj = self._obj("Deployment", deployment)
        status = {"observedGeneration": obj["metadata"]["generation"], "updatedReplicas": obj["spec"]["replicas"]}
        self.api.put({**obj, "status": {**obj.get("status", {}), **status, "readyReplicas": count}})

    def place_pods(self, deployment: str, node: str, *, ready: bool = True) -> None:
        """Its pods stand on a node."""
        made = self._obj("Deployment", deployment)
        for number in range(made["spec"]["replicas"]):
            labels = made["spec"]["template"]["metadata"]["labels"]
            pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": node}}
            meta = {"name": f"{deployment}-{number}", "namespace": NAMESPACE, "labels": labels}
            status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
            self.api.put({**pod, "metadata": meta, "status": status})

    def start_pod(self, job: str, *, ready: bool = False, node: str = "n1", **status: Any) -> None:
        """The Job's pod runs; ready: it measures."""
        conditions = [{"type": "Ready", "status": str(ready)}, {"type": "PodScheduled", "status": "True"}]
        self.put_pod(job, {"phase": "Running", "conditions": conditions, **status}, node)

    def put_pod(self, job: str, status: Json, node: str = "", name: str = "") -> None:
        made = self._obj("Job", job)
        labels = made["spec"]["template"]["metadata"]["labels"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": made["metadata"]["uid"]}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name or f"{job}-pod",
                "namespace": NAMESPACE,
                "labels": labels,
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": {"nodeName": node} if node else {},
            "status": status,
        }
        self.api.put(pod)

    def finish(self, job: str, result: Profile | Failure | str | None, *, succeeds: bool | None = None) -> None:
        """The Job ends; ``result`` leaves through its pod's termination message (None: the pod is gone)."""
        message = result if isinstance(result, str) or result is None else encode(result)
        good = isinstance(result, Profile) if succeeds is None else succeeds
        if message is None:
            self.api.objects["Pod"].pop(Ref(NAMESPACE, f"{job}-pod"), None)
        else:
            ended = {"terminated": {"message": message, "reason": "Completed" if good else "Error"}}
            status = {
                "phase": "Succeeded" if good else "Failed",
                "containerStatuses": [{"name": "engine", "state": ended}],
            }
            self.put_pod(job, status, "n1")
        self.end_job(job, succeeds=good)

    def end_job(self, job: str, *, succeeds: bool) -> None:
        condition = {
            "type": "Complete" if succeeds else "Failed",
            "status": "True",
            "lastTransitionTime": format_time(self.now),
        }
        if not succeeds:
            condition |= {"reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}
        self.api.put({**self._obj("Job", job), "status": {"conditions": [condition]}})

    def import_profile(self, result: Profile, inputs: KeyInputs) -> str:
        """Somebody else puts a profile there; returns its name."""
        obj = profile_config_map(NAMESPACE, result, inputs)
        self.api.put(obj)
        return str(obj["metadata"]["name"])

    # What is there.

    @property
    def jobs(self) -> list[str]:
        return self.api.names("Job")

    def key_of(self, job: str) -> str:
        return str(self._obj("Job", job)["metadata"]["labels"][names.PROFILE_KEY])

    def profiles(self) -> list[str]:
        """Names of the profile ConfigMaps."""
        return [o["metadata"]["name"] for o in self._all("ConfigMap") if _role(o) == names.ROLE_PROFILE]

    def deployment(self, name: str) -> Json:
        return self._obj("Deployment", name)

    def replicas(self) -> dict[str, int]:
        return {o["metadata"]["name"]: o["spec"]["replicas"] for o in self._all("Deployment")}

    def serving(self, name: str = "chat") -> SpeculativeServing:
        return SpeculativeServing.read(self._obj("SpeculativeServing", name))

    def status(self, name: str = "chat") -> ServingStatus:
        return self.serving(name).status

    def condition(self, kind: str, name: str = "chat") -> tuple[str, str, str]:
        """(status, reason, message)."""
        (found,) = (c for c in self.status(name).conditions if c.type == kind)
        return found.status, found.reason, found.message

    def events(self) -> list[str]:
        """Reasons of all events, oldest first."""
        return [o["reason"] for o in self._all("Event")]

    def _all(self, kind: str) -> Iterable[Json]:
        return [copy.deepcopy(obj) for obj in self.api.objects[kind].values()]

    def _obj(self, kind: str, name: str) -> Json:
        found = self.api.of(kind, name)
        assert found is not None, f"no {kind} {name}, only {self.api.names(kind)}"
        return copy.deepcopy(found)


def _role(obj: Json) -> str:
    return str((obj["metadata"].get("labels") or {}).get(names.ROLE, ""))
