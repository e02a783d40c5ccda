"""The files by which the profiler and the probe inside the engine talk (``contract.steps`` has what they say).

A directory of one boot: the plan and the limits are replaced whole, the step log only grows, and the cell that is being
measured is overwritten in place.
"""

from __future__ import annotations

import os
from pathlib import Path

from specserve_profiler.contract.steps import Finished, Limits, Plan, Step

PROBE_DIR_VARIABLE = "SPECSERVE_PROBE_DIR"
PLAN_FILE, STEPS_FILE, LIMITS_FILE, CELL_FILE = "plan.json", "steps.log", "limits.json", "cell"


def write_plan(plan: Plan, directory: Path) -> None:
    """Puts the plan in force: from the next step on the probe follows it. Atomic."""
    _replace(directory / PLAN_FILE, plan.to_json())


def withdraw_plan(directory: Path) -> None:
    """From the next step on the engine's own table is in force."""
    (directory / PLAN_FILE).unlink(missing_ok=True)


def write_limits(limits: Limits, directory: Path) -> None:
    """Tells the profiler what the engine can hold. Atomic."""
    _replace(directory / LIMITS_FILE, limits.to_json())


def read_limits(directory: Path) -> Limits:
    """What the probe wrote when the engine came up. Raises FileNotFoundError where no probe runs in the engine."""
    return Limits.from_json((directory / LIMITS_FILE).read_text(encoding="utf-8"))


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


class StepLog:
    """Reads what the probe appends. Each call of ``new`` gives what came since the last."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / STEPS_FILE
        self._path.touch()
        self._offset = 0
        self._rest = b""
        self.pace = 0.0
        """Seconds between the last two steps that were read together."""

    def new(self) -> tuple[list[Step], list[Finished]]:
        """Steps and finished requests, each in order of time."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        self._offset += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        steps, finished = [], []
        for line in lines:
            fields = line.decode().split()
            if fields[0] == "S":
                steps.append(Step(*map(int, fields[1:])))
            else:
                finished.append(Finished(int(fields[1]), fields[2].strip("-"), fields[3]))
        if len(steps) > 1:
            self.pace = (steps[-1].time_ns - steps[-2].time_ns) / 1e9
        return steps, finished


def probe_directory() -> Path:
    """Where the probe of this process writes. Raises RuntimeError where the engine was not started by the profiler."""
    directory = os.environ.get(PROBE_DIR_VARIABLE)
    if not directory:
        raise RuntimeError(f"{PROBE_DIR_VARIABLE} is not set: this scheduler works under the specserve profiler only")
    return Path(directory)
