"""The verdict that the grid predicts, where no arm was seen in the closed loop. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specserve_profiler.contract.profile import ArmLoop, Row, Verdict
from specserve_profiler.decision.evidence import Against, Evidence
from specserve_profiler.decision.table import LOSS, TIE, best_rows, k_at, merged_rows

GAIN = 0.01
"""A table, or another arm, is served instead of a simpler one where it is better by more than this somewhere."""


@dataclass(frozen=True)
class Outcome:
    """A verdict, its table, and what backs it."""

    verdict: Verdict
    reason: str
    rows: tuple[Row, ...]
    static_k: int
    against: Against | None
    """The served arm against the baseline; the best one that speculates where none is served."""
    loop: ArmLoop | None = None
    """Where that was seen; None where it is predicted."""
    warnings: tuple[str, ...] = ()


def predicted(evidence: Evidence, max_num_seqs: int, weights: Mapping[int, float]) -> Outcome:
    """Table, best single K and verdict by the rules that ``verdict.decide`` gives."""
    rows = merged_rows(evidence, max_num_seqs, weights)
    against = evidence.against_baseline(choice(evidence, rows), weights)
    if against.losing(LOSS):
        best = best_rows(evidence.surface, max_num_seqs)
        unmerged = evidence.against_baseline(choice(evidence, best), weights)
        if not unmerged.losing(LOSS):
            rows, against = best, unmerged
    single = rows[0].k if len(rows) == 1 else evidence.best_single(weights, TIE)
    alone = None if not single else evidence.against_baseline(choice(evidence, rows, single), weights)
    verdict, reason, backing = _predicted_verdict(evidence, rows, against, single, alone, weights)
    static_k = single if single and alone is not None and alone.mean > 0 else 0
    return Outcome(verdict, reason, rows, static_k, backing)


def _predicted_verdict(
    evidence: Evidence,
    rows: Sequence[Row],
    against: Against,
    single: int | None,
    alone: Against | None,
    weights: Mapping[int, float],
) -> tuple[Verdict, str, Against]:
    gain = gain_text(against, "goodput")
    if all(row.k == 0 for row in rows):
        reason = "No number of draft tokens beats drafting none at any batch size, so the drafter only costs."
        return "None", reason, against
    losing = against.losing(LOSS)
    if losing:
        where = ", ".join(map(str, losing))
        reason = (
            f"At batch size {where} the best K loses more than {LOSS:.0%} against no speculation, beyond the error."
        )
        return "None", reason, against
    if not against.gains:
        return "None", f"The table has {gain}, which is no gain beyond the error.", against
    if len(rows) == 1:
        return "Static", f"K = {rows[0].k} is best, or as good as the best, at every batch size, with {gain}.", against
    if single and alone is not None and alone.gains and not alone.losing(LOSS):
        ahead = evidence.against_single(choice(evidence, rows), single, weights).ahead(GAIN)
        if not ahead:
            close = f"the table is nowhere better by more than {GAIN:.0%} beyond the error"
            return "Static", f"K = {single} has {gain_text(alone, 'goodput')}, and {close}.", alone
        where = ", ".join(map(str, ahead))
        return (
            "Dynamic",
            f"The table has {gain}; it beats K = {single}, the best single K, at batch size {where}.",
            against,
        )
    return "Dynamic", f"The table has {gain}; no single K keeps up with it at every batch size.", against


def gain_text(against: Against, what: str) -> str:
    """How much more of ``what`` there is than without speculation, for a sentence."""
    return f"{math.exp(against.mean):.2f} times the {what} of no speculation (± {against.half_width:.0%})"


def choice(evidence: Evidence, rows: Sequence[Row], k: int | None = None) -> dict[int, int]:
    """K at each measured size: of a table, or one."""
    return {size: k_at(rows, size) if k is None else k for size in evidence.surface.sizes}
