"""Whole stories of a serving, in memory: what is made, what is left alone, and that there is an end to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.builders import A100, L4, NOW, SERVING, edited, later, node, profile, template
from tests.memory import World

from specserve_operator.api import names
from specserve_operator.api.accelerator import Accelerator
from specserve_operator.manifests.request import key_inputs
from specserve_profiler.contract.key import profile_key
from specserve_profiler.contract.profile import Failure

ON_L4 = "chat-nvidia-l4-ea1e09"
ON_A100 = "chat-nvidia-a100-sxm-c83ca8"
RETRY = 600


def world(*nodes: Any, **edits: Any) -> World:
    """A serving on two L4s, unless other nodes are given; edits of its spec by field."""
    spec = {f"spec.{path.replace('__', '.')}": value for path, value in edits.items()}
    return World(edited(SERVING, spec), *(nodes or (node("n1", devices=2),)))


async def profiled(*nodes: Any, **edits: Any) -> World:
    """The same, once its profile is measured and its pods are ready."""
    w = world(*nodes, **edits)
    await w.settle()
    for job in w.jobs:
        w.finish(job, profile(w.key_of(job)))
    await w.settle()
    w.roll_out()
    await w.settle()
    return w


def line(w: World, deployment: str = ON_L4) -> str:
    """The speculative configuration on the engine's command line; empty without one."""
    args = w.deployment(deployment)["spec"]["template"]["spec"]["containers"][0]["args"]
    return next((a.partition("=")[2] for a in args if a.startswith("--speculative-config")), "")


def env(w: World, deployment: str = ON_L4) -> dict[str, Any]:
    container = w.deployment(deployment)["spec"]["template"]["spec"]["containers"][0]
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container["env"]}


async def test_with_wait_a_fresh_serving_gets_a_job_and_a_service_and_nothing_that_serves() -> None:
    w = world(speculation__beforeProfile="Wait")

    await w.settle()

    assert len(w.jobs) == 1
    assert w.api.names("Service") == ["chat"]
    assert w.api.names("Deployment") == []
    assert w.condition("Available")[:2] == ("False", "ReplicasMissing")


async def test_with_static_it_serves_at_once_at_the_fixed_k() -> None:
    w = world(speculation__staticTokens=3)

    await w.settle()

    assert len(w.jobs) == 1
    assert w.replicas() == {ON_L4: 3}
    assert line(w) == '{"method":"draft_model","model":"org/drafter","num_speculative_tokens":3}'


async def test_with_off_it_serves_at_once_without_speculation() -> None:
    w = world(speculation__beforeProfile="Off")

    await w.settle()

    assert w.replicas() == {ON_L4: 3}
    assert line(w) == ""


async def test_a_measured_profile_is_stored_and_served() -> None:
    w = await profiled()

    (stored,) = w.profiles()
    assert line(w) == "$(SPECSERVE_SPECULATIVE_CONFIG)"
    assert env(w)["SPECSERVE_SPECULATIVE_CONFIG"] == {
        "configMapKeyRef": {"name": stored, "key": "speculative-config.json"}
    }
    assert w.api.of("ConfigMap", stored)["data"]["speculative-config.json"] == (  # type: ignore[index]
        '{"method":"draft_model","model":"org/drafter","num_speculative_tokens":4,'
        '"num_speculative_tokens_per_batch_size":[[1,16,4],[17,64,1]]}'
    )
    assert w.condition("Ready") == ("True", "Serving", "")
    assert w.status().summary == f"3/3 serving; {L4}: 1-16:4 17-64:1"


@pytest.mark.parametrize(
    ("verdict", "config"),
    [
        ("Static", '{"method":"draft_model","model":"org/drafter","num_speculative_tokens":3}'),
        ("None", None),
    ],
)
async def test_a_table_that_does_not_win_does_not_ship(verdict: Any, config: str | None) -> None:
    w = world()
    await w.settle()
    w.finish(w.jobs[0], profile(w.key_of(w.jobs[0]), verdict=verdict))

    await w.settle()

    (stored,) = w.profiles()
    assert w.deployment(ON_L4)["metadata"]["annotations"][names.PROFILE] == stored
    assert w.api.of("ConfigMap", stored)["data"].get("speculative-config.json") == config  # type: ignore[index]
    assert line(w) == ("$(SPECSERVE_SPECULATIVE_CONFIG)" if config else "")


