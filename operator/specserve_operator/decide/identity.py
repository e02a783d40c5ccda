"""From node labels to accelerators: one reader per vendor, the label set by hand first. Never a list of products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Found:
    """One accelerator among the selected nodes."""

    accelerator: Accelerator
    nodes: tuple[str, ...]
    capacity: int
    """Replicas that fit on its usable nodes."""
    room: int
    """Replicas that fit on all its nodes, usable just now or not."""
    usable: frozenset[str]
    """Names of its usable nodes."""
    profilable: bool
    """A node can take a profiling Job: usable, and no driver upgrade under way."""
    driver: str | None


@dataclass(frozen=True)
class Fleet:
    """The selected nodes by accelerator, and those that cannot be used with the reason."""

    found: tuple[Found, ...]
    selected: int
    unusable: tuple[tuple[str, str], ...]
    """(node, reason)."""


def survey(nodes: Iterable[Node], spec: AcceleratorsSpec, driver_policy: str) -> Fleet:
    """Group the nodes that ``spec`` selects and that have its resource by accelerator, sorted by slug."""
    selected = [n for n in nodes if all(n.labels.get(k) == v for k, v in spec.node_selector.items())]
    groups: dict[str, list[tuple[Accelerator, Node]]] = {}
    unusable = []
    for node in sorted(selected, key=lambda n: n.name):
        accelerator = _identify(node, spec)
        if isinstance(accelerator, Accelerator):
            groups.setdefault(accelerator.slug, []).append((accelerator, node))
        else:
            unusable.append((node.name, accelerator))
    found = (_describe(groups[slug], spec, driver_policy) for slug in sorted(groups))
    return Fleet(tuple(found), len(selected), tuple(unusable))


def _identify(node: Node, spec: AcceleratorsSpec) -> Accelerator | str:
    if _devices(node, spec.resource) < spec.per_replica:
        return f"has fewer than {spec.per_replica} {spec.resource}"
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


def _describe(members: list[tuple[Accelerator, Node]], spec: AcceleratorsSpec, driver_policy: str) -> Found:
    nodes = [node for _, node in members]
    # Nodes of one accelerator may be labelled by several releases of a labeller: what all of them say selects them.
    selector = set(members[0][0].selector).intersection(*(accelerator.selector for accelerator, _ in members))
    accelerator = replace(members[0][0], selector=tuple(sorted(selector)))
    usable = [n for n in nodes if n.usable and n.allocatable.get(spec.resource, 0) >= spec.per_replica]
    settled = [n for n in usable if not upgrades_driver(n.labels)]
    # Nodes of one type may disagree while a fleet is upgraded: the driver of most of them counts.
    drivers = Counter(d for n in settled or nodes if (d := driver_of(n.labels, driver_policy)))
    return Found(
        accelerator=accelerator,
        nodes=tuple(n.name for n in nodes),
        capacity=sum(n.allocatable[spec.resource] // spec.per_replica for n in usable),
        room=sum(_devices(n, spec.resource) // spec.per_replica for n in nodes),
        usable=frozenset(n.name for n in usable),
        profilable=bool(settled),
        driver=max(drivers, key=lambda d: (drivers[d], d)) if drivers else None,
    )
