"""The demo, act by act. Everything it shows is measured or asked for while it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass

from demo import traffic
from demo.console import Console, DemoError
from demo.environment import ACCELERATOR_LABEL, EXAMPLE, GRACE_SECONDS, SERVING, Environment
from demo.follow import Follower, profiled, serves_profile
from demo.kube import Json, Kube, condition, variant, wait_for
from specserve_profiler.contract.profile import Profile, Row
from specserve_profiler.reports.text import report

FIRST, SECOND = "demo-cpu-a", "demo-cpu-b"
PROFILE_SECONDS, ROLLOUT_SECONDS = 900.0, 600.0
REPROFILE = "specserve.dev/reprofile"


@dataclass(frozen=True)
class Stored:
    """A profile as the cluster keeps it."""

    config_map: str
    profile: Profile
    speculative_config: str
    """Empty where the verdict is None."""


def tell(environment: Environment, console: Console) -> None:
    """The whole story. Raises DemoError where it does not go as it should."""
    kube = environment.kube
    with console.act("One kubectl apply", "at once"):
        kube.label_node(environment.node, ACCELERATOR_LABEL, FIRST)
        kube.apply(EXAMPLE.read_text())
        console.say(f"applied {EXAMPLE.name} on a node labelled {ACCELERATOR_LABEL}={FIRST}")
    follower = Follower(kube, SERVING, console)
    first = _measure_and_serve(environment, follower, console, FIRST)
    with console.act("The served engine uses the table", "half a minute"):
        _ask(environment, console)
        _prove(environment, first, console)
    with console.act("The fleet changes", "at once"):
        kube.label_node(environment.node, ACCELERATOR_LABEL, SECOND)
        console.say(f"the node's accelerator is now {SECOND}: another accelerator needs a table of its own")
        console.say(
            f"grace for the old variant: {GRACE_SECONDS} s here, 10 min by default. The one device is then free"
        )
    second = _measure_and_serve(environment, follower, console, SECOND)
    with console.act("What there is now", "at once"):
        console.show(kube.kubectl("get", "speculativeservings"))
        console.show(kube.kubectl("get", "jobs,configmaps,deployments,services", "-l", "specserve.dev/role"))
        if first.config_map == second.config_map:
            raise DemoError("both accelerators share one profile; each should have its own")
        console.show(kube.kubectl("get", "events", "--sort-by=.lastTimestamp", "--field-selector",
                                  f"involvedObject.kind=SpeculativeServing,involvedObject.name={SERVING}"))  # fmt: skip


def _measure_and_serve(environment: Environment, follower: Follower, console: Console, product: str) -> Stored:
    with console.act(f"Measuring on {product}", "4 to 6 minutes: boots of the engine, and 3 minutes of measuring"):
        stored = _measured(environment, follower, console, product)
    if stored.profile.decision.verdict == "None":
        with console.act(f"A second look at {product}", "8 to 11 minutes: the same boots, twice the time to measure"):
            stored = _second_look(environment, follower, console, product, stored)
    with console.act(f"Serving on {product}", "a minute"):
        follower.until(serves_profile(product), f"pods with the table of {product}", ROLLOUT_SECONDS)
        shown = pod_config(environment.kube, SERVING)
        console.say(f"the pod runs with --speculative-config {shown}" if shown else "the pod runs without speculation")
        if shown != stored.speculative_config:
            raise DemoError(f"the ConfigMap says {stored.speculative_config}")
    return stored


def _measured(environment: Environment, follower: Follower, console: Console, product: str, before: str = "") -> Stored:
    """The profile of an accelerator that comes after the one in ConfigMap ``before``."""
    serving = follower.until(profiled(product, before), f"the profile of {product}", PROFILE_SECONDS)
    stored = stored_profile(environment.kube, variant(serving, product)["profile"]["configMap"])
    console.say(f"stored in ConfigMap {stored.config_map}")
    console.show(report(stored.profile))
    return stored


def _second_look(environment: Environment, follower: Follower, console: Console, product: str, first: Stored) -> Stored:
    """Measure again, longer: on a machine that does other things, too, a gain drowns in a short measurement."""
    kube = environment.kube
    seconds = 2 * kube.serving(SERVING)["spec"]["profile"]["measureSeconds"]
    console.say("no K was faster by more than the measurement's error, so nothing is drafted: the safe answer.")
    console.say(f"Does another program keep this machine busy? A second look, with measureSeconds={seconds}, is asked")
    console.say(f"for by the annotation {REPROFILE}; replicas go to 0 meanwhile, for it needs the one device")
    kube.patch("speculativeserving", SERVING, {
        "metadata": {"annotations": {REPROFILE: f"second-look-{product}"}},
        "spec": {"replicas": 0, "profile": {"measureSeconds": seconds}},
    })  # fmt: skip
    second = _measured(environment, follower, console, product, before=first.config_map)
    kube.patch("speculativeserving", SERVING, {"spec": {"replicas": 1}})
    return second


def stored_profile(kube: Kube, name: str) -> Stored:
    """The profile in a ConfigMap."""
    data = kube.get("configmap", name)["data"]
    profile = Profile.model_validate_json(data["profile.json"])
    return Stored(name, profile, data.get("speculative-config.json", ""))


def pod_config(kube: Kube, serving: str) -> str:
    """``--speculative-config`` of the running process in the serving pod; empty where it has none."""
    pods = [p for p in kube.items("pods", "-l", f"specserve.dev/serving={serving}") if _ready(p)]
    if not pods:
        raise DemoError(f"no serving pod of {serving} is ready")
    name = pods[0]["metadata"]["name"]
    line = kube.kubectl("exec", name, "-c", "engine", "--", "cat", "/proc/1/cmdline").split("\0")
    return next((a.removeprefix("--speculative-config=") for a in line if a.startswith("--speculative-config=")), "")


def _ready(pod: Json) -> bool:
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def _ask(environment: Environment, console: Console) -> None:
    url = environment.service_url(SERVING)
    prompt = environment.heldout_prompts(1)[0]
    answer = wait_for("an answer through the Service", lambda: _try(url, prompt), 60)
    console.say(f"asked {url} (the Service's ClusterIP):")
    console.show(f"  {prompt} »{answer.strip()}«")


def _try(url: str, prompt: str) -> str:
    try:
        return traffic.complete(url, prompt)
    except OSError:  # the endpoints follow readiness by a moment
        return ""


def _prove(environment: Environment, stored: Stored, console: Console) -> None:
    """Compare what the engine drafts with the table: for one request, and at the end of every row."""
    rows = served_rows(stored)
    url = environment.service_url(SERVING)
    if len({row.k for row in rows}) == 1:
        console.say(f"what serves has K={rows[0].k} at every batch size; the engine must draft just that")
    for batch_size in sorted({1, *(row.last for row in rows)}):
        expected = k_of(rows, batch_size)
        seen = traffic.drafted_at(url, batch_size, environment.heldout_prompts(batch_size), tokens=850)
        console.say(
            f"batch size {batch_size:>2}: the table says K={expected}; the engine drafted "
            f"{seen.draft_tokens:.0f} tokens in {seen.drafts:.0f} drafts: K={seen.k:g}"
        )
        if seen.k != expected:
            raise DemoError("the engine does not follow the table")


def served_rows(stored: Stored) -> tuple[Row, ...]:
    """The rows by which an engine with this profile picks K: its table, or one row for the other verdicts."""
    decision = stored.profile.decision
    if decision.verdict == "Dynamic":
        return decision.table
    k = decision.static_k if decision.verdict == "Static" else 0
    return (Row(first=1, last=max(row.last for row in decision.table), k=k),)


def k_of(rows: tuple[Row, ...], batch_size: int) -> int:
    """K of the row that holds ``batch_size``."""
    return next(row.k for row in rows if row.first <= batch_size <= row.last)


def last_words(environment: Environment, console: Console, began: float) -> str:
    """Where the time went, and what to play on with."""
    kubectl = environment.shell_hint
    serving = environment.kube.serving(SERVING)
    ready, summary = condition(serving, "Ready").get("status"), serving["status"].get("summary", "")
    return "\n".join(
        [
            console.where_the_time_went(),
            "",
            f"Done in {time.monotonic() - began:.0f} s. {SERVING}: Ready={ready}: {summary}",
            "Play on:",
            f"  {kubectl}",
            f"  kubectl get ss {SERVING} --watch                # and in another shell:",
            f"  kubectl label node {environment.node} {ACCELERATOR_LABEL}={FIRST} --overwrite   # back: no third Job",
            "Take it away: make demo-down",
        ]
    )
