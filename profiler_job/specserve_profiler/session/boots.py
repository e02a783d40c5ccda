"""Boots of the engine within one run: started, watched while they are measured, stopped, timed."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.dialect import render
from specserve_profiler.engine.server import HOST, Engine, free_port, running
from specserve_profiler.session.console import began as began_stage
from specserve_profiler.session.console import engine_line, say
from specserve_profiler.session.measure import read_cell

PROBE = "specserve_profiler.engine.probe.scheduler"
PORTS_TRIED = 3
"""Another program may take a free port before the engine does."""
_ENDING_SECONDS = 8.0
"""From the engine's first broken connection to its end: vLLM's server looks every 5 s whether its core is there."""

T = TypeVar("T")


class Boots:
    """Boots one engine after the other for a request."""

    def __init__(self, request: ProfileRequest) -> None:
        self.request = request
        self.began = time.monotonic()
        self.doing = "starting"
        """For a person who asks what took so long."""
        self.seconds: dict[str, float] = {}
        self.longest_boot = 0.0
        """Seconds; the engines of one run take about the same time."""
        self.cell: tuple[int, int] | None = None
        """(batch size, K) that the last engine ran when it ended."""

    @property
    def left(self) -> float:
        """Seconds until the run must end."""
        return self.began + self.request.timeout_seconds - time.monotonic()

    def took(self, stage: str, began: float) -> None:
        """Notes what a stage took, added up where it came more than once."""
        seconds = time.monotonic() - began
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + seconds, 1)
        if stage.startswith("boot "):
            self.longest_boot = max(self.longest_boot, seconds)
        say(f"{stage} took {seconds:.1f} s")

    def times(self) -> str:
        """Stage times for a person."""
        return ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in self.seconds.items()) or "nothing finished"

    async def boot(
        self,
        name: str,
        config: Mapping[str, Any] | None,
        measure: Callable[[Engine], Coroutine[Any, Any, T]],
        extra: Sequence[str] = (),
    ) -> T:
        """Boots the engine, measures, stops it. The engine's own end while measuring is an error at once.

        Raises ProfilingError. ``config`` is the speculative configuration, None for no speculation.
        """
        for attempt in range(1, PORTS_TRIED + 1):
            try:
                return await self._boot(name, config, measure, extra)
            except ProfilingError as error:
                if error.reason != "PortInUse" or attempt == PORTS_TRIED:
                    raise
                say(f"another program took the engine's port; trying another one ({attempt} of {PORTS_TRIED - 1})")
        raise AssertionError("unreachable")

    async def _boot(
        self,
        name: str,
        config: Mapping[str, Any] | None,
        measure: Callable[[Engine], Coroutine[Any, Any, T]],
        extra: Sequence[str],
    ) -> T:
        request = self.request
        self.doing = f"booting the engine: {name}"
        self.cell = None
        port = free_port()
        command = render.serve_arguments(
            request.model,
            request.revision,
            request.engine,
            config,
            host=HOST,
            port=port,
            extra=(f"--scheduler-cls={PROBE}", *extra),
        )
        began_stage(f"boot {name}")
        say(f"{self.doing}: {' '.join(command)}")
        began = time.monotonic()
        deadline = self.began + request.timeout_seconds
        with tempfile.TemporaryDirectory(prefix="specserve-") as directory:
            async with running(command, port, Path(directory), deadline, engine_line) as engine:
                self.took(f"boot {name}", began)
                try:
                    result = await _unless_ended(engine, measure(engine))
                finally:
                    self.cell = read_cell(engine)
                self.doing = f"stopping the engine: {name}"
                began = time.monotonic()
        self.took("stops", began)
        return result


async def _unless_ended(engine: Engine, measure: Coroutine[Any, Any, T]) -> T:
    """What a measurement gives. That the engine ends meanwhile is the error, not what it does to the measurement."""
    measuring, watching = asyncio.ensure_future(measure), asyncio.ensure_future(engine.watch())
    try:
        await asyncio.wait({measuring, watching}, return_when=asyncio.FIRST_COMPLETED)
        if measuring.done() and isinstance(measuring.exception(), aiohttp.ClientError):
            await asyncio.wait({watching}, timeout=_ENDING_SECONDS)
        if watching.done():
            watching.result()
        return measuring.result()
    except aiohttp.ClientError as error:
        # What the client says of it holds addresses and headers, and nothing of why.
        status = error.status if isinstance(error, aiohttp.ClientResponseError) else None
        how = "broke off a request" if status is None else f"answered a request with status {status}"
        why = f"the engine {how} and did not end; its log says: {engine.said()}"
        raise ProfilingError("EngineCrashed", why) from error
    finally:
        for task in (measuring, watching):
            task.cancel()
        await asyncio.gather(measuring, watching, return_exceptions=True)
