"""How the grid is sampled: cohorts of which batch size, of how many decks, and when the best K is known. Pure.

A sampler is asked for the next order, told what came of it, and asked for the result; the driver of the engine and the
simulator of the tests ask alike. ``elapsed`` is the time that the stage has measured, in seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from specserve_profiler.contract.profile import BaselineCell, Cell, Interval, Level
from specserve_profiler.contract.steps import Step
from specserve_profiler.statistics import estimate
from specserve_profiler.statistics.acceptance import ALPHA, INDIFFERENCE, AcceptanceResult
from specserve_profiler.statistics.budget import Pace
from specserve_profiler.statistics.paired import LevelFit, PairedFit, level_fits, paired_fit

LEAST_DECKS = 20
"""Decks before a batch size may count as known: confidence sequences are asymptotic."""
LEAST_DECKS_TO_LEAVE = 10
"""Decks before a K may leave for being worse: with 5 K these are 36 degrees of freedom for the noise."""
BLOCK_STEPS = (6, 4, 3)
"""Steps of a block: the longest that lets every cell have ``LEAST_DECKS``. The first step does not count."""
COHORT_SECONDS = 2.0
FIRST_BLOCKS = 6
"""Blocks of a first cohort, as long as nothing is known of how long a step takes."""
COHORTS_TO_SETTLE = 3
"""Cohorts without one clean block of a cell before it is given up."""
LEAST_BASELINE_COHORTS = 5
BASELINE_KNOWN = 0.005
"""Relative half-width of the baseline's ITL that is enough."""


@dataclass(frozen=True)
class Cohort:
    """Exactly ``batch_size`` requests that decode together without refill, K in blocks (``records.Plan.sequence``)."""

    batch_size: int
    ks: tuple[int, ...]
    block_steps: int
    decks: int
    """A deck is one block of every K, in random order."""
    seed: int
    """Of the order of K, different for each cohort: the requests before it, so also a place in the prompts."""


@dataclass(frozen=True)
class GridResult:
    """ITL of every cell, and of what the K of a batch size share."""

    cells: tuple[Cell, ...]
    levels: tuple[Level, ...]
    mean_context: float
    """Mean context length of the steps that counted, in tokens."""

    def baseline(self) -> tuple[BaselineCell, ...]:
        """The same of a grid whose only K is 0."""
        levels = {level.batch_size: level for level in self.levels}
        return tuple(
            BaselineCell(
                batch_size=cell.batch_size,
                itl_ms=Interval(mean=cell.itl_ms, half_width=cell.itl_ms * levels[cell.batch_size].half_width),
                blocks=cell.blocks,
            )
            for cell in self.cells
            if cell.itl_ms is not None
        )


