"""A mirror of the objects that decisions need: paged list, then watch; each new list *replaces* what was held.

Replacing is the point. After a watch was cut for long the API server answers 410, and nobody tells what was deleted
meanwhile: a mirror that only adds what it hears of keeps ghosts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from specserve_operator.api import names
from specserve_operator.api.records import ConfigMap, Deployment, Job, Json, Node, Pod, Ref, Service, Serving, ref_of
from specserve_operator.api.stored import MOST_BYTES
from specserve_operator.store import client as api
from specserve_operator.store.client import ApiError, Client, Resource

log = logging.getLogger(__name__)

R = TypeVar("R", bound="Node | Job | Pod | Deployment | Service | ConfigMap | Serving")
OnChange = Callable[[Ref, Any, Any], None]
"""Called with the ref, the record before (None: new) and the record after (None: gone)."""
Index = Callable[[Ref, Any], Iterable[Hashable]]
"""(ref, record) -> the values that it has."""

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.5, 10.0
MOST_JSON_BYTES = 4 * MOST_BYTES
"""Of a profile's ConfigMap as the API server sends it: in its JSON most texts are longer."""
SHORT_SECONDS = 1.0
"""A watch that ends sooner was ended by something between us and the API server, which would do so again at once."""


class Mirror(Generic[R]):
    """All objects of one kind as records.

    Args:
        page: objects that a list asks for at a time. JSON is parsed in one piece, on the event loop: some 1 MB of it.
        indexes: name -> the values under which ``select`` finds a record.
    """

    def __init__(
        self,
        resource: Resource,
        read: Callable[[Json], R],
        selector: str = "",
        *,
        page: int = 50,
        indexes: Mapping[str, Index] | None = None,
    ) -> None:
        self.resource, self._read, self._selector, self._page = resource, read, selector, page
        self._items: dict[Ref, R] = {}
        self._indexes = indexes or {}
        self._indexed: dict[tuple[str, Hashable], dict[Ref, R]] = {}
        self._listeners: list[OnChange] = []
        self.listed = asyncio.Event()
        """Set once the first list is complete."""
        self._version = ""
        """From where to watch; empty asks for a list."""
        self._tried_at = self._fresh_at = 0.0

    @property
    def idle(self) -> float | None:
        """Seconds since something was last heard or tried, well or ill; None where this mirror does not run."""
        return time.monotonic() - self._tried_at if self._tried_at else None

    @property
    def behind(self) -> float:
        """Seconds since this was last known to be all there is; up to a watch's length while nothing changes."""
        return time.monotonic() - self._fresh_at if self._fresh_at else 0.0

    def get(self, ref: Ref) -> R | None:
        """The record, or None."""
        return self._items.get(ref)

    def refs(self) -> tuple[Ref, ...]:
        """Of all records."""
        return tuple(self._items)

    def select(self, index: str, value: Hashable) -> tuple[R, ...]:
        """The records that have ``value`` in an index."""
        return tuple(self._indexed.get((index, value), {}).values())

    def on_change(self, listener: OnChange) -> None:
        """Call ``listener`` for every record that changes; it must not block."""
        self._listeners.append(listener)

    async def run(self, client: Client) -> None:
        """List and watch until cancelled; failures, and watches that end at once, are retried with growing pauses."""
        pause = FIRST_RETRY_SECONDS
        self._tried_at = self._fresh_at = time.monotonic()
        while True:
            begun, wait = time.monotonic(), 0.0
            try:
                await self._follow(client)
                if time.monotonic() - begun < SHORT_SECONDS:
                    wait = pause
                    log.warning("%s: the watch was ended at once; again in %.1f s", self.resource.plural, wait)
                else:
                    self._heard()
            except ApiError as error:
                wait = max(pause, error.retry_after)
                self._failed(error, wait)
            self._tried_at = time.monotonic()
            went_well = self._fresh_at >= begun + SHORT_SECONDS
            pause = FIRST_RETRY_SECONDS if went_well else min(pause * 2, LAST_RETRY_SECONDS)
            await asyncio.sleep(wait)

    async def _follow(self, client: Client) -> None:
        """List where that is due, then hear one watch to its end."""
        if not self._version:
            self._version = await self._list(client)
            self._heard()
        async for kind, obj in client.watch(self.resource, self._version, self._selector):
            record = await self._complete(client, obj) if kind in ("ADDED", "MODIFIED") else None
            self._version = obj["metadata"]["resourceVersion"]
            self._hear(kind, obj, record)
            self._heard()

    def _heard(self) -> None:
        self._tried_at = self._fresh_at = time.monotonic()

    def _failed(self, error: ApiError, wait: float) -> None:
        expired = error.status == 410
        if expired:
            self._version = ""
        log.log(
            logging.INFO if expired else logging.WARNING,
            "%s: %s; %s", self.resource.plural, error, "listing anew" if expired else f"again in {wait:.1f} s",
        )  # fmt: skip

    async def _list(self, client: Client) -> str:
        """Each page is taken as it comes; what none has is gone in the end."""
        gone = set(self._items)
        more = ""
        while True:
            page = await client.list_page(self.resource, selector=self._selector, more=more, limit=self._page)
            for obj in page.items:
                gone.discard(ref_of(obj))
                self._hear("ADDED", obj, await self._complete(client, obj))
            self._tried_at = time.monotonic()
            more = page.more
            if not more:
                break
        for ref in gone:
            self._set(ref, None)
        self.listed.set()
        return page.resource_version

    async def _complete(self, client: Client, obj: Json) -> R | None:
        """The record, where more than ``obj`` is needed for it."""
        return None

    def _hear(self, kind: str, obj: Json, record: R | None = None) -> None:
        if kind in ("ADDED", "MODIFIED"):
            self._set(ref_of(obj), record or self._read(obj))
        elif kind == "DELETED":
            self._set(ref_of(obj), None)

    def _set(self, ref: Ref, after: R | None) -> None:
        before = self._items.get(ref)
        if before == after:
            return
        if before is not None:
            del self._items[ref]
            for where in self._places(ref, before):
                del self._indexed[where][ref]
                if not self._indexed[where]:
                    del self._indexed[where]
        if after is not None:
            self._items[ref] = after
            for where in self._places(ref, after):
                self._indexed.setdefault(where, {})[ref] = after
        for listener in self._listeners:
            listener(ref, before, after)

    def _places(self, ref: Ref, record: R) -> Iterator[tuple[str, Hashable]]:
        return ((name, value) for name, values in self._indexes.items() for value in set(values(ref, record)))


