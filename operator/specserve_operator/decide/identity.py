"""From node labels to accelerators: one reader per vendor, the label set by hand first. Never a list of products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from specserve_operator.api import names
from specserve_operator.api.accelerator import Accelerator
from specserve_operator.api.records import Node
from specserve_operator.api.serving import AcceleratorsSpec

Labels = Mapping[str, str]
Reader = Callable[[Labels, str], Accelerator | None]
"""(node labels, resource that pods ask for) -> what the node has, or None where this reader cannot tell."""

NFD_CPU = "feature.node.kubernetes.io/cpu-model"


def read_hand_set(labels: Labels, resource: str) -> Accelerator | None:
    """``specserve.dev/accelerator``, set by an administrator."""
    value = labels.get(names.ACCELERATOR, "")
    return Accelerator("manual", value, selector=((names.ACCELERATOR, value),)) if value else None


def read_nvidia(labels: Labels, resource: str) -> Accelerator | None:
    """GPU Feature Discovery. MIG ``single`` has the partition in the product, ``mixed`` labels per resource."""
    prefix = resource if resource.startswith("nvidia.com/mig-") else "nvidia.com/gpu"
    product = labels.get(f"{prefix}.product", "")
    if not resource.startswith("nvidia.com/") or not product:
        return None
    sharing = labels.get(f"{prefix}.sharing-strategy", "none")
    if sharing == "none" and product.endswith("-SHARED"):  # older GFD: the suffix alone says it
        sharing = "time-slicing"
    says = [f"{prefix}.product", *([f"{prefix}.sharing-strategy"] if f"{prefix}.sharing-strategy" in labels else [])]
    return Accelerator(
        "nvidia",
        product,
        partition=product.partition("-MIG-")[2].removesuffix("-SHARED"),
        sharing="" if sharing == "none" else sharing,
        selector=tuple((label, labels[label]) for label in says),
    )


def read_cpu(labels: Labels, resource: str) -> Accelerator | None:
    """Node Feature Discovery's CPU model, for engines that run on the CPU."""
    says = [f"{NFD_CPU}.{part}" for part in ("vendor_id", "family", "id")]
    if resource != "cpu" or any(label not in labels for label in says):
        return None
    vendor, family, model = (labels[label] for label in says)
    return Accelerator(
        vendor, f"{vendor}-family-{family}-model-{model}", selector=tuple((label, labels[label]) for label in says)
    )


READERS: tuple[Reader, ...] = (read_hand_set, read_nvidia, read_cpu)


def driver_of(labels: Labels, policy: str) -> str | None:
    """The driver version as far as ``policy`` (Ignore, Major, Full) says; None where it is ignored or unknown."""
    if policy == "Ignore":
        return None
    full = labels.get("nvidia.com/cuda.driver-version.full", "")
    major = labels.get("nvidia.com/cuda.driver-version.major") or labels.get("nvidia.com/cuda.driver.major", "")
    if policy == "Full" and full:
        return full
    return major or full.partition(".")[0] or None


def upgrades_driver(labels: Labels) -> bool:
    """Whether the GPU operator is replacing this node's driver just now."""
    return labels.get("nvidia.com/gpu-driver-upgrade-state", "upgrade-done") not in ("", "upgrade-done")


def reconfigures_mig(labels: Labels) -> bool:
    """Whether the MIG manager divides this node's devices anew, or could not: its labels may be those of before."""
    return labels.get("nvidia.com/mig.config.state", "success") not in ("", "success")


@dataclass(frozen=True)
class Member:
    """What one node is to those who ask: all of it that a decision needs."""

    node: str
    accelerator: Accelerator
    room: int
    """Replicas that fit on its devices, usable just now or not."""
    capacity: int
    """Replicas that fit on it now."""
    usable: bool
    settled: bool
    """Usable, and neither its driver is being replaced nor its devices divided anew."""
    driver: str | None


@dataclass(frozen=True)
class Found:
    """One accelerator among the selected nodes."""

    accelerator: Accelerator
    nodes: frozenset[str]
    """Names."""
    capacity: int
    """Replicas that fit on its usable nodes."""
    room: int
    """Replicas that fit on all its nodes, usable just now or not."""
    usable: frozenset[str]
    """Names of its usable nodes."""
    profilable: bool
    """A node can take a profiling Job: usable, and neither its driver nor its MIG partitions change."""
    driver: str | None


class LeftOut(NamedTuple):
    """Why selected nodes cannot be used: the first of them by name, and whether there are others."""

    node: str
    reason: str
    others: bool = False


