"""The raw records of a run give its profile again: of a simulated run, whose stages are the real ones, and of a real
one."""

import asyncio
import gzip
import random
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.measured import asked
from tests.unit.profiler.simulator import Engine

from specserve_profiler.cli import main
from specserve_profiler.contract.profile import PartialProfile, Profile
from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.contract.steps import Finished, Limits, Step
from specserve_profiler.prompts.workload import Prompts
from specserve_profiler.reports.kept import Keeper, KeptError, read_kept
from specserve_profiler.reports.refit import refit
from specserve_profiler.session import closed_loop, loops, measure
from specserve_profiler.session.boots import Boots
from specserve_profiler.session.console import Event, Told, observing
from specserve_profiler.session.lab import Lab
from specserve_profiler.session.run import Outcome, _execute
from specserve_profiler.statistics.acceptance import Generate
from specserve_profiler.statistics.sampling import Cohort

STORED = Path(__file__).parents[3] / "data" / "records-0.32.0.gz"
"""A run of the demo pair on the CPU (``run --keep-records``), its paths shortened. Its last line is the profile by the
estimators of today: one that is changed on purpose changes that line, too."""


class Simulated:
    """What a session has in the place of an engine: the simulator, behind the doors to the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lost: tuple[int, int] | None = None) -> None:
        self.engine = Engine(itl_ms=lambda size, k: 10 + 0.5 * k + 0.15 * size * (k + 1), random_texts=True)
        self.lost = lost
        """The order of K of a cohort that the engine crashes in, once: (batch size, K)."""
        self.boots = 0
        limits = Limits("0.32.0", "sync", 8, 512, 4096, 4096, 99_999, 0, 2, device="simulated")
        prompts = Prompts(tuple((n, n + 1) for n in range(1, 25)), tuple((n,) for n in range(1, 9)))
        self.bench = SimpleNamespace(
            engine=SimpleNamespace(directory=tmp_path), limits=limits, prompts=prompts, request_tokens=96,
            holds=lambda concurrency: True, hang_seconds=10.0,
        )  # fmt: skip
        monkeypatch.setattr(Lab, "prepare", self.nothing)
        monkeypatch.setattr(Lab, "bench", self.opened())
        monkeypatch.setattr(Boots, "boot", self.booted())
        monkeypatch.setattr(measure, "_generations", self.generations)
        monkeypatch.setattr(measure, "run_cohort", self.cohort)
        monkeypatch.setattr(closed_loop, "settled", self.nothing)
        monkeypatch.setattr(closed_loop._Loop, "run", self.looped())
        monkeypatch.setattr(loops, "LEAST_SECONDS", 0.01)  # these take no time at all

    async def nothing(self, *_: Any) -> None:
        """What the simulation does not need."""

    def opened(self) -> Callable[..., Awaitable[Any]]:
        """Of a lab: the bench of an engine."""

        async def bench(lab: Lab, _: Any) -> Any:
            lab.limits, lab.prompts = lab.limits or self.bench.limits, self.bench.prompts
            return self.bench

        return bench

    def booted(self) -> Callable[..., Awaitable[Any]]:
        """Of boots: one boot, slower or faster than the last by a little."""

        async def boot(boots: Boots, name: str, config: Any, measuring: Any, extra: Any = ()) -> Any:
            self.boots += 1
            boots.cell = self.lost
            return await measuring(self.bench.engine)

        return boot

    async def generations(self, bench: Any, order: Generate) -> list[Finished]:
        """Whole generations."""
        return self.engine.generate(order)[0]

    async def cohort(self, bench: Any, order: Cohort, *_: Any) -> list[Step]:
        """A cohort, or the end of the engine."""
        if self.lost is not None and order.batch_size == self.lost[0] and self.lost[1] in order.ks:
            raise ProfilingError("EngineCrashed", "the engine ended")
        return self.engine.cohort(order)[0]

    def looped(self) -> Callable[..., Awaitable[tuple[list[Step], list[Finished]]]]:
        """Of a closed loop: some steps, with a prefill now and then. Four clients never are served at once."""

        async def run(loop: Any, *_: Any) -> tuple[list[Step], list[Finished]]:
            wanted = loop._concurrency
            size = 1 if wanted == 4 else wanted
            steps = []
            for number in range(120):
                self.engine.step(size, 1, 1, 60.0)
                steps.append(Step(int(self.engine.clock_ms * 1e6), size, 2 * size, 1, 2 * size, number % 9 == 0, 60))
            finished = [Finished(1000 + 37 * n, "121", f"cmpl-v{n + wanted}x-0") for n in range(40)]
            return steps, finished

        return run


def packed(content: bytes) -> bytes:
    """Compressed, without the time: ids of tests are made of it."""
    return gzip.compress(content, mtime=0)


def run(request: Any) -> tuple[Outcome, bytes]:
    """A run to its end, and its records."""
    keeper = Keeper()

    def listen(event: Event) -> None:
        if isinstance(event, Told):
            keeper.take(event.what, event.values)

    with observing(listen):
        outcome = asyncio.run(_execute(request, lambda: None))
    return outcome, keeper.finish(outcome.profile or outcome.partial or outcome.failure)


def tree(profile: Profile | PartialProfile) -> Any:
    """All of it, as plain values."""
    return profile.model_dump(mode="json")


@pytest.mark.parametrize(
    ("verify", "temperature", "seconds", "arms"), [("Table", 0.0, 6, 2), ("Off", 0.0, 3, 0), ("Full", 0.8, 12, 2)]
)
def test_a_run_is_given_again_by_what_its_estimators_were_told(
    verify: str, temperature: float, seconds: int, arms: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Simulated(monkeypatch, tmp_path)
    workload = {"promptTokens": 32, "outputTokens": 64, "temperature": temperature}
    outcome, kept = run(asked(measureSeconds=seconds, verify=verify, workload=workload, batchSizes=[1, 4, 8]))

    assert outcome.profile is not None and len(outcome.profile.measurements.loops) == arms
    assert temperature or outcome.profile.measurements.spot_check is not None
    assert tree(refit(read_kept(kept))) == tree(outcome.profile)


def test_a_run_that_lost_an_engine_is_given_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    simulated = Simulated(monkeypatch, tmp_path, lost=(8, 2))
    outcome, kept = run(asked(measureSeconds=2))

    assert simulated.boots > 2 and outcome.profile is not None
    lost = next(cell for cell in outcome.profile.measurements.grid if (cell.batch_size, cell.k) == (8, 2))
    assert lost.skipped == "the engine ended"
    assert any("batch size 8, K = 2 was given up" in warning for warning in outcome.profile.decision.warnings)
    assert tree(refit(read_kept(kept))) == tree(outcome.profile)


def test_other_estimators_give_another_profile_of_the_same_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Simulated(monkeypatch, tmp_path)
    outcome, kept = run(asked(measureSeconds=2, verify="Off"))
    monkeypatch.setattr("specserve_profiler.statistics.estimate.STALL", 1.02)

    assert outcome.profile is not None
    again = refit(read_kept(kept)).measurements
    pairs = zip(again.grid, outcome.profile.measurements.grid, strict=True)
    assert all(now.itl_ms < then.itl_ms for now, then in pairs)  # type: ignore[operator]
    assert again.acceptance == outcome.profile.measurements.acceptance


def test_a_run_that_ended_early_is_given_again_as_far_as_it_came(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Simulated(monkeypatch, tmp_path)

    async def crash(*_: Any) -> list[Finished]:
        raise ProfilingError("DiskFull", "no space")

    monkeypatch.setattr(measure, "_generations", crash)
    outcome, kept = run(asked(measureSeconds=2))

    assert outcome.partial is not None and len(outcome.partial.measurements.baseline) == 2
    assert tree(refit(read_kept(kept))) == tree(outcome.partial)


# a real run


@pytest.fixture(scope="module")
def stored() -> bytes:
    """The records of a real run."""
    return STORED.read_bytes()


def close(value: Any) -> Any:
    """Numbers as they come out where somebody else's library adds them up."""
    if isinstance(value, dict):
        return {name: close(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [close(entry) for entry in value]
    return pytest.approx(value, rel=1e-9) if isinstance(value, float) else value


def test_the_stored_records_of_a_real_run_give_its_profile(stored: bytes) -> None:
    kept = read_kept(stored)
    again = refit(kept)

    assert isinstance(kept.result, Profile) and len(kept.records) > 20
    assert tree(again) == close(tree(kept.result))


def test_refit_writes_the_profile_and_says_that_it_is_the_same(
    stored: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = read_kept(stored).result
    assert isinstance(result, Profile)

    assert main(["refit", str(STORED), "-o", str(tmp_path / "again.json")]) == 0
    told = capsys.readouterr()
    again = Profile.model_validate_json((tmp_path / "again.json").read_text())
    assert (again.key, again.measured_at, again.request) == (result.key, result.measured_at, result.request)
    assert again.decision.table == result.decision.table
    assert told.err == f"as it was decided then: {result.decision.verdict}, {rows_of(result)}\n"
    assert "tokens" in told.out
    assert main(["refit", str(STORED), "--json"]) == 0
    assert Profile.model_validate_json(capsys.readouterr().out) == again
    assert main(["compare", str(tmp_path / "again.json"), str(tmp_path / "again.json")]) == 0


def rows_of(profile: Profile) -> str:
    """Its table in short."""
    return " ".join(f"{row.first}-{row.last}:{row.k}" for row in profile.decision.table)


# whatever a file holds


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "no file that `run --keep-records` wrote: it does not begin like one"),
        (b"plain", "no file that `run --keep-records` wrote"),
        (packed(b"[]"), "record 1: no object"),
        (packed(b'{"specserveRecords": 2}\n{}'), "records of version 2, this tool reads 1: use the specserve"),
        (packed(b'{"specserveRecords": 1}\n'), "the file ends before the run did"),
        (packed(b'{"specserveRecords": 1}\n{"Failure": {"reason": "TimedOut"}}'), "left nothing to fit again"),
        (packed(b'{"specserveRecords": 1}\n{"what": "step"}\n{}'), "record 2: Input tag 'step' found"),
        (packed(b'{"specserveRecords": 1}\n' + b"[" * 100_000), "record 2: "),
        (packed(b'{"specserveRecords": 1}\n{"Profile": {}}'), "its profile cannot be read: Field required"),
    ],
)
def test_a_file_that_holds_no_run_says_why(
    content: bytes, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "records.gz"
    path.write_bytes(content)

    assert main(["refit", str(path)]) == 2
    assert f"specserve-profile refit: {path}: " in (told := capsys.readouterr().err)
    assert re.search(re.escape(expected), told)


def test_no_cut_or_changed_record_is_a_fault_of_the_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Simulated(monkeypatch, tmp_path)
    stored = run(asked(measureSeconds=0.2))[1]
    dice = random.Random(5)  # noqa: S311 - a test's choice
    lines = gzip.decompress(stored).splitlines()
    for _ in range(60):
        changed = list(lines)
        at = dice.randrange(1, len(lines) - 1)
        if dice.random() < 0.4:
            del changed[at]
        elif dice.random() < 0.5:
            changed.insert(dice.randrange(1, len(lines) - 1), changed[at])
        else:
            numbers = list(re.finditer(rb"-?\d+", changed[at]))
            number = dice.choice(numbers or [re.search(rb"", changed[at])])
            other = dice.choice([b"0", b"-1", b"1e400", b"99999999999999999999", b"null", b'"x"'])
            changed[at] = changed[at][: number.start()] + other + changed[at][number.end() :]
        with suppress(KeptError):
            again = refit(read_kept(packed(b"\n".join(changed))))
            assert tree(again)["key"] == "specserve-0123456789ab"
    for cut in range(0, len(stored), max(len(stored) // 40, 1)):
        with pytest.raises(KeptError):
            read_kept(stored[:cut])
