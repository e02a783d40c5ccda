"""Other load for `bench repeat`."""

import os
import time
from pathlib import Path

from bench.load import busy_core
from devcluster.pace import patience


def test_one_core_is_busy_while_the_block_runs_and_no_longer() -> None:
    core = min(os.sched_getaffinity(0))
    with busy_core(core) as pid:
        deadline = time.monotonic() + patience(20)
        while (ticks := int(Path(f"/proc/{pid}/stat").read_text().split()[13])) < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert ticks >= 5  # of a hundredth of a second each
        assert os.sched_getaffinity(pid) == {core}

    assert not Path(f"/proc/{pid}").exists()
