"""Fixed paths on the node for what a pod mounts, so that examples name no machine's own paths."""

from __future__ import annotations

import shutil
from pathlib import Path

from devcluster.errors import DevclusterError

FOLDER = Path("/var/lib/specserve-demo")


def make_folder() -> None:
    """Make the folder, empty."""
    FOLDER.mkdir(parents=True, exist_ok=True)


def link(name: str, target: Path) -> Path:
    """Make (or turn) the link `FOLDER/name` to an existing file or folder; returns the link's path."""
    if "/" in name or name in {"", ".", ".."}:
        raise DevclusterError(f"link name {name!r} must be one plain name, such as `models`")
    target = target.expanduser().resolve()
    if not target.exists():
        raise DevclusterError(f"{target} does not exist; make it first, then link it")
    make_folder()
    partial = FOLDER / f".{name}"
    partial.unlink(missing_ok=True)
    partial.symlink_to(target)
    partial.rename(FOLDER / name)
    return FOLDER / name


def remove_all() -> None:
    """Remove the folder with its links; what they point to stays."""
    shutil.rmtree(FOLDER, ignore_errors=True)
