"""The status: true, dated, short enough, and told once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import A100, L4, SERVING, edited, later, node, profile
from tests.memory import World

from specserve_operator.api.serving import ServingStatus
from specserve_operator.decide.status import cut
from specserve_profiler.contract.profile import Failure

ON_L4 = "chat-nvidia-l4-ea1e09"
PRODUCT = "nvidia.com/gpu.product"
NOTE = (
    "Model Runner V2 drafts Kmax tokens with draft_model and then cuts to K: a smaller K saves verification only, so a"
    " table gains less than it could (where the engine uses Model Runner V2; VLLM_USE_V2_MODEL_RUNNER=0 in its env"
    " chooses V1)"
)


@pytest.fixture
async def w() -> World:
    made = World(SERVING, node("n1", devices=4))
    await made.settle()
    return made


async def ready(w: World) -> World:
    for job in w.jobs:
        w.finish(job, profile(w.key_of(job)))
    await w.settle()
    w.roll_out()
    await w.settle()
    return w


async def test_all_conditions_of_a_fresh_serving(w: World) -> None:
    job = f"no profile yet; Job {w.jobs[0]}: its pod is being made"

    assert {(c.type, c.status, c.reason, c.message) for c in w.status().conditions} == {
        ("Accepted", "True", "Accepted", NOTE),
        ("AcceleratorsFound", "True", "Found", f"{L4} on 1 node(s)"),
        ("Profiled", "False", "Queued", f"{L4}: {job}"),
        ("Available", "False", "ReplicasMissing", "0 of 3 replicas are ready"),
        ("Progressing", "True", "Changing", f"{L4}: queued"),
        ("Ready", "False", "Queued", f"{L4}: {job}"),
    }
    assert w.status().summary == f"Queued: {L4}: {job}"


async def test_all_conditions_of_a_serving_that_is_fine(w: World) -> None:
    await ready(w)

    assert {(c.type, c.status, c.reason, c.message) for c in w.status().conditions} == {
        ("Accepted", "True", "Accepted", NOTE),
        ("AcceleratorsFound", "True", "Found", f"{L4} on 1 node(s)"),
        ("Profiled", "True", "AllProfiled", ""),
        ("Available", "True", "ReplicasReady", "3 of 3 replicas are ready"),
        ("Progressing", "False", "Settled", ""),
        ("Ready", "True", "Serving", ""),
    }


async def test_a_variant_in_full(w: World) -> None:
    await ready(w)

    (accelerator,) = w.status().accelerators
    assert accelerator.model_dump(exclude={"profile": {"key", "config_map"}}) == {
        "name": "nvidia-l4-ea1e09",
        "product": L4,
        "nodes": 1,
        "capacity": 4,
        "replicas": 3,
        "ready": 3,
        "serving": w.profiles()[0],
        "table": "1-16:4 17-64:1",
        "speedup": {"over_baseline": "2.00", "over_static": "1.00"},  # of what was verified
        "profile": {
            "state": "Ready",
            "reason": "",
            "message": "",
            "measured_at": later(0),
            "verdict": "Dynamic",
        },
        "missing_since": None,
    }


async def test_autoscalers_find_the_serving_pods_and_no_others(w: World) -> None:
    assert w.status().selector == "specserve.dev/role=serving,specserve.dev/serving=chat"
    labels = w.deployment(ON_L4)["spec"]["template"]["metadata"]["labels"]
    job = w.api.of("Job", w.jobs[0])
    profiling = job["spec"]["template"]["metadata"]["labels"] if job else {}
    for pair in w.status().selector.split(","):
        label, _, value = pair.partition("=")
        assert labels[label] == value
        assert profiling.get(label) != value


async def test_pods_that_are_counted(w: World) -> None:
    labels = {"specserve.dev/serving": "chat", "specserve.dev/role": "serving"}
    for name, phase in (("a", "Running"), ("b", "Pending"), ("c", "Failed"), ("d", "Succeeded")):
        w.api.put(
            {
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "team", "labels": labels},
                "status": {"phase": phase},
            }
        )

    await w.settle()

    assert w.status().replicas == 2


async def test_a_transition_keeps_its_time_until_the_status_changes(w: World) -> None:
    def since(kind: str) -> str:
        return next(c.last_transition_time for c in w.status().conditions if c.type == kind)

    assert since("Ready") == later(0)
    w.pass_time(60)
    w.start_pod(w.jobs[0])  # another message, the same status
    await w.settle()
    assert since("Ready") == later(0)

    w.pass_time(60)
    await ready(w)
    assert since("Ready") == later(120)
    assert since("Accepted") == later(0)


async def test_conditions_say_which_spec_they_are_about(w: World) -> None:
    await ready(w)
    w.edit({"spec.replicas": 4})
    await w.settle()

    assert w.status().observed_generation == w.serving().generation == 2
    assert {c.observed_generation for c in w.status().conditions} == {2}


async def test_every_transition_is_told_once(w: World) -> None:
    for _ in range(3):
        w.pass_time(100)
        await w.round()
    assert w.events() == ["ProfilingStarted", "RolloutStarted"]

    w.start_pod(w.jobs[0], ready=True)
    await w.settle()
    assert w.events() == ["ProfilingStarted", "RolloutStarted"]

    await ready(w)
    assert w.events() == ["ProfilingStarted", "RolloutStarted", "ProfileReady", "RolloutStarted"]


async def test_what_several_accelerators_did_at_once_is_one_event() -> None:
    w = World(SERVING, node("n1", L4), node("n2", A100))
    await w.settle()

    assert w.events() == ["ProfilingStarted", "RolloutStarted"]
    told = {o["reason"]: o["message"] for o in w.api.objects["Event"].values()}
    assert told["RolloutStarted"] == f"{A100}: serving with Static; {L4}: serving with Static"


async def test_events_say_what_happened(w: World) -> None:
    await ready(w)

    events = {o["reason"]: o for o in w.api.objects["Event"].values()}
    assert events["ProfileReady"]["message"] == f"{L4}: verdict Dynamic, table 1-16:4 17-64:1"
    assert events["RolloutStarted"]["message"] == f"{L4}: serving with {w.profiles()[0]}"
    assert events["ProfileReady"]["involvedObject"] == {
        "apiVersion": "specserve.dev/v1alpha1",
        "kind": "SpeculativeServing",
        "namespace": "team",
        "name": "chat",
        "uid": "uid-chat",
    }


async def test_a_refusal_is_told_once_and_again_when_it_says_something_else(w: World) -> None:
    for args in (["--port=1"], ["--port=1"], ["--port=2"]):
        w.edit({"spec.engine.args": args})
        await w.settle()

    assert w.events().count("InvalidSpec") == 2


async def test_the_worst_profile_speaks_for_all() -> None:
    w = World(SERVING, node("n1", L4), node("n2", A100))
    await w.settle()
    first, second = w.jobs
    w.finish(first, profile(w.key_of(first)))
    w.finish(second, Failure(reason="EngineFailed", message="no kernel image."))
    await w.settle()

    status, reason, message = w.condition("Profiled")
    assert (status, reason) == ("False", "Failed")
    assert "no kernel image." in message
    assert message.count("Job ") == 1


async def test_nodes_that_are_left_out_are_named_with_the_way_out() -> None:
    w = World(SERVING, node("n1", L4), node("n2", "Tesla-T4-SHARED"), node("n3", ""))
    await w.settle()

    status, reason, message = w.condition("AcceleratorsFound")
    assert (status, reason) == ("True", "Found")
    assert message == (
        f"{L4} on 1 node(s); left out: node n2 its devices are shared (time-slicing): set accelerators.allowShared to"
        " use them all the same; node n3 no label says what its nvidia.com/gpu is: set the label"
        " specserve.dev/accelerator to a name of your choice"
    )


async def test_nodes_that_come_and_go_without_a_device_rewrite_no_status() -> None:
    w = World(SERVING, node("n1", L4), node("n2", "Tesla-T4-SHARED"), node("n4", "Tesla-T4-SHARED"))
    await w.settle()
    assert "left out: node n2 and others its devices are shared" in w.condition("AcceleratorsFound")[2]
    writes = len(w.api.writes)

    for number in range(3):
        w.api.put(node(f"cpu-{number}", "", devices=0))
        await w.settle()
    w.remove("Node", "cpu-0")
    await w.settle()

    assert len(w.api.writes) == writes


async def test_without_an_accelerator_that_can_serve() -> None:
    w = World(SERVING, node("n1", ""))
    await w.settle()

    assert w.condition("AcceleratorsFound")[:2] == ("False", "NoAccelerators")
    assert w.condition("Profiled") == ("Unknown", "NoAccelerators", "")
    assert w.condition("Ready")[:2] == ("False", "NoAccelerators")


async def test_a_rollout_that_stalls_says_what_its_pods_wait_for(w: World) -> None:
    await ready(w)
    stalled = {"type": "Progressing", "status": "False", "message": "ReplicaSet has timed out progressing."}
    deployment = w.deployment(ON_L4)
    w.api.put({**deployment, "status": {**deployment["status"], "readyReplicas": 1, "conditions": [stalled]}})
    w.api.put(
        {
            "kind": "Pod",
            "metadata": {
                "name": "p",
                "namespace": "team",
                "labels": {"specserve.dev/serving": "chat", "specserve.dev/role": "serving"},
            },
            "status": {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "message": "Insufficient nvidia.com/gpu"}],
            },
        }
    )
    await w.settle()

    assert w.condition("Available") == (
        "False",
        "RolloutStalled",
        "1 of 3 replicas are ready; ReplicaSet has timed out progressing.; Insufficient nvidia.com/gpu",
    )


async def test_texts_stay_within_what_the_crd_allows() -> None:
    nodes = [node(f"n{i}", f"Tesla-{'x' * 50}-{i}") for i in range(40)]
    w = World(SERVING, *nodes)
    await w.settle(rounds=12)

    status = w.status()
    assert len(status.accelerators) == 40
    assert 480 < len(status.summary.encode()) <= 512
    assert status.summary.endswith("…")
    told = {c.type: c.message for c in status.conditions}
    assert told["AcceleratorsFound"].endswith("-21 on 1 node(s), and 35 more")
    assert told["Profiled"].endswith("its pod is being made; and 35 more")
    assert told["Progressing"].endswith(": queued; and 35 more")
    assert all(len(message.encode()) < 1024 for message in told.values())
    ServingStatus.model_validate(status.model_dump())


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        ({"verdict": "Dynamic"}, "1-16:4 17-64:1"),
        ({"verdict": "Static"}, "K=3"),
        ({"verdict": "None"}, "no speculation"),
    ],
)
async def test_the_summary_says_what_serves(w: World, decision: dict[str, Any], words: str) -> None:
    w.finish(w.jobs[0], profile(w.key_of(w.jobs[0]), **decision))
    await w.settle()
    w.roll_out()
    await w.settle()

    assert w.status().summary == f"3/3 serving; {L4}: {words}"


async def test_a_refused_serving_keeps_what_was_known(w: World) -> None:
    await ready(w)
    before = w.status()
    w.edit({"spec.engine.args": ["--port=1"]})
    await w.settle()

    after = w.status()
    assert after.accelerators == before.accelerators
    assert after.summary.startswith("engine.args: --port=1")
    assert {c.type for c in after.conditions} == {c.type for c in before.conditions}


@pytest.mark.parametrize(
    ("verified", "over_baseline", "over_static"),
    [((), "1.50", "1.22"), ((1,), "2.00", "1.00"), ((1, 64), "1.50", "1.22")],
)
async def test_what_was_verified_counts_and_not_what_was_predicted(
    w: World, verified: tuple[int, ...], over_baseline: str, over_static: str
) -> None:
    """Geometric means of 2.0 and 1.125 over the baseline, of 1.0 and 1.5 over the best static K."""
    made = profile(w.key_of(w.jobs[0]))
    speedups = tuple(s.model_copy(update={"verified": s.batch_size in verified}) for s in made.decision.speedups)
    decision = made.decision.model_copy(update={"speedups": speedups})
    w.finish(w.jobs[0], made.model_copy(update={"decision": decision}))
    await w.settle()

    (accelerator,) = w.status().accelerators
    assert accelerator.speedup is not None
    assert (accelerator.speedup.over_baseline, accelerator.speedup.over_static) == (over_baseline, over_static)


@pytest.mark.parametrize(
    ("text", "most", "short"),
    [
        ("as it is", 8, "as it is"),
        ("one word too many", 16, "one word too…"),
        ("ÄÄ ÖÖ ÜÜ", 12, "ÄÄ ÖÖ…"),
        ("ÄÄ ÖÖ ÜÜ", 11, "ÄÄ…"),
        ("ÄÄÄÄÄÄÄÄ", 10, "ÄÄÄ…"),
        ("one two; three four", 12, "one two…"),
        ("a Kubernetes-long-name-without-any-space", 30, "a Kubernetes-long-name-with…"),
    ],
)
def test_a_long_message_is_cut_at_a_word_by_its_bytes(text: str, most: int, short: str) -> None:
    assert cut(text, most) == short
    assert len(cut(text, most).encode()) <= most


def test_no_message_is_too_long_for_the_api_server() -> None:
    assert len(cut("Größe und Länge " * 200).encode()) < 1024


QUOTA = (
    'pods "chat-nvidia-l4-ea1e09-6d4cf56db6-8x2lw" is forbidden: exceeded quota: gpus, requested:'
    " requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=2"
)


async def test_pods_that_are_refused_at_admission_are_told_with_the_way_out(w: World) -> None:
    await ready(w)
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": QUOTA}
    made = w.deployment(ON_L4)
    w.api.put({**made, "status": {**made["status"], "readyReplicas": 2, "conditions": [failure]}})
    await w.settle()

    told = (
        "pods are refused: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used:"
        " requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=2: raise the quota of the namespace, or ask for"
        " less"
    )
    assert w.condition("Available") == ("False", "PodsRefused", f"2 of 3 replicas are ready; {told}")
    assert w.condition("Progressing") == ("True", "Changing", f"{L4}: 2 of 3 replicas ready, {told}")


async def test_a_served_fleet_that_is_only_measured_again_is_ready(w: World) -> None:
    await ready(w)
    w.edit({"metadata.annotations": {"specserve.dev/reprofile": "again"}})
    await w.settle()

    assert w.condition("Profiled")[:2] == ("False", "Queued")
    assert w.condition("Progressing") == ("True", "Changing", f"{L4}: queued")
    assert w.condition("Ready") == ("True", "Serving", f"measured again meanwhile: {L4}")
    assert w.status().summary == f"3/3 serving; {L4}: 1-16:4 17-64:1"

    w.api.put(node("n2", A100, devices=2))  # a new type: what serves is enough without it
    await w.settle()
    assert w.condition("Ready") == ("True", "Serving", f"measured again meanwhile: {A100}, {L4}")

    w.ready(ON_L4, 1)
    await w.settle()
    assert w.condition("Ready")[0] == "False"


async def test_with_another_engine_asked_for_what_serves_is_not_ready(w: World) -> None:
    await ready(w)
    w.edit({"spec.engine.image": "vllm/vllm-openai:v0.34.0"})
    await w.settle()

    assert w.condition("Ready")[:2] == ("False", "Queued")


async def test_more_accelerators_than_a_status_holds_are_served_and_removed_all_the_same() -> None:
    nodes = [node(f"n{i:02}", f"Tesla-{i:02}") for i in range(70)]
    w = World(edited(SERVING, {"spec.replicas": 70}), *nodes)
    await w.settle(rounds=12)

    assert len(w.status().accelerators) == 64
    assert sorted(set(w.replicas().values())) == [1] and len(w.replicas()) == 70
    assert "; this status lists 64 of 70" in w.condition("AcceleratorsFound")[2]

    last = max(w.replicas())
    name = next(
        n["metadata"]["name"] for n in nodes if last.startswith(f"chat-{n['metadata']['labels'][PRODUCT].lower()}-")
    )
    w.remove("Node", name)
    await w.settle(rounds=12)
    assert f"chat-{w.status().accelerators[0].name}" == last
    assert w.status().accelerators[0].missing_since == later(0)
    w.pass_time(601)
    await w.settle(rounds=12)
    assert last not in w.replicas()
    assert "VariantRemoved" not in w.events()
