"""Every object that the operator makes, as golden files for people. In tests/api a real API server takes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from tests.builders import template
from tests.conftest import Golden
from tests.manifests.cases import ACCELERATOR, CASES, ON_CPU, deployment, job

from specserve_operator.api.accelerator import Accelerator
from specserve_operator.api.records import Json
from specserve_operator.manifests.serving import Arm


class Readable(yaml.SafeDumper):
    """Repeats what occurs twice, and writes text of several lines as such."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Readable.add_representer(str, _text)


def to_yaml(obj: Json) -> str:
    return yaml.dump(obj, Dumper=Readable, sort_keys=False, width=120, allow_unicode=True)


@pytest.mark.parametrize("name", CASES)
def test_objects_are_as_their_golden_files_say(name: str, golden: Golden) -> None:
    golden(f"{name}.yaml", to_yaml(CASES[name]()))


def engine(obj: Json) -> Json:
    """The engine's container; the only one of its name."""
    (found,) = [c for c in pod_of(obj)["containers"] if c["name"] == "engine"]
    return dict(found)


def pod_of(obj: Json) -> Json:
    return dict(obj["spec"]["template"]["spec"])


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith(("job", "deployment"))])
def test_every_pod_is_fenced_in_by_its_accelerator(name: str) -> None:
    """However many terms a user's affinity has: each is a way in."""
    pod = pod_of(CASES[name]())
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]

    accelerator = ON_CPU if name.endswith("cpu") else ACCELERATOR
    assert dict(accelerator.selector).items() <= pod["nodeSelector"].items()
    for term in required["nodeSelectorTerms"]:
        assert {"key": "specserve.dev/accelerator", "operator": "DoesNotExist"} in term["matchExpressions"]


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("job")])
def test_a_job_holds_no_credentials_and_has_one_container(name: str) -> None:
    pod = pod_of(CASES[name]())

    assert pod["automountServiceAccountToken"] is False
    assert [c["name"] for c in pod["containers"]] == ["engine"]
    assert pod["restartPolicy"] == "Never"


def test_a_job_says_what_its_key_is_the_hash_of_as_far_as_annotations_go() -> None:
    long = {"containers": [{"name": "engine", "env": [{"name": "NOTE", "value": "x" * 200_000}]}]}

    assert '"product":"NVIDIA-L4"' in job()["metadata"]["annotations"]["specserve.dev/key-inputs"]
    assert "specserve.dev/key-inputs" not in job(**template(long))["metadata"]["annotations"]


def values(obj: Any) -> list[Any]:
    """Every object and list within."""
    inner = obj.values() if isinstance(obj, dict) else obj if isinstance(obj, list) else ()
    return [obj, *(v for part in inner for v in values(part))]


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_said_that_the_api_server_would_drop(name: str) -> None:
    """Null and empty lists come back missing. (``emptyDir: {}`` means something.)"""
    assert None not in [v for v in values(CASES[name]()) if not isinstance(v, dict | list)]
    assert [] not in values(CASES[name]())


def test_job_and_deployment_ask_for_the_same_devices_environment_and_files() -> None:
    job, deployment = engine(CASES["job-template"]()), engine(CASES["deployment-template"]())
    ours = {"specserve-package", "specserve-prompts"}
    own = {
        "PYTHONPATH",
        "PYTHONUNBUFFERED",
        "SPECSERVE_REQUEST",
        "SPECSERVE_READY_PORT",
        "SPECSERVE_SPECULATIVE_CONFIG",
    }

    assert job["resources"] == deployment["resources"]
    assert job["image"] == deployment["image"]
    assert job["securityContext"] == deployment["securityContext"]
    assert [m for m in job["volumeMounts"] if m["name"] not in ours] == deployment["volumeMounts"]
    assert [e for e in job["env"] if e["name"] not in own] == [e for e in deployment["env"] if e["name"] not in own]


def expressions(accelerator: Accelerator) -> list[Json]:
    affinity = pod_of(deployment(Arm("Off"), accelerator))["affinity"]
    (term,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [e for e in term["matchExpressions"] if e["key"] != "specserve.dev/accelerator"]


def test_nodes_that_say_nothing_of_sharing_are_not_mixed_up_with_shared_ones_of_their_product() -> None:
    product, sharing = ("nvidia.com/mig-1g.5gb.product", "A100-MIG-1g.5gb"), "nvidia.com/mig-1g.5gb.sharing-strategy"
    silent = Accelerator("nvidia", "A100-MIG-1g.5gb", "1g.5gb", selector=(product,))

    assert expressions(silent) == [{"key": sharing, "operator": "NotIn", "values": ["mps", "time-slicing"]}]
    assert expressions(replace(silent, selector=(product, (sharing, "none")))) == []
    assert expressions(replace(silent, sharing="mps", selector=(product,))) == []
    by_hand = Accelerator("manual", "lab-box", selector=(("specserve.dev/accelerator", "lab-box"),))
    assert "affinity" not in pod_of(deployment(Arm("Off"), by_hand))


@pytest.mark.parametrize(
    ("pod", "own", "expected"),
    [
        (None, None, None),
        ({"runAsUser": 1000}, None, True),
        ({"runAsUser": 0}, None, None),
        ({"runAsUser": 1000}, {"runAsUser": 0}, None),
        (None, {"runAsUser": 1000}, True),
        ({"runAsUser": 1000}, {"runAsNonRoot": False}, False),
    ],
)
def test_an_engine_whose_user_is_not_root_may_not_become_root(pod: Any, own: Any, expected: bool | None) -> None:
    """Engines' images run as root, so that is left to who chooses another user."""
    made = deployment(
        Arm("Off"), **template({"securityContext": pod, "containers": [{"name": "engine", "securityContext": own}]})
    )

    assert engine(made)["securityContext"].get("runAsNonRoot") is expected
    assert pod_of(made)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_a_pod_template_may_choose_another_seccomp_profile() -> None:
    made = deployment(Arm("Off"), **template({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}))

    assert pod_of(made)["securityContext"]["seccompProfile"] == {"type": "Unconfined"}
