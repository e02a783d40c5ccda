"""The operator's process against a real API server: no kubelet, so it goes as far as making the Job."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.operator_process import Link, OperatorProcess, wait_for
from tests.api.space import Space, add_node, install_crd, restart_api_server, rests, uid, writes_in
from tests.builders import profile

from devcluster import Cluster
from devcluster.pace import patience
from specserve_operator.api import names
from specserve_operator.api.records import Json, Ref, parse_time
from specserve_operator.store.client import Client
from specserve_operator.store.mirror import ConfigMaps

pytestmark = pytest.mark.apiserver

ON_L4 = "nvidia-l4-ea1e09"


@pytest.fixture(scope="module")
def plane() -> Iterator[Cluster]:
    """A control plane of its own: an operator would meddle with what other tests make."""
    with Cluster.control_plane() as cluster:
        install_crd(cluster)
        add_node(cluster, "n1", "NVIDIA-L4", 4)
        yield cluster


@pytest.fixture
def space(plane: Cluster) -> Space:
    return Space(plane)


@pytest.fixture(scope="module")
def started() -> Iterator[list[OperatorProcess]]:
    processes: list[OperatorProcess] = []
    yield processes
    for process in processes:
        process.end()


@pytest.fixture
def operator(plane: Cluster, started: list[OperatorProcess], tmp_path: Path) -> OperatorProcess:
    """One that leads; the same for several tests, as long as it runs."""
    if not started or started[-1].process.poll() is not None:
        started.append(OperatorProcess(plane.kubeconfig, tmp_path / "operator.log", f"operator-{len(started)}"))
        started[-1].wait_until_it_leads()
    return started[-1]


def test_a_serving_gets_its_job_its_service_and_its_deployment(operator: OperatorProcess, space: Space) -> None:
    space.cluster.apply(space.serving())

    (job,) = wait_for("a Job", lambda: space.all("jobs"))
    status = wait_for("a status", lambda: space.condition("Profiled") and space.status())

    assert list(space.all("services")) == ["chat"]
    assert list(space.all("deployments")) == [f"chat-{ON_L4}"]
    assert [(a["product"], a["capacity"], a["replicas"]) for a in status["accelerators"]] == [("NVIDIA-L4", 4, 3)]
    assert space.condition("Profiled")["message"].startswith("NVIDIA-L4: no profile yet; ")
    events = [e["reason"] for e in space.all("events").values()]
    assert events.count("ProfilingStarted") == 1
    assert operator.answers

    wait_for("the Job in the status", lambda: job in space.condition("Profiled")["message"])
    wait_for("an end of writing, as nothing happens any more", lambda: rests(space))


def test_all_that_ask_for_the_same_share_one_job(operator: OperatorProcess, space: Space) -> None:
    space.cluster.apply(*(space.serving(name) for name in ("one", "two")))  # at once

    def owners() -> set[str]:
        jobs = space.all("jobs").values()
        return {o["name"] for job in jobs for o in job["metadata"]["ownerReferences"]}

    wait_for("both own the Job", lambda: owners() == {"one", "two"})
    space.cluster.apply(space.serving("three"))  # later
    wait_for("all own the Job", lambda: owners() == {"one", "two", "three"})

    assert len(space.all("jobs")) == 1
    # Both may have looked before either had made it: then the name decides.
    posts = [e for e in writes_in(space) if (e["verb"], e["objectRef"]["resource"]) == ("create", "jobs")]
    assert sorted(e["responseStatus"]["code"] for e in posts) in ([201], [201, 409])


@pytest.mark.parametrize(
    ("pod_spec", "words"),
    [
        pytest.param({"tolerashuns": []}, 'unknown field "spec.template.spec.tolerashuns"', id="unknown field"),
        pytest.param(
            {"tolerations": [{"operator": "Sometimes"}]},
            'spec.template.spec.tolerations[0].operator: Unsupported value: "Sometimes"',
            id="bad value",
        ),
        pytest.param({"tolerations": "all"}, "cannot unmarshal string into Go struct field", id="bad type"),
    ],
)
@pytest.mark.parametrize("before", ["Static", "Wait"])
def test_a_bad_pod_template_is_told_in_the_api_servers_words(
    operator: OperatorProcess, space: Space, before: str, pod_spec: Json, words: str
) -> None:
    space.cluster.apply(space.serving(podTemplate={"spec": pod_spec}, speculation__beforeProfile=before))

    told = wait_for("a refusal", lambda: space.condition("Accepted"))

    assert (told["status"], told["reason"]) == ("False", "RefusedByCluster")
    assert words in told["message"]
    assert space.condition("Ready")["status"] == "False"
    assert space.all("jobs") == space.all("deployments") == {}


def test_a_mended_pod_template_goes_on(operator: OperatorProcess, space: Space) -> None:
    space.cluster.apply(space.serving(podTemplate={"spec": {"tolerashuns": []}}))
    wait_for("a refusal", lambda: space.condition("Accepted"))

    space.cluster.apply(space.serving(podTemplate={"spec": {"tolerations": []}}))

    wait_for("a Job", lambda: space.all("jobs"))
    wait_for("it is accepted", lambda: space.condition("Accepted")["status"] == "True")


def test_a_service_of_somebody_else_stays_theirs(operator: OperatorProcess, space: Space) -> None:
    theirs = {"selector": {"app": "theirs"}, "ports": [{"port": 80}]}
    meta = {"name": "chat", "namespace": space.name}
    space.cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": theirs})

    space.cluster.apply(space.serving())

    told = wait_for("a refusal", lambda: space.condition("Accepted"))
    assert "is there already, not made by specserve" in told["message"]
    assert space.all("services")["chat"]["spec"]["selector"] == {"app": "theirs"}


def test_what_is_deleted_is_made_again_and_what_is_edited_is_put_right(operator: OperatorProcess, space: Space) -> None:
    name, where = f"chat-{ON_L4}", f"--namespace={space.name}"
    space.cluster.apply(space.serving())
    first = wait_for("a Deployment", lambda: space.all("deployments").get(name))
    wait_for("a Job", lambda: space.all("jobs"))

    space.cluster.kubectl("delete", "deployment", name, where)
    wait_for("another", lambda: uid(space.all("deployments").get(name)) not in ("", uid(first)))

    space.cluster.kubectl("scale", "deployment", name, where, "--replicas=9")
    wait_for("three replicas", lambda: space.all("deployments")[name]["spec"]["replicas"] == 3)
    space.cluster.kubectl("set", "image", where, f"deployment/{name}", "engine=other")
    wait_for("the image", lambda: "other" not in json.dumps(space.all("deployments")[name]["spec"]))


def test_scaling_the_resource_scales_its_deployments(operator: OperatorProcess, space: Space) -> None:
    space.cluster.apply(space.serving())
    wait_for("a Deployment", lambda: space.all("deployments"))

    space.cluster.kubectl("scale", "ss/chat", f"--namespace={space.name}", "--replicas=2")

    wait_for("two replicas", lambda: space.all("deployments")[f"chat-{ON_L4}"]["spec"]["replicas"] == 2)


def lease_of(space: Space) -> Json:
    spec: Json = space.cluster.get("lease", "specserve-operator")["spec"]
    return spec


def test_a_second_operator_waits_and_takes_over_when_the_first_is_killed(
    operator: OperatorProcess, space: Space, tmp_path: Path
) -> None:
    with OperatorProcess(space.cluster.kubeconfig, tmp_path / "second.log", "second") as second:
        wait_for("it is there", lambda: second.answers)
        space.cluster.apply(space.serving())
        wait_for("a Job", lambda: space.all("jobs"))
        assert "created Job" in operator.log
        assert not second.leads

        operator.end(signal.SIGKILL)
        renewed = lease_of(space)["renewTime"]
        second.wait_until_it_leads()
        waited = parse_time(lease_of(space)["acquireTime"]) - parse_time(renewed)
        assert waited >= dt.timedelta(seconds=6)  # the Lease had expired
        space.cluster.apply(space.serving("next", engine__maxNumSeqs=8))
        wait_for("the second's Job", lambda: len(space.all("jobs")) == 2)

        # Told to end, it gives the Lease back: the next need not wait until it expires.
        assert second.end(signal.SIGTERM) == 0
        assert lease_of(space).get("holderIdentity", "") == ""


def test_one_that_was_stopped_meanwhile_writes_nothing_when_it_goes_on(
    operator: OperatorProcess, space: Space, tmp_path: Path
) -> None:
    """It goes on amid its work, before it finds that its Lease is gone."""
    space.cluster.apply(space.serving())
    wait_for("a Job", lambda: space.all("jobs"))
    with OperatorProcess(space.cluster.kubeconfig, tmp_path / "second.log", "second") as second:
        wait_for("it is there", lambda: second.answers)
        operator.process.send_signal(signal.SIGSTOP)
        second.wait_until_it_leads()
        # What the first is told as soon as it goes on.
        space.cluster.kubectl("delete", "deployment", f"chat-{ON_L4}", f"--namespace={space.name}")
        space.cluster.kubectl("scale", "ss/chat", f"--namespace={space.name}", "--replicas=1")
        wait_for("the second's work", lambda: replicas_of(space) == 1)
        wait_for("an end of writing", lambda: rests(space))
        before, told = len(writes_in(space)), len(operator.log)

        operator.process.send_signal(signal.SIGCONT)

        assert operator.process.wait(patience(10)) == 1
        assert "the Lease is lost; stopping" in operator.log[told:]
        assert not [e for e in writes_in(space)[before:] if e["verb"] not in ("get", "list", "watch")]


def replicas_of(space: Space) -> int:
    found = space.all("deployments").get(f"chat-{ON_L4}")
    return int(found["spec"]["replicas"]) if found else 0


def test_a_profile_that_a_gitops_tool_brought_is_served_without_measuring(
    operator: OperatorProcess, space: Space
) -> None:
    space.cluster.apply(space.serving())
    (job,) = wait_for("a Job", lambda: space.all("jobs")).values()
    key = job["metadata"]["labels"][names.PROFILE_KEY]
    other = Space(space.cluster)
    table = [[1, 16, 4], [17, 64, 1]]
    config = {
        "method": "draft_model",
        "model": "org/drafter",
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": table,
    }
    meta = {
        "name": "brought",
        "namespace": other.name,
        "labels": {names.ROLE: names.ROLE_PROFILE, names.MANAGED_BY: "flux"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": "their-uid"}],
    }
    data = {"profile.json": profile(key).to_json(), "speculative-config.json": json.dumps(config)}
    brought = {"apiVersion": "v1", "kind": "ConfigMap", "immutable": True, "metadata": meta, "data": data}
    other.cluster.apply(brought)

    other.cluster.apply(other.serving())

    found = wait_for("a status", lambda: other.status().get("accelerators"))[0]
    assert (found["serving"] or found["profile"]["configMap"], found["table"]) == ("brought", "1-16:4 17-64:1")
    wait_for("its Deployment", lambda: "brought" in json.dumps(other.all("deployments")))
    assert other.all("jobs") == {}


GHOST = "ghost"


class Listener(threading.Thread):
    """A mirror of the ConfigMaps, on a loop of its own, and what it was told of one of them."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.mirror = ConfigMaps()
        self.mirror.on_change(self._hear)
        self.heard: list[str] = []

    def _hear(self, ref: Ref, before: object, after: object) -> None:
        if ref.name == GHOST:
            self.heard.append("gone" if after is None else "there")

    def run(self) -> None:
        asyncio.run(self._follow())

    async def _follow(self) -> None:
        async with await Client.connect() as client:
            await self.mirror.run(client)


