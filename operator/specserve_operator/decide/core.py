"""``decide``: from a snapshot to a plan. Pure and total: every snapshot has a plan."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from specserve_operator.api.accelerator import Accelerator
from specserve_operator.api.records import Deployment, Json, parse_time
from specserve_operator.decide import accept, identity, status, variants
from specserve_operator.decide.model import Child, Plan, Snapshot
from specserve_operator.decide.profiles import ProfileDesk, ProfileView, variant_inputs
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
    problem = accept.refusal(serving.spec)
    if problem is not None:
        report = status.refused(snapshot, "InvalidSpec", problem)
        events = status.transitions(serving.status, report)
        return Plan(status=report, events=events, again_in=snapshot.settings.resync_seconds)
    fleet = identity.survey(snapshot.nodes, serving.spec.accelerators, serving.spec.profile.driver_policy)
    found = _variants(snapshot, fleet)
    rollout = _rollout(snapshot, found)
    report = status.report(snapshot, fleet, rollout.kept, rollout.replicas)
    views = [v.view for v in rollout.kept if v.view is not None]
    wakes = [view.again_in for view in views if view.again_in is not None]
    return Plan(
        create=tuple(obj for view in views for obj in view.create),
        apply=rollout.apply,
        scale=rollout.scale,
        measure=tuple(job for view in views for job in view.measure),
        adopt=tuple(job for view in views for job in view.adopt),
        delete=(*rollout.delete, *(gone for view in views for gone in view.delete), *_unwanted_jobs(snapshot, views)),
        status=report,
        events=status.transitions(serving.status, report),
        again_in=min([*wakes, *rollout.wakes, snapshot.settings.resync_seconds]),
    )


def _variants(snapshot: Snapshot, fleet: identity.Fleet) -> list[Variant]:
    """Every accelerator of the fleet, then those that only a Deployment remembers."""
    desk = ProfileDesk(snapshot)
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


def _rollout(snapshot: Snapshot, found: Iterable[Variant]) -> _Rollout:
    serving, spec = snapshot.serving, snapshot.serving.spec
    everything = list(found)
    present = [v for v in everything if v.found is not None]
    grace = dt.timedelta(seconds=snapshot.settings.variant_grace_seconds)
    ready = sum(v.deployment.ready for v in present if v.deployment)
    leaving = [v for v in everything if variants.retired(v, snapshot.now, grace, ready, spec.replicas)]
    kept = tuple(v for v in everything if v not in leaving)

    able = [v for v in present if v.deployment is not None or variants.target(spec, v) is not None]
    shares = variants.apportion(spec.replicas, [v.found.capacity if v.found else 0 for v in able])
    replicas = {v.slug: share for v, share in zip(able, shares, strict=True)}

    apply: list[Json] = [] if _service_stands(snapshot) else [manifests.service(serving)]
    scale: list[tuple[str, int]] = []
    for variant in able:
        share = replicas[variant.slug]
        arm = variants.target(spec, variant)
        if arm is not None and not _stands(snapshot, variant, arm):
            apply.append(manifests.deployment(serving, variant.accelerator, arm, share))
        elif variant.deployment is not None and variant.deployment.replicas != share:
            scale.append((variant.deployment.name, share))
    bound = [v.deployment for v in kept if v.found is None and v.deployment is not None]
    scale += [(d.name, spec.replicas) for d in bound if d.replicas > spec.replicas]
    ends = [v.missing_since + grace for v in kept if v.missing_since is not None]
    return _Rollout(
        kept=kept,
        replicas=replicas,
        apply=tuple(apply),
        scale=tuple(scale),
        delete=tuple((Child("Deployment", v.deployment.name), "") for v in leaving if v.deployment),
        wakes=tuple(max((end - snapshot.now).total_seconds(), 0) + 1 for end in ends),
    )


def _stands(snapshot: Snapshot, variant: Variant, arm: manifests.Arm) -> bool:
    """Whether the variant's Deployment is what it would be rendered to, and nobody else edited it."""
    deployment = variant.deployment
    if deployment is None:
        return False
    wanted = manifests.deployment_hash(snapshot.serving, variant.accelerator, arm)
    left = snapshot.applied.get(Child("Deployment", deployment.name), deployment.generation)
    return (deployment.applied_hash, deployment.profile, deployment.generation) == (wanted, arm.label, left)


def _service_stands(snapshot: Snapshot) -> bool:
    service = next((s for s in snapshot.services if s.name == snapshot.serving.name and not s.deleting), None)
    if service is None:
        return False
    wanted = manifests.service(snapshot.serving)["metadata"]["annotations"]
    left = snapshot.applied.get(Child("Service", service.name), service.generation)
    return service.applied_hash in wanted.values() and service.generation == left


def _unwanted_jobs(snapshot: Snapshot, views: Iterable[ProfileView]) -> list[tuple[Child, str]]:
    """Unfinished Jobs that this serving alone waits for and needs no more.

    One that runs is ended by an edit of the spec only: labels and allocatable devices come and go, as when a device
    plugin restarts, and a measurement is dear.
    """
    wanted = {view.key for view in views}
    asked = profiling.requested_by(snapshot.serving)
    running = {pod.job for pod in snapshot.pods if pod.phase == "Running"}
    return [
        (Child("Job", job.name), job.uid)
        for job in snapshot.jobs
        if job.state == "Active" and not job.deleting
        and job.owners == {snapshot.serving.uid} and job.key not in wanted
        and (job.requested_by != asked or job.uid not in running)
    ]  # fmt: skip
