"""What the operator costs on a large fleet, beside a bare client that applies the same objects to the same API server.

No kubelet, scheduler or controller runs: children stay as they are made, so what is written is the operator's doing.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench import fleet, show
from bench.fleet import Json
from devcluster import Cluster
from devcluster.pace import patience
from specserve_operator.api import names
from specserve_operator.store.client import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    NODES,
    RESOURCES,
    SERVICES,
    SERVINGS,
    Client,
    Resource,
)  # fmt: skip

ROOT = Path(__file__).parents[2]
CRD = ROOT / "crds" / "speculativeservings.yaml"
NAMESPACE_KIND = Resource("v1", "Namespace", "namespaces", namespaced=False)
POOLS = 4
"""Servings with one node of their own, whose label is changed."""
SEED_CONCURRENCY = 16
OURS = {r.plural for r in (DEPLOYMENTS, SERVICES, JOBS, CONFIG_MAPS, SERVINGS)} | {"events"}


@dataclass(frozen=True)
class Sizes:
    """How large the fleet is, and for how long it is watched."""

    nodes: int
    servings: int
    namespaces: int = 1
    foreign_pods: int = 0
    large_profiles: int = 0
    """ConfigMaps of 1 MB that are labelled as profiles."""
    quiet_seconds: float = 30.0
    heartbeats: float = 50.0
    """A second."""
    changes: int = 12
    workers: int = 4
    accelerators: int = 1
    """Types that one serving runs on; 4: all."""


@dataclass
class Result:
    """What one run showed. Times in seconds, memory in MB."""

    sizes: Sizes
    objects: int = 0
    """Children of all servings."""
    start_seconds: float = 0.0
    """From the start of the process to its last write."""
    start_cpu_seconds: float = 0.0
    start_writes: dict[str, int] = field(default_factory=dict)
    bare_seconds: float = 0.0
    bare_cpu_seconds: float = 0.0
    quiet_writes: int = 0
    quiet_cpu_share: float = 0.0
    """Of one core."""
    probe_p99_ms: float = 0.0
    """Answer of the liveness probe, which runs on the operator's event loop."""
    probe_max_ms: float = 0.0
    change_p50_ms: float = 0.0
    """From a node's new label to the Deployment that follows from it."""
    change_p95_ms: float = 0.0
    peak_mb: float = 0.0

    @property
    def ratio(self) -> float:
        """Cold start over the bare client."""
        return self.start_seconds / self.bare_seconds if self.bare_seconds else 0.0


class Bench(Client):
    """The operator's client, and what only the machinery of a cluster does."""

    async def beat(self, node: str, time: str) -> None:
        """A kubelet's heartbeat."""
        path = NODES.path("", node, "status")
        kind = "application/strategic-merge-patch+json"
        await self._call("PATCH", path, {}, fleet.heartbeat(time), kind)

    async def sweep(self, resource: Resource, namespace: str, selector: str) -> list[Json]:
        """All objects of a kind."""
        found, more = [], ""
        while True:
            page = await self.list_page(resource, namespace, selector, more)
            found += page.items
            more = page.more
            if not more:
                return found


async def make(client: Client, objects: Iterable[Json]) -> None:
    """POST objects, many at a time."""
    todo = iter(objects)

    async def work() -> None:
        for obj in todo:
            resource = NAMESPACE_KIND if obj["kind"] == "Namespace" else RESOURCES[obj["kind"]]
            await client.create(resource, obj)

    async with asyncio.TaskGroup() as group:
        for _ in range(SEED_CONCURRENCY):
            group.create_task(work())


def spaces(sizes: Sizes) -> list[str]:
    """Names of the namespaces with servings."""
    return [f"team-{number:03}" for number in range(sizes.namespaces)]


def nodes(sizes: Sizes) -> Iterator[Json]:
    """A tenth with CPUs only; the first few in pools of their own."""
    for number in range(sizes.nodes):
        pool = f"pool-{number}" if number < POOLS else ""
        cpu_only = number % 10 == 9
        yield fleet.node(number, "" if cpu_only else fleet.PRODUCTS[number % len(fleet.PRODUCTS)], pool)


def servings(sizes: Sizes) -> Iterator[Json]:
    """Each of its own model, so with a measurement of its own; the first few on pools."""
    homes = spaces(sizes)
    for number in range(sizes.servings):
        pool = f"pool-{number}" if number < POOLS else ""
        product = "" if pool or sizes.accelerators > 1 else fleet.PRODUCTS[number % len(fleet.PRODUCTS)]
        home = homes[number % len(homes)]
        yield fleet.serving(home, f"chat-{number:04}", f"org/model-{number}", pool, product)


