"""A whole run in virtual time: it keeps to ``measureSeconds`` where that can be, and says before where it cannot."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.measured import asked
from tests.unit.profiler.simulator import Engine, dense, mixture_of_experts

from specserve_profiler.contract.profile import Interval, LoopPoint, Row
from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.contract.steps import Finished, Limits, Step
from specserve_profiler.prompts.workload import Prompts
from specserve_profiler.session import arms, boots, console, lab, loops, measure
from specserve_profiler.session.every_k import EveryK
from specserve_profiler.session.measure import Bench
from specserve_profiler.session.stages import Session
from specserve_profiler.statistics.acceptance import Generate
from specserve_profiler.statistics.sampling import Cohort

Run = Callable[..., "tuple[World, Session]"]
LIMITS = Limits("0.32.0", "sync", 256, 4096, 1 << 20, 1 << 20, 1 << 30, 0, 5)
AL = {0: 1.0, 1: 1.5432, 2: 1.8382, 3: 2.0161, 4: 2.11, 5: 2.1773}
"""Of the simulator's texts."""


class World:
    """An engine whose every second is counted, by what it was asked for; boots take none of them."""

    def __init__(self, itl_ms: Callable[[int, int], float], prefill_ms: float) -> None:
        self.engine = Engine(itl_ms, seed=1)
        self.prefill_ms = prefill_ms
        self.heard: list[console.Event] = []
        self.overdue = 0.0
        """Seconds by which a stage went on after it was said to be over."""
        self._config: Mapping[str, Any] | None = None
        self._rows: Sequence[Row] | None = None
        self._ends = float("inf")

    def now(self) -> float:
        return self.engine.clock_ms / 1000

    def spend(self, seconds: float) -> None:
        self.engine.clock_ms += 1000 * seconds
        if self.now() - self._ends > self.overdue:
            self.overdue = self.now() - self._ends
            self.where = self.heard[-1]

    def listen(self, event: console.Event) -> None:
        self.heard.append(event)
        if isinstance(event, console.Began):
            self._ends = float("inf")
        elif isinstance(event, console.Progress) and event.left is not None:
            self._ends = min(self._ends, self.now() + event.left)

    @property
    def said(self) -> str:
        return "\n".join(event.text for event in self.heard if isinstance(event, console.Said))

    async def boot(self, name: str, config: Mapping[str, Any] | None, work: Callable[..., Any], *_: Any) -> None:
        self._config, self._rows = config, None
        self.engine.clock_ms += 40_000
        await work(SimpleNamespace(directory=None))

    async def run_cohort(self, _: Bench, order: Cohort, __: Any, stage: console.Stage) -> list[Step]:
        stage.progress("cohort")
        self.spend(self.prefill_ms * order.batch_size / 1000)
        steps, _seconds = self.engine.cohort(order)
        self.spend(0)
        return steps

    async def generations(self, _: Bench, order: Generate) -> list[Finished]:
        finished, seconds = self.engine.generate(order)
        self.spend(seconds + self.prefill_ms * order.concurrency / 1000 + 0.1)
        return finished

    async def closed_loop(self, _: Bench, at: int, seconds: float, __: int, stage: console.Stage) -> LoopPoint:
        stage.progress("loop")
        self.spend(seconds + self.prefill_ms * at / 1000 + 0.2)
        k = self._k(at)
        itl = self.engine.itl_ms(at, k) * (1.0 if self._config else 0.95)
        rate = 1000 * at * AL[k] / itl
        return LoopPoint(concurrency=at, tokens_per_second=Interval(mean=rate, half_width=rate / 50), ttft_ms=50)

    def follow(self, _: Bench, rows: Sequence[Row]) -> None:
        self._rows = rows

    def _k(self, at: int) -> int:
        if self._rows is not None:
            return next(row.k for row in self._rows if at <= row.last)
        if not self._config:
            return 0
        table = self._config.get("num_speculative_tokens_per_batch_size", [])
        return next((k for _, last, k in table if at <= last), self._config["num_speculative_tokens"])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    async def nothing(*_: Any) -> None:
        """The engine needs no preparation."""

    def start(
        seconds: float,
        sizes: Sequence[int] = (1, 2, 4, 8, 16, 32),
        itl_ms: Callable[[int, int], float] = dense,
        prefill_ms: float = 20,
        **changes: Any,
    ) -> tuple[World, Session]:
        world = World(itl_ms, prefill_ms)
        clock = SimpleNamespace(monotonic=world.now)
        for module in (boots, console, lab, loops, measure):
            monkeypatch.setattr(module, "time", clock)
        session = Session(request(seconds, sizes, **changes), lambda: None)
        prompts = Prompts(tuple((i,) * 300 for i in range(1, 97)))

        async def bench(engine: Any) -> Bench:
            session.lab.limits, session.lab.prompts = LIMITS, prompts
            return Bench(engine, LIMITS, None, prompts, session.request.workload)  # type: ignore[arg-type]

        monkeypatch.setattr(session.lab, "prepare", nothing)
        monkeypatch.setattr(session.lab, "bench", bench)
        monkeypatch.setattr(session.boots, "boot", world.boot)
        monkeypatch.setattr(EveryK, "_honoured", lambda *_: None)
        monkeypatch.setattr(measure, "run_cohort", world.run_cohort)
        monkeypatch.setattr(measure, "_generations", world.generations)
        monkeypatch.setattr(loops, "closed_loop", world.closed_loop)
        monkeypatch.setattr(arms, "follow", world.follow)
        monkeypatch.setattr(arms, "follow_own_table", lambda _: None)
        with console.observing(world.listen):
            asyncio.run(session.run())
        return world, session

    return start


