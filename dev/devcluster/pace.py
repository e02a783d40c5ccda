"""How long to wait at most. What is waited for ends a wait; the limit only ends one that would never end.

So limits grow with how slow this machine is just now, told by a fixed piece of work on all of its cores at once.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time

_WORK = "import json\nfor _ in range(120): json.loads(json.dumps([{'a': i, 'b': str(i)} for i in range(2000)]))"
_QUIET_SECONDS = 0.6
"""What the work takes on two quiet cores."""
_HEADROOM = 3


@functools.cache
def slowness() -> float:
    """How many times longer than on a quiet machine work takes here; 1 at least. Measured once in a process."""
    began = time.monotonic()
    workers = [subprocess.Popen([sys.executable, "-c", _WORK]) for _ in range(min(os.cpu_count() or 1, 8))]
    for worker in workers:
        worker.wait()
    return max(1.0, (time.monotonic() - began) / _QUIET_SECONDS)


def patience(seconds: float) -> float:
    """A limit in seconds for what takes less than ``seconds`` on a quiet machine."""
    return _HEADROOM * seconds * slowness()
