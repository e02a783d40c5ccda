"""The command line as a process of its own, as a shell runs it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from devcluster.pace import patience

ROOT = Path(__file__).parents[4]


def shell(line: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """A line of a shell, in which ``profile`` is the command."""
    command = f'profile() {{ {shlex.quote(sys.executable)} -m specserve_profiler "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PYTHONPATH": str(ROOT / "profiler_job"), "COLUMNS": "110", **changes},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
