"""Estimators and samplers against an engine whose truth is known, and against the naive ways that were met.

Each naive way is written out here; the test shows it wrong by a literal margin where ours is right.
"""

from __future__ import annotations

import logging
import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, stdev

import pytest
from tests.soak import runs
from tests.unit.profiler.simulator import Engine, dense, mixture_of_experts, sample_acceptance, sample_grid, share

from specserve_profiler.contract.profile import Acceptance, AcceptanceContrast, Interval
from specserve_profiler.contract.steps import Step
from specserve_profiler.statistics import estimate
from specserve_profiler.statistics.acceptance import AcceptanceResult, AcceptanceSampler
from specserve_profiler.statistics.paired import paired_fit
from specserve_profiler.statistics.sampling import Cohort, GridResult, GridSampler

_log = logging.getLogger(__name__)

KS = (0, 1, 2, 3, 5)
SIZES = (4, 32)
WHOLE = 200
RUNS = runs(50, WHOLE)
TRUE_AL = {0: 1.0, 1: 1.5432, 2: 1.8382, 3: 2.0161, 5: 2.1773}
"""Of the simulator's texts: 40,000 prompts at each K, standard errors 0.0008 to 0.0028."""
PAIRS = [(k, other) for k in KS for other in KS if other < k]


@dataclass
class Outcomes:
    """Error and half-width of one kind of estimate, over runs."""

    errors: list[float] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)
    by_run: list[float] = field(default_factory=list)

    def add(self, errors_and_half_widths: Sequence[tuple[float, float]]) -> None:
        self.errors += [error for error, _ in errors_and_half_widths]
        self.covered += [abs(error) <= half_width for error, half_width in errors_and_half_widths]
        self.by_run.append(fmean(error for error, _ in errors_and_half_widths))

    def check(self, kind: str, tolerance: float) -> None:
        """Mean error within ``tolerance`` or three standard errors (runs are the units), coverage about 95 %."""
        bias, error = fmean(self.by_run), stdev(self.by_run) / math.sqrt(len(self.by_run))
        _log.info("%s: covered %.3f, bias %+.4f +- %.4f", kind, share(self.covered), bias, 1.96 * error)
        assert abs(bias) < tolerance + 3 * error and error < 0.005 * math.sqrt(WHOLE / RUNS)
        assert 0.92 <= share(self.covered) <= 0.985


@pytest.fixture(scope="module")
def outcomes() -> Mapping[str, Outcomes]:
    """Whole measurements by the samplers themselves: rounds of prompts, cohorts, K that leave, a rule that stops."""
    found: dict[str, Outcomes] = defaultdict(Outcomes)
    for seed in range(RUNS):
        engine = Engine(dense, seed=seed)
        acceptance = sample_acceptance(engine, AcceptanceSampler(KS, 64, 16, seconds=1000))
        sampler = GridSampler(dict.fromkeys(SIZES, KS), acceptance, 20, {}, output_tokens=256)
        grid, _ = sample_grid(engine, sampler)
        _compare(acceptance, grid, found)
    return found


def _compare(acceptance: AcceptanceResult, grid: GridResult, found: Mapping[str, Outcomes]) -> None:
    lengths = acceptance.lengths
    found["AL"].add(
        [
            (entry.acceptance_length.mean - TRUE_AL[entry.k], entry.acceptance_length.half_width)
            for entry in acceptance.acceptance
            if entry.k
        ]
    )
    found["AL ratio"].add(
        [
            (math.log(lengths[k] / lengths[o]) - math.log(TRUE_AL[k] / TRUE_AL[o]), acceptance.half_width(k, o))
            for k, o in PAIRS
        ]
    )
    cells = {(cell.batch_size, cell.k): cell for cell in grid.cells}
    errors = {place: math.log(cell.itl_ms / dense(*place)) for place, cell in cells.items() if cell.itl_ms is not None}
    levels = {level.batch_size: level.half_width for level in grid.levels}
    found["ITL"].add([(errors[place], math.hypot(cell.spread, levels[place[0]])) for place, cell in cells.items()])
    itl = [
        (errors[size, k] - errors[size, o], math.hypot(cells[size, k].spread, cells[size, o].spread))
        for size in SIZES
        for k, o in PAIRS
    ]
    found["ITL ratio"].add(itl)
    al = [
        (math.log(lengths[k] / lengths[o]) - math.log(TRUE_AL[k] / TRUE_AL[o]), acceptance.half_width(k, o))
        for _ in SIZES
        for k, o in PAIRS
    ]
    found["goodput ratio"].add([(a - b, math.hypot(v, w)) for (a, v), (b, w) in zip(al, itl, strict=True)])


