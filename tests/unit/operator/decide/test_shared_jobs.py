"""Who waits for a Job: it ends with the last one, and a resource that is made again finds it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import A100, SERVING, edited, node, profile
from tests.memory import World

from specserve_operator.api.records import Ref
from specserve_operator.store.client import SERVINGS, ApiError

OTHER_ENGINE = {"spec.engine.args": ["--enforce-eager"]}
OTHER = {"metadata.name": "other", "metadata.uid": "uid-other"}


@pytest.fixture
async def w() -> World:
    """Two servings that share a Job which measures; nothing serves meanwhile."""
    wait = {"spec.speculation.beforeProfile": "Wait"}
    made = World(edited(SERVING, wait), edited(SERVING, {**wait, **OTHER}), node("n1"))
    await made.settle("chat", "other")
    made.start_pod(made.jobs[0], ready=True)
    return made


def owners(w: World, job: str) -> list[str]:
    found = w.api.of("Job", job)
    assert found is not None
    return sorted(o["uid"] for o in found["metadata"]["ownerReferences"])


async def test_a_shared_job_ends_when_the_last_one_asks_for_something_else(w: World) -> None:
    (job,) = w.jobs
    assert owners(w, job) == ["uid-chat", "uid-other"]

    w.edit(OTHER_ENGINE, "chat")
    await w.settle("chat", "other")
    assert owners(w, job) == ["uid-other"]

    w.edit(OTHER_ENGINE, "other")
    await w.settle("chat", "other")
    (left,) = w.jobs
    assert left != job
    assert owners(w, left) == ["uid-chat", "uid-other"]


@pytest.mark.parametrize("first", ["chat", "other"], ids=["its maker", "who came later"])
async def test_an_owner_that_is_gone_waits_no_more(w: World, first: str) -> None:
    (job,) = w.jobs
    second = "other" if first == "chat" else "chat"
    w.remove("SpeculativeServing", first)

    w.edit(OTHER_ENGINE, second)
    await w.settle(second)

    assert job not in w.jobs


async def test_an_owner_that_was_made_again_under_its_name_is_another_one(w: World) -> None:
    (job,) = w.jobs
    w.edit({"metadata.uid": "uid-made-again", **OTHER_ENGINE}, "chat")
    w.edit(OTHER_ENGINE, "other")

    await w.settle("chat", "other")

    assert job not in w.jobs


@pytest.mark.parametrize("name", ["chat", "other"])
async def test_labels_that_flap_take_no_owner_from_a_job_that_runs(w: World, name: str) -> None:
    (job,) = w.jobs

    w.label("n1", "nvidia.com/gpu.product", A100)
    await w.settle("chat", "other")

    assert owners(w, job) == ["uid-chat", "uid-other"]


async def test_prompts_that_cannot_be_read_for_a_moment_end_no_measurement(w: World) -> None:
    (job,) = w.jobs
    w.remove("ConfigMap", "prompts")

    await w.settle("chat", "other")

    assert owners(w, job) == ["uid-chat", "uid-other"]


async def test_two_that_give_a_job_up_at_once_end_it(w: World) -> None:
    """Each sees the other wait; the second finds no owner left."""
    (job,) = w.jobs
    for name in ("chat", "other"):
        w.edit(OTHER_ENGINE, name)
    get = w.api.get

    async def racing(resource: Any, namespace: str, name: str) -> Any:
        found = await get(resource, namespace, name)
        if resource is SERVINGS and name == "other" and job in w.jobs and len(owners(w, job)) == 2:
            w.api.get = get  # type: ignore[method-assign]
            obj = w.api.of("Job", job)
            assert obj is not None
            mine = [o for o in obj["metadata"]["ownerReferences"] if o["uid"] == "uid-chat"]
            w.api.put(edited(obj, {"metadata.ownerReferences": mine}))
        return found

    w.sync()
    w.api.get = racing  # type: ignore[method-assign, assignment]
    await w.reconciler.reconcile(Ref("team", "chat"))

    assert job not in w.jobs


async def test_a_job_that_somebody_begins_to_wait_for_meanwhile_is_not_ended(w: World) -> None:
    (job,) = w.jobs
    w.remove("SpeculativeServing", "other")
    w.edit(OTHER_ENGINE, "chat")
    w.sync()
    delete = w.api.delete

    async def late(*args: Any) -> None:
        obj = w.api.of("Job", job)
        assert obj is not None
        newcomer = {**obj["metadata"]["ownerReferences"][0], "name": "new", "uid": "uid-new"}
        w.api.put(edited(obj, {"metadata.ownerReferences": [*obj["metadata"]["ownerReferences"], newcomer]}))
        await delete(*args)

    w.api.delete = late  # type: ignore[method-assign, assignment]
    with pytest.raises(ApiError, match="Conflict"):
        await w.reconciler.reconcile(Ref("team", "chat"))

    assert job in w.jobs


async def test_a_resource_made_again_takes_up_its_running_measurement() -> None:
    w = World(SERVING, node("n1"))
    await w.settle()
    (job,) = w.jobs
    w.start_pod(job, ready=True)
    await w.settle()
    pods = {name: w.deployment(name)["spec"]["template"] for name in w.replicas()}

    w.edit({"metadata.uid": "uid-made-again"})  # its children were left as orphans, or are not yet collected
    w.restart_operator()
    await w.settle()

    assert w.jobs == [job]
    assert "uid-made-again" in owners(w, job)
    assert {name: w.deployment(name)["spec"]["template"] for name in w.replicas()} == pods
    w.finish(job, profile(w.key_of(job)))
    await w.settle()
    assert w.condition("Profiled")[:2] == ("True", "AllProfiled")
