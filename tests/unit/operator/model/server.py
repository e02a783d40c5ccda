"""A simulated API server: versions, generations, managed fields, owners, watches, refusals, and a client of it.

Objects are never changed in place: a write stores a new one, so whoever holds an older one sees what was.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.builders import NAMESPACE, NOW

from specserve_operator.api import names
from specserve_operator.api.records import Json, Ref, format_time, ref_of
from specserve_operator.store.client import RESOURCES, ApiError, Page, Resource

Fault = Callable[[str, str, str], None]
"""(verb, kind, name) of a write of the operator's; raises what becomes of it."""
Watcher = Callable[[str, "Json | None", "Json | None"], None]
"""(kind, object before, object after) of every change."""

_PARTS = {
    "Deployment": ("replicas", "strategy", "progressDeadlineSeconds", "selector", "template"),
    "Service": ("selector", "ports"),
}
"""Kind -> fields of its spec whose managers are kept account of."""


class Server:
    """Objects of one namespace, and nodes. Validation is not its business: ``tests/api`` asks a real one."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[Ref, Json]] = {kind: {} for kind in RESOURCES}
        self.now = NOW
        self.watchers: list[Watcher] = []
        self.version = 100

    def get(self, kind: str, name: str) -> Json | None:
        return self.objects[kind].get(_ref(kind, name))

    def all(self, kind: str) -> list[Json]:
        return list(self.objects[kind].values())

    def put(self, obj: Json, manager: str = "someone", operation: str = "Update", subresource: str = "") -> Json:
        """Store an object as ``manager`` wrote it. One that says nothing new is no write."""
        kind, ref = obj["kind"], ref_of(obj)
        before = self.objects[kind].get(ref)
        if before is not None and _same(before, obj):
            return before
        meta = dict(obj["metadata"])
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        meta["uid"] = before["metadata"]["uid"] if before else f"uid-{ref.name}-{self.version}"
        meta.setdefault("creationTimestamp", format_time(self.now))
        if kind != "Service":
            old = before["metadata"]["generation"] if before else 0
            meta["generation"] = old if before and before.get("spec") == obj.get("spec") else old + 1
        if kind in _PARTS:
            meta["managedFields"] = self._managed(before, obj, manager, operation, subresource)
        stored = {**obj, "metadata": meta}
        self.objects[kind][ref] = stored
        self._tell(kind, before, stored)
        return stored

    def remove(self, kind: str, name: str) -> None:
        """Delete an object; what it owns alone goes too, as with Background propagation."""
        gone = self.objects[kind].pop(_ref(kind, name), None)
        if gone is None:
            return
        self.version += 1
        self._tell(kind, gone, None)
        self.collect_garbage()

    def collect_garbage(self) -> None:
        """Delete what has owners, of which none is there any more; forget those that are gone of what has others."""
        there = {o["metadata"]["uid"] for kind in self.objects for o in self.all(kind)}
        for kind in ("Deployment", "Service", "Job", "ConfigMap", "Pod"):
            for obj in self.all(kind):
                owners = obj["metadata"].get("ownerReferences") or []
                if not owners or all(o["uid"] in there for o in owners):
                    continue
                left = [o for o in owners if o["uid"] in there]
                if left:
                    self.put(with_meta(obj, ownerReferences=left), "garbage-collector")
                else:
                    self.remove(kind, obj["metadata"]["name"])

    def _tell(self, kind: str, before: Json | None, after: Json | None) -> None:
        for watcher in self.watchers:
            watcher(kind, before, after)

    def _managed(self, before: Json | None, obj: Json, manager: str, operation: str, sub: str) -> list[Json]:
        """Entries of managedFields: whoever changes a field has it; an apply has all that it says."""
        old = (before or {}).get("spec") or {}
        parts = [p for p in _PARTS[obj["kind"]] if p in obj["spec"]]
        mine = set(parts) if operation == "Apply" else {p for p in parts if old.get(p) != obj["spec"][p]}
        me = {"manager": manager, "operation": operation, "subresource": sub}
        entries = []
        for entry in (before or {}).get("metadata", {}).get("managedFields") or []:
            if {name: entry.get(name, "") for name in me} == me:
                mine |= set() if operation == "Apply" else {p[2:] for p in entry["fieldsV1"].get("f:spec", {})}
                continue
            kept = {p: v for p, v in entry["fieldsV1"].get("f:spec", {}).items() if p[2:] not in mine}
            if kept:
                entries.append({**entry, "fieldsV1": {"f:spec": kept}})
        if mine:
            told = {f"f:{p}": {} for p in sorted(mine)}
            entries.append({**me, "time": format_time(self.now), "fieldsV1": {"f:spec": told}})
        return entries


def _same(before: Json, obj: Json) -> bool:
    """Whether a write says nothing new, the server's own account apart."""
    ours = ("resourceVersion", "uid", "generation", "creationTimestamp", "managedFields")
    one, other = before["metadata"], obj["metadata"]
    if any(one.get(f) != other.get(f) for f in {*one, *other}.difference(ours)):
        return False
    return all(before.get(f) == obj.get(f) for f in {*before, *obj} - {"metadata"})


