"""What is read of ConfigMaps: a profile's content once, and only where it is small."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import NAMESPACE
from tests.memory import Memory

from specserve_operator.api import names, stored
from specserve_operator.api.records import ConfigMap, Json, Ref, ref_of
from specserve_operator.api.stored import Unusable
from specserve_operator.store.client import Resource
from specserve_operator.store.mirror import ConfigMaps


def claim(name: str, text: str, role: str = names.ROLE_PROFILE) -> Json:
    labels = {names.ROLE: role, names.PROFILE_KEY: "specserve-k"}
    meta = {"name": name, "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"profile.json": text}}


class Counting(Memory):
    """Notes whose content is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def get_small(self, resource: Resource, namespace: str, name: str, most: int) -> Json | None:
        self.asked.append(name)
        return await super().get_small(resource, namespace, name, most)


class Cluster:
    """A mirror of ConfigMaps and the API server behind it."""

    def __init__(self, *objects: Json) -> None:
        self.api: Any = Counting()
        self.mirror = ConfigMaps()
        for obj in objects:
            self.api.put(obj)

    async def list(self) -> None:
        await self.mirror._list(self.api)

    async def hear(self, obj: Json) -> None:
        """A watch tells of it, by its metadata."""
        head = {"metadata": self.api.put(obj)["metadata"]}
        self.mirror._hear("MODIFIED", head, await self.mirror._complete(self.api, head))

    def problem(self, name: str) -> str:
        record = self.mirror.get(Ref(NAMESPACE, name))
        assert record is not None and isinstance(record.content, Unusable)
        return record.content.problem


async def test_a_profile_is_read_and_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    read = stored.read
    monkeypatch.setattr(stored, "read", lambda name, *rest: parsed.append(name) or read(name, *rest))
    c = Cluster(claim("one", "{}"), claim("two", "[]"))
    await c.list()
    parsed.clear()

    await c.list()  # anew, as after a watch that was cut for long

    assert (c.api.asked, parsed) == (["one", "two"], [])


async def test_a_profile_that_changes_is_read_again() -> None:
    c = Cluster(claim("one", "[]"))
    await c.list()
    before = c.problem("one")

    await c.hear(claim("one", '{"key": 3}'))

    assert c.api.asked == ["one", "one"]
    assert c.problem("one") != before


async def test_a_large_one_is_refused_unread_and_told_to_who_would_use_its_key() -> None:
    c = Cluster(claim("large", '"' * 1_000_000))

    await c.list()

    assert c.problem("large") == "it is larger than 128 KiB"
    assert [record.name for record in c.mirror.select("key", (NAMESPACE, "specserve-k"))] == ["large"]


async def test_of_what_is_no_profile_only_metadata_are_asked_for() -> None:
    other = claim("other", "text", names.ROLE_SERVING)
    c = Cluster(other)

    await c.list()

    assert c.api.asked == []
    assert c.mirror.get(ref_of(other)) == ConfigMap("other", names.ROLE_SERVING, "specserve-k")


async def test_a_package_is_read_once_and_known_by_its_content() -> None:
    """Jobs run it: one of that name is not taken for ours unseen."""
    one, same, evil = (claim(name, text, names.ROLE_PACKAGE) for name, text in (("a", "x"), ("b", "x"), ("c", "evil")))
    c = Cluster(one, same, evil)

    await c.list()
    await c.list()

    assert c.api.asked == ["a", "b", "c"]
    found = [c.mirror.get(ref_of(obj)) for obj in (one, same, evil)]
    contents = [record.package for record in found if record is not None]
    assert contents[0] == contents[1] != contents[2]


async def test_one_that_is_gone_before_it_is_read_is_gone_in_the_end() -> None:
    c = Cluster(claim("one", "{}"))
    page = await c.api.list_page(c.mirror.resource)
    del c.api.objects["ConfigMap"][Ref(NAMESPACE, "one")]

    record = await c.mirror._complete(c.api, page.items[0])
    c.mirror._hear("ADDED", page.items[0], record)
    assert c.problem("one") == "it has no profile.json"
    c.mirror._hear("DELETED", page.items[0])

    assert c.mirror.refs() == ()
