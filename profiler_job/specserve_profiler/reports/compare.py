"""Two profiles: what moved between them, and is it more than chance. Pure.

Every batch size and K is a comparison of its own, so some would look significant by chance. Significance is by Holm's
step-down procedure over all of them together, ITL and acceptance length (Holm 1979, Scandinavian Journal of Statistics
6): the chance of even one false "moved" is at most 5 %. The drift between boots is part of every ITL's error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any

from specserve_profiler.contract.model import Model
from specserve_profiler.contract.profile import Acceptance, Cell, Measurements, Profile, short_table
from specserve_profiler.decision.table import k_at
from specserve_profiler.statistics.estimate import relative

ALPHA = 0.05
"""Chance of one or more false findings in a whole comparison."""
ROUNDING = 0.0005
"""Relative error of a stored mean: profiles keep four digits."""
_Z_975 = NormalDist().inv_cdf(0.975)


class Difference(Model):
    """A part of the identity that is not the same."""

    field: str
    before: str
    after: str


class Moved(Model):
    """One quantity in both profiles, as the ratio after over before."""

    k: int | None
    """None for the baseline."""
    batch_size: int | None = None
    """None for the acceptance length, which belongs to no batch size."""
    ratio: float
    half_width: float
    """Relative, at 95 %, of this comparison alone."""
    significant: bool
    """Beyond chance among all comparisons."""
    sentence: str


class ChosenK(Model):
    """K of the two tables at one batch size that both measured."""

    batch_size: int
    before: int
    after: int
    sentence: str


class Comparison(Model):
    """What moved from one profile to another."""

    identity: tuple[Difference, ...]
    """Empty where both are of one identity as far as they tell."""
    itl: tuple[Moved, ...]
    acceptance: tuple[Moved, ...]
    chosen: tuple[ChosenK, ...]
    verdicts: tuple[str, str]
    sentences: tuple[str, ...]
    """What a person should know, most important first."""


def compare(before: Profile, after: Profile) -> Comparison:
    """All that two profiles have in common, compared."""
    identity = tuple(_identity(before, after))
    itl = list(_itl(before.measurements, after.measurements))
    acceptance = list(_acceptance(before, after))
    significant = _holm([_p_value(moved) for moved in (*itl, *acceptance)])
    marked = [
        moved.model_copy(update={"significant": yes, "sentence": _sentence(moved, yes)})
        for moved, yes in zip((*itl, *acceptance), significant, strict=True)
    ]
    comparison = Comparison(
        identity=identity,
        itl=tuple(marked[: len(itl)]),
        acceptance=tuple(marked[len(itl) :]),
        chosen=tuple(_chosen(before, after)),
        verdicts=(before.decision.verdict, after.decision.verdict),
        sentences=(),
    )
    return comparison.model_copy(update={"sentences": tuple(_summary(comparison, before, after))})


def _identity(before: Profile, after: Profile) -> Iterator[Difference]:
    """Parts of the identity that differ: of the engine as seen, and of the request where both profiles hold one."""
    for name in ("engine_version", "device", "scheduler"):
        one, two = getattr(before.measurements, name), getattr(after.measurements, name)
        if one != two:
            yield Difference(field=name.replace("_", " "), before=one or "not told", after=two or "not told")
    if before.measurements.graph_sizes != after.measurements.graph_sizes:
        one, two = (_graphs(profile.measurements.graph_sizes) for profile in (before, after))
        yield Difference(field="captured graphs", before=one, after=two)
    if before.request is None or after.request is None:
        if before.key != after.key:
            yield Difference(field="key", before=before.key, after=after.key)
        return
    old, new = (_leaves(p.request.model_dump(mode="json", by_alias=True)) for p in (before, after) if p.request)
    for field in sorted((old.keys() | new.keys()) - {"key"}):
        if old.get(field) != new.get(field):
            yield Difference(field=field, before=str(old.get(field)), after=str(new.get(field)))


def _graphs(sizes: Sequence[int]) -> str:
    return f"{len(sizes)} up to {max(sizes)} tokens" if sizes else "none"


def _leaves(value: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Dotted path -> value of everything in a nested object that is no object."""
    leaves: dict[str, Any] = {}
    for name, entry in value.items():
        leaves |= _leaves(entry, f"{path}{name}.") if isinstance(entry, dict) else {f"{path}{name}": entry}
    return leaves


def _itl(before: Measurements, after: Measurements) -> Iterator[Moved]:
    old, new = _cells(before), _cells(after)
    levels = [{level.batch_size: level.half_width for level in m.levels} for m in (before, after)]
    drift = max(_between_two_boots(before), _between_two_boots(after))
    for size, k in sorted(old.keys() & new.keys()):
        one, two = old[size, k], new[size, k]
        errors = [one.spread, two.spread, *(level.get(size, 0.0) for level in levels), drift, ROUNDING]
        yield _moved(one.itl_ms or 1.0, two.itl_ms or 1.0, math.hypot(*errors), k, size)
    baselines = [{cell.batch_size: cell.itl_ms for cell in m.baseline} for m in (before, after)]
    for size in sorted(baselines[0].keys() & baselines[1].keys()):
        first, second = baselines[0][size], baselines[1][size]
        half_width = math.hypot(relative(first), relative(second), drift, ROUNDING)
        yield _moved(first.mean, second.mean, half_width, None, size)


