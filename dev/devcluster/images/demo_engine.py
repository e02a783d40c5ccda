"""An almost empty root file system into which pods of the demo mount the engine environment."""

from __future__ import annotations

from pathlib import Path

from devcluster.cache import Progress, key_of, made_once
from devcluster.image import ImageConfig, LayerWriter, write_image

DEMO_ENGINE_IMAGE = "specserve.local/demo-engine:dev"
_MOUNT_POINTS = ("/usr", "/lib", "/lib64", "/opt/python", "/opt/venv", "/models", "/dev/shm", "/proc", "/sys")
_ACCOUNTS = b"root:x:0:0:root:/tmp:/bin/sh\n"


def ensure_demo_engine_image(progress: Progress) -> Path:
    """The archive, written now where the cache lacks it."""

    def make(folder: Path) -> None:
        layer = folder / "layer.tar"
        with LayerWriter(layer) as writer:
            for mount_point in _MOUNT_POINTS:
                writer.folder(mount_point)
            writer.folder("/tmp", 0o1777)
            writer.symlink("/bin", "usr/bin")  # the machine's, once /usr is mounted
            writer.file("/etc/passwd", _ACCOUNTS)
            writer.file("/etc/group", b"root:x:0:\n")
        config = ImageConfig(env={"PATH": "/opt/python/bin:/usr/bin:/bin"})
        write_image(folder / "demo-engine.tar", DEMO_ENGINE_IMAGE, [layer], config)
        layer.unlink()

    return made_once("image-demo-engine", key_of(Path(__file__).read_bytes()), make, progress) / "demo-engine.tar"
