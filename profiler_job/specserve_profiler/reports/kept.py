"""The raw records of a run in one file: what its estimators were told, in order, and what it led to. Pure.

Gzip of JSON lines: the version first, then one line a record (``Record``), the result last. ``session`` tells each
record by ``what`` and the names of its fields.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from specserve_profiler.contract.profile import Arm, Failure, PartialProfile, Profile
from specserve_profiler.contract.steps import Finished, Step
from specserve_profiler.statistics.acceptance import Generate
from specserve_profiler.statistics.sampling import Cohort

VERSION = 1
_MARK = "specserveRecords"
_MOST_BYTES = 512 * 2**20
"""Of the text; an hour of steps of a millisecond is 200 MB."""


class KeptError(ValueError):
    """The file holds no records of a run. The message says why, and the way out."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AcceptanceBegan(_Record):
    """Whole generations are sampled from now on."""

    what: Literal["acceptance"]
    ks: tuple[int, ...]
    prompts: Annotated[int, Field(ge=1)]
    temperature: float


class Generated(_Record):
    """What came of whole generations, in the order of the prompts."""

    what: Literal["generated"]
    order: Generate
    finished: tuple[Finished, ...]
    seconds: float


class GenerationLost(_Record):
    """The engine did not survive them."""

    what: Literal["generation lost"]
    order: Generate
    why: str


class GridBegan(_Record):
    """Cohorts are sampled from now on; ``baseline``: of an engine without speculation."""

    what: Literal["grid", "baseline"]
    cells: dict[int, tuple[int, ...]]


class CohortRan(_Record):
    """All steps of a cohort."""

    what: Literal["cohort"]
    order: Cohort
    steps: tuple[Step, ...]
    seconds: float


class CellLost(_Record):
    """The engine did not survive a cell."""

    what: Literal["cell lost"]
    batch_size: int
    k: int
    why: str


class LoopRan(_Record):
    """A closed loop at one concurrency; ``finished`` are the requests whose time to first token counts."""

    what: Literal["loop"]
    concurrency: Annotated[int, Field(ge=1)]
    steps: tuple[Step, ...]
    finished: tuple[Finished, ...]


class NeverFull(_Record):
    """A concurrency that some arm did not serve at once."""

    what: Literal["never full"]
    concurrency: int


class ArmSeen(_Record):
    """The last loops at these concurrencies were of this one; others before were broken off."""

    what: Literal["arm"]
    arm: Arm
    concurrencies: tuple[int, ...]
    live: bool = False


class Warned(_Record):
    """What the run told its user."""

    what: Literal["warning"]
    text: str


Record = (
    AcceptanceBegan
    | Generated
    | GenerationLost
    | GridBegan
    | CohortRan
    | CellLost
    | LoopRan
    | NeverFull
    | ArmSeen
    | Warned
)
_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="what")])


@dataclass(frozen=True)
class Kept:
    """A run: its records in order, and the profile that it led to at the time, whole or partial."""

    records: tuple[Record, ...]
    result: Profile | PartialProfile


class Keeper:
    """Takes records in while a run goes on, compressed."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._file = gzip.GzipFile(fileobj=self._buffer, mode="wb", mtime=0)
        self._line({_MARK: VERSION})

    def take(self, what: str, values: Mapping[str, Any]) -> None:
        """One record."""
        self._line({"what": what, **values})

    def finish(self, result: Profile | PartialProfile | Failure | None) -> bytes:
        """The content of the file."""
        self._line({type(result).__name__: result})
        self._file.close()
        return self._buffer.getvalue()

    def _line(self, value: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(value, separators=(",", ":"), default=_plain).encode() + b"\n")


def read_kept(content: bytes) -> Kept:
    """The run in a file. Raises KeptError."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            text = file.read(_MOST_BYTES + 1)
    except (OSError, EOFError, gzip.zlib.error) as error:  # type: ignore[attr-defined]
        raise KeptError(f"no file that `run --keep-records` wrote: {error}") from error
    if len(text) > _MOST_BYTES:
        raise KeptError(f"more than {_MOST_BYTES >> 20} MiB of records: this is no run")
    first, *lines = text.splitlines() or [b"{}"]
    version = _parsed(first, 1).get(_MARK)
    if version is None:
        raise KeptError("no file that `run --keep-records` wrote: it does not begin like one")
    if version != VERSION:
        raise KeptError(f"records of version {version}, this tool reads {VERSION}: use the specserve that wrote them")
    if not lines:
        raise KeptError("the file ends before the run did")
    records = [_record(line, number) for number, line in enumerate(lines[:-1], 2)]
    return Kept(tuple(records), _result(_parsed(lines[-1], len(lines) + 1)))


def _record(line: bytes, number: int) -> Record:
    try:
        return _RECORD.validate_json(line)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise KeptError(f"record {number}: {where}: {fault['msg']}".replace(": : ", ": ")) from error


def _result(values: Mapping[str, Any]) -> Profile | PartialProfile:
    try:
        if "Profile" in values:
            return Profile.model_validate(values["Profile"])
        if "PartialProfile" in values:
            return PartialProfile.model_validate(values["PartialProfile"])
    except ValidationError as error:
        raise KeptError(f"its profile cannot be read: {error.errors()[0]['msg']}") from error
    raise KeptError(f"the run left nothing to fit again: {values.get('Failure') or 'the file ends before it did'}")


def _parsed(line: bytes, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise KeptError(f"record {number}: {error}") from error
    if not isinstance(value, dict):
        raise KeptError(f"record {number}: no object")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value)} is no record")
