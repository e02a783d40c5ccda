"""The life of one profile: what its state and message say, and when it is measured again."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders import A100, L4, REMOVE, SERVING, edited, later, node, profile
from tests.memory import World

from specserve_operator.api import names
from specserve_operator.api.serving import ProfileStatus
from specserve_operator.api.settings import Settings
from specserve_profiler.contract.message import encode
from specserve_profiler.contract.profile import Failure

FAILED = Failure(reason="EngineFailed", message="CUDA out of memory: lower --gpu-memory-utilization.")


@pytest.fixture
async def w() -> World:
    """A serving whose Job was just made; nothing serves meanwhile."""
    made = World(edited(SERVING, {"spec.speculation.beforeProfile": "Wait"}), node("n1"))
    await made.settle()
    return made


def key(w: World) -> str:
    return w.key_of(w.jobs[0])


async def stands(w: World) -> ProfileStatus:
    await w.settle()
    (accelerator,) = w.status().accelerators
    return accelerator.profile


def running(job: str) -> str:
    return f"no profile yet; Job {job}: "


async def test_a_missing_profile_asks_for_a_job(w: World) -> None:
    assert w.jobs == [f"{key(w)}-1"]
    assert key(w).startswith("specserve-")
    assert w.api.of("Job", w.jobs[0])["metadata"]["annotations"]["specserve.dev/attempt"] == "1"  # type: ignore[index]


@pytest.mark.parametrize(
    ("status", "on", "state", "stage"),
    [
        pytest.param(None, "", "Queued", "its pod is being made", id="no pod yet"),
        pytest.param({"phase": "Pending"}, "", "Queued", "waiting for a device: not scheduled yet", id="pending"),
        pytest.param(
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient gpu."}]},
            "",
            "Queued",
            "waiting for a device: 0/1 nodes: Insufficient gpu.",
            id="no free device",
        ),
        pytest.param({"phase": "Pending"}, "n1", "Profiling", "starting on n1", id="scheduled"),
        pytest.param(
            {
                "phase": "Pending",
                "containerStatuses": [{"name": "engine", "state": {"waiting": {"reason": "ErrImagePull"}}}],
            },
            "n1",
            "Profiling",
            "starting on n1: ErrImagePull: check engine.image and podTemplate's imagePullSecrets",
            id="no image",
        ),
        pytest.param({"phase": "Running"}, "n1", "Profiling", "loading the model on n1", id="loading"),
        pytest.param(
            {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            "n1",
            "Profiling",
            "measuring on n1",
            id="measuring",
        ),
    ],
)
async def test_the_message_says_how_far_a_job_is(
    w: World, status: dict[str, Any] | None, on: str, state: str, stage: str
) -> None:
    (job,) = w.jobs
    if status is not None:
        w.put_pod(job, status, on)

    found = await stands(w)

    assert (found.state, found.reason, found.message) == (state, "ProfileMissing", running(job) + stage)


async def test_a_job_whose_pod_is_refused_says_where_to_look(w: World) -> None:
    (job,) = w.jobs
    made = w.api.of("Job", job)
    assert made is not None
    w.api.put(edited(made, {"metadata.creationTimestamp": later(0)}))

    w.pass_time(29)
    assert (await stands(w)).message == running(job) + "its pod is being made"
    w.pass_time(1)
    found = await stands(w)
    assert found.message == (
        running(job) + f"no pod of it was taken: a quota or a policy may refuse it: kubectl describe job {job}"
    )


async def test_a_pod_that_was_lost_with_its_node_is_not_taken_for_its_successor(w: World) -> None:
    (job,) = w.jobs
    lost = {"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True"}]}
    w.put_pod(job, lost, "n0", name="first")
    w.start_pod(job, ready=True)

    assert (await stands(w)).message == running(job) + "measuring on n1"


async def test_a_result_becomes_a_config_map_with_all_that_people_and_engines_need(w: World) -> None:
    (job,) = w.jobs
    result = profile(key(w))
    w.finish(job, encode(result), succeeds=True)

    found = await stands(w)

    (name,) = w.profiles()
    stored = w.api.of("ConfigMap", name)
    assert stored is not None
    assert stored["immutable"] is True
    assert stored["metadata"]["labels"]["specserve.dev/profile-key"] == key(w)
    assert sorted(stored["data"]) == [
        "key-inputs.json",
        "profile.json",
        "speculative-config.json",
        "summary.txt",
        "table.json",
    ]
    assert stored["data"]["table.json"] == "[[1,16,4],[17,64,1]]"
    assert stored["data"]["summary.txt"].splitlines() == [
        f"{L4}, vLLM 0.33.0, 2026-11-03T12:00:00Z",
        "verdict: Dynamic - The table has the highest goodput.",
        "table: 1-16:4 17-64:1",
        "batch size 1: 2.00 x baseline, 1.00 x the best static K (verified)",
        "batch size 64: 1.12 x baseline, 1.50 x the best static K (predicted)",
    ]
    assert (found.state, found.config_map, found.verdict, found.measured_at) == ("Ready", name, "Dynamic", later(0))


async def test_a_job_whose_pod_is_gone_is_measured_again_and_says_so(w: World) -> None:
    (job,) = w.jobs
    w.finish(job, None, succeeds=True)

    await w.round()

    assert w.jobs == [f"{key(w)}-2"]
    assert w.status().accelerators[0].profile.message == (
        f"the pod of Job {job} was gone before its result was read; no profile yet; starting Job {key(w)}-2"
    )


async def test_a_result_that_is_lost_again_waits_as_any_failure_does(w: World) -> None:
    w.finish(w.jobs[0], None, succeeds=True)
    await w.round()

    w.finish(w.jobs[0], None, succeeds=True)
    for _ in range(5):
        await w.round()

    assert w.jobs == [f"{key(w)}-2"]
    found = w.status().accelerators[0].profile
    assert (found.state, found.reason) == ("Failed", "ResultLost")
    assert f"Next attempt at {later(1200)}" in found.message


async def test_the_pause_counts_failures_in_a_row_not_measurements(w: World) -> None:
    for count in range(6):
        w.finish(w.jobs[-1], profile(key(w)))
        await w.settle()
        w.edit({"metadata.annotations": {"specserve.dev/reprofile": f"again {count}"}})
        await w.settle()

    w.finish(w.jobs[-1], FAILED)
    await w.settle()

    assert f"Next attempt at {later(600)}" in w.status().accelerators[0].profile.message


async def test_a_failure_says_why_and_when_the_next_attempt_is(w: World) -> None:
    (job,) = w.jobs
    w.finish(job, FAILED)

    found = await stands(w)

    assert (found.state, found.reason) == ("Failed", "EngineFailed")
    assert found.message == (
        f"Job {job} (attempt 1): CUDA out of memory: lower --gpu-memory-utilization. Next attempt at {later(600)},"
        " or at once after an edit of the spec or a new value of the annotation specserve.dev/reprofile."
    )
    assert w.jobs == [job]  # it stays, with its log, until the next
    assert w.events().count("ProfilingFailed") == 1
    assert await w.round() == pytest.approx(300)  # the resync comes before the retry


async def test_pauses_double_and_end_at_their_limit() -> None:
    w = World(SERVING, node("n1"), settings=Settings(retry_seconds=600, retry_limit_seconds=2000))
    await w.settle()
    pauses = []
    for attempt in (1, 2, 3, 4, 5):
        assert w.jobs == [f"{key(w)}-{attempt}"]
        w.finish(w.jobs[0], FAILED)
        await w.settle()
        began = w.now
        while w.jobs == [f"{key(w)}-{attempt}"]:
            w.pass_time(50)
            await w.settle()
        pauses.append((w.now - began).total_seconds())

    assert pauses == [600, 1200, 2000, 2000, 2000]


async def test_the_pause_outlives_the_operator(w: World) -> None:
    w.finish(w.jobs[0], FAILED)
    await w.settle()
    w.restart_operator()
    w.pass_time(599)
    await w.settle()
    assert w.jobs == [f"{key(w)}-1"]

    w.pass_time(1)
    await w.settle()
    assert w.jobs == [f"{key(w)}-2"]


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param({"spec.profile.timeoutSeconds": 7200}, id="spec"),
        pytest.param({"metadata.annotations": {names.REPROFILE: "now"}}, id="annotation"),
    ],
)
async def test_an_edit_or_the_annotation_starts_again_at_once(w: World, edits: dict[str, Any]) -> None:
    w.finish(w.jobs[0], FAILED)
    await w.settle()

    w.edit(edits)
    await w.settle()

    assert w.jobs == [f"{key(w)}-2"]


async def test_scaling_does_not_start_again(w: World) -> None:
    """An autoscaler edits replicas all day; that mends no failure."""
    w.finish(w.jobs[0], FAILED)
    await w.settle()

    w.edit({"spec.replicas": 7})
    await w.settle()

    assert w.jobs == [f"{key(w)}-1"]


async def test_the_annotation_asks_once_per_value(w: World) -> None:
    w.finish(w.jobs[0], profile(key(w)))
    await w.settle()
    w.edit({"metadata.annotations": {names.REPROFILE: "tuesday"}})
    found = await stands(w)
    assert w.jobs == [f"{key(w)}-2"]
    assert (found.reason, found.message.partition(";")[0]) == ("Requested", "annotation reprofile=tuesday")

    w.pass_time(900)
    w.finish(w.jobs[0], profile(key(w), rows=((1, 64, 2),), at=w.now))
    found = await stands(w)

    assert found.measured_at == later(900)
    assert w.status().accelerators[0].table == "1-64:2"
    assert len(w.profiles()) == 2
    assert w.jobs == [f"{key(w)}-2"]


async def test_a_failed_request_keeps_the_profile_that_was_there(w: World) -> None:
    w.finish(w.jobs[0], profile(key(w)))
    await w.settle()
    (name,) = w.profiles()
    w.edit({"metadata.annotations": {names.REPROFILE: "tuesday"}})
    await w.settle()
    w.finish(w.jobs[0], FAILED)

    found = await stands(w)

    assert (found.state, found.config_map) == ("Failed", name)
    assert w.replicas() != {}


async def test_what_is_stored_is_used_without_a_job(w: World) -> None:
    w.finish(w.jobs[0], profile(key(w)))
    await w.settle()
    for job in w.jobs:
        w.remove("Job", job)

    assert (await stands(w)).state == "Ready"
    assert w.jobs == []


async def test_a_stored_profile_that_was_deleted_is_measured_again(w: World) -> None:
    w.finish(w.jobs[0], profile(key(w)))
    await w.settle()
    w.roll_out()
    w.remove("ConfigMap", w.profiles()[0])
    for job in w.jobs:
        w.remove("Job", job)

    found = await stands(w)

    assert w.jobs == [f"{key(w)}-1"]
    assert found.state == "Queued"


PROFILE_LABELS = {"specserve.dev/role": "profile", "specserve.dev/profile-key": ""}


def foreign(key: str, data: dict[str, str]) -> dict[str, Any]:
    labels = {"specserve.dev/role": "profile", "specserve.dev/profile-key": key}
    meta = {"name": "from-git", "namespace": "team", "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


DRAFTER = {"method": "draft_model", "model": "org/drafter"}


def texts(key: str, **decision: Any) -> dict[str, str]:
    made = profile(key, **decision)
    k = max(row.k for row in made.decision.table)
    table = [[row.first, row.last, row.k] for row in made.decision.table]
    config = {**DRAFTER, "num_speculative_tokens": k, "num_speculative_tokens_per_batch_size": table}
    return {"profile.json": made.model_dump_json(by_alias=True), "speculative-config.json": json.dumps(config)}


def but(text: str, **changes: Any) -> str:
    """A JSON text with other values; dots lead into objects."""
    return json.dumps(edited(json.loads(text), {path.replace("__", "."): value for path, value in changes.items()}))


async def test_a_profile_put_there_by_somebody_else_is_used_as_it_is(w: World) -> None:
    w.api.put(foreign(key(w), texts(key(w))))
    owner_free = w.api.of("ConfigMap", "from-git")

    found = await stands(w)

    assert (found.state, found.config_map) == ("Ready", "from-git")
    assert w.api.of("ConfigMap", "from-git") == owner_free


async def test_a_profile_of_a_newer_release_with_other_key_inputs_is_good_enough(w: World) -> None:
    w.api.put(foreign(key(w), {**texts(key(w)), "key-inputs.json": '{"unheardOf": 1}'}))

    assert (await stands(w)).state == "Ready"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({}, "it has no profile.json"),
        ({"profile.json": "{}"}, "key: Field required; measuredAt: Field required"),
        ({"profile.json": "gibberish"}, "Invalid JSON: expected value at line 1 column 1"),
        (texts("specserve-000000000000"), "it is of key specserve-000000000000, its label says"),
    ],
)
async def test_what_is_no_profile_is_not_used_and_is_told_even_when_there_is_a_good_one(
    w: World, data: dict[str, str], problem: str
) -> None:
    w.api.put(foreign(key(w), data))
    assert (await stands(w)).state == "Queued"
    assert f"; ConfigMap from-git is no profile: {problem}" in w.condition("Profiled")[2]

    w.finish(w.jobs[0], profile(key(w)))
    await w.settle()

    status, reason, message = w.condition("Profiled")
    assert (status, reason) == ("True", "AllProfiled")
    assert message.startswith(f"ConfigMap from-git is no profile: {problem}")


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("profile.json", {"measuredAt": "2026-11-03T12:00:00"}, "measuredAt: Input should have timezone info"),
        (
            "profile.json",
            {"decision__speedups": [{"batchSize": 1, "overBaseline": 0, "overStatic": 1}]},
            "decision.speedups.0.overBaseline: Input should be greater than 0",
        ),
        (
            "profile.json",
            {"decision__table": [{"first": 1, "last": 16, "k": 4}, {"first": 18, "last": 64, "k": 1}]},
            "decision: table: row 18-64: must begin at 17 and not end before that",
        ),
        ("profile.json", {"decision__staticK": -1}, "decision.staticK: Input should be greater than or equal to 0"),
        ("profile.json", {"decision__staticK": 99}, "decision.staticK: Input should be less than or equal to 16"),
        ("profile.json", {"decision__table": []}, "decision.table: Tuple should have at least 1 item"),
        ("profile.json", {"decision__speedups": [[]] * 50}, "decision.speedups.0: Input should be an object"),
        ("profile.json", {"decision__speedups": [[]] * 5_000}, "it has 5000 faults"),
        ("profile.json", {"decision__speedups": [[]] * 20_000}, "it has more than 10000 values"),
        ("profile.json", {"decision__speedups": [[]] * 50_000}, "it is larger than 128 KiB"),
        (
            "profile.json",
            {"measurements__baseline": [{"batchSize": 1, "blocks": 4, "itlMs": {"mean": 0}}]},
            "measurements.baseline.0.itlMs: mean must be from 1e-06 to 1e+09, is 0",
        ),
        (
            "profile.json",
            {"measurements__grid": [{"batchSize": 10**30, "k": 1, "itlMs": 9}]},
            "measurements.grid.0.batchSize: Input should be less than or equal to 65536",
        ),
        ("profile.json", {"measurements__device": "L4" * 10_000}, "measurements.device: String should have at most"),
        ("profile.json", {"measurements__device": "L4" * 100_000}, "it is larger than 128 KiB"),
        (
            "speculative-config.json",
            {"num_speculative_tokens": 3},
            "speculative-config.json does not say num_speculative_tokens 4",
        ),
        (
            "speculative-config.json",
            {"num_speculative_tokens_per_batch_size": [[1, 64, 4]]},
            "speculative-config.json does not say num_speculative_tokens_per_batch_size [[1, 16, 4], [17, 64, 1]]",
        ),
    ],
)
async def test_a_profile_that_could_not_be_served_by_is_not_used(
    w: World, name: str, change: dict[str, Any], problem: str
) -> None:
    data = texts(key(w))
    w.api.put(foreign(key(w), {**data, name: but(data[name], **change)}))

    assert (await stands(w)).state == "Queued"
    assert w.condition("Profiled")[2].count(f"; ConfigMap from-git is no profile: {problem}") == 1


MISFITS = [
    pytest.param(
        {"rows": ((1, 4, 4),)}, "decision.table: ends at batch size 4, maxNumSeqs is 64", id="a table that ends"
    ),
    pytest.param({"rows": ((1, 64, 5),)}, "decision.table: K = 5 exceeds maxTokens 4", id="K of a row"),
    pytest.param({"verdict": "Static", "static_k": 16}, "decision.staticK: K = 16 exceeds maxTokens 4", id="static K"),
]


@pytest.mark.parametrize(("changes", "problem"), MISFITS)
async def test_a_profile_for_another_engine_than_asked_for_is_not_used(
    w: World, changes: dict[str, Any], problem: str
) -> None:
    made = texts(key(w), **changes)
    config = {**DRAFTER, "num_speculative_tokens": 16}
    static = {"speculative-config.json": json.dumps(config)} if "verdict" in changes else {}
    w.api.put(foreign(key(w), {**made, **static}))

    assert (await stands(w)).state == "Queued"
    assert problem in w.condition("Profiled")[2]


@pytest.mark.parametrize(("changes", "problem"), MISFITS)
async def test_a_result_for_another_engine_than_asked_for_is_not_stored(
    w: World, changes: dict[str, Any], problem: str
) -> None:
    w.finish(w.jobs[0], profile(key(w), **changes))

    found = await stands(w)

    assert (found.state, found.reason) == ("Failed", "ResultInvalid")
    assert f"{problem}: measure again." in found.message
    assert w.profiles() == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"method": "ngram"}, 'says method "ngram", "draft_model" is what this serving has'),
        ({"model": "org/evil"}, 'says model "org/evil", "org/drafter" is what this serving has'),
        ({"model": REMOVE}, 'does not say model, "org/drafter" is what this serving has'),
        ({"revision": "main"}, 'says revision "main", this serving has no such key'),
        (
            {"draft_sample_method": "probabilistic"},
            'says draft_sample_method "probabilistic", this serving has no such',
        ),
        ({"num_speculative_tokens": 4.0}, "says num_speculative_tokens 4.0, 4 is what this serving has"),
    ],
)
async def test_another_drafter_than_the_servings_own_cannot_come_by_a_profile(
    w: World, change: dict[str, Any], problem: str
) -> None:
    data = texts(key(w))
    data["speculative-config.json"] = json.dumps(edited(json.loads(data["speculative-config.json"]), change))
    w.api.put(foreign(key(w), data))

    assert (await stands(w)).state == "Queued"
    words = f"ConfigMap from-git is no profile of this serving: speculative-config.json {problem}"
    assert words in w.condition("Profiled")[2]


async def test_a_profile_from_the_future_is_not_used(w: World) -> None:
    w.api.put(foreign(key(w), texts(key(w), at=w.now + dt.timedelta(seconds=301))))
    assert (await stands(w)).state == "Queued"
    words = "measuredAt 2026-11-03T12:05:01Z is later than now, 2026-11-03T12:00:00Z: mend it"
    assert words in w.condition("Profiled")[2]

    w.pass_time(1)  # as far as clocks of a cluster may differ
    assert (await stands(w)).state == "Ready"


async def test_a_result_from_a_node_whose_clock_is_ahead_has_the_time_at_which_its_job_ended(w: World) -> None:
    w.finish(w.jobs[0], profile(key(w), at=w.now + dt.timedelta(days=30)))

    found = await stands(w)

    assert (found.state, found.measured_at) == ("Ready", later(0))


async def test_a_profile_that_cannot_be_used_keeps_no_other_from_being_measured() -> None:
    w = World(SERVING, node("n1"))
    await w.settle()
    wanted = key(w)
    w.remove("Job", w.jobs[0])
    w.api.put(foreign(wanted, texts(wanted, rows=((1, 4, 4),))))

    await w.settle()

    assert w.jobs == [f"{wanted}-1"]


@pytest.mark.parametrize("text", ["gibberish", "[]", "[" * 100000])
async def test_a_configuration_that_is_no_json_object_is_not_used(w: World, text: str) -> None:
    w.api.put(foreign(key(w), {**texts(key(w)), "speculative-config.json": text}))

    assert (await stands(w)).state == "Queued"
    assert "speculative-config.json" in w.condition("Profiled")[2]


async def test_a_profile_needs_no_label_with_its_key(w: World) -> None:
    w.api.put(edited(foreign(key(w), texts(key(w))), {"metadata.labels": {"specserve.dev/role": "profile"}}))

    found = await stands(w)

    assert (found.state, found.config_map) == ("Ready", "from-git")


async def test_what_is_no_profile_and_has_no_key_is_told_too(w: World) -> None:
    w.api.put(edited(foreign(key(w), {}), {"metadata.labels": {"specserve.dev/role": "profile"}}))

    assert (await stands(w)).state == "Queued"
    assert w.condition("Profiled")[2].endswith("; ConfigMap from-git is no profile: it has no profile.json")


async def test_a_profile_that_speculates_without_its_configuration_is_not_used(w: World) -> None:
    data = texts(key(w))
    del data["speculative-config.json"]
    w.api.put(foreign(key(w), data))

    assert (await stands(w)).state == "Queued"


async def test_a_profile_of_another_schema_is_not_used(w: World) -> None:
    other = profile(key(w)).model_copy(update={"schema_version": 99})
    w.api.put(foreign(key(w), {"profile.json": other.model_dump_json(by_alias=True), "speculative-config.json": "{}"}))

    assert (await stands(w)).state == "Queued"
    assert "ConfigMap from-git is no profile: schema version 99, this operator reads 2" in w.condition("Profiled")[2]


async def test_a_profile_whose_schema_is_no_number_is_not_used(w: World) -> None:
    data = texts(key(w))
    data["profile.json"] = data["profile.json"].replace('"schemaVersion":2', '"schemaVersion":"2"')
    assert '"schemaVersion":"2"' in data["profile.json"]
    w.api.put(foreign(key(w), data))

    assert (await stands(w)).state == "Queued"
    told = w.condition("Profiled")[2]
    assert "ConfigMap from-git is no profile: schemaVersion: Input should be a valid integer" in told


@pytest.mark.parametrize("ready", [True, False], ids=["serving", "starting"])
async def test_a_profile_that_an_older_release_stored_serves_on_until_it_is_measured_anew(
    w: World, ready: bool
) -> None:
    w.api.put(foreign(key(w), texts(key(w))))
    await w.settle()
    w.roll_out(ready=ready)
    await w.settle()
    (name,) = w.replicas()
    before = w.deployment(name)
    for job in w.jobs:
        w.remove("Job", job)
    # The operator is upgraded: what it stored then has that form, and was measured for a key of then.
    old = yaml.safe_load((Path(__file__).parents[3] / "data" / "profile-schema-1.yaml").read_text())
    w.api.put({**old, "metadata": {**old["metadata"], "name": "from-git"}})
    w.restart_operator()

    found = await stands(w)

    assert (found.state, found.reason) == ("Queued", "SchemaChanged")
    assert found.message.startswith("profile schema 1 -> 2; Job ")
    assert w.jobs == [f"{key(w)}-1"]
    assert w.deployment(name) == before
    assert "is no profile" not in w.condition("Profiled")[2]


async def test_a_stored_profile_says_what_was_asked_for(w: World) -> None:
    (job,) = w.jobs
    asked = w.api.of("Job", job)
    assert asked is not None
    w.edit({"spec.profile.measureSeconds": 60})  # of no influence on the key: the Job goes on
    w.finish(job, profile(key(w)))
    await w.settle()

    (name,) = w.profiles()
    text = w.api.of("ConfigMap", name)["data"]["profile.json"]  # type: ignore[index]
    request = json.loads(text)["request"]
    assert (request["key"], request["measureSeconds"]) == (key(w), 900)
    assert request["prompts"] == {"path": "/specserve/prompts/prompts.jsonl", "hub": None}
    assert request["workload"]["outputTokens"] == 256


async def test_a_table_is_served_with_the_graphs_that_it_was_verified_with(w: World) -> None:
    w.api.put(foreign(key(w), texts(key(w), capture_sizes=(128, 5, 40))))
    await w.settle()

    (name,) = w.replicas()
    (container,) = w.deployment(name)["spec"]["template"]["spec"]["containers"]
    at = container["args"].index("--cudagraph-capture-sizes")
    assert container["args"][at + 1 : at + 4] == ["5", "40", "128"]


async def test_graphs_that_the_user_chose_are_served(w: World) -> None:
    w.edit({"spec.engine.args": ["--max-cudagraph-capture-size=64"]})
    await w.settle()
    w.api.put(foreign(key(w), texts(key(w), capture_sizes=(5, 40))))
    await w.settle()

    (name,) = w.replicas()
    (container,) = w.deployment(name)["spec"]["template"]["spec"]["containers"]
    assert "--cudagraph-capture-sizes" not in container["args"]


ADAPTIVE = {**DRAFTER, "num_speculative_tokens": 4, "enable_adaptive_verification": True}


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (ADAPTIVE, ""),
        ({**ADAPTIVE, "enable_adaptive_verification": False}, "does not say enable_adaptive_verification True"),
        (
            {**ADAPTIVE, "num_speculative_tokens_per_batch_size": [[1, 64, 2]]},
            "does not say num_speculative_tokens_per_batch_size None",
        ),
    ],
)
async def test_adaptive_verification_is_served_where_it_won(w: World, config: dict[str, Any], problem: str) -> None:
    data = {**texts(key(w), verdict="Adaptive"), "speculative-config.json": json.dumps(config)}
    w.api.put(foreign(key(w), data))

    found = await stands(w)

    assert found.state == ("Queued" if problem else "Ready")
    assert problem in w.condition("Profiled")[2]
    if not problem:
        (name,) = w.replicas()
        (container,) = w.deployment(name)["spec"]["template"]["spec"]["containers"]
        assert "--speculative-config=$(SPECSERVE_SPECULATIVE_CONFIG)" in container["args"]
        w.roll_out()
        await w.settle()
        assert w.status().summary.endswith("adaptive verification")


async def test_a_table_for_an_engine_that_knows_none_is_not_stored(w: World) -> None:
    made = profile(key(w))
    old = made.measurements.model_copy(update={"engine_version": "0.23.0"})
    w.finish(w.jobs[0], made.model_copy(update={"measurements": old}))

    found = await stands(w)

    assert (found.state, found.reason) == ("Failed", "ResultInvalid")
    assert "vLLM 0.23.0 knows no tables: use 0.24 or newer." in found.message


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("Traceback: no such module", "the termination message is not from the profiler: 'Traceback: no such module'"),
        (
            "specserve:3:profile:9999:0123456789ab:cut",
            "the termination message was cut short: 3 of 9999 bytes arrived.",
        ),
        ("specserve:1:profile:3:0123456789ab:old", "the profiler and the operator come from different releases"),
        ("specserve:7:profile:3:0123456789ab:new", "the profiler and the operator come from different releases"),
    ],
)
async def test_a_message_that_is_no_result_is_a_failure_that_says_so(w: World, message: str, words: str) -> None:
    w.finish(w.jobs[0], message, succeeds=True)

    found = await stands(w)

    assert (found.state, found.reason) == ("Failed", "ResultInvalid")
    assert words in found.message
    assert f"see the log of pod {w.jobs[0]}-pod" in found.message


async def test_a_result_of_another_key_is_not_stored(w: World) -> None:
    w.finish(w.jobs[0], profile("specserve-000000000000"))

    found = await stands(w)

    assert (found.state, found.reason) == ("Failed", "ResultInvalid")
    assert w.profiles() == []


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        pytest.param(
            {"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active on the node too long"},
            "TimedOut",
            "it did not end in time: raise profile.timeoutSeconds",
            id="deadline",
        ),
        pytest.param(
            {
                "phase": "Failed",
                "containerStatuses": [{"name": "engine", "state": {"terminated": {"reason": "OOMKilled"}}}],
            },
            "OutOfMemory",
            "raise its memory limit in podTemplate",
            id="memory",
        ),
        pytest.param(
            {
                "phase": "Failed",
                "containerStatuses": [{"name": "engine", "state": {"terminated": {"reason": "Error"}}}],
            },
            "BackoffLimitExceeded",
            "Job has reached the specified backoff limit.",
            id="without a word",
        ),
    ],
)
async def test_a_pod_that_ended_without_a_message(w: World, status: dict[str, Any], reason: str, words: str) -> None:
    (job,) = w.jobs
    w.put_pod(job, status, "n1")
    w.end_job(job, succeeds=False)

    found = await stands(w)

    assert (found.state, found.reason) == ("Failed", reason)
    assert words in found.message


async def test_a_failure_whose_words_break_every_bound_is_still_told(w: World) -> None:
    (job,) = w.jobs
    obj = w.api.of("Job", job)
    condition = {"type": "Failed", "status": "True", "reason": "not camel case!", "message": "x" * 30000}
    w.api.put({**(obj or {}), "status": {"conditions": [{**condition, "lastTransitionTime": later(0)}]}})

    found = await stands(w)

    assert (found.state, found.reason) == ("Failed", "JobFailed")
    assert len(found.message) <= 2048


async def test_the_result_of_a_job_that_was_disrupted_once_is_that_of_its_last_pod(w: World) -> None:
    (job,) = w.jobs
    ended = {"terminated": {"message": encode(Failure(reason="Interrupted", message="SIGTERM."))}}
    w.put_pod(
        job,
        {
            "phase": "Failed",
            "conditions": [{"type": "DisruptionTarget", "status": "True"}],
            "containerStatuses": [{"name": "engine", "state": ended}],
        },
        "n0",
        name="a-first-pod",
    )
    w.finish(job, profile(key(w)))

    assert (await stands(w)).state == "Ready"


async def test_no_job_starts_where_no_node_could_take_it() -> None:
    w = World(SERVING, node("n1", ready=False))

    found = await stands(w)

    assert (found.state, found.reason) == ("Missing", "NoUsableNode")
    assert found.message == (
        "no profile yet; waiting for a node that is Ready, schedulable and changes neither driver nor MIG"
    )
    assert w.jobs == []


async def test_every_accelerator_has_a_key_of_its_own() -> None:
    w = World(SERVING, node("n1", L4), node("n2", A100))
    await w.settle()

    assert len({w.key_of(job) for job in w.jobs}) == 2


async def test_the_package_is_published_once_and_the_job_mounts_it(w: World) -> None:
    (job,) = w.jobs
    packages = [n for n in w.api.names("ConfigMap") if n.startswith("specserve-profiler-")]
    volumes = {v["name"]: v for v in w.api.of("Job", job)["spec"]["template"]["spec"]["volumes"]}  # type: ignore[index]

    assert [volumes["specserve-package"]["configMap"]["name"]] == packages
