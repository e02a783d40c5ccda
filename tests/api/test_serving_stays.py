"""What serves stays while nodes come, go and flap: on a real API server with its controllers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.fleet import SETTINGS, STORIES, play
from tests.api.operator_process import OperatorProcess
from tests.api.space import install_crd

from devcluster import Cluster
from devcluster.pace import patience

pytestmark = pytest.mark.apiserver
ON_L4, ON_A100 = "nvidia-l4-ea1e09", "nvidia-a100-sxm-c83ca8"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane with controllers, and an operator that is quick to give a variant up."""
    log: Path = tmp_path_factory.mktemp("fleet") / "operator.log"
    with Cluster.control_plane(controllers=True, timeout=patience(60)) as cluster:
        install_crd(cluster)
        with OperatorProcess(cluster.kubeconfig, log, "operator", **SETTINGS) as operator:
            operator.wait_until_it_leads(60)
            yield cluster


def test_a_node_of_a_new_type_takes_nothing_away_before_its_own_pods_are_ready(plane: Cluster) -> None:
    told = play(plane, STORIES["new type"])

    assert told.fewest == 6
    assert told.ready[-1][1] == 6
    assert told.deployments == {ON_L4: 3, ON_A100: 3}


@pytest.mark.parametrize("story", ["cordon", "device plugin"])
def test_nodes_that_cannot_be_used_for_a_moment_cost_no_pod(plane: Cluster, story: str) -> None:
    told = play(plane, STORIES[story])

    assert (told.fewest, told.lost) == (6, 0)
    assert told.deployments == {ON_L4: 3, ON_A100: 3}


def test_where_no_node_is_ready_all_pods_are_there_when_they_are_back(plane: Cluster) -> None:
    told = play(plane, STORIES["not Ready"])

    assert told.fewest == 0
    assert (told.ready[-1][1], told.lost) == (6, 0)


def test_a_type_that_lost_its_labels_for_longer_than_its_grace_serves_on(plane: Cluster) -> None:
    told = play(plane, STORIES["labels"])

    assert (told.fewest, told.lost) == (6, 0)
    assert told.deployments == {ON_L4: 6}
