"""The simulated cluster with the real operator in it: its reconciler and store, over a watch that lags and loses."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from tests.builders import NAMESPACE, PROMPTS
from tests.unit.operator.model.controllers import Controllers, labels_of
from tests.unit.operator.model.server import Client, CrashError, Feed, Server

from specserve_operator.api import names
from specserve_operator.api.records import Json, Ref, ref_of
from specserve_operator.api.settings import Settings
from specserve_operator.reconcile.reconciler import Reconciler
from specserve_operator.store.client import ApiError
from specserve_operator.store.mirror import Store

PACKAGE = b"the profiler's zip"
T = TypeVar("T")


class _Inline(ThreadPoolExecutor):
    """Runs at once what is given to a thread: nothing waits here, and a walk is the same each time."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


class Loop(asyncio.SelectorEventLoop):
    """An event loop for what never waits, with the time of the simulation."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__()
        self.set_default_executor(_Inline(1))

    def time(self) -> float:
        return self.now

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.run_until_complete(work)


class World:
    """A namespace, its nodes, and an operator. Nothing happens but by a call."""

    def __init__(self, loop: Loop, settings: Settings | None = None) -> None:
        self.loop, self.settings = loop, settings or Settings()
        self.server = Server()
        self.controllers = Controllers(self.server)
        self.cause = "others"
        """Whose doing it is what happens just now: ``ours`` or ``others``."""
        self.client = Client(self.server)
        self.feeds: dict[str, Feed] = {}
        self.seen: dict[str, dict[Ref, Json]] = {}
        """Kind -> objects as the operator's watch told of them."""
        self.before_round: Callable[[str], None] = lambda serving: None
        self.server.put(PROMPTS)
        self.start_operator()

    def start_operator(self) -> None:
        """A new process: it knows nothing but what it lists now."""
        for feed in self.feeds.values():
            self.server.watchers.remove(feed._happened)
        self.store = Store.empty()
        self.feeds = {
            mirror.resource.kind: Feed(self.server, mirror.resource.kind, mirror._selector)
            for mirror in self.store.mirrors
            if mirror is not self.store.sources  # of what others wrote, which only wakes
        }
        client: Any = self.client
        self.reconciler = Reconciler(client, self.store, self.settings, PACKAGE, lambda: self.server.now)
        for kind in self.feeds:
            self.relist(kind)

    def relist(self, kind: str) -> None:
        """The operator lists a kind anew, as after a 410."""
        self.feeds[kind].waiting.clear()
        self.loop.run(self._mirror(kind)._list(self.client))
        self.seen[kind] = dict(self.server.objects[kind])

    def _mirror(self, kind: str) -> Any:
        return next(m for m in self.store.mirrors if m.resource.kind == kind)

    def hear(self, kind: str, most: int = 1_000_000) -> None:
        """The watch of a kind tells what happened, as far as ``most`` changes."""
        if self.feeds[kind].waiting:
            self.loop.run(self._hear(kind, most))

    async def _hear(self, kind: str, most: int) -> None:
        mirror, seen = self._mirror(kind), self.seen[kind]
        for event, obj in self.feeds[kind].take(most):
            record = await mirror._complete(self.client, obj) if event != "DELETED" else None
            mirror._hear(event, obj, record)
            if event == "DELETED":
                seen.pop(ref_of(obj), None)
            else:
                seen[ref_of(obj)] = obj

    def hear_all(self) -> None:
        for kind in self.feeds:
            self.hear(kind)

    def round(self, serving: str) -> float | None:
        """The operator looks at one serving once. Its failures are answers of the server; anything else is a fault."""
        self.before_round(serving)
        self.cause = "ours"
        try:
            return self.loop.run(self.reconciler.reconcile(Ref(NAMESPACE, serving)))
        except ApiError:
            return 1.0
        except CrashError:
            self.start_operator()
            return 1.0
        finally:
            self.cause = "others"

    def run_controllers(self) -> None:
        """Every controller does a step."""
        for job in self.server.all("Job"):
            self.controllers.job(job["metadata"]["name"])
        self.deployments()
        self.controllers.schedule()
        for pod in self.server.all("Pod"):
            if labels_of(pod).get(names.ROLE) == names.ROLE_SERVING:
                self.controllers.kubelet(pod["metadata"]["name"])
        self.deployments()

    def deployments(self) -> None:
        for obj in self.server.all("Deployment"):
            self.deployment(obj["metadata"]["name"])

    def deployment(self, name: str) -> None:
        self.cause = "ours"
        self.controllers.deployment(name)
        self.cause = "others"

    def pass_time(self, seconds: float) -> None:
        self.server.now += dt.timedelta(seconds=seconds)
        self.loop.now += seconds

    # What there is.

    @property
    def servings(self) -> list[str]:
        return sorted(ref.name for ref in self.server.objects["SpeculativeServing"])

    def deployments_of(self, serving: str) -> list[Json]:
        return [d for d in self.server.all("Deployment") if labels_of(d).get(names.SERVING) == serving]

    def pods_of(self, serving: str) -> list[Json]:
        """Its serving pods that have not ended."""
        return [
            p
            for p in self.server.all("Pod")
            if labels_of(p).get(names.SERVING) == serving and p["status"]["phase"] in ("Pending", "Running")
        ]
