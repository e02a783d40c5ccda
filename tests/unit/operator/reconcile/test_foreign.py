"""Whatever has a name that specserve would use is compared before it is taken for ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.builders import SERVING, edited, node, profile
from tests.memory import World

from specserve_operator.api.records import Json
from specserve_operator.store.client import ApiError
from specserve_profiler.contract.message import encode

Change = dict[str, object]


@pytest.fixture
async def w() -> World:
    """Nothing is made yet; ``made`` knows what will be."""
    return World(SERVING, node("n1"))


async def made(kind: str, begins: str) -> Json:
    """What specserve makes of that kind and name for the same serving."""
    other = World(SERVING, node("n1"))
    await other.settle()
    (name,) = (n for n in other.api.names(kind) if n.startswith(begins))
    found = other.api.of(kind, name)
    assert found is not None
    return found


PACKAGE, COPY, JOB = ("ConfigMap", "specserve-profiler-"), ("ConfigMap", "specserve-prompts-"), ("Job", "specserve-")


@pytest.mark.parametrize(
    ("what", "change"),
    [
        pytest.param(PACKAGE, {"binaryData": {"specserve_profiler.zip": "ZXZpbA=="}}, id="a package with other code"),
        pytest.param(PACKAGE, {"immutable": False}, id="a package that may change"),
        pytest.param(PACKAGE, {"data": {"sitecustomize.py": "import evil"}}, id="a package with more in it"),
        pytest.param(PACKAGE, {"metadata.labels": {}}, id="a package that the store does not see"),
        pytest.param(COPY, {"data": {"prompts.jsonl": "other"}}, id="other prompts"),
        pytest.param(JOB, {"metadata.labels": {}}, id="a Job of somebody else"),
    ],
)
async def test_what_is_not_ours_is_told_and_no_job_starts(w: World, what: tuple[str, str], change: Change) -> None:
    theirs = edited(await made(*what), change)
    w.api.put(theirs)
    name = theirs["metadata"]["name"]

    for _ in range(2):
        with pytest.raises(ApiError, match="NotOurs"):
            await w.round()

    told = f"{what[0]} team/{name} is there already, not made by specserve: delete it."
    assert w.condition("Accepted") == ("False", "RefusedByCluster", f"{told} What was serving before keeps serving.")
    assert [job for job in w.jobs if job != name] == []
    kept = w.api.of(what[0], name)
    assert kept is not None
    assert {f: v for f, v in kept.items() if f != "metadata"} == {f: v for f, v in theirs.items() if f != "metadata"}

    w.remove(what[0], name)
    await w.settle()
    assert len(w.jobs) == 1
    assert w.condition("Accepted")[0] == "True"


async def test_the_same_package_is_as_good_whoever_brought_it(w: World) -> None:
    theirs = await made(*PACKAGE)
    labels = {**theirs["metadata"]["labels"], "app.kubernetes.io/managed-by": "flux"}
    w.api.put(edited(theirs, {"metadata.labels": labels}))

    await w.settle()

    assert len(w.jobs) == 1


def copied(job: Json) -> Json:
    return edited(job, {"metadata.name": "copy-of-it", "metadata.uid": "uid-of-the-copy"})


def without_manager(job: Json) -> Json:
    labels = {k: v for k, v in job["metadata"]["labels"].items() if k != "app.kubernetes.io/managed-by"}
    return edited(job, {"metadata.name": "theirs", "metadata.uid": "uid-of-theirs", "metadata.labels": labels})


@pytest.mark.parametrize("alter", [copied, without_manager])
async def test_a_job_that_only_looks_like_ours_is_neither_waited_for_nor_read_nor_deleted(
    w: World, alter: Callable[[Json], Json]
) -> None:
    ours = await made(*JOB)
    theirs = w.api.put(alter(ours))
    key = w.key_of(theirs["metadata"]["name"])
    w.finish(theirs["metadata"]["name"], encode(profile(key)), succeeds=True)

    await w.settle()

    assert w.jobs == sorted([ours["metadata"]["name"], theirs["metadata"]["name"]])
    assert w.profiles() == []
