"""Prompts of a ConfigMap: what is measured is what the key hashes, whatever happens to the ConfigMap meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import PROMPTS, SERVING, edited, node
from tests.memory import World

from specserve_operator.api.records import Ref

NEW = {"prompts.jsonl": '{"prompt": "Something else."}\n'}


@pytest.fixture
async def w() -> World:
    """A serving whose Job was just made; nothing serves meanwhile."""
    made = World(edited(SERVING, {"spec.speculation.beforeProfile": "Wait"}), node("n1"))
    await made.settle()
    return made


def mounted(w: World, job: str) -> dict[str, Any]:
    found = w.api.of("Job", job)
    assert found is not None
    volumes = {v["name"]: v for v in found["spec"]["template"]["spec"]["volumes"]}
    return dict(volumes["specserve-prompts"]["configMap"])


def copies(w: World) -> list[str]:
    return [name for name in w.api.names("ConfigMap") if name.startswith("specserve-prompts-")]


def change_prompts(w: World) -> None:
    w.api.put(edited(PROMPTS, {"data": NEW}))


async def test_a_job_mounts_an_immutable_copy_that_goes_with_the_prompts_themselves(w: World) -> None:
    (job,), (name,) = w.jobs, copies(w)
    copy = w.api.of("ConfigMap", name)
    assert copy is not None

    assert mounted(w, job) == {"name": name, "items": [{"key": "prompts.jsonl", "path": "prompts.jsonl"}]}
    assert (copy["immutable"], copy["data"]) == (True, PROMPTS["data"])
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "prompts", "uid": "uid-prompts"}
    assert copy["metadata"]["ownerReferences"] == [owner]


async def test_a_change_of_prompts_reaches_no_job_that_was_made_before_it(w: World) -> None:
    (job,), (before,) = w.jobs, copies(w)
    w.start_pod(job)  # it is loading the model, and has read nothing yet
    kept = mounted(w, job)

    change_prompts(w)
    await w.settle()

    assert mounted(w, job) == kept
    (other,) = (j for j in w.jobs if j != job)
    assert mounted(w, other)["name"] != before
    assert before in copies(w)  # a Job that runs may still read it
    assert w.api.of("ConfigMap", mounted(w, other)["name"])["data"] == NEW  # type: ignore[index]


async def test_copies_that_no_unfinished_job_mounts_go_with_the_next(w: World) -> None:
    (job,), (before,) = w.jobs, copies(w)
    change_prompts(w)
    await w.settle()
    assert job not in w.jobs  # nobody asks for it any more, and it had not begun
    w.remove("ConfigMap", "prompts")
    w.api.put(PROMPTS)
    await w.settle()

    assert copies(w) == [before]


async def test_the_file_has_the_name_that_the_request_says() -> None:
    source = {"spec.profile.workload.source.configMap": {"name": "prompts", "key": "chats.v2.jsonl"}}
    w = World(
        edited(SERVING, source), edited(PROMPTS, {"data": {"chats.v2.jsonl": '{"prompt": "Hello."}\n'}}), node("n1")
    )
    await w.settle()

    (job,) = w.jobs
    assert mounted(w, job)["items"] == [{"key": "prompts.jsonl", "path": "chats.v2.jsonl"}]
    assert '"/specserve/prompts/chats.v2.jsonl"' in str(w.api.of("Job", job))


async def test_prompts_of_a_path_have_no_copy() -> None:
    w = World(edited(SERVING, {"spec.profile.workload.source": {"path": "/models/prompts.jsonl"}}), node("n1"))
    await w.settle()

    assert len(w.jobs) == 1
    assert copies(w) == []


async def test_a_change_of_prompts_concerns_those_that_read_them(w: World) -> None:
    w.api.put(
        edited(
            SERVING,
            {
                "metadata.name": "other",
                "metadata.uid": "uid-other",
                "spec.profile.workload.source": {"path": "/models/prompts.jsonl"},
            },
        )
    )
    await w.settle("chat", "other")
    heard: list[set[Ref]] = []
    w.store.sources.on_change(lambda ref, *_: heard.append(w.reconciler.observer.reading(ref)))

    for name in ("prompts", "theirs"):
        w.store.sources._hear("MODIFIED", {"metadata": {"name": name, "namespace": "team"}})
    w.store.sources._hear("BOOKMARK", {"metadata": {"resourceVersion": "9"}})

    assert heard == [{Ref("team", "chat")}, set()]
    assert w.reconciler.observer.reading(Ref("", "")) == {Ref("team", "chat")}
