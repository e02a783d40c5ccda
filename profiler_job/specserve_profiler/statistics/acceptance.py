"""How whole generations are sampled for acceptance: which prompts, at which K, and when enough is known. Pure.

The prompt is the unit of sampling, and every K sees the same prompts; nothing is pooled over K.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean

from specserve_profiler.contract.profile import Acceptance, AcceptanceContrast, Interval, SpotCheck
from specserve_profiler.contract.steps import Finished
from specserve_profiler.statistics import estimate
from specserve_profiler.statistics.budget import Pace, linear

INDIFFERENCE = 0.01
"""Log goodput: K that are closer to the best than this are as good as it."""
ALPHA = 0.05
LEAST_PROMPTS = 20
"""Prompts before their number may count as enough: confidence sequences are asymptotic."""
LEAST_ROUND = 4
"""Prompts of a first round for which there is little time."""


@dataclass(frozen=True)
class Generate:
    """Whole generations at one K."""

    prompts: tuple[int, ...]
    """Positions in the workload."""
    k: int
    concurrency: int
    spot: bool = field(default=False, compare=False)
    """Some prompts once more, at another batch size."""


@dataclass(frozen=True)
class AcceptanceResult:
    """Acceptance at each K, and how well their ratios are known."""

    acceptance: tuple[Acceptance, ...]
    """By K; K = 0 has AL 1."""
    contrasts: tuple[AcceptanceContrast, ...] = ()
    spot_check: SpotCheck | None = None
    failed: Mapping[int, str] = field(default_factory=dict)
    """K that could not be measured, with the reason."""

    @property
    def lengths(self) -> dict[int, float]:
        """K -> AL."""
        return {entry.k: entry.acceptance_length.mean for entry in self.acceptance}

    def half_width(self, k: int, other: int) -> float:
        """Of log(AL(k) / AL(other))."""
        known = {(entry.k, entry.other): entry.half_width for entry in self.contrasts}
        return 0.0 if k == other else known.get((k, other), known.get((other, k), 1.0))


NOTHING_DRAFTED = Acceptance(k=0, acceptance_length=Interval(mean=1.0), prompts=0)
WITHOUT_SPECULATION = AcceptanceResult((NOTHING_DRAFTED,))
"""What a baseline's grid is sampled with."""


