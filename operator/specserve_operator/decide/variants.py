"""What each accelerator should serve, and with how many replicas."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specserve_operator.api.accelerator import Accelerator
from specserve_operator.api.records import Deployment, Pod
from specserve_operator.api.serving import ServingSpec
from specserve_operator.api.stored import Stored
from specserve_operator.decide import accept
from specserve_operator.decide.identity import Fleet, Found
from specserve_operator.decide.profiles import ProfileView
from specserve_operator.decide.rollout import Standing
from specserve_operator.manifests.serving import Arm, held


@dataclass(frozen=True)
class Variant:
    """One serving on one accelerator."""

    accelerator: Accelerator
    found: Found | None
    """None where no node has it any more."""
    view: ProfileView | None
    """None with ``found``."""
    deployment: Deployment | None
    serving: Stored | None
    """The profile that its Deployment uses."""
    outdated: bool = False
    """Its Deployment uses a profile in another version's form."""
    missing_since: dt.datetime | None = None

    @property
    def slug(self) -> str:
        """Its name: of its accelerator, or what its Deployment remembers where no node has that any more."""
        if self.found is None and self.deployment is not None:
            return self.deployment.variant
        return self.accelerator.slug

    @property
    def arm(self) -> Arm | None:
        """What a newly rendered Deployment would serve; None where nothing is to be rendered: see ``target``."""
        if self.view is None or self.view.stored is None:
            return None
        stored = self.view.stored
        return Arm("Profile", stored.config_map, stored.speculates, stored.decision.capture_sizes)


def target(spec: ServingSpec, variant: Variant) -> Arm | None:
    """How ``variant`` should draft, or None: leave its Deployment as it is, or have none.

    A measured profile always wins. Without one, what serves well keeps serving; otherwise ``beforeProfile`` says.
    """
    if variant.arm is not None:
        return variant.arm
    if variant.found is None or holds(variant):
        return None
    before = spec.speculation.before_profile
    return None if before == "Wait" else Arm(before)


def holds(variant: Variant) -> bool:
    """Whether its Deployment is worth keeping as it is while nothing better is measured.

    One that served once may be unready for a moment; what never served, or has no replicas, is not worth it.
    """
    deployment = variant.deployment
    if deployment is None:
        return False
    served = deployment.ready > 0 or (deployment.served and deployment.replicas > 0)
    return served or variant.serving is not None or variant.outdated


def rendered(spec: ServingSpec, variant: Variant) -> tuple[ServingSpec, Arm] | None:
    """What a variant's Deployment is to be rendered from, and how it drafts; None: leave it as it is, or have none.

    One that is held goes on with its own engine, and is placed as ``spec`` says.
    """
    arm = target(spec, variant)
    if arm is not None:
        return spec, arm
    if variant.deployment is None or variant.found is None:  # pods without a node with their labels could not start
        return None
    try:
        kept, arm = held(spec, variant.deployment.revision)
    except ValueError:
        return None
    usable = arm.kind != "Profile" or variant.serving is not None or variant.outdated  # or its pods could not start
    return (kept, arm) if usable and arm.label == variant.deployment.profile and not accept.refusal(kept) else None


def standing(variant: Variant, pods: Sequence[Pod], fleet: Fleet, now: dt.datetime, grace: dt.timedelta) -> Standing:
    """Where a variant stands, from its Deployment, its nodes and the ``pods`` of its serving."""
    deployment, found, since = variant.deployment, variant.found, variant.missing_since
    mine = [p for p in pods if p.variant == variant.slug and not p.deleting]
    placed = [p for p in mine if p.node]
    return Standing(
        slug=variant.slug,
        replicas=deployment.replicas if deployment else 0,
        ready=min(deployment.ready, deployment.replicas) if deployment else 0,
        room=found.room if found else 0,
        seats=found.capacity + sum(p.node not in found.usable for p in placed) if found else 0,
        stuck=sum(p.unscheduled_since is not None and now - p.unscheduled_since >= grace for p in mine),
        unready=sum(not p.ready for p in placed),
        rolling=deployment is not None and deployment.rolls,
        present=found is not None,
        awaited=since is not None and now < since + grace and not relabelled(variant, pods, fleet),
    )


def nodes_under(variant: Variant, pods: Iterable[Pod]) -> set[str]:
    """Nodes that hold pods of it."""
    return {p.node for p in pods if p.variant == variant.slug and p.node and not p.deleting}


def relabelled(variant: Variant, pods: Iterable[Pod], fleet: Fleet) -> bool:
    """Whether nodes under its pods are of another accelerator now: the table is not for that."""
    nodes = nodes_under(variant, pods)
    return variant.found is None and any(nodes.intersection(found.nodes) for found in fleet.found)


def retired(
    variant: Variant,
    pods: Sequence[Pod],
    fleet: Fleet,
    *,
    now: dt.datetime,
    grace: dt.timedelta,
    ready_elsewhere: int,
    replicas: int,
) -> bool:
    """Whether a variant without nodes is to go (see ``rollout``): replaced, or over its grace and of no use."""
    if variant.found is not None or variant.deployment is None or variant.missing_since is None:
        return False
    if ready_elsewhere >= replicas > 0:
        return True
    if now < variant.missing_since + grace:
        return False
    return relabelled(variant, pods, fleet) or not (variant.deployment.ready or nodes_under(variant, pods))
