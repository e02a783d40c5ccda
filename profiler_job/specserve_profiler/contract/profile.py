"""What a profiling Job answers: what was measured, what was decided, or why there is nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from specserve_profiler.contract.bounds import (
    MOST_GRAPHS,
    MOST_K,
    MOST_ROWS,
    MOST_SIZES,
    Amount,
    BatchSize,
    Count,
    Edge,
    Finite,
    HalfWidth,
    K,
    Milliseconds,
    Name,
    Ratio,
    SchemaVersion,
    Share,
    Time,
    Words,
    within,
)
from specserve_profiler.contract.model import SCHEMA_VERSION, Model
from specserve_profiler.contract.request import ProfileRequest

Verdict = Literal["Dynamic", "Static", "None", "Adaptive"]


class Interval(Model):
    """A measured mean with the half-width of its 95 % confidence interval, in the same unit."""

    mean: Finite
    half_width: Annotated[Finite, Field(ge=0)] = 0.0


Itl = Annotated[Interval, within(1e-6, 1e9)]
Length = Annotated[Interval, within(1, MOST_K + 1)]
Rate = Annotated[Interval, within(0, 1e12)]
Times = Annotated[Interval, within(1e-6, 1e6)]


class Cell(Model):
    """One (batch size, K) cell of the grid."""

    batch_size: BatchSize
    k: K
    itl_ms: Milliseconds | None = None
    """Milliseconds per step; None where the cell was not measured, with the reason in ``skipped``."""
    spread: HalfWidth = 0.0
    """Relative 95 % half-width of the cell beside the others of its batch size, without what all of them share.

    Two cells of a batch size were measured in the same seconds: their log ratio is known to ``hypot`` of their spreads.
    """
    blocks: Count = 0
    """Paired blocks behind the mean; the block is the unit of sampling."""
    skipped: Words | None = None

    @model_validator(mode="after")
    def _measured_or_skipped(self) -> Cell:
        if (self.itl_ms is None) == (self.skipped is None):
            raise ValueError(
                f"cell (batch size {self.batch_size}, K {self.k}): either measured or skipped with a reason"
            )
        return self


class Level(Model):
    """What all K of one batch size share."""

    batch_size: BatchSize
    half_width: HalfWidth
    """Relative 95 % half-width of the common level of ITL: drift between cohorts. It cancels between K."""
    cohorts: Count
    dropped_steps: Count = 0
    """Steps inside the measured windows that did not count: a prefill, a preemption, a stall."""
    stopped: Literal["Known", "Budget"]
    """Known: the best K is known to within the indifference. Budget: the time ended before."""


class Acceptance(Model):
    """Acceptance at one fixed K, from whole generations."""

    k: K
    acceptance_length: Length
    """Tokens per request and verify step, 1 + accepted drafts. The interval is over prompts like these."""
    here: HalfWidth = 0.0
    """Half-width for just these prompts: what would change if the same workload were measured again, all of it."""
    prompts: Count
    """Generations behind the mean; the prompt is the unit of sampling."""
    by_position: Annotated[tuple[Share, ...], Field(max_length=MOST_K)] = ()
    """Unconditional acceptance rate of each draft position, 1 to K."""


class AcceptanceContrast(Model):
    """How well the ratio of the acceptance lengths of two K is known. Both saw the same prompts."""

    k: K
    other: K
    half_width: HalfWidth
    """95 % half-width of log(AL(k) / AL(other))."""


class SpotCheck(Model):
    """Acceptance at another batch size, which should be the same."""

    k: K
    batch_size: BatchSize
    ratio: Times
    """AL at this batch size over AL at the other, same prompts."""


class BaselineCell(Model):
    """The engine without speculation at one batch size."""

    batch_size: BatchSize
    itl_ms: Itl
    """Over blocks; drift between boots is ``Measurements.boot_drift``."""
    blocks: Count


class Row(Model):
    """One row of a table: K for batch sizes ``first`` to ``last``, inclusive."""

    first: Edge
    last: Edge
    k: K


class Arm(Model):
    """One way to serve. Arms are data: a verdict chooses among those that were measured."""

    kind: Literal["None", "Static", "Table", "Adaptive"]
    k: K | None = None
    """Static: its K. Adaptive: Kmax."""
    rows: Annotated[tuple[Row, ...], Field(max_length=MOST_ROWS)] = ()
    """Table: its rows."""

    def __str__(self) -> str:
        if self.kind == "None":
            return "no speculation"
        if self.kind == "Static":
            return f"static K = {self.k}"
        return f"table {short_table(self.rows)}" if self.kind == "Table" else "adaptive verification"


class LoopPoint(Model):
    """A closed loop of held-out prompts, refilled, at one client concurrency."""

    concurrency: BatchSize
    tokens_per_second: Rate
    ttft_ms: Amount
    """95th percentile of the time to first token, queueing included."""


class ArmLoop(Model):
    """What one arm did in the closed loop, in a boot of its own and configured as it would be deployed."""

    arm: Arm
    points: Annotated[tuple[LoopPoint, ...], Field(max_length=MOST_SIZES)] = ()
    failed: Words | None = None
    """Why the engine does not run like this; then it must not be deployed like this."""
    live: bool = False
    """True: a table that was followed in the boot of another, to judge its edges. Not configured as deployed."""


def short_table(rows: Iterable[Row]) -> str:
    """A table as people write it: ``1-16:4 17-64:2``, batch sizes and K of each row."""
    return " ".join(f"{row.first}-{row.last}:{row.k}" for row in rows)


class Speedup(Model):
    """Goodput of the table at one batch size (of tokens per second in a closed loop, where verified), as a ratio."""

    batch_size: BatchSize
    over_baseline: Ratio
    half_width: HalfWidth = 0.0
    """Relative 95 % half-width of ``over_baseline``, drift between boots included."""
    over_static: Ratio
    """Over the best single K of the whole grid."""
    verified: bool = False
    """False: predicted from the grid. True: seen in the closed loop."""


Graphs = Annotated[tuple[Annotated[int, Field(ge=1, le=10**7)], ...], Field(max_length=MOST_GRAPHS)]


class Decision(Model):
    """What the measurements say should be served."""

    verdict: Verdict
    reason: Words
    """One sentence for a person: why this verdict."""
    table: Annotated[tuple[Row, ...], Field(min_length=1, max_length=MOST_ROWS)]
    """Covers 1 to maxNumSeqs without gaps, sorted. Present for every verdict, so that it can be looked at."""
    static_k: K
    """The best single K; 0 where not speculating is best."""
    capture_sizes: Graphs = ()
    """Token counts whose graphs the engine must capture for the served arm; empty: the engine's own (or no graphs)."""
    speedups: Annotated[tuple[Speedup, ...], Field(max_length=MOST_SIZES)] = ()
    warnings: Annotated[tuple[Words, ...], Field(max_length=1000)] = ()

    @model_validator(mode="after")
    def _table_has_no_gaps(self) -> Decision:
        expected = 1
        for row in self.table:
            if row.first != expected or row.last < row.first:
                raise ValueError(f"table: row {row.first}-{row.last}: must begin at {expected} and not end before that")
            expected = row.last + 1
        return self

    def check_for(self, max_num_seqs: int, kmax: int) -> None:
        """Raises ValueError where this is no decision for an engine of so many requests and a Kmax."""
        last, k = self.table[-1].last, max(row.k for row in self.table)
        if last < max_num_seqs:
            raise ValueError(f"decision.table: ends at batch size {last}, maxNumSeqs is {max_num_seqs}: measure again")
        for field, value in (("table", k), ("staticK", self.static_k)):
            if value > kmax:
                raise ValueError(f"decision.{field}: K = {value} exceeds maxTokens {kmax}: measure again")


