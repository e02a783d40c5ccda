"""Starts the engine as it is deployed, talks to it over HTTP, and stops it with everything that it started."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from specserve_profiler.contract.reasons import ProfilingError, of_disk
from specserve_profiler.engine import processes
from specserve_profiler.engine.diagnosis import diagnose, diagnose_measured, error_line
from specserve_profiler.engine.records import PROBE_DIR_VARIABLE

HOST = "127.0.0.1"
_PACKAGE_ROOT = Path(__file__).parents[2]
"""The folder or zip that holds ``specserve_profiler``."""
_TAIL_LINES = 400
_STOP_SECONDS = 12.0
"""Well within the 30 s that Kubernetes leaves a pod to end."""
_KILL_SECONDS = 10.0
"""The kernel may need so long to take a process that holds a device."""
_AFTER_SECONDS = 1.0
"""Children of a server that has ended have so long to end, and its resource tracker to clean up."""
_HEALTH_INTERVAL = 0.2
_POLLS_A_LOOK = 5
_POLL_SECONDS = 0.1
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LAST_LINES_SECONDS = 0.3
"""An engine that has ended is given this long for its last lines to arrive."""


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


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
        self._shared: set[processes.SharedFile] = set()

    async def tokenize(self, text: str) -> list[int]:
        """Token ids of a text. Raises ProfilingError, as all requests do."""
        return await self._tokens({"prompt": text})

    async def tokenize_chat(self, chat: Mapping[str, Any]) -> list[int] | None:
        """Token ids of a chat, up to the beginning of the reply; None without a chat template.

        ``chat`` has ``messages``, and may have ``tools`` and ``chat_template_kwargs``, as an OpenAI server takes them.
        """
        try:
            return await self._tokens({**chat, "add_generation_prompt": True})
        except ProfilingError as error:
            if "provide a chat template" in str(error):
                return None
            raise

    async def complete(
        self, prompts: Sequence[Sequence[int]], request_id: str | None = None, **parameters: Any
    ) -> dict[str, Any]:
        """Completes prompts, given as token ids; each prompt is a request of the engine. Cancelling aborts them.

        The engine calls them ``cmpl-<request_id>-<index>``, followed by what it makes them unique with.
        """
        headers = {} if request_id is None else {"X-Request-Id": request_id}
        return await self._post("/v1/completions", {"prompt": prompts, **parameters}, headers=headers)

    async def _tokens(self, body: Mapping[str, Any]) -> list[int]:
        answer = await self._post("/tokenize", body, refused="PromptsInvalid")
        return list(map(int, answer["tokens"]))

    async def _post(
        self,
        path: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        refused: str = "EngineFailed",
    ) -> dict[str, Any]:
        """The answer to a request. An error tells what the engine said of it, up to where it quotes the request.

        Raises ProfilingError for what the engine refuses (``refused`` where the content is why), aiohttp.ClientError
        where it fails.
        """
        body = {"model": self._model, **body}
        async with self._session.post(self._url + path, json=body, headers=headers) as response:
            if response.status >= 500:
                response.raise_for_status()
            if response.status != 200:
                said = _unquoted(await response.text(), body)
                reason = refused if response.status in (400, 422) else "EngineFailed"
                raise ProfilingError(reason, f"the engine answered {path} with status {response.status}: {said}")
            answer: dict[str, Any] = await response.json()
            return answer

    async def _wait_until_healthy(self, deadline: float) -> None:
        for poll in itertools.count():
            if poll % _POLLS_A_LOOK == 0:
                self._note_shared_memory()
            if self._process.poll() is not None:
                await asyncio.sleep(_LAST_LINES_SECONDS)
                raise self._died_at_boot()
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
        self._note_shared_memory()

    def _died_at_boot(self) -> ProfilingError:
        found = diagnose(list(self._tail), self._process.returncode)
        why = f"the engine ended {self._how()} while it started: {_sentence(found.cause)} {_capital(found.way_out)}."
        return ProfilingError(found.reason, why)

    def _died(self) -> ProfilingError:
        found = diagnose_measured(list(self._tail), self._process.returncode)
        why = (
            f"the engine ended {self._how()} while it was measured: {_sentence(found.cause)} {_capital(found.way_out)}."
        )
        return ProfilingError(found.reason, why)

    def _how(self) -> str:
        code = self._process.returncode
        if code is None or code >= 0:
            return f"with exit code {code}"
        return f"by signal {signal.Signals(-code).name}" + (" (out of memory?)" if code == -signal.SIGKILL else "")

    def said(self) -> str:
        """The line of its log that says best what is wrong."""
        return error_line(list(self._tail))

    async def watch(self) -> None:
        """Returns never; raises ProfilingError (EngineCrashed, DiskFull) as soon as the engine ends by itself."""
        await self._ended()
        await asyncio.sleep(_LAST_LINES_SECONDS)
        raise self._died()

    async def _ended(self) -> None:
        """Waits for the end of the server. By polling: asyncio's own wait also waits for children that hold the log."""
        while self._process.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)

    async def _pass_on_log(self, write: Callable[[str], None]) -> None:
        output, rest = asyncio.StreamReader(), b""
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(output), self._process.stdout)
        while chunk := await output.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._log_line(line, write)
        if rest:
            self._log_line(rest, write)

    def _log_line(self, line: bytes, write: Callable[[str], None]) -> None:
        text = _COLOUR.sub("", line.decode(errors="replace").rstrip().rpartition("\r")[2])
        self._tail.append(text)
        write(text)

    def _members(self) -> set[int]:
        return processes.members(self._process.pid, f"{PROBE_DIR_VARIABLE}={self.directory}".encode())

    async def _alone(self) -> None:
        while self._members():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)

    def _note_shared_memory(self) -> None:
        self._shared |= processes.shared_memory(self._members())

    async def _stop(self) -> None:
        """SIGTERM to the server, which stops its children; after a while, or when this is cancelled, SIGKILL to all.

        Then no process of the engine is left, no port, and no shared memory.
        """
        self._note_shared_memory()
        try:
            if self._process.poll() is None:
                self._process.terminate()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._ended(), _STOP_SECONDS)
            if self._process.poll() is not None:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._alone(), _AFTER_SECONDS)
        finally:
            # Nothing here may wait for the event loop: it may be about to end.
            processes.kill(self._members, _KILL_SECONDS)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            processes.unlink(self._shared)


