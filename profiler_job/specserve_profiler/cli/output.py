"""Results to files: whole or not at all, and never lost."""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specserve_profiler.cli.faults import FaultError
from specserve_profiler.contract.plain import plain
from specserve_profiler.contract.reasons import exit_code
from specserve_profiler.session.console import let_go

if TYPE_CHECKING:  # a `--help` does not wait for the models
    from specserve_profiler.contract.profile import PartialProfile, Profile


def check_all_writable(files: Mapping[str, Path | None]) -> None:
    """The same for the files of several flags, each of which must be another one."""
    seen: dict[Path, str] = {}
    for flag, path in files.items():
        check_writable(path, flag)
        if path is not None and (path.is_file() or not path.exists()):
            other = seen.setdefault(path.resolve(), flag)
            if other != flag:
                raise FaultError(f"{flag}: give another file than {other}")


_ROOM = 1 << 20
"""Bytes; the largest profile and report take less."""


def check_writable(path: Path | None, flag: str = "--output") -> None:
    """Raises FaultError where a result could not be written: before an hour of measuring, not after it."""
    if path is None:
        return
    folder = path.resolve().parent
    device = path.exists() and not path.is_file()
    if path.is_dir() or not folder.is_dir() or not os.access(path if device else folder, os.W_OK):
        raise FaultError(
            f"{flag}: {path} cannot be written: give a file in a folder that is there and can be written to"
        )
    if not device and shutil.disk_usage(folder).free < _ROOM:
        raise FaultError(f"{flag}: {path} cannot be written: its disk is full", exit_code("DiskFull"))


def write(path: Path, content: str | bytes) -> None:
    """Writes a file as a whole: who reads it meanwhile sees the old one or the new. Raises OSError.

    What is no regular file (``/dev/stdout``, a pipe) is written to as it is.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        with path.open("wb", buffering=0) as device:
            device.write(data)
        return
    target = path.resolve()
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".new", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def place_for(path: Path, result: Profile | PartialProfile) -> Path:
    """Where a result goes that was asked for at ``path``: a partial profile never replaces anything but its like."""
    from specserve_profiler.contract.profile import PartialProfile, Profile

    if isinstance(result, Profile) or not path.exists() or not path.is_file():
        return path
    try:
        PartialProfile.model_validate_json(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return path.with_name(path.name + ".partial")
    return path


def put_json(value: Any) -> None:
    """One line of JSON on stdout, where ``--json`` was asked for; what is no finite number there is null."""
    from specserve_profiler.contract.model import canonical_json

    put(canonical_json(_finite(value)))


def put(text: str) -> None:
    """Text on stdout, of which nothing moves a cursor. A reader that went away (``| head``) ends it quietly.

    Raises FaultError (exit code 7) where stdout cannot be written.
    """
    try:
        sys.stdout.write(_ended(text))
        sys.stdout.flush()
    except OSError as error:
        fault = stdout_failed(error)
        if fault is not None:
            raise fault from error


def put_lines(lines: Iterable[str]) -> None:
    """Sentences on stdout, each on a line of its own, whatever the names in it hold."""
    put("\n".join(map(plain, lines)))


def tell(*lines: str) -> None:
    """Words for a person beside a result: on stderr, or nowhere where that cannot be written."""
    try:
        sys.stderr.write("".join(f"{plain(line)}\n" for line in lines))
        sys.stderr.flush()
    except OSError:
        let_go(sys.stderr)


def stdout_failed(error: OSError) -> FaultError | None:
    """What to say of it; None for a reader that went away, who has seen enough."""
    let_go(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return None
    why = f"OutputUnwritable: standard output cannot be written: {error.strerror}"
    return FaultError(why, exit_code("OutputUnwritable"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _ended(text: str) -> str:
    return plain(text, "\n").removesuffix("\n") + "\n"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
