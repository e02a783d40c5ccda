"""Events: few, counted, and short enough for the API server."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from tests.builders import NOW, SERVING
from tests.memory import Memory

from specserve_operator.api.records import Json
from specserve_operator.api.serving import SpeculativeServing
from specserve_operator.decide.model import Event
from specserve_operator.reconcile import events as module
from specserve_operator.reconcile.events import Teller
from specserve_operator.store.client import ApiError

CHAT = SpeculativeServing.read(SERVING)
FAILED = Event("Warning", "ProfilingFailed", "NVIDIA-L4: EngineFailed: no kernel image")


class Told:
    """A teller, its API server, and a clock."""

    def __init__(self) -> None:
        self.api: Any = Memory()
        self.teller = Teller(self.api)
        self.now = NOW

    async def tell(self, event: Event = FAILED, *, after: float = 0) -> None:
        self.now += dt.timedelta(seconds=after)
        await self.teller.tell(CHAT, event, self.now)

    @property
    def events(self) -> list[tuple[str, int, str, str]]:
        """(message, count, first, last)."""
        found: list[Json] = list(self.api.objects["Event"].values())
        return [(o["message"], o["count"], o["firstTimestamp"][11:19], o["lastTimestamp"][11:19]) for o in found]


async def test_the_same_told_again_is_one_event_that_is_counted() -> None:
    told = Told()
    for _ in range(3):
        await told.tell(after=60)
    await told.tell(Event("Warning", "ProfilingFailed", "another"))

    assert told.events == [(FAILED.message, 3, "12:01:00", "12:03:00"), ("another", 1, "12:03:00", "12:03:00")]


async def test_a_storm_of_events_is_written_once_a_minute() -> None:
    told = Told()
    for _ in range(600):
        await told.tell(after=0.5)

    assert [write.split()[0] for write in told.api.writes] == ["POST", "PATCH", "PATCH", "PATCH", "PATCH"]
    assert told.events == [(FAILED.message, 481, "12:00:00", "12:04:00")]


async def test_a_new_process_goes_on_counting() -> None:
    told = Told()
    await told.tell()
    await told.tell(after=60)
    told.teller = Teller(told.api)

    await told.tell(after=1)
    assert told.events == [(FAILED.message, 3, "12:00:00", "12:01:01")]
    await told.tell(after=60)
    assert told.events == [(FAILED.message, 4, "12:00:00", "12:02:01")]


async def test_an_event_that_the_api_server_has_dropped_is_told_anew() -> None:
    told = Told()
    await told.tell()
    told.api.objects["Event"].clear()

    await told.tell(after=7200)

    assert told.events == [(FAILED.message, 1, "14:00:00", "14:00:00")]


async def test_two_servings_of_one_name_do_not_share_a_series() -> None:
    told = Told()
    await told.tell()
    await told.teller.tell(CHAT.model_copy(update={"uid": "made-again"}), FAILED, told.now)

    assert [o["involvedObject"]["uid"] for o in told.api.objects["Event"].values()] == ["uid-chat", "made-again"]


async def test_an_event_that_cannot_be_posted_is_only_logged() -> None:
    told = Told()
    told.api.refuse["POST Event"] = ApiError(403, "Forbidden", "no")
    await told.tell()
    told.api.refuse.clear()

    await told.tell()
    assert told.events == [(FAILED.message, 1, "12:00:00", "12:00:00")]


async def test_memory_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 10)
    told = Told()
    for number in range(50):
        await told.tell(Event("Normal", "ProfileReady", f"table {number}"))

    assert len(told.teller._series) == 10
