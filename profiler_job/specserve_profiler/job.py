"""A profiling Job's container: request from the environment, result through the termination message."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from specserve_profiler import termination
from specserve_profiler.console import say
from specserve_profiler.contract import Failure, Profile, ProfileRequest

REQUEST_VARIABLE = "SPECSERVE_REQUEST"
READY_PORT_VARIABLE = "SPECSERVE_READY_PORT"
TERMINATION_VARIABLE = "SPECSERVE_TERMINATION_LOG"
BEGIN, END = "-----BEGIN SPECSERVE PROFILE-----", "-----END SPECSERVE PROFILE-----"


def run_job(environment: Mapping[str, str] = os.environ) -> int:
    """Measures what ``SPECSERVE_REQUEST`` asks for. Exit code 0 with a profile, 1 with a failure.

    ``SPECSERVE_READY_PORT`` accepts connections once measuring has started. The result goes to the termination message
    (``SPECSERVE_TERMINATION_LOG``, by default where Kubernetes looks), a profile in full to stdout between two marks.
    """
    path = Path(environment.get(TERMINATION_VARIABLE, str(termination.DEFAULT_PATH)))
    result = _result(environment)
    if isinstance(result, Profile):
        sys.stdout.write(f"{BEGIN}\n{result.to_json()}\n{END}\n")
    else:
        say(f"no profile: {result.reason}: {result.message}")
    sys.stdout.flush()
    try:
        termination.write(result, path)
    except OSError as error:
        say(f"the result cannot be handed over: {path}: {error.strerror}; outside a pod set {TERMINATION_VARIABLE}")
        return 1
    return 0 if isinstance(result, Profile) else 1


def _result(environment: Mapping[str, str]) -> Profile | Failure:
    try:
        request = ProfileRequest.model_validate_json(environment.get(REQUEST_VARIABLE, ""))
    except ValidationError as error:
        return Failure(reason="RequestInvalid", message=f"{REQUEST_VARIABLE}: {error}"[:1500])
    try:
        from specserve_profiler.run import execute

        return execute(request, lambda: _open_ready_port(environment.get(READY_PORT_VARIABLE)))
    except Exception as error:
        import traceback

        traceback.print_exc()
        return Failure(
            reason="ProfilerFailed", message=f"the profiler itself failed, its log has the trace: {error!r}"[:1500]
        )


def _open_ready_port(port: str | None) -> None:
    """Lets a ``tcpSocket`` readiness probe succeed from now on."""
    if not port:
        return
    server = socket.create_server(("", int(port)), backlog=16)

    def accept() -> None:
        while True:
            server.accept()[0].close()

    threading.Thread(target=accept, daemon=True, name="ready").start()
