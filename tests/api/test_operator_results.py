"""Measurements on a real API server: whose they are, what they mount, and that none is lost."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.api.operator_process import OperatorProcess, wait_for
from tests.api.space import Space, add_node, install_crd, uid
from tests.builders import profile

from devcluster import Cluster
from specserve_operator.api import names
from specserve_operator.api.records import Json
from specserve_operator.manifests.profiling import package_name
from specserve_profiler.contract.message import encode
from specserve_profiler.contract.package import build_zip

pytestmark = pytest.mark.apiserver


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane of its own, with an operator that leads."""
    log = tmp_path_factory.mktemp("operator") / "log"
    with Cluster.control_plane() as cluster:
        install_crd(cluster)
        add_node(cluster, "n1", "NVIDIA-L4", 4)
        with OperatorProcess(cluster.kubeconfig, log, "operator") as operator:
            operator.wait_until_it_leads()
            yield cluster


@pytest.fixture
def space(operated: Cluster) -> Space:
    return Space(operated)


def patch_status(space: Space, what: str, status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    where = (f"--namespace={space.name}", "--subresource=status", "--type=merge")
    space.cluster.kubectl("patch", what, *where, f"--patch={patch}")


def finish(space: Space, job: Json, message: str, *, owned: bool = True) -> None:
    """What kubelet and Job controller do at the end of a measurement; without an owner: what a forger can."""
    name = f"{job['metadata']['name']}-{'pod' if owned else 'forged'}"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": uid(job)}
    meta = {
        "name": name,
        "namespace": space.name,
        "labels": {
            **job["spec"]["template"]["metadata"]["labels"],
            "batch.kubernetes.io/controller-uid": uid(job),
        },
        "ownerReferences": [{**owner, "controller": True}] if owned else [],
    }
    spec = {"containers": [{"name": "engine", "image": "vllm"}], "restartPolicy": "Never"}
    space.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "message": message}}
    container = {
        "name": "engine", "image": "vllm", "imageID": "", "ready": False, "restartCount": 0, "state": ended,
    }  # fmt: skip
    patch_status(space, f"pod/{name}", {"phase": "Succeeded", "containerStatuses": [container]})


def complete(space: Space, job: Json) -> None:
    at = job["metadata"]["creationTimestamp"]
    done = [
        {"type": kind, "status": "True", "lastProbeTime": at, "lastTransitionTime": at}
        for kind in ("SuccessCriteriaMet", "Complete")
    ]
    times = {"startTime": at, "completionTime": at}
    patch_status(space, f"job/{job['metadata']['name']}", {**times, "succeeded": 1, "conditions": done})


def profiles(space: Space) -> dict[str, Json]:
    """By key."""
    found = (c for c in space.all("configmaps").values() if c["metadata"].get("labels", {}).get(names.PROFILE_KEY))
    return {c["metadata"]["labels"][names.PROFILE_KEY]: c for c in found}


def test_a_result_that_an_edit_made_useless_is_stored_and_no_forged_one(space: Space) -> None:
    space.cluster.apply(space.serving())
    (job,) = wait_for("a Job", lambda: space.all("jobs")).values()
    key = job["metadata"]["labels"][names.PROFILE_KEY]
    finish(space, job, encode(profile(key, rows=((1, 64, 1),))), owned=False)
    finish(space, job, encode(profile(key, rows=((1, 64, 2),))))

    space.cluster.apply(space.serving(engine__maxNumSeqs=32))  # before the Job controller has seen the end
    wait_for("the other key's Job", lambda: len(space.all("jobs")) == 2)
    complete(space, job)

    stored = wait_for("its profile", lambda: profiles(space).get(key))
    assert stored["data"]["table.json"] == "[[1,64,2]]"
    assert json.loads(stored["data"]["key-inputs.json"])["engine"]["maxNumSeqs"] == 64


def test_a_foreign_package_is_mounted_by_no_job(space: Space) -> None:
    labels = {names.ROLE: names.ROLE_PACKAGE, names.MANAGED_BY: names.MANAGER}
    name = package_name(build_zip())
    evil = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": space.name, "labels": labels},
        "immutable": True,
        "binaryData": {names.PACKAGE_ZIP: base64.b64encode(b"evil").decode()},
    }
    space.cluster.apply(evil)

    space.cluster.apply(space.serving())

    told = wait_for("a refusal", lambda: space.condition("Accepted").get("status") == "False" and space.status())
    assert f"ConfigMap {space.name}/{name} is there already, not made by specserve: delete it" in told["summary"]
    assert space.all("jobs") == {}

    space.cluster.kubectl("delete", "configmap", name, f"--namespace={space.name}")
    wait_for("a Job", lambda: space.all("jobs"), 60)
    assert space.all("configmaps")[name]["binaryData"] != evil["binaryData"]


def test_a_job_mounts_a_copy_of_the_prompts_that_its_key_hashes(space: Space) -> None:
    space.put_prompts("mine", '{"prompt": "First."}\n')
    source = {"configMap": {"name": "mine"}}
    space.cluster.apply(space.serving(profile__workload__source=source))
    (job,) = wait_for("a Job", lambda: space.all("jobs")).values()
    (copy,) = space.copies("mine")
    space.put_prompts("mine", '{"prompt": "Second."}\n')
    wait_for("its change is noticed", lambda: len(space.all("jobs").keys() - {job["metadata"]["name"]}) == 1)

    volumes = {v["name"]: v for v in job["spec"]["template"]["spec"]["volumes"]}
    assert volumes["specserve-prompts"]["configMap"]["name"] == copy
    wait_for("the copy before it is gone", lambda: copy not in space.copies("mine"))
    (second,) = space.copies("mine")
    found = space.all("configmaps")
    assert (found[second]["immutable"], found[second]["data"]) == (True, {"prompts.jsonl": '{"prompt": "Second."}\n'})
    assert [o["uid"] for o in found[second]["metadata"]["ownerReferences"]] == [uid(found["mine"])]


def test_a_shared_job_ends_with_the_last_that_waits_for_it(space: Space) -> None:
    space.cluster.apply(space.serving("one"), space.serving("two"))

    def owners(name: str) -> set[str]:
        job = space.all("jobs").get(name)
        return {o["name"] for o in job["metadata"]["ownerReferences"]} if job else set()

    (shared,) = wait_for("a Job", lambda: space.all("jobs"))
    wait_for("both wait for it", lambda: owners(shared) == {"one", "two"})

    space.cluster.apply(space.serving("one", engine__maxNumSeqs=32))
    wait_for("one waits for it", lambda: owners(shared) == {"two"})
    space.cluster.apply(space.serving("two", engine__maxNumSeqs=32))
    wait_for("it is gone", lambda: shared not in space.all("jobs"))
    assert len(space.all("jobs")) == 1
