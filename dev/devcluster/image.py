"""Container images without a container engine: docker-archive tars, the same bytes for the same content.

Files get a fixed time, root as owner and sorted names, so an image's digest changes with its content only.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_BLOCK = 1 << 20


@dataclass(frozen=True)
class ImageConfig:
    """What a container of the image runs by default."""

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    user: str = ""
    workdir: str = "/"


class LayerWriter:
    """Writes one layer; paths are absolute or relative to the image's root."""

    def __init__(self, path: Path) -> None:
        self._tar = tarfile.open(path, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed by __exit__
        self._made: set[str] = set()

    def __enter__(self) -> LayerWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()

    def folder(self, path: str, mode: int = 0o755) -> None:
        """A folder and, before it, those above it that were not written yet."""
        name = path.strip("/")
        parent = name.rpartition("/")[0]
        if parent and parent not in self._made:
            self.folder(parent)
        if name and name not in self._made:
            self._made.add(name)
            self._tar.addfile(_entry(name, mode, tarfile.DIRTYPE))

    def file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """A regular file from memory."""
        entry = self._below_parent(path, mode, tarfile.REGTYPE)
        entry.size = len(data)
        self._tar.addfile(entry, io.BytesIO(data))

    def symlink(self, path: str, target: str) -> None:
        """A symbolic link."""
        entry = self._below_parent(path, 0o777, tarfile.SYMTYPE)
        entry.linkname = target
        self._tar.addfile(entry)

    def copy(self, source: Path, path: str) -> None:
        """A file, link or whole folder of this machine, without its owner and times."""
        if source.is_symlink():
            self.symlink(path, str(source.readlink()))
        elif source.is_dir():
            self.folder(path)
            for child in sorted(source.iterdir()):
                self.copy(child, f"{path.rstrip('/')}/{child.name}")
        else:
            entry = self._below_parent(path, 0o755 if source.stat().st_mode & 0o111 else 0o644, tarfile.REGTYPE)
            entry.size = source.stat().st_size
            with source.open("rb") as handle:
                self._tar.addfile(entry, handle)

    def _below_parent(self, path: str, mode: int, kind: bytes) -> tarfile.TarInfo:
        name = path.strip("/")
        self.folder(name.rpartition("/")[0])
        return _entry(name, mode, kind)


def write_image(archive: Path, tag: str, layers: Sequence[Path], config: ImageConfig) -> str:
    """Write the docker-archive tar `archive` from layer tars, bottom first; returns the image's id (`sha256:...`).

    The archive is written under a temporary name and renamed.
    """
    digests = [_digest(layer) for layer in layers]
    description = json.dumps(_description(config, digests), sort_keys=True).encode()
    identifier = hashlib.sha256(description).hexdigest()
    names = [f"{digest}.tar" for digest in digests]
    manifest = [{"Config": f"{identifier}.json", "RepoTags": [tag], "Layers": names}]
    partial = archive.with_name(f".{archive.name}.partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, f"{identifier}.json", description)
        for name, layer in dict(zip(names, layers, strict=True)).items():
            entry = _entry(name, 0o644, tarfile.REGTYPE)
            entry.size = layer.stat().st_size
            with layer.open("rb") as handle:
                tar.addfile(entry, handle)
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    partial.rename(archive)
    return f"sha256:{identifier}"


def _description(config: ImageConfig, digests: Sequence[str]) -> dict[str, object]:
    return {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {
            "Entrypoint": list(config.entrypoint) or None,
            "Cmd": list(config.command) or None,
            "Env": [f"{name}={value}" for name, value in (config.env or {}).items()],
            "User": config.user,
            "WorkingDir": config.workdir,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created_by": "devcluster"} for _ in digests],
    }


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _entry(name: str, mode: int, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.type, entry.mtime = mode, kind, 0
    return entry


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = _entry(name, 0o644, tarfile.REGTYPE)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))
