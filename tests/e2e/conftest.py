"""One embedded cluster for all end-to-end tests, with the operator from its chart."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from demo.console import Console
from demo.environment import Environment, prepare, take_down
from devcluster import Cluster

FIGURES: list[str] = []
GRACE_SECONDS = 10
"""Of a variant whose nodes are gone; ten minutes in production."""


@pytest.fixture(scope="session")
def environment() -> Iterator[Environment]:
    os.environ.pop("KUBECONFIG", None)  # the tests look into the cluster's processes, so it must be their own
    if Cluster.running() is not None:
        pytest.fail("an embedded cluster is up already (the demo's?): take it down first with `make demo-down`")
    console = Console()
    try:
        yield prepare(console, namespace="e2e", grace_seconds=GRACE_SECONDS)
    finally:
        take_down(console)


@pytest.fixture(scope="session")
def figures() -> list[str]:
    """What was measured on the way; printed after the tests."""
    return FIGURES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if FIGURES:
        terminalreporter.section("figures")
        for figure in FIGURES:
            terminalreporter.write_line(figure)
