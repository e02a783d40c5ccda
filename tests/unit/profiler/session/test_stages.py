"""A run that has come to a decision ends with it, whatever comes after; one that has not says why."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.measured import asked, engine

from devcluster.pace import patience
from specserve_profiler.contract.profile import Decision, Measurements, Row
from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.session import every_k
from specserve_profiler.session.arms import Arms
from specserve_profiler.session.lab import Lab
from specserve_profiler.session.loops import Loops
from specserve_profiler.session.run import guarded, own_temporaries
from specserve_profiler.session.stages import Session
from specserve_profiler.statistics.acceptance import NOTHING_DRAFTED, AcceptanceResult
from specserve_profiler.statistics.grid import Target

# K = 2 is best everywhere: a step costs the same whatever is drafted.
SURE = engine({0: 1.0, 1: 1.6, 2: 2.0}, lambda _size, _k: 10.0, sizes=(1, 8), error=0.01, boot_drift_measured=True)


def request(seconds: float = 100.0) -> ProfileRequest:
    return asked(measureSeconds=seconds / 10, timeoutSeconds=seconds)


async def nothing(*_: Any, **__: Any) -> None:
    """A stage that goes well."""


def session(
    monkeypatch: pytest.MonkeyPatch,
    verify: Callable[..., Awaitable[None]],
    seconds: float = 100.0,
    found: Measurements | None = None,
) -> Session:
    """A run whose engines have measured; only its verification is still to come."""
    run = Session(request(seconds), lambda: None)
    monkeypatch.setattr(run.lab, "prepare", nothing)
    monkeypatch.setattr(run._baseline, "boot", nothing)
    monkeypatch.setattr(run._every_k, "boot", nothing)
    monkeypatch.setattr(run._arms, "verify", verify)
    monkeypatch.setattr(run, "measurements", lambda: found or SURE)
    return run


def raising(reason: str) -> Callable[..., Awaitable[None]]:
    async def verify(*_: Any) -> None:
        raise ProfilingError(reason, "the engine ended")

    return verify


def test_a_verification_that_breaks_off_costs_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    decision = asyncio.run(session(monkeypatch, raising("EngineCrashed")).run())

    assert decision.verdict == "Static"
    assert "the verification was broken off: the engine ended" in decision.warnings


@pytest.mark.parametrize("reason", ["Interrupted", "DiskFull"])
def test_what_ends_everything_ends_it(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    with pytest.raises(ProfilingError, match="the engine ended") as caught:
        asyncio.run(session(monkeypatch, raising(reason)).run())

    assert caught.value.reason == reason


def test_a_verification_that_takes_too_long_leaves_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    async def verify(*_: Any) -> None:
        await asyncio.sleep(36_000)

    async def within() -> Decision:
        run = session(monkeypatch, verify, seconds=patience(0.3))
        run.boots.doing = "measuring: table in the closed loop"
        return await guarded(run, [])

    decision = asyncio.run(within())

    assert decision.verdict == "Static"
    assert any("the time was over while it was busy with: measuring: table" in text for text in decision.warnings)


def test_an_arm_whose_engine_never_comes_up_counts_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A boot that hangs is what an exact configuration is booted for; the time that ends it must not hide that."""

    booting = asyncio.Event()

    async def hang(*_: Any) -> None:
        booting.set()
        await asyncio.sleep(36_000)

    async def within() -> Arms:
        lab = Lab(request())
        arms = Arms(lab, Loops(lab))
        monkeypatch.setattr(lab.boots, "boot", hang)
        decision = Decision(verdict="Static", reason="", table=(Row(first=1, last=8, k=2),), static_k=2)
        verifying = asyncio.create_task(arms.verify(lambda: decision, SURE.grid, (1, 8)))
        await asyncio.wait_for(booting.wait(), patience(10))
        verifying.cancel()  # as when the time is over
        with contextlib.suppress(asyncio.CancelledError):
            await verifying
        return arms

    arms = asyncio.run(within())

    assert [(str(loop.arm), loop.failed) for loop in arms.seen] == [
        ("static K = 2", "the run ended before the engine was up")
    ]


def test_a_k_whose_acceptance_was_given_up_says_why_in_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_cohorts(*_: Any) -> None:
        """The engine is not asked."""

    monkeypatch.setattr(every_k, "measure_itl", no_cohorts)
    monkeypatch.setattr(
        every_k.EveryK, "acceptance", lambda _: AcceptanceResult((NOTHING_DRAFTED,), failed={2: "lost"})
    )
    run = Session(request(), lambda: None)
    run._every_k._targets = [Target(8, 0), Target(8, 2)]

    asyncio.run(run._every_k._measure_grid(None, {8: [0, 2]}))  # type: ignore[arg-type]

    assert {cell.k: cell.skipped for cell in run._every_k.grid().cells}[2] == "lost"


def test_a_run_out_of_time_before_any_decision_says_what_took_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def within() -> None:
        run = session(monkeypatch, nothing, seconds=0.4)
        monkeypatch.setattr(run._every_k, "boot", lambda *_: asyncio.sleep(36_000))
        await guarded(run, [])

    with pytest.raises(ProfilingError, match=r"no profile within 0 s; it was busy with: ") as caught:
        asyncio.run(within())
    assert caught.value.reason == "TimedOut"


def test_a_grid_of_which_no_cell_settled_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = SURE.model_copy(update={"grid": ()})

    with pytest.raises(ProfilingError, match="no cell of the grid was measured") as caught:
        asyncio.run(session(monkeypatch, nothing, found=empty).run())
    assert caught.value.reason == "NothingToMeasure"


def test_what_an_engine_leaves_in_the_temporary_directory_goes_with_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", "/before")
    monkeypatch.setattr("specserve_profiler.session.run.LONGEST_TMPDIR", len(str(tmp_path)) + 19)
    with own_temporaries():
        folder = Path(os.environ["TMPDIR"])
        assert folder.parent == tmp_path
        (folder / "vllm_dist_1").touch()

    assert (os.environ["TMPDIR"], list(tmp_path.iterdir())) == ("/before", [])


def test_a_temporary_directory_that_is_too_deep_for_sockets_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """107 bytes of a socket's path, 37 of them its name."""
    deep = tmp_path / ("d" * 70)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.delenv("TMPDIR", raising=False)
    with own_temporaries():
        assert "TMPDIR" not in os.environ

    assert list(deep.iterdir()) == []
