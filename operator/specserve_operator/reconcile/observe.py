"""Builds the one frozen snapshot that a decision sees, of what concerns its serving; says whom a change concerns."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from specserve_operator.api import names
from specserve_operator.api.records import ConfigMap, Deployment, Job, Json, Pod, Ref, Service
from specserve_operator.api.serving import SpeculativeServing
from specserve_operator.api.settings import Settings
from specserve_operator.decide.identity import Fleet
from specserve_operator.decide.model import Child, Prompts, Snapshot
from specserve_operator.decide.profiles import wanted_keys
from specserve_operator.manifests.profiling import package_name
from specserve_operator.reconcile.fleets import Fleets
from specserve_operator.store.client import CONFIG_MAPS, Client
from specserve_operator.store.mirror import Store


class Observer:
    """What concerns which serving. Everything runs on one loop.

    A serving's interests are noted *before* the store is read, in one piece: whatever changes later finds them. They
    follow from its spec, its fleet and its prompts, and a change of those has it looked at again in any case. So a
    profile or a Job whose key nobody was known to want is wanted by nobody.
    """

    def __init__(
        self, client: Client, store: Store, settings: Settings, package: bytes, wake: Callable[[Ref], None]
    ) -> None:
        self._client, self._store, self._settings = client, store, settings
        self._package, self._package_name = package, package_name(package)
        self._fleets = Fleets(store.nodes, wake)
        self._interests, self._readers = Interests(), Interests()
        self._keys: dict[Ref, tuple[Hashable, frozenset[str]]] = {}

    async def observe(self, obj: Json, applied: Mapping[Child, int], now: dt.datetime) -> Snapshot:
        """The snapshot for one serving.

        Args:
            obj: the serving, just read from the API server.
            applied: what our own last applies left, see ``Snapshot.applied``.

        Raises:
            pydantic.ValidationError: the stored spec cannot be read.
            ApiError: its prompts could not be asked for.
        """
        serving = SpeculativeServing.read(obj)
        ref, spec = Ref(serving.namespace, serving.name), serving.spec
        source = spec.profile.workload.source.config_map
        self._readers.note(ref, {Interest("source", ref.namespace, source.name), ANY_SOURCE} if source else set())
        prompts = await _prompts(self._client, serving)
        fleet = await self._fleets.of(ref, spec.accelerators, spec.profile.driver_policy)
        # From here on nothing is awaited.
        deployments = self._deployments(ref)
        keys = self._keys_of(ref, serving, fleet, prompts)
        jobs = self._jobs(ref, serving.uid, keys)
        keys |= {job.key for job in jobs}
        named = {d.profile for d in deployments}
        self._interests.note(
            ref,
            {Interest("key", ref.namespace, key) for key in keys | {""}}
            | {Interest("uid", ref.namespace, serving.uid)}
            | {Interest("name", ref.namespace, name) for name in named},
        )
        return Snapshot(
            now=now,
            settings=self._settings,
            serving=serving,
            package=self._package,
            fleet=fleet,
            jobs=jobs,
            pods=self._pods(ref, jobs),
            config_maps=self._config_maps(ref, keys, named | {self._package_name}),
            deployments=deployments,
            services=self._store.services.select("serving", ref),
            prompts=prompts,
            applied=dict(applied),
        )

    def forget(self, ref: Ref) -> None:
        """The serving is gone."""
        self._fleets.forget(ref)
        self._interests.note(ref, set())
        self._readers.note(ref, set())
        self._keys.pop(ref, None)

    def concerned(self, ref: Ref, record: Any) -> set[Ref]:
        """The servings that a changed record concerns, apart from nodes: those wake by their views."""
        if isinstance(record, Deployment | Service | Pod) and record.serving:
            return {Ref(ref.namespace, record.serving)}
        if isinstance(record, Pod):
            jobs = self._store.jobs.select("uid", (ref.namespace, record.job))
            return {found for job in jobs for found in self.concerned(Ref(ref.namespace, job.name), job)}
        tokens = set()
        if isinstance(record, Job):
            tokens = {Interest("uid", ref.namespace, uid) for uid in record.owners}
        if isinstance(record, Job) or (isinstance(record, ConfigMap) and record.role == names.ROLE_PROFILE):
            tokens |= {Interest("key", ref.namespace, record.key), Interest("name", ref.namespace, ref.name)}
        return {found for token in tokens for found in self._interests.of(token)}

    def reading(self, source: Ref) -> set[Ref]:
        """The servings whose prompts are in that ConfigMap; an empty ref: in any."""
        return set(self._readers.of(Interest("source", *source) if source.name else ANY_SOURCE))

    def _deployments(self, ref: Ref) -> tuple[Deployment, ...]:
        # A copy made by hand has our labels too, but another name.
        found = self._store.deployments.select("serving", ref)
        return tuple(d for d in found if d.name == f"{d.serving}-{d.variant}")

    def _keys_of(self, ref: Ref, serving: SpeculativeServing, fleet: Fleet, prompts: Prompts) -> frozenset[str]:
        found = tuple((f.accelerator, f.driver) for f in fleet.found)
        known = (serving.uid, serving.generation, prompts.digest, found)
        if ref not in self._keys or self._keys[ref][0] != known:
            self._keys[ref] = (known, wanted_keys(serving.spec, fleet, prompts))
        return self._keys[ref][1]

    def _jobs(self, ref: Ref, uid: str, keys: frozenset[str]) -> tuple[Job, ...]:
        select = self._store.jobs.select
        found = {job.name: job for key in keys for job in select("key", (ref.namespace, key))}
        found |= {job.name: job for job in select("owner", (ref.namespace, uid))}
        return tuple(job for job in found.values() if job.ours)

    def _pods(self, ref: Ref, jobs: tuple[Job, ...]) -> tuple[Pod, ...]:
        select = self._store.pods.select
        found = {pod.name: pod for pod in select("serving", ref)}
        return tuple((found | {p.name: p for job in jobs for p in select("job", (ref.namespace, job.uid))}).values())

    def _config_maps(self, ref: Ref, keys: frozenset[str], named: set[str]) -> tuple[ConfigMap, ...]:
        """Of its keys, without a key (nobody knows whose they were to be), and by name."""
        mirror = self._store.config_maps
        found = {c.name: c for key in (*keys, "") for c in mirror.select("key", (ref.namespace, key))}
        also = (mirror.get(Ref(ref.namespace, name)) for name in named)
        return tuple((found | {c.name: c for c in also if c is not None}).values())


class Interest(NamedTuple):
    """What a changed Job or ConfigMap may have that a serving cares for."""

    kind: Literal["key", "uid", "name", "source"]
    namespace: str
    value: str


ANY_SOURCE = Interest("source", "", "")


class Interests:
    """Who cares for what."""

    def __init__(self) -> None:
        self._of: dict[Ref, set[Interest]] = {}
        self._who: defaultdict[Interest, set[Ref]] = defaultdict(set)

    def of(self, interest: Interest) -> Iterable[Ref]:
        """Those who care for it."""
        return self._who.get(interest, ())

    def note(self, ref: Ref, interests: set[Interest]) -> None:
        """All that a serving cares for, from now on."""
        before = self._of.pop(ref, set())
        for lost in before - interests:
            self._who[lost].discard(ref)
            if not self._who[lost]:
                del self._who[lost]
        for new in interests - before:
            self._who[new].add(ref)
        if interests:
            self._of[ref] = interests


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
    return Prompts(hashlib.sha256(text.encode()).hexdigest()[:16], text, found["metadata"]["uid"])