async def test_two_accelerators_get_a_job_and_a_deployment_each_and_share_the_replicas() -> None:
    w = await profiled(node("n1", L4, 2), node("n2", A100, 4), replicas=3)

    assert len(w.profiles()) == 2
    assert sorted(w.replicas().values()) == [1, 2]
    placed = {
        d: w.deployment(d)["spec"]["template"]["spec"]["nodeSelector"]["nvidia.com/gpu.product"] for d in w.replicas()
    }
    assert sorted(placed.values()) == [A100, L4]
    assert w.replicas()[next(d for d, product in placed.items() if product == A100)] == 2


async def test_scaling_touches_replicas_only() -> None:
    w = await profiled()
    before = w.deployment(ON_L4)["spec"]["template"]

    w.edit({"spec.replicas": 5})
    await w.settle()

    assert w.replicas() == {ON_L4: 5}
    assert w.deployment(ON_L4)["spec"]["template"] == before
    assert len(w.jobs) == 1


async def test_replicas_0_stops_all_pods_and_is_fine() -> None:
    w = await profiled(replicas=0)

    assert w.replicas() == {ON_L4: 0}
    assert w.condition("Available") == ("True", "ScaledToZero", "")
    assert w.condition("Ready")[0] == "True"


async def test_an_edit_of_the_engine_holds_what_serves_until_the_new_engine_is_measured() -> None:
    w = await profiled()
    before, (old,) = w.deployment(ON_L4), w.profiles()

    w.edit({"spec.engine.image": "vllm/vllm-openai:v0.34.0"})
    await w.settle()

    assert w.deployment(ON_L4) == before
    assert w.condition("Profiled")[:2] == ("False", "Queued")
    assert "EngineChanged" in w.status().accelerators[0].profile.reason
    first, second = w.jobs
    new = second if w.key_of(first) == old.rpartition("-")[0] else first

    w.finish(new, profile(w.key_of(new)))
    await w.settle()

    after = w.deployment(ON_L4)["spec"]["template"]["spec"]["containers"][0]
    assert after["image"] == "vllm/vllm-openai:v0.34.0"
    assert env(w)["SPECSERVE_SPECULATIVE_CONFIG"]["configMapKeyRef"]["name"] != old


async def test_what_is_held_can_be_scaled() -> None:
    w = await profiled()
    template_before = w.deployment(ON_L4)["spec"]["template"]

    w.edit({"spec.engine.image": "vllm/vllm-openai:v0.34.0", "spec.replicas": 1})
    await w.settle()

    assert w.replicas() == {ON_L4: 1}
    assert w.deployment(ON_L4)["spec"]["template"] == template_before


