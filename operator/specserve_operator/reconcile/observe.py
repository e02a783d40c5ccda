"""Builds the one frozen snapshot that a decision sees."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping

from specserve_operator.api.records import Json, Ref
from specserve_operator.api.serving import SpeculativeServing
from specserve_operator.api.settings import Settings
from specserve_operator.decide.model import Child, Prompts, Snapshot
from specserve_operator.store.client import CONFIG_MAPS, Client
from specserve_operator.store.mirror import Store


async def observe(
    client: Client,
    store: Store,
    settings: Settings,
    package: bytes,
    obj: Json,
    applied: Mapping[Child, int],
    now: dt.datetime,
) -> Snapshot:
    """The snapshot for one serving.

    Args:
        obj: the serving, just read from the API server.
        applied: what our own last applies left, see ``Snapshot.applied``.

    Raises:
        pydantic.ValidationError: the stored spec cannot be read.
        ApiError: its prompts could not be asked for.
    """
    serving = SpeculativeServing.read(obj)
    space = serving.namespace
    return Snapshot(
        now=now,
        settings=settings,
        serving=serving,
        package=package,
        nodes=tuple(store.nodes.within("")),
        jobs=tuple(store.jobs.within(space)),
        pods=tuple(store.pods.within(space)),
        config_maps=tuple(store.config_maps.within(space)),
        # A copy made by hand has our labels too, but another name.
        deployments=tuple(
            d
            for d in store.deployments.within(space)
            if d.serving == serving.name and d.name == f"{d.serving}-{d.variant}"
        ),
        services=tuple(s for s in store.services.within(space) if s.serving == serving.name),
        prompts=await _prompts(client, serving),
        applied=dict(applied),
    )


async def _prompts(client: Client, serving: SpeculativeServing) -> Prompts:
    source = serving.spec.profile.workload.source.config_map
    if source is None:
        return Prompts()
    found = await client.get(CONFIG_MAPS, serving.namespace, source.name)
    if found is None:
        return Prompts(problem=f"profile.workload.source: there is no ConfigMap {source.name} in {serving.namespace}")
    text = (found.get("data") or {}).get(source.key)
    if text is None and source.key in (found.get("binaryData") or {}):
        problem = f"key {source.key} of ConfigMap {source.name} is not UTF-8 text: save the prompts as UTF-8"
        return Prompts(problem=f"profile.workload.source: {problem}")
    if text is None:
        keys = ", ".join(sorted(found.get("data") or {})) or "none"
        return Prompts(problem=f"profile.workload.source: ConfigMap {source.name} has no key {source.key}, only {keys}")
    return Prompts(digest=hashlib.sha256(text.encode()).hexdigest()[:16])


def keys_of(ref: Ref, record: object, known: frozenset[Ref]) -> set[Ref]:
    """The servings that a changed record concerns.

    A child with a serving's name concerns that one. A profile or its Job may be shared by any of its namespace, and a
    node concerns all.
    """
    serving = getattr(record, "serving", "")
    if serving:
        return {Ref(ref.namespace, serving)} & known
    return {key for key in known if not ref.namespace or key.namespace == ref.namespace}
