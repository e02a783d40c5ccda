"""The operator's process: kopf runs it; a Lease keeps it single; the store wakes keys, the reconciler does the work."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import os
import sys
from typing import Any, cast
from urllib.parse import urlsplit

import kopf

from specserve_operator import __doc__ as about
from specserve_operator.api import names
from specserve_operator.api.settings import Settings
from specserve_operator.lease import lead
from specserve_operator.reconcile.reconciler import Reconciler
from specserve_operator.store.client import SERVINGS, ApiError, Client, NoCredentialsError
from specserve_operator.store.mirror import Store
from specserve_profiler.contract.package import build_zip

log = logging.getLogger("specserve")

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
CRD_SECONDS = 2.0
"""Pause between two looks for our kind."""


class Operator:
    """The process's parts, between kopf's start-up and its clean-up."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store = Store.empty()
        self._reconciler: Reconciler | None = None
        self._task: asyncio.Task[None] | None = None
        self.stop = asyncio.Event()
        self.failed = False

    def register(self, registry: kopf.OperatorRegistry) -> None:
        """Tell kopf what to call."""
        kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)(self._start)
        kopf.on.cleanup(registry=registry)(self._end)
        kopf.on.login(registry=registry)(_login)
        kopf.on.probe(id="behind", registry=registry, errors=kopf.ErrorsMode.PERMANENT)(self._probe)

    async def _start(self, settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.scanning.disabled = True  # it watches nothing for us, and needs no right to
        client = await Client.connect()
        await _kind_is_served(client)
        client.watch_seconds = self._settings.watch_seconds
        self._reconciler = Reconciler(client, self._store, self._settings, build_zip())
        self._task = asyncio.create_task(self._work(client, self._reconciler), name="specserve")

    async def _work(self, client: Client, reconciler: Reconciler) -> None:
        async def serve() -> None:
            log.info("holding the Lease as %s", self._settings.identity)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._store.run(client), name="store")
                group.create_task(reconciler.run(), name="reconciler")

        try:
            async with client:
                await lead(client, self._settings, serve)
            log.error("the Lease is lost; stopping, so that two never act at once")
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("the operator failed")
        self.failed = True
        self.stop.set()

    async def _probe(self, **_: Any) -> dict[str, float]:
        """What a liveness probe is answered: kinds whose watch is behind, with seconds.

        Raises:
            kopf.PermanentError: work has not gone on for long, though there is some. The probe fails then.
        """
        seconds = max(self._settings.wedged_seconds, 2 * self._settings.watch_seconds)
        wedged = self._store.wedged(seconds) or (self._reconciler.wedged(seconds) if self._reconciler else "")
        if wedged:
            raise kopf.PermanentError(wedged)
        return self._store.behind(2 * self._settings.watch_seconds)

    async def _end(self, **_: Any) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.stop.set()  # kopf's own task that waits for it would hold up the end


async def _kind_is_served(client: Client) -> None:
    """Wait for our CRD: work begins when every kind is listed."""
    while True:
        try:
            await client.list_page(SERVINGS, limit=1)
        except ApiError as error:
            log.warning("waiting for %s.%s: %s", names.PLURAL, names.GROUP, error)
            await asyncio.sleep(CRD_SECONDS)
        else:
            return


def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    # Not through a client library: kopf would load its synchronous half for this alone.
    found = kopf.login_with_service_account(**kwargs)
    if found is None:
        return kopf.login_with_kubeconfig(**kwargs)
    # By the address that the kubelet gives every pod; kopf's name for it needs a cluster DNS.
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    return dataclasses.replace(found, server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")


def _health_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        fits = parts.scheme == "http" and bool(parts.hostname) and bool(parts.port)
    except ValueError:
        fits = False
    if not fits:
        raise argparse.ArgumentTypeError(f"{text!r}: give a URL such as http://0.0.0.0:8080/healthz")
    return text


async def _check_credentials() -> None:
    async with await Client.connect():
        pass


def cli(argv: list[str] | None = None) -> int:
    """Run the operator until it is told to stop. Exit code 1 where it failed or lost its Lease, 2 for bad settings."""
    parser = argparse.ArgumentParser(
        prog="specserve-operator",
        description=about,
        epilog="Settings come from SPECSERVE_* environment variables; the Helm chart sets them. Credentials are the"
        " pod's service account, or the kubeconfig of KUBECONFIG.",
    )
    parser.add_argument(
        "--health",
        default=os.environ.get("SPECSERVE_HEALTH", "http://0.0.0.0:8080/healthz"),
        type=_health_url,
        metavar="URL",
        help="where to answer liveness probes (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    level = (os.environ.get("SPECSERVE_LOG_LEVEL") or "INFO").upper()
    if level not in LOG_LEVELS:
        parser.error(f"SPECSERVE_LOG_LEVEL={level!r}: give one of {', '.join(LOG_LEVELS)}")
    logging.basicConfig(
        level=level,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # At its end kopf lists every stream that it watched, in one line of up to hundreds of kB.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)  # the kubelet's probes
    try:
        settings = Settings.from_environment()
        asyncio.run(_check_credentials())  # kopf would bury what is wrong with them
    except (ValueError, NoCredentialsError) as error:
        parser.error(str(error))
    operator = Operator(settings)
    registry = kopf.OperatorRegistry()
    operator.register(registry)
    kopf.run(
        registry=registry,
        clusterwide=True,
        standalone=True,
        identity=cast(Any, settings.identity),  # its own guess fails for a user id without a name
        liveness_endpoint=options.health,
        stop_flag=operator.stop,
    )
    return 1 if operator.failed else 0


if __name__ == "__main__":
    sys.exit(cli())