async def test_what_is_held_keeps_its_engine_and_is_placed_as_the_spec_says() -> None:
    mine = {"name": "engine", "env": [{"name": "A", "value": "1"}], "volumeMounts": [{"name": "m", "mountPath": "/m"}]}
    volume = {"name": "m", "persistentVolumeClaim": {"claimName": "old"}}
    pods = {"containers": [mine], "volumes": [volume], "priorityClassName": "high"}
    w = await profiled(podTemplate={"spec": pods})
    before = w.deployment(ON_L4)

    edit = {
        "containers": [{**mine, "env": [{"name": "A", "value": "2"}]}],
        "volumes": [{"name": "m", "persistentVolumeClaim": {"claimName": "new"}}],
        "tolerations": [{"operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
    }
    w.edit({"spec.engine.image": "vllm/vllm-openai:v0.34.0", **template(edit, labels={"team": "nlp"})})
    await w.settle()

    after = w.deployment(ON_L4)
    held, was = after["spec"]["template"], before["spec"]["template"]
    assert (held["spec"]["tolerations"], held["spec"]["imagePullSecrets"]) == (
        edit["tolerations"],
        edit["imagePullSecrets"],
    )
    assert "priorityClassName" not in held["spec"]
    assert held["metadata"]["labels"]["team"] == "nlp"
    assert (held["spec"]["containers"], held["spec"]["volumes"]) == (was["spec"]["containers"], was["spec"]["volumes"])
    assert after["metadata"]["annotations"][names.PROFILE] == before["metadata"]["annotations"][names.PROFILE]
    assert len(w.jobs) == 2

    w.edit({"spec.replicas": 2})
    await w.settle()
    assert w.deployment(ON_L4)["spec"]["template"] == held

    new = next(job for job in w.jobs if w.status().accelerators[0].profile.key in job)
    w.finish(new, profile(w.key_of(new)))
    await w.settle()
    pod = w.deployment(ON_L4)["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "vllm/vllm-openai:v0.34.0"
    assert edit["volumes"][0] in pod["volumes"]
    assert env(w)["A"] == "2"


@pytest.mark.parametrize("kept", ["", "no JSON", "[]", "{}", '{"arm": {}, "pod": {}, "accelerators": {}}'])
async def test_what_is_held_and_not_known_whole_is_left_as_it_is(kept: str) -> None:
    w = await profiled()
    w.api.put(edited(w.deployment(ON_L4), {"metadata.annotations": {
        **w.deployment(ON_L4)["metadata"]["annotations"], names.REVISION: kept,
    }}))  # fmt: skip
    before = w.deployment(ON_L4)["spec"]["template"]

    w.edit({"spec.engine.image": "vllm/vllm-openai:v0.34.0", **template({"tolerations": [{"operator": "Exists"}]})})
    await w.settle()

    assert w.deployment(ON_L4)["spec"]["template"] == before


async def test_what_is_held_is_not_rolled_without_its_profile() -> None:
    w = await profiled()
    before = w.deployment(ON_L4)["spec"]["template"]
    w.remove("ConfigMap", w.profiles()[0])
    w.remove("Job", w.jobs[0])  # its result would be stored again

    w.edit({"spec.engine.image": "vllm/vllm-openai:v0.34.0", **template({"tolerations": [{"operator": "Exists"}]})})
    await w.settle()

    assert w.deployment(ON_L4)["spec"]["template"] == before


async def test_held_variants_are_placed_anew_one_after_the_other() -> None:
    w = await profiled(node("n1", devices=2), node("n2", A100, devices=2))

    w.edit({"spec.engine.image": "vllm/vllm-openai:v0.34.0", **template({"tolerations": [{"operator": "Exists"}]})})
    await w.settle()
    pods = {name: w.deployment(name)["spec"]["template"]["spec"] for name in w.replicas()}
    assert [name for name, pod in pods.items() if "tolerations" in pod] == [ON_A100]

    w.roll_out()
    await w.settle()
    pods = {name: w.deployment(name)["spec"]["template"]["spec"] for name in w.replicas()}
    assert [name for name, pod in pods.items() if "tolerations" in pod] == [ON_A100, ON_L4]
    assert {pod["containers"][0]["image"] for pod in pods.values()} == {"vllm/vllm-openai:v0.33.0"}


async def test_what_served_before_its_first_profile_is_held_though_it_is_unready_for_a_moment() -> None:
    w = world()
    await w.settle()
    w.edit({"spec.engine.image": "vllm/vllm-openai:v0.33.1"})  # it never served: the mended image goes out at once
    await w.settle()
    assert w.image(ON_L4) == "vllm/vllm-openai:v0.33.1"

    w.roll_out()
    await w.settle()
    w.ready(ON_L4, 0)
    w.edit({"spec.engine.image": "vllm/vllm-openai:v0.34.0"})
    await w.settle()
    assert w.image(ON_L4) == "vllm/vllm-openai:v0.33.1"


async def test_an_edit_of_scheduling_rolls_pods_without_measuring() -> None:
    w = await profiled()

    w.edit(template({"tolerations": [{"operator": "Exists"}]}))
    await w.settle()

    assert w.deployment(ON_L4)["spec"]["template"]["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert len(w.jobs) == 1


@pytest.mark.parametrize("edits", [{"spec.speculation.staticTokens": 1}, {"spec.speculation.beforeProfile": "Off"}])
async def test_what_counts_only_before_the_first_profile_touches_nothing_after_it(edits: dict[str, Any]) -> None:
    w = await profiled()
    before = w.deployment(ON_L4)

    w.edit(edits)
    await w.settle()

    assert w.deployment(ON_L4) == before


async def test_new_prompts_are_measured_anew() -> None:
    w = await profiled()
    prompts = w.api.of("ConfigMap", "prompts")
    assert prompts is not None

    w.api.put(edited(prompts, {"data": {"prompts.jsonl": '{"prompt": "Something else."}\n'}}))
    await w.settle()

    assert len(w.jobs) == 2
    assert w.status().accelerators[0].profile.reason == "WorkloadChanged"


async def test_without_prompts_nothing_is_measured_and_the_message_says_what_is_missing() -> None:
    w = world()
    w.remove("ConfigMap", "prompts")

    await w.settle()

    assert w.jobs == []
    assert w.condition("Profiled") == (
        "False",
        "Missing",
        f"{L4}: profile.workload.source: there is no ConfigMap prompts in team",
    )
    w.edit({"spec.profile.workload.source.configMap": {"name": "chat", "key": "a.jsonl"}})
    w.api.put(
        {"kind": "ConfigMap", "metadata": {"name": "chat", "namespace": "team"}, "data": {"b.jsonl": "", "c": ""}}
    )
    await w.settle()
    assert w.condition("Profiled")[2].endswith("ConfigMap chat has no key a.jsonl, only b.jsonl, c")


# Labels that change.


async def test_a_new_label_brings_a_variant_and_the_old_one_serves_until_it_is_replaced() -> None:
    w = await profiled()
    (old,) = w.profiles()
    w.place_pods(ON_L4, "n1")

    w.label("n1", names.ACCELERATOR, "lab-box")
    await w.settle()
    new = next(d for d in w.replicas() if d != ON_L4) if len(w.replicas()) > 1 else ""

    assert w.replicas()[ON_L4] == 3
    assert new
    assert [a.missing_since for a in w.status().accelerators if a.name == "nvidia-l4-ea1e09"] == [later(0)]
    assert w.deployment(ON_L4)["metadata"]["annotations"][names.PROFILE] == old

    job = next(j for j in w.jobs if w.key_of(j) != old.rpartition("-")[0])
    assert w.status().accelerators[0].profile.reason == "AcceleratorChanged"
    w.finish(job, profile(w.key_of(job)))
    await w.settle()
    w.roll_out()
    await w.settle()

    assert ON_L4 not in w.replicas()
    assert w.condition("Ready")[0] == "True"
    assert "VariantRemoved" in w.events()


async def test_a_variant_without_nodes_goes_when_its_grace_ends_and_not_before() -> None:
    w = await profiled(speculation__beforeProfile="Wait")
    w.place_pods(ON_L4, "n1")
    w.label("n1", names.ACCELERATOR, "lab-box")
    await w.settle()
    assert await w.round() == pytest.approx(300)  # the resync; the grace ends later

    w.pass_time(599)
    await w.settle()
    assert ON_L4 in w.replicas()
    assert await w.round() == pytest.approx(2)

    w.pass_time(2)
    await w.settle()
    assert ON_L4 not in w.replicas()
    # What led to the measurement is gone, why it runs is still told.
    assert w.status().accelerators[0].profile.reason == "AcceleratorChanged"
    assert w.status().accelerators[0].profile.message.startswith("accelerator NVIDIA-L4 -> lab-box; Job ")


async def test_a_label_that_comes_back_needs_no_job() -> None:
    w = await profiled()
    jobs = list(w.jobs)
    w.label("n1", names.ACCELERATOR, "lab-box")
    await w.settle()
    w.label("n1", names.ACCELERATOR, None)
    await w.settle()

    assert set(jobs) <= set(w.jobs)
    assert w.condition("Ready")[0] == "True"
    assert w.status().accelerators[0].missing_since is None
    assert [a.name for a in w.status().accelerators if a.missing_since is None] == ["nvidia-l4-ea1e09"]


async def test_a_stored_profile_is_used_by_whoever_comes_to_its_accelerator_again() -> None:
    w = await profiled()
    w.remove("Node", "n1")
    await w.settle()
    w.pass_time(601)
    await w.settle()
    assert w.replicas() == {ON_L4: 3}  # the last one never goes: its pods wait, and an autoscaler brings a node
    for job in list(w.jobs):
        w.remove("Job", job)

    w.api.put(node("n9", devices=2))
    await w.settle()

    assert w.jobs == []
    assert w.replicas() == {ON_L4: 3}
    assert line(w) == "$(SPECSERVE_SPECULATIVE_CONFIG)"


async def test_scaling_down_reaches_a_variant_without_nodes_too() -> None:
    w = await profiled(speculation__beforeProfile="Wait")
    w.label("n1", names.ACCELERATOR, "lab-box")
    await w.settle()

    w.edit({"spec.replicas": 0})
    await w.settle()

    assert w.replicas()[ON_L4] == 0


async def test_a_deployment_that_lost_its_memory_still_goes_after_the_grace() -> None:
    w = await profiled(speculation__beforeProfile="Wait")
    w.api.put(edited(w.deployment(ON_L4), {"metadata.annotations": {names.PROFILE: "Static"}}))
    w.remove("Node", "n1")
    w.api.put(node("n2", A100))
    w.roll_out(ready=False)
    await w.settle()
    assert [a.missing_since for a in w.status().accelerators] == [None, later(0)]

    w.pass_time(601)
    await w.settle()

    assert w.replicas() == {}


async def test_labels_that_are_gone_for_good_take_nothing_down_that_serves() -> None:
    w = await profiled(node("n1", devices=2), node("n2", A100, devices=2))
    w.place_pods(ON_L4, "n1")
    assert w.replicas() == {ON_A100: 2, ON_L4: 1}

    w.label("n1", "nvidia.com/gpu.product", None)
    await w.settle()
    assert w.replicas() == {ON_A100: 2, ON_L4: 1}  # its labeller may be back in a moment

    w.pass_time(601)
    await w.settle()
    assert w.replicas() == {ON_A100: 3, ON_L4: 1}  # nobody replaced them yet

    w.roll_out()
    await w.settle()
    assert w.replicas() == {ON_A100: 3}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"spec": {"unschedulable": True}}, id="cordoned"),
        pytest.param({"status.conditions": [{"type": "Ready", "status": "Unknown"}]}, id="not Ready"),
        pytest.param({"status.allocatable": {"cpu": "8"}, "status.capacity": {"nvidia.com/gpu": "2"}}, id="plugin"),
    ],
)
@pytest.mark.parametrize("nodes", [["n1"], ["n1", "n2"]])
async def test_nodes_that_cannot_be_used_just_now_move_no_replica(change: dict[str, Any], nodes: list[str]) -> None:
    w = await profiled(node("n1", devices=2), node("n2", A100, devices=2))
    before = w.replicas()

    for name in nodes:
        found = w.api.of("Node", name)
        assert found is not None
        w.api.put(edited(found, change))
    await w.settle()

    assert w.replicas() == before


