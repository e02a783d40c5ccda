"""Carries a plan out, step by step; each step may be repeated without harm."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterator, MutableMapping
from typing import Any, NamedTuple

from specserve_operator.api import names
from specserve_operator.api.records import Job, Json, content_of, ref_of
from specserve_operator.api.serving import ServingStatus, SpeculativeServing
from specserve_operator.decide.model import Child, NewJob, Plan, Snapshot
from specserve_operator.decide.profiles import stored_profiles
from specserve_operator.manifests.common import owner_reference
from specserve_operator.store.client import (
    CONFIG_MAP_HEADS,
    DEPLOYMENTS,
    JOBS,
    RESOURCES,
    SERVINGS,
    ApiError,
    Client,
)
from specserve_operator.store.mirror import read_config_map

log = logging.getLogger(__name__)


class Hindrance(NamedTuple):
    """A step that failed, and what it was to do."""

    what: str
    error: ApiError


async def carry_out(
    client: Client, snapshot: Snapshot, plan: Plan, applied: MutableMapping[Child, int]
) -> list[Hindrance]:
    """Create, apply, scale, measure, adopt, release, delete: all of the plan but its status and its events.

    Each step by itself: one that is refused keeps none from being done but those that need it. Returns what failed; the
    next round goes on from there.

    Raises:
        ApiError: the API server cannot be reached.
    """
    failed: list[Hindrance] = []

    async def attempt(what: str, step: Awaitable[Any]) -> bool:
        try:
            await step
        except ApiError as error:
            if not error.status:
                raise
            failed.append(Hindrance(what, error))
            return False
        return True

    space = snapshot.serving.namespace
    created = [await attempt(_named(obj), _create(client, obj)) for obj in plan.create]
    for obj in plan.apply:
        await attempt(f"apply {_named(obj)}", _apply_child(client, snapshot, obj, applied))
    for name, replicas in plan.scale:
        await attempt(f"scale Deployment {name}", _scale(client, space, name, replicas, applied))
    # A Job stays until its result is stored, and the next attempt is there.
    made: list[Json] = []
    measured = [await attempt(_named(job.manifest), _measure(client, space, job, made)) for job in plan.measure]
    for what, step in _claims(client, snapshot.serving, plan):
        await attempt(what, step)
    for child, uid in plan.delete:
        if all(created + measured) or child.kind != "Job":
            await attempt(f"delete {child.kind} {child.name}", _delete(client, space, child, uid, applied))
    for obj in made:
        await attempt(f"clear up after {_named(obj)}", _delete_older_prompts(client, obj))
    return failed


def _claims(client: Client, serving: SpeculativeServing, plan: Plan) -> Iterator[tuple[str, Awaitable[None]]]:
    """What changes about who waits for which Job."""
    for job in plan.adopt:
        yield f"adopt Job {job.name}", _adopt(client, serving, job.name, job.uid)
    for job in plan.release:
        yield f"release Job {job.name}", _release(client, serving, job)


def _named(obj: Json) -> str:
    return f"{obj['kind']} {obj['metadata']['name']}"


async def _apply_child(client: Client, snapshot: Snapshot, obj: Json, applied: MutableMapping[Child, int]) -> None:
    log.info("apply %s in %s", _named(obj), snapshot.serving.namespace)
    applied[Child(obj["kind"], obj["metadata"]["name"])] = _generation(await _apply(client, snapshot, obj))


async def _scale(client: Client, namespace: str, name: str, replicas: int, applied: MutableMapping[Child, int]) -> None:
    log.info("scale Deployment %s/%s to %d", namespace, name, replicas)
    answer = await client.patch(DEPLOYMENTS, namespace, name, {"spec": {"replicas": replicas}})
    applied[Child("Deployment", name)] = _generation(answer)


async def _delete(client: Client, namespace: str, child: Child, uid: str, applied: MutableMapping[Child, int]) -> None:
    log.info("delete %s %s/%s", child.kind, namespace, child.name)
    applied.pop(child, None)
    await client.delete(RESOURCES[child.kind], namespace, child.name, uid)


def _generation(obj: Json) -> int:
    """What tells that somebody else edited a child: its generation, or its version where it has none."""
    meta = obj["metadata"]
    return int(meta.get("generation") or meta["resourceVersion"])


async def _apply(client: Client, snapshot: Snapshot, obj: Json) -> Json:
    resource, meta = RESOURCES[obj["kind"]], obj["metadata"]
    known = {d.name for d in snapshot.deployments} | {s.name for s in snapshot.services}
    if meta["name"] not in known:
        await _refuse_foreign(client, obj)
    try:
        return await client.apply(resource, obj)
    except ApiError as error:
        if error.status in (400, 422, 500):
            await _refuse_in_words(client, obj)
        raise


async def _refuse_in_words(client: Client, obj: Json) -> None:
    """To a bad podTemplate an apply answers 500 without a reason; a strict POST says what is wrong with it.

    Raises:
        ApiError: with the API server's words.
    """
    try:
        await client.create(RESOURCES[obj["kind"]], obj, dry_run=True)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise


async def _refuse_foreign(client: Client, obj: Json) -> None:
    """A forced apply would take over whatever has the name: it must be nobody else's."""
    meta = obj["metadata"]
    found = await client.get(RESOURCES[obj["kind"]], meta["namespace"], meta["name"])
    if found is not None and (found["metadata"].get("labels") or {}).get(names.MANAGED_BY) != names.MANAGER:
        raise _not_ours(obj, "rename it or this resource")


def _not_ours(obj: Json, way_out: str) -> ApiError:
    what = f"{obj['kind']} {obj['metadata']['namespace']}/{obj['metadata']['name']}"
    return ApiError(422, "NotOurs", f"{what} is there already, not made by specserve: {way_out}")


