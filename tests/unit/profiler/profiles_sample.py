"""Plausible profiles for the look of reports: a small model of an accelerator, not measurements of one."""

from __future__ import annotations

import datetime as dt
import random
from itertools import accumulate

from specserve_profiler.contract.profile import (
    Acceptance,
    AcceptanceContrast,
    Arm,
    ArmLoop,
    BaselineCell,
    Cell,
    Decision,
    Interval,
    Level,
    LoopPoint,
    Measurements,
    PartialProfile,
    Profile,
    Row,
    Speedup,
    SpotCheck,
)
from specserve_profiler.contract.request import Engine, HubDataset, ProfileRequest, PromptSource, Speculation, Workload

WHEN = dt.datetime(2026, 11, 3, 14, 15, tzinfo=dt.timezone.utc)
RATES = (0.74, 0.52, 0.37, 0.27, 0.20, 0.14, 0.10, 0.07)
TABLE = (
    Row(first=1, last=8, k=5),
    Row(first=9, last=40, k=3),
    Row(first=41, last=120, k=2),
    Row(first=121, last=256, k=1),
)
NONE, STATIC, SERVED = Arm(kind="None"), Arm(kind="Static", k=2), Arm(kind="Table", rows=TABLE)


def itl_ms(batch_size: int, k: int | None) -> float:
    """Memory-bound up to about 200 tokens a step, then growing with them; each draft costs a little pass."""
    tokens = batch_size * (1 if k is None else k + 1)
    return 11.0 + 0.9 * (0 if k is None else k) + 0.055 * max(tokens - 30, 0) + (0 if k is None else 0.4)


def request(**changes: object) -> ProfileRequest:
    """An eagle3 pair at up to 256 requests."""
    values: dict[str, object] = {
        "key": "specserve-0123456789ab",
        "model": "org/target-8b",
        "revision": "abc123",
        "speculation": Speculation(method="eagle3", model="org/target-8b-eagle3", max_tokens=5),
        "engine": Engine(args=("--gpu-memory-utilization=0.9",), max_num_seqs=256, max_model_len=8192),
        "workload": Workload(prompt_tokens=512, output_tokens=256),
        "prompts": PromptSource(hub=HubDataset(name="philschmid/mt-bench", column="turns")),
        "batch_sizes": (1, 2, 4, 8, 16, 32, 64, 128, 256),
        "measure_seconds": 600,
        "timeout_seconds": 3600,
    }
    return ProfileRequest.model_validate({**values, **changes})


def measurements(sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256), kmax: int = 5) -> Measurements:
    """What a run would tell, with noise that is the same every time."""
    noise = random.Random(7)  # noqa: S311 - plausible, not secret
    lengths = list(accumulate(RATES[:kmax], initial=1.0))
    cells = [
        Cell(
            batch_size=b,
            k=k,
            itl_ms=itl_ms(b, k) * noise.gauss(1, 0.008),
            spread=noise.uniform(0.004, 0.03),
            blocks=noise.randrange(20, 61),
        )
        for b in sizes
        for k in range(kmax + 1)
    ]
    cells[-1] = Cell(
        batch_size=sizes[-1], k=kmax, skipped="a step takes 1536 tokens, the engine schedules at most 1280"
    )
    return Measurements(
        engine_version="0.32.0",
        device="NVIDIA L4",
        scheduler="async",
        graph_sizes=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
        grid=tuple(cells),
        levels=tuple(
            Level(
                batch_size=b,
                half_width=noise.uniform(0.005, 0.02),
                cohorts=noise.randrange(3, 9),
                dropped_steps=noise.randrange(40),
                stopped="Known" if b < 128 else "Budget",
            )
            for b in sizes
        ),
        acceptance=tuple(
            Acceptance(
                k=k,
                acceptance_length=Interval(mean=lengths[k], half_width=0.05 * (lengths[k] - 1)),
                here=0.008 * (lengths[k] - 1),
                prompts=80 if k else 0,
                by_position=tuple(round(rate * (1 - 0.01 * k * i), 4) for i, rate in enumerate(RATES[:k])),
            )
            for k in range(kmax + 1)
        ),
        contrasts=tuple(
            AcceptanceContrast(k=k, other=other, half_width=0.006 * (k - other))
            for k in range(kmax + 1)
            for other in range(k)
        ),
        spot_check=SpotCheck(k=kmax, batch_size=32, ratio=Interval(mean=1.004, half_width=0.011)),
        baseline=tuple(
            BaselineCell(
                batch_size=b, itl_ms=Interval(mean=itl_ms(b, None), half_width=0.01 * itl_ms(b, None)), blocks=40
            )
            for b in sizes
        ),
        boot_drift=0.012,
        boot_drift_measured=True,
        loops=_loops(),
        mean_context_tokens=402.5,
        distinct_prompts=80,
        seconds={
            "bootBaseline": 65.2,
            "baseline": 48.0,
            "bootEngine": 82.4,
            "acceptance": 96.3,
            "grid": 203.7,
            "total": 540.1,
        },
    )


def loop_rate(arm: Arm, clients: int) -> float:
    """Tokens/s of an arm in a closed loop: nine tenths of the pure steps' goodput, the rest are prefills."""
    served = {"None": None, "Static": arm.k}
    k = served[arm.kind] if arm.kind in served else next(r.k for r in TABLE if r.first <= clients <= r.last)
    return 900 * clients * (1.0 + sum(RATES[: k or 0])) / itl_ms(clients, k)


def _loops() -> tuple[ArmLoop, ...]:
    return tuple(
        ArmLoop(
            arm=arm,
            points=tuple(
                LoopPoint(
                    concurrency=clients,
                    tokens_per_second=Interval(mean=loop_rate(arm, clients), half_width=0.02 * loop_rate(arm, clients)),
                    ttft_ms=80 + clients,
                )
                for clients in (1, 8, 9, 40, 41, 120, 121, 256)
            ),
        )
        for arm in (NONE, STATIC, SERVED)
    )


def decision() -> Decision:
    """A table that wins."""
    return Decision(
        verdict="Dynamic",
        reason="The table has 1.62 times the goodput of no speculation on average and loses nowhere.",
        table=TABLE,
        static_k=2,
        capture_sizes=(1, 2, 4, 8, 16),
        speedups=tuple(
            Speedup(
                batch_size=size,
                over_baseline=round(loop_rate(SERVED, size) / loop_rate(NONE, size), 3),
                half_width=0.03,
                over_static=round(loop_rate(SERVED, size) / loop_rate(STATIC, size), 3),
                verified=True,
            )
            for size in (1, 8, 40, 120, 256)
        ),
        warnings=("80 prompts are fewer than twice the largest batch size 256: they are reused within a batch.",),
    )


def profile(**changes: object) -> Profile:
    """A finished profile."""
    values: dict[str, object] = {
        "key": "specserve-0123456789ab",
        "measured_at": WHEN,
        "measurements": measurements(),
        "decision": decision(),
        "request": request(),
    }
    return Profile.model_validate({**values, **changes})


def partial() -> PartialProfile:
    """One that ended in the grid: the largest batch sizes are not there."""
    whole = measurements()
    seen = whole.model_copy(
        update={
            "grid": tuple(cell for cell in whole.grid if cell.batch_size <= 16),
            "levels": tuple(level for level in whole.levels if level.batch_size <= 16),
            "loops": (),
        }
    )
    why = "TimedOut: no profile within 3580 s; it was busy with: measuring the grid"
    return PartialProfile(partial=why, measured_at=WHEN, measurements=seen, request=request())