async def test_a_new_type_of_node_takes_nothing_from_what_serves_before_it_is_ready() -> None:
    w = await profiled(node("n1", devices=6), replicas=6)

    w.api.put(node("n2", A100, devices=6))
    await w.settle()
    assert w.replicas() == {ON_L4: 6, ON_A100: 3}

    w.ready(ON_A100, 1)
    await w.settle()
    assert w.replicas() == {ON_L4: 5, ON_A100: 3}

    w.roll_out()
    await w.settle()
    assert w.replicas() == {ON_L4: 3, ON_A100: 3}


async def test_variants_roll_one_after_the_other() -> None:
    w = await profiled(node("n1", devices=2), node("n2", A100, devices=2))
    template = w.deployment(ON_L4)["spec"]["template"]

    w.edit({"spec.podTemplate": {"spec": {"tolerations": [{"operator": "Exists"}]}}})
    await w.settle()
    rolled = [name for name in w.replicas() if "tolerations" in w.deployment(name)["spec"]["template"]["spec"]]
    assert rolled == [ON_A100]
    assert w.deployment(ON_L4)["spec"]["template"] == template

    w.roll_out()
    await w.settle()
    assert w.deployment(ON_L4)["spec"]["template"]["spec"]["tolerations"] == [{"operator": "Exists"}]


