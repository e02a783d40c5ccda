"""The status: what is, whether it is fine, and what to do where it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, log
from typing import Any, Literal, NamedTuple

from specserve_operator.api import names
from specserve_operator.api.records import Pod, format_time
from specserve_operator.api.serving import (
    AcceleratorStatus,
    Condition,
    ProfileStatus,
    ServingStatus,
    SpeedupStatus,
)
from specserve_operator.api.stored import Stored
from specserve_operator.decide import accept, faults
from specserve_operator.decide.identity import Fleet
from specserve_operator.decide.model import Event, Snapshot
from specserve_operator.decide.variants import Variant
from specserve_operator.manifests.common import serving_labels
from specserve_profiler.contract.profile import Speedup, short_table
from specserve_profiler.dialect import render

SUMMARY_LENGTH, TABLE_LENGTH, NAME_LENGTH, REASON_LENGTH = 512, 1024, 253, 64
MOST_ACCELERATORS = 64
"""Bounds of the schema; what others wrote, such as annotations, may be longer."""
MESSAGE_BYTES = 1023
"""Of a message: Events take no more."""
MOST_TOLD = 5
"""Accelerators, nodes or pods that one message names; of the others it says how many there are."""


class Finding(NamedTuple):
    """A condition before it has a time."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


def report(snapshot: Snapshot, fleet: Fleet, variants: Sequence[Variant], replicas: Mapping[str, int]) -> ServingStatus:
    """The status of an accepted serving.

    Args:
        variants: those that stay.
        replicas: slug -> desired replicas.
    """
    ready = sum(v.deployment.ready for v in variants if v.deployment)
    findings = [
        Finding("Accepted", "True", "Accepted", accept.note(snapshot.serving.spec)),
        _accelerators_found(snapshot, fleet, len(variants)),
        _profiled(variants),
        _available(snapshot, variants, ready),
        _progressing(variants),
    ]
    ready_finding = _ready(findings, _measured_again(snapshot, variants))
    return ServingStatus(
        observed_generation=snapshot.serving.generation,
        replicas=_pods(snapshot),
        ready_replicas=ready,
        selector=_selector(snapshot),
        summary=cut(_summary(snapshot, variants, ready_finding, ready), SUMMARY_LENGTH),
        accelerators=tuple(_accelerator(v, replicas) for v in _told(variants)),
        conditions=_dated(snapshot, [*findings, ready_finding]),
    )


def _told(variants: Sequence[Variant]) -> list[Variant]:
    """As many as the status holds. First those whose nodes are gone, for it remembers since when; then who serves."""
    if len(variants) <= MOST_ACCELERATORS:
        return list(variants)
    return sorted(variants, key=lambda v: (v.missing_since is None, v.deployment is None))[:MOST_ACCELERATORS]


def refused(snapshot: Snapshot, reason: str, problem: str) -> ServingStatus:
    """The status of a serving whose spec cannot be served: all that was known stays, and says so."""
    message = f"{problem}. What was serving before keeps serving."
    findings = [Finding("Accepted", "False", reason, message), Finding("Ready", "False", reason, message)]
    new = {f.type for f in findings}
    conditions = _dated(snapshot, findings)
    kept = tuple(c for c in snapshot.serving.status.conditions if c.type not in new)
    return snapshot.serving.status.model_copy(
        update={
            "observed_generation": snapshot.serving.generation,
            "replicas": _pods(snapshot),
            "ready_replicas": sum(d.ready for d in snapshot.deployments),
            "selector": _selector(snapshot),
            "summary": cut(problem, SUMMARY_LENGTH),
            "conditions": (*conditions, *kept),
        }
    )


def hindered(
    snapshot: Snapshot, report: ServingStatus, refused: Sequence[str], hindered: Sequence[str]
) -> ServingStatus:
    """A report with what could not be carried out of its plan: children that were refused, calls that are repeated."""
    findings = []
    if refused:
        message = f"{'; '.join(dict.fromkeys(refused))}. What was serving before keeps serving."
        findings += [Finding(kind, "False", "RefusedByCluster", message) for kind in ("Accepted", "Ready")]
    if hindered:
        findings.append(Finding("Progressing", "True", "Retrying", "; ".join(dict.fromkeys(hindered))))
    new = {finding.type for finding in findings}
    kept = tuple(c for c in report.conditions if c.type not in new)
    changed: dict[str, Any] = {"conditions": (*_dated(snapshot, findings), *kept)}
    if refused:
        changed["summary"] = cut(refused[0], SUMMARY_LENGTH)
    return report.model_copy(update=changed)