def _is_same(found: Json, obj: Json) -> bool:
    """Whether what has the name of ``obj`` is what we would make: a Job of the same key, a ConfigMap of its content."""
    role = (obj["metadata"].get("labels") or {}).get(names.ROLE, "")
    if obj["kind"] == "Job":
        return Job.read(found).ours
    # Another manager is as good; without the role the store would never see it.
    return (found["metadata"].get("labels") or {}).get(names.ROLE, "") == role and content_of(found) == content_of(obj)


async def _create(client: Client, obj: Json) -> bool:
    """POST; the same object is as good where it is there already. Says whether it was made now.

    Raises:
        ApiError: with reason ``NotOurs`` where something else has its name.
    """
    meta, resource = obj["metadata"], RESOURCES[obj["kind"]]
    try:
        await client.create(resource, obj)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        found = await client.get(resource, meta["namespace"], meta["name"])
        if found is None:  # gone meanwhile: the next round makes it
            raise
        if not _is_same(found, obj):
            raise _not_ours(obj, "delete it") from error
        return False
    log.info("created %s %s/%s", obj["kind"], meta["namespace"], meta["name"])
    return True


async def _measure(client: Client, namespace: str, job: NewJob, made: list[Json]) -> None:
    """Start a Job, unless a live look shows that the store was behind: a second one would cost a GPU-hour.

    ``made`` gets what was made for it to mount.
    """
    found = await client.get(JOBS, namespace, job.manifest["metadata"]["name"])
    if found is not None and not _is_same(found, job.manifest):
        raise _not_ours(job.manifest, "delete it")
    if found is not None:
        return
    page = await client.list_page(CONFIG_MAP_HEADS, namespace, selector=f"{names.PROFILE_KEY}={job.key}")
    fresh = [obj for obj in page.items if obj["metadata"]["name"] not in job.known]
    shelf = stored_profiles([await read_config_map(client, obj) for obj in fresh])
    if any(not job.reprofile or s.reprofile == job.reprofile for s in shelf.valid.get(job.key, ())):
        return
    made += [obj for obj in job.needs if await _create(client, obj)]
    await _create(client, job.manifest)


async def _delete_older_prompts(client: Client, copy: Json) -> None:
    """With a new copy of a ConfigMap's prompts those before it go, but what an unfinished Job mounts."""
    meta = copy["metadata"]
    source, space = meta["labels"].get(names.PROMPTS_OF), meta["namespace"]
    if source is None:
        return
    for found in (await client.list_page(CONFIG_MAP_HEADS, space, f"{names.PROMPTS_OF}={source}")).items:
        older = found["metadata"]
        if older["name"] == meta["name"]:
            continue
        jobs = await client.list_page(JOBS, space, f"{names.PROMPTS}={older['name']}")
        if all(Job.read(job).state != "Active" for job in jobs.items):
            await client.delete(CONFIG_MAP_HEADS, space, older["name"], older["uid"])


async def _adopt(client: Client, serving: SpeculativeServing, name: str, uid: str) -> None:
    """Add an owner: the Job lives as long as anybody waits for it."""
    body = {"metadata": {"uid": uid, "ownerReferences": [owner_reference(serving, controller=False)]}}
    await client.patch(JOBS, serving.namespace, name, body, strategic=True)


async def _release(client: Client, serving: SpeculativeServing, job: Job) -> None:
    """Take an owner away that waits for a Job no more, with the last one that lives the Job too."""
    space = serving.namespace
    found = await client.get(JOBS, space, job.name)
    if found is None or found["metadata"]["uid"] != job.uid:
        return
    owners = found["metadata"].get("ownerReferences") or []
    staying = [o for o in owners if o["uid"] != serving.uid and await _lives(client, space, o)]
    if staying:
        gone = [{"$patch": "delete", "uid": o["uid"]} for o in owners if o not in staying]
        body = {"metadata": {"uid": job.uid, "ownerReferences": gone}}
        found = await client.patch(JOBS, space, job.name, body, strategic=True)
        if found["metadata"].get("ownerReferences"):  # else two gave it up at once
            return
    log.info("delete Job %s/%s: nobody waits for it any more", space, job.name)
    await client.delete(JOBS, space, job.name, job.uid, found["metadata"]["resourceVersion"])


async def _lives(client: Client, namespace: str, owner: Json) -> bool:
    if owner.get("kind") != names.KIND:
        return True
    found = await client.get(SERVINGS, namespace, owner["name"])
    return found is not None and found["metadata"]["uid"] == owner["uid"]


async def write_status(client: Client, obj: Json, before: ServingStatus, after: ServingStatus) -> bool:
    """PUT the status where it changed; says whether it did.

    Where the object changed since it was read, but neither its spec nor its status, it is put once more.

    Args:
        obj: the serving as it was read; its version guards against overwriting another's change.
    """
    if before == after:
        return False
    status = after.model_dump(mode="json", by_alias=True, exclude_none=True)
    try:
        await client.replace_status(SERVINGS, {**obj, "status": status})
    except ApiError as error:
        found = await client.get(SERVINGS, *ref_of(obj)) if error.reason == "Conflict" else None
        if found is None or _edit(found) != _edit(obj):
            raise
        there = found.get("status") or {}
        if there != status:  # else it was put, and the answer lost
            if there != (obj.get("status") or {}):
                raise
            await client.replace_status(SERVINGS, {**found, "status": status})
    return True


def _edit(obj: Json) -> tuple[str, int]:
    return obj["metadata"]["uid"], obj["metadata"].get("generation", 0)
