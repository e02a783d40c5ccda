"""How replicas move between the variants of a serving, and which variant rolls. Pure.

The specification:

1. The *goal* shares ``replicas`` out by room: devices of all nodes of an accelerator, usable or not. So a cordon, a
   node that is not Ready and a device plugin that restarts move nothing. Where a variant would grow beyond what it can
   place and another one can place it, the other one grows. What a variant has counts where it is, but for pods that no
   node took for a whole grace period.
2. A *step* leads there. A variant grows at once: it takes devices that none of the others can use. It gives up a ready
   replica only where as many as wanted are ready without it. Where fewer are, it keeps as many of its pods that are on
   a node and not ready as are missing: they may be ready again in a moment. Other pods that are not ready go freely.
   Not so of a variant that rolls: its controller takes from each template in proportion, ready pods too. So each of its
   replicas counts as a ready one; ``maxUnavailable`` of them may go where its pods find no node, or it would never end.
3. One variant rolls at a time: pods of a Deployment are replaced by a new template only while no other Deployment
   replaces any, and either all placed pods of the others are ready or some of its own are not: a mended template must
   reach those that are broken. One without a ready pod loses nothing. One that replaces pods already, not all of which
   are ready, is mended though another one replaces pods, too.
4. A variant whose nodes are gone may be back in a moment: during its grace others leave its ready pods to it, then
   they grow into its place. It goes when others have all replicas ready, or when its grace is over and none of its pods
   is on a node or its nodes are another accelerator's now. The last one never goes.

So a serving that has R ready replicas never falls below min(R, replicas) by the scaling of its variants, and below
``replicas - maxUnavailable`` only by what is not our doing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Standing:
    """Where one variant stands."""

    slug: str
    replicas: int
    """Of its Deployment; 0 where there is none."""
    ready: int
    room: int = 0
    """Replicas that fit on all its nodes; 0 where no node has its accelerator."""
    seats: int = 0
    """Replicas that its usable nodes hold, and pods of it on others."""
    stuck: int = 0
    """Pods that no node took for a whole grace period."""
    unready: int = 0
    """Pods on a node that are not ready."""
    rolling: bool = False
    """Its Deployment replaces pods just now."""
    present: bool = True
    """A node has its accelerator."""
    awaited: bool = False
    """None has, but its grace is not over, and its nodes are no other accelerator's."""


def goal(replicas: int, standings: Sequence[Standing]) -> dict[str, int]:
    """Slug -> replicas that each present variant shall have in the end. They sum up to ``replicas`` where there is one.

    Ready pods of an awaited variant are left to it.
    """
    present = [s for s in standings if s.present]
    held = sum(min(s.ready, s.replicas) for s in standings if s.awaited)
    wanted = max(replicas - held, 0)
    shares = apportion(wanted, [s.room for s in present], [s.replicas for s in present])
    limits = [max(s.seats, s.replicas - s.stuck) for s in present]
    return dict(zip((s.slug for s in present), _moved_to_seats(shares, limits), strict=True))


def step(
    replicas: int, standings: Sequence[Standing], goals: Mapping[str, int], max_unavailable: int = 0
) -> dict[str, int]:
    """Slug -> replicas that each Deployment shall have now, on the way to the ``goals``."""
    ready = sum(s.ready for s in standings)
    spare, missing = max(ready - replicas, 0), max(replicas - ready, 0)
    replaced = any(s.present for s in standings)
    now = {}
    for standing in standings:
        stays = min(standing.replicas, replicas) if standing.awaited or not replaced else 0
        share = goals.get(standing.slug, stays)
        if standing.rolling and standing.ready > spare:
            most = max(ready - replicas + max_unavailable, 0) if standing.stuck else spare
            given = min(max(standing.replicas - share, 0), most)
            held = standing.replicas - standing.ready
        else:
            given = min(max(standing.ready - share, 0), spare)
            held = min(standing.unready, missing)
            missing -= held
        spare, ready = max(spare - given, 0), ready - given
        now[standing.slug] = max(share, min(standing.ready - given + held, standing.replicas))
    return now


def may_roll(standing: Standing, standings: Sequence[Standing]) -> bool:
    """Whether pods of this variant may be replaced by a new template now: point 3 of the specification."""
    others = [s for s in standings if s.slug != standing.slug and s.present]
    if standing.ready == 0 or not any(s.rolling or s.unready for s in others):
        return True
    return standing.unready > 0 and (standing.rolling or not any(s.rolling for s in others))


def apportion(replicas: int, rooms: Sequence[int], held: Sequence[int] = ()) -> list[int]:
    """Split ``replicas`` in proportion to ``rooms`` (largest remainder; ties to who holds more, then to the earlier).

    No variant gets more than its room while another has some. Beyond all room the rest is split likewise: such pods
    wait, and tell an autoscaler what is missing. Without any room all stay with who holds them, else with the first.
    """
    if not rooms:
        return []
    total, held = sum(rooms), list(held) or [0] * len(rooms)
    if total == 0:
        return _largest_remainder(replicas, held if any(held) else [1, *[0] * (len(rooms) - 1)], held)
    if replicas > total:
        beyond = _largest_remainder(replicas - total, rooms, held)
        return [room + extra for room, extra in zip(rooms, beyond, strict=True)]
    return _largest_remainder(replicas, rooms, held)


def _largest_remainder(count: int, weights: Sequence[int], held: Sequence[int]) -> list[int]:
    total = sum(weights)
    shares = [count * weight // total for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: (-(count * weights[i] % total), -held[i], i))
    for index in order[: count - sum(shares)]:
        shares[index] += 1
    return shares


def _moved_to_seats(shares: Sequence[int], limits: Sequence[int]) -> list[int]:
    """What is above a variant's limit goes to those below theirs, as far as they have seats."""
    free = [max(limit - share, 0) for share, limit in zip(shares, limits, strict=True)]
    above = [max(share - limit, 0) for share, limit in zip(shares, limits, strict=True)]
    moving = min(sum(above), sum(free))
    if not moving:
        return list(shares)
    taken, given = _up_to(moving, free), _up_to(moving, above)
    return [share + more - less for share, more, less in zip(shares, taken, given, strict=True)]


def _up_to(count: int, most: Sequence[int]) -> list[int]:
    """``count`` in proportion to ``most``, none above its own."""
    return _largest_remainder(count, most, most)