async def test_devices_that_vanish_for_a_moment_do_not_end_a_running_measurement() -> None:
    w = world(speculation__beforeProfile="Wait")
    await w.settle()
    (job,) = w.jobs
    w.start_pod(job, ready=True)
    await w.settle()

    w.api.put(node("n1", devices=0))
    await w.settle()
    assert w.jobs == [job]

    w.api.put(node("n1", devices=2))
    w.finish(job, profile(w.key_of(job)))
    await w.settle()
    assert w.replicas() == {ON_L4: 3}


# Jobs.


async def test_a_failed_job_keeps_what_serves() -> None:
    w = await profiled()
    before = w.deployment(ON_L4)
    w.edit({"spec.engine.args": ["--enforce-eager"]})
    await w.settle()
    job = w.jobs[-1] if w.key_of(w.jobs[-1]) != w.key_of(w.jobs[0]) else w.jobs[0]
    new = next(j for j in w.jobs if w.status().accelerators[0].profile.key in j)

    w.finish(new, Failure(reason="EngineFailed", message="CUDA out of memory."))
    await w.settle()

    assert w.deployment(ON_L4) == before
    assert w.condition("Available")[0] == "True"
    assert w.condition("Ready")[:2] == ("False", "Failed")
    assert "CUDA out of memory." in w.condition("Profiled")[2]
    assert job in w.jobs


