"""What the operator asks of a profiling Job, and what it gets back.

Pure: pydantic and the standard library. The operator validates with these very models, so the two sides cannot drift
apart. The transport of a result (the termination message) is in ``termination``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

SCHEMA_VERSION = 1
"""Version of the stored profile. It is part of the profile key: another schema means another measurement."""

Method = Literal["draft_model", "eagle", "eagle3", "mtp", "dflash", "ngram"]
Verdict = Literal["Dynamic", "Static", "None"]

METHODS_WITH_DRAFTER: frozenset[Method] = frozenset({"draft_model", "eagle", "eagle3", "dflash"})
"""Methods that load a draft model of their own; ``mtp`` drafts with the target's own heads, ``ngram`` with its text."""


class Model(BaseModel):
    """Frozen, camelCase on the wire, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    def to_json(self) -> str:
        """Canonical JSON: fields by alias, defaults left out, keys sorted, no white space."""
        return canonical_json(self.model_dump(mode="json", by_alias=True, exclude_defaults=True))


def canonical_json(value: Any) -> str:
    """The one JSON text of a value; hashes are taken of this."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class Speculation(Model):
    """How the engine drafts."""

    method: Method
    model: str | None = None
    """Draft model; present exactly where the method has one."""
    revision: str | None = None
    max_tokens: Annotated[int, Field(ge=1, le=16)]
    """Kmax: the K that the engine is booted with."""


class Engine(Model):
    """The engine as it is deployed. It is profiled with exactly these."""

    command: tuple[str, ...] = ("vllm", "serve")
    args: tuple[str, ...] = ()
    """The user's own arguments; none of the flags that specserve owns (``render.owned_flags``)."""
    max_num_seqs: Annotated[int, Field(ge=1)]
    max_model_len: Annotated[int, Field(ge=1)]
    tensor_parallel_size: Annotated[int, Field(ge=1)] = 1


class Workload(Model):
    """What is generated while measuring. Acceptance depends on it as much as ITL depends on the accelerator."""

    prompt_tokens: Annotated[int, Field(ge=1)]
    """Prompts are cut to at most this many tokens."""
    output_tokens: Annotated[int, Field(ge=1)]
    """Upper bound of a generation; texts end earlier where they end by themselves."""
    temperature: Annotated[float, Field(ge=0)] = 0


class ProfileRequest(Model):
    """Everything that a profiling Job must know. Travels as JSON in an environment variable."""

    schema_version: int = SCHEMA_VERSION
    key: str
    model: str
    """Target model: a name or a path inside the container."""
    revision: str | None = None
    speculation: Speculation
    engine: Engine
    workload: Workload
    prompts: str
    """Path of a JSONL file inside the container: one ``{"prompt": text}`` a line (or ShareGPT ``conversations``)."""
    batch_sizes: tuple[int, ...]
    """Increasing; the last is at most ``engine.max_num_seqs``."""
    measure_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Time for measuring, all boots excluded. Shared out between acceptance, grid and baseline."""
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Time for everything. The profiler stops by itself a little before the pod's own deadline."""

    @model_validator(mode="after")
    def _batch_sizes_fit(self) -> ProfileRequest:
        sizes = self.batch_sizes
        if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
            raise ValueError("batchSizes: must be distinct, increasing and at least 1")
        if sizes[-1] > self.engine.max_num_seqs:
            raise ValueError(f"batchSizes: {sizes[-1]} exceeds maxNumSeqs {self.engine.max_num_seqs}")
        return self

    @model_validator(mode="after")
    def _time_is_enough(self) -> ProfileRequest:
        if self.timeout_seconds <= self.measure_seconds:
            raise ValueError(
                f"timeoutSeconds: {self.timeout_seconds:g} leaves no time for two boots beside measureSeconds "
                f"{self.measure_seconds:g}"
            )
        return self


class Interval(Model):
    """A measured mean with the half-width of its 95 % confidence interval, in the same unit."""

    mean: float
    half_width: Annotated[float, Field(ge=0)] = 0.0


