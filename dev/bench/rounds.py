"""From what either way found to the common form that ``precision`` compares. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import fmean

from bench.precision import Round, Z
from specserve_profiler.contract.model import Model
from specserve_profiler.contract.profile import Measurements, Profile
from specserve_profiler.statistics import estimate


class StaticBoot(Model):
    """What the boot of one K found, in the usual way."""

    k: int
    """0: no speculation."""
    cohort_ms: dict[int, tuple[float, ...]]
    """Batch size -> ITL of each cohort."""
    generations: dict[int, tuple[float, float]]
    """Prompt -> (tokens, verify steps) of its whole generation; empty without speculation."""
    boot_seconds: float
    measuring_seconds: float


def round_of_boots(boots: Sequence[StaticBoot]) -> Round:
    """One round of the usual way: a boot for every K from 0. AL is compared prompt by prompt.

    The cohort is the unit of sampling, so drift within a boot is in its variance and drift between boots is not.
    """
    drafting = {boot.k: boot for boot in boots if boot.k > 0}
    influences = {k: estimate.influences(boot.generations) for k, boot in drafting.items()}
    cohorts = {(size, boot.k): values for boot in boots for size, values in boot.cohort_ms.items()}
    deviation = cohort_variance(cohorts.values())
    return Round(
        itl_ms={cell: fmean(values) for cell, values in cohorts.items()},
        itl_variance={cell: deviation / len(values) for cell, values in cohorts.items()},
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


def cohort_variance(cells: Iterable[Sequence[float]]) -> float:
    """Variance of the log ITL of a cohort about that of its cell, pooled over all cells.

    Raises ValueError where no cell has two cohorts.
    """
    repeated = [[math.log(value) for value in values] for values in cells if len(values) > 1]
    degrees = sum(len(values) - 1 for values in repeated)
    if not degrees:
        raise ValueError("no cell was measured twice, so nothing is known of its spread: give more --seconds")
    return sum((value - fmean(values)) ** 2 for values in repeated for value in values) / degrees


def _length(boot: StaticBoot) -> float:
    return sum(a for a, _ in boot.generations.values()) / sum(b for _, b in boot.generations.values())


def round_of_profile(profile: Profile) -> Round:
    """One profile of ours: the baseline's boot stands for K = 0, the paired boot for all others.

    Between K the level that all share cancels; against the baseline it does not, so it counts there. Half-widths are
    taken for those of a normal: those of few degrees of freedom are Student's, so this is unkind to us, not to the
    other way.
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