def _unquoted(text: str, body: Mapping[str, Any]) -> str:
    """The first 400 characters of an error, up to where twelve in a row are of the prompts, however spelt."""
    private = [*_leaves([body.get(name) for name in ("prompt", "messages", "tools")])]
    spelt = "\n".join(spelling for leaf in private for spelling in (leaf, repr(leaf), json.dumps(leaf)))
    ends = [start for start in range(min(len(text) - 11, 400)) if text[start : start + 12] in spelt][:1]
    short = [re.search(rf"(?<!\w){re.escape(leaf)}(?!\w)", text) for leaf in private if 0 < len(leaf) < 12]
    end = min([400, *ends, *(found.start() for found in short if found)])
    return text[:end] + "..." * (end < len(text))


def _leaves(value: Any, name: str = "") -> Iterator[str]:
    """The texts in a request's field; lists of token ids as one."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _leaves(entry, key)
    elif isinstance(value, (list, tuple)):
        if value and isinstance(value[0], int):
            yield str(value)
        else:
            for entry in value:
                yield from _leaves(entry, name)
    elif isinstance(value, str) and name not in ("role", "type"):
        yield value


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


@asynccontextmanager
async def running(
    command: Sequence[str], port: int, directory: Path, deadline: float, log: Callable[[str], None]
) -> AsyncIterator[Engine]:
    """The engine of a command line, healthy; stopped on the way out with everything it started, however that comes.

    The probe inside writes to ``directory``, which exists. ``deadline`` is a ``time.monotonic`` time for its health.
    Raises ProfilingError with the line of its log that says why: EngineFailed, or what ``diagnosis`` finds; TimedOut.
    """
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None), headers=_authorization()
    ) as session:
        engine = Engine(_start(command, directory), port, directory, session)
        passing = asyncio.create_task(engine._pass_on_log(log))
        try:
            await engine._wait_until_healthy(deadline)
            yield engine
        except OSError as error:  # of the profiler's own files beside the probe's
            raise of_disk(error) or error from error
        finally:
            try:
                await engine._stop()
            finally:
                passing.cancel()


def _start(command: Sequence[str], directory: Path) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
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


def _environment(directory: Path) -> dict[str, str]:
    """The deployed environment plus what the probe needs to be found, also from a zip, in every process that spawns.

    Without ``SPT_NOENV`` the titles that vLLM gives its processes overwrite the environment by which they are found.
    """
    path = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
    ours = {"PYTHONPATH": path, PROBE_DIR_VARIABLE: str(directory), "PYTHONUNBUFFERED": "1", "SPT_NOENV": "1"}
    return {**os.environ, **ours}


def _authorization() -> dict[str, str]:
    key = os.environ.get("VLLM_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """Runs in the child before the engine: a SIGTERM when the profiler is killed, so that no engine outlives it."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
