"""The Helm chart: what it renders, what it grants, which values it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import Golden, Run

from specserve_operator import lease
from specserve_operator.api.settings import Settings

ROOT = Path(__file__).parents[2]
CHART = str(ROOT / "charts" / "specserve")
Json = dict[str, Any]


def render(helm: Run, *values: str) -> list[Json]:
    """The objects of the chart as release ``specserve`` in namespace ``specserve-system``."""
    sets = [f"--set={value}" for value in values]
    done = helm("template", "specserve", CHART, "--namespace=specserve-system", *sets)
    assert done.returncode == 0, done.stderr
    return [obj for obj in yaml.safe_load_all(done.stdout) if obj]


def one(objects: list[Json], kind: str) -> Json:
    (found,) = (obj for obj in objects if obj["kind"] == kind)
    return found


def container(objects: list[Json]) -> Json:
    result: Json = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return result


def test_default_values_render_as_the_golden_file_says(helm: Run, golden: Golden) -> None:
    done = helm("template", "specserve", CHART, "--namespace=specserve-system", "--set=crds.install=false")

    golden("chart.yaml", done.stdout)


def test_the_definition_comes_with_the_release_and_outlives_it(helm: Run) -> None:
    definition = one(render(helm), "CustomResourceDefinition")

    assert definition == yaml.safe_load((ROOT / "crds/speculativeservings.yaml").read_text())
    assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_lint_finds_nothing(helm: Run) -> None:
    done = helm("lint", CHART, "--strict")

    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


def rules(objects: list[Json]) -> Iterator[Json]:
    for obj in objects:
        if obj["kind"] in ("ClusterRole", "Role"):
            yield from obj["rules"]


def test_no_rule_holds_a_wildcard_or_secrets(helm: Run) -> None:
    granted = list(rules(render(helm)))

    assert granted
    for rule in granted:
        assert set(rule) <= {"apiGroups", "resources", "resourceNames", "verbs"}
        assert not {"*", "secrets", "serviceaccounts/token", "pods/exec"} & {*rule["resources"], *rule["apiGroups"]}
        assert not {"*", "deletecollection", "escalate", "bind", "impersonate"} & set(rule["verbs"])


def test_the_role_names_the_lease_that_the_operator_takes(helm: Run) -> None:
    named = [rule["resourceNames"] for rule in rules(render(helm)) if "resourceNames" in rule]

    assert named == [[lease.NAME]]


def test_the_operator_reads_its_settings_as_the_chart_writes_them(helm: Run) -> None:
    objects = render(
        helm, "operator.workers=7", "operator.variantGraceSeconds=1000000", "operator.retrySeconds=30", "image.tag=x"
    )
    env = {entry["name"]: entry.get("value", entry["name"].lower()) for entry in container(objects)["env"]}

    assert Settings.from_environment(env) == Settings(
        workers=7,
        variant_grace_seconds=1_000_000,
        retry_seconds=30,
        priority_class="specserve-profiling",
        namespace="pod_namespace",
        identity="pod_name",
    )


def test_every_variable_that_the_chart_sets_is_one_that_the_operator_reads(helm: Run) -> None:
    source = "".join(path.read_text() for path in (ROOT / "operator").rglob("*.py"))
    read = set(re.findall(r'"((?:SPECSERVE|POD)_[A-Z_]+)"', source))

    assert {entry["name"] for entry in container(render(helm))["env"]} <= read


def test_profiling_gives_way_and_never_preempts(helm: Run) -> None:
    found = one(render(helm), "PriorityClass")

    assert found["value"] == -10
    assert found["preemptionPolicy"] == "Never"
    assert found["globalDefault"] is False


def test_a_priority_class_of_ones_own(helm: Run) -> None:
    objects = render(helm, "profiling.priorityClass.create=false", "profiling.priorityClass.name=batch")

    assert "PriorityClass" not in {obj["kind"] for obj in objects}
    assert {"name": "SPECSERVE_PRIORITY_CLASS", "value": "batch"} in container(objects)["env"]


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ((), "specserve/operator:0.1.0"),
        (("image.repository=mirror.example/ops/specserve", "image.tag=v2"), "mirror.example/ops/specserve:v2"),
        (("image.tag=v2", f"image.digest=sha256:{'a' * 64}"), f"specserve/operator@sha256:{'a' * 64}"),
    ],
)
def test_image(helm: Run, values: tuple[str, ...], image: str) -> None:
    assert container(render(helm, *values))["image"] == image


def test_where_the_operator_runs_is_the_administrators_choice(helm: Run) -> None:
    objects = render(
        helm,
        "imagePullSecrets[0].name=registry",
        "nodeSelector.pool=system",
        "tolerations[0].operator=Exists",
        "affinity.nodeAffinity.x=y",
        "podAnnotations.note=hello",
        "serviceAccount.create=false",
        "serviceAccount.name=mine",
    )
    template = one(objects, "Deployment")["spec"]["template"]

    assert template["metadata"]["annotations"] == {"note": "hello"}
    assert template["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert template["spec"]["nodeSelector"] == {"pool": "system"}
    assert template["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert template["spec"]["affinity"] == {"nodeAffinity": {"x": "y"}}
    assert template["spec"]["serviceAccountName"] == "mine"
    assert "ServiceAccount" not in {obj["kind"] for obj in objects}
    assert one(objects, "ClusterRoleBinding")["subjects"][0]["name"] == "mine"


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("image.tagg=x", "at '/image': additional properties 'tagg' not allowed"),
        ("image.repository=", "at '/image/repository': minLength: got 0, want 1"),
        ("image.tag=a b", "at '/image/tag': 'a b' does not match pattern"),
        ("image.digest=sha256:1", "at '/image/digest': 'sha256:1' does not match pattern"),
        (
            "image.pullPolicy=Sometimes",
            "at '/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'",
        ),
        ("operator.logLevel=loud", "at '/operator/logLevel': value must be one of 'debug', 'info', 'warning', 'error'"),
        ("operator.workers=0", "at '/operator/workers': minimum: got 0, want 1"),
        ("operator.retrySeconds=soon", "at '/operator/retrySeconds': got string, want integer"),
        ("operator.variantGraceSeconds=0", "at '/operator/variantGraceSeconds': minimum: got 0, want 1"),
        ("profiling.priorityClass.value=1", "at '/profiling/priorityClass/value': maximum: got 1, want -1"),
        ("profiling.priorityClass.create=false", "at '/profiling/priorityClass/name': minLength: got 0, want 1"),
        ("serviceAccount.create=false", "at '/serviceAccount/name': minLength: got 0, want 1"),
        ("imagePullSecrets[0]=registry", "at '/imagePullSecrets/0': got string, want object"),
        ("operator=null", "at '': missing property 'operator'"),
        ("profiling.priorityClass=null", "at '/profiling': missing property 'priorityClass'"),
        ("operator.workers=null", "at '/operator': missing property 'workers'"),
        ("operator.variantGraceSeconds=40000000", "at '/operator/variantGraceSeconds': maximum: got"),
        ("image.repository=a b", "at '/image/repository': 'a b' does not match pattern"),
        ("serviceAccount.name=Mine", "at '/serviceAccount/name': 'Mine' does not match pattern"),
        ("profiling.priorityClass.name=Low", "at '/profiling/priorityClass/name': 'Low' does not match pattern"),
        ("replicas=2", "at '': additional properties 'replicas' not allowed"),
    ],
)
def test_a_bad_value_is_refused_by_name(helm: Run, value: str, complaint: str) -> None:
    done = helm("template", "specserve", CHART, f"--set={value}")

    assert done.returncode != 0
    assert complaint in done.stderr