def retold(before: ServingStatus, after: ServingStatus) -> bool:
    """Whether a status differs in the texts of errors alone: they may hold a time, or the id of a request."""
    return before != after and _without_errors_texts(before) == _without_errors_texts(after)


def _without_errors_texts(status: ServingStatus) -> ServingStatus:
    failed = [c.reason in ("Retrying", "RefusedByCluster") for c in status.conditions]
    conditions = tuple(
        c.model_copy(update={"message": ""}) if told else c for c, told in zip(status.conditions, failed, strict=True)
    )
    return status.model_copy(update={"conditions": conditions, "summary": "" if any(failed) else status.summary})


def _own_pods(snapshot: Snapshot) -> list[Pod]:
    return [
        p
        for p in snapshot.pods
        if p.serving == snapshot.serving.name and p.role == names.ROLE_SERVING and not p.deleting
    ]


def _pods(snapshot: Snapshot) -> int:
    return sum(p.phase in ("Pending", "Running") for p in _own_pods(snapshot))


def _selector(snapshot: Snapshot) -> str:
    return ",".join(f"{label}={value}" for label, value in sorted(serving_labels(snapshot.serving).items()))


def cut(text: str, most: int = MESSAGE_BYTES) -> str:
    """A text of at most ``most`` bytes, cut at a word."""
    encoded = text.encode()
    if len(encoded) <= most:
        return text
    kept = encoded[: most - len("…".encode())].decode(errors="ignore")
    words = text[: len(kept) + 1].rpartition(" ")[0]  # the last one too, where it is whole
    return (words if len(words) >= len(kept) // 2 else kept).rstrip(" ;,:") + "…"


def _listed(texts: Sequence[str], separator: str = "; ") -> str:
    """The first of them, and how many more there are."""
    more = len(texts) - MOST_TOLD
    return separator.join([*texts[:MOST_TOLD], *([f"and {more} more"] if more > 0 else [])])


def _dated(snapshot: Snapshot, findings: Iterable[Finding]) -> tuple[Condition, ...]:
    """Conditions with the time of their last change of status, taken over where it did not change."""
    before = {c.type: c for c in snapshot.serving.status.conditions}
    now = format_time(snapshot.now)

    def since(finding: Finding) -> str:
        old = before.get(finding.type)
        return old.last_transition_time if old and old.status == finding.status else now

    return tuple(
        Condition(
            type=f.type, status=f.status, reason=f.reason, message=cut(f.message),
            observed_generation=snapshot.serving.generation, last_transition_time=since(f),
        )
        for f in findings
    )  # fmt: skip


def _accelerators_found(snapshot: Snapshot, fleet: Fleet, variants: int) -> Finding:
    kind = "AcceleratorsFound"
    notes = _left_out(fleet)
    if fleet.found:
        found = _listed([f"{f.accelerator.product} on {len(f.nodes)} node(s)" for f in fleet.found], ", ")
        cut_short = f"; this status lists {MOST_ACCELERATORS} of {variants}" if variants > MOST_ACCELERATORS else ""
        return Finding(kind, "True", "Found", found + cut_short + (f"; left out: {notes}" if notes else ""))
    resource = snapshot.serving.spec.accelerators.resource
    if not fleet.selected:
        return Finding(kind, "False", "NoNodes", "no node has the labels of accelerators.nodeSelector")
    return Finding(kind, "False", "NoAccelerators", f"no selected node can serve with {resource}: {notes}")


def _left_out(fleet: Fleet) -> str:
    """Why nodes cannot be used, each reason once. Not how many: a status is not rewritten for every node of a fleet."""
    return _listed([f"node {n.node}{' and others' if n.others else ''} {n.reason}" for n in fleet.left_out])


_STATES = ("Failed", "Missing", "Queued", "Profiling")  # the worst first


def _profiled(variants: Iterable[Variant]) -> Finding:
    views = [(v.accelerator.product, v.view) for v in variants if v.view is not None]
    if not views:
        return Finding("Profiled", "Unknown", "NoAccelerators")
    problems = dict.fromkeys(p for _, view in views for p in view.problems)
    for state in _STATES:
        messages = [f"{product}: {view.message}" for product, view in views if view.state == state]
        if messages:
            return Finding("Profiled", "False", state, _listed([_listed(messages), *problems]))
    return Finding("Profiled", "True", "AllProfiled", _listed(list(problems)))


def _available(snapshot: Snapshot, variants: Sequence[Variant], ready: int) -> Finding:
    wanted = snapshot.serving.spec.replicas
    if wanted == 0:
        return Finding("Available", "True", "ScaledToZero")
    if ready >= wanted:
        return Finding("Available", "True", "ReplicasReady", f"{ready} of {wanted} replicas are ready")
    deployments = [v.deployment for v in variants if v.deployment]
    refused = dict.fromkeys(faults.refusal(d.refused) for d in deployments if d.refused)
    stalled = [d.stalled for d in deployments if d.stalled]
    reason = "PodsRefused" if refused else "RolloutStalled" if stalled else "ReplicasMissing"
    told = [*refused, *stalled, *faults.causes(_own_pods(snapshot), snapshot.now)]
    return Finding(
        "Available", "False", reason, f"{ready} of {wanted} replicas are ready; {_listed(told)}".rstrip("; ")
    )


def _progressing(variants: Iterable[Variant]) -> Finding:
    moving = []
    for variant in variants:
        d = variant.deployment
        if variant.view is not None and variant.view.state in ("Queued", "Profiling"):
            moving.append(f"{variant.accelerator.product}: {variant.view.state.lower()}")
        elif d is not None and not (d.current and d.updated >= d.replicas and d.ready >= d.replicas):
            hindered = f", {faults.refusal(d.refused)}" if d.refused else ""
            moving.append(f"{variant.accelerator.product}: {d.ready} of {d.replicas} replicas ready{hindered}")
        elif variant.missing_since is not None:
            moving.append(f"{variant.accelerator.product}: no node has it any more")
    if moving:
        return Finding("Progressing", "True", "Changing", _listed(moving))
    return Finding("Progressing", "False", "Settled")


def _ready(findings: Iterable[Finding], again: str) -> Finding:
    """``again``: what is only measured again; empty where that is not so."""
    for finding in findings:
        if finding.type == "Progressing" or finding.status == "True" or (finding.type == "Profiled" and again):
            continue
        return Finding("Ready", "False", finding.reason, finding.message)
    return Finding("Ready", "True", "Serving", f"measured again meanwhile: {again}" if again else "")


_NEW_REVISION = ("EngineChanged", "ModelChanged")
"""What serves meanwhile is not what the spec asks for."""


def _measured_again(snapshot: Snapshot, variants: Sequence[Variant]) -> str:
    """Accelerators that are measured while all wanted replicas serve by valid tables for what the spec asks."""
    views = [(v.accelerator.product, v.view) for v in variants if v.view is not None and v.view.state != "Ready"]
    if any(view.state not in ("Queued", "Profiling") or view.reason in _NEW_REVISION for _, view in views):
        return ""
    measured = sum(v.deployment.ready for v in variants if v.deployment and (v.serving is not None or v.outdated))
    if measured < max(snapshot.serving.spec.replicas, 1):
        return ""
    return _listed([product for product, _ in views], ", ")


def _summary(snapshot: Snapshot, variants: Iterable[Variant], ready: Finding, replicas: int) -> str:
    if ready.status != "True":
        return f"{ready.reason}: {ready.message}" if ready.message else ready.reason
    tables = [f"{v.accelerator.product}: {_what_serves(v)}" for v in variants if v.deployment]
    return f"{replicas}/{snapshot.serving.spec.replicas} serving; {_listed(tables)}"


def _what_serves(variant: Variant) -> str:
    if variant.serving is not None:
        return short_table_of(variant.serving)
    return variant.deployment.profile if variant.deployment else "nothing"


def short_table_of(stored: Stored) -> str:
    """What a profile makes an engine do, in short form."""
    decision = stored.decision
    if decision.verdict in ("None", "Adaptive"):
        return str(render.decided_arm(decision))
    return short_table(decision.table) if decision.verdict == "Dynamic" else f"K={decision.static_k}"


def _accelerator(variant: Variant, replicas: Mapping[str, int]) -> AcceleratorStatus:
    deployment, found = variant.deployment, variant.found
    stored = variant.view.stored if variant.view else variant.serving
    return AcceleratorStatus(
        name=variant.slug,
        product=cut(variant.accelerator.product, NAME_LENGTH),
        nodes=len(found.nodes) if found else 0,
        capacity=found.room if found else 0,
        replicas=replicas.get(variant.slug, deployment.replicas if deployment else 0),
        ready=deployment.ready if deployment else 0,
        serving=cut(deployment.profile, NAME_LENGTH) if deployment else "",
        table=cut(short_table(stored.decision.table), TABLE_LENGTH) if stored else "",
        speedup=_speedup(stored.decision.speedups) if stored else None,
        profile=_profile(variant, stored),
        missing_since=format_time(variant.missing_since) if variant.missing_since else None,
    )


def _profile(variant: Variant, stored: Stored | None) -> ProfileStatus:
    view = variant.view
    return ProfileStatus(
        state=view.state if view else "Ready" if stored else "Missing",
        key=view.key if view else stored.key if stored else "",
        config_map=stored.config_map if stored else None,
        reason=cut(view.reason, REASON_LENGTH) if view else "",
        message=cut(view.message) if view else "",
        measured_at=format_time(stored.measured_at) if stored else None,
        verdict=stored.decision.verdict if stored else None,
    )


def _speedup(speedups: Sequence[Speedup]) -> SpeedupStatus | None:
    """Geometric means over what was verified; over what was predicted where nothing was."""
    counted = [s for s in speedups if s.verified] or speedups
    if not counted:
        return None

    def mean(value: Callable[[Speedup], float]) -> str:
        return f"{exp(sum(log(value(s)) for s in counted) / len(counted)):.2f}"

    return SpeedupStatus(over_baseline=mean(lambda s: s.over_baseline), over_static=mean(lambda s: s.over_static))


def transitions(before: ServingStatus, after: ServingStatus) -> tuple[Event, ...]:
    """What changed, for people: one Event per kind of transition, for all accelerators that made it."""
    events: list[Event] = []
    old = {a.name: a for a in before.accelerators}
    for new in after.accelerators:
        events.extend(_variant_events(old.pop(new.name, None), new))
    if len(after.accelerators) < MOST_ACCELERATORS:  # else it may only have had no place
        events += [Event("Normal", "VariantRemoved", f"{gone.product}: removed") for gone in old.values()]
    accepted = {c.type: c for c in before.conditions}.get("Accepted")
    for condition in after.conditions:
        news = accepted is None or (accepted.status, accepted.message) != (condition.status, condition.message)
        if condition.type == "Accepted" and condition.status == "False" and news:
            events.append(Event("Warning", condition.reason, condition.message))
    said: dict[tuple[Literal["Normal", "Warning"], str], list[str]] = {}
    for event in events:
        said.setdefault((event.type, event.reason), []).append(event.message)
    return tuple(Event(kind, reason, _listed(messages)) for (kind, reason), messages in said.items())


def _variant_events(old: AcceleratorStatus | None, new: AcceleratorStatus) -> Iterable[Event]:
    product, profile = new.product, new.profile
    state = old.profile.state if old else "Missing"
    underway = ("Queued", "Profiling")
    if profile.state in underway and (state not in underway or (old and old.profile.key != profile.key)):
        yield Event("Normal", "ProfilingStarted", f"{product}: {profile.reason}: {profile.message}")
    if profile.state == "Failed" and state != "Failed":
        yield Event("Warning", "ProfilingFailed", f"{product}: {profile.reason}: {profile.message}")
    if profile.state == "Ready" and profile.config_map != (old.profile.config_map if old else None):
        yield Event("Normal", "ProfileReady", f"{product}: verdict {profile.verdict}, table {new.table}")
    if new.serving and new.serving != (old.serving if old else ""):
        yield Event("Normal", "RolloutStarted", f"{product}: serving with {new.serving}")
    if new.missing_since and not (old and old.missing_since):
        yield Event("Normal", "AcceleratorGone", f"{product}: no node has it any more; kept for the grace period")