class Measurements(Model):
    """The raw result of a Job, before any decision."""

    engine_version: Name
    device: Name = ""
    """What the engine calls its accelerator."""
    scheduler: Literal["sync", "async"]
    graph_sizes: Graphs = ()
    """Token counts that steps were padded to while measuring, increasing; empty where no graphs are used."""
    grid: Annotated[tuple[Cell, ...], Field(max_length=MOST_SIZES * (MOST_K + 1))] = ()
    levels: Annotated[tuple[Level, ...], Field(max_length=MOST_SIZES)] = ()
    acceptance: Annotated[tuple[Acceptance, ...], Field(max_length=MOST_K + 1)] = ()
    contrasts: Annotated[tuple[AcceptanceContrast, ...], Field(max_length=(MOST_K + 1) ** 2)] = ()
    spot_check: SpotCheck | None = None
    baseline: Annotated[tuple[BaselineCell, ...], Field(max_length=MOST_SIZES)] = ()
    boot_drift: HalfWidth = 0.0
    """95 % half-width of the log ratio of one cell between a boot and the baseline's, one or two, by drift alone."""
    boot_drift_measured: bool = False
    """True: from two boots of the baseline and what is assumed of such machines. False: an assumption alone."""
    loops: Annotated[tuple[ArmLoop, ...], Field(max_length=256)] = ()
    mean_context_tokens: Amount = 0.0
    """Mean context length of the steps behind the grid."""
    distinct_prompts: Count = 0
    """Prompts in the workload; fewer than twice the largest batch size are reused within a batch."""
    seconds: Annotated[dict[Name, Amount], Field(max_length=100)] = {}
    """Stage -> wall-clock seconds."""


class Profile(Model):
    """A finished profile, as stored in a ConfigMap."""

    schema_version: SchemaVersion = SCHEMA_VERSION
    key: Name
    measured_at: Time
    measurements: Measurements
    decision: Decision
    request: ProfileRequest | None = None
    """What was asked for: the identity. It does not travel through the termination message."""

    @model_validator(mode="after")
    def _is_for_its_request(self) -> Profile:
        request = self.request
        if request is not None:
            self.decision.check_for(request.engine.max_num_seqs, request.speculation.max_tokens)
        return self


class PartialProfile(Model):
    """What was measured before a run ended early. No decision: nothing should be served on its ground."""

    schema_version: SchemaVersion = SCHEMA_VERSION
    partial: Words
    """Why it ended: reason and message."""
    measured_at: Time
    measurements: Measurements
    request: ProfileRequest | None = None


class Failure(Model):
    """Why a Job has no profile. Leaves the pod the same way as a profile."""

    reason: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z]+$", max_length=64)]
    """CamelCase, for a condition: EngineFailed, PromptsInvalid, TimedOut, ..."""
    message: Annotated[str, Field(max_length=1500)]
    """For a person: what happened and what to do next."""