@dataclass(frozen=True)
class Fleet:
    """The selected nodes by accelerator, and why others cannot be used. Equal where no decision could differ."""

    found: tuple[Found, ...] = ()
    selected: bool = False
    """Whether any node is."""
    left_out: tuple[LeftOut, ...] = ()


def survey(nodes: Iterable[Node], spec: AcceleratorsSpec, driver_policy: str) -> Fleet:
    """Group the nodes that ``spec`` selects and that have its resource by accelerator, sorted by slug."""
    groups: dict[str, list[Member]] = {}
    reasons: dict[str, list[str]] = {}
    for node in nodes:
        verdict = judge(node, spec, driver_policy)
        if isinstance(verdict, Member):
            groups.setdefault(verdict.accelerator.slug, []).append(verdict)
        elif verdict is not None:
            reasons.setdefault(verdict, []).append(node.name)
    return assemble({slug: describe(members) for slug, members in groups.items()}, reasons)


def judge(node: Node, spec: AcceleratorsSpec, driver_policy: str) -> Member | str | None:
    """What a node is to those who ask so: a member, the reason why it cannot be used, or None: not selected."""
    if any(node.labels.get(label) != value for label, value in spec.node_selector.items()):
        return None
    accelerator = _identify(node, spec)
    if isinstance(accelerator, str):
        return accelerator
    free = node.allocatable.get(spec.resource, 0)
    usable = node.usable and free >= spec.per_replica
    return Member(
        node=node.name,
        accelerator=accelerator,
        room=_devices(node, spec.resource) // spec.per_replica,
        capacity=free // spec.per_replica if usable else 0,
        usable=usable,
        settled=usable and not (upgrades_driver(node.labels) or reconfigures_mig(node.labels)),
        driver=driver_of(node.labels, driver_policy),
    )


def describe(members: Collection[Member]) -> Found:
    """One accelerator, from all its nodes (one at least), in any order."""
    # Nodes of one accelerator may be labelled by several releases of a labeller: what all of them say selects them.
    accelerators = {member.accelerator for member in members}
    first = min(accelerators)
    selector = set(first.selector).intersection(*(accelerator.selector for accelerator in accelerators))
    settled = [m for m in members if m.settled]
    # Nodes of one type may disagree while a fleet is upgraded: the driver of most of them counts.
    drivers = Counter(m.driver for m in settled or members if m.driver)
    return Found(
        accelerator=replace(first, selector=tuple(sorted(selector))),
        nodes=frozenset(m.node for m in members),
        capacity=sum(m.capacity for m in members),
        room=sum(m.room for m in members),
        usable=frozenset(m.node for m in members if m.usable),
        profilable=bool(settled),
        driver=max(drivers, key=lambda d: (drivers[d], d)) if drivers else None,
    )


def assemble(found: Mapping[str, Found], reasons: Mapping[str, Collection[str]]) -> Fleet:
    """A fleet of accelerators by slug, and of names of the other selected nodes by reason."""
    # Where others can serve, nodes without devices are no news: they come and go.
    told = {why: nodes for why, nodes in reasons.items() if not found or not why.startswith(_FEWER)}
    left_out = sorted(LeftOut(min(nodes), why, len(nodes) > 1) for why, nodes in told.items())
    return Fleet(tuple(found[slug] for slug in sorted(found)), bool(found or reasons), tuple(left_out))


_FEWER = "has fewer than"


def _identify(node: Node, spec: AcceleratorsSpec) -> Accelerator | str:
    if _devices(node, spec.resource) < spec.per_replica:
        return f"{_FEWER} {spec.per_replica} {spec.resource}"
    if node.labels.get(names.ACCELERATOR) == "":
        return f"its label {names.ACCELERATOR} is empty: set it to a name of your choice, or remove it"
    accelerator = next((a for reader in READERS if (a := reader(node.labels, spec.resource))), None)
    if accelerator is None:
        return f"no label says what its {spec.resource} is: set the label {names.ACCELERATOR} to a name of your choice"
    if accelerator.sharing and not spec.allow_shared:
        return f"its devices are shared ({accelerator.sharing}): set accelerators.allowShared to use them all the same"
    extra = tuple((label, node.labels[label]) for label in sorted(spec.identity_labels) if label in node.labels)
    return Accelerator(
        accelerator.vendor, accelerator.product, accelerator.partition, accelerator.sharing, extra,
        accelerator.selector + extra,
    )  # fmt: skip


def _devices(node: Node, resource: str) -> int:
    """Devices that a node has. While a device plugin restarts none is allocatable, but they are there."""
    return max(node.allocatable.get(resource, 0), node.capacity.get(resource, 0))
