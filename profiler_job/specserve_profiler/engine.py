"""Starts the engine as it is deployed, talks to it over HTTP, and stops it with everything that it started."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from specserve_profiler.errors import ProfilingError
from specserve_profiler.records import PROBE_DIR_VARIABLE

HOST = "127.0.0.1"
_PACKAGE_ROOT = Path(__file__).parent.parent
_TAIL_LINES = 400
_STOP_SECONDS = 12.0
"""Well within the 30 s that Kubernetes leaves a pod to end."""
_HEALTH_INTERVAL = 0.2
_POLL_SECONDS = 0.1
_LAST_LINES_SECONDS = 0.3
"""An engine that has ended is given this long for its last lines to arrive."""


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def error_line(lines: Sequence[str]) -> str:
    """The line of an engine's log that says best why it ended.

    vLLM ends with "Engine core initialization failed. See root cause above", so the cause is the last exception before
    any such line; without an exception the last complaint of the argument parser, else the last line.
    """
    plain = [_without_prefix(line) for line in lines if line.strip()]
    exceptions = [line for line in plain if re.match(r"[\w.]*(Error|Exception|Interrupt)\b.*:", line)]
    causes = [line for line in exceptions if "See root cause above" not in line]
    complaints = [line for line in plain if re.search(r"\berror: ", line)]
    for found in (causes, complaints, exceptions, plain):
        if found:
            return found[-1][:600]
    return "the engine wrote nothing"


def _without_prefix(line: str) -> str:
    line = re.sub(r"^\([\w ]+pid=\d+\) ?", "", line)
    line = re.sub(r"^(ERROR|WARNING|INFO|CRITICAL) [\d-]+ [\d:.]+ \[[^\]]*\] ?", "", line)
    return line.strip()


class Engine:
    """A running engine. Made by ``running``."""

    def __init__(
        self, process: subprocess.Popen[bytes], port: int, directory: Path, session: aiohttp.ClientSession
    ) -> None:
        self.directory = directory
        """Where the probe inside the engine writes."""
        self._process = process
        self._url = f"http://{HOST}:{port}"
        self._session = session
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._model = ""

    async def tokenize(self, text: str) -> list[int]:
        """Token ids of a text."""
        answer = await self._post("/tokenize", {"model": self._model, "prompt": text})
        return list(map(int, answer["tokens"]))

    async def complete(self, prompts: Sequence[Sequence[int]], **parameters: Any) -> dict[str, Any]:
        """Completes prompts, given as token ids; each prompt is a request of the engine. Cancelling aborts them."""
        return await self._post("/v1/completions", {"model": self._model, "prompt": prompts, **parameters})

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        async with self._session.post(self._url + path, json=body) as response:
            if response.status != 200:
                text = (await response.text())[:400]
                raise ProfilingError(
                    "EngineFailed", f"the engine answered {path} with status {response.status}: {text}"
                )
            answer: dict[str, Any] = await response.json()
            return answer

    async def _wait_until_healthy(self, deadline: float) -> None:
        while True:
            if self._process.poll() is not None:
                await asyncio.sleep(_LAST_LINES_SECONDS)
                raise self.died("while it started")
            with suppress(aiohttp.ClientError, asyncio.TimeoutError):
                timeout = aiohttp.ClientTimeout(total=5)
                async with self._session.get(self._url + "/health", timeout=timeout) as response:
                    if response.status == 200:
                        break
            if time.monotonic() > deadline:
                raise ProfilingError(
                    "TimedOut",
                    f"the engine was not healthy in time; its last line: {error_line(list(self._tail)[-1:])}",
                )
            await asyncio.sleep(_HEALTH_INTERVAL)
        async with self._session.get(self._url + "/v1/models") as response:
            self._model = (await response.json())["data"][0]["id"]

    def died(self, when: str) -> ProfilingError:
        """The error for an engine that has ended."""
        code = self._process.returncode
        how = f"by signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return ProfilingError(
            "EngineFailed",
            f"the engine ended {how}{hint} {when}: {error_line(list(self._tail)).rstrip('.')}. "
            "It would end where it is deployed, too: check image, engine.args and the models.",
        )

    async def watch(self) -> None:
        """Returns never; raises as soon as the engine ends by itself."""
        await self._ended()
        await asyncio.sleep(_LAST_LINES_SECONDS)
        raise self.died("while it was measured")

    async def _ended(self) -> None:
        """Waits for the end of the server. By polling: asyncio's own wait also waits for children that hold the log."""
        while self._process.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)

    async def _pass_on_log(self, output: asyncio.StreamReader, write: Callable[[str], None]) -> None:
        rest = b""
        while chunk := await output.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._log_line(line, write)
        if rest:
            self._log_line(rest, write)

    def _log_line(self, line: bytes, write: Callable[[str], None]) -> None:
        text = line.decode(errors="replace").rstrip()
        self._tail.append(text)
        write(text)

    async def _stop(self) -> None:
        """SIGTERM to the server, which stops its children; after a while SIGKILL to the whole process group."""
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended(), _STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._ended()


@asynccontextmanager
async def running(
    command: Sequence[str], port: int, directory: Path, deadline: float, log: Callable[[str], None]
) -> AsyncIterator[Engine]:
    """The engine of a command line, healthy; stopped on the way out with everything it started, however that comes.

    The probe inside writes to ``directory``, which exists. ``deadline`` is a ``time.monotonic`` time for its health.
    Raises ProfilingError: EngineFailed with the line of its log that says why, or TimedOut.
    """
    try:
        process = subprocess.Popen(  # noqa: ASYNC220 - it returns as soon as the program runs
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(directory),
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
    except OSError as error:
        raise ProfilingError(
            "EngineFailed", f"engine.command {command[0]!r} cannot be started: {error.strerror or error}"
        ) from error
    output = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(output), process.stdout)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None), headers=_authorization()
    ) as session:
        engine = Engine(process, port, directory, session)
        passing = asyncio.create_task(engine._pass_on_log(output, log))
        try:
            await engine._wait_until_healthy(deadline)
            yield engine
        finally:
            await asyncio.shield(engine._stop())
            passing.cancel()


def _environment(directory: Path) -> dict[str, str]:
    """The deployed environment plus what the probe needs to be found, also from a zip, in every process that spawns."""
    path = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, PROBE_DIR_VARIABLE: str(directory), "PYTHONUNBUFFERED": "1"}


def _authorization() -> dict[str, str]:
    key = os.environ.get("VLLM_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """Runs in the child before the engine: a SIGTERM when the profiler is killed, so that no engine outlives it."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
