"""Heavy things that are made once: each lives in `<cache>/<name>-<key>`; the key hashes all that it is made from.

A thing is made under a temporary name and renamed, so an interrupted build never looks finished.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from devcluster.errors import DevclusterError


def cache_root() -> Path:
    """The folder for heavy caches: $SPECSERVE_CACHE, else ~/.cache/specserve."""
    return Path(os.environ.get("SPECSERVE_CACHE") or "~/.cache/specserve").expanduser()


def key_of(*parts: str | bytes) -> str:
    """12 hex digits that change when any part changes (parts are length-prefixed, so they cannot run together)."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:12]


class Progress:
    """Prints `[ 12.3 s] text` lines, counted from its creation."""

    def __init__(self, quiet: bool = False) -> None:
        self._start = time.monotonic()
        self._quiet = quiet

    def __call__(self, text: str) -> None:
        if not self._quiet:
            print(f"[{time.monotonic() - self._start:6.1f} s] {text}", flush=True)

    @property
    def seconds(self) -> float:
        """Seconds since creation."""
        return time.monotonic() - self._start


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file `path` (made when absent); the kernel drops it with the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def made_once(name: str, key: str, make: Callable[[Path], None], progress: Progress) -> Path:
    """The folder `<cache>/<name>-<key>`; when absent, `make(folder)` fills a temporary one, which is then renamed.

    Two processes that ask at once share one build. Leftovers of an interrupted build are removed first.
    """
    final = cache_root() / f"{name}-{key}"
    if final.is_dir():
        return final
    with file_lock(cache_root() / "locks" / f"{final.name}.lock"):
        if final.is_dir():
            return final
        partial = cache_root() / f".partial-{final.name}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        progress(f"making {final}")
        try:
            make(partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        partial.rename(final)
        progress(f"made {final.name}")
    return final


def require_free_space(folder: Path, gigabytes: float) -> None:
    """Raise unless `folder`'s file system has `gigabytes` free."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free / 1e9
    if free < gigabytes:
        raise DevclusterError(
            f"{folder} has {free:.1f} GB free, but {gigabytes:.0f} GB are needed; free some, or set SPECSERVE_CACHE"
        )
