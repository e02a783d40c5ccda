"""``decide``: from a snapshot to a plan. Pure and total: every snapshot has a plan."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from specserve_operator.api import names
from specserve_operator.api.accelerator import Accelerator
from specserve_operator.api.records import Deployment, Job, Json, Pod, Service, parse_time
from specserve_operator.api.serving import SpeculativeServing
from specserve_operator.decide import accept, identity, rollout, status, variants
from specserve_operator.decide.model import Child, Plan, Snapshot
from specserve_operator.decide.profiles import ProfileDesk, ProfileView, has_profile, inputs_of, variant_inputs
from specserve_operator.decide.variants import Variant
from specserve_operator.manifests import profiling, request
from specserve_operator.manifests import serving as manifests


def decide(snapshot: Snapshot) -> Plan:
    """What to do about one serving.

    A refused spec changes nothing: what serves keeps serving, and the status says what to mend.
    """
    serving = snapshot.serving
    if serving.deleting:  # its children follow by their owner references
        return Plan(status=serving.status, again_in=snapshot.settings.resync_seconds)
    desk = ProfileDesk(snapshot)
    problem = accept.refusal(serving.spec)
    if problem is not None:
        report = status.refused(snapshot, "InvalidSpec", problem)
        events = status.transitions(serving.status, report)
        return Plan(
            create=desk.results(),
            scale=_scaled_as_it_is(snapshot),
            status=report,
            events=events,
            again_in=snapshot.settings.resync_seconds,
        )
    fleet = snapshot.fleet
    found = _variants(snapshot, fleet, desk)
    steps = _rollout(snapshot, fleet, found)
    report = status.report(snapshot, fleet, steps.kept, steps.replicas)
    views = [v.view for v in steps.kept if v.view is not None]
    wakes = [view.again_in for view in views if view.again_in is not None]
    return Plan(
        create=desk.results(),
        apply=steps.apply,
        scale=steps.scale,
        measure=tuple(job for view in views for job in view.measure),
        adopt=tuple(job for view in views for job in view.adopt),
        release=_unwanted_jobs(snapshot, views),
        delete=(*steps.delete, *(gone for view in views for gone in view.delete)),
        status=report,
        events=status.transitions(serving.status, report),
        again_in=min([*wakes, *steps.wakes, snapshot.settings.resync_seconds]),
    )


def _scaled_as_it_is(snapshot: Snapshot) -> tuple[tuple[str, int], ...]:
    """Replicas of a serving whose spec is refused otherwise: what serves can still be scaled."""
    fleet = snapshot.fleet
    known = {found.accelerator.slug: found for found in fleet.found}
    deployed = [
        Variant(_remembered(d), known.get(d.variant), None, d, None) for d in snapshot.deployments if not d.deleting
    ]
    _, replicas = _next_step(snapshot, fleet, deployed)
    return _scaled(deployed, replicas)


def _next_step(
    snapshot: Snapshot, fleet: identity.Fleet, able: Iterable[Variant]
) -> tuple[list[rollout.Standing], dict[str, int]]:
    """Where each of the variants stands, and slug -> replicas that it shall have now."""
    grace, wanted = _grace(snapshot), snapshot.serving.spec.replicas
    unavailable = snapshot.serving.spec.rollout.max_unavailable
    pods = _pods(snapshot)
    standings = [variants.standing(v, pods, fleet, snapshot.now, grace) for v in able]
    return standings, rollout.step(wanted, standings, rollout.goal(wanted, standings), unavailable)


def _scaled(able: Iterable[Variant], replicas: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """(Deployment, replicas) where there are others."""
    return tuple(
        (v.deployment.name, replicas[v.slug])
        for v in able
        if v.deployment is not None and v.deployment.replicas != replicas[v.slug]
    )


def _grace(snapshot: Snapshot) -> dt.timedelta:
    return dt.timedelta(seconds=snapshot.settings.variant_grace_seconds)


def _variants(snapshot: Snapshot, fleet: identity.Fleet, desk: ProfileDesk) -> list[Variant]:
    """Every accelerator of the fleet, then those that only a Deployment remembers."""
    deployments = {d.variant: d for d in snapshot.deployments if not d.deleting}
    present = []
    for found in fleet.found:
        deployment = deployments.pop(found.accelerator.slug, None)
        inputs = request.key_inputs(snapshot.serving.spec, found.accelerator, found.driver, snapshot.prompts.digest)
        view = desk.view(found, inputs, variant_inputs(desk, snapshot, found.accelerator))
        serving = desk.named(deployment.profile) if deployment else None
        outdated = deployment is not None and desk.outdated(deployment.profile) is not None
        present.append(Variant(found.accelerator, found, view, deployment, serving, outdated=outdated))
    missing = {a.name: a.missing_since for a in snapshot.serving.status.accelerators}
    gone = []
    for slug, deployment in sorted(deployments.items()):
        since = missing.get(slug)
        gone.append(
            Variant(
                _remembered(deployment), None, None, deployment, desk.named(deployment.profile),
                missing_since=_since(since, snapshot.now),
            )
        )  # fmt: skip
    return present + gone


def _since(text: str | None, now: dt.datetime) -> dt.datetime:
    """A time of the status, which anybody may have edited; not later than now, though a clock was put back."""
    try:
        since = parse_time(text or "")
    except ValueError:
        return now
    return min(since, now) if since.tzinfo else now


def _remembered(deployment: Deployment) -> Accelerator:
    try:
        return Accelerator.from_json(deployment.accelerator)
    except ValueError:  # the annotation was edited: the name is all that is left
        return Accelerator("", deployment.variant)


@dataclass(frozen=True)
class _Rollout:
    kept: tuple[Variant, ...]
    replicas: dict[str, int]
    """Slug -> desired replicas."""
    apply: tuple[Json, ...]
    scale: tuple[tuple[str, int], ...]
    delete: tuple[tuple[Child, str], ...]
    wakes: tuple[float, ...]


def _rollout(snapshot: Snapshot, fleet: identity.Fleet, everything: Sequence[Variant]) -> _Rollout:
    serving, spec = snapshot.serving, snapshot.serving.spec
    leaving = _leaving(snapshot, fleet, everything)
    kept = tuple(v for v in everything if v not in leaving)
    able = [v for v in kept if v.deployment is not None or variants.target(spec, v) is not None]
    standings, replicas = _next_step(snapshot, fleet, able)

    apply: list[Json] = [] if _service_stands(snapshot) else [manifests.service(serving)]
    rolls: str | None = None
    for variant, standing in zip(able, standings, strict=True):
        made = variants.rendered(spec, variant)
        if made is None:
            continue
        engine, arm = serving.model_copy(update={"spec": made[0]}), made[1]
        fresh = variant.deployment is None
        stands = _stands(snapshot, engine, variant, arm)
        if not stands and (fresh or (rolls is None and rollout.may_roll(standing, standings))):
            apply.append(manifests.deployment(engine, variant.accelerator, arm, replicas[variant.slug]))
            rolls = rolls if fresh or not standing.ready else variant.slug
    ends = [v.missing_since + _grace(snapshot) for v in kept if v.missing_since is not None]
    return _Rollout(
        kept=kept,
        replicas=replicas,
        apply=tuple(apply),
        scale=_scaled(able, replicas),  # also beside an apply, which may be refused for its template
        delete=tuple((Child("Deployment", v.deployment.name), v.deployment.uid) for v in leaving if v.deployment),
        wakes=tuple((end - snapshot.now).total_seconds() + 1 for end in ends if end > snapshot.now),
    )


def _leaving(snapshot: Snapshot, fleet: identity.Fleet, everything: Sequence[Variant]) -> list[Variant]:
    """Variants whose Deployment goes now. One always stays: with none no pod would wait, and no autoscaler bring back
    a node."""
    grace, replicas, pods = _grace(snapshot), snapshot.serving.spec.replicas, _pods(snapshot)
    ready = sum(v.deployment.ready for v in everything if v.found is not None and v.deployment)
    leaving = [
        v
        for v in everything
        if variants.retired(v, pods, fleet, now=snapshot.now, grace=grace, ready_elsewhere=ready, replicas=replicas)
    ]
    if len(leaving) == len(everything) and leaving:
        return sorted(leaving, key=lambda v: v.deployment.replicas if v.deployment else 0)[:-1]
    return leaving


def _pods(snapshot: Snapshot) -> list[Pod]:
    """Pods that serve, or are to."""
    return [
        p
        for p in snapshot.pods
        if p.serving == snapshot.serving.name and p.role == names.ROLE_SERVING and p.phase in ("Pending", "Running")
    ]


def _stands(snapshot: Snapshot, serving: SpeculativeServing, variant: Variant, arm: manifests.Arm) -> bool:
    """Whether the variant's Deployment is what it would be rendered to, and nobody else edited it."""
    deployment = variant.deployment
    if deployment is None:
        return False
    wanted = manifests.deployment_hash(serving, variant.accelerator, arm)
    same = (deployment.applied_hash, deployment.profile) == (wanted, arm.label)
    return same and _ours(snapshot, Child("Deployment", deployment.name), deployment)