def _ref(kind: str, name: str) -> Ref:
    return Ref("" if kind == "Node" else NAMESPACE, name)


def with_meta(obj: Json, **fields: Any) -> Json:
    """A copy with fields of its metadata set; None takes one out."""
    meta = {name: value for name, value in {**obj["metadata"], **fields}.items() if value is not None}
    return {**obj, "metadata": meta}


def with_spec(obj: Json, **fields: Any) -> Json:
    """A copy with fields of its spec set."""
    return {**obj, "spec": {**obj.get("spec", {}), **fields}}


def with_status(obj: Json, **fields: Any) -> Json:
    """A copy with fields of its status set."""
    return {**obj, "status": {**obj.get("status", {}), **fields}}


def labels_of(obj: Json) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def selects(selector: str, obj: Json) -> bool:
    """Of one label: ``label`` or ``label=value``."""
    label, equals, value = selector.partition("=")
    labels = labels_of(obj)
    return not label or (labels.get(label) == value if equals else label in labels)


def owned_by(obj: Json, uid: str) -> bool:
    return any(o["uid"] == uid for o in obj["metadata"].get("ownerReferences") or ())


def merged(under: Any, over: Any) -> Any:
    """A JSON merge patch."""
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    result = {**under, **{name: merged(under.get(name), value) for name, value in over.items()}}
    return {name: value for name, value in result.items() if value is not None}


class Hashes:
    """Digest of a pod template, each object computed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Json, str]] = {}

    def of(self, template: Json) -> str:
        known = self._known.get(id(template))
        if known is None:
            text = json.dumps(template, sort_keys=True)
            known = self._known[id(template)] = (template, hashlib.sha256(text.encode()).hexdigest()[:10])
        return known[1]


class CrashError(BaseException):
    """The operator's process ends here."""