def test_a_child_that_was_deleted_while_nobody_could_tell_is_no_ghost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch is cut, the child deleted, and the API server restarted: it knows nothing of the old version any more.

    On the way: an operator that starts before its CRD is there waits for it.
    """
    with Cluster.control_plane() as cluster:
        link = Link(cluster.kubeconfig, tmp_path)
        monkeypatch.setenv("KUBECONFIG", str(link.kubeconfig))
        patience = {"SPECSERVE_LEASE_SECONDS": "120"}  # this test is about the watch, not about the Lease
        with OperatorProcess(link.kubeconfig, tmp_path / "operator.log", "operator", **patience) as operator:
            wait_for("it waits", lambda: "waiting for speculativeservings.specserve.dev: 404" in operator.log)
            install_crd(cluster)
            add_node(cluster, "n1", "NVIDIA-L4", 4)
            space = Space(cluster)
            space.cluster.apply(space.serving())
            name = f"chat-{ON_L4}"
            first = wait_for("a Deployment", lambda: space.all("deployments").get(name))
            wait_for("a Job", lambda: space.all("jobs"))
            labels = {names.ROLE: names.ROLE_PROFILE}
            meta = {"name": GHOST, "namespace": space.name, "labels": labels}
            space.cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
            listener = Listener()
            listener.start()
            wait_for("the mirror hears of it", lambda: listener.heard == ["there"])

            link.cut()
            space.cluster.kubectl("delete", f"deployment/{name}", f"configmap/{GHOST}", f"--namespace={space.name}")
            restart_api_server(cluster)
            assert space.all("deployments") == {}
            assert listener.heard == ["there"]
            link.mend()

            second = wait_for("another Deployment", lambda: space.all("deployments").get(name), 40)
            assert uid(second) != uid(first)
            wait_for("the mirror knows that it is gone", lambda: listener.heard == ["there", "gone"], 40)
            assert "deployments: 410 Expired" in operator.log
        link.close()