def _service_stands(snapshot: Snapshot) -> bool:
    service = next((s for s in snapshot.services if s.name == snapshot.serving.name and not s.deleting), None)
    if service is None:
        return False
    wanted = manifests.service(snapshot.serving)["metadata"]["annotations"]
    return service.applied_hash in wanted.values() and _ours(snapshot, Child("Service", service.name), service)


def _ours(snapshot: Snapshot, child: Child, record: Deployment | Service) -> bool:
    """Whether a child is as we left it: in this process by its generation, before that by the API server's account."""
    left = snapshot.applied.get(child)
    untouched = not record.edited if left is None else record.generation == left
    return untouched and snapshot.serving.uid in record.owners


def _unwanted_jobs(snapshot: Snapshot, views: Iterable[ProfileView]) -> tuple[Job, ...]:
    """Unfinished Jobs that this serving waits for and needs no more. One that has measured ends by itself.

    One that runs is given up for an edit of the spec only: labels and allocatable devices come and go, as when a device
    plugin restarts, and a measurement is dear.
    """
    wanted = {view.key for view in views}
    running = {pod.job for pod in snapshot.pods if pod.phase == "Running"}
    measured = {pod.job for pod in snapshot.pods if has_profile(pod)}
    return tuple(
        job
        for job in snapshot.jobs
        if job.state == "Active" and not job.deleting
        and snapshot.serving.uid in job.owners and job.key not in wanted and job.uid not in measured
        and (job.uid not in running or _asks_for_something_else(snapshot, job))
    )  # fmt: skip


def _asks_for_something_else(snapshot: Snapshot, job: Job) -> bool:
    """Whether the spec was edited since it asked for a Job; for one that another asked for, by what that measures."""
    serving = snapshot.serving
    if job.requested_by.startswith(f"{serving.uid}/"):
        return job.requested_by != profiling.requested_by(serving)
    measures, nowhere = inputs_of(job), Accelerator("", "")
    if measures is None or snapshot.prompts.problem:
        return measures is None
    asked = request.key_inputs(serving.spec, nowhere, None, snapshot.prompts.digest)
    return bool(measures.model_copy(update={"accelerator": asked.accelerator, "driver": None}) != asked)
