"""``specserve-profile``: the profiler as a tool of its own, with or without Kubernetes.

Not part of what a Job runs: this package alone needs typer, rich, PyYAML and, for pictures, matplotlib.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from specserve_profiler.session.console import own_streams

_NEEDED = {"typer", "rich", "yaml"}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code (``specserve_profiler.contract.reasons.EXIT_CODES``)."""
    own_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        from specserve_profiler.cli.app import run_app
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        sys.stderr.write(f"specserve-profile needs {error.name}: pip install 'specserve[cli]'\n")
        return 2
    return run_app(words)
