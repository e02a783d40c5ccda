"""What may happen, one thing at a time: people, nodes, controllers, Jobs, the watch, the operator itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.builders import A100, L4, SERVING, edited, node, profile
from tests.unit.operator.model.controllers import (
    DEVICE,
    condition,
    finished,
    is_ready,
    labels_of,
    with_condition,
)
from tests.unit.operator.model.invariants import BrokenError, Watch
from tests.unit.operator.model.server import CrashError, with_meta, with_spec, with_status
from tests.unit.operator.model.world import Loop, World

from specserve_operator.api import names
from specserve_operator.api.records import Json, format_time
from specserve_operator.store.client import ApiError
from specserve_profiler.contract.message import encode
from specserve_profiler.contract.profile import Failure

T = TypeVar("T")
PRODUCTS = (L4, A100, "NVIDIA-H100")
SERVINGS = ("chat", "code")


class Picker:
    """Chooses among options; a walk's, a replay's or hypothesis's."""

    def __call__(self, options: Sequence[T]) -> T:
        raise NotImplementedError


class Story:
    """A world, those who look on, and everything that may happen in it as methods that take a picker."""

    def __init__(self, loop: Loop) -> None:
        self.world = World(loop)
        self.watch = Watch(self.world)
        self.server, self.controllers = self.world.server, self.world.controllers
        self._refused: dict[str, ApiError] = {}
        self._crash_in = 0
        self._crash_after = False
        self._number = 0
        self.world.client.fault = self._fault
        self.world.client.after = self._after
        for product in PRODUCTS[:2]:
            self.add_node(product, 3)
        self.server.put(SERVING)
        self.stories: list[tuple[int, Callable[[Picker], None]]] = [
            (30, self.look), (20, self.hear), (14, self.progress), (10, self.deployment_controller), (8, self.schedule),
            (14, self.kubelet), (8, self.job_controller), (6, self.job_ends), (5, self.time_passes), (4, self.unready),
            (3, self.edit), (2, self.scale), (1, self.break_spec), (1, self.reprofile), (1, self.make_or_delete),
            (2, self.lose_events), (1, self.swap_events), (2, self.relist), (1, self.restart), (2, self.crash),
            (2, self.refuse), (2, self.accept_all),
            (2, self.cordon), (2, self.node_readiness), (2, self.devices), (2, self.labels), (1, self.relabel),
            (2, self.node_comes), (1, self.node_goes), (1, self.drain), (3, self.nodes_heal),
            (1, self.edit_child), (1, self.scale_child), (1, self.delete_child), (1, self.orphan),
            (1, self.foreign_map),
        ]  # fmt: skip

    def tell(self, event: Callable[[Picker], None], pick: Picker) -> None:
        """One thing happens, and a second passes."""
        event(pick)
        self.world.pass_time(1)

    # The operator and its watch.

    def look(self, pick: Picker) -> None:
        if self.world.servings:
            self.world.round(pick(self.world.servings))

    def hear(self, pick: Picker) -> None:
        kind = pick(["*", *self.world.feeds])
        if kind == "*":
            self.world.hear_all()
        else:
            self.world.hear(kind, pick([1, 2, 1000]))

    def progress(self, pick: Picker) -> None:
        """All is well for a moment."""
        self.world.run_controllers()
        self.world.hear_all()
        for name in self.world.servings:
            self.world.round(name)

    def lose_events(self, pick: Picker) -> None:
        kind = pick(list(self.world.feeds))
        waiting = self.world.feeds[kind].waiting
        if waiting:
            del waiting[pick(range(len(waiting)))]

    def swap_events(self, pick: Picker) -> None:
        kind = pick(list(self.world.feeds))
        waiting = self.world.feeds[kind].waiting
        if len(waiting) > 1:
            at = pick(range(len(waiting) - 1))
            waiting[at], waiting[at + 1] = waiting[at + 1], waiting[at]

    def relist(self, pick: Picker) -> None:
        self.world.relist(pick(list(self.world.feeds)))

    def restart(self, pick: Picker) -> None:
        self.world.start_operator()

    def crash(self, pick: Picker) -> None:
        """The operator's process ends at one of its next writes, done or not."""
        self._crash_in, self._crash_after = pick([1, 2, 3, 4, 5]), pick([False, True])

    def refuse(self, pick: Picker) -> None:
        """Writes of a kind are refused until further notice."""
        what = pick(["Deployment", "Service", "Job", "ConfigMap", "PATCH Deployment", "STATUS SpeculativeServing"])
        self._refused[what] = pick(
            [
                ApiError(422, "Invalid", "a field is wrong"),
                ApiError(403, "Forbidden", "an admission webhook says no"),
                ApiError(500, "InternalError", "an admission webhook does not answer"),
                ApiError(429, "TooManyRequests", "later"),
            ]
        )

    def accept_all(self, pick: Picker) -> None:
        self._refused.clear()

    def _fault(self, verb: str, kind: str, name: str) -> None:
        self._crash(after=False)
        for what in (kind, f"{verb} {kind}"):
            if what in self._refused:
                raise self._refused[what]

    def _after(self, verb: str, kind: str, name: str) -> None:
        self._crash(after=True)

    def _crash(self, *, after: bool) -> None:
        if self._crash_in and after == self._crash_after:
            self._crash_in -= 1
            if not self._crash_in:
                raise CrashError

    # Controllers, kubelets and time.

    def deployment_controller(self, pick: Picker) -> None:
        if all_of := _names(self.server.all("Deployment")):
            self.world.deployment(pick(all_of))

    def schedule(self, pick: Picker) -> None:
        self.controllers.schedule()

    def kubelet(self, pick: Picker) -> None:
        if pods := [p for p in self._serving_pods() if "nodeName" in p["spec"] and not is_ready(p)]:
            self.controllers.kubelet(pick(_names(pods)))

    def unready(self, pick: Picker) -> None:
        """A ready pod is not for a while: a probe that times out, a container that starts again."""
        if pods := [p for p in self._serving_pods() if is_ready(p)]:
            self.controllers.set_ready(self.named("Pod", pick(_names(pods))), False)

    def job_controller(self, pick: Picker) -> None:
        if jobs := [j for j in self.server.all("Job") if not finished(j)]:
            self.controllers.job(pick(_names(jobs)))

    def job_ends(self, pick: Picker) -> None:
        """The pod of a Job leaves a result of some kind, or none."""
        pods = [
            p for p in self._job_pods() if p["status"]["phase"] in ("Pending", "Running") and "nodeName" in p["spec"]
        ]
        if not pods:
            return
        pod = self.named("Pod", pick(_names(pods)))
        outcome = pick(["good"] * 5 + ["failure", "empty", "foreign", "none", "lost", "disrupted", "other key"])
        self._end(pod, outcome)
        if pick([True, False]):
            for job in _names(self.server.all("Job")):
                self.controllers.job(job)

    def _end(self, pod: Json, outcome: str) -> None:
        controllers = self.controllers
        if outcome == "good":
            self.world.pass_time(1)  # results are told apart by their times
            controllers.terminate(pod, encode(self.result(pod)), good=True)
            self.watch.results[_owner(pod)] = format_time(self.server.now)
        elif outcome == "failure":
            controllers.terminate(pod, encode(Failure(reason="EngineFailed", message="it would not boot")), good=False)
        elif outcome == "other key":
            controllers.terminate(pod, encode(profile("specserve-000000000000", at=self.server.now)), good=True)
        elif outcome == "disrupted":
            ended = with_condition(
                with_status(pod, phase="Failed"), "DisruptionTarget", "True", format_time(self.server.now)
            )
            self.server.put(ended)
        elif outcome == "lost":
            controllers.terminate(pod, "", good=True)
            controllers.job(self._job_of(pod))
            self.server.remove("Pod", pod["metadata"]["name"])
        else:
            controllers.terminate(pod, {"empty": "", "foreign": "Killed", "none": ""}[outcome], good=outcome == "none")

    def result(self, pod: Json) -> Any:
        """A profile that fits what was asked."""
        engine = pod["spec"]["containers"][0]
        asked = json.loads(next(e["value"] for e in engine["env"] if e["name"] == names.REQUEST_VARIABLE))
        most, seqs = asked["speculation"]["maxTokens"], asked["engine"]["maxNumSeqs"]
        return profile(asked["key"], rows=((1, 16, most), (17, seqs, 1)), static_k=1, at=self.server.now)

    def _job_of(self, pod: Json) -> str:
        return next(j["metadata"]["name"] for j in self.server.all("Job") if j["metadata"]["uid"] == _owner(pod))

    def time_passes(self, pick: Picker) -> None:
        self.world.pass_time(pick([10, 60, 300, 700, 4000]))

    # People.

    def edit(self, pick: Picker) -> None:
        what, values = pick(
            [
                ("engine.image", ["vllm/vllm-openai:v0.33.0", "vllm/vllm-openai:v0.32.0"]),
                ("engine.args", [[], ["--gpu-memory-utilization=0.8"]]),
                ("speculation.maxTokens", [4, 2]),
                ("speculation.beforeProfile", ["Static", "Off", "Wait"]),
                ("podTemplate", [{}, {"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}}]),
                (
                    "podTemplate",
                    [{}, {"spec": {"containers": [{"name": "engine", "env": [{"name": "A", "value": "1"}]}]}}],
                ),
                ("accelerators", [{}, {"allowShared": True}, {"nodeSelector": {"pool": "a"}}]),
                ("rollout", [{}, {"maxSurge": 1}, {"maxSurge": 1, "maxUnavailable": 0}, {"maxUnavailable": 2}]),
            ]
        )
        self._edit(pick, {f"spec.{what}": pick(values)})

    def scale(self, pick: Picker) -> None:
        self._edit(pick, {"spec.replicas": pick([0, 1, 2, 3, 4, 6, 8])})

    def break_spec(self, pick: Picker) -> None:
        """A spec that only the operator finds wrong, until somebody edits it again."""
        self._edit(pick, {"spec.engine.args": ["--max-num-seqs=7"]})

    def reprofile(self, pick: Picker) -> None:
        self._number += 1
        self._edit(pick, {"metadata.annotations": {names.REPROFILE: str(self._number)}})

    def make_or_delete(self, pick: Picker) -> None:
        name = pick(SERVINGS)
        if self.server.get("SpeculativeServing", name) is None:
            self.server.put(edited(SERVING, {"metadata": {"name": name, "namespace": "team"}}))
        elif name != "chat" or pick([True, False, False]):
            self.server.remove("SpeculativeServing", name)

    def _edit(self, pick: Picker, edits: dict[str, Any]) -> None:
        if self.world.servings:
            name = pick(self.world.servings)
            self.server.put(edited(self.named("SpeculativeServing", name), edits))

    # Nodes: one, some or all.

    def _some(self, pick: Picker) -> list[Json]:
        nodes = self.server.all("Node")
        if not nodes:
            return []
        which = pick(["one", "one", "type", "all"])
        first = pick(_names(nodes))
        if which == "all":
            return nodes
        product = _product(self.named("Node", first))
        return [n for n in nodes if n["metadata"]["name"] == first or (which == "type" and _product(n) == product)]

    def cordon(self, pick: Picker) -> None:
        for each in self._some(pick):
            self.server.put(with_spec(each, unschedulable=True))

    def node_readiness(self, pick: Picker) -> None:
        for each in self._some(pick):
            self._set_ready(each, pick([True, False]))

    def _set_ready(self, each: Json, ready: bool) -> None:
        status = "True" if ready else "Unknown"
        self.server.put(with_condition(each, "Ready", status, format_time(self.server.now)))
        self.controllers.node_lifecycle(each["metadata"]["name"])

    def devices(self, pick: Picker) -> None:
        """A device plugin ends, or is back with all devices or some; the node may tell of none at all meanwhile."""
        for each in self._some(pick):
            count = each["metadata"]["annotations"]["devices"]
            allocatable = pick(["0", "1", count])
            told = {"allocatable": {DEVICE: allocatable}, "capacity": {DEVICE: pick([count, count, allocatable])}}
            self.server.put(with_status(each, **told))

    def labels(self, pick: Picker) -> None:
        """Feature discovery takes its labels away."""
        for each in self._some(pick):
            self.server.put(with_meta(each, labels={k: v for k, v in labels_of(each).items() if "/" not in k}))

    def relabel(self, pick: Picker) -> None:
        for each in self._some(pick)[:2]:
            self._name(each, pick(PRODUCTS), pick([{}, {}, {f"{DEVICE}.sharing-strategy": "time-slicing"}]))

    def _name(self, each: Json, product: str, more: dict[str, str]) -> None:
        kept = {k: v for k, v in labels_of(each).items() if "/" not in k}
        self.server.put(with_meta(each, labels={**kept, f"{DEVICE}.product": product, **more}))

    def node_comes(self, pick: Picker) -> None:
        if len(self.server.all("Node")) < 6:
            self.add_node(pick(PRODUCTS), pick([1, 2, 4]))

    def add_node(self, product: str, devices: int) -> None:
        self._number += 1
        made = node(f"n{self._number}", product, devices, labels={"pool": "ab"[self._number % 2]})
        told = {"allocatable": {DEVICE: str(devices)}, "capacity": {DEVICE: str(devices)}}
        self.server.put(with_status(with_meta(made, annotations={"devices": str(devices), "product": product}), **told))

    def node_goes(self, pick: Picker) -> None:
        for each in self._some(pick):
            self.server.remove("Node", each["metadata"]["name"])
            self.controllers.node_lifecycle(each["metadata"]["name"])

    def drain(self, pick: Picker) -> None:
        """Pods end on nodes that take none, or whose kubelet is silent."""
        for each in self.server.all("Node"):
            if each["spec"].get("unschedulable") or condition(each, "Ready") != "True":
                self.controllers.evict(each["metadata"]["name"])

    def nodes_heal(self, pick: Picker) -> None:
        for each in self._some(pick):
            self._heal(each)

    def _heal(self, each: Json) -> None:
        notes = each["metadata"]["annotations"]
        devices = {"allocatable": {DEVICE: notes["devices"]}, "capacity": {DEVICE: notes["devices"]}}
        whole = with_spec(with_status(each, **devices), unschedulable=False)
        self._name(whole, notes["product"], {})
        self._set_ready(self.named("Node", each["metadata"]["name"]), True)

    # Other writers.

    def edit_child(self, pick: Picker) -> None:
        """Somebody sets another image of a Deployment, or another selector of the Service."""
        if not (children := self.server.all("Deployment") + self.server.all("Service")):
            return
        child = pick([(c["kind"], c["metadata"]["name"]) for c in children])
        obj = self.named(*child)
        if child[0] == "Service":
            self.server.put(with_spec(obj, selector={"app": "other"}), "kubectl-edit")
            return
        template = obj["spec"]["template"]
        container = {**template["spec"]["containers"][0], "image": "somebody/engine:other"}
        changed = {**template, "spec": {**template["spec"], "containers": [container]}}
        self.watch.foreign.add(self.controllers.hashes.of(changed))
        self.server.put(with_spec(obj, template=changed), "kubectl-edit")

    def scale_child(self, pick: Picker) -> None:
        if children := _names(self.server.all("Deployment")):
            obj = self.named("Deployment", pick(children))
            self.server.put(with_spec(obj, replicas=pick([0, 1, 5])), "kubectl", subresource="scale")

    def delete_child(self, pick: Picker) -> None:
        kinds = ("Deployment", "Service", "Job", "ConfigMap", "Pod")
        if children := [(k, n) for k in kinds for n in _names(self.server.all(k)) if n != "prompts"]:
            self.server.remove(*pick(children))

    def orphan(self, pick: Picker) -> None:
        kinds = ("Deployment", "Service", "Job")
        if children := [(k, n) for k in kinds for n in _names(self.server.all(k))]:
            self.controllers.orphan(*pick(children))

    def foreign_map(self, pick: Picker) -> None:
        """A ConfigMap with our labels that is no profile."""
        self._number += 1
        keys = [labels_of(j)[names.PROFILE_KEY] for j in self.server.all("Job")]
        labels = {names.ROLE: names.ROLE_PROFILE, names.PROFILE_KEY: pick(["other", *keys])}
        meta = {"name": f"foreign-{self._number % 3}", "namespace": "team", "labels": labels}
        data = pick([{}, {names.PROFILE_JSON: "{"}, {names.PROFILE_JSON: '{"schemaVersion": 1}'}])
        self.server.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})

    # The end.

    def ends(self) -> None:
        """Inputs stop: all comes to rest where it is, and then, with all nodes well, everything serves.

        Raises:
            BrokenError: it does not.
        """
        self._refused.clear()
        self._crash_in = 0
        self.rest()
        self._all_well()
        self.rest()
        self._serve()

    def rest(self) -> None:
        """Until nothing is written for longer than any time that the operator waits for."""
        writes, quiet = self.world.client.writes, 0
        for _ in range(400):
            before = len(writes)
            self.all_goes_well()
            quiet = 0 if len(writes) > before else quiet + 1
            if quiet > 12:
                break
            self.world.pass_time([20, 20, 20, 60, 60, 700, 700, 700, 4000, 40_000, 90_000, 20, 20][quiet])
        else:
            raise BrokenError(f"rest: still writing: {writes[-8:]}")
        for name in _names(self.server.all("Job")):
            job = self.named("Job", name)
            at = self.watch.results.get(job["metadata"]["uid"])
            waited_for = job["metadata"].get("ownerReferences")  # else nobody knows whose it is
            if at and waited_for and at not in self.watch.stored and self.watch.seen_result(job):
                raise BrokenError(f"result: what Job {name} measured was never stored")

    def all_goes_well(self) -> None:
        """Controllers, kubelets and Jobs do what they should, then the operator looks at what is there now."""
        for _ in range(3):
            self.world.run_controllers()
        for pod in self._job_pods():
            if "nodeName" in pod["spec"] and pod["status"]["phase"] in ("Pending", "Running"):
                self._end(pod, "good")
        for job in _names(self.server.all("Job")):
            self.controllers.job(job)
        for kind in self.world.feeds:
            self.world.relist(kind)
        for name in self.world.servings:
            self.world.round(name)

    def _all_well(self) -> None:
        for each in self.server.all("Node"):
            self._heal(each)
        for product in PRODUCTS[:2]:
            self.add_node(product, 20)
            self.add_node(product, 20)
        for name in self.world.servings:
            serving = self.named("SpeculativeServing", name)
            self.server.put(edited(serving, {"spec.engine.args": [], "spec.accelerators": {}}))

    def _serve(self) -> None:
        for name in self.world.servings:
            serving = self.named("SpeculativeServing", name)
            ready = sum(map(is_ready, self.world.pods_of(name)))
            wanted = serving["spec"]["replicas"]
            told = next(c for c in serving["status"]["conditions"] if c["type"] == "Ready")
            if ready != wanted or told["status"] != "True":
                raise BrokenError(f"end: {name}: {ready} of {wanted} ready; {told['reason']}: {told['message']}")
            for deployment in self.world.deployments_of(name):
                served = deployment["metadata"]["annotations"][names.PROFILE]
                if wanted and self.server.get("ConfigMap", served) is None:
                    raise BrokenError(f"end: {deployment['metadata']['name']} serves {served}, nothing measured")

    # What there is.

    def named(self, kind: str, name: str) -> Json:
        found = self.server.get(kind, name)
        assert found is not None, f"no {kind} {name}"
        return found

    def _serving_pods(self) -> list[Json]:
        return [p for name in SERVINGS for p in self.world.pods_of(name)]

    def _job_pods(self) -> list[Json]:
        return [p for p in self.server.all("Pod") if labels_of(p).get(names.ROLE) == names.ROLE_PROFILING]


def _names(objects: Sequence[Json]) -> list[str]:
    return [o["metadata"]["name"] for o in objects]


def _owner(pod: Json) -> str:
    return str(pod["metadata"]["ownerReferences"][0]["uid"])


def _product(obj: Json) -> str:
    return labels_of(obj).get(f"{DEVICE}.product", "")
