"""The pair, built where it is absent, from a Python that has no torch itself."""

import os
import subprocess
from collections import deque
from collections.abc import Callable
from pathlib import Path

from demopair.cache import Pair, built_pair, cache_dir

_LINES_OF_AN_ERROR = 20


def ensure_pair(python: Path, say: Callable[[str], None]) -> Pair:
    """The pair. Where absent it is built with `python`, which must have torch and transformers; `say` is told progress.

    Raises RuntimeError with the last lines of the build if that fails.
    """
    if not cache_dir().exists():
        _build(python, say)
    return built_pair()


def _build(python: Path, say: Callable[[str], None]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [str(python), "-m", "demopair", "build"]
    last: deque[str] = deque(maxlen=_LINES_OF_AN_ERROR)
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line.rstrip())
            say(line.rstrip())
    if process.returncode:
        raise RuntimeError(f"the demo pair was not built by {python}:\n" + "\n".join(last))
