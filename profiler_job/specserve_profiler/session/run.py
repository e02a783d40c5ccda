"""One profile from beginning to end, within its time, whatever happens to the engine, and stopped when asked."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from specserve_profiler.contract.profile import Decision, Failure, PartialProfile, Profile
from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.session.console import say
from specserve_profiler.session.stages import Session

LONGEST_TMPDIR = 107 - len("/00000000-0000-0000-0000-000000000000")
"""The path of a Unix socket has at most 107 bytes, and vLLM names its sockets so."""
_MARGIN_SECONDS = 20.0
"""The profiler's own deadline is this much before the pod's, or a tenth of it if that is less."""


@dataclass(frozen=True)
class Outcome:
    """What a run led to: a profile, or a failure and what was measured before it."""

    profile: Profile | None = None
    failure: Failure | None = None
    partial: PartialProfile | None = None
    signal: int | None = None
    """The signal that interrupted it."""


def execute(request: ProfileRequest, on_measuring: Callable[[], None] = lambda: None) -> Outcome:
    """Measures and decides. Never raises for what can go wrong with an engine, a workload or the time.

    ``on_measuring`` is called once, when the first engine is up and measuring starts. SIGTERM and SIGINT end the run
    with the failure ``Interrupted``; the engine is stopped before this returns.
    """
    with own_temporaries():
        return asyncio.run(_execute(request, on_measuring))


@contextmanager
def own_temporaries() -> Iterator[None]:
    """A temporary directory of the run's own: vLLM leaves sockets and rendezvous files in it at each boot.

    One for all its boots, which share what is compiled there. Where its sockets would have too long a path, the
    engine's files go where they always went.
    """
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="specserve-", ignore_cleanup_errors=True) as folder:
        if len(os.fsencode(folder)) <= LONGEST_TMPDIR:
            os.environ["TMPDIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("TMPDIR", None)
            os.environ.update({} if before is None else {"TMPDIR": before})


async def _execute(request: ProfileRequest, on_measuring: Callable[[], None]) -> Outcome:
    session = Session(request, on_measuring)
    asked: list[int] = []
    try:
        decision = await guarded(session, asked)
    except ProfilingError as error:
        return Outcome(failure=error.failure(), partial=_partial(session, error), signal=asked[0] if asked else None)
    say(f"verdict {decision.verdict}: {decision.reason}")
    session.boots.seconds["total"] = round(time.monotonic() - session.boots.began, 1)
    measured = session.measurements()
    assert measured is not None  # noqa: S101 - there is a decision
    return Outcome(
        Profile(key=request.key, measured_at=_now(), measurements=measured, decision=decision, request=request)
    )


def _partial(session: Session, error: ProfilingError) -> PartialProfile | None:
    measured = session.measurements()
    if measured is None or not (measured.baseline or measured.acceptance):
        return None
    why = f"{error.reason}: {error}"
    return PartialProfile(partial=why, measured_at=_now(), measurements=measured, request=session.request)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc).replace(microsecond=0)


async def guarded(session: Session, asked: list[int]) -> Decision:
    """The session's decision within its time; ``asked`` gets the signals that come meanwhile. Raises ProfilingError."""
    task = asyncio.ensure_future(session.run())
    _stop_on_signals(task, asked)
    seconds = session.request.timeout_seconds
    limit = seconds - min(_MARGIN_SECONDS, seconds / 10)
    done, _ = await asyncio.wait({task}, timeout=limit)
    boots = session.boots
    if not done:
        doing = boots.doing
        task.cancel()
        with suppress(asyncio.CancelledError, ProfilingError):
            await task
        if session.decided:
            session.lab.warn(f"the time was over while it was busy with: {doing}; what was verified so far decides")
            return session.decision()
        raise ProfilingError(
            "TimedOut",
            f"no profile within {limit:.0f} s; it was busy with: {doing}. Took so far: {boots.times()}. "
            "Give it more time (profile.timeoutSeconds), or fewer batch sizes.",
        )
    try:
        return task.result()
    except asyncio.CancelledError:
        raise ProfilingError(
            "Interrupted", f"the profiler was asked to stop while it was busy with: {boots.doing}."
        ) from None


def _stop_on_signals(task: asyncio.Future[Decision], asked: list[int]) -> None:
    """The first SIGTERM or SIGINT cancels; later ones do not disturb the engine's being stopped."""
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        if not asked:
            task.cancel()
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