def expected(sizes: Sizes) -> int:
    """How many children there are in the end: Deployments and Jobs, Services, and the package of each namespace."""
    variants = sum(1 if n < POOLS else min(sizes.accelerators, len(fleet.PRODUCTS)) for n in range(sizes.servings))
    return 2 * variants + sizes.servings + min(sizes.namespaces, sizes.servings)


class Audit:
    """Reads the API server's audit log as it grows."""

    def __init__(self, path: Path) -> None:
        self._file = path.open(encoding="utf-8")
        self._rest = ""

    def news(self) -> list[Json]:
        """Writes since the last call that were carried out on kinds that the operator writes."""
        text = self._rest + self._file.read()
        *lines, self._rest = text.split("\n")
        events = [json.loads(line) for line in lines]
        return [e for e in events if e["objectRef"]["resource"] in OURS]


class OperatorProcess:
    """The operator as a process; ended with the context."""

    def __init__(self, kubeconfig: Path, log: Path, workers: int) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("SPECSERVE_")}
        paths = os.pathsep.join(str(ROOT / folder) for folder in ("operator", "profiler_job", "dev"))
        env |= {"KUBECONFIG": str(kubeconfig), "PYTHONPATH": paths, "SPECSERVE_WORKERS": str(workers)}
        self.health = f"http://127.0.0.1:{_free_port()}/healthz"
        self.began = time.time()
        with log.open("w") as output:
            command = [sys.executable, "-m", "specserve_operator", f"--health={self.health}"]
            self._process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
        self._seen = psutil.Process(self._process.pid)
        self.log = log

    @property
    def cpu_seconds(self) -> float:
        """Used so far."""
        used = self._seen.cpu_times()
        return float(used.user + used.system)

    @property
    def peak_mb(self) -> float:
        """Most memory that was resident at a time."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024

    def probe(self) -> float:
        """How long the liveness probe takes just now, ms."""
        began = time.monotonic()
        with urllib.request.urlopen(self.health, timeout=patience(10)) as answer:
            answer.read()
        return 1000 * (time.monotonic() - began)

    def check(self) -> None:
        """Raises RuntimeError where it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the operator ended: {self.log.read_text()[-3000:]}")

    def end(self) -> None:
        """As Kubernetes ends it."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(patience(10))
        except subprocess.TimeoutExpired:
            self._process.kill()


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
    return port


@contextmanager
def running(kubeconfig: Path, log: Path, workers: int) -> Iterator[OperatorProcess]:
    """An operator during the context."""
    process = OperatorProcess(kubeconfig, log, workers)
    try:
        yield process
    finally:
        process.end()


async def settled(operator: OperatorProcess, audit: Audit, quiet: float) -> list[Json]:
    """Writes until there were none for ``quiet`` seconds, after the first."""
    written: list[Json] = []
    last = time.monotonic()
    while not written or time.monotonic() < last + quiet:
        await asyncio.sleep(0.25)
        operator.check()
        news = audit.news()
        last = time.monotonic() if news else last
        written += news
        if not written and time.monotonic() > last + patience(120):
            raise RuntimeError(f"nothing was written: {operator.log.read_text()[-3000:]}")
    return written


def _seconds_of(event: Json) -> float:
    stamp = event["stageTimestamp"].replace("Z", "+00:00")
    return dt.datetime.fromisoformat(stamp).timestamp()


async def cold_start(operator: OperatorProcess, audit: Audit, result: Result) -> None:
    """Until the fixed point."""
    written = await settled(operator, audit, quiet=patience(2))
    result.start_seconds = max(map(_seconds_of, written)) - operator.began
    result.start_cpu_seconds = operator.cpu_seconds
    result.start_writes = dict(Counter(f"{e['verb']} {e['objectRef']['resource']}" for e in written).most_common())


@asynccontextmanager
async def beside(*tasks: Awaitable[None]) -> AsyncIterator[None]:
    """Tasks that run during the context."""
    running = [asyncio.ensure_future(task) for task in tasks]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        for task in running:
            with suppress(asyncio.CancelledError):
                await task


async def heartbeats(client: Bench, sizes: Sizes) -> None:
    """One node after the other."""
    began = time.monotonic()
    for number in itertools.count():
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        await client.beat(f"node-{number % sizes.nodes:05}", stamp)
        await asyncio.sleep(max(0.0, began + number / sizes.heartbeats - time.monotonic()))


async def cpu_nodes(client: Bench) -> None:
    """A node with CPUs only comes and goes."""
    for number in itertools.count(90_000):
        obj = fleet.node(number)
        await client.create(NODES, obj)
        await asyncio.sleep(0.5)
        await client.delete(NODES, "", obj["metadata"]["name"])
        await asyncio.sleep(0.5)


async def quiet(client: Bench, operator: OperatorProcess, audit: Audit, result: Result) -> None:
    """Nothing happens that concerns a serving."""
    sizes = result.sizes
    async with beside(heartbeats(client, sizes), cpu_nodes(client)):
        await asyncio.sleep(2)
        audit.news()
        before, began = operator.cpu_seconds, time.monotonic()
        probes = []
        while time.monotonic() < began + sizes.quiet_seconds:
            probes.append(await asyncio.to_thread(operator.probe))
            await asyncio.sleep(0.1)
        used = operator.cpu_seconds - before
        result.quiet_cpu_share = used / (time.monotonic() - began)
        result.quiet_writes = len(audit.news())
    probes.sort()
    result.probe_p99_ms, result.probe_max_ms = probes[int(0.99 * (len(probes) - 1))], probes[-1]


async def changes(client: Bench, result: Result) -> None:
    """New labels on nodes of the pools, one after the other, each until its Deployment is there."""
    sizes, homes = result.sizes, spaces(result.sizes)
    took = []
    for number in range(sizes.changes):
        which = number % POOLS
        home = homes[which % len(homes)]
        selector = f"{names.SERVING}=chat-{which:04}"
        page = await client.list_page(DEPLOYMENTS, home, selector)
        known = {obj["metadata"]["name"] for obj in page.items}
        product = f"NVIDIA-NEW-{number}"
        labels = {"metadata": {"labels": {"nvidia.com/gpu.product": product}}}
        async with asyncio.timeout(patience(60)):
            watch = client.watch(DEPLOYMENTS, page.resource_version, selector)
            began = time.monotonic()
            await client.patch(NODES, "", f"node-{which:05}", labels)
            async for _, obj in watch:
                if obj["metadata"].get("name", "") not in known and product.lower() in obj["metadata"].get("name", ""):
                    break
            took.append(1000 * (time.monotonic() - began))
            await watch.aclose()  # type: ignore[attr-defined]
    took.sort()
    result.change_p50_ms, result.change_p95_ms = statistics.median(took), took[int(0.95 * (len(took) - 1))]


def _bare(obj: Json, resource: Resource) -> Json:
    """As somebody else would apply it, in a namespace of their own."""
    meta = obj["metadata"]
    labels = {k: v for k, v in (meta.get("labels") or {}).items() if k != names.ROLE}
    new = {"name": meta["name"], "namespace": f"bare-{meta['namespace']}", "labels": labels}
    new["annotations"] = meta.get("annotations") or {}
    body = {name: part for name, part in obj.items() if name in ("spec", "data", "binaryData", "immutable")}
    spec = body.get("spec") or {}
    for given in ("clusterIP", "clusterIPs", "selector") if resource is not DEPLOYMENTS else ():
        spec.pop(given, None)
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": new, **body}


def _cleaned(obj: Json) -> Json:
    """A Job's template has labels that its controller would set."""
    labels = (obj.get("spec") or {}).get("template", {}).get("metadata", {}).get("labels") or {}
    for label in [label for label in labels if label.endswith(("controller-uid", "job-name"))]:
        del labels[label]
    return obj


