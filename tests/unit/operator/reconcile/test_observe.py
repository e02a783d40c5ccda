"""What a snapshot holds, and whom a change wakes."""

from __future__ import annotations

from typing import Any

from tests.builders import A100, L4, NAMESPACE, SERVING, edited, node, profile
from tests.memory import World

from specserve_operator.api import names
from specserve_operator.api.records import Json, Ref
from specserve_operator.manifests import request
from specserve_operator.reconcile.queue import Cause, WorkQueue


def serving(name: str, **edits: Any) -> Json:
    meta = {"metadata.name": name, "metadata.uid": f"uid-{name}"}
    return edited(SERVING, {**meta, **{f"spec.{path.replace('__', '.')}": value for path, value in edits.items()}})


class Watched(World):
    """Two servings of different models that have been looked at, and who is woken by what happens."""

    async def settled(self) -> None:
        await self.settle("chat", "code")
        self.wakes: set[str] = set()
        queue: WorkQueue = self.reconciler._queue
        queue.wake = lambda ref, cause=Cause.CHILD: self.wakes.add(ref.name)  # type: ignore[method-assign]

    def woken(self) -> set[str]:
        """By what has happened since the last call."""
        self.sync()
        woken, self.wakes = self.wakes, set()
        return woken


async def two() -> Watched:
    w = Watched(serving("chat"), serving("code", model__name="org/coder"), node("n1"))
    await w.settled()
    return w


def job_of(w: World, name: str) -> str:
    key = w.status(name).accelerators[0].profile.key
    return next(job for job in w.jobs if w.key_of(job) == key)


async def test_a_job_and_its_pods_wake_those_who_want_its_key() -> None:
    w = await two()

    w.start_pod(job_of(w, "chat"))
    assert w.woken() == {"chat"}
    w.finish(job_of(w, "code"), profile(w.key_of(job_of(w, "code"))))
    assert w.woken() == {"code"}


async def test_a_profile_wakes_those_who_want_its_key() -> None:
    w = await two()
    found = await w.snapshot("chat")
    key = w.key_of(job_of(w, "chat"))
    inputs = request.key_inputs(found.serving.spec, found.fleet.found[0].accelerator, None, found.prompts.digest)

    w.import_profile(profile(key), inputs)

    assert w.woken() == {"chat"}


async def test_a_profile_of_a_key_that_nobody_wants_wakes_nobody_until_one_wants_it() -> None:
    w = await two()
    w.api.put(serving("new", model__name="org/other"))
    plan = await w.plan("new")
    ((job, _),) = ((job.key, job.manifest) for job in plan.measure)
    w.remove("SpeculativeServing", "new")
    w.reconciler.observer.forget(Ref(NAMESPACE, "new"))
    w.woken()
    claim = {"name": "brought", "namespace": NAMESPACE, "labels": {names.ROLE: "profile", names.PROFILE_KEY: job}}
    w.api.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": claim, "data": {"profile.json": "{}"}})

    assert w.woken() == set()

    w.api.put(serving("new", model__name="org/other"))
    await w.round("new")  # as its own creation wakes it
    assert "ConfigMap brought is no profile" in w.condition("Profiled", "new")[2]


async def test_a_profile_without_a_key_concerns_all_of_its_namespace() -> None:
    w = await two()
    claim = {"name": "brought", "namespace": NAMESPACE, "labels": {names.ROLE: "profile"}}

    w.api.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": claim, "data": {}})

    assert w.woken() == {"chat", "code"}


async def test_a_profile_that_serves_wakes_its_serving_though_another_key_is_wanted() -> None:
    w = await two()
    w.finish(job_of(w, "chat"), profile(w.key_of(job_of(w, "chat"))))
    await w.settle("chat", "code")
    w.roll_out()
    w.edit({"spec.engine.maxNumSeqs": 32})
    await w.settle("chat", "code")
    w.woken()

    w.remove("ConfigMap", w.profiles()[0])

    assert w.woken() == {"chat"}


async def test_children_wake_their_serving_alone() -> None:
    w = await two()

    w.roll_out()
    assert w.woken() == {"chat", "code"}
    w.ready(f"chat-{w.status('chat').accelerators[0].name}", 1)
    assert w.woken() == {"chat"}


async def test_a_snapshot_has_what_concerns_its_serving_and_nothing_else() -> None:
    w = await two()
    w.start_pod(job_of(w, "chat"))
    w.start_pod(job_of(w, "code"))

    seen = await w.snapshot("chat")

    assert [job.name for job in seen.jobs] == [job_of(w, "chat")]
    assert [pod.name for pod in seen.pods] == [f"{job_of(w, 'chat')}-pod"]
    assert {d.serving for d in seen.deployments} == {s.serving for s in seen.services} == {"chat"}
    assert [c.role for c in seen.config_maps] == [names.ROLE_PACKAGE]


async def test_a_job_that_nobody_wants_any_more_is_seen_by_its_owner() -> None:
    w = await two()
    old = job_of(w, "chat")

    w.edit({"spec.engine.maxNumSeqs": 32})

    assert old in [job.name for job in (await w.snapshot("chat")).jobs]


async def test_a_cordon_and_nodes_with_cpus_only_rewrite_no_status() -> None:
    w = World(SERVING, node("n1"), node("n2"), node("n3", A100), node("cpus", "", 0))
    await w.settle()
    before = w.status()

    w.api.put(node("n2", L4, cordoned=True))
    w.api.put(node("more-cpus", "", 0))
    w.remove("Node", "cpus")
    written = len(w.api.writes)
    await w.settle()

    assert w.api.writes[written:] == []
    assert w.status() == before


async def test_with_no_accelerator_at_all_nodes_that_come_and_go_are_not_told_one_by_one() -> None:
    w = World(SERVING, node("a", "", 0), node("b", "", 0))
    await w.settle()
    assert w.condition("AcceleratorsFound")[2] == (
        "no selected node can serve with nvidia.com/gpu: node a and others has fewer than 1 nvidia.com/gpu"
    )
    written = len(w.api.writes)

    w.api.put(node("c", "", 0))
    await w.settle()

    assert w.api.writes[written:] == []