async def test_a_job_that_an_edit_made_useless_is_deleted() -> None:
    w = world()
    await w.settle()
    (old,) = w.jobs
    w.start_pod(old)

    w.edit({"spec.engine.args": ["--enforce-eager"]})
    await w.settle()

    assert len(w.jobs) == 1
    assert w.jobs != [old]


async def test_an_edit_that_the_key_does_not_depend_on_leaves_a_running_job_alone() -> None:
    w = world()
    await w.settle()
    jobs = w.jobs
    w.start_pod(jobs[0])

    w.edit({"spec.replicas": 5, "spec.profile.timeoutSeconds": 7200})
    await w.settle()

    assert w.jobs == jobs


async def test_two_servings_that_ask_for_the_same_share_one_job_and_one_profile() -> None:
    w = world()
    w.api.put(edited(SERVING, {"metadata.name": "other", "metadata.uid": "uid-other"}))
    await w.settle("chat", "other")

    (job,) = w.jobs
    owners = {o["uid"] for o in w.api.of("Job", job)["metadata"]["ownerReferences"]}  # type: ignore[index]
    assert owners == {"uid-chat", "uid-other"}

    w.finish(job, profile(w.key_of(job)))
    await w.settle("chat", "other")
    assert len(w.profiles()) == 1
    assert {w.deployment(d)["metadata"]["annotations"][names.PROFILE] for d in w.replicas()} == set(w.profiles())


async def test_a_job_that_somebody_else_waits_for_is_not_deleted() -> None:
    w = world()
    w.api.put(edited(SERVING, {"metadata.name": "other", "metadata.uid": "uid-other"}))
    await w.settle("chat", "other")
    (shared,) = w.jobs

    w.edit({"spec.engine.args": ["--enforce-eager"]})
    await w.settle("chat", "other")

    assert shared in w.jobs
    assert len(w.jobs) == 2


# Refusals, and the end.


async def test_a_refused_spec_changes_nothing_but_replicas_and_the_status() -> None:
    w = await profiled()
    before = (w.deployment(ON_L4)["spec"]["template"], w.jobs, w.profiles())

    w.edit({"spec.engine.args": ["--port=9"], "spec.replicas": 9})
    await w.settle()

    assert (w.deployment(ON_L4)["spec"]["template"], w.jobs, w.profiles()) == before
    assert w.replicas() == {ON_L4: 9}
    status, reason, message = w.condition("Accepted")
    assert (status, reason) == ("False", "InvalidSpec")
    assert message == (
        "engine.args: --port=9: specserve sets --port itself: specserve chooses the port."
        " What was serving before keeps serving."
    )
    assert w.condition("Ready")[:2] == ("False", "InvalidSpec")
    assert w.status().ready_replicas == 3
    assert w.status().accelerators[0].table == "1-16:4 17-64:1"
    assert await w.round() == 300  # it is still looked at


async def test_a_mended_spec_goes_on() -> None:
    w = await profiled()
    w.edit({"spec.engine.args": ["--port=9"]})
    await w.settle()
    w.edit({"spec.engine.args": []})
    await w.settle()

    assert w.condition("Accepted")[:2] == ("True", "Accepted")
    assert w.condition("Ready")[0] == "True"
    assert len(w.jobs) == 1


async def test_a_serving_that_is_being_deleted_is_left_alone() -> None:
    w = world()
    w.edit({"metadata.deletionTimestamp": "2026-11-03T12:00:00Z"})
    writes = len(w.api.writes)

    await w.round()

    assert len(w.api.writes) == writes


async def test_a_serving_that_is_gone_is_forgotten() -> None:
    w = world()
    w.remove("SpeculativeServing", "chat")

    assert await w.round() is None