async def children(client: Bench) -> list[Json]:
    """What the operator made, to be applied by the bare client."""
    found = []
    for resource in (CONFIG_MAPS, SERVICES, DEPLOYMENTS, JOBS):
        items = await client.sweep(resource, "", f"{names.ROLE}!=profile,{names.ROLE}")
        found += [_cleaned(_bare(obj, resource)) for obj in items]
    return found


async def bare(client: Bench, cluster: Cluster, folder: Path, objects: list[Json], result: Result) -> None:
    """The same objects by the bare client, in a process of its own."""
    await make(client, [fleet.namespace(f"bare-{space}") for space in spaces(result.sizes)])
    path = folder / "objects.jsonl"
    path.write_text("".join(json.dumps(obj) + "\n" for obj in objects), encoding="utf-8")
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("operator", "profiler_job", "dev"))
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PYTHONPATH": paths}
    command = [sys.executable, "-m", "bench.bare", str(path), str(result.sizes.workers)]
    began, used = time.monotonic(), os.times()
    process = await asyncio.create_subprocess_exec(*command, env=env)
    if await process.wait():
        raise RuntimeError("the bare client failed")
    result.bare_seconds = time.monotonic() - began
    after = os.times()
    result.bare_cpu_seconds = after.children_user + after.children_system - used.children_user - used.children_system


