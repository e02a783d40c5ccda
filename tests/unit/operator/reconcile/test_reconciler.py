"""One round beside all else that the operator's process does."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.builders import SERVING, node
from tests.memory import World

from devcluster.pace import patience
from specserve_operator.decide.core import decide
from specserve_operator.decide.model import Plan, Snapshot
from specserve_operator.reconcile import reconciler


async def test_the_event_loop_goes_on_while_a_round_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles and messages of others are parsed then: the Lease and every watch wait for none of them."""
    loop, told = asyncio.get_running_loop(), threading.Event()

    def slow(snapshot: Snapshot) -> Plan:
        loop.call_soon_threadsafe(told.set)
        assert told.wait(patience(60)), "the loop stood still while this was decided"
        return decide(snapshot)

    monkeypatch.setattr(reconciler, "decide", slow)
    w = World(SERVING, node("n1"))

    await w.round()

    assert len(w.jobs) == 1