class GridSampler:
    """Cohorts at every batch size, until its best K is known to within the indifference, or the time is over.

    ``cells``: batch size -> its K that can run. ``step_ms``: batch size -> a guess of ITL, may be empty. All batch
    sizes are measured once before any is measured again, however little time there is: then with one deck each.
    """

    def __init__(
        self,
        cells: Mapping[int, Sequence[int]],
        acceptance: AcceptanceResult,
        seconds: float,
        step_ms: Mapping[int, float],
        output_tokens: int,
    ) -> None:
        self._acceptance = acceptance
        self._lengths = acceptance.lengths
        self._cells = cells
        self._output_tokens = output_tokens
        self._seed = 0
        self._took = self._foreseen = 0.0
        self.foresee(seconds, Pace(step_ms))
        self._sizes = {size: _Size(size, ks) for size, ks in sorted(cells.items())}
        for state in self._sizes.values():
            for k in [k for k in state.ks if k not in self._lengths]:
                state.skip(k, acceptance.failed.get(k, "its acceptance was not measured"))

    def foresee(self, seconds: float, pace: Pace) -> None:
        """The time that there is, and how long the engine is thought to take."""
        self.seconds, self._pace = seconds, pace
        self._block_steps = _block_steps(self._cells, pace.step_ms, seconds)

    def trial(self) -> Cohort | None:
        """One deck of the smallest and of the largest batch size, for the engine's pace; None once both were seen."""
        states = [state for state in self._sizes.values() if state.ks]
        untried = [state for state in (*states[:1], *states[-1:]) if not state.cohorts]
        return self._cohort(untried[0], 1) if untried else None

    def pace(self) -> Pace:
        """Of every batch size, from the last cohorts of those that were seen."""
        seen = {size: state for size, state in self._sizes.items() if state.cohorts}
        step_ms = {size: state.step_ms for size, state in seen.items() if state.step_ms}
        return Pace.between(Pace(step_ms, {size: state.overhead for size, state in seen.items()}), self._sizes)

    def least(self) -> float:
        """Seconds that one deck of every cell still takes, as foreseen and by what the others took beside that."""
        sizes = [state for state in self._sizes.values() if state.ks and not state.seen.issuperset(state.ks)]
        foreseen = sum(self._pace.cohort(state.size, self._block_steps * len(state.ks)) for state in sizes)
        return foreseen * (self._took / self._foreseen if self._foreseen else 1.0)

    def next(self, elapsed: float) -> Cohort | None:
        """The next cohort; None when there is nothing more to do."""
        left = self.seconds - elapsed
        waiting = [state for state in self._sizes.values() if state.ks and not state.done]
        unseen = [state for state in waiting if not state.seen.issuperset(state.ks)]
        affordable = [state for state in waiting if state.overhead + state.deck_seconds <= left]
        if unseen:
            state = min(unseen, key=lambda state: (len(state.cohorts), state.size))
        elif affordable:
            state = min(affordable, key=lambda state: (len(state.decks), state.size))
        else:
            return None
        return self._cohort(state, self._decks(state, left, len(unseen)))

    def _cohort(self, state: _Size, decks: int) -> Cohort:
        cohort = Cohort(state.size, tuple(state.ks), self._block_steps, decks, self._seed)
        self._seed += state.size
        return cohort

    def add(self, cohort: Cohort, steps: Sequence[Step], seconds: float) -> None:
        """What came of a cohort: all its steps, and the seconds that it took."""
        state = self._sizes[cohort.batch_size]
        if cohort.batch_size in self._pace.step_ms:
            self._took += seconds
            self._foreseen += self._pace.cohort(cohort.batch_size, cohort.block_steps * cohort.decks * len(cohort.ks))
        state.take(cohort, estimate.cohort_blocks(steps, cohort.batch_size, cohort.block_steps), seconds)
        if len(state.contenders) > 1:
            self._judge(state)
        else:
            self._judge_level(state)

    def fail(self, batch_size: int, k: int, why: str) -> None:
        """The engine did not survive a cell, or cannot run it: it is not measured again."""
        self._sizes[batch_size].skip(k, why)

    def best(self) -> dict[int, int]:
        """The K of the best goodput at each batch size, as far as it looks now."""
        found = {}
        for size, state in self._sizes.items():
            effects = paired_fit(state.decks).effects
            if effects:
                found[size] = max(effects, key=lambda k: math.log(self._lengths[k]) - effects[k])
        return found

    def result(self) -> GridResult:
        """What is known now."""
        states = self._sizes.values()
        fits = {state.size: paired_fit(state.decks) for state in states}
        levels = self._levels(fits)
        counted = sum(state.counted for state in states)
        context = sum(state.context for state in states)
        return GridResult(
            cells=tuple(cell for state in states for cell in _cells(state, fits[state.size], levels.get(state.size))),
            levels=tuple(
                Level(
                    batch_size=state.size,
                    half_width=levels[state.size].half_width,
                    cohorts=len(state.cohorts),
                    dropped_steps=state.dropped,
                    stopped="Known" if state.known else "Budget",
                )
                for state in states
                if state.size in levels
            ),
            mean_context=context / counted if counted else 0.0,
        )

    def _decks(self, state: _Size, left: float, unseen: int) -> int:
        """Of the next cohort: some two seconds, or as long as its prefill, but no longer than the workload's texts."""
        tokens = self._block_steps * sum(self._lengths[k] for k in state.ks)
        guess = self._pace.step_ms.get(state.size, 0.0) / 1000 * self._block_steps * len(state.ks)
        if state.deck_seconds:
            wanted = min(max(COHORT_SECONDS, state.overhead), left - state.overhead) / state.deck_seconds
        elif guess:
            # Half of the time for the first round, beside what it takes anyway.
            wanted = min(COHORT_SECONDS, guess + (left - self.least()) / 2 / max(unseen, 1)) / guess
        else:
            wanted = FIRST_BLOCKS / len(state.ks)
        return max(int(min(wanted, self._output_tokens / tokens)), 1)

    def _judge(self, state: _Size) -> None:
        """Is the best K known? Which K is surely not the best?

        The one that looks best is compared with each other one by a confidence sequence for log ITL; as many of them as
        there are other K may fail for a wrong end, so each has its share of alpha. How well AL is known is on top.
        """
        fit = paired_fit(state.decks)
        if not state.ks or not set(state.ks) <= fit.effects.keys() or not fit.degrees:
            return
        goodput = {k: math.log(self._lengths[k]) - fit.effects[k] for k in state.ks}
        best = max(goodput, key=lambda k: goodput[k])
        rivals = [
            _Rival(k, goodput[best] - goodput[k], *self._widths(state, fit, best, k)) for k in state.ks if k != best
        ]
        enough = all(rival.decks >= LEAST_DECKS for rival in rivals)
        state.known = enough and all(rival.lower > -INDIFFERENCE for rival in rivals)
        state.exhausted = enough and all(rival.itl <= INDIFFERENCE / 2 for rival in rivals)
        worse = [rival for rival in rivals if rival.lower > 0 and rival.decks >= LEAST_DECKS_TO_LEAVE]
        worse.sort(key=lambda rival: -rival.lower)
        state.leave([rival.k for rival in worse[: len(state.ks) - 2]])

    def _widths(self, state: _Size, fit: PairedFit, best: int, k: int) -> tuple[float, float, int]:
        """Half-widths of (log ITL ratio, log AL ratio), and the decks behind the first."""
        decks = min(fit.blocks[best], fit.blocks[k])
        alpha = ALPHA / (len(state.contenders) - 1)
        width = math.sqrt(decks) * estimate.sequence_width(decks, alpha, best_at=2 * LEAST_DECKS)
        degrees = min(fit.degrees[best], fit.degrees[k])
        small_sample = estimate.t_quantile(degrees) / estimate.t_quantile(math.inf)
        itl = width * small_sample * math.sqrt(fit.variance[best, k])
        return itl, self._acceptance.half_width(best, k), decks

    def _judge_level(self, state: _Size) -> None:
        """One K alone: is its ITL known, cohorts being the units?"""
        fit = self._levels({size: paired_fit(other.decks) for size, other in self._sizes.items()}).get(state.size)
        cohorts = len(state.cohorts)
        if fit is None or cohorts < LEAST_BASELINE_COHORTS:
            return
        small_sample = estimate.t_quantile(fit.degrees) / estimate.t_quantile(math.inf)
        width = estimate.sequence_width(cohorts, ALPHA, best_at=4 * LEAST_BASELINE_COHORTS)
        state.known = fit.deviation * width * small_sample < BASELINE_KNOWN

    def _levels(self, fits: Mapping[int, PairedFit]) -> dict[int, LevelFit]:
        return level_fits(
            {size: state.cohorts for size, state in self._sizes.items()},
            {size: fit.effects for size, fit in fits.items()},
        )