async def test_no_nodes_at_all() -> None:
    w = World(edited(SERVING, {"spec.accelerators.nodeSelector": {"pool": "gpu"}}), node("n1"))

    await w.settle()

    assert w.condition("AcceleratorsFound") == (
        "False",
        "NoNodes",
        "no node has the labels of accelerators.nodeSelector",
    )
    assert w.jobs == []


async def test_what_somebody_else_edited_is_put_right() -> None:
    w = await profiled()
    wanted = w.deployment(ON_L4)["spec"]

    w.api.put(edited(w.deployment(ON_L4), {"spec.template.spec.containers": [{"name": "engine", "image": "evil"}]}))
    await w.settle()

    assert w.deployment(ON_L4)["spec"] == wanted


async def test_a_child_that_somebody_deleted_is_made_again() -> None:
    w = await profiled()
    w.remove("Deployment", ON_L4)
    w.remove("Service", "chat")

    await w.settle()

    assert w.replicas() == {ON_L4: 3}
    assert w.api.names("Service") == ["chat"]


async def test_a_service_of_somebody_else_is_never_taken_over() -> None:
    w = world()
    theirs = {"kind": "Service", "metadata": {"name": "chat", "namespace": "team"}, "spec": {"ports": [{"port": 80}]}}
    w.api.put(theirs)

    with pytest.raises(Exception, match="Service team/chat is there already, not made by specserve"):
        await w.round()

    assert w.api.of("Service", "chat")["spec"] == theirs["spec"]  # type: ignore[index]
    assert w.condition("Accepted")[:2] == ("False", "RefusedByCluster")


TEMPLATE = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"engine"}': {"f:image": {}}}}}}}


@pytest.mark.parametrize(
    ("entry", "mended"),
    [
        pytest.param({"manager": "kubectl-edit", "time": later(60), "fieldsV1": TEMPLATE}, True, id="edited"),
        pytest.param(
            {"manager": "kubectl-edit", "time": later(-60), "fieldsV1": TEMPLATE}, False, id="put right since"
        ),
        pytest.param(
            {
                "manager": "kubectl",
                "time": later(60),
                "subresource": "scale",
                "fieldsV1": {"f:spec": {"f:replicas": {}}},
            },
            False,
            id="scaled",
        ),
        pytest.param(
            {
                "manager": "kube-controller-manager",
                "time": later(60),
                "fieldsV1": {"f:metadata": {"f:annotations": {}}},
            },
            False,
            id="a controller's note",
        ),
    ],
)
async def test_an_edit_made_while_no_operator_ran_is_put_right(entry: dict[str, Any], mended: bool) -> None:
    w = await profiled()
    right = w.deployment(ON_L4)["spec"]["template"]["spec"]["containers"][0]["image"]
    ours = {"manager": "specserve", "time": later(0), "operation": "Apply", "fieldsV1": TEMPLATE}
    obj = edited(w.deployment(ON_L4), {"metadata.managedFields": [ours, entry]})
    obj["spec"]["template"]["spec"]["containers"][0]["image"] = "theirs:latest"
    w.api.put(obj)
    w.restart_operator()

    await w.settle()

    image = w.deployment(ON_L4)["spec"]["template"]["spec"]["containers"][0]["image"]
    assert (image == right) is mended