def _between_two_boots(measured: Measurements) -> float:
    """Where drift was measured it stands for one boot against the mean of two: variances of 1.5 boots, not of 2."""
    return measured.boot_drift * (math.sqrt(2 / 1.5) if measured.boot_drift_measured else 1.0)


def _cells(measured: Measurements) -> dict[tuple[int, int], Cell]:
    return {(cell.batch_size, cell.k): cell for cell in measured.grid if cell.itl_ms is not None}


def _acceptance(before: Profile, after: Profile) -> Iterator[Moved]:
    """Acceptance lengths. Of the same prompts only what they vary by themselves is an error."""
    old = {entry.k: entry for entry in before.measurements.acceptance}
    new = {entry.k: entry for entry in after.measurements.acceptance}
    same = _same_prompts(before, after)
    for k in sorted((old.keys() & new.keys()) - {0}):
        errors = [_acceptance_error(entry, same=same) for entry in (old[k], new[k])]
        means = old[k].acceptance_length.mean, new[k].acceptance_length.mean
        yield _moved(*means, math.hypot(*errors, ROUNDING), k, None)


def _same_prompts(before: Profile, after: Profile) -> bool:
    one, two = before.request, after.request
    return one is not None and two is not None and (one.workload, one.prompts) == (two.workload, two.prompts)


def _acceptance_error(entry: Acceptance, *, same: bool) -> float:
    if same:
        return entry.here / entry.acceptance_length.mean
    return relative(entry.acceptance_length)


def _moved(before: float, after: float, half_width: float, k: int | None, size: int | None) -> Moved:
    return Moved(k=k, batch_size=size, ratio=after / before, half_width=half_width, significant=False, sentence="")


def _p_value(moved: Moved) -> float:
    """Two-sided, of the log ratio being 0."""
    z = abs(math.log(moved.ratio)) / (moved.half_width / _Z_975)
    return math.erfc(z / math.sqrt(2))


def _holm(p_values: Sequence[float], alpha: float = ALPHA) -> list[bool]:
    """Which hypotheses fall, by Holm's procedure."""
    fallen = [False] * len(p_values)
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for rank, index in enumerate(order):
        if p_values[index] > alpha / (len(p_values) - rank):
            break
        fallen[index] = True
    return fallen


def _sentence(moved: Moved, significant: bool) -> str:
    what = "The acceptance length" if moved.batch_size is None else f"ITL at batch size {moved.batch_size}"
    of = "of the baseline" if moved.k is None else f"of K = {moved.k}"
    change = f"{moved.ratio - 1:+.1%} (± {moved.half_width:.1%})"
    return f"{what} {of} moved by {change}." if significant else f"{what} {of}: {change}, no more than chance."


def _chosen(before: Profile, after: Profile) -> Iterator[ChosenK]:
    sizes = [{cell.batch_size for cell in profile.measurements.grid} for profile in (before, after)]
    for size in sorted(sizes[0] & sizes[1]):
        old, new = k_at(before.decision.table, size), k_at(after.decision.table, size)
        text = f"At batch size {size} the table keeps K = {old}." if old == new else (
            f"At batch size {size} the table goes from K = {old} to K = {new}."
        )  # fmt: skip
        yield ChosenK(batch_size=size, before=old, after=new, sentence=text)


def _summary(comparison: Comparison, before: Profile, after: Profile) -> Iterator[str]:
    for difference in comparison.identity:
        yield f"They are not of one identity: {difference.field} is {difference.before}, then {difference.after}."
    old, new = comparison.verdicts
    if old == new:
        yield f"The verdict stays {old}."
    else:
        yield f"The verdict goes from {old} to {new}: {after.decision.reason}"
    if before.decision.table == after.decision.table:
        yield f"The table stays {short_table(before.decision.table)}."
    else:
        yield f"The table goes from {short_table(before.decision.table)} to {short_table(after.decision.table)}."
    everything = (*comparison.itl, *comparison.acceptance)
    moved = [entry for entry in everything if entry.significant]
    yield from (entry.sentence for entry in moved)
    if not everything:
        yield "They have no batch size and K in common."
    elif not moved:
        yield f"Nothing moved beyond chance ({len(everything)} comparisons, Holm at {ALPHA:.0%})."
    if moved and comparison.identity == () and old == new and before.decision.table == after.decision.table:
        yield "What moved changes neither table nor verdict."
