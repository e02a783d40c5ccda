"""How much of a profile leaves the pod, and what is given up first where that is too much. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any


@dataclass(frozen=True)
class Precision:
    """How much of a profile is kept."""

    mean: int
    """Significant digits of means."""
    error: int
    """Significant digits of half-widths."""
    rates: int
    """Decimals of acceptance rates by position; 0: they are left out."""
    seconds: bool = True
    """Stage times."""
    live: bool = True
    """Loops of tables that were followed only to judge an edge of the served one."""
    contrasts: bool = True
    """How well ratios of AL are known; without, the errors of both stand in, which are wider."""
    words: int = 400
    """Characters of each warning, and of each reason but that of the verdict."""
    warnings: bool = True
    blocks: int | None = None
    """Significant digits of the numbers of blocks; None: all."""


_LOSSES: tuple[dict[str, Any], ...] = (
    {"rates": 2},
    {"error": 1},
    {"rates": 0},
    {"seconds": False},
    {"live": False},
    {"mean": 3},
    {"contrasts": False},
    {"words": 120},
    {"words": 40},
    {"warnings": False},
    {"blocks": 2},
    {"words": 12},
)

FORMS: tuple[Precision, ...] = tuple(
    accumulate(_LOSSES, lambda form, loss: replace(form, **loss), initial=Precision(mean=4, error=2, rates=3))
)
"""What is given up, in this order and each on top of the one before, until a profile fits.

First what no decision asks for: a digit of the rates by position, one of the half-widths, the rates; stage times; loops
of tables that were followed only to judge the edges of the served one. Then a digit of the means; the contrasts of AL;
the words of warnings and of reasons; the warnings; digits of the numbers of blocks; what tells reasons of skipped cells
apart. Cells, their intervals, the table, the loops of arms and the reason of the verdict never.
"""
