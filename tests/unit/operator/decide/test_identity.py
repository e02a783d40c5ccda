"""From node labels to accelerators."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import A100, L4, node, spec

from specserve_operator.api.accelerator import Accelerator
from specserve_operator.api.records import Json, Node
from specserve_operator.decide.identity import Fleet, Found, survey


def look(*nodes: Json, policy: str = "Major", **accelerators: object) -> Fleet:
    wanted = spec({f"accelerators.{field}": value for field, value in accelerators.items()}).accelerators
    return survey([Node.read(n) for n in nodes], wanted, policy)


def only(fleet: Fleet) -> Found:
    (found,) = fleet.found
    return found


GFD_MIG = "nvidia.com/mig-1g.5gb"


@pytest.mark.parametrize(
    ("labels", "resource", "expected"),
    [
        pytest.param(
            {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.sharing-strategy": "none"},
            "nvidia.com/gpu",
            {"vendor": "nvidia", "product": "NVIDIA-H200"},
            id="whole device",
        ),
        pytest.param(
            {"nvidia.com/gpu.product": "A100-SXM4-40GB-MIG-1g.5gb"},
            "nvidia.com/gpu",
            {"vendor": "nvidia", "product": "A100-SXM4-40GB-MIG-1g.5gb", "partition": "1g.5gb"},
            id="MIG single",
        ),
        pytest.param(
            {"nvidia.com/gpu.product": "A100-SXM4-40GB", f"{GFD_MIG}.product": "A100-SXM4-40GB-MIG-1g.5gb"},
            GFD_MIG,
            {"vendor": "nvidia", "product": "A100-SXM4-40GB-MIG-1g.5gb", "partition": "1g.5gb"},
            id="MIG mixed",
        ),
        pytest.param(
            {"specserve.dev/accelerator": "lab-box", "nvidia.com/gpu.product": "NVIDIA-H200"},
            "nvidia.com/gpu",
            {"vendor": "manual", "product": "lab-box"},
            id="set by hand, wins",
        ),
        pytest.param(
            {
                "feature.node.kubernetes.io/cpu-model.vendor_id": "Intel",
                "feature.node.kubernetes.io/cpu-model.family": "6",
                "feature.node.kubernetes.io/cpu-model.id": "143",
            },
            "cpu",
            {"vendor": "Intel", "product": "Intel-family-6-model-143"},
            id="CPU by NFD",
        ),
    ],
)
def test_labels_say_what_a_node_has(labels: dict[str, str], resource: str, expected: dict[str, str]) -> None:
    found = only(look(node("n1", "", 4, labels=labels, resource=resource), resource=resource))

    assert found.accelerator.identity() == expected
    assert dict(found.accelerator.selector).items() <= labels.items()


@pytest.mark.parametrize(
    ("labels", "strategy"),
    [
        (
            {"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.sharing-strategy": "time-slicing"},
            "time-slicing",
        ),
        ({"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.sharing-strategy": "mps"}, "mps"),
        ({"nvidia.com/gpu.product": "Tesla-T4-SHARED"}, "time-slicing"),
    ],
)
def test_shared_devices_are_used_only_when_asked_for(labels: dict[str, str], strategy: str) -> None:
    shared = node("n1", "", 4, labels=labels)

    refused = look(shared)
    allowed = only(look(shared, allowShared=True))

    assert refused.found == ()
    assert refused.left_out == (
        ("n1", f"its devices are shared ({strategy}): set accelerators.allowShared to use them all the same", False),
    )
    assert allowed.accelerator.sharing == strategy
    assert allowed.accelerator.slug != only(look(node("n1", "Tesla-T4"))).accelerator.slug


def test_a_node_without_labels_is_left_out_with_the_way_out() -> None:
    ((name, why, others),) = look(node("n1", "")).left_out

    assert (name, others) == ("n1", False)
    assert why == (
        "no label says what its nvidia.com/gpu is: set the label specserve.dev/accelerator to a name of your choice"
    )


def test_an_empty_label_set_by_hand_is_a_mistake_that_is_named() -> None:
    assert look(node("n1", labels={"specserve.dev/accelerator": ""})).left_out == (
        ("n1", "its label specserve.dev/accelerator is empty: set it to a name of your choice, or remove it", False),
    )


def test_a_node_with_too_few_devices_is_left_out() -> None:
    fleet = look(node("n1", devices=1), node("n2", devices=0), perReplica=2)

    assert fleet.left_out == (("n1", "has fewer than 2 nvidia.com/gpu", True),)


def test_only_selected_nodes_count() -> None:
    fleet = look(node("n1", labels={"pool": "serving"}), node("n2", labels={"pool": "training"}), node("n3"),
                 nodeSelector={"pool": "serving"})  # fmt: skip

    assert fleet.selected
    assert only(fleet).nodes == {"n1"}


def test_accelerators_of_a_mixed_fleet_are_sorted_and_their_capacity_adds_up() -> None:
    fleet = look(node("n1", L4, 2), node("n2", A100, 8), node("n3", L4, 3), perReplica=2)

    assert [(f.accelerator.product, f.nodes, f.capacity) for f in fleet.found] == [
        (A100, {"n2"}, 4),
        (L4, {"n1", "n3"}, 2),
    ]


@pytest.mark.parametrize("state", [{"ready": False}, {"cordoned": True}])
def test_nodes_that_take_no_pods_count_as_there_but_without_capacity(state: dict[str, bool]) -> None:
    found = only(look(node("n1", **state)))

    assert (found.nodes, found.capacity, found.profilable) == ({"n1"}, 0, False)


def test_no_job_goes_to_a_node_whose_driver_is_being_replaced() -> None:
    label = "nvidia.com/gpu-driver-upgrade-state"
    during = only(look(node("n1", labels={label: "drain-required"})))
    after = only(look(node("n1", labels={label: "upgrade-done"})))

    assert (during.capacity, during.profilable) == (1, False)
    assert after.profilable


DRIVER = {
    "nvidia.com/cuda.driver-version.major": "570",
    "nvidia.com/cuda.driver-version.full": "570.86.15",
}


@pytest.mark.parametrize(
    ("labels", "policy", "expected"),
    [
        (DRIVER, "Ignore", None),
        (DRIVER, "Major", "570"),
        (DRIVER, "Full", "570.86.15"),
        ({"nvidia.com/cuda.driver.major": "535"}, "Major", "535"),
        ({"nvidia.com/cuda.driver.major": "535"}, "Full", "535"),
        ({"nvidia.com/cuda.driver-version.full": "570.86.15"}, "Major", "570"),
        ({}, "Full", None),
    ],
)
def test_the_driver_counts_as_far_as_the_policy_says(labels: dict[str, str], policy: str, expected: str | None) -> None:
    assert only(look(node("n1", labels=labels), policy=policy)).driver == expected


def test_the_driver_of_most_nodes_counts_and_one_being_replaced_does_not() -> None:
    def with_driver(name: str, major: str, **labels: str) -> Json:
        return node(name, labels={"nvidia.com/cuda.driver-version.major": major, **labels})

    upgrading = {"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"}
    mostly_old = look(with_driver("n1", "550"), with_driver("n2", "550"), with_driver("n3", "570"))
    under_way = look(with_driver("n1", "550"), with_driver("n2", "570", **upgrading))

    assert only(mostly_old).driver == "550"
    assert only(under_way).driver == "550"


@pytest.mark.parametrize(
    ("state", "profilable"),
    [("success", True), ("", True), ("pending", False), ("rebooting", False), ("failed", False)],
)
def test_nodes_whose_mig_partitions_change_are_not_profiled_on(state: str, profilable: bool) -> None:
    found = only(look(node("n1", labels={"nvidia.com/mig.config.state": state})))

    assert (found.profilable, found.capacity) == (profilable, 1)


def test_nodes_labelled_by_two_releases_of_a_labeller_are_one_accelerator() -> None:
    older = node("n1", L4)
    newer = node("n2", L4, labels={"nvidia.com/gpu.sharing-strategy": "none"})

    found = only(look(older, newer))

    assert found.nodes == {"n1", "n2"}
    assert found.accelerator.selector == (("nvidia.com/gpu.product", L4),)


def test_identity_labels_tell_accelerators_of_one_product_apart() -> None:
    label = "example.com/interconnect"
    fleet = look(node("n1", labels={label: "nvlink"}), node("n2", labels={label: "pcie"}), node("n3"),
                 identityLabels=[label])  # fmt: skip

    assert sorted(sorted(f.nodes) for f in fleet.found) == [["n1"], ["n2"], ["n3"]]
    assert {f.accelerator.identity().get(f"label:{label}") for f in fleet.found} == {"nvlink", "pcie", None}
    assert len({f.accelerator.slug for f in fleet.found}) == 3


def test_the_slug_is_the_same_for_ever() -> None:
    """Deployments are named after it: another one would replace every pod."""
    assert Accelerator("nvidia", L4).slug == "nvidia-l4-ea1e09"
    assert Accelerator("nvidia", "A100-SXM4-40GB-MIG-1g.5gb", partition="1g.5gb").slug == "a100-sxm4-40gb-604c0e"


texts = st.text(max_size=80)
accelerators = st.builds(
    Accelerator, texts, texts, texts, texts, st.dictionaries(texts, texts).map(lambda d: tuple(sorted(d.items())))
)


@given(accelerators)
def test_every_slug_is_a_dns_label_of_at_most_22_characters(accelerator: Accelerator) -> None:
    assert re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", accelerator.slug)
    assert len(accelerator.slug) <= 22


@given(accelerators)
def test_an_accelerator_is_read_back_from_its_annotation(accelerator: Accelerator) -> None:
    assert Accelerator.from_json(accelerator.to_json()) == accelerator


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"vendor": 1}',
                                  '{"vendor":"v","product":5,"partition":"","sharing":"","extra":{},"selector":{}}',
                                  '{"vendor":"v","product":"p","new":"x","extra":{},"selector":{}}'])  # fmt: skip
def test_an_edited_annotation_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own error is one
        Accelerator.from_json(text)
