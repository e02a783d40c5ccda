"""Simulations and searches that say more the longer they run: briefly in ``make test``, whole in ``make soak``."""

import os


def runs(brief: int, whole: int) -> int:
    """How many of them are made. The figures of docs/method.md are of the whole."""
    return whole if os.environ.get("SPECSERVE_SOAK") else brief
