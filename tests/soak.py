"""Simulations and searches that say more the longer they run: briefly in ``make test``, whole in ``make soak``."""

import os
from typing import TypeVar

T = TypeVar("T")


def runs(brief: T, whole: T) -> T:
    """How many of them are made, or which. The figures of docs/method.md are of the whole."""
    return whole if os.environ.get("SPECSERVE_SOAK") else brief
