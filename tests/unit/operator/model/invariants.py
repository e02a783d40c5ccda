"""What must hold whatever happens. Each is looked at where it can break, and says what broke.

*Because of us*: a write of the operator's is judged by the controllers' answer to it when none of the new pods becomes
ready. Where the watch had not yet told that pods are no longer ready, for whatever others did, that much is forgiven;
what the operator's own writes did is not.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tests.unit.operator.model.controllers import (
    DEVICE,
    HASH,
    finished,
    is_ready,
    labels_of,
    profile_of,
)
from tests.unit.operator.model.world import World

from specserve_operator.api import names
from specserve_operator.api.accelerator import Accelerator
from specserve_operator.api.records import Json, parse_time, ref_of


class BrokenError(AssertionError):
    """An invariant that does not hold; its first word names it."""


class Loss(NamedTuple):
    """A ready pod of a Deployment that went because of us."""

    version: int
    deployment: str
    """UID."""


class Watch:
    """Looks on."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.losses: list[Loss] = []
        self.results: dict[str, str] = {}
        """UID of a finished Job -> time of measurement of the valid result in its pod."""
        self.stored: set[str] = set()
        """Times of measurement of the profiles that the operator stored."""
        self.foreign: set[str] = set()
        """Hashes of pod templates that somebody else edited."""
        self.measured_on: dict[str, dict[str, str]] = {}
        """UID of a Job -> identity of the accelerator under its pod."""
        self._floor = self._placed = 0
        self._nodes: dict[str, set[str]] = {}
        """UID of a Deployment -> nodes under its pods, when this round began."""
        world.server.watchers.append(self._changed)
        world.client.on_write = self._wrote
        world.controllers.starts = self._started
        world.before_round = self._begin

    # What happens.

    def _changed(self, kind: str, before: Json | None, after: Json | None) -> None:
        if kind == "Pod" and before is not None and is_ready(before) and not (after is not None and is_ready(after)):
            self._lost(before)
        if kind == "Job" and before is None and after is not None:
            self._one_job_per_key(after)

    def _lost(self, pod: Json) -> None:
        if self.world.cause == "ours" and labels_of(pod).get(names.ROLE) == names.ROLE_SERVING:
            self.losses.append(Loss(self.world.server.version, owner_of(pod)))

    def _begin(self, serving: str) -> None:
        self._floor = self._lowest(serving)
        placed = [p for p in self.world.pods_of(serving) if "nodeName" in p["spec"]]
        there = {d["metadata"]["uid"] for d in self.world.deployments_of(serving) if self._has_nodes(d)}
        self._placed = sum(is_ready(p) or owner_of(p) in there for p in placed)
        self._nodes = {}
        for pod in placed:
            self._nodes.setdefault(owner_of(pod), set()).add(pod["spec"]["nodeName"])

    def _lowest(self, serving: str) -> int:
        return sum(self.world.controllers.lowest(d) for d in self.world.deployments_of(serving))

    def _wrote(self, verb: str, kind: str, before: Json | None, after: Json | None) -> None:
        obj = after or before
        assert obj is not None
        if kind == "Deployment":
            self._nothing_ready_is_given_up(verb, obj, before)
            if verb == "APPLY" and before is not None and after is not None:
                self._rolls(before, after)
        elif kind == "ConfigMap" and verb == "POST" and labels_of(obj).get(names.ROLE) == names.ROLE_PROFILE:
            self._stores(obj)
        elif kind == "Job" and verb == "DELETE":
            self._nothing_finished_is_lost(obj)

    # Invariants.

    def _nothing_ready_is_given_up(self, verb: str, obj: Json, before: Json | None) -> None:
        serving = self.world.server.get("SpeculativeServing", labels_of(obj)[names.SERVING])
        if serving is None:
            return
        name, spec = serving["metadata"]["name"], serving["spec"]
        floor = self._lowest(name)
        unavailable = max(_unavailable(d) for d in (spec, before or spec))
        allowed = min(spec["replicas"], self._placed) - unavailable - self._lost_unseen(name)
        left = verb == "DELETE" and self._on_others(obj, serving)
        if floor < self._floor - self._gained_unseen(obj) and floor < allowed and not left:
            raise BrokenError(
                f"ready: {verb} {obj['metadata']['name']} lets {floor} of {self._floor} pods stay ready;"
                f" {spec['replicas']} replicas wanted, {self._placed} on nodes, at most {unavailable} unavailable"
            )
        self._floor = floor

    def _on_others(self, deployment: Json, serving: Json) -> bool:
        """Whether nodes under its pods are another accelerator's for longer than the grace: its table is not for it."""
        slug = labels_of(deployment)[names.VARIANT]
        told = [a for a in serving["status"]["accelerators"] if a["name"] == slug and "missingSince" in a]
        grace = self.world.settings.variant_grace_seconds
        if not told or (self.world.server.now - parse_time(told[0]["missingSince"])).total_seconds() < grace:
            return False
        its = Accelerator.from_json(deployment["metadata"]["annotations"][names.ACCELERATOR_IDENTITY]).identity()
        nodes = (self.world.server.get("Node", name) for name in self._nodes.get(deployment["metadata"]["uid"], ()))
        return any(identity_of(node) != its for node in nodes if node is not None)

    def _lost_unseen(self, serving: str) -> int:
        """Ready pods that the watch still told of, though others took them."""
        more = 0
        for obj in self.world.deployments_of(serving):
            uid, told = obj["metadata"]["uid"], self._told(obj)
            if told is not None:
                version = int(told["metadata"]["resourceVersion"])
                ours = sum(loss.deployment == uid and loss.version > version for loss in self.losses)
                more += max(_told_ready(told) - self._ready(obj) - ours, 0)
        return more

    def _gained_unseen(self, obj: Json) -> int:
        """Ready pods of a Deployment that the watch did not tell of yet."""
        return max(self._ready(obj) - _told_ready(self._told(obj) or {}), 0)

    def _told(self, obj: Json) -> Json | None:
        """A Deployment as the watch told of it."""
        told = self.world.seen["Deployment"].get(ref_of(obj))
        return told if told is not None and told["metadata"]["uid"] == obj["metadata"]["uid"] else None

    def _ready(self, obj: Json) -> int:
        return sum(s.ready for s in self.world.controllers.counted(obj))

    def _rolls(self, before: Json, after: Json) -> None:
        """Of a template that we changed under ready pods."""
        if before["spec"]["template"] == after["spec"]["template"] or not self._serves(before):
            return
        if not self._is_mended(before):
            self._one_rolls(after)
        self._a_better_one(before, after)

    def _serves(self, deployment: Json) -> bool:
        """Whether it has ready pods, and the watch told so."""
        return self._ready(deployment) > 0 and _told_ready(self._told(deployment) or {}) > 0

    def _is_mended(self, before: Json) -> bool:
        """Whether it replaced pods already, and not all that are on nodes are ready: it may, beside another one."""
        wanted = self.world.controllers.hashes.of(before["spec"]["template"])
        rolls = any(s.size and s.hash != wanted for s in self.world.controllers.counted(before))
        pods = self.world.controllers.pods_of(before["metadata"]["uid"])
        return rolls and any("nodeName" in p["spec"] and not is_ready(p) for p in pods)

    def _one_rolls(self, rolls: Json) -> None:
        for other in self.world.deployments_of(labels_of(rolls)[names.SERVING]):
            if ref_of(other) == ref_of(rolls):
                continue
            wanted = self.world.controllers.hashes.of(other["spec"]["template"])
            old = sum(s.ready for s in self.world.controllers.counted(other) if s.hash != wanted)
            if old and wanted not in self.foreign and self._has_nodes(other):
                raise BrokenError(
                    f"rolling: {rolls['metadata']['name']} begins while {old} pods of {other['metadata']['name']}"
                    " are to be replaced"
                )

    def _has_nodes(self, deployment: Json) -> bool:
        """Whether the operator knows of a node that the serving selects and that has its accelerator."""
        serving = self.world.server.get("SpeculativeServing", labels_of(deployment)[names.SERVING]) or {"spec": {}}
        selector = serving["spec"].get("accelerators", {}).get("nodeSelector", {}).items()
        its = Accelerator.from_json(deployment["metadata"]["annotations"][names.ACCELERATOR_IDENTITY]).identity()
        nodes = [n for n in self.world.seen["Node"].values() if selector <= labels_of(n).items()]
        return any(identity_of(node) == its for node in nodes)

    def _a_better_one(self, before: Json, after: Json) -> None:
        """An engine that serves is replaced by a measured one, and by nothing else, unless others put it there."""
        edited = self.world.controllers.hashes.of(before["spec"]["template"]) in self.foreign
        if edited or _engine(before) == _engine(after):
            return
        name, what = after["metadata"]["annotations"][names.PROFILE], after["metadata"]["name"]
        config_map = self.world.server.get("ConfigMap", name)
        if config_map is None:
            raise BrokenError(f"last good: {what} serves, and is rolled to {name}, which is no measured profile")

    def _one_job_per_key(self, job: Json) -> None:
        key = labels_of(job)[names.PROFILE_KEY]
        live = [
            j["metadata"]["name"]
            for j in self.world.server.all("Job")
            if labels_of(j).get(names.PROFILE_KEY) == key and not finished(j)
        ]
        if len(live) > 1:
            raise BrokenError(f"one Job: {live} measure {key} at a time")

    def _stores(self, config_map: Json) -> None:
        data = config_map["data"]
        profile, inputs = json.loads(data[names.PROFILE_JSON]), json.loads(data[names.KEY_INPUTS])
        self.stored.add(profile["measuredAt"])
        job = next((uid for uid, at in self.results.items() if at == profile["measuredAt"]), None)
        under = self.measured_on.get(job or "")
        if under is not None and under != inputs["accelerator"]:
            raise BrokenError(f"accelerator: measured on {under}, stored as of {inputs['accelerator']}")

    def _nothing_finished_is_lost(self, job: Json) -> None:
        uid = job["metadata"]["uid"]
        at = self.results.get(uid)
        if at is None or at in self.stored or not self.seen_result(job):
            return
        raise BrokenError(f"result: Job {job['metadata']['name']} goes, and what it measured was never stored")

    def seen_result(self, job: Json) -> bool:
        """Whether the watch told of its end and of the pod with its message."""
        told = self.world.seen["Job"].get(ref_of(job))
        pods = (p for p in self.world.seen["Pod"].values() if owner_of(p) == job["metadata"]["uid"])
        return told is not None and finished(told) and any(p["status"]["phase"] == "Succeeded" for p in pods)

    def _started(self, pod: Json, node: Json) -> None:
        under = identity_of(node)
        if labels_of(pod).get(names.ROLE) == names.ROLE_PROFILING:
            self.measured_on[owner_of(pod)] = under
            return
        config_map = self.world.server.get("ConfigMap", profile_of(pod) or "-")
        if config_map is None or labels_of(pod)[HASH] in self.foreign:
            return
        inputs = json.loads(config_map["data"][names.KEY_INPUTS])
        name = pod["metadata"]["name"]
        if inputs["accelerator"] != under:
            raise BrokenError(f"accelerator: {name} starts on {under} with a table of {inputs['accelerator']}")
        engine = pod["spec"]["containers"][0]
        if engine["image"] != inputs["image"]:
            raise BrokenError(f"key: {name} starts {engine['image']} with a table of {inputs['image']}")


