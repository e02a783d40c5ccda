"""A profiling Job's container: request from the environment, result through the termination message."""

from __future__ import annotations

import os
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from specserve_profiler.contract import message
from specserve_profiler.contract.plain import plain
from specserve_profiler.contract.profile import Failure, PartialProfile, Profile
from specserve_profiler.contract.reasons import DONE, ProfilingError, exit_code, of_disk, unwritable
from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.contract.variables import VALUE_PREFIX, expand
from specserve_profiler.session.console import let_go, say

if TYPE_CHECKING:
    from specserve_profiler.session.run import Outcome

REQUEST_VARIABLE = "SPECSERVE_REQUEST"
READY_PORT_VARIABLE = "SPECSERVE_READY_PORT"
TERMINATION_VARIABLE = "SPECSERVE_TERMINATION_LOG"
BEGIN, END = "-----BEGIN SPECSERVE PROFILE-----", "-----END SPECSERVE PROFILE-----"
BEGIN_PARTIAL, END_PARTIAL = "-----BEGIN SPECSERVE PARTIAL PROFILE-----", "-----END SPECSERVE PARTIAL PROFILE-----"


def run_job(environment: Mapping[str, str] = os.environ) -> int:
    """Measures what ``SPECSERVE_REQUEST`` asks for. Returns the exit code (``errors.EXIT_CODES``), 0 with a profile.

    ``SPECSERVE_READY_PORT`` accepts connections once measuring has started. The result goes to the termination message
    (``SPECSERVE_TERMINATION_LOG``, by default where Kubernetes looks), in full to stdout between two marks: a profile,
    or what a run measured that ended before it had one.
    """
    try:
        request = ProfileRequest.model_validate_json(environment.get(REQUEST_VARIABLE, ""))
    except ValidationError as error:
        return _give_up(Failure(reason="RequestInvalid", message=f"{REQUEST_VARIABLE}: {_faults(error)}"), environment)
    request = _expanded(request, environment)
    try:
        from specserve_profiler.session.run import execute

        outcome = execute(request, lambda: _open_ready_port(environment.get(READY_PORT_VARIABLE)))
    except Exception as error:
        return _give_up(_own_fault(error), environment)
    return _hand_over(outcome, environment)


def _expanded(request: ProfileRequest, environment: Mapping[str, str]) -> ProfileRequest:
    """The request with what the kubelet makes of the same command line where the engine serves."""
    given = {name.removeprefix(VALUE_PREFIX): value for name, value in environment.items() if VALUE_PREFIX in name}
    command, args = ([expand(text, given) for text in line] for line in (request.engine.command, request.engine.args))
    engine = request.engine.model_copy(update={"command": tuple(command), "args": tuple(args)})
    revision = None if request.revision is None else expand(request.revision, given)
    changed = {"model": expand(request.model, given), "revision": revision, "engine": engine}
    return request.model_copy(update=changed)


def _hand_over(outcome: Outcome, environment: Mapping[str, str]) -> int:
    if outcome.profile is not None:
        _print(BEGIN, outcome.profile, END)
        fault = _unwritten(outcome.profile, environment)
        return DONE if fault is None else exit_code(fault.reason)
    if outcome.partial is not None:
        _print(BEGIN_PARTIAL, outcome.partial, END_PARTIAL)
    assert outcome.failure is not None  # noqa: S101 - an outcome is a profile or a failure
    code = _give_up(outcome.failure, environment)
    return 128 + outcome.signal if outcome.failure.reason == "Interrupted" and outcome.signal else code


def _print(begin: str, result: Profile | PartialProfile, end: str) -> None:
    """To the log; where that cannot be written, the termination message is what is left."""
    try:
        sys.stdout.write(f"{begin}\n{plain(result.to_json())}\n{end}\n")
        sys.stdout.flush()
    except OSError:
        let_go(sys.stdout)


def _give_up(failure: Failure, environment: Mapping[str, str]) -> int:
    say(f"no profile: {failure.reason}: {failure.message}")
    _unwritten(failure, environment)
    return exit_code(failure.reason)


def _unwritten(result: Profile | Failure, environment: Mapping[str, str]) -> ProfilingError | None:
    """Writes the termination message. What kept it from that, or None; a result that does not fit leaves the reason."""
    path = Path(environment.get(TERMINATION_VARIABLE, str(message.DEFAULT_PATH)))
    try:
        try:
            message.write(result, path)
        except ValueError as error:
            fault = ProfilingError("OutputUnwritable", f"{error}. All of it is in the log of this pod."[:1500])
            message.write(fault.failure(), path)
        else:
            return None
    except OSError as error:
        fault = unwritable(path, error, f"outside a pod set {TERMINATION_VARIABLE}")
    say(f"{fault.reason}: {fault}")
    return fault


def _own_fault(error: Exception) -> Failure:
    full = of_disk(error) if isinstance(error, OSError) else None
    if full is not None:
        return full.failure()
    traceback.print_exc()
    return Failure(
        reason="ProfilerFailed", message=f"the profiler itself failed, its log has the trace: {error!r}"[:1500]
    )


def _faults(error: ValidationError) -> str:
    """What is wrong with which field."""
    faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".removeprefix(": ") for fault in error.errors()]
    return "; ".join(faults)[:1400]


def _open_ready_port(port: str | None) -> None:
    """Lets a ``tcpSocket`` readiness probe succeed from now on."""
    if not port:
        return
    server = socket.create_server(("", int(port)), backlog=16)

    def accept() -> None:
        while True:
            server.accept()[0].close()

    threading.Thread(target=accept, daemon=True, name="ready").start()
