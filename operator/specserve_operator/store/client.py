"""The one place that speaks HTTP to the API server: plain JSON objects in and out, a timeout on every call.

A call whose answer may be another one a moment later is repeated a few times. All are paced but those to Leases.

Built on ``kubernetes.aio``'s ApiClient (authentication, TLS, token refresh). Its typed models are not used: they refuse
fields that they do not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any
from urllib.parse import quote

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from specserve_operator.api import names
from specserve_operator.api.records import Json
from specserve_operator.store.pace import Pace

log = logging.getLogger(__name__)

REQUEST_SECONDS = 20.0
WATCH_SECONDS = 30.0
"""The API server ends a watch after this; it is then taken up where it ended, which costs it next to nothing. Silence
tells nothing: where no object changes, even bookmarks may stay away. The end that does not come in time is what tells a
dead watch from a quiet one."""
WATCH_MARGIN_SECONDS = 5.0
PAGE = 500

RETRY_PAUSES = (0.1, 0.3, 1.0)
"""Before a call's second, third and fourth try, in seconds; Retry-After makes them longer."""
RETRY_SECONDS = 10.0
"""A call is not repeated later than this after its first try; its key, or its watch, is tried again later."""
LONGEST_RETRY_AFTER = 60.0
_PASSING = {0, 429, 500, 502, 503, 504}


_HEADS = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
_ALL = "application/json"

_BROKEN = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
"""What a connection that fails, or an answer that is no JSON, raises."""


class ApiError(Exception):
    """The API server said no, or could not be reached (status 0).

    Attributes:
        status: HTTP status.
        reason: the API server's word for it, such as ``NotFound``, ``AlreadyExists``, ``Conflict``, ``Expired``.
        retry_after: seconds that the API server asked to wait; 0 where it did not.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason, self.message, self.retry_after = status, reason, message, retry_after


class NoCredentialsError(Exception):
    """Nothing says which cluster to talk to; the text says where it was looked for."""


@dataclass(frozen=True)
class Resource:
    """A kind of object and where the API server keeps it."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True
    heads: bool = False
    """Lists and watches ask for metadata alone."""

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        """URL path of the collection (no name), of an object, or of its subresource."""
        root = "/api/v1" if self.api_version == "v1" else f"/apis/{self.api_version}"
        # A name that a user typed must not lead anywhere else, such as to another namespace.
        if name in (".", ".."):
            raise ApiError(404, "NotFound", f"{self.plural} {name!r}: no object can have that name")
        name = quote(name, safe="")
        parts = [root, f"namespaces/{namespace}" if namespace and self.namespaced else "", self.plural, name, sub]
        return "/".join(part for part in parts if part)


NODES = Resource("v1", "Node", "nodes", namespaced=False)
PODS = Resource("v1", "Pod", "pods")
SERVICES = Resource("v1", "Service", "services")
CONFIG_MAPS = Resource("v1", "ConfigMap", "configmaps")
CONFIG_MAP_HEADS = replace(CONFIG_MAPS, heads=True)
EVENTS = Resource("v1", "Event", "events")
DEPLOYMENTS = Resource("apps/v1", "Deployment", "deployments")
JOBS = Resource("batch/v1", "Job", "jobs")
LEASES = Resource("coordination.k8s.io/v1", "Lease", "leases")
SERVINGS = Resource(names.API_VERSION, names.KIND, names.PLURAL)

RESOURCES = {r.kind: r for r in (NODES, PODS, SERVICES, CONFIG_MAPS, EVENTS, DEPLOYMENTS, JOBS, SERVINGS)}


@dataclass(frozen=True)
class Page:
    """One page of a list."""

    items: list[Json]
    resource_version: str
    more: str
    """Token of the next page; empty on the last."""