class AcceptanceSampler:
    """Whole generations of the same prompts at every K, in rounds of ``concurrency`` prompts.

    One round at least, with fewer prompts where ``pace`` (at once -> a guess of the seconds at one K) or the first K
    says that it does not fit; another one where time and prompts are left. At temperature 0 a prompt says everything at
    once, above that the prompts may come again. Ends early when all ratios are known to half the indifference. At last
    some of the prompts once more, at the middle K and ``spot_concurrency`` (or, where there are too few prompts for
    more than ``concurrency`` at once, a quarter of it).
    """

    def __init__(
        self,
        ks: Iterable[int],
        prompt_count: int,
        concurrency: int,
        seconds: float,
        spot_concurrency: int | None = None,
        temperature: float = 0.0,
        pace: Callable[[int], float] = lambda _: 0.0,
    ) -> None:
        if prompt_count < 1:
            raise ValueError("acceptance needs at least one prompt")
        self._ks = sorted({k for k in ks if k > 0})
        self._prompt_count = prompt_count
        self._concurrency = min(concurrency, prompt_count)
        self.seconds = seconds
        self._spot_concurrency = spot_concurrency
        self._again = temperature > 0
        self._pace = pace
        self._shuffle = random.Random(1)  # noqa: S311 - an order of measuring, no secret
        self._queue: list[Generate] = []
        self._rounds: list[tuple[int, ...]] = []
        self._runs: dict[int, list[tuple[int, Finished]]] = defaultdict(list)
        self._cost: dict[int, list[tuple[int, float]]] = defaultdict(list)
        """K -> (prompts, seconds) of each order."""
        self._step_ms: dict[int, tuple[int, float]] = {}
        """K -> (requests at once, ms of a step)."""
        self._spot: Generate | None = None
        self._spot_runs: list[tuple[int, Finished]] = []
        self._failed: dict[int, str] = {}

    def next(self, elapsed: float) -> Generate | None:
        """The next generations; None when there is nothing more to do."""
        if not self._queue:
            self._plan(elapsed)
        elif len(self._rounds) == 1:
            self._shrink(self.seconds - elapsed)
        return self._queue.pop(0) if self._queue else None

    def add(self, order: Generate, finished: Sequence[Finished], seconds: float) -> None:
        """What came of an order: the requests in the order of its prompts, and the seconds that it took."""
        runs = list(zip(order.prompts, finished, strict=True))
        if order.spot:
            self._spot, self._spot_runs = order, runs
        else:
            self._runs[order.k] += runs
            self._cost[order.k].append((len(order.prompts), seconds))
            steps = max((run.verify_steps for run in finished), default=0)
            if steps:
                self._step_ms[order.k] = order.concurrency, 1000 * seconds / steps

    def fail(self, order: Generate, why: str) -> None:
        """The engine did not survive an order: its K is not tried again. A failed spot check is left out."""
        if order.spot:
            return
        self._failed[order.k] = why
        self._queue = [waiting for waiting in self._queue if waiting.k != order.k]

    def least(self) -> float:
        """Seconds that the first round still takes at the least, as far as that is known."""
        if not self._rounds:
            return self._round_cost(self._ks, min(LEAST_ROUND, self._concurrency))
        return self._round_cost([order.k for order in self._queue], len(self._rounds[0])) * (len(self._rounds) == 1)

    def slower(self, baseline: Pace) -> float:
        """Steps beside those of the baseline, mean over K; K = 0 counts as one that costs nothing."""
        known = [(ms, linear(baseline.step_ms, at)) for at, ms in self._step_ms.values()]
        times = [ms / base for ms, base in known if base]
        return fmean([1.0, *times])

    def result(self) -> AcceptanceResult:
        """What is known now. Raises ValueError where nothing was verified, because every text ended at once."""
        tables = {k: self._table(k) for k in self._measured()}
        influences = {0: dict[int, float](), **{k: estimate.influences(table) for k, table in tables.items()}}
        contrasts = [
            AcceptanceContrast(
                k=other, other=k, half_width=estimate.log_ratio_half_width(influences[other], influences[k])
            )
            for k, other in combinations(sorted(influences), 2)
        ]
        found = [self._acceptance(k, table) for k, table in tables.items()]
        return AcceptanceResult((NOTHING_DRAFTED, *found), tuple(contrasts), self._spot_check(), dict(self._failed))

    def _plan(self, elapsed: float) -> None:
        ks = [k for k in self._ks if k not in self._failed]
        if not ks:
            return
        left = self.seconds - elapsed
        spot_cost = self._spot_cost(ks)
        reserve = spot_cost if spot_cost <= self.seconds / 4 else 0.0
        size = self._round_size(ks, left - reserve)
        enough = self._rounds and (self._round_cost(ks, size) > left - reserve or self._known(ks))
        prompts = () if enough else self._next_prompts(size)
        if prompts:
            self._rounds.append(prompts)
            order = self._shuffle.sample(ks, len(ks))
            self._queue = [Generate(prompts, k, len(prompts)) for k in order]
        elif self._spot is None and self._spot_concurrency is not None and spot_cost <= left:
            self._spot = self._spot_order(ks)
            self._queue = [self._spot]

    def _round_size(self, ks: Sequence[int], left: float) -> int:
        """Prompts of the next round: as many as fit, no fewer than a round had already."""
        least = min([max(prompts for prompts, _ in self._cost[k]) for k in ks if self._cost[k]], default=LEAST_ROUND)
        size = self._concurrency
        while size > least and self._round_cost(ks, size) > left:
            size = max(size // 2, least)
        return size

    def _round_cost(self, ks: Sequence[int], size: int) -> float:
        """Seconds of so many prompts at each K, at most: more of them take that much longer."""
        return sum(self._order_cost(k, size) for k in ks)

    def _order_cost(self, k: int, size: int) -> float:
        known = self._cost[k] or [cost for costs in self._cost.values() for cost in costs]
        if not known:
            return self._pace(size)
        counts = {prompts for prompts, _ in known}
        count = min((prompts for prompts in counts if prompts >= size), default=max(counts))
        return fmean(seconds for prompts, seconds in known if prompts == count) * max(size / count, 1.0)

    def _shrink(self, left: float) -> None:
        """Fewer prompts at the other K of the first round, where the first ones show that it would not end in time."""
        prompts = self._rounds[0]
        cost = self._round_cost([order.k for order in self._queue], len(prompts))
        size = max(int(len(prompts) * left / cost), LEAST_ROUND) if cost > left else len(prompts)
        if size < len(prompts):
            self._rounds[0] = prompts[:size]
            self._queue = [Generate(prompts[:size], order.k, size) for order in self._queue]

    def _next_prompts(self, size: int) -> tuple[int, ...]:
        start = sum(map(len, self._rounds))
        if start >= self._prompt_count and not self._again:
            return ()
        first = start % self._prompt_count
        return tuple(range(first, min(first + size, self._prompt_count)))

    def _spot_order(self, ks: Sequence[int]) -> Generate:
        """The first prompts, as many as run at once here or there, of those that were measured."""
        most = max(self._concurrency, self._spot_concurrency or 0)
        prompts = tuple(dict.fromkeys(prompt for entry in self._rounds for prompt in entry))[:most]
        at_once = min(self._spot_concurrency or 0, len(prompts))
        return Generate(prompts, _middle(ks), at_once if at_once != self._concurrency else max(at_once // 4, 1), True)

    def _spot_cost(self, ks: Sequence[int]) -> float:
        """Seconds, at most: fewer requests at once take so many more steps, more requests so much longer ones."""
        if not self._rounds or self._spot is not None or self._spot_concurrency is None:
            return 0.0
        order = self._spot_order(ks)
        prompts, seconds = self._cost[_middle(ks)][0]
        return seconds * max(prompts / order.concurrency, len(order.prompts) / prompts)

    def _known(self, ks: Sequence[int]) -> bool:
        """All ratios of AL are known to half the indifference, by a confidence sequence over prompts."""
        influences = [{}, *(estimate.influences(self._table(k)) for k in ks)]
        n = len(influences[-1])
        if n < LEAST_PROMPTS:
            return False
        pairs = list(combinations(influences, 2))
        width = math.sqrt(n) * estimate.sequence_width(n, ALPHA / len(pairs), best_at=4 * LEAST_PROMPTS)
        return all(estimate.log_ratio_deviation(b, a) * width <= INDIFFERENCE / 2 for a, b in pairs)

    def _measured(self) -> list[int]:
        return [k for k in self._ks if k not in self._failed and k in self._runs]

    def _table(self, k: int) -> dict[int, tuple[float, float]]:
        """Prompt -> (tokens, verify steps), of the prompts that every K has."""
        common = set.intersection(*({prompt for prompt, _ in self._runs[other]} for other in self._measured()))
        table = _by_prompt((prompt, run) for prompt, run in self._runs[k] if prompt in common)
        if not table:
            raise ValueError(
                f"at K = {k} every text ended with its first token, so nothing was verified: use prompts that the "
                "model answers at length, or a larger workload.outputTokens"
            )
        return table

    def _acceptance(self, k: int, table: Mapping[int, tuple[float, float]]) -> Acceptance:
        runs = [(prompt, run) for prompt, run in self._runs[k] if prompt in table and run.verify_steps]
        over = estimate.ratio_interval(list(table.values()))
        return Acceptance(
            k=k,
            acceptance_length=over,
            here=min(self._here(over, table, runs), over.half_width),
            prompts=len(runs),
            by_position=estimate.by_position((run for _, run in runs), k),
        )

    def _here(
        self, over: Interval, table: Mapping[int, tuple[float, float]], runs: Sequence[tuple[int, Finished]]
    ) -> float:
        """For just these prompts: two-stage sampling (Cochran 10.3), prompts of a finite workload, texts of a prompt.

        At temperature 0 a prompt has one text, so what is left is the finite population of prompts.
        """
        sampled = min(len(table) / self._prompt_count, 1.0)
        if not self._again:
            return over.half_width * math.sqrt(1 - sampled)
        within = _within_prompts(over.mean, runs)
        if within is None:
            return over.half_width
        return math.hypot(over.half_width * math.sqrt(1 - sampled), within * math.sqrt(sampled))

    def _spot_check(self) -> SpotCheck | None:
        if self._spot is None or self._spot.k not in self._measured():
            return None
        there = _by_prompt(self._spot_runs)
        first = dict(reversed(self._runs[self._spot.k]))
        here = _by_prompt((prompt, first[prompt]) for prompt in there if prompt in first)
        there = {prompt: there[prompt] for prompt in here}
        if not here:
            return None
        lengths = [estimate.ratio_interval(list(table.values())).mean for table in (there, here)]
        ratio = lengths[0] / lengths[1]
        half_width = estimate.log_ratio_half_width(estimate.influences(there), estimate.influences(here))
        return SpotCheck(
            k=self._spot.k,
            batch_size=self._spot.concurrency,
            ratio=Interval(mean=ratio, half_width=ratio * half_width),
        )


def _middle(ks: Sequence[int]) -> int:
    return ks[len(ks) // 2]


def _by_prompt(runs: Iterable[tuple[int, Finished]]) -> dict[int, tuple[float, float]]:
    """Prompt -> (tokens, verify steps) over its generations, where any step was verified."""
    table: dict[int, tuple[float, float]] = {}
    for prompt, run in runs:
        if run.verify_steps:
            tokens, steps = table.get(prompt, (0.0, 0.0))
            table[prompt] = tokens + run.tokens, steps + run.verify_steps
    return table


def _within_prompts(length: float, runs: Sequence[tuple[int, Finished]]) -> float | None:
    """95 % half-width of AL by the different texts of a prompt alone; None where no prompt came twice."""
    texts: dict[int, list[float]] = defaultdict(list)
    for prompt, run in runs:
        texts[prompt].append(run.tokens - length * run.verify_steps)
    repeated = [values for values in texts.values() if len(values) > 1]
    degrees = sum(len(values) - 1 for values in repeated)
    if not degrees:
        return None
    squares = sum((value - sum(values) / len(values)) ** 2 for values in repeated for value in values)
    steps = sum(run.verify_steps for _, run in runs)
    return estimate.t_quantile(degrees) * math.sqrt(squares / degrees * len(runs)) / steps
