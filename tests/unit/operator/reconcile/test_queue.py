"""The work queue: what is woken is looked at, once, and not by two at a time."""

from __future__ import annotations

import asyncio
import time

import pytest

from devcluster.pace import patience
from specserve_operator.api.records import Ref
from specserve_operator.reconcile import queue as module
from specserve_operator.reconcile.queue import Cause, WorkQueue

A, B = Ref("team", "a"), Ref("team", "b")


async def nothing_to_take(queue: WorkQueue) -> bool:
    try:
        await asyncio.wait_for(queue.take(), 0.02)
    except TimeoutError:
        return True
    return False


async def test_many_wakes_are_one() -> None:
    queue = WorkQueue()
    for ref in (A, A, B, A):
        queue.wake(ref)

    assert [await queue.take(), await queue.take()] == [A, B]
    assert await nothing_to_take(queue)


async def test_what_is_woken_while_it_runs_runs_once_more_and_not_at_the_same_time() -> None:
    queue = WorkQueue()
    queue.wake(A)
    await queue.take()
    queue.wake(A)
    queue.wake(A)

    assert await nothing_to_take(queue)
    queue.done(A, again_in=60)
    assert await queue.take() == A
    queue.done(A, again_in=60)
    assert await nothing_to_take(queue)


async def test_a_key_comes_again_after_its_time() -> None:
    queue = WorkQueue()
    queue.wake(A)
    await queue.take()
    queue.done(A, again_in=0.5)

    assert await nothing_to_take(queue)
    assert await asyncio.wait_for(queue.take(), patience(5)) == A


async def test_a_wake_does_not_wait_for_the_time() -> None:
    queue = WorkQueue()
    queue.wake_after(A, 36_000)
    queue.wake(A)

    assert await asyncio.wait_for(queue.take(), patience(5)) == A
    queue.done(A, again_in=None)
    assert await nothing_to_take(queue)  # the timer is gone, too


async def test_pauses_double_up_to_a_minute_and_end_with_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNDERCUT_SECONDS", 0.0)
    queue = WorkQueue()
    pauses = []
    for _ in range(9):
        queue.wake(A)
        await queue.take()
        pauses.append(queue.failed(A))
    assert pauses == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]

    queue.wake(A)
    await queue.take()
    queue.done(A, again_in=None)
    queue.wake(A)
    await queue.take()
    assert queue.failed(A) == 0.5


async def test_a_key_that_failed_comes_again_by_itself() -> None:
    queue = WorkQueue()
    queue.wake(A)
    await queue.take()
    queue.failed(A)

    assert await asyncio.wait_for(queue.take(), patience(5)) == A


async def test_what_a_failing_round_wakes_does_not_undercut_its_pause() -> None:
    queue = WorkQueue()
    queue.wake(A)
    await queue.take()
    queue.wake(A)
    queue.failed(A)

    assert await nothing_to_take(queue)


async def failed_once(pause: float = 36_000) -> WorkQueue:
    """A queue whose key A rests for ``pause`` seconds after a failure."""
    queue = WorkQueue()
    queue.wake(A)
    await queue.take()
    queue.failed(A, least=pause)
    return queue


async def test_what_others_look_at_too_does_not_undercut_a_pause() -> None:
    queue = await failed_once(0.5)
    queue.wake(A, Cause.SHARED)

    assert await nothing_to_take(queue)
    assert await asyncio.wait_for(queue.take(), patience(5)) == A  # the pause ends all the same


async def test_a_changed_child_ends_a_pause_early_but_not_at_once() -> None:
    """It may be the failed try itself that changed it, each time again."""
    queue = await failed_once()
    begun = time.monotonic()
    for _ in range(5):
        queue.wake(A, Cause.CHILD)

    assert await asyncio.wait_for(queue.take(), patience(5)) == A
    assert time.monotonic() - begun > 0.9


@pytest.mark.parametrize("during", [True, False], ids=["during the failing round", "after it"])
async def test_an_edit_is_looked_at_at_once_and_begins_anew(during: bool) -> None:
    queue = WorkQueue()
    queue.wake(A)
    await queue.take()
    if during:
        queue.wake(A, Cause.EDIT)
        queue.wake(A, Cause.CHILD)
    queue.failed(A, least=36_000)
    if not during:
        queue.wake(A, Cause.EDIT)

    assert not await nothing_to_take(queue)
    assert queue.failed(A) == 0.5


async def test_a_pause_is_as_long_as_the_api_server_asks_for() -> None:
    queue = WorkQueue()
    queue.wake(A)
    await queue.take()

    assert queue.failed(A, least=17) == 17


async def test_a_forgotten_key_is_known_no_more() -> None:
    queue = WorkQueue()
    queue.wake(A)
    queue.wake(B)
    assert queue.known == {A, B}

    queue.forget(await queue.take())
    assert queue.known == {B}


async def test_a_key_woken_while_it_is_being_forgotten_is_not_lost() -> None:
    queue = WorkQueue()
    queue.wake(A)
    await queue.take()
    queue.wake(A)
    queue.forget(A)

    assert await asyncio.wait_for(queue.take(), patience(5)) == A


async def test_two_workers_share_the_keys() -> None:
    queue = WorkQueue()
    refs = [Ref("team", f"s{i}") for i in range(20)]
    seen: list[Ref] = []
    all_seen = asyncio.Event()

    async def work() -> None:
        while True:
            ref = await queue.take()
            seen.append(ref)
            if len(seen) == len(refs):
                all_seen.set()
            await asyncio.sleep(0)
            queue.done(ref, None)

    workers = [asyncio.create_task(work()) for _ in range(2)]
    for ref in refs:
        queue.wake(ref)
    await asyncio.wait_for(all_seen.wait(), patience(5))
    assert await nothing_to_take(queue)
    for worker in workers:
        worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await workers[0]

    assert sorted(seen) == sorted(refs)