class Client:
    """Asynchronous access to the API server. One per process; use as an async context manager."""

    def __init__(self, configuration: Configuration) -> None:
        self._api = ApiClient(configuration)
        self.may_write: Callable[[], bool] = lambda: True
        """Asked before every write but those to Leases; ``lease.lead`` sets it."""
        self.watch_seconds = WATCH_SECONDS
        self._pace = Pace()

    @classmethod
    async def connect(cls) -> Client:
        """In-cluster credentials where there are some, else the kubeconfig of ``KUBECONFIG`` or ``~/.kube/config``.

        Raises:
            NoCredentialsError: neither is there, or the kubeconfig is none.
        """
        configuration = Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            # The library has read KUBECONFIG when it was imported.
            path = os.environ.get("KUBECONFIG") or None
            try:
                await config.load_kube_config(path, client_configuration=configuration)
            except Exception as error:  # whatever a file may hold that is no kubeconfig
                where = path or "~/.kube/config"
                raise NoCredentialsError(
                    f"no service account, and no usable kubeconfig in {where}: {error}; set KUBECONFIG"
                ) from error
        return cls(configuration)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._api.close()

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object, or None where there is none."""
        return await self._found(resource, namespace, name)

    async def get_small(self, resource: Resource, namespace: str, name: str, most: int) -> Json | None:
        """The object, or None where there is none.

        Raises:
            ApiError: with status 413 where it is of more than ``most`` bytes; no more than that was read.
        """
        return await self._found(resource, namespace, name, most)

    async def _found(self, resource: Resource, namespace: str, name: str, most: int | None = None) -> Json | None:
        try:
            return await self._call("GET", resource.path(namespace, name), most=most, election=resource is LEASES)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list_page(
        self, resource: Resource, namespace: str = "", selector: str = "", more: str = "", limit: int = PAGE
    ) -> Page:
        """One page of a collection, over all namespaces where none is given."""
        query = {"limit": str(limit), "labelSelector": selector, "continue": more}
        accept = _HEADS.format("List") if resource.heads else _ALL
        answer = await self._call("GET", resource.path(namespace), query, accept=accept)
        meta = answer["metadata"]
        return Page(answer.get("items") or [], meta["resourceVersion"], meta.get("continue", ""))

    async def create(self, resource: Resource, obj: Json, *, dry_run: bool = False) -> Json:
        """POST, refused for fields that the API server does not know.

        Raises:
            ApiError: with reason ``AlreadyExists`` where the name is taken; the object is fine then.
        """
        meta = obj["metadata"]
        query = {
            "fieldManager": names.MANAGER,
            "fieldValidation": "Strict",
            "dryRun": "All" if dry_run else "",
        }
        return await self._write("POST", resource, resource.path(meta.get("namespace", "")), query, body=obj)

    async def apply(self, resource: Resource, obj: Json) -> Json:
        """Forced server-side apply under specserve's one field manager."""
        meta = obj["metadata"]
        return await self._write(
            "PATCH",
            resource,
            resource.path(meta.get("namespace", ""), meta["name"]),
            {"fieldManager": names.MANAGER, "force": "true", "fieldValidation": "Strict"},
            body=obj,
            content_type="application/apply-patch+yaml",
        )

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Json, *, strategic: bool = False
    ) -> Json:
        """Merge patch; a strategic one merges lists by their keys."""
        kind = "strategic-merge-patch" if strategic else "merge-patch"
        return await self._write(
            "PATCH",
            resource,
            resource.path(namespace, name),
            {"fieldManager": names.MANAGER},
            body=body,
            content_type=f"application/{kind}+json",
        )

    async def replace_status(self, resource: Resource, obj: Json) -> Json:
        """PUT of the status; raises ApiError with reason ``Conflict`` where the object changed since it was read.

        So it does where the answer to a first try was lost.
        """
        meta = obj["metadata"]
        return await self._write(
            "PUT",
            resource,
            resource.path(meta["namespace"], meta["name"], "status"),
            {"fieldManager": names.MANAGER},
            body=obj,
        )

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str = "", version: str = "") -> None:
        """DELETE with Background propagation; gone already is fine.

        ``uid`` guards against deleting a successor, ``version`` against what somebody else has done to it meanwhile.
        """
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if guards := {name: text for name, text in (("uid", uid), ("resourceVersion", version)) if text}:
            body["preconditions"] = guards
        try:
            await self._write("DELETE", resource, resource.path(namespace, name), body=body)
        except ApiError as error:
            if error.status != 404:
                raise

    async def watch(self, resource: Resource, since: str, selector: str = "") -> AsyncIterator[tuple[str, Json]]:
        """(event type, object) from ``since`` on, bookmarks included, until the API server ends the watch.

        Raises:
            ApiError: also for an ERROR event; reason ``Expired`` (410) asks for a new list.
        """
        query = {
            "watch": "true",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "labelSelector": selector,
            "timeoutSeconds": str(math.ceil(self.watch_seconds)),
        }
        timeout = aiohttp.ClientTimeout(total=self.watch_seconds + WATCH_MARGIN_SECONDS, connect=REQUEST_SECONDS)
        await self._pace.turn()
        accept = _HEADS.format("") if resource.heads else _ALL
        response = await self._send("GET", resource.path(), query, timeout=timeout, accept=accept)
        try:
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _error_of(event["object"], 500)
                yield event["type"], event["object"]
        except (*_BROKEN, RuntimeError) as error:  # aiohttp's word for reading on after the connection went
            raise ApiError(0, "WatchBroken", f"{resource.plural}: {error!r}") from error
        finally:
            response.close()

    async def _write(
        self,
        method: str,
        resource: Resource,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        return await self._call(method, path, query, body, content_type, election=resource is LEASES)

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
        *,
        accept: str = _ALL,
        most: int | None = None,
        election: bool = False,
    ) -> Json:
        """One call, repeated where that may help; paced, and a write made only while leading, but for the election."""
        last = time.monotonic() + RETRY_SECONDS
        for pause in (*RETRY_PAUSES, math.inf):
            try:
                async with contextlib.nullcontext() if election else self._pace:
                    # Asked last: a process may be stopped at any point.
                    if not (election or method == "GET" or self.may_write()):
                        why = "the Lease was not renewed in time; nothing is written"
                        raise ApiError(0, "NotLeading", f"{method} {path}: {why}")
                    return await self._once(method, path, query, body, content_type, accept=accept, most=most)
            except ApiError as error:
                wait = max(pause, error.retry_after)
                hopeless = not _may_pass(method, error) or (election and error.reason == "Conflict")
                if hopeless or time.monotonic() + wait > last:
                    raise
                log.info("%s %s: %s; again in %.1f s", method, path, error, wait)
            await asyncio.sleep(wait)
        raise AssertionError("the last pause ends every call")

    async def _once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
        *,
        accept: str = _ALL,
        most: int | None = None,
    ) -> Json:
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        try:
            response = await self._send(method, path, query or {}, body, content_type, timeout, accept)
            answer: Json = json.loads(await (response.read() if most is None else _read_small(response, most)))
        except _BROKEN as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {error!r}") from error
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None = None,
        content_type: str = "application/json",
        timeout: aiohttp.ClientTimeout | None = None,
        accept: str = _ALL,
    ) -> aiohttp.ClientResponse:
        request = await self._api.param_serialize(
            method,
            path,
            query_params=[(key, value) for key, value in query.items() if value],
            header_params={"Accept": accept, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = await self._api.call_api(*request, _request_timeout=timeout)
            response: aiohttp.ClientResponse = answer.response
            if response.status >= 400:
                raise await _refusal(response)
        except _BROKEN as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {error!r}") from error
        return response


def _may_pass(method: str, error: ApiError) -> bool:
    """Whether the same call may be answered otherwise in a moment. Repeating one that was carried out is no harm.

    A PUT that is in conflict has to be read anew first, a DELETE is for another object then.
    """
    if error.reason == "Conflict":
        return method in ("POST", "PATCH")
    return error.status in _PASSING and error.reason != "NotLeading"


async def _read_small(response: aiohttp.ClientResponse, most: int) -> bytes:
    text = b""
    while part := await response.content.read(most + 1 - len(text)):
        text += part
        if len(text) > most:
            response.close()
            raise ApiError(413, "TooLarge", f"{response.url.path}: larger than {most} bytes")
    return text


async def _refusal(response: aiohttp.ClientResponse) -> ApiError:
    text = (await response.read()).decode(errors="replace")
    try:
        status: Any = json.loads(text)
    except ValueError:
        status = None
    if not isinstance(status, dict):  # something between us and the API server answered
        status = {"message": text[:500], "reason": response.reason}
    return _error_of(status, response.status, response.headers.get("Retry-After", ""))


def _error_of(status: Any, code: int, retry_after: str = "") -> ApiError:
    wait = min(float(retry_after), LONGEST_RETRY_AFTER) if retry_after.isdecimal() else 0.0
    return ApiError(status.get("code", code), status.get("reason", "Unknown"), status.get("message", ""), wait)
