"""Whatever call fails, and whether or not it was carried out: repeating the round comes to the same end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.builders import NAMESPACE, SERVING, edited, node, profile, template
from tests.memory import World

from specserve_operator.api.records import Json, Ref
from specserve_operator.store.client import ApiError, Resource
from specserve_profiler.contract.profile import Failure

Story = Callable[[World], Awaitable[None]]


async def fresh(w: World) -> None:
    """Nothing is there yet."""


async def measured(w: World) -> None:
    """A Job has just succeeded."""
    await w.settle()
    w.finish(w.jobs[0], profile(w.key_of(w.jobs[0])))


async def failed_long_ago(w: World) -> None:
    """A Job failed, and its pause is over."""
    await w.settle()
    w.finish(w.jobs[0], Failure(reason="EngineFailed", message="no."))
    await w.settle()
    w.pass_time(601)


async def edited_while_measuring(w: World) -> None:
    """An edit asks for another key; the old Job is useless."""
    await w.settle()
    w.start_pod(w.jobs[0])
    w.edit({"spec.engine.args": ["--enforce-eager"], "spec.replicas": 2})


async def second_serving(w: World) -> None:
    """Another serving waits for the same Job."""
    w.api.put(edited(SERVING, {"metadata.name": "other", "metadata.uid": "uid-other"}))
    await w.settle("other")


async def scheduling(w: World) -> None:
    """The Deployment is to be rendered anew."""
    await measured(w)
    await w.settle()
    w.roll_out()
    await w.settle()
    w.edit(template({"tolerations": [{"operator": "Exists"}]}))


async def accelerator_gone(w: World) -> None:
    """The grace of a variant is over."""
    await measured(w)
    await w.settle()
    w.remove("Node", "n1")
    await w.settle()
    w.pass_time(601)


def end(w: World) -> dict[str, object]:
    """What there is, without what differs from run to run."""
    return {
        **{kind: w.api.names(kind) for kind in ("Job", "ConfigMap", "Service", "Deployment")},
        "specs": [w.deployment(name)["spec"] for name in w.api.names("Deployment")],
        "owners": [sorted(o["uid"] for o in _meta(w, job)["ownerReferences"]) for job in w.jobs],
        "status": w.status(),
    }


def _meta(w: World, job: str) -> dict[str, list[dict[str, str]]]:
    found = w.api.of("Job", job)
    assert found is not None
    meta: dict[str, list[dict[str, str]]] = found["metadata"]
    return meta


async def told(story: Story) -> World:
    w = World(SERVING, node("n1", devices=2))
    await story(w)
    w.api.calls = 0
    return w


STORIES = [
    fresh,
    measured,
    failed_long_ago,
    edited_while_measuring,
    second_serving,
    scheduling,
    accelerator_gone,
]


@pytest.mark.parametrize("lost", [False, True], ids=["refused", "answer lost"])
@pytest.mark.parametrize("story", STORIES, ids=lambda s: s.__name__)
async def test_a_failure_at_any_call_changes_nothing_about_the_end(story: Story, lost: bool) -> None:
    smooth = await told(story)
    await smooth.settle()
    calls = smooth.api.calls
    jobs = [write for write in smooth.api.writes if write.startswith("POST Job")]
    assert calls > 1

    for number in range(1, calls + 1):
        w = await told(story)
        w.api.fail_at, w.api.fail_after = number, lost
        for _ in range(calls):
            try:
                await w.settle()
            except ApiError:
                continue
            break

        assert end(w) == end(smooth), f"call {number} failed"
        again = [write for write in w.api.writes if write.startswith("POST Job")]
        assert again == jobs, f"call {number} failed, and another Job was made"


async def test_what_is_deleted_is_the_very_object_that_was_looked_at() -> None:
    """Others may have made one of the same name meanwhile."""
    w = World(SERVING, node("n1"), node("n2", product="NVIDIA-A100-SXM4-80GB"))
    await w.settle()
    w.roll_out()
    w.remove("Node", "n1")
    await w.settle()
    w.pass_time(601)
    await w.round()  # the other grows into its place
    w.roll_out()

    plan = await w.plan()

    (child, uid), *others = plan.delete
    found = w.api.of(child.kind, child.name)
    assert found is not None
    assert (child.kind, uid, others) == ("Deployment", found["metadata"]["uid"], [])


async def test_a_store_that_is_behind_makes_no_second_job() -> None:
    w = World(SERVING, node("n1"))
    await w.round()
    (job,) = w.jobs

    w.store.jobs._set(Ref(NAMESPACE, job), None)  # as if its event had not come yet
    await w.reconciler.reconcile(Ref(NAMESPACE, "chat"))

    assert w.api.writes.count(f"POST Job {job}") == 1


async def test_a_store_that_is_behind_does_not_measure_what_is_stored() -> None:
    w = World(SERVING, node("n1"))
    await w.settle()
    (job,) = w.jobs
    w.finish(job, profile(w.key_of(job)))
    await w.settle()
    w.remove("Job", job)

    w.sync()
    w.store.config_maps._set(Ref(NAMESPACE, w.profiles()[0]), None)
    await w.reconciler.reconcile(Ref(NAMESPACE, "chat"))

    assert w.jobs == []


async def test_two_workers_at_once_make_one_job() -> None:
    w = World(SERVING, node("n1"))
    w.api.put(edited(SERVING, {"metadata.name": "other", "metadata.uid": "uid-other"}))
    w.sync()

    await asyncio.gather(*(w.reconciler.reconcile(Ref(NAMESPACE, name)) for name in ("chat", "other")))

    assert len(w.jobs) == 1


async def test_a_status_that_somebody_else_wrote_meanwhile_is_not_overwritten() -> None:
    w = World(SERVING, node("n1"))
    await w.settle()
    w.start_pod(w.jobs[0])
    w.sync()
    get = w.api.get

    async def racing(*args: object) -> object:
        found = await get(*args)  # type: ignore[arg-type]
        if found and found["kind"] == "SpeculativeServing":
            w.edit({"metadata.labels": {"by": "somebody"}})
        return found

    w.api.get = racing  # type: ignore[method-assign, assignment]
    with pytest.raises(ApiError, match="409 Conflict"):
        await w.reconciler.reconcile(Ref(NAMESPACE, "chat"))


@pytest.mark.parametrize("lost", [False, True], ids=["labelled meanwhile", "answer lost"])
async def test_a_status_in_conflict_is_put_on_top_of_what_there_is(lost: bool) -> None:
    w = World(SERVING, node("n1"))
    await w.settle()
    w.start_pod(w.jobs[0])
    w.sync()
    put = w.api.replace_status

    async def conflict(resource: Resource, obj: Json) -> Json:
        w.api.replace_status = put  # type: ignore[method-assign]
        if lost:
            await put(resource, obj)
        else:
            w.edit({"metadata.labels": {"by": "somebody"}})
        return await put(resource, obj)

    w.api.replace_status = conflict  # type: ignore[method-assign]
    await w.reconciler.reconcile(Ref(NAMESPACE, "chat"))

    assert w.condition("Profiled")[1] == "Profiling"
    before = list(w.api.writes)
    await w.settle()
    assert w.api.writes == before


async def test_events_that_cannot_be_posted_do_not_keep_from_work() -> None:
    w = World(SERVING, node("n1"))
    create = w.api.create

    async def no_events(resource: object, obj: dict[str, object], **options: bool) -> object:
        if obj["kind"] == "Event":
            raise ApiError(403, "Forbidden", "no")
        return await create(resource, obj, **options)  # type: ignore[arg-type]

    w.api.create = no_events  # type: ignore[method-assign, assignment]
    await w.settle()

    assert len(w.jobs) == 1
    assert w.events() == []


async def test_a_template_that_an_apply_cannot_explain_is_told_in_the_words_of_a_strict_post() -> None:
    w = World(SERVING, node("n1"))
    w.api.refuse["APPLY Deployment"] = ApiError(500, "InternalError", "no reason given")
    w.api.refuse["POST Deployment"] = ApiError(400, "BadRequest", 'unknown field "spec.template.spec.tolerashuns"')

    with pytest.raises(ApiError, match="tolerashuns"):
        await w.round()

    assert w.condition("Accepted")[2].startswith('unknown field "spec.template.spec.tolerashuns"')
    del w.api.refuse["POST Deployment"]  # where that has none either, the first words stand
    with pytest.raises(ApiError, match="no reason given"):
        await w.round()


async def test_what_is_well_is_applied_without_a_dry_run() -> None:
    w = World(SERVING, node("n1"))
    create, dry_runs = w.api.create, []

    async def recorded(resource: Resource, obj: Json, *, dry_run: bool = False) -> Json:
        dry_runs.extend([obj["kind"]] if dry_run else [])
        return await create(resource, obj, dry_run=dry_run)

    w.api.create = recorded  # type: ignore[method-assign]
    await w.settle()

    assert {"APPLY Service chat", f"APPLY Deployment {w.api.names('Deployment')[0]}"} <= set(w.api.writes)
    assert dry_runs == []


async def test_a_child_that_is_refused_keeps_no_other_from_its_due() -> None:
    """A webhook refuses the Service: the Job starts all the same, and the status says what failed."""
    w = World(SERVING, node("n1"))
    w.api.refuse["Service"] = ApiError(500, "InternalError", 'failed calling webhook "policy.example"')

    with pytest.raises(ApiError, match="failed calling webhook"):
        await w.round()

    assert len(w.jobs) == 1
    assert w.condition("Progressing") == (
        "True", "Retrying", 'apply Service chat: failed calling webhook "policy.example"',
    )  # fmt: skip
    assert w.condition("Accepted")[0] == "True"

    w.api.refuse.clear()
    await w.settle()
    assert w.api.names("Service") == ["chat"]
    assert w.condition("Progressing")[1] != "Retrying"


async def test_with_a_refused_child_replicas_still_follow() -> None:
    w = World(SERVING, node("n1"))
    await scheduling(w)
    w.api.refuse["APPLY Deployment"] = ApiError(422, "Invalid", "spec.template: tolerations: Invalid value")
    w.edit({"spec.replicas": 1})

    for _ in range(3):
        with pytest.raises(ApiError):
            await w.round()

    assert w.condition("Accepted")[:2] == ("False", "RefusedByCluster")
    assert "tolerations: Invalid value" in w.condition("Accepted")[2]
    assert list(w.replicas().values()) == [1]


async def test_a_job_whose_package_cannot_be_made_is_not_started() -> None:
    w = World(SERVING, node("n1"))
    w.api.refuse["POST ConfigMap"] = ApiError(403, "Forbidden", "exceeded quota: config-maps")

    with pytest.raises(ApiError, match="exceeded quota"):
        await w.round()

    assert w.jobs == []
    assert w.condition("Accepted")[:2] == ("False", "RefusedByCluster")
