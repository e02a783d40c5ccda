"""Failures that a person can act on: their reasons, and what the process that met one exits with."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specserve_profiler.contract.profile import Failure

DONE, OWN_FAULT, USAGE, WORKLOAD, BOOT, MEASURING, TIME, DISK, SIGINT, SIGTERM = 0, 1, 2, 3, 4, 5, 6, 7, 130, 143

EXIT_CODES: dict[str, int] = {
    "ProfilerFailed": OWN_FAULT,
    "RequestInvalid": USAGE,
    "ArgumentsInvalid": USAGE,
    "SpeculationUnsupported": USAGE,
    "WorkloadInvalid": WORKLOAD,
    "PromptsInvalid": WORKLOAD,
    "DatasetUnreachable": WORKLOAD,
    "OutOfMemory": BOOT,
    "PortInUse": BOOT,
    "DrafterMismatch": BOOT,
    "ModelUnreadable": BOOT,
    "EngineUnsupported": BOOT,
    "EngineFailed": BOOT,
    "EngineCrashed": MEASURING,
    "EngineHung": MEASURING,
    "NothingToMeasure": MEASURING,
    "TimedOut": TIME,
    "DiskFull": DISK,
    "OutputUnwritable": DISK,
    "Interrupted": SIGTERM,
}
"""Reason of a failure -> exit code of the process.

0: a profile. 1: the profiler's own fault. 2: usage. 3: the workload. 4: the engine does not boot. 5: the engine fails
while it is measured. 6: the time. 7: disk or output. 143, or 130 where it was Ctrl-C: interrupted.
"""


class ProfilingError(Exception):
    """Ends a run. ``reason`` is one of ``EXIT_CODES``, the text says what happened and what to do next."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def failure(self) -> Failure:
        """The error as it leaves the pod."""
        from specserve_profiler.contract.profile import Failure  # whose models a `--help` does not wait for

        return Failure(reason=self.reason, message=str(self)[:1500])


def of_disk(error: OSError) -> ProfilingError | None:
    """DiskFull where that is what the system said, else None."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    where = f" ({error.filename})" if error.filename else ""
    return ProfilingError(
        "DiskFull", f"{error.strerror}{where}: free some, or give TMPDIR, HF_HOME or the output a larger disk"
    )


def unwritable(place: Path, error: OSError, way_out: str) -> ProfilingError:
    """A result that could not be written where it was asked for."""
    return ProfilingError("OutputUnwritable", f"{place}: {error.strerror}: {way_out}")


def exit_code(reason: str) -> int:
    """What the process exits with for a failure; ``OWN_FAULT`` for a reason that this version does not know."""
    return EXIT_CODES.get(reason, OWN_FAULT)
