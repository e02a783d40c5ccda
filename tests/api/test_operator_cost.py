"""The benchmark of the operator in its short form: what is true at 5,000 nodes and 1,000 servings is so at a few."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.api.conftest import CRD

from bench.operator import Result, Sizes, measure
from devcluster import Cluster

pytestmark = pytest.mark.apiserver

SIZES = Sizes(nodes=40, servings=8, namespaces=2, quiet_seconds=5, heartbeats=20, changes=3)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Result]:
    folder = tmp_path_factory.mktemp("cost")
    with Cluster.control_plane() as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        cluster.kubectl("apply", "--server-side", f"--filename={CRD}")
        cluster.await_crd("speculativeservings.specserve.dev")
        yield asyncio.run(measure(cluster, folder, SIZES))


def test_all_children_are_there_and_each_is_written_once(result: Result) -> None:
    assert result.objects == 8 + 8 + 8 + 2  # Deployments, Services, Jobs; the package in each namespace
    written = result.start_writes
    assert written["create jobs"] == 8
    assert written["patch deployments"] == 8
    assert written["patch services"] == 8


def test_heartbeats_and_nodes_with_cpus_only_have_nothing_written(result: Result) -> None:
    assert result.quiet_writes == 0


def test_a_new_label_reaches_a_deployment(result: Result) -> None:
    assert 0 < result.change_p50_ms <= result.change_p95_ms
