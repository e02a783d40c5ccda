"""Goodput over batch size and K, as measured and between. Pure.

goodput(b, K) = AL(K) / ITL(b, K) for one request; the batch size is the same for every K compared, so it cancels.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Surface:
    """Goodput of every K at every batch size."""

    acceptance: Mapping[int, float]
    """K -> AL, tokens per request and step."""
    itl: Mapping[tuple[int, int], float]
    """(batch size, K) -> ms per step, for the cells that were measured."""
    graph_sizes: tuple[int, ...] = ()
    """Token counts that a step is padded to, increasing; empty where steps are not padded."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes with at least one measured cell, increasing."""
        return tuple(sorted({size for size, _ in self.itl}))

    @cached_property
    def ks(self) -> tuple[int, ...]:
        """Every K with a measured cell, increasing."""
        return tuple(sorted({k for _, k in self.itl}))

    def padded(self, size: int, k: int) -> float:
        """The batch size whose step is as long as the padded step of ``size`` requests with K drafts each.

        Beyond the largest graph steps run as they are.
        """
        tokens = size * (k + 1)
        index = bisect_left(self.graph_sizes, tokens)
        return self.graph_sizes[index] / (k + 1) if index < len(self.graph_sizes) else float(size)

    def itl_ms(self, size: int, k: int) -> float | None:
        """ITL in ms: measured, or linear in the padded count between the measured sizes on both sides.

        None where K was not measured on both sides. Outside the measured sizes the nearest one's.
        """
        below, above = self._neighbours(size)
        low, high = self.itl.get((below, k)), self.itl.get((above, k))
        if low is None or high is None:
            return None
        start, end = self.padded(below, k), self.padded(above, k)
        if below == above:
            return low
        if start == end:
            return (low + high) / 2
        return low + (high - low) * (self.padded(size, k) - start) / (end - start)

    def goodputs(self, size: int) -> dict[int, float]:
        """K -> tokens per ms of one request, for each K that can run at a batch size; never empty.

        Between two measured sizes that share no K, those of the larger: what runs there runs with fewer requests.
        """
        if size not in self._known:
            found = {k: self.acceptance[k] / itl for k in self.ks if (itl := self.itl_ms(size, k)) is not None}
            self._known[size] = found or self.goodputs(self._neighbours(size)[1])
        return self._known[size]

    def best_k(self, size: int, tie: float) -> int:
        """The smallest K whose goodput is within ``tie`` (a share) of the best."""
        goodputs = self.goodputs(size)
        enough = max(goodputs.values()) * (1 - tie)
        return min(k for k, value in goodputs.items() if value >= enough)

    def cost(self, size: int, k: int) -> float:
        """Share of the best goodput that K gives away at a batch size; infinite where it cannot run."""
        goodputs = self.goodputs(size)
        return 1 - goodputs[k] / max(goodputs.values()) if k in goodputs else math.inf

    @cached_property
    def _known(self) -> dict[int, dict[int, float]]:
        """Goodputs by batch size, as far as they were asked for."""
        return {}

    def _neighbours(self, size: int) -> tuple[int, int]:
        """The measured sizes around one; at the ends and where it was measured, one twice."""
        index = min(bisect_left(self.sizes, size), len(self.sizes) - 1)
        above = self.sizes[index]
        return (self.sizes[index - 1] if index and above > size else above), above


def shares(weights: Mapping[int, float], sizes: Sequence[int]) -> dict[int, float]:
    """The load at each of ``sizes`` (increasing), as shares of 1: all alike where no weights are given.

    A weight between two sizes is divided among them by its distance, so that a weighted mean over ``sizes`` is the one
    of a quantity that runs straight between them. Outside, the nearest takes it.

    Raises ValueError where no weight is above 0.
    """
    if not weights:
        return {size: 1 / len(sizes) for size in sizes}
    found = dict.fromkeys(sizes, 0.0)
    for at, weight in weights.items():
        index = bisect_left(sizes, at)
        above = sizes[min(index, len(sizes) - 1)]
        below = above if index == len(sizes) or above == at else sizes[max(index - 1, 0)]
        share = (at - below) / (above - below) if above > below else 1.0
        found[above] += share * weight
        if above > below:
            found[below] += (1 - share) * weight
    total = sum(found.values())
    if not total > 0:
        raise ValueError("weights: no batch size has a weight above 0; leave them out to count all alike")
    return {size: value / total for size, value in found.items()}