def request(seconds: float, sizes: Sequence[int], **changes: Any) -> ProfileRequest:
    return asked(
        measureSeconds=seconds,
        timeoutSeconds=36000,
        batchSizes=list(sizes),
        engine={"maxNumSeqs": max(sizes), "maxModelLen": 4096},
        speculation={"method": "ngram", "maxTokens": 5},
        workload={"promptTokens": 512, "outputTokens": 140},
        **changes,
    )


def measured(session: Session) -> float:
    return sum(took for stage, took in session.boots.seconds.items() if stage not in ("total", "stops"))


def slow(batch_size: int, k: int) -> float:
    return 4 * dense(batch_size, k)


SIZES = {"one": (8,), "six": (1, 2, 4, 8, 16, 32), "nine": (1, 2, 4, 8, 16, 32, 64, 128, 256)}
ENGINES: dict[str, tuple[Callable[[int, int], float], float]] = {
    "quick": (dense, 5.0),
    "slow prefill": (dense, 20.0),
    "slow": (slow, 20.0),
    "experts": (mixture_of_experts, 2.0),
}
"""ITL, and ms of prefill per request."""
NEEDS_MORE = {("slow", "nine"): 53.0}
"""What one deck of every cell and four texts at every K take, where that is more than 33 s."""


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seconds", [30, 60, 120])
def test_measuring_takes_no_longer_than_was_asked_wherever_one_block_a_cell_fits(
    run: Run, engine: str, sizes: str, seconds: int
) -> None:
    world, session = run(seconds, SIZES[sizes], *ENGINES[engine])
    took = measured(session)
    told = [float(found) for found in re.findall(r"about (\d+) s at the least", world.said)]
    needs = NEEDS_MORE.get((engine, sizes), 0.0)

    if needs > seconds:
        assert told[-1] == pytest.approx(took, rel=0.1) and took == pytest.approx(needs, rel=0.05)
        assert "measureSeconds 30 cannot be kept" in world.said
        assert any(
            "more than measureSeconds 30: that is the least (one block of every cell" in warning
            for warning in session.decision().warnings
        )
    else:
        assert took <= 1.1 * seconds
        assert not any("more than measureSeconds" in warning for warning in session.lab.warnings)
    assert world.said.index("at the least") < world.said.index("measuring starts")
    assert world.overdue <= 0.1 * max(seconds, needs)
    assert {cell.skipped for cell in session.measurements().grid} == {None}  # type: ignore[union-attr]


@pytest.mark.parametrize("verify", ["Full", "Off"])
def test_with_more_or_fewer_arms_it_is_no_longer(run: Run, verify: str) -> None:
    for seconds in (60, 600):
        _, session = run(seconds, verify=verify)
        assert measured(session) <= 1.02 * seconds


def test_ten_minutes_leave_every_stage_at_least_its_share_and_what_others_left(run: Run) -> None:
    _, session = run(600)
    seconds = session.boots.seconds

    assert seconds["baseline"] == pytest.approx(36, abs=1)
    assert seconds["baseline in the closed loop"] == pytest.approx(48, abs=1)
    assert seconds["acceptance"] < 144  # all prompts were used before
    assert seconds["grid"] > 200  # 180 and a part of what acceptance left
    assert seconds["table in the closed loop"] > 120  # 108 and so on
    found = session.measurements()
    assert found is not None
    assert {entry.prompts for entry in found.acceptance if entry.k} == {96}
    assert min(cell.blocks for cell in found.grid) >= 10
    assert max(cell.blocks for cell in found.grid) >= 100


def test_the_verification_goes_first_where_time_is_short_and_that_is_told(run: Run) -> None:
    world, session = run(30, SIZES["nine"], dense, 20.0)

    warning = "measureSeconds 30 leaves no time to verify the table in a closed loop"
    assert warning in session.decision().warnings
    assert f"warning: {warning}" in world.said
    assert session.measurements().loops == ()  # type: ignore[union-attr]


def test_edges_of_the_table_that_are_not_looked_at_are_told(run: Run) -> None:
    _, session = run(60, SIZES["nine"], *ENGINES["quick"])

    (edges,) = (w for w in session.decision().warnings if "for a closed loop at the edges of the table: " in w)
    named = {int(size) for size in edges.partition("table: ")[2].removesuffix(" clients").split(", ")}
    table = session.decision().table
    assert named >= {row.last for row in table[:-1]} - set(SIZES["nine"])
    assert not named & {point.concurrency for loop in session.measurements().loops for point in loop.points}  # type: ignore[union-attr]


@pytest.mark.parametrize(("seconds", "prompts"), [(30, 4), (600, 96)])
def test_a_short_look_has_fewer_texts(run: Run, seconds: int, prompts: int) -> None:
    _, session = run(seconds, SIZES["six"], *ENGINES["slow"])

    assert {entry.prompts for entry in session.measurements().acceptance if entry.k} == {prompts}  # type: ignore[union-attr]
