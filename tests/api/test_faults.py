"""Whatever goes wrong between the operator and its API server: the same end, no Job twice, nothing lost.

A story is told once while all is well. Then it is told again, each time with other faults, and has to end as it did.
Briefly in ``make test``, at full length in ``make soak``.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.api.faults import FaultProxy
from tests.api.nodes import Nodes
from tests.api.operator_process import OperatorPod, OperatorProcess, wait_for
from tests.api.space import Space, add_node, install_crd, rests, writes_in
from tests.soak import runs

from devcluster import Cluster
from specserve_operator.api import names
from specserve_operator.api.records import Json

pytestmark = pytest.mark.apiserver

PRODUCTS = {"n1": "NVIDIA-L4", "n2": "NVIDIA-A100-SXM4-80GB"}
BRIEF = {"SPECSERVE_WATCH_SECONDS": "3", "SPECSERVE_LEASE_SECONDS": "15"}
TOLERATION = {"key": "spot", "operator": "Exists"}
Disturb = Callable[[], None]


@pytest.fixture(scope="module")
def plane() -> Iterator[Cluster]:
    """A control plane with controllers, and two nodes of different kinds whose part is played."""
    with Cluster.control_plane(controllers=True) as cluster:
        install_crd(cluster)
        for name, product in PRODUCTS.items():
            add_node(cluster, name, product, 8)
        labels = {name: {"nvidia.com/gpu.product": product} for name, product in PRODUCTS.items()}
        with Nodes(cluster.kubeconfig, labels):
            yield cluster


def nothing() -> None:
    """All is well."""


def story(space: Space, disturb: Disturb = nothing) -> Json:
    """Two servings are made, measured, scaled and edited; ``disturb`` is called amid each step. Returns the end."""
    plane = space.cluster
    plane.apply(space.serving(), space.serving("small", engine__maxNumSeqs=8))
    disturb()
    wait_for("both serve measured tables", lambda: serve(space, "chat", "small"), 60)
    plane.kubectl("scale", "ss/small", f"--namespace={space.name}", "--replicas=5")
    disturb()
    wait_for("five replicas", lambda: replicas(space, "small") == 5 and serve(space, "small"), 60)
    plane.apply(space.serving(replicas=4, podTemplate={"spec": {"tolerations": [TOLERATION]}}))
    disturb()
    wait_for("the toleration everywhere", lambda: tolerated(space, "chat") and replicas(space, "chat") == 4, 60)
    wait_for("all of it ready", lambda: serve(space, "chat", "small"), 60)
    wait_for("an end of writing", lambda: rests(space), 60)
    return end(space)


def in_turn(*disturbs: Disturb) -> Disturb:
    """One of them after the other, one at each call."""
    left = iter(disturbs)
    return lambda: next(left)()


def serve(space: Space, *servings: str) -> bool:
    found = space.all("speculativeservings")
    told = [(found[name]["metadata"], found[name].get("status", {})) for name in servings]
    return all(
        status.get("observedGeneration") == meta["generation"]
        and all(c["status"] == "True" for c in status["conditions"] if c["type"] in ("Profiled", "Available", "Ready"))
        for meta, status in told
    )


def deployments(space: Space, serving: str) -> list[Json]:
    return [d for d in space.all("deployments").values() if d["metadata"]["labels"][names.SERVING] == serving]


def replicas(space: Space, serving: str) -> int:
    return sum(d["spec"]["replicas"] for d in deployments(space, serving))


def tolerated(space: Space, serving: str) -> bool:
    found = deployments(space, serving)
    return bool(found) and all(
        TOLERATION in d["spec"]["template"]["spec"].get("tolerations", [])
        and d["status"].get("updatedReplicas", 0) == d["spec"]["replicas"]
        for d in found
    )


def end(space: Space) -> Json:
    """What there is, without times, and what the API server makes up."""
    ours = (m for m in space.all("configmaps").values() if names.ROLE in m["metadata"].get("labels", {}))
    jobs = space.all("jobs").items()
    return {
        "jobs": {name: sorted(o["name"] for o in job["metadata"]["ownerReferences"]) for name, job in jobs},
        "config maps": sorted(obj["metadata"]["name"] for obj in ours),
        "deployments": {name: obj["spec"] for name, obj in space.all("deployments").items()},
        "services": {name: obj["spec"]["selector"] for name, obj in space.all("services").items()},
        "status": {name: _timeless(obj["status"]) for name, obj in space.all("speculativeservings").items()},
        "events": sorted({(e["involvedObject"]["name"], e["reason"]) for e in told(space)}),
        "Jobs that were made": len(jobs_made(space)),
    }


def told(space: Space) -> list[Json]:
    return [e for e in space.all("events").values() if e["involvedObject"]["kind"] == names.KIND]


def _timeless(status: Json) -> Json:
    conditions = [(c["type"], c["status"], c["reason"], c["message"]) for c in status["conditions"]]
    return {**status, "conditions": sorted(conditions)}


def jobs_made(space: Space) -> list[Json]:
    return [
        e
        for e in writes_in(space)
        if (e["verb"], e["objectRef"]["resource"]) == ("create", "jobs")
        and e["responseStatus"]["code"] == 201 and "dryRun" not in e["requestURI"]
    ]  # fmt: skip


@pytest.fixture(scope="module")
def calm(plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Json:
    """How the story ends when all is well."""
    log = tmp_path_factory.mktemp("calm") / "operator.log"
    with OperatorProcess(plane.kubeconfig, log, "calm", **BRIEF) as operator:
        operator.wait_until_it_leads()
        return story(Space(plane))


def test_the_story_itself(calm: Json) -> None:
    assert calm["Jobs that were made"] == len(calm["jobs"]) == 4  # two servings, two accelerators
    assert len(calm["deployments"]) == 4
    assert sorted(d["replicas"] for d in calm["deployments"].values()) == [2, 2, 2, 3]
    assert [reason for name, reason in calm["events"] if name == "chat"] == [
        "ProfileReady", "ProfilingStarted", "RolloutStarted",
    ]  # fmt: skip


@pytest.mark.parametrize("every", runs([3], [2, 3, 5, 7]))
def test_calls_that_are_refused(plane: Cluster, calm: Json, tmp_path: Path, every: int) -> None:
    """Every third call is answered 500, 429 or 409, some of them after they were carried out."""
    space = Space(plane)
    with FaultProxy(plane.kubeconfig, tmp_path) as proxy:
        with OperatorPod(proxy.kubeconfig, tmp_path, "refused", **BRIEF):
            proxy.every = every

            def first_job() -> None:
                if not space.all("jobs"):
                    wait_for("the first Job within seconds", lambda: space.all("jobs"), 10)

            assert story(space, first_job) == calm
        assert min(proxy.refused[status] for status in (409, 429, 500)) > 0


def test_watches_that_do_not_last(plane: Cluster, calm: Json, tmp_path: Path) -> None:
    """Ended at once by something in between; then fallen silent, connected as they are; then cut every 2 s."""

    def ended() -> None:
        proxy.watches, before, begun = "ended", proxy.asked.copy(), time.monotonic()
        time.sleep(runs(12, 180))
        asked, waited = proxy.asked - before, time.monotonic() - begun
        asked["configmaps"] //= 2  # two watches: of ours, and of the metadata of all others
        assert set(asked) >= {"nodes", "jobs", "pods", "deployments", "speculativeservings"}
        assert max(asked.values()) <= 6 + waited / 10  # after 0.5, 1, 2, 4, 8, 10, 10 ... s
        proxy.watches = "through"

    def silent() -> None:
        wait_for("it is up to date", lambda: pod.process.behind() == [], 30)
        proxy.watches = "silent"
        time.sleep(runs(0, 180))
        wait_for("it says which watches are behind", lambda: "nodes" in (pod.process.behind() or ()), 30)
        proxy.watches = "through"
        wait_for("it is up to date", lambda: pod.process.behind() == [], 30)

    def cut() -> None:
        proxy.watches = "cut"

    with (
        FaultProxy(plane.kubeconfig, tmp_path) as proxy,
        OperatorPod(proxy.kubeconfig, tmp_path, "watches", **BRIEF) as pod,
    ):
        assert story(Space(plane), in_turn(ended, silent, cut)) == calm


def test_a_control_plane_that_goes_and_comes(plane: Cluster, calm: Json, tmp_path: Path) -> None:
    """The API server is killed, then etcd; then the API server takes connections and says nothing: a round that waits
    for it fails the liveness probe, an operator with nothing to do does not."""
    settings = {**BRIEF, "SPECSERVE_LEASE_SECONDS": "60", "SPECSERVE_WEDGED_SECONDS": "8"}

    def gone(component: str) -> None:
        plane.kill(component)
        time.sleep(runs(3, 60))
        plane.start(component)
        wait_for("the API server is ready", plane.answers, 60)

    def hangs() -> None:
        server = plane.pid("kube-apiserver")
        os.kill(server, signal.SIGSTOP)
        try:
            wait_for("the probe fails", lambda: not pod.process.answers, 40)
        finally:
            os.kill(server, signal.SIGCONT)
        wait_for("the probe is well again", lambda: pod.process.answers, 40)

    with OperatorPod(plane.kubeconfig, tmp_path, "outage", **settings) as pod:
        turns = in_turn(lambda: gone("kube-apiserver"), lambda: gone("etcd"), hangs)
        assert story(Space(plane), turns) == calm
        time.sleep(10)  # longer than a round may take: there is none
        assert pod.process.answers


def test_an_operator_that_is_killed_again_and_again(plane: Cluster, calm: Json, tmp_path: Path) -> None:
    chance = random.Random(9)  # noqa: S311

    def kill() -> None:
        for _ in range(runs(2, 17)):
            victim = pod.process
            wait_for("it leads", lambda: victim.leads)  # noqa: B023 - waited for here
            time.sleep(chance.uniform(0, 3))
            victim.process.kill()
            wait_for("another process", lambda: pod.process is not victim)  # noqa: B023

    with OperatorPod(plane.kubeconfig, tmp_path, "killed", **BRIEF) as pod:
        assert story(Space(plane), kill) == calm
        assert pod.starts >= runs(6, 51)
