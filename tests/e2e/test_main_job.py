"""The main job on a real cluster, in the order in which it happens. Each stage is a fixture that the next builds upon.

Two servings are created at once and ask for the same profile; the operator is killed while the Job runs, and again
between the Job's end and the rollout; then the accelerator changes, and changes back.
"""

from __future__ import annotations

import json
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from tests.e2e import story
from tests.e2e.story import FIRST, JOB_SECONDS, ROLLOUT_SECONDS, SECOND, OperatorProcess

from demo import traffic
from demo.environment import Environment
from demo.kube import Json, condition, variant, wait_for
from demo.story import Stored, k_of, pod_config, served_rows, stored_profile

pytestmark = pytest.mark.cluster

MAIN, TWIN, LATE = "alpha", "twin", "late"


@dataclass(frozen=True)
class Measured:
    """The first profile, and what was seen on the way to it."""

    stored: Stored
    key: str
    jobs: list[str]
    killed: list[OperatorProcess]


@pytest.fixture(scope="module")
def measured(environment: Environment, figures: list[str]) -> Measured:
    """Two servings at once; a kill while the Job runs, another between the Job and the rollout."""
    kube = environment.kube
    story.relabel(environment, FIRST)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(kube.apply, [story.serving(MAIN, 1), story.serving(TWIN, 0)]))
    job = wait_for("a profiling Job", lambda: next(iter(story.jobs(kube)), None), 60)
    wait_for("its pod to run", lambda: _phase(story.job_pod(kube, job)) == "Running", 60)

    first = OperatorProcess.of(environment)
    first.kill()
    wait_for("the operator's restart", lambda: _other(environment, first), 60)
    wait_for("the Job's pod to measure", lambda: _ready(story.job_pod(kube, job)), JOB_SECONDS)
    wait_for("the end to come near", lambda: _verifies(_log(environment, job)), JOB_SECONDS)
    wait_for("the Job's end", lambda: _ended_unseen(environment, job), 300)
    assert story.profiles(kube) == []
    last = wait_for("an operator", lambda: _other(environment, None), 60)
    last.kill()

    wait_for("the profile", lambda: story.profile_state(kube, MAIN, FIRST).get("state") == "Ready", 120)
    state = story.profile_state(kube, MAIN, FIRST)
    figures.append(f"two servings at once, two kills of the operator: Jobs {story.jobs(kube)}")
    return Measured(stored_profile(kube, state["configMap"]), state["key"], story.jobs(kube), [first, last])


@pytest.fixture(scope="module")
def served(environment: Environment, measured: Measured) -> str:
    """URL of the Service, once the pods with the table are ready."""
    wait_for(f"{MAIN} to serve its table", lambda: story.serves(environment.kube, MAIN, FIRST), ROLLOUT_SECONDS)
    url = environment.service_url(MAIN)
    prompt = environment.heldout_prompts(1)[0]
    wait_for("an answer", lambda: _answers(url, prompt), 30)
    return url


def test_two_servings_at_once_and_two_kills_make_one_job(environment: Environment, measured: Measured) -> None:
    assert measured.jobs == [f"{measured.key}-1"]
    assert story.profiles(environment.kube) == [measured.stored.config_map]
    assert not any(process.alive for process in measured.killed)
    assert story.profile_state(environment.kube, TWIN, FIRST)["configMap"] == measured.stored.config_map


def test_the_profile_is_of_real_measurements(measured: Measured) -> None:
    profile = measured.stored.profile
    cells = {(c.batch_size, c.k): c for c in profile.measurements.grid}
    assert set(cells) == {(b, k) for b in story.BATCH_SIZES for k in range(6)}
    assert all(c.itl_ms is not None and c.itl_ms > 1 for c in cells.values())
    lengths = {a.k: a.acceptance_length.mean for a in profile.measurements.acceptance}
    assert lengths[0] == 1
    assert 1.4 < lengths[1] < 1.9
    assert lengths[1] < lengths[3] < 3
    assert [b.batch_size for b in profile.measurements.baseline] == story.BATCH_SIZES
    assert profile.decision.table[0].first == 1
    assert profile.decision.table[-1].last == 16
    assert k_of(profile.decision.table, 16) <= k_of(profile.decision.table, 1)


