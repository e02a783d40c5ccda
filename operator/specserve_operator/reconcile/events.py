"""Events for people: the same one told again is one Event whose count rises, and not more often than people read."""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass

from specserve_operator.api import names
from specserve_operator.api.records import Json, format_time
from specserve_operator.api.serving import SpeculativeServing
from specserve_operator.decide.model import Event
from specserve_operator.decide.status import cut
from specserve_operator.store.client import EVENTS, ApiError, Client

log = logging.getLogger(__name__)

AGAIN = dt.timedelta(seconds=60)
"""An Event that is told again is written this often at most; its count is right all the same."""
REMEMBERED = 4096
"""Series, over all servings; what is forgotten is asked for again."""


@dataclass
class _Series:
    count: int
    """Times that it was told."""
    written_at: dt.datetime


class Teller:
    """Posts Events. One that cannot be posted is logged: telling must not keep from doing."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._series: OrderedDict[str, _Series] = OrderedDict()

    async def tell(self, serving: SpeculativeServing, event: Event, now: dt.datetime) -> None:
        """Post an Event, or raise the count of the one that says the same."""
        log.info("%s/%s: %s: %s", serving.namespace, serving.name, event.reason, event.message)
        body = _body(serving, event, now)
        name = body["metadata"]["name"]
        try:
            series = self._series.get(name)
            if series is None or not await self._told_again(body, series, now):
                self._series[name] = await self._told_first(body, now)
        except ApiError as error:
            log.warning("event not posted: %s", error)
        if len(self._series) > REMEMBERED:
            self._series.popitem(last=False)

    async def _told_first(self, body: Json, now: dt.datetime) -> _Series:
        try:
            await self._client.create(EVENTS, body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        else:
            return _Series(1, now)
        # Told before this process began: how often, the answer to a patch says.
        found = await self._raise(body, {"lastTimestamp": body["lastTimestamp"]})
        series = _Series(int(found.get("count") or 1) + 1, now)
        await self._raise(body, {"count": series.count})
        return series

    async def _told_again(self, body: Json, series: _Series, now: dt.datetime) -> bool:
        """False where the Event is gone: the API server keeps one for an hour."""
        series.count += 1
        if abs(now - series.written_at) < AGAIN:
            return True
        try:
            await self._raise(body, {"count": series.count, "lastTimestamp": body["lastTimestamp"]})
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        series.written_at = now
        return True

    async def _raise(self, body: Json, changes: Json) -> Json:
        meta = body["metadata"]
        return await self._client.patch(EVENTS, meta["namespace"], meta["name"], changes)


def _body(serving: SpeculativeServing, event: Event, now: dt.datetime) -> Json:
    message, time = cut(event.message), format_time(now)
    same = "\n".join((serving.uid, event.type, event.reason, message))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{serving.name}.{hashlib.sha256(same.encode()).hexdigest()[:16]}",
            "namespace": serving.namespace,
        },
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "namespace": serving.namespace,
            "name": serving.name,
            "uid": serving.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": message,
        "source": {"component": names.MANAGER},
        "reportingComponent": f"{names.GROUP}/operator",
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
