"""The operator's client and mirrors against a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from devcluster import Cluster
from devcluster.pace import patience
from specserve_operator.api import names
from specserve_operator.api.records import ConfigMap, Json, Ref
from specserve_operator.api.stored import Unusable
from specserve_operator.store import client as module
from specserve_operator.store.client import CONFIG_MAPS, SERVINGS, ApiError, Client
from specserve_operator.store.mirror import ConfigMaps

pytestmark = pytest.mark.apiserver

SPACE = "client"


@pytest.fixture(scope="module", autouse=True)
def space(cluster: Cluster) -> None:
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})


@pytest.fixture
async def client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    async with await Client.connect() as connected:
        yield connected


def config_map(name: str, data: dict[str, str] | None = None, **labels: str) -> Json:
    meta = {"name": name, "namespace": SPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data or {}}


async def test_a_long_list_comes_in_pages_of_one_version(client: Client) -> None:
    for number in range(7):
        await client.create(CONFIG_MAPS, config_map(f"page-{number}", of="pages"))

    pages: list[list[str]] = []
    more = ""
    while True:
        page = await client.list_page(CONFIG_MAPS, SPACE, "of=pages", more, limit=3)
        pages.append([obj["metadata"]["name"] for obj in page.items])
        if not (more := page.more):
            break

    assert [len(page) for page in pages] == [3, 3, 1]
    assert [name for page in pages for name in page] == [f"page-{number}" for number in range(7)]


async def test_applying_twice_changes_nothing(client: Client) -> None:
    first = await client.apply(CONFIG_MAPS, config_map("applied", {"a": "1"}))
    second = await client.apply(CONFIG_MAPS, config_map("applied", {"a": "1"}))
    third = await client.apply(CONFIG_MAPS, config_map("applied", {"b": "1"}))

    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert third["data"] == {"b": "1"}  # what is not said any more goes


async def test_what_is_not_there_is_none_and_deleting_it_is_fine(client: Client) -> None:
    assert await client.get(CONFIG_MAPS, SPACE, "nowhere") is None
    await client.delete(CONFIG_MAPS, SPACE, "nowhere")


@pytest.mark.parametrize(
    "name", ["..", ".", f"../../{SPACE}/configmaps/there", "../configmaps/there", "there/../there", "there?x=y", "a b"]
)
async def test_a_name_leads_nowhere_else(client: Client, name: str) -> None:
    await client.apply(CONFIG_MAPS, config_map("there"))

    assert await client.get(CONFIG_MAPS, SPACE, name) is None


async def test_nothing_is_written_where_nothing_may_be(client: Client) -> None:
    client.may_write = lambda: False
    there = config_map("unwritten")

    for write in (
        client.create(CONFIG_MAPS, there),
        client.apply(CONFIG_MAPS, there),
        client.patch(CONFIG_MAPS, SPACE, "unwritten", {}),
        client.replace_status(SERVINGS, there),
        client.delete(CONFIG_MAPS, SPACE, "unwritten"),
    ):
        with pytest.raises(ApiError, match="NotLeading"):
            await write

    assert await client.get(CONFIG_MAPS, SPACE, "unwritten") is None


async def test_a_name_that_is_taken(client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map("taken"))

    for dry_run in (False, True):
        with pytest.raises(ApiError) as raised:
            await client.create(CONFIG_MAPS, config_map("taken"), dry_run=dry_run)
        assert (raised.value.status, raised.value.reason) == (409, "AlreadyExists")


async def test_a_dry_run_makes_nothing(client: Client) -> None:
    answer = await client.create(CONFIG_MAPS, config_map("dry"), dry_run=True)

    assert answer["metadata"]["name"] == "dry"
    assert await client.get(CONFIG_MAPS, SPACE, "dry") is None


async def test_an_unknown_field_is_refused_with_its_name(client: Client) -> None:
    with pytest.raises(ApiError) as raised:
        await client.create(CONFIG_MAPS, {**config_map("typo"), "dta": {}})

    assert raised.value.status == 400
    assert 'unknown field "dta"' in raised.value.message


async def test_a_successor_is_not_deleted_in_its_predecessors_place(client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map("heir"))

    with pytest.raises(ApiError) as raised:
        await client.delete(CONFIG_MAPS, SPACE, "heir", uid="another")
    assert (raised.value.status, raised.value.reason) == (409, "Conflict")

    found = await client.get(CONFIG_MAPS, SPACE, "heir")
    assert found is not None
    await client.delete(CONFIG_MAPS, SPACE, "heir", uid=found["metadata"]["uid"])
    assert await client.get(CONFIG_MAPS, SPACE, "heir") is None


async def test_an_old_status_does_not_overwrite_a_newer(client: Client, chat: str) -> None:
    read = await client.get(SERVINGS, "default", chat)
    assert read is not None
    await client.replace_status(SERVINGS, {**read, "status": {"summary": "newer"}})

    with pytest.raises(ApiError) as raised:
        await client.replace_status(SERVINGS, {**read, "status": {"summary": "older"}})
    assert (raised.value.status, raised.value.reason) == (409, "Conflict")


async def test_a_strategic_patch_adds_an_owner(client: Client) -> None:
    def owner(uid: str) -> Json:
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": uid, "uid": uid}

    await client.create(CONFIG_MAPS, config_map("owned"))
    for uid in ("one", "two", "one"):
        body = {"metadata": {"ownerReferences": [owner(uid)]}}
        answer = await client.patch(CONFIG_MAPS, SPACE, "owned", body, strategic=True)

    assert sorted(o["uid"] for o in answer["metadata"]["ownerReferences"]) == ["one", "two"]


async def test_a_watch_tells_what_changes_and_only_of_what_is_selected(client: Client) -> None:
    since = (await client.list_page(CONFIG_MAPS)).resource_version
    await client.create(CONFIG_MAPS, config_map("seen", watched="yes"))
    await client.create(CONFIG_MAPS, config_map("unseen"))
    await client.apply(CONFIG_MAPS, config_map("seen", {"a": "1"}, watched="yes"))
    await client.delete(CONFIG_MAPS, SPACE, "seen")

    heard = []
    async with asyncio.timeout(patience(10)):
        async for kind, obj in client.watch(CONFIG_MAPS, since, "watched"):
            heard.append((kind, obj["metadata"]["name"]))
            if kind == "DELETED":
                break

    assert heard == [("ADDED", "seen"), ("MODIFIED", "seen"), ("DELETED", "seen")]


async def test_objects_of_any_size_come_through_a_watch(client: Client) -> None:
    since = (await client.list_page(CONFIG_MAPS)).resource_version
    await client.create(CONFIG_MAPS, config_map("large", {"a": "x" * 900_000}, large="yes"))

    async with asyncio.timeout(patience(10)):
        _, obj = await anext(client.watch(CONFIG_MAPS, since, "large"))

    assert len(obj["data"]["a"]) == 900_000


async def test_a_server_that_is_not_there_is_unreachable(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client._api.configuration, "host", "https://127.0.0.1:1")

    for call in (client.get(CONFIG_MAPS, SPACE, "x"), client.watch(CONFIG_MAPS, "1").__anext__()):
        with pytest.raises(ApiError) as raised:
            await call
        assert (raised.value.status, raised.value.reason) == (0, "Unreachable")


async def test_a_server_that_never_answers_is_given_up(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.2)
    async with await asyncio.start_server(silence, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setattr(client._api.configuration, "host", f"http://127.0.0.1:{port}")
        with pytest.raises(ApiError) as raised:
            async with asyncio.timeout(patience(5)):
                await client.get(CONFIG_MAPS, SPACE, "x")

    assert (raised.value.status, raised.value.reason) == (0, "Unreachable")


async def test_an_answer_that_is_not_of_an_api_server(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 15\r\n\r\n<html>no</html>")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setattr(client._api.configuration, "host", f"http://127.0.0.1:{port}")
        with pytest.raises(ApiError) as raised:
            await client.get(CONFIG_MAPS, SPACE, "x")

    assert (raised.value.status, raised.value.reason, raised.value.message) == (502, "Bad Gateway", "<html>no</html>")


EMPTY = Unusable("it has no profile.json")


async def test_large_objects_that_others_label_as_profiles_are_never_held(client: Client) -> None:
    """They come neither in lists nor in watches; what is read of each is bounded."""
    label = {names.ROLE: "profile", names.PROFILE_KEY: "specserve-k"}
    await client.create(CONFIG_MAPS, config_map("large-1", {"profile.json": '"' * 900_000}, **label))
    mirror = ConfigMaps()
    running = asyncio.create_task(mirror.run(client))
    await asyncio.wait_for(mirror.listed.wait(), patience(10))
    heard = asyncio.Event()
    mirror.on_change(lambda ref, before, after: heard.set() if ref.name == "large-2" else None)

    await client.create(CONFIG_MAPS, config_map("large-2", {"profile.json": "<" * 900_000}, **label))
    await asyncio.wait_for(heard.wait(), patience(10))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    found = {record.name: record.content for record in mirror.select("key", (SPACE, "specserve-k"))}
    assert found == dict.fromkeys(("large-1", "large-2"), Unusable("it is larger than 128 KiB"))
    page = await client.list_page(mirror.resource, SPACE, f"{names.PROFILE_KEY}=specserve-k")
    assert [sorted(obj) for obj in page.items] == [["apiVersion", "kind", "metadata"]] * 2
    with pytest.raises(ApiError) as raised:
        await client.get_small(CONFIG_MAPS, SPACE, "large-1", most=100_000)
    assert (raised.value.status, raised.value.reason) == (413, "TooLarge")
    assert await client.get_small(CONFIG_MAPS, SPACE, "not-there", most=10_000) is None
    for name in found:
        await client.delete(CONFIG_MAPS, SPACE, name)


async def test_a_mirror_holds_what_there_is_and_tells_of_changes(client: Client) -> None:
    heard: asyncio.Queue[tuple[str, Any, Any]] = asyncio.Queue()
    mirror = ConfigMaps()
    mirror.on_change(lambda ref, before, after: heard.put_nowait((ref.name, before, after)))
    label = {names.ROLE: "profile"}
    await client.create(CONFIG_MAPS, config_map("mirrored-1", **label))

    running = asyncio.create_task(mirror.run(client))
    await asyncio.wait_for(mirror.listed.wait(), patience(10))
    assert {ref.name for ref in mirror.refs() if ref.namespace == SPACE} == {"mirrored-1"}

    await client.create(CONFIG_MAPS, config_map("mirrored-2", **label))
    await client.delete(CONFIG_MAPS, SPACE, "mirrored-1")
    async with asyncio.timeout(patience(10)):
        told = [await heard.get() for _ in range(3)]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    one, two = (ConfigMap(name, "profile", content=EMPTY) for name in ("mirrored-1", "mirrored-2"))
    assert told == [("mirrored-1", None, one), ("mirrored-2", None, two), ("mirrored-1", one, None)]
    assert mirror.get(Ref(SPACE, "mirrored-1")) is None
