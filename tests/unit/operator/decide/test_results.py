"""No finished measurement is lost, and only a Job's own pod says what it measured."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.builders import SERVING, edited, node, profile
from tests.memory import World

from specserve_operator.api import names
from specserve_operator.store.client import ApiError
from specserve_profiler.contract.message import encode
from specserve_profiler.contract.profile import Failure

OTHER_ENGINE = {"spec.engine.args": ["--enforce-eager"]}


@pytest.fixture
async def w() -> World:
    """A serving whose Job was just made; nothing serves meanwhile."""
    made = World(edited(SERVING, {"spec.speculation.beforeProfile": "Wait"}), node("n1"))
    await made.settle()
    return made


def end_pod(w: World, job: str, message: str) -> None:
    """Its pod has ended; the Job controller has not seen that yet."""
    ended = {"name": "engine", "state": {"terminated": {"message": message}}}
    w.put_pod(job, {"phase": "Succeeded", "containerStatuses": [ended]}, "n1")


def keys_of_profiles(w: World) -> list[str]:
    return [name.rpartition("-")[0] for name in w.profiles()]


async def test_a_result_that_nobody_asks_for_any_more_is_stored_and_found_again(w: World) -> None:
    (job,) = w.jobs
    key = w.key_of(job)
    w.start_pod(job, ready=True)
    await w.settle()
    w.finish(job, profile(key))

    w.edit(OTHER_ENGINE)  # before the operator has looked
    await w.settle()

    assert keys_of_profiles(w) == [key]
    stored = w.api.of("ConfigMap", w.profiles()[0])
    assert stored is not None
    inputs = json.loads(stored["data"]["key-inputs.json"])
    assert (inputs["accelerator"]["product"], inputs["engine"].get("args")) == ("NVIDIA-L4", None)
    assert json.loads(stored["data"]["profile.json"])["request"]["key"] == key

    w.edit({"spec.engine.args": []})
    await w.settle()
    assert w.condition("Profiled")[:2] == ("True", "AllProfiled")
    assert [job for job in w.jobs if w.key_of(job) == key] == [job]


async def test_a_job_whose_pod_has_just_measured_is_not_ended_by_an_edit(w: World) -> None:
    (job,) = w.jobs
    key = w.key_of(job)
    end_pod(w, job, encode(profile(key)))

    w.edit(OTHER_ENGINE)
    await w.settle()
    assert job in w.jobs

    w.end_job(job, succeeds=True)
    await w.settle()
    assert keys_of_profiles(w) == [key]


async def test_a_result_is_stored_though_the_spec_is_refused(w: World) -> None:
    (job,) = w.jobs
    w.finish(job, profile(w.key_of(job)))
    w.edit({"spec.engine.args": ["--port=9"]})

    await w.settle()

    assert keys_of_profiles(w) == [w.key_of(job)]


async def test_a_result_is_stored_before_a_new_measurement_is_asked_for(w: World) -> None:
    (job,) = w.jobs
    key = w.key_of(job)
    w.finish(job, profile(key))
    w.edit({"metadata.annotations": {names.REPROFILE: "tuesday"}})

    await w.settle()

    assert keys_of_profiles(w) == [key]
    assert w.jobs == [f"{key}-2"]


async def test_a_job_stays_until_its_result_is_stored(w: World) -> None:
    (job,) = w.jobs
    key = w.key_of(job)
    w.finish(job, profile(key))
    w.edit({"metadata.annotations": {names.REPROFILE: "tuesday"}})
    w.api.refuse["POST ConfigMap"] = ApiError(403, "Forbidden", "exceeded quota: config-maps")

    for _ in range(3):
        with pytest.raises(ApiError, match="exceeded quota"):
            await w.round()
    assert w.jobs == [job]

    w.api.refuse.clear()
    await w.settle()
    assert keys_of_profiles(w) == [key]


async def test_a_result_that_cannot_be_stored_keeps_no_other_key_from_being_measured() -> None:
    w = World(edited(SERVING, {"spec.profile.workload.source": {"path": "/models/prompts.jsonl"}}), node("n1"))
    await w.settle()
    (job,) = w.jobs
    w.finish(job, profile(w.key_of(job)))
    w.edit(OTHER_ENGINE)
    w.api.refuse["POST ConfigMap"] = ApiError(403, "Forbidden", "exceeded quota: config-maps")

    with pytest.raises(ApiError, match="exceeded quota"):
        await w.round()

    assert len(w.jobs) == 2


async def test_a_result_is_stored_once(w: World) -> None:
    (job,) = w.jobs
    w.finish(job, profile(w.key_of(job)))
    w.edit(OTHER_ENGINE)
    await w.settle()

    plan = await w.plan()

    assert plan.create == ()


async def test_a_result_of_another_key_than_its_job_says_is_not_stored(w: World) -> None:
    (job,) = w.jobs
    obj = w.api.of("Job", job)
    assert obj is not None
    inputs = json.loads(obj["metadata"]["annotations"]["specserve.dev/key-inputs"])
    forged = json.dumps({**inputs, "image": "another"})
    w.api.put(
        edited(obj, {"metadata.annotations": {**obj["metadata"]["annotations"], names.KEY_INPUTS_OF_JOB: forged}})
    )
    w.finish(job, profile(w.key_of(job)))
    w.edit(OTHER_ENGINE)

    await w.settle()

    assert w.profiles() == []


@pytest.mark.parametrize("result", [Failure(reason="EngineFailed", message="no."), "gibberish", None])
async def test_what_is_no_result_is_stored_by_nobody(w: World, result: Any) -> None:
    w.finish(w.jobs[0], result, succeeds=False)
    w.edit(OTHER_ENGINE)

    await w.settle()

    assert w.profiles() == []


async def test_a_pod_with_a_jobs_labels_that_the_job_does_not_own_says_nothing(w: World) -> None:
    (job,) = w.jobs
    w.put_pod(job, {}, name="forged")
    forged = w.api.of("Pod", "forged")
    assert forged is not None
    labels = {
        **forged["metadata"]["labels"],
        "batch.kubernetes.io/controller-uid": w.api.of("Job", job)["metadata"]["uid"],  # type: ignore[index]
    }
    ended = {"name": "engine", "state": {"terminated": {"message": encode(profile(w.key_of(job), rows=((1, 64, 1),)))}}}
    w.api.put(
        edited(
            forged,
            {
                "metadata.labels": labels,
                "metadata.ownerReferences": [],
                "status": {"phase": "Succeeded", "containerStatuses": [ended]},
            },
        )
    )
    w.finish(job, profile(w.key_of(job), rows=((1, 64, 2),)))

    await w.settle()

    (name,) = w.profiles()
    assert w.api.of("ConfigMap", name)["data"]["table.json"] == "[[1,64,2]]"  # type: ignore[index]


async def test_a_stored_profile_names_variables_and_never_says_their_values(w: World) -> None:
    w.edit({"spec.engine.args": ["--served-model-name=$(NAME)"], "spec.model.name": "$(MODELS)/target"})
    await w.settle()
    (job,) = w.jobs
    w.finish(job, profile(w.key_of(job)))
    await w.settle()

    (name,) = w.profiles()
    request = json.loads(w.api.of("ConfigMap", name)["data"]["profile.json"])["request"]  # type: ignore[index]
    assert (request["model"], request["engine"]["args"]) == ("$(MODELS)/target", ["--served-model-name=$(NAME)"])