async def test_a_resource_made_again_owns_what_its_orphans_serve() -> None:
    w = await profiled()
    w.edit({"metadata.uid": "uid-made-again"})
    for kind, name in (("Deployment", ON_L4), ("Service", "chat")):
        found = w.api.of(kind, name)
        assert found is not None
        w.api.put(edited(found, {"metadata.ownerReferences": []}))
    w.restart_operator()

    await w.settle()

    for kind, name in (("Deployment", ON_L4), ("Service", "chat")):
        found = w.api.of(kind, name)
        assert found is not None
        assert [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == ["uid-made-again"]


# The fixpoint.


@pytest.mark.parametrize("before", ["Static", "Off", "Wait"])
async def test_in_a_steady_cluster_nothing_is_written(before: str) -> None:
    w = await profiled(speculation__beforeProfile=before)
    writes = list(w.api.writes)

    for _ in range(3):
        w.pass_time(120)
        await w.round()

    assert w.api.writes == writes


async def test_an_operator_that_restarts_writes_nothing() -> None:
    w = await profiled()
    writes = list(w.api.writes)

    w.restart_operator()
    await w.round()

    assert w.api.writes == writes


fleets = st.lists(
    st.builds(
        node,
        st.sampled_from([f"n{i}" for i in range(8)]),
        st.sampled_from([L4, A100, "", "Tesla-T4-SHARED"]),
        st.integers(0, 8),
        ready=st.booleans(),
        cordoned=st.booleans(),
    ),
    max_size=6,
)
acts = st.lists(
    st.one_of(
        st.tuples(st.just("edit"), st.sampled_from(["spec.replicas", "spec.engine.maxNumSeqs"]), st.integers(1, 9)),
        st.tuples(
            st.just("finish"), st.sampled_from(["Dynamic", "Static", "None", "fails", "lost"]), st.integers(0, 3)
        ),
        st.tuples(st.just("roll out"), st.booleans(), st.just(0)),
        st.tuples(st.just("node"), st.sampled_from(["n0", "n1", "n2"]), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.sampled_from([1, 700, 90000]), st.just(0)),
        st.tuples(st.just("annotate"), st.sampled_from(["a", "b"]), st.just(0)),
        st.tuples(st.just("renamed node"), st.sampled_from(["n0", "n1"]), st.integers(0, 3)),
        st.tuples(
            st.just("remove"), st.sampled_from(["Job", "Deployment", "Service", "ConfigMap", "Node"]), st.integers(0, 5)
        ),
        st.tuples(st.just("start pod"), st.booleans(), st.integers(0, 3)),
        st.tuples(st.just("restart"), st.just(""), st.just(0)),
    ),
    max_size=10,
)


def unfinished(w: World) -> list[str]:
    return [job for job in w.jobs if "status" not in (w.api.of("Job", job) or {})]


def act(w: World, what: tuple[str, Any, int]) -> None:
    kind, value, number = what
    open_jobs = unfinished(w)
    match kind:
        case "edit":
            w.edit({value: number})
        case "finish" if open_jobs:
            job = open_jobs[number % len(open_jobs)]
            failure = Failure(reason="EngineFailed", message="no.")
            results: dict[str, Any] = {"fails": failure, "lost": None}
            result = results[value] if value in results else profile(w.key_of(job), verdict=value, at=w.now)
            w.finish(job, result, succeeds=value != "fails")
        case "start pod" if open_jobs:
            w.start_pod(open_jobs[number % len(open_jobs)], ready=value)
        case "roll out":
            w.roll_out(ready=value)
        case "node" | "renamed node":
            labels = {names.ACCELERATOR: "lab-box"} if kind == "renamed node" else {}
            w.api.put(node(value, L4, number, labels=labels))
        case "wait":
            w.pass_time(value)
        case "annotate":
            w.edit({"metadata.annotations": {names.REPROFILE: value}})
        case "remove" if found := w.api.names(value):
            w.remove(value, found[number % len(found)])
        case "restart":
            w.restart_operator()


@given(fleets, st.sampled_from(["Static", "Off", "Wait"]), acts)
@hypothesis_settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
async def test_whatever_happens_every_story_comes_to_rest(fleet: list[Any], before: str, story: list[Any]) -> None:
    """And then deciding again does nothing: no object is made, scaled or deleted, and the status stays."""
    w = World(edited(SERVING, {"spec.speculation.beforeProfile": before}), *fleet)
    for what in story:
        await w.round()
        act(w, what)
    await w.settle()

    plan = await w.plan()

    assert (plan.create, plan.apply, plan.scale, plan.measure, plan.adopt, plan.delete, plan.events) == ((),) * 7
    assert plan.release == ()
    assert plan.status == w.status()
    keys = [w.key_of(job) for job in unfinished(w)]
    assert len(keys) == len(set(keys)), "no key is measured by two Jobs at a time"


async def test_an_imported_profile_is_used_as_it_is() -> None:
    w = world()
    inputs = key_inputs(
        w.serving().spec,
        Accelerator("nvidia", L4),
        None,
        (await w.snapshot()).prompts.digest,
    )
    name = w.import_profile(profile(profile_key(inputs), at=NOW), inputs)

    await w.settle()

    assert w.jobs == []
    assert env(w)["SPECSERVE_SPECULATIVE_CONFIG"]["configMapKeyRef"]["name"] == name