@dataclass(frozen=True)
class _Rival:
    """Another K beside the one that looks best."""

    k: int
    behind: float
    """Log goodput by which it is worse."""
    itl: float
    acceptance: float
    decks: int

    @property
    def lower(self) -> float:
        """Log goodput by which it is surely worse."""
        return self.behind - self.itl - self.acceptance


class _Size:
    """What has been measured at one batch size."""

    def __init__(self, size: int, ks: Iterable[int]) -> None:
        self.size = size
        self.wanted = tuple(sorted(ks))
        self.ks = list(self.wanted)
        """Those that are measured on."""
        self.skipped: dict[int, str] = {}
        self.cohorts: list[list[estimate.Blocks]] = []
        self.seen: set[int] = set()
        """K with a block at least."""
        self.fruitless: Counter[int] = Counter()
        """K -> cohorts that gave no block of it."""
        self.steps = self.dropped = self.counted = self.largest = 0
        self.context = self.overhead = self.deck_seconds = self.step_ms = 0.0
        self.known = False
        self.exhausted = False
        """More decks would not help: what is not known is acceptance."""

    @property
    def contenders(self) -> set[int]:
        """K that can run, those that have left included."""
        return set(self.wanted) - self.skipped.keys()

    @property
    def done(self) -> bool:
        return self.known or self.exhausted

    @property
    def decks(self) -> list[estimate.Blocks]:
        return [deck for cohort in self.cohorts for deck in cohort]

    def take(self, cohort: Cohort, blocks: estimate.CohortBlocks, seconds: float) -> None:
        kept = [{k: ms for k, ms in deck.items() if k not in self.skipped} for deck in blocks.decks]
        self.cohorts.append([deck for deck in kept if deck])
        self.seen.update(*kept)
        self.dropped += blocks.dropped
        self.counted += blocks.counted
        self.context += blocks.context * blocks.counted
        self.largest = max(self.largest, blocks.largest)
        self.deck_seconds = blocks.seconds / len(kept) if kept else 0.0
        self.overhead = max(seconds - blocks.seconds, 0.0)
        self.step_ms = fmean(ms for deck in kept for ms in deck.values()) if any(kept) else self.step_ms
        for k in [k for k in self.ks if k not in self.seen]:
            self.fruitless[k] += 1
            if self.fruitless[k] == COHORTS_TO_SETTLE:
                self.skip(k, self.never_settled())

    def never_settled(self) -> str:
        if self.largest < self.size:
            seen = f"no step had more than {self.largest} requests"
            way_out = "give the engine more KV cache (or shorter texts)"
        else:
            seen = f"{self.dropped} steps had a prefill, a preemption, another size or a stall"
            way_out = "give the engine more KV cache, or a quiet machine,"
        return (
            f"never settled: {len(self.cohorts)} cohorts without a block of undisturbed steps, {seen}; "
            f"{way_out} or leave batch size {self.size} out"
        )

    def skip(self, k: int, why: str) -> None:
        if k in self.ks:
            self.ks.remove(k)
        self.skipped[k] = why
        self.cohorts = [[{o: ms for o, ms in deck.items() if o != k} for deck in cohort] for cohort in self.cohorts]

    def leave(self, ks: Sequence[int]) -> None:
        """They are surely not the best: their cells stay as they are."""
        self.ks = [k for k in self.ks if k not in ks]


def _cells(state: _Size, fit: PairedFit, level: LevelFit | None) -> Iterable[Cell]:
    spread = fit.spread()
    for k in state.wanted:
        if k in state.skipped or k not in fit.effects or level is None:
            reason = state.skipped.get(k) or (state.never_settled() if state.cohorts else "the run ended before")
            yield Cell(batch_size=state.size, k=k, skipped=reason)
        else:
            itl_ms = level.ms * math.exp(fit.effects[k])
            yield Cell(batch_size=state.size, k=k, itl_ms=itl_ms, spread=spread[k], blocks=fit.blocks[k])


def _block_steps(cells: Mapping[int, Sequence[int]], step_ms: Mapping[int, float], seconds: float) -> int:
    """The longest block with which every cell can have ``LEAST_DECKS`` in the time."""
    one_step_each = sum(step_ms.get(size, 0.0) * len(ks) for size, ks in cells.items()) / 1000
    fitting = (steps for steps in BLOCK_STEPS if steps * one_step_each * LEAST_DECKS <= seconds)
    return next(fitting, BLOCK_STEPS[-1])