def owner_of(pod: Json) -> str:
    """UID of its owner; empty where it has none."""
    return next((str(o["uid"]) for o in pod["metadata"].get("ownerReferences") or ()), "")


def identity_of(node: Json) -> dict[str, str]:
    """What a node's labels say of its devices, as a profile names it."""
    labels = labels_of(node)
    if names.ACCELERATOR in labels:
        return {"vendor": "manual", "product": labels[names.ACCELERATOR]}
    sharing = labels.get(f"{DEVICE}.sharing-strategy", "none")
    told = {"vendor": "nvidia", "product": labels.get(f"{DEVICE}.product", "")}
    return told if sharing == "none" else {**told, "sharing": sharing}


def _told_ready(deployment: Json) -> int:
    return int(deployment.get("status", {}).get("readyReplicas", 0))


def _engine(deployment: Json) -> list[Any]:
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    return [container.get(field) for field in ("image", "command", "args", "env")]


def _unavailable(obj: Json) -> int:
    """Of a serving's spec, or of a Deployment."""
    if obj.get("kind") == "Deployment":
        rolling = obj["spec"]["strategy"]["rollingUpdate"]
        return int(rolling["maxUnavailable"] or not rolling["maxSurge"])
    rollout = obj.get("rollout", {})
    return int(rollout.get("maxUnavailable", 1))