@pytest.mark.parametrize("kind", ["ITL", "ITL ratio", "AL", "AL ratio", "goodput ratio"])
def test_estimates_of_the_samplers_are_unbiased_and_intervals_cover(
    outcomes: Mapping[str, Outcomes], kind: str
) -> None:
    outcomes[kind].check(kind, tolerance=0.001)


# --- when to stop ----------------------------------------------------------------------------------------------------


def known_acceptance(half_width: float = 0.002) -> AcceptanceResult:
    """Acceptance as it is, its ratios known to ``half_width``."""
    return AcceptanceResult(
        tuple(Acceptance(k=k, acceptance_length=Interval(mean=al), prompts=80) for k, al in TRUE_AL.items()),
        tuple(AcceptanceContrast(k=k, other=other, half_width=half_width) for k, other in PAIRS),
    )


def test_width_of_a_confidence_sequence() -> None:
    """rho^2 = (5.991 + 1.790 + 1) / 40 = .2195; sqrt(2 x 5.39 / (400 x .2195) x log(sqrt(5.39) / .05)) = .686."""
    assert estimate.sequence_width(20, 0.05, best_at=40) == pytest.approx(0.686, abs=1e-3)


def test_a_confidence_sequence_holds_at_every_look_and_a_t_interval_does_not() -> None:
    """Heavy-tailed differences, 300 of them, looked at after each from the 20th on."""
    sequence, naive = [], []
    for seed in range(runs(100, 300)):
        dice = random.Random(seed)  # noqa: S311 - a simulation
        total = squares = 0.0
        within, within_t = True, True
        for n in range(1, 301):
            value = dice.gauss(0, 1) + (dice.expovariate(0.5) - 2 if dice.random() < 0.1 else 0)
            total, squares = total + value, squares + value * value
            if n >= 20:
                mean, deviation = total / n, math.sqrt((squares - total**2 / n) / (n - 1))
                within &= abs(mean) <= deviation * estimate.sequence_width(n, 0.05, best_at=40)
                within_t &= abs(mean) <= deviation / math.sqrt(n) * estimate.t_quantile(n - 1)
        sequence.append(within)
        naive.append(within_t)

    assert share(sequence) >= 0.95
    assert share(naive) < 0.85


@pytest.mark.parametrize(("itl_ms", "sizes"), [(dense, (1, 4)), (mixture_of_experts, (2, 8, 32))])
def test_a_known_best_k_is_within_one_per_cent_of_the_best(
    itl_ms: Callable[[int, int], float], sizes: tuple[int, ...]
) -> None:
    """The worlds have rivals 0.6 to 2.2 % behind the best. MoE: best K = 2, 3 and 5, not monotone beyond."""
    good, known = [], []
    for seed in range(runs(10, 40)):
        engine = Engine(itl_ms, seed=seed)
        grid, _ = sample_grid(engine, GridSampler(dict.fromkeys(sizes, KS), known_acceptance(), 200, {}, 256))
        itl = {(cell.batch_size, cell.k): cell.itl_ms or math.inf for cell in grid.cells}
        for level in grid.levels:
            size = level.batch_size
            known.append(level.stopped == "Known")
            chosen = max(KS, key=lambda k: TRUE_AL[k] / itl[size, k])
            best = max(TRUE_AL[k] / itl_ms(size, k) for k in KS)
            good.append(not known[-1] or TRUE_AL[chosen] / itl_ms(size, chosen) >= 0.99 * best)

    assert share(good) >= 0.95
    assert share(known) >= 0.5


def test_sampling_ends_earlier_where_k_differ_much() -> None:
    def seconds(slope: float) -> float:
        """Per draft ``slope`` ms on top of 10: the best K is 1 at 4 ms and 2 at 1.5 ms."""
        return fmean(
            sample_grid(
                Engine(lambda _, k: 10 + slope * k, seed=seed),
                GridSampler({8: KS}, known_acceptance(), 300, {}, 256),
            )[1]
            for seed in range(20)
        )

    far, near = seconds(4.0), seconds(1.6)

    assert far < 25
    assert near > 2 * far


# --- ways to be wrong that were met ----------------------------------------------------------------------------------


def acceptance_lengths(engine: Engine, ks: Sequence[int], prompts: int) -> dict[int, float]:
    return sample_acceptance(engine, AcceptanceSampler(ks, prompts, 32, seconds=1e9)).lengths


def error(found: float, truth: float) -> float:
    return math.log(found / truth)


