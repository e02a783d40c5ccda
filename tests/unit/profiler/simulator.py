"""A synthetic engine in virtual time, whose ITL and acceptance are known: what the samplers are tested against.

It is driven as the real one is: cohorts follow ``records.Plan``, generations run to the end of their text.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from specserve_profiler.contract.steps import Finished, Plan, Step, digit
from specserve_profiler.statistics.acceptance import AcceptanceResult, AcceptanceSampler, Generate
from specserve_profiler.statistics.sampling import Cohort, GridResult, GridSampler

REFERENCE_CONTEXT = 300
HEAVY_SHARE, HEAVY_MEAN = 0.03, 0.5
"""Share of steps that take longer by a random amount, and its mean as a share of the step."""
SETTLING_SECONDS = 0.1


def dense(batch_size: int, k: int) -> float:
    """ITL in ms that grows with every draft, the more the larger the batch: the best K falls with the batch size."""
    return 6 + 0.8 * k + 0.05 * batch_size * (k + 1)


def mixture_of_experts(batch_size: int, k: int) -> float:
    """ITL in ms that leaps until a step reaches all experts, and hardly grows after: the best K is not monotone."""
    tokens = batch_size * (k + 1)
    return 8 + 0.6 * k + 14 * (1 - math.exp(-tokens / 12)) + 0.01 * tokens


@dataclass(frozen=True)
class Text:
    """How hard each token of a prompt's text is to guess, 0 to 1. A draft is right where the drafter is better."""

    hardness: tuple[float, ...]
    skill: float

    def accepted(self, start: int, k: int, fading: float) -> int:
        """Drafts accepted of the k for the tokens from ``start`` on; the drafter gets worse along the text."""
        skill = self.skill * (1 - fading * start / len(self.hardness))
        for count in range(k):
            if start + count >= len(self.hardness) or self.hardness[start + count] >= skill:
                return count
        return k


