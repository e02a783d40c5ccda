"""pause, which every pod needs, and busybox, for tests and a look around."""

from __future__ import annotations

import subprocess
from pathlib import Path

from devcluster.binaries import Binaries
from devcluster.cache import Progress, key_of, made_once
from devcluster.image import ImageConfig, LayerWriter, write_image

PAUSE_IMAGE = "specserve.local/pause:dev"
BUSYBOX_IMAGE = "specserve.local/busybox:dev"
_ACCOUNTS = b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"


def ensure_basic_images(binaries: Binaries, progress: Progress) -> list[Path]:
    """The two archives, written now where the cache lacks them."""
    sources = (str(binaries.path("pause").parent.name), str(binaries.busybox))
    key = key_of(*sources, Path(__file__).read_bytes())

    def make(folder: Path) -> None:
        layer = folder / "layer.tar"
        with LayerWriter(layer) as writer:
            writer.copy(binaries.path("pause"), "/pause")
        write_image(folder / "pause.tar", PAUSE_IMAGE, [layer], ImageConfig(entrypoint=["/pause"]))
        _busybox_layer(binaries.busybox, layer)
        config = ImageConfig(command=["/bin/sh"], env={"PATH": "/bin"})
        write_image(folder / "busybox.tar", BUSYBOX_IMAGE, [layer], config)
        layer.unlink()

    folder = made_once("image-basic", key, make, progress)
    return [folder / "pause.tar", folder / "busybox.tar"]


def _busybox_layer(busybox: Path, layer: Path) -> None:
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    with LayerWriter(layer) as writer:
        writer.copy(busybox, "/bin/busybox")
        for applet in sorted(set(applets) - {"busybox"}):
            writer.symlink(f"/bin/{applet}", "busybox")
        writer.file("/etc/passwd", _ACCOUNTS)
        writer.folder("/tmp", 0o1777)
