"""The profiler as one zip file, for ``PYTHONPATH`` inside an engine's image.

The operator publishes it in a ConfigMap: no image to pull, no architecture. It is the package itself, sources only.
"""

from __future__ import annotations

import io
import zipfile
from importlib import resources

PACKAGE = "specserve_profiler"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build_zip() -> bytes:
    """A zip of this package, the same bytes for the same sources. Works from a checkout and from an installed wheel."""
    sources = sorted(
        (entry for entry in resources.files(PACKAGE).iterdir() if entry.name.endswith(".py")),
        key=lambda entry: entry.name,
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for source in sources:
            _add(archive, source.name, source.read_bytes())
    return buffer.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(f"{PACKAGE}/{name}", _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content, compresslevel=9)
