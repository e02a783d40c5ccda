"""What goes wrong between an operator and its API server, on purpose; and the nodes' part, so that a story goes on."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import aiohttp
from aiohttp import web

SHUT_SECONDS = 0.1
"""For connections that are open when a proxy ends."""

REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError"}
WRITES = ("POST", "PUT", "PATCH", "DELETE")


class FaultProxy:
    """An HTTP proxy before an API server, on a thread of its own, and a kubeconfig that goes through it.

    Its attributes may be set at any time.
    """

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        target = config["clusters"][0]["cluster"]
        self._server: str = target["server"]
        self._tls = ssl.create_default_context(cadata=base64.b64decode(target["certificate-authority-data"]).decode())
        self.every = 0
        """Each so many-th call is refused; 0: none is."""
        self.refusals: tuple[int, ...] = (500, 429, 409)
        """By turns. Of those answered 500 each second one is carried out all the same."""
        self.watches: Literal["through", "cut", "ended", "silent"] = "through"
        """cut: the connection is dropped after ``cut_after`` seconds; ended: at once, as if all had been said; silent:
        nothing comes through, not even the end."""
        self.cut_after = 2.0
        self.calls, self.refused = 0, Counter[int]()
        self.asked: Counter[str] = Counter()
        """Kind -> watches that were asked for."""
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._up.wait()
        cluster = {"server": f"http://127.0.0.1:{self._port}"}
        config["clusters"][0]["cluster"] = cluster
        self.kubeconfig = folder / "proxy.kubeconfig"
        self.kubeconfig.write_text(json.dumps(config))

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        left = asyncio.all_tasks(self._loop)  # watches that are silent
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    async def _serve(self) -> None:
        self._ended = asyncio.Event()
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=SHUT_SECONDS)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._port: int = runner.addresses[0][1]
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._session:
            self._up.set()
            await self._ended.wait()
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") == "true":
            return await self._watch(request)
        self.calls += 1
        status = self._refusal(request.method) if self.every and self.calls % self.every == 0 else 0
        if status:
            self.refused[status] += 1
            if status == 500 and self.refused[status] % 2 == 0:
                await self._pass_on(request)  # and the answer is lost
            return self._refuse(request, status)
        return await self._pass_on(request)

    def _refusal(self, method: str) -> int:
        status = self.refusals[sum(self.refused.values()) % len(self.refusals)]
        return 500 if status == 409 and method not in WRITES else status

    @staticmethod
    def _refuse(request: web.Request, status: int) -> web.Response:
        body = {"kind": "Status", "code": status, "reason": REASONS[status], "message": f"injected, {id(request)}"}
        return web.json_response(body, status=status, headers={"Retry-After": "1"} if status == 429 else {})

    async def _pass_on(self, request: web.Request) -> web.Response:
        try:
            async with self._upstream(request) as answer:
                body, kept = await answer.read(), ("Content-Type", "Content-Encoding", "Retry-After")
                headers = {name: answer.headers[name] for name in kept if name in answer.headers}
                return web.Response(body=body, status=answer.status, headers=headers)
        except aiohttp.ClientError:
            _drop(request)
            return web.Response(status=502)

    def _upstream(self, request: web.Request) -> Any:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in ("host", "content-length")}
        timeout = aiohttp.ClientTimeout(total=None)
        url = self._server + request.raw_path
        data = request.content if request.can_read_body else None
        return self._session.request(request.method, url, headers=headers, data=data, timeout=timeout)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.asked[request.path.rsplit("/", 1)[1]] += 1
        answer = web.StreamResponse()
        await answer.prepare(request)
        if self.watches == "silent":
            await asyncio.sleep(3600)
        if self.watches != "ended":
            try:
                async with self._upstream(request) as source:
                    await asyncio.wait_for(
                        self._copy(source, answer), self.cut_after if self.watches == "cut" else None
                    )
            except (aiohttp.ClientError, TimeoutError, ConnectionError):
                _drop(request)
        return answer

    async def _copy(self, source: aiohttp.ClientResponse, answer: web.StreamResponse) -> None:
        async for data in source.content.iter_any():
            if self.watches == "silent":
                await asyncio.sleep(3600)
            await answer.write(data)
        if self.watches == "silent":
            await asyncio.sleep(3600)


def _drop(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
