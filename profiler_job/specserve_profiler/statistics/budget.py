"""How the time for measuring is shared out over the stages, and how long an engine takes, as far as it is known. Pure.

What a stage leaves goes to the next ones, and no stage gets what later ones need at the least.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from specserve_profiler.contract.request import Verify

BASELINE, BASELINE_LOOP, ACCEPTANCE, GRID, LOOP, AGAIN = STAGES = (
    "baseline",
    "baseline in the closed loop",
    "acceptance",
    "grid",
    "loop",
    "again",
)
"""In their order. ``loop`` is the closed loop of one arm, ``again`` the second boot of the baseline."""
UNVERIFIED = {BASELINE: 0.10, ACCEPTANCE: 0.35, GRID: 0.45, AGAIN: 0.10}
VERIFIED = {BASELINE: 0.06, BASELINE_LOOP: 0.08, ACCEPTANCE: 0.24, GRID: 0.30, LOOP: 0.18, AGAIN: 0.14}
LEAST_POINTS, LEAST_SECONDS = 2, 2.0
"""Client concurrencies, and seconds at each, for which a closed loop is worth its boot."""
SLOWER_WITH_DRAFTS = 2.0
"""Guess of ITL over that of the baseline, mean over K, as long as none was measured."""


class Budget:
    """``seconds`` for all stages. ``spent`` and ``least`` are kept by those who measure."""

    def __init__(self, seconds: float, verify: Verify) -> None:
        self.seconds = seconds
        self.spent = 0.0
        self.least: dict[str, float] = {}
        """Stage -> seconds that it takes at the least, as far as that is known."""
        self.weights: Mapping[str, float] = UNVERIFIED if verify == "Off" else VERIFIED
        self.arms = 2 if verify == "Full" else 1
        """Arms that are still to run in the closed loop."""

    @property
    def left(self) -> float:
        """Seconds."""
        return max(self.seconds - self.spent, 0.0)

    def share(self, stage: str) -> float:
        """Seconds for a stage that begins now, those before it being over."""
        return self._share(STAGES.index(stage), self.left)

    def forecast(self, stage: str, now: str) -> float:
        """Seconds that a later stage will get where ``now`` and those between take their share."""
        left = self.left
        for index in range(STAGES.index(now), STAGES.index(stage)):
            left -= self._share(index, left)
        return self._share(STAGES.index(stage), left)

    def least_from(self, stage: str) -> float:
        """Seconds that this stage and those after it take at the least."""
        return sum(map(self._least, STAGES[STAGES.index(stage) :]))

    def _least(self, stage: str) -> float:
        return self.least.get(stage, 0.0) * (self.arms if stage == LOOP else 1)

    def _share(self, index: int, left: float) -> float:
        stage, later = STAGES[index], STAGES[index + 1 :]
        weights = {name: self.weights.get(name, 0.0) * (self.arms if name == LOOP else 1) for name in STAGES[index:]}
        fair = left * self.weights.get(stage, 0.0) / (sum(weights.values()) or 1.0)
        # Samplers take their least by themselves, however little they are given.
        own = self.least.get(stage, 0.0) if stage in (BASELINE_LOOP, LOOP) else 0.0
        kept = sum(map(self._least, later)) + (self.arms - 1) * own * (stage == LOOP)
        return max(min(max(fair, own), left - kept), 0.0)


@dataclass(frozen=True)
class Pace:
    """How long an engine takes, by batch size."""

    step_ms: Mapping[int, float] = field(default_factory=dict)
    """ITL."""
    overhead: Mapping[int, float] = field(default_factory=dict)
    """Seconds of a cohort beside its steps: the prefill above all."""

    @classmethod
    def between(cls, seen: Pace, sizes: Iterable[int]) -> Pace:
        """For all sizes from those that were seen: linear between them, and the nearest one's beyond."""
        wanted = list(sizes)
        return cls(*({size: linear(known, size) for size in wanted} for known in (seen.step_ms, seen.overhead)))

    def slower(self, times: float = SLOWER_WITH_DRAFTS) -> Pace:
        """A guess of the same engine's with speculation."""
        return Pace({size: times * ms for size, ms in self.step_ms.items()}, self.overhead)

    def cohort(self, size: int, steps: float) -> float:
        """Seconds of a cohort of so many steps; 0 where nothing is known."""
        return self.overhead.get(size, 0.0) + steps * self.step_ms.get(size, 0.0) / 1000

    def generations(self, at_once: int, tokens: int) -> float:
        """Seconds of whole texts of so many tokens: a guess that drafts gain what they cost."""
        return tokens * linear(self.step_ms, at_once) / 1000


def linear(known: Mapping[int, float], size: int) -> float:
    """Between the known sizes; the nearest one's beyond them, 0 where there are none."""
    below = max((other for other in known if other <= size), default=min(known, default=0))
    above = min((other for other in known if other >= size), default=below)
    if below >= above:
        return known.get(below, 0.0)
    return known[below] + (known[above] - known[below]) * (size - below) / (above - below)