async def measure(cluster: Cluster, folder: Path, sizes: Sizes) -> Result:
    """One run on a control plane that is empty but for our kind."""
    result = Result(sizes)
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
    async with await Bench.connect() as client:
        assert isinstance(client, Bench)
        show.say(f"{sizes.nodes} nodes, {sizes.servings} servings in {sizes.namespaces} namespace(s)")
        await make(client, map(fleet.namespace, [*spaces(sizes), "theirs"]))
        await make(client, nodes(sizes))
        await make(client, (fleet.pod("theirs", f"pod-{number}") for number in range(sizes.foreign_pods)))
        claims = (fleet.profile_claim(spaces(sizes)[0], f"large-{n}", 10**6) for n in range(sizes.large_profiles))
        await make(client, claims)
        await make(client, servings(sizes))
        audit = Audit(cluster.audit_log)
        audit.news()
        with running(cluster.kubeconfig, folder / "operator.log", sizes.workers) as operator:
            await cold_start(operator, audit, result)
            show.say(f"fixed point after {result.start_seconds:.1f} s")
            objects = await children(client)
            result.objects = len(objects)
            if result.objects != expected(sizes):
                raise RuntimeError(
                    f"{result.objects} children, not {expected(sizes)}: {operator.log.read_text()[-3000:]}"
                )
            await quiet(client, operator, audit, result)
            await changes(client, result)
            operator.check()
            result.peak_mb = operator.peak_mb
        await bare(client, cluster, folder, objects, result)
    return result


def _plane(folder: Path) -> Cluster:
    cluster = Cluster.control_plane(folder / "plane")
    cluster.kubectl("apply", "--server-side", f"--filename={CRD}")
    cluster.await_crd("speculativeservings.specserve.dev")
    return cluster


COLUMNS: tuple[tuple[str, Callable[[Result], str]], ...] = (
    ("nodes", lambda r: str(r.sizes.nodes)),
    ("servings", lambda r: str(r.sizes.servings)),
    ("namespaces", lambda r: str(r.sizes.namespaces)),
    ("objects", lambda r: str(r.objects)),
    ("cold start, s", lambda r: f"{r.start_seconds:.1f}"),
    ("CPU s", lambda r: f"{r.start_cpu_seconds:.1f}"),
    ("writes", lambda r: str(sum(r.start_writes.values()))),
    ("bare client, s", lambda r: f"{r.bare_seconds:.1f}"),
    ("its CPU s", lambda r: f"{r.bare_cpu_seconds:.1f}"),
    ("ratio", lambda r: f"{r.ratio:.2f}"),
    ("quiet: writes", lambda r: str(r.quiet_writes)),
    ("of a core", lambda r: show.percent(r.quiet_cpu_share)),
    ("label to Deployment p50, ms", lambda r: f"{r.change_p50_ms:.0f}"),
    ("p95", lambda r: f"{r.change_p95_ms:.0f}"),
    ("probe p99, ms", lambda r: f"{r.probe_p99_ms:.0f}"),
    ("max", lambda r: f"{r.probe_max_ms:.0f}"),
    ("peak, MB", lambda r: f"{r.peak_mb:.0f}"),
)


def report(results: list[Result]) -> str:
    """As a table."""
    return show.table([head for head, _ in COLUMNS], [[value(r) for _, value in COLUMNS] for r in results])


def run(several: list[Sizes], output: Path) -> None:
    """Each on a control plane of its own."""
    results = []
    for sizes in several:
        with tempfile.TemporaryDirectory(prefix="bench-operator-") as name:
            folder = Path(name)
            with _plane(folder) as cluster:
                results.append(asyncio.run(measure(cluster, folder, sizes)))
                show.write_json(output, results)  # before anything else can fail
                print(report(results[-1:]), flush=True)
    print(report(results))
