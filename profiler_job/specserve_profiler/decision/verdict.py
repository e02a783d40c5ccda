"""What should be served: from measurements to a decision with a reason. Pure.

Without closed loops the grid predicts. With them, tokens per second at the same concurrencies replace the predictions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from specserve_profiler.contract.profile import Arm, Decision, Measurements, Speedup
from specserve_profiler.decision.capture import capture_sizes
from specserve_profiler.decision.contest import Contest
from specserve_profiler.decision.evidence import Against, Evidence
from specserve_profiler.decision.notes import notes
from specserve_profiler.decision.predicted import Outcome, choice, predicted
from specserve_profiler.decision.seen import seen
from specserve_profiler.decision.table import LOSS, TIE, k_at


def decide(measured: Measurements, max_num_seqs: int, weights: Mapping[int, float] | None = None) -> Decision:
    """The table for batch sizes 1 to ``max_num_seqs`` and the verdict over it. Intervals are those of 95 %.

    ``weights`` are shares of the load by batch size, in any unit; empty: all measured sizes alike. They decide which K
    is best alone, which of two tables with as many rows, and the gain on the whole. A batch size without load cannot
    make an arm lose.

    Predicted, with the drift between boots in every comparison with the baseline:

    - ``None`` if every row has K = 0 (which still runs the drafter, so it is never better than none at all), if the
      mean log ratio over the baseline is not above 0 by more than its interval, or if the table loses more than
      ``LOSS`` beyond its interval at some batch size;
    - ``Dynamic`` if the table beats the best single K somewhere by more than ``GAIN`` and beyond the interval, or no
      single K runs everywhere or stands the comparison with the baseline;
    - else ``Static``: noise must not make a table hop.

    In the closed loop an arm stands if it gains on the baseline on the whole and loses nowhere, by the same measures.
    Of the standing arms the simplest is served (static K, table, adaptive verification) unless the next is ahead by
    more than ``GAIN`` beyond the interval at some concurrency and loses more than ``LOSS`` at none. A table that loses
    to a single K of its own boot, after repair, is not served. Nor is an arm that was never seen, except the single K
    that the grid is sure of.

    Raises ValueError where there is nothing to decide on (no measured cell, or no baseline at any of their batch sizes)
    and where ``weights`` has nothing above 0.
    """
    weights = weights or {}
    evidence = Evidence.of(measured, max_num_seqs)
    outcome = predicted(evidence, max_num_seqs, weights)
    contest = Contest.of(measured, weights)
    if contest is not None:
        outcome = seen(contest, evidence, outcome, weights)
    sizes = capture_sizes(outcome.rows, measured.graph_sizes, max_num_seqs) if outcome.verdict == "Dynamic" else ()
    return Decision(
        verdict=outcome.verdict,
        reason=outcome.reason,
        table=outcome.rows,
        static_k=outcome.static_k,
        capture_sizes=sizes,
        speedups=tuple(_speedups(outcome, evidence, contest, weights)),
        warnings=(*outcome.warnings, *notes(measured, evidence, outcome.rows, max_num_seqs, contest)),
    )


def undecided(decision: Decision, measured: Measurements, weights: Mapping[int, float] | None = None) -> bool:
    """Whether a second boot of the baseline is worth its time: the verdict lies within interval plus assumed drift.

    So it is where the gain on the whole is within its interval, or a loss of more than ``LOSS`` at some batch size is;
    and before something that gains on the whole is given up, for the assumed drift may be too small for this machine.
    False where the drift was measured already.
    """
    if measured.boot_drift_measured or not any(row.k for row in decision.table):
        return False
    weights = weights or {}
    against = _against(decision, measured, weights)
    if against is None:
        return False
    limit = math.log(1 - LOSS)
    losses = [ratio for ratio in against.counted.values() if ratio.mean < limit <= ratio.mean + ratio.half_width]
    gives_up = decision.verdict == "None" and against.mean > 0
    return abs(against.mean) <= against.half_width or bool(losses) or gives_up


def _against(decision: Decision, measured: Measurements, weights: Mapping[int, float]) -> Against | None:
    """What a decision was taken on: the closed loop of its arm, else of its table, else the grid."""
    contest = Contest.of(measured, weights)
    if contest is not None:
        wanted = Arm(kind="Static", k=decision.static_k) if decision.verdict == "Static" else None
        arms = sorted(contest.arms, key=lambda loop: (loop.arm != wanted, loop.arm.rows != decision.table))
        return next((found for loop in arms if (found := contest.over_baseline(loop)) is not None), None)
    evidence = Evidence.of(measured, decision.table[-1].last)
    k = decision.static_k if decision.verdict == "Static" else None
    return evidence.against_baseline(choice(evidence, decision.table, k), weights)


def _speedups(
    outcome: Outcome, evidence: Evidence, contest: Contest | None, weights: Mapping[int, float]
) -> list[Speedup]:
    if outcome.against is None:
        return []
    return [
        Speedup(
            batch_size=size,
            over_baseline=math.exp(ratio.mean),
            half_width=ratio.half_width,
            over_static=_over_static(outcome, evidence, contest, weights, size),
            verified=outcome.loop is not None,
        )
        for size, ratio in outcome.against.ratios.items()
    ]


def _over_static(
    outcome: Outcome, evidence: Evidence, contest: Contest | None, weights: Mapping[int, float], size: int
) -> float:
    """Over the best single K: as seen, or for a table predicted; 1 where it is that K, or none runs everywhere."""
    loop = outcome.loop
    if outcome.verdict == "Static":
        return 1.0
    if contest is not None and loop is not None:
        static = next((other for other in contest.arms if other.arm == Arm(kind="Static", k=outcome.static_k)), None)
        against = contest.against(loop, static) if static is not None else None
        if against is not None and size in against.ratios:
            return math.exp(against.ratios[size].mean)
    if loop is not None and loop.arm.kind != "Table":
        return 1.0
    goodputs = evidence.surface.goodputs(size)
    k, single = k_at(outcome.rows, size), evidence.best_single(weights, TIE)
    return goodputs[k] / goodputs[single] if k in goodputs and single in goodputs else 1.0