class Cell(Model):
    """One (batch size, K) cell of the grid."""

    batch_size: int
    k: int
    itl_ms: Interval | None = None
    """Milliseconds per step; None where the cell was not measured, with the reason in ``skipped``."""
    blocks: int = 0
    """Paired blocks behind the mean; the block is the unit of sampling."""
    skipped: str | None = None

    @model_validator(mode="after")
    def _measured_or_skipped(self) -> Cell:
        if (self.itl_ms is None) == (self.skipped is None):
            raise ValueError(
                f"cell (batch size {self.batch_size}, K {self.k}): either measured or skipped with a reason"
            )
        return self


class Acceptance(Model):
    """Acceptance at one fixed K, from whole generations."""

    k: int
    acceptance_length: Interval
    """Tokens per request and verify step, 1 + accepted drafts."""
    prompts: int
    """Generations behind the mean; the prompt is the unit of sampling."""


class BaselineCell(Model):
    """The engine without speculation at one batch size."""

    batch_size: int
    itl_ms: Interval
    blocks: int


class Row(Model):
    """One row of a table: K for batch sizes ``first`` to ``last``, inclusive."""

    first: Annotated[int, Field(ge=1)]
    last: Annotated[int, Field(ge=1)]
    k: Annotated[int, Field(ge=0)]


Ratio = Annotated[float, Field(gt=0, le=1e6)]


def short_table(rows: Iterable[Row]) -> str:
    """A table as people write it: ``1-16:4 17-64:2``, batch sizes and K of each row."""
    return " ".join(f"{row.first}-{row.last}:{row.k}" for row in rows)


class Speedup(Model):
    """Predicted goodput of the table at one measured batch size, as a ratio."""

    batch_size: int
    over_baseline: Ratio
    over_static: Ratio
    """Over the best single K of the whole grid."""


class Decision(Model):
    """What the measurements say should be served."""

    verdict: Verdict
    reason: str
    """One sentence for a person: why this verdict."""
    table: tuple[Row, ...]
    """Covers 1 to maxNumSeqs without gaps, sorted. Present for every verdict, so that it can be looked at."""
    static_k: int
    """The best single K; 0 where not speculating is best."""
    speedups: tuple[Speedup, ...] = ()
    warnings: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _table_has_no_gaps(self) -> Decision:
        expected = 1
        for row in self.table:
            if row.first != expected or row.last < row.first:
                raise ValueError(f"table: row {row.first}-{row.last}: must begin at {expected} and not end before that")
            expected = row.last + 1
        return self


class Measurements(Model):
    """The raw result of a Job, before any decision."""

    engine_version: str
    scheduler: Literal["sync", "async"]
    grid: tuple[Cell, ...]
    acceptance: tuple[Acceptance, ...]
    baseline: tuple[BaselineCell, ...]
    mean_context_tokens: float
    """Mean context length of the steps behind the grid."""
    seconds: dict[str, float] = {}
    """Stage -> wall-clock seconds."""


class Profile(Model):
    """A finished profile, as stored in a ConfigMap."""

    schema_version: int = SCHEMA_VERSION
    key: str
    measured_at: AwareDatetime
    measurements: Measurements
    decision: Decision


class Failure(Model):
    """Why a Job has no profile. Leaves the pod the same way as a profile."""

    reason: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z]+$", max_length=64)]
    """CamelCase, for a condition: EngineFailed, PromptsInvalid, TimedOut, ..."""
    message: Annotated[str, Field(max_length=1500)]
    """For a person: what happened and what to do next."""


class KeyInputs(Model):
    """Everything that a table depends on. Two servings with equal inputs share one profile.

    Fields at their default are left out of the hash, so that a new field keeps the keys of those who do not use it.
    """

    schema_version: int
    model: str
    revision: str | None = None
    speculation: Speculation
    image: str
    engine: Engine
    env: tuple[tuple[str, str], ...] = ()
    """(name, literal or reference) of the engine container, sorted by name; never a secret's value."""
    resources: dict[str, str] = {}
    workload: Workload
    workload_source: str
    """What names the prompts: a path, or a ConfigMap with the hash of its content."""
    batch_sizes: tuple[int, ...]
    accelerator: dict[str, str]
    """Identity of the accelerator, as ``Accelerator.identity()`` gives it."""
    driver: str | None = None


def profile_key(inputs: KeyInputs) -> str:
    """Name of a profile: ``specserve-`` and 12 hex digits of SHA-256. Fit for the name of a Kubernetes object."""
    return "specserve-" + hashlib.sha256(inputs.to_json().encode()).hexdigest()[:12]