def test_position_in_the_generation() -> None:
    """Naive: every K has its part of each generation, small ones first. The drafter is worse late in a text."""
    engine = Engine(seed=1)
    tokens: dict[int, int] = defaultdict(int)
    steps: dict[int, int] = defaultdict(int)
    for prompt in range(1000):
        words = engine.text(prompt)
        place, length = 0, len(words.hardness)
        while place < length:
            k = (1, 2, 3, 5)[4 * place // length]
            emitted = min(1 + words.accepted(place, k, engine.fading), length - place)
            tokens[k], steps[k], place = tokens[k] + emitted, steps[k] + 1, place + emitted
    ours = acceptance_lengths(engine, (1, 2, 3, 5), 1000)

    assert error(tokens[5] / steps[5], TRUE_AL[5]) < -0.10
    assert error(tokens[1] / steps[1], TRUE_AL[1]) > 0.03
    assert all(abs(error(ours[k], TRUE_AL[k])) < 0.03 for k in (1, 2, 3, 5))


def test_lock_step_with_a_fixed_order_of_k() -> None:
    """Naive: cohorts of like texts, K in turn in blocks of six steps: each K always meets the same places."""
    engine = Engine(seed=3, lock_step=True)
    words = engine.text(0)
    naive: dict[int, list[int]] = defaultdict(list)
    for _ in range(50):
        place = 0
        for k in (1, 2, 3, 5):
            for _ in range(6):
                naive[k].append(1 + words.accepted(place, k, engine.fading))
                place += naive[k][-1]
    chains = {k: engine.chain(0, k) for k in (1, 2, 3, 5)}
    ours = acceptance_lengths(engine, (1, 2, 3, 5), 8)

    off = [error(fmean(naive[k]), len(words.hardness) / len(chains[k])) for k in (1, 2, 3, 5)]
    assert max(off) - min(off) > 0.15
    assert all(ours[k] == pytest.approx(len(words.hardness) / len(chains[k])) for k in (1, 2, 3, 5))


def itl_ratio(cohorts: Sequence[Sequence[Step]], block_steps: int, k: int, other: int) -> float:
    decks = [deck for steps in cohorts for deck in estimate.cohort_blocks(steps, 8, block_steps).decks]
    effects = paired_fit(decks).effects
    return math.exp(effects[k] - effects[other])


def test_a_beat_of_the_engine_falls_on_one_k_where_the_order_is_fixed() -> None:
    """A deck of five K in blocks of six steps has 30 steps, and so has the beat."""
    truth = dense(8, 5) / dense(8, 0)
    naive: dict[int, list[float]] = defaultdict(list)
    engine = Engine(seed=4, beat_steps=30, stalls=0)
    for step in range(30 * 60):
        k = KS[step // 6 % 5]
        began = engine.clock_ms
        engine.step(8, k, k, 300)
        naive[k].append(engine.clock_ms - began)
    engine = Engine(seed=4, beat_steps=30, stalls=0)
    ours = itl_ratio([engine.cohort(Cohort(8, KS, 6, 5, seed))[0] for seed in range(60)], 6, 5, 0)

    assert error(fmean(naive[5]) / fmean(naive[0]), truth) > 0.10
    assert abs(error(ours, truth)) < 0.03


@pytest.mark.parametrize("memory_ms", [1e9, 20_000.0], ids=["one boot per K", "one cell after the other"])
def test_drift_between_boots_and_between_cells(memory_ms: float) -> None:
    """Naive: K = 0 and K = 3 for ten seconds each, and blocks of one K as the units; ours for ten seconds together."""
    truth = dense(8, 3) / dense(8, 0)
    naive_errors, naive_covered, covered = [], [], []
    errors = []
    for seed in range(runs(40, 100)):
        alone = []
        engine = Engine(seed=seed, memory_ms=memory_ms)
        for k in (0, 3):
            if memory_ms == 1e9:
                engine = Engine(seed=1000 * k + seed, memory_ms=memory_ms)
            cohorts = [engine.cohort(Cohort(8, (k,), 6, 42, seed))[0] for seed in range(4)]
            blocks = [deck[k] for steps in cohorts for deck in estimate.cohort_blocks(steps, 8, 6).decks]
            alone.append(estimate.ratio_interval([(ms, 1.0) for ms in blocks]))
        naive_errors.append(error(alone[1].mean / alone[0].mean, truth))
        half_width = math.hypot(*map(estimate.relative, alone))
        naive_covered.append(abs(naive_errors[-1]) <= half_width)
        engine = Engine(seed=seed, memory_ms=memory_ms)
        cohorts = [engine.cohort(Cohort(8, (0, 3), 6, 21, seed))[0] for seed in range(4)]
        fit = paired_fit([deck for steps in cohorts for deck in estimate.cohort_blocks(steps, 8, 6).decks])
        errors.append(fit.effects[3] - fit.effects[0] - math.log(truth))
        covered.append(abs(errors[-1]) <= math.hypot(*fit.spread().values()))

    assert stdev(naive_errors) > 0.02
    assert share(naive_covered) < 0.6
    assert stdev(errors) < 0.012
    assert share(covered) >= 0.92


def test_the_step_as_unit_of_acceptance() -> None:
    """Naive: each request-step an observation of its own. Prompts differ, so there are far fewer."""
    naive, ours = [], []
    for seed in range(runs(100, 200)):
        chains = [Engine(seed=seed).chain(prompt, 3) for prompt in range(64)]
        emitted = [int(character) for chain in chains for character in chain]
        mean = fmean(emitted)
        naive.append(abs(mean - TRUE_AL[3]) <= 1.96 * stdev(emitted) / math.sqrt(len(emitted)))
        interval = estimate.ratio_interval([(sum(map(int, chain)), len(chain)) for chain in chains])
        ours.append(abs(interval.mean - TRUE_AL[3]) <= interval.half_width)

    assert share(naive) < 0.85
    assert share(ours) >= 0.92


def test_counting_only_steps_with_drafts() -> None:
    """Naive: 1 + accepted / steps that had drafts, as vLLM's counters say. An n-gram drafter finds some in a third."""
    engine = Engine(seed=5, finds=0.3)
    ours = acceptance_lengths(engine, (5,), 400)[5]
    engine = Engine(seed=5, finds=0.3)
    chains = "".join(engine.chain(prompt, 5) for prompt in range(400))
    drafted = [int(character) for character, found in zip(chains, engine.drafted, strict=True) if found]
    speed = len(chains) / sum(map(int, chains))

    assert error(fmean(drafted), 1 / speed) > 0.4
    assert ours == pytest.approx(1 / speed, rel=0.01)


def test_one_plus_the_sum_of_acceptance_rates_at_kmax() -> None:
    """Naive: AL(2) from the first two rates of a run at K = 5, whose steps start at other places of the text."""
    result = sample_acceptance(Engine(seed=6), AcceptanceSampler((2, 5), 2000, 50, seconds=1e9))
    rates = result.acceptance[2].by_position

    assert error(1 + sum(rates[:2]), result.lengths[2]) < -0.03
    assert abs(error(result.lengths[2], TRUE_AL[2])) < 0.02


def test_unlike_prompts_for_each_k() -> None:
    """Naive: K = 1 on one half of the prompts, K = 3 on the other; just as many generations."""
    naive, ours = [], []
    for seed in range(runs(40, 100)):
        engine = Engine(seed=seed)
        chains = {1: [engine.chain(p, 1) for p in range(32)], 3: [engine.chain(p, 3) for p in range(32, 64)]}
        lengths = {k: sum(map(int, "".join(found))) / len("".join(found)) for k, found in chains.items()}
        naive.append(math.log(lengths[3] / lengths[1]))
        same = acceptance_lengths(engine, (1, 3), 32)
        ours.append(math.log(same[3] / same[1]))

    assert stdev(naive) > 0.035
    assert stdev(ours) < 0.025


def test_a_step_with_another_k_before_it() -> None:
    """Naive: all steps of a K, the first of a block too, which verifies the drafts of another."""
    truth = dense(8, 5) / dense(8, 0)
    engine = Engine(seed=8, stalls=0)
    cohorts = [engine.cohort(Cohort(8, (0, 5), 3, 20, seed))[0] for seed in range(40)]
    naive: dict[int, list[float]] = defaultdict(list)
    for steps in cohorts:
        for before, step in pairwise(steps[1:]):
            naive[step.k].append((step.time_ns - before.time_ns) / 1e6)

    assert error(fmean(naive[5]) / fmean(naive[0]), truth) < -0.10
    assert abs(error(itl_ratio(cohorts, 3, 5, 0), truth)) < 0.02


def test_stalls() -> None:
    """Naive: a mean over all steps; one of 100 takes 40 times as long."""
    engine = Engine(seed=9, stalls=0.01)
    cohorts = [engine.cohort(Cohort(8, (0, 5), 6, 5, seed))[0] for seed in range(60)]
    blocks = [estimate.cohort_blocks(steps, 8, 6) for steps in cohorts]
    ms = [
        (step.time_ns - before.time_ns) / 1e6
        for steps in cohorts
        for before, step in pairwise(steps)
        if before.k == step.k == 5 and not before.prefills and not step.prefills
    ]

    assert error(fmean(ms), dense(8, 5)) > 0.2
    found = fmean(deck[5] for entry in blocks for deck in entry.decks if 5 in deck)
    assert abs(error(found, dense(8, 5))) < 0.03
    assert 20 < sum(entry.dropped for entry in blocks) < 45
