"""Files of others, read no further than anything of ours could reach: some never end (``/dev/zero``, a pipe)."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import nullcontext
from pathlib import Path

LARGEST = 1 << 26
"""Bytes of a profile, a pod's whole log, a grid, or compressed records."""


def read_bounded(path: Path, most: int = LARGEST) -> bytes:
    """The content of a file, of standard input for ``-``. Raises OSError, for more than ``most`` bytes, too."""
    with nullcontext(sys.stdin.buffer) if str(path) == "-" else path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"{os.strerror(errno.EFBIG)}, more than {most >> 20} MiB", str(path))
    return content