def test_a_completion_arrives_through_the_cluster_ip(environment: Environment, served: str) -> None:
    text = traffic.complete(served, environment.heldout_prompts(1)[0], max_tokens=24)
    assert len(text.split()) > 4


def test_the_pod_runs_with_the_rows_of_the_config_map(
    environment: Environment, measured: Measured, served: str
) -> None:
    assert pod_config(environment.kube, MAIN) == measured.stored.speculative_config
    if measured.stored.profile.decision.verdict == "Dynamic":
        rows = environment.kube.get("configmap", measured.stored.config_map)["data"]["table.json"]
        in_pod = json.loads(pod_config(environment.kube, MAIN))["num_speculative_tokens_per_batch_size"]
        assert in_pod == json.loads(rows)


@pytest.mark.parametrize("concurrency", [1, 16])
def test_the_engine_drafts_exactly_the_tables_k(
    environment: Environment, measured: Measured, served: str, concurrency: int, figures: list[str]
) -> None:
    expected = k_of(served_rows(measured.stored), concurrency)
    prompts = environment.heldout_prompts(concurrency)
    seen = traffic.drafted_at(served, concurrency, prompts, tokens=850)
    figures.append(f"client concurrency {concurrency}: the table says K={expected}; {seen}")
    assert seen.generated > 20
    if expected == 0:
        assert seen.drafts == 0
    else:
        assert seen.drafts > 5
        assert seen.draft_tokens / seen.drafts == expected


def test_the_status_says_what_serves(environment: Environment, measured: Measured, served: str) -> None:
    serving = wait_for("Ready", lambda: _if_ready(environment.kube.serving(MAIN)), 30)
    assert condition(serving, "Ready")["status"] == "True"
    assert serving["status"]["readyReplicas"] == 1
    assert serving["status"]["observedGeneration"] == serving["metadata"]["generation"]
    columns = environment.kube.kubectl("get", "ss", MAIN, "--no-headers").split()
    assert columns[:4] == [MAIN, "True", "1", "1"]


def test_a_later_serving_of_the_same_key_makes_no_second_job(
    environment: Environment, measured: Measured, served: str
) -> None:
    kube = environment.kube
    kube.apply(story.serving(LATE, 0))
    wait_for(f"{LATE} to use the profile", lambda: story.profile_state(kube, LATE, FIRST).get("state") == "Ready", 30)
    assert story.profile_state(kube, LATE, FIRST)["configMap"] == measured.stored.config_map
    assert story.jobs(kube) == measured.jobs


def test_in_a_steady_cluster_only_the_lease_is_written(
    environment: Environment, served: str, figures: list[str]
) -> None:
    story.pause(15)  # what the tests before stirred up settles
    began, ended = story.pause(60)
    writes = story.operators_writes(environment, began, ended)
    others = [w for w in writes if w["objectRef"]["resource"] != "leases"]
    resident = OperatorProcess.of(environment).resident_mib()
    figures.append(
        f"steady 60 s: {len(writes)} writes, {len(others)} not of the Lease; operator RSS {resident:.0f} MiB"
    )
    assert [f"{w['verb']} {w['requestURI']}" for w in others] == []
    assert writes, "not even the Lease was renewed: is this the operator's audit trail?"
    assert resident < 200


@pytest.fixture(scope="module")
def changed(environment: Environment, measured: Measured, served: str) -> Stored:
    """The accelerator changes: a second profile, and pods that use it."""
    kube = environment.kube
    for name in (TWIN, LATE):
        kube.kubectl("delete", "ss", name)
    story.relabel(environment, SECOND)
    wait_for("a second Job", lambda: len(story.jobs(kube)) == 2, 60)
    wait_for("a second profile", lambda: story.profile_state(kube, MAIN, SECOND).get("state") == "Ready", JOB_SECONDS)
    wait_for("its pods", lambda: story.serves(kube, MAIN, SECOND), ROLLOUT_SECONDS)
    return stored_profile(kube, story.profile_state(kube, MAIN, SECOND)["configMap"])