@lru_cache(maxsize=200_000)
def text(prompt: int, seed: int, patch: int = 6) -> Text:
    """The one text of a prompt at temperature 0: easy and hard patches of ``patch`` tokens, 60 to 140 tokens."""
    dice = random.Random(prompt * 1_000_003 + seed)  # noqa: S311 - a simulation
    hardness: list[float] = []
    for _ in range(dice.randint(60, 140) // patch):
        ease = dice.choice((0.6, 1.4))
        hardness += [dice.random() * ease for _ in range(patch)]
    return Text(tuple(hardness), dice.betavariate(6, 4))


@dataclass
class Engine:
    """``itl_ms(batch size, K)`` is the mean of a clean step at the reference context."""

    itl_ms: Callable[[int, int], float] = dense
    seed: int = 0
    noise: float = 0.05
    """Relative deviation of a step, heavy-tailed."""
    drift: float = 0.03
    """Relative deviation of the engine's speed, an AR(1) process."""
    memory_ms: float = 2000.0
    """Time after which the drift has forgotten all but 1/e."""
    stalls: float = 0.0005
    """Share of steps that take 40 times as long."""
    context_growth: float = 2e-4
    """By which ITL grows per token of context."""
    fading: float = 0.3
    """Share of its skill that the drafter loses along a text."""
    texts: int | None = None
    """Seed of the texts; None for the engine's own seed."""
    beat_steps: int = 0
    """Every so many steps one takes twice as long: housekeeping; 0 for never."""
    lock_step: bool = False
    """All requests have the same text."""
    finds: float = 1.0
    """Share of steps for which the drafter finds anything to draft, as an n-gram drafter does."""
    random_texts: bool = False
    """A prompt has another text each time: temperature above 0."""
    clock_ms: float = 0.0
    _drift: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)  # noqa: S311 - a simulation
        self._drift = self._dice.gauss(0, self.drift)
        self._generations = 0
        self._steps = 0
        self.drafted: list[bool] = []
        """Of each verify step of all generations: whether it had drafts."""

    def step(self, batch_size: int, k: int, before: int, context: float) -> None:
        """One step that verifies ``before`` drafts and drafts ``k``."""
        mean = (self.itl_ms(batch_size, k) + self.itl_ms(batch_size, before)) / 2
        forgotten = math.exp(-mean / self.memory_ms)
        self._drift = forgotten * self._drift + math.sqrt(1 - forgotten**2) * self._dice.gauss(0, self.drift)
        factor = math.exp(self._drift - self.drift**2 / 2 + self._dice.gauss(0, self.noise) - self.noise**2 / 2)
        if self._dice.random() < HEAVY_SHARE:
            factor *= 1 + self._dice.expovariate(1 / HEAVY_MEAN)
        factor *= 1 + self.context_growth * (context - REFERENCE_CONTEXT)
        if self._dice.random() < self.stalls:
            factor *= 40
        self._steps += 1
        if self.beat_steps and self._steps % self.beat_steps == 0:
            factor *= 2
        self.clock_ms += mean * factor / (1 + HEAVY_SHARE * HEAVY_MEAN)

    def cohort(self, order: Cohort, length: float = 2.0) -> tuple[list[Step], float]:
        """(steps, seconds) of a cohort whose requests put out ``length`` tokens per step on average."""
        began = self.clock_ms
        count = len(order.ks) * order.decks * order.block_steps
        context = REFERENCE_CONTEXT - count * length / 2
        ks = _each(Plan(order.ks, order.block_steps, order.batch_size, order.seed), count)
        before = order.ks[0]
        self.step(order.batch_size, before, before, context)
        steps = [self._record(order.batch_size, before, prefills=order.batch_size, context=context)]
        for k in ks:
            self.step(order.batch_size, k, before, context)
            context += length
            steps.append(self._record(order.batch_size, k, prefills=0, context=context))
            before = k
        self.clock_ms += SETTLING_SECONDS * 1000
        return steps, (self.clock_ms - began) / 1000

    def _record(self, batch_size: int, k: int, prefills: int, context: float) -> Step:
        return Step(int(self.clock_ms * 1e6), batch_size, batch_size * (k + 1), k, batch_size, prefills, int(context))

    def generate(self, order: Generate) -> tuple[list[Finished], float]:
        """(finished requests, seconds) of whole generations."""
        finished = [Finished(0, self.chain(prompt, order.k), f"g{prompt}") for prompt in order.prompts]
        steps = max(len(entry.chain) for entry in finished)
        return finished, steps * self.itl_ms(order.concurrency, order.k) / 1000

    def text(self, prompt: int) -> Text:
        """Of one generation of a prompt."""
        seed = self.seed if self.texts is None else self.texts
        fixed = text(0 if self.lock_step else prompt, seed)
        if not self.random_texts:
            return fixed
        self._generations += 1
        return Text(text(self._generations, self.seed + 7_777_777).hardness, fixed.skill)

    def chain(self, prompt: int, k: int) -> str:
        """Tokens put out in each verify step of a whole generation."""
        words = self.text(prompt)
        place, chain = 0, ""
        while place < len(words.hardness):
            found = self.finds == 1 or self._dice.random() < self.finds
            self.drafted.append(found)
            emitted = min(1 + words.accepted(place, k if found else 0, self.fading), len(words.hardness) - place)
            chain += digit(emitted)
            place += emitted
        return chain


def _each(plan: Plan, steps: int) -> Iterable[int]:
    blocks = plan.sequence()
    for _ in range(math.ceil(steps / plan.block_steps)):
        yield from [next(blocks)] * plan.block_steps


def sample_acceptance(engine: Engine, sampler: AcceptanceSampler) -> AcceptanceResult:
    """Drives the sampler to its end, as the profiler does."""
    elapsed = 0.0
    while (order := sampler.next(elapsed)) is not None:
        finished, seconds = engine.generate(order)
        sampler.add(order, finished, seconds)
        elapsed += seconds
    return sampler.result()


def sample_grid(engine: Engine, sampler: GridSampler) -> tuple[GridResult, float]:
    """Drives the sampler to its end: (result, seconds)."""
    elapsed = 0.0
    while (order := sampler.next(elapsed)) is not None:
        steps, seconds = engine.cohort(order)
        sampler.add(order, steps, seconds)
        elapsed += seconds
    return sampler.result(), elapsed


def share(outcomes: Sequence[bool]) -> float:
    """Of those that are true."""
    return sum(outcomes) / len(outcomes)
