"""The verdict that the closed loop shows: measured tokens per second in place of predictions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specserve_profiler.contract.profile import ArmLoop, Row, Verdict
from specserve_profiler.decision.contest import Contest
from specserve_profiler.decision.evidence import Evidence
from specserve_profiler.decision.predicted import GAIN, Outcome, choice, gain_text
from specserve_profiler.decision.table import LOSS

_VERDICTS: Mapping[str, Verdict] = {"Static": "Static", "Table": "Dynamic", "Adaptive": "Adaptive"}


def seen(contest: Contest, evidence: Evidence, prediction: Outcome, weights: Mapping[int, float]) -> Outcome:
    """The outcome by measured arms, by the rules of ``verdict.decide``; ``prediction`` says what no loop does."""
    table = contest.table()
    shown = table or next((loop for loop in contest.arms if loop.arm.kind == "Table" and not loop.live), None)
    rows = shown.arm.rows if shown is not None else prediction.rows
    beaten = () if table is None else contest.beaten_at(table)
    champion: ArmLoop | None = None
    tables = [table] if table is not None and not beaten else []
    for loop in (*contest.standing("Static")[:1], *tables, *contest.standing("Adaptive")[:1]):
        if champion is None or _replaces(contest, loop, champion):
            champion = loop
    if champion is not None:
        return _champion(contest, champion, prediction, rows)
    if table is not None and prediction.static_k and not _was_tried(contest, prediction.static_k):
        return _unseen_static(contest, evidence, prediction, table, beaten, weights)
    return _nothing_stands(contest, prediction, rows)


def _replaces(contest: Contest, challenger: ArmLoop, champion: ArmLoop) -> bool:
    against = contest.against(challenger, champion)
    return against is not None and bool(against.ahead(GAIN)) and not against.losing(LOSS)


def _champion(contest: Contest, loop: ArmLoop, prediction: Outcome, rows: tuple[Row, ...]) -> Outcome:
    against = contest.over_baseline(loop)
    assert against is not None  # noqa: S101 - it stands
    others = [str(other.arm) for other in contest.arms if other is not loop and not other.live and not other.failed]
    beside = f"; measured beside it: {', '.join(others)}" if others else ""
    reason = f"In the closed loop {_named(loop)} has {gain_text(against, 'tokens/s')}{beside}."
    static_k = loop.arm.k if loop.arm.kind == "Static" and loop.arm.k is not None else prediction.static_k
    if loop.arm.kind == "Table" and len(rows) == 1:
        return Outcome("Static" if rows[0].k else "None", reason, rows, rows[0].k, against, loop)
    return Outcome(_VERDICTS[loop.arm.kind], reason, rows, static_k, against, loop)


def _was_tried(contest: Contest, k: int) -> bool:
    return any(loop.arm.kind == "Static" and loop.arm.k == k for loop in contest.arms)


def _unseen_static(
    contest: Contest,
    evidence: Evidence,
    prediction: Outcome,
    table: ArmLoop,
    beaten: Sequence[int],
    weights: Mapping[int, float],
) -> Outcome:
    """A table that wins but loses at its edges: the single K, if the grid is sure of it."""
    k, where = prediction.static_k, ", ".join(map(str, beaten))
    alone = evidence.against_baseline(choice(evidence, table.arm.rows, k), weights)
    lost = f"At concurrency {where} the table loses more than {LOSS:.0%} to one K of its own"
    if alone.gains and not alone.losing(LOSS):
        warning = f"Static K = {k} was not seen in the closed loop: set profile.verify to Full to measure it, too."
        return Outcome(
            "Static", f"{lost}, so K = {k} is served: it has {gain_text(alone, 'goodput')}.", table.arm.rows, k, alone,
            warnings=(warning,),
        )  # fmt: skip
    return Outcome("None", f"{lost}, and no single K holds against no speculation.", table.arm.rows, k,
                   contest.over_baseline(table), table)  # fmt: skip


def _nothing_stands(contest: Contest, prediction: Outcome, rows: tuple[Row, ...]) -> Outcome:
    """No speculation, and why: the best arm's loss."""
    seen = [(loop, against) for loop in contest.arms if (against := contest.over_baseline(loop)) is not None]
    if not seen:
        failed = next((loop for loop in contest.arms if loop.failed is not None), None)
        why = f"the engine does not serve with {failed.arm}" if failed else "no arm was seen at every concurrency"
        return Outcome("None", f"Nothing that speculates was seen to work: {why}.", rows, prediction.static_k, None)
    loop, against = max(seen, key=lambda entry: entry[1].mean)
    losing = against.losing(LOSS)
    if losing:
        where = ", ".join(map(str, losing))
        why = f"loses more than {LOSS:.0%} against no speculation at concurrency {where}, beyond the error"
    else:
        why = f"has {gain_text(against, 'tokens/s')}, which is no gain beyond the error"
    if against.gains and not losing:
        why = "loses to one K of its own at an edge, and no single K was seen to hold"
    return Outcome("None", f"In the closed loop {_named(loop)} {why}.", rows, prediction.static_k, against, loop)


def _named(loop: ArmLoop) -> str:
    return "the table" if loop.arm.kind == "Table" else str(loop.arm)
