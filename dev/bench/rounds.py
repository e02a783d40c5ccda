"""From what either way found to the common form that ``precision`` compares. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from bench.precision import Round, Z
from specserve_profiler import estimate
from specserve_profiler.contract import Measurements, Model, Profile


class StaticBoot(Model):
    """What the boot of one K found, in the usual way."""

    k: int
    """0: no speculation."""
    itl_ms: dict[int, float]
    """By batch size."""
    itl_half_width: dict[int, float]
    """Relative, 95 %, over cohorts: drift inside the boot included, drift between boots not."""
    generations: dict[int, tuple[float, float]]
    """Prompt -> (tokens, verify steps) of its whole generation; empty without speculation."""
    boot_seconds: float
    measuring_seconds: float


def round_of_boots(boots: Sequence[StaticBoot]) -> Round:
    """One round of the usual way: a boot for every K from 0. AL is compared prompt by prompt."""
    drafting = {boot.k: boot for boot in boots if boot.k > 0}
    influences = {k: estimate.influences(boot.generations) for k, boot in drafting.items()}
    return Round(
        itl_ms={(size, boot.k): ms for boot in boots for size, ms in boot.itl_ms.items()},
        itl_variance={
            (size, boot.k): (half_width / Z) ** 2 for boot in boots for size, half_width in boot.itl_half_width.items()
        },
        acceptance={0: 1.0, **{k: _length(boot) for k, boot in drafting.items()}},
        acceptance_variance={
            **{(0, k): estimate.log_ratio_deviation(entry, {}) ** 2 for k, entry in influences.items()},
            **{
                (k, other): estimate.log_ratio_deviation(influences[k], influences[other]) ** 2
                for k, other in combinations(sorted(influences), 2)
            },
        },
        boot_seconds=sum(boot.boot_seconds for boot in boots),
        measuring_seconds=sum(boot.measuring_seconds for boot in boots),
    )


def _length(boot: StaticBoot) -> float:
    return sum(a for a, _ in boot.generations.values()) / sum(b for _, b in boot.generations.values())


def round_of_profile(profile: Profile) -> Round:
    """One profile of ours: the baseline's boot stands for K = 0, the paired boot for all others.

    Between K the level that all share cancels; against the baseline it does not, so it counts there.
    Raises ValueError where a cell is missing: the two ways are compared on the same ones.
    """
    measured = profile.measurements
    missing = [f"({cell.batch_size}, {cell.k}): {cell.skipped}" for cell in measured.grid if cell.itl_ms is None]
    if missing:
        raise ValueError(f"cells (batch size, K) were not measured: {'; '.join(missing)}")
    levels = {level.batch_size: level.half_width for level in measured.levels}
    itl = {(cell.batch_size, cell.k): cell.itl_ms for cell in measured.grid if cell.k > 0 and cell.itl_ms is not None}
    spread = {(cell.batch_size, cell.k): (cell.spread / Z) ** 2 for cell in measured.grid if cell.k > 0}
    base = {(cell.batch_size, 0): cell.itl_ms for cell in measured.baseline}
    boots = _boot_seconds(measured)
    return Round(
        itl_ms={**itl, **{cell: ms.mean for cell, ms in base.items()}},
        itl_variance={
            **spread,
            **{
                cell: (estimate.relative(ms) / Z) ** 2 + (levels.get(cell[0], 0.0) / Z) ** 2
                for cell, ms in base.items()
            },
        },
        acceptance={entry.k: entry.acceptance_length.mean for entry in measured.acceptance},
        acceptance_variance={
            **{
                (0, entry.k): (estimate.relative(entry.acceptance_length) / Z) ** 2
                for entry in measured.acceptance
                if entry.k > 0
            },
            **{(min(c.k, c.other), max(c.k, c.other)): (c.half_width / Z) ** 2 for c in measured.contrasts},
        },
        boot_seconds=boots,
        measuring_seconds=measured.seconds["total"] - boots,
    )


def _boot_seconds(measured: Measurements) -> float:
    return sum(seconds for stage, seconds in measured.seconds.items() if stage == "stops" or stage.startswith("boot "))