def test_another_accelerator_gets_its_own_job_table_and_deployment(
    environment: Environment, measured: Measured, changed: Stored
) -> None:
    kube = environment.kube
    key = story.profile_state(kube, MAIN, SECOND)["key"]
    assert key != measured.key
    assert story.jobs(kube) == sorted([f"{measured.key}-1", f"{key}-1"])
    assert story.profiles(kube) == sorted([measured.stored.config_map, changed.config_map])
    assert story.profile_state(kube, MAIN, SECOND)["reason"] == ""
    events = kube.items("events", "--field-selector", f"involvedObject.name={MAIN}")
    reasons = [e["message"] for e in events if e["reason"] == "ProfilingStarted"]
    assert any("AcceleratorChanged" in message for message in reasons)


def test_the_first_variant_is_gone_after_its_grace(environment: Environment, changed: Stored) -> None:
    serving = environment.kube.serving(MAIN)
    assert [a["product"] for a in serving["status"]["accelerators"]] == [SECOND]
    assert story.deployments(environment.kube, MAIN) == [f"{MAIN}-{variant(serving, SECOND)['name']}"]


def test_the_label_back_uses_the_stored_profile(environment: Environment, measured: Measured, changed: Stored) -> None:
    kube = environment.kube
    before = story.jobs(kube)
    story.relabel(environment, FIRST)
    wait_for("pods of the first accelerator", lambda: story.serves(kube, MAIN, FIRST), ROLLOUT_SECONDS)
    assert story.profile_state(kube, MAIN, FIRST)["configMap"] == measured.stored.config_map
    assert pod_config(kube, MAIN) == measured.stored.speculative_config
    assert story.jobs(kube) == before


def test_deleting_the_serving_takes_its_children_and_keeps_the_profiles(
    environment: Environment, measured: Measured, changed: Stored
) -> None:
    kube = environment.kube
    kube.kubectl("delete", "ss", MAIN)
    wait_for("its Deployments' end", lambda: story.deployments(kube, MAIN) == [], 30)
    wait_for("its Service's end", lambda: kube.items("services", "-l", f"specserve.dev/serving={MAIN}") == [], 30)
    assert story.profiles(kube) == sorted([measured.stored.config_map, changed.config_map])


def _ended_unseen(environment: Environment, job: str) -> bool:
    """Whether a Job has ended, while the operator stands still. One that does so for a minute is started again: that
    one, too."""
    process = _other(environment, None)
    if process is not None:
        process.send(signal.SIGSTOP)
    return environment.kube.get("job", job)["status"].get("succeeded") == 1


def _phase(pod: Json | None) -> str:
    return pod["status"].get("phase", "") if pod else ""


def _ready(pod: Json | None) -> bool:
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", ())} if pod else {}
    return conditions.get("Ready") == "True"


def _other(environment: Environment, before: OperatorProcess | None) -> OperatorProcess | None:
    try:
        process = OperatorProcess.of(environment)
    except (RuntimeError, FileNotFoundError):
        return None
    return process if process != before else None


def _log(environment: Environment, job: str) -> str:
    return environment.kube.kubectl("logs", f"job/{job}", "--tail=200")


def _verifies(log: str) -> bool:
    """Its last part has begun: the closed loop of what would be served, or there is none."""
    return re.search(r"\[specserve\] (?:table|static K).* in the closed loop|\[specserve\] verdict", log) is not None


def _answers(url: str, prompt: str) -> bool:
    try:
        return bool(traffic.complete(url, prompt, max_tokens=4))
    except OSError:
        return False


def _if_ready(serving: Json) -> Json | None:
    return serving if condition(serving, "Ready").get("status") == "True" else None
