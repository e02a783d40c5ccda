"""`bench serving`: the served engine at several client concurrencies: no speculation, each fixed K, the table."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import show
from bench.order import shuffled
from bench.picture import draw
from bench.serving_report import CLOSE, AgainstBest, Curve, Loops, Promise, against_best, curves, promise
from bench.setting import Setting, in_a_boot
from specserve_profiler.contract.model import Model
from specserve_profiler.contract.profile import Arm, LoopPoint, Profile
from specserve_profiler.dialect import render
from specserve_profiler.session.closed_loop import closed_loop
from specserve_profiler.session.console import Stage
from specserve_profiler.session.measure import Bench

_WARM_UP_SECONDS = 3.0
_APART = 101
"""Positions in the prompts between two concurrencies."""


class Raw(Model):
    """What was served: enough to make report and picture again."""

    kmax: int
    profile: Profile
    loops: tuple[Loops, ...]


@dataclass(frozen=True)
class Report:
    """What `bench serving` found."""

    rounds: int
    curves: tuple[Curve, ...]
    table_against_best: tuple[AgainstBest, ...]
    table_over_kmax: Promise


def arms_of(profile: Profile, kmax: int) -> list[Arm]:
    """No speculation, every fixed K, and the profile's table, whatever its verdict."""
    static = [Arm(kind="Static", k=k) for k in range(1, kmax + 1)]
    return [Arm(kind="None"), *static, Arm(kind="Table", rows=profile.decision.table)]


def measure(
    setting: Setting, profile: Profile, concurrencies: Sequence[int], seconds: float, rounds: int, seed: int
) -> Raw:
    """A boot for each arm of each round, in random order; the same held-out prompts in the same order for every arm."""
    loops = []
    order = shuffled(arms_of(profile, setting.kmax), rounds, seed)
    for number, (index, arm) in enumerate(order, 1):
        show.say(f"boot {number} of {len(order)}, round {index + 1}: {arm}")
        loops.append(asyncio.run(_serve(setting, profile, arm, index, concurrencies, seconds)))
    return Raw(kmax=setting.kmax, profile=profile, loops=tuple(loops))


async def _serve(
    setting: Setting, profile: Profile, arm: Arm, index: int, concurrencies: Sequence[int], seconds: float
) -> Loops:
    request = setting.request(setting.pair.heldout_prompts)

    async def loops(bench: Bench) -> tuple[LoopPoint, ...]:
        stage = Stage(str(arm), _WARM_UP_SECONDS + seconds * len(concurrencies))
        await closed_loop(bench, max(concurrencies), _WARM_UP_SECONDS, 0, stage)
        return tuple(
            [await closed_loop(bench, size, seconds, place * _APART, stage) for place, size in enumerate(concurrencies)]
        )

    capture = profile.decision.capture_sizes if arm.kind == "Table" else ()
    points, timed = await in_a_boot(
        request,
        str(arm),
        render.arm_config(request.speculation, arm),
        loops,
        render.capture_arguments(capture, request.engine.args),
    )
    return Loops(round=index, arm=arm, points=points, boot_seconds=timed.boot_seconds)


def report(raw: Raw) -> Report:
    """What the loops say."""
    found = curves(raw.loops)
    rounds = len({entry.round for entry in raw.loops})
    return Report(rounds, tuple(found), tuple(against_best(found)), promise(raw.profile, found, raw.kmax))


def text(found: Report) -> str:
    """The report for a person."""
    sizes = list(found.curves[0].tokens_per_second)
    rates = show.table(
        ["tokens/s (p95 TTFT, ms)", *(f"{size}" for size in sizes)],
        [[curve.arm, *(_rate(curve, size) for size in sizes)] for curve in found.curves],
    )
    best = show.table(
        ["client concurrency", "best other arm", "table over it", f"at least {CLOSE}"],
        [
            [entry.concurrency, entry.best, _ratio(entry.share.mean, entry.share.half_width), _close(entry)]
            for entry in found.table_against_best
        ],
    )
    kept = found.table_over_kmax
    over_kmax = (
        f"table over fixed Kmax at concurrency {kept.batch_size}: {_ratio(kept.seen.mean, kept.seen.half_width)}, "
        f"predicted {_ratio(kept.predicted.mean, kept.predicted.half_width)}: "
        f"{'within' if kept.kept else 'outside'} the joint interval"
    )
    drift = f"{found.rounds} round(s); intervals {'include' if found.rounds > 1 else 'leave out'} drift between boots"
    return "\n".join([rates, "", best, "", over_kmax, drift])


def _rate(curve: Curve, size: int) -> str:
    rate = curve.tokens_per_second[size]
    return f"{rate.mean:.0f} ± {rate.half_width:.0f} ({curve.ttft_ms[size]:.0f})"


def _ratio(mean: float, half_width: float) -> str:
    return f"{mean:.3f} ± {half_width:.3f}"


def _close(entry: AgainstBest) -> str:
    if entry.close:
        return "yes"
    return "no" if entry.surely_behind else "within its interval"


def run(
    setting: Setting,
    profile: Profile,
    concurrencies: Sequence[int],
    seconds: float,
    rounds: int,
    seed: int,
    output: Path,
    picture: Path,
) -> None:
    """Serves every arm, writes JSON and picture, prints the report."""
    write(measure(setting, profile, concurrencies, seconds, rounds, seed), output, picture)


def write(raw: Raw, output: Path, picture: Path) -> None:
    """Writes JSON and picture, prints the report."""
    found = report(raw)
    show.write_json(output, {"report": found, "raw": raw})
    draw(found.curves, picture)
    print(text(found))