class Changes(Mirror[ConfigMap]):
    """Tells which objects change, by their metadata alone, and holds none: there may be any number, of any size.

    A listener is called with the ref of what changed; with an empty one where that is not known.
    """

    async def _list(self, client: Client) -> str:
        version = (await client.list_page(self.resource, selector=self._selector, limit=1)).resource_version
        self._tell(Ref("", ""))
        self.listed.set()
        return version

    def _hear(self, kind: str, obj: Json, record: ConfigMap | None = None) -> None:
        if kind != "BOOKMARK":
            self._tell(ref_of(obj))

    def _tell(self, ref: Ref) -> None:
        for listener in self._listeners:
            listener(ref, None, None)


class ConfigMaps(Mirror[ConfigMap]):
    """ConfigMaps of ours, by their metadata. A profile or a package is read once, up to a limit, and never held.

    So large ones that others have labelled as profiles come neither in lists nor in watches.
    """

    def __init__(self) -> None:
        super().__init__(api.CONFIG_MAP_HEADS, ConfigMap.read, names.ROLE, indexes={"key": by_key})
        self._versions: dict[Ref, str] = {}

    async def _complete(self, client: Client, obj: Json) -> ConfigMap | None:
        ref, version = ref_of(obj), obj["metadata"]["resourceVersion"]
        held = self.get(ref)
        if held is not None and self._versions.get(ref) == version:
            return held
        record = await read_config_map(client, obj)
        self._versions[ref] = version
        return record

    def _set(self, ref: Ref, after: ConfigMap | None) -> None:
        if after is None:
            self._versions.pop(ref, None)
        super()._set(ref, after)


