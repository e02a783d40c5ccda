"""No test gives up after a time that was right for one machine: limits are `patience` (dev/devcluster/pace.py)."""

import re
from pathlib import Path

import pytest

from devcluster.pace import patience, slowness

TESTS = Path(__file__).parents[2]
LIMIT = re.compile(r"timeout=(\d[\d.]*)|--timeout=(\d+)s|monotonic\(\) \+ (\d[\d.]*)|\.wait\((\d[\d.]*)\)")
FOR_EVER = 600
"""Seconds from which on a time stands for one that never comes."""


def test_no_limit_of_a_wait_is_a_number_of_seconds() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{number}: {line.strip()}"
        for path in sorted(TESTS.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for groups in LIMIT.findall(line)
        if float("".join(groups)) < FOR_EVER
    ]

    assert found == [], "write patience(seconds)"


def test_limits_grow_with_how_slow_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devcluster.pace.slowness", lambda: 4.0)

    assert patience(10) == 120
    assert slowness() >= 1
