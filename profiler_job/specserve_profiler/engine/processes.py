"""All that an engine started, by what Linux knows of it: its processes and its shared memory.

An engine that is killed leaves its shared memory behind: with its resource tracker gone nobody unlinks it, and it takes
memory until the machine restarts. Only what belongs to one engine is ever touched here.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - POSIX shared memory and semaphores, where Linux has them
_PROC = Path("/proc")
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class SharedFile:
    """A file of shared memory, told apart from a later one of the same name."""

    path: str
    inode: int


def members(leader: int, mark: bytes) -> set[int]:
    """Process ids of the engine whose first process, a leader of its session, is ``leader``; not zombies.

    Its session and process group, all their descendants, and whatever has ``mark`` (``NAME=value``) in its environment,
    as children have that went into sessions of their own.
    """
    living = psutil.process_iter(["ppid", "status"])
    parents = {entry.pid: entry.info["ppid"] for entry in living if entry.info["status"] != psutil.STATUS_ZOMBIE}
    found = {pid for pid in parents if leader in _leaders(pid)}
    found |= {pid for pid in parents.keys() - found if mark in _environment(pid)}
    while children := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= children
    return found - {os.getpid()}


def _leaders(pid: int) -> tuple[int, ...]:
    """Itself, and those of its process group and session, which psutil does not know."""
    with suppress(ProcessLookupError):
        return pid, os.getpgid(pid), os.getsid(pid)
    return ()


def _environment(pid: int) -> list[bytes]:
    """Not psutil's: that ends at the first empty entry, and a process that has overwritten its title leaves such."""
    with suppress(OSError):
        return (_PROC / f"{pid}/environ").read_bytes().split(b"\0")
    return []


def shared_memory(pids: Iterable[int]) -> set[SharedFile]:
    """The files of shared memory that these processes have mapped or open."""
    found = set()
    for path in {path for pid in pids for path in _shared_paths(pid)}:
        with suppress(OSError):
            found.add(SharedFile(path, Path(path).stat().st_ino))
    return found


def _shared_paths(pid: int) -> Iterator[str]:
    """What is mapped not by psutil: that drops the word (deleted), and takes twenty times as long."""
    with suppress(OSError):
        for line in (_PROC / f"{pid}/maps").read_text(errors="replace").splitlines():
            _, separator, rest = line.partition(SHARED_MEMORY)
            if separator and not rest.endswith(" (deleted)"):
                yield SHARED_MEMORY + rest
    with suppress(psutil.Error):
        yield from (file.path for file in psutil.Process(pid).open_files() if file.path.startswith(SHARED_MEMORY))


def kill(members: Callable[[], set[int]], seconds: float) -> set[int]:
    """Kills all members until there are none or the time is over; those that are left then are the kernel's."""
    deadline = time.monotonic() + seconds
    while (left := members()) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    return left


def unlink(files: Iterable[SharedFile]) -> list[str]:
    """Takes shared memory away that is still there and that no process uses any more; the paths, sorted."""
    there = [file for file in files if _is_there(file)]
    used = {path for pid in psutil.pids() for path in _shared_paths(pid)} if there else set()
    gone = sorted(file.path for file in there if file.path not in used)
    for path in gone:
        with suppress(OSError):
            Path(path).unlink()
    return gone


def _is_there(file: SharedFile) -> bool:
    with suppress(OSError):
        return Path(file.path).stat().st_ino == file.inode
    return False