async def read_config_map(client: Client, head: Json) -> ConfigMap:
    """The record of a ConfigMap whose metadata is known; a profile or a package is read, up to a limit."""
    alone = ConfigMap.read(head)
    if alone.role not in (names.ROLE_PROFILE, names.ROLE_PACKAGE):
        return alone
    try:
        found = await client.get_small(api.CONFIG_MAPS, *ref_of(head), most=MOST_JSON_BYTES)
    except ApiError as error:
        if error.status != 413:
            raise
        return ConfigMap.too_large(head) if alone.role == names.ROLE_PROFILE else alone
    return ConfigMap.read(found or head)  # one that is gone meanwhile is told to be


def by_serving(ref: Ref, record: Pod | Deployment | Service) -> Iterable[Hashable]:
    """Of children: (namespace, name of the serving)."""
    return ((ref.namespace, record.serving),) if record.serving else ()


def by_key(ref: Ref, record: ConfigMap) -> Iterable[Hashable]:
    """Of what is a profile, or claims to be one: (namespace, profile key)."""
    return ((ref.namespace, record.key),) if record.role == names.ROLE_PROFILE else ()


@dataclass(frozen=True)
class Store:
    """Mirrors of every kind that a decision looks at. Children are selected by label on the server."""

    nodes: Mirror[Node]
    jobs: Mirror[Job]
    pods: Mirror[Pod]
    deployments: Mirror[Deployment]
    services: Mirror[Service]
    config_maps: Mirror[ConfigMap]
    servings: Mirror[Serving]
    sources: Changes
    """ConfigMaps that are not ours, such as prompts."""

    @classmethod
    def empty(cls) -> Store:
        ours = names.ROLE  # the label is there
        serving = {"serving": by_serving}
        return cls(
            nodes=Mirror(api.NODES, Node.read),
            jobs=Mirror(
                api.JOBS,
                Job.read,
                ours,
                indexes={
                    "key": lambda ref, job: [(ref.namespace, job.key)],
                    "owner": lambda ref, job: [(ref.namespace, uid) for uid in job.owners],
                    "uid": lambda ref, job: [(ref.namespace, job.uid)],
                },
            ),
            pods=Mirror(
                api.PODS,
                Pod.read,
                ours,
                indexes={**serving, "job": lambda ref, pod: [(ref.namespace, pod.job)] if pod.job else []},
            ),
            deployments=Mirror(api.DEPLOYMENTS, Deployment.read, ours, indexes=serving),
            services=Mirror(api.SERVICES, Service.read, ours, indexes=serving),
            config_maps=ConfigMaps(),
            servings=Mirror(api.SERVINGS, Serving.read),
            sources=Changes(api.CONFIG_MAP_HEADS, ConfigMap.read, f"!{ours}"),
        )

    @property
    def mirrors(self) -> Iterable[Mirror[Any]]:
        return (self.nodes, *self.children, self.servings, self.sources)

    @property
    def children(self) -> Iterable[Mirror[Any]]:
        """What is made for servings."""
        return (self.jobs, self.pods, self.deployments, self.services, self.config_maps)

    async def run(self, client: Client) -> None:
        """Keep every mirror until cancelled."""
        async with asyncio.TaskGroup() as group:
            for mirror in self.mirrors:
                group.create_task(mirror.run(client), name=f"mirror {mirror.resource.plural}")

    def wedged(self, seconds: float) -> str:
        """Which mirror has not even tried anything for so long, in words; empty where none."""
        idle = ((mirror.idle, mirror.resource.plural) for mirror in self.mirrors if mirror.idle is not None)
        return next((f"the mirror of {kind} has done nothing for {s:.0f} s" for s, kind in idle if s > seconds), "")

    def behind(self, seconds: float) -> dict[str, float]:
        """Kinds that may have changed unseen for longer than so many seconds -> for how long."""
        ages = {m.resource.plural: round(m.behind, 1) for m in sorted(self.mirrors, key=lambda m: m.behind)}
        return {kind: age for kind, age in ages.items() if age > seconds}

    async def listed(self) -> None:
        """Wait until every kind was listed once."""
        for mirror in self.mirrors:
            await mirror.listed.wait()
