"""Other load on the machine while something is measured: one process that keeps one core busy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_BUSY = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def busy_core(core: int) -> Iterator[int]:
    """Keeps ``core`` busy while the block runs; gives the process id. It ends with its parent, however that ends."""
    process = subprocess.Popen([sys.executable, "-c", _BUSY, str(core)])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
