"""How many threads a training should have: a step waits for the slowest of them, so one on a busy core costs time."""

import psutil

LOOK_SECONDS = 0.5


def threads(cores: int, busy: float) -> int:
    """As many as there are ``cores`` that nothing else uses; ``busy`` is the share of all cores that is used."""
    return max(1, round(cores * (1 - busy)))


def idle() -> int:
    """For this machine as it is now."""
    return threads(psutil.cpu_count() or 1, psutil.cpu_percent(LOOK_SECONDS) / 100)