@dataclass
class Client:
    """What the operator holds of the server, with the methods of ``store.client.Client``."""

    server: Server
    fault: Fault = lambda verb, kind, name: None
    after: Fault = lambda verb, kind, name: None
    """Asked once the write is done: its answer may be lost."""
    writes: list[str] = field(default_factory=list)
    """``VERB Kind name`` of every write that changed something."""
    on_write: Callable[[str, str, Json | None, Json | None], None] = lambda verb, kind, before, after: None
    """(verb, kind, object before, object after), once it is done."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        return self.server.get(resource.kind, name)

    async def get_small(self, resource: Resource, namespace: str, name: str, most: int) -> Json | None:
        return self.server.get(resource.kind, name)

    async def list_page(
        self, resource: Resource, namespace: str = "", selector: str = "", more: str = "", limit: int = 500
    ) -> Page:
        items = [o for o in self.server.all(resource.kind) if selects(selector, o)]
        if resource.heads:
            items = [{"metadata": o["metadata"]} for o in items]
        return Page(items, str(self.server.version), "")

    async def create(self, resource: Resource, obj: Json, *, dry_run: bool = False) -> Json:
        name = obj["metadata"]["name"]
        self.fault("POST", resource.kind, name)
        if self.server.get(resource.kind, name) is not None:
            raise ApiError(409, "AlreadyExists", f'{resource.plural} "{name}" already exists')
        return obj if dry_run else self._write("POST", obj)

    async def apply(self, resource: Resource, obj: Json) -> Json:
        name = obj["metadata"]["name"]
        self.fault("APPLY", resource.kind, name)
        before = self.server.get(resource.kind, name)
        return self._write("APPLY", _applied(before, obj) if before else obj, "Apply")

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Json, *, strategic: bool = False
    ) -> Json:
        self.fault("PATCH", resource.kind, name)
        before = self.server.get(resource.kind, name)
        if before is None:
            raise ApiError(404, "NotFound", f'{resource.plural} "{name}" not found')
        uid = body.get("metadata", {}).get("uid")
        if uid and uid != before["metadata"]["uid"]:
            raise ApiError(409, "Conflict", f'{resource.plural} "{name}" has another uid')
        if strategic and "ownerReferences" in body["metadata"]:
            owners = [*(before["metadata"].get("ownerReferences") or ()), *body["metadata"]["ownerReferences"]]
            kept = [o for o in {o["uid"]: o for o in owners}.values() if o.get("$patch") != "delete"]
            body = merged(body, {"metadata": {"ownerReferences": kept}})
        return self._write("PATCH", merged(before, body))

    async def replace_status(self, resource: Resource, obj: Json) -> Json:
        name = obj["metadata"]["name"]
        self.fault("STATUS", resource.kind, name)
        before = self.server.get(resource.kind, name)
        if before is None:
            raise ApiError(404, "NotFound", f'{resource.plural} "{name}" not found')
        if before["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        return self._write("STATUS", {**before, "status": obj["status"]})

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str = "", version: str = "") -> None:
        self.fault("DELETE", resource.kind, name)
        before = self.server.get(resource.kind, name)
        if before is None or uid not in ("", before["metadata"]["uid"]):
            return
        if version not in ("", before["metadata"]["resourceVersion"]):
            raise ApiError(409, "Conflict", "the object has been modified")
        self.server.remove(resource.kind, name)
        self._done("DELETE", resource.kind, name, before, None)

    def _write(self, verb: str, obj: Json, operation: str = "Update") -> Json:
        kind, name = obj["kind"], obj["metadata"]["name"]
        before = self.server.get(kind, name)
        after = self.server.put(obj, names.MANAGER, operation)
        if after is not before:
            self._done(verb, kind, name, before, after)
        else:
            self.after(verb, kind, name)
        return after

    def _done(self, verb: str, kind: str, name: str, before: Json | None, after: Json | None) -> None:
        self.writes.append(f"{verb} {kind} {name}")
        self.on_write(verb, kind, before, after)
        self.after(verb, kind, name)


def _applied(before: Json, obj: Json) -> Json:
    """Server-side apply by the one who applied before: what others added beside it stays."""
    meta = {
        **before["metadata"],
        "labels": {**labels_of(before), **labels_of(obj)},
        "annotations": {**(before["metadata"].get("annotations") or {}), **(obj["metadata"].get("annotations") or {})},
    }
    owners = [*(before["metadata"].get("ownerReferences") or ()), *(obj["metadata"].get("ownerReferences") or ())]
    if owners:
        meta["ownerReferences"] = list({o["uid"]: o for o in owners}.values())
    return {**before, "metadata": meta, "spec": {**before["spec"], **obj["spec"]}}


class Feed:
    """What one watch has yet to tell of a kind: late, and not always in order."""

    def __init__(self, server: Server, kind: str, selector: str) -> None:
        self.kind, self._selector = kind, selector
        self.waiting: deque[tuple[str, Json]] = deque()
        server.watchers.append(self._happened)

    def _happened(self, kind: str, before: Json | None, after: Json | None) -> None:
        if kind != self.kind:
            return
        was = before is not None and selects(self._selector, before)
        if after is not None and selects(self._selector, after):
            self.waiting.append(("MODIFIED" if was else "ADDED", after))
        elif was and before is not None:
            self.waiting.append(("DELETED", before))

    def take(self, most: int) -> Iterator[tuple[str, Json]]:
        for _ in range(min(most, len(self.waiting))):
            yield self.waiting.popleft()


def named(objects: Iterable[Json]) -> list[str]:
    return sorted(o["metadata"]["name"] for o in objects)
