"""Processes that are started once, kept by their identity, and ended by it.

A process id alone may be recycled, so an identity is (id, start time, boot). Every process also carries the variable
DEVCLUSTER_STATE, which its children inherit: so `down` finds even one whose record was never written.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from devcluster.errors import DevclusterError

MARKER = "DEVCLUSTER_STATE"


@dataclass(frozen=True)
class Identity:
    """One process, for as long as this machine is up: `started` in clock ticks since boot."""

    pid: int
    started: int
    boot: str

    @staticmethod
    def of(pid: int) -> Identity | None:
        """The identity of a process that runs now; None for one that is gone or a zombie."""
        started = _start_time(pid)
        return None if started is None else Identity(pid, started, boot_id())

    @property
    def alive(self) -> bool:
        """Whether exactly this process still runs."""
        reap(self.pid)
        return self.boot == boot_id() and _start_time(self.pid) == self.started

    def send(self, number: int) -> None:
        """Send a signal, if exactly this process still runs."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


@dataclass(frozen=True)
class Component:
    """A daemon: its name, its command line and its whole environment. Its output goes to `log`."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path


@dataclass(frozen=True)
class Running:
    """A started component."""

    component: Component
    identity: Identity


def spawn(component: Component) -> Identity:
    """Start a component in a session of its own (so that Ctrl-C does not reach it)."""
    component.log.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(component.log), flags, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    env = dict(component.env)
    program = shutil.which(component.argv[0], path=env.get("PATH"))
    if program is None:
        raise DevclusterError(f"{component.argv[0]} is not on PATH ({env.get('PATH')})")
    pid = os.posix_spawn(program, component.argv, env, file_actions=actions, setsid=True)
    identity = Identity.of(pid)
    return identity or Identity(pid, -1, boot_id())  # -1: it ended at once, and is nobody's


def save(folder: Path, running: Running) -> None:
    """Write the record of a started component, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    data = asdict(running)
    data["component"]["log"] = str(running.component.log)
    partial = folder / f".{running.component.name}"
    partial.write_text(json.dumps(data))
    partial.chmod(0o600)
    partial.rename(folder / f"{running.component.name}.json")


def load(folder: Path) -> dict[str, Running]:
    """All records of a folder, by name."""
    records = {}
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text())
        part = data["component"]
        component = Component(part["name"], tuple(part["argv"]), part["env"], Path(part["log"]))
        records[component.name] = Running(component, Identity(**data["identity"]))
    return records


def marked(state: Path) -> list[Identity]:
    """The processes that carry this state folder's marker in their environment, this process excepted."""
    wanted = f"{MARKER}={state}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(Identity.of(int(entry.name)))
    return [identity for identity in found if identity is not None]


def kill_all(identities: Iterable[Identity], timeout: float = 10) -> list[Identity]:
    """SIGKILL, then wait; returns those that are still there after `timeout` seconds."""
    left = list(identities)
    for identity in left:
        identity.send(signal.SIGKILL)
    deadline = time.monotonic() + timeout
    while (left := [identity for identity in left if identity.alive]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, indented; a note where there is none."""
    if not log.exists():
        return f"    ({log} does not exist)"
    with log.open("rb") as handle:
        handle.seek(max(0, log.stat().st_size - 16384))
        text = handle.read().decode(errors="replace").splitlines()[-lines:]
    return "\n".join(f"    {line}" for line in text) or f"    ({log} is empty)"


def reap(pid: int) -> None:
    """Collect a child of this process that has ended; nothing for anybody else's."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def boot_id() -> str:
    """The kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start_time(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    letter, threads, started = parse_stat(stat)
    ended = letter in "ZX" and threads <= 1  # a dead main thread may leave others, which still hold ports and files
    return None if ended else started


def parse_stat(stat: str) -> tuple[str, int, int]:
    """State letter, number of threads (field 20) and start time (field 22) of a /proc/PID/stat line.

    The second field, the program's name in parentheses, may hold any characters.
    """
    fields: Sequence[str] = stat[stat.rindex(")") + 2 :].split()
    return fields[0], int(fields[17]), int(fields[19])
