"""What each accelerator should serve, and with how many replicas."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from specserve_operator.api.accelerator import Accelerator
from specserve_operator.api.records import Deployment
from specserve_operator.api.serving import ServingSpec
from specserve_operator.decide.identity import Found
from specserve_operator.decide.profiles import ProfileView, Stored
from specserve_operator.manifests.serving import Arm


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
        return Arm("Profile", stored.config_map, stored.speculates, stored.profile.decision.capture_sizes)


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
    """Whether its Deployment is worth keeping as it is while nothing better is measured."""
    measured = variant.serving is not None or variant.outdated
    return variant.deployment is not None and (variant.deployment.ready > 0 or measured)


def apportion(replicas: int, capacities: Sequence[int]) -> list[int]:
    """Split ``replicas`` over variants in proportion to their capacities (largest remainder; ties to the earlier).

    No variant gets more than its capacity while another has room. Beyond all capacity the rest is split likewise: such
    pods wait, and tell an autoscaler what is missing. Without any capacity the first variant gets all.
    """
    total = sum(capacities)
    if not capacities:
        return []
    if total == 0:
        return [replicas, *[0] * (len(capacities) - 1)]
    if replicas > total:
        beyond = _largest_remainder(replicas - total, capacities)
        return [capacity + extra for capacity, extra in zip(capacities, beyond, strict=True)]
    return _largest_remainder(replicas, capacities)


def _largest_remainder(count: int, weights: Sequence[int]) -> list[int]:
    total = sum(weights)
    shares = [count * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(count * weights[i] % total), i))
    for index in by_remainder[: count - sum(shares)]:
        shares[index] += 1
    return shares


def retired(variant: Variant, now: dt.datetime, grace: dt.timedelta, ready_elsewhere: int, replicas: int) -> bool:
    """Whether a variant without nodes is to go: its grace is over, or others have taken its place."""
    if variant.found is not None or variant.deployment is None or variant.missing_since is None:
        return False
    return now >= variant.missing_since + grace or ready_elsewhere >= replicas > 0
