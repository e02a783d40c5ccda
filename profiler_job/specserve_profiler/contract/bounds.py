"""What is possible at all, for every model of the contract. Pure.

Requests, profiles and keys come from other hands: what is in these bounds can be computed with, shown and sent on.
A text with a bound holds no lone surrogate, a number with bounds is finite: pydantic sees to both.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, AwareDatetime, Field

if TYPE_CHECKING:
    from specserve_profiler.contract.profile import Interval

MOST_BATCH = 65_536
MOST_K = 16
MOST_SIZES = 512
"""Batch sizes that one profile measures."""
MOST_GRAPHS = 16_384
MOST_ROWS = 4096
MOST_HALF_WIDTH = 1e12

Finite = Annotated[float, Field(allow_inf_nan=False)]
BatchSize = Annotated[int, Field(ge=1, le=MOST_BATCH)]
Edge = Annotated[int, Field(ge=1, le=10**9)]
"""A batch size where a row of a table begins or ends: the last may lie beyond any that an engine runs."""
K = Annotated[int, Field(ge=0, le=MOST_K)]
Tokens = Annotated[int, Field(ge=1, le=1 << 24)]
Count = Annotated[int, Field(ge=0, le=10**9)]
SchemaVersion = Annotated[int, Field(strict=True, ge=0, le=10**9)]
"""A number, also where others are read from text: what has another form is another's."""
Milliseconds = Annotated[Finite, Field(ge=1e-6, le=1e9)]
HalfWidth = Annotated[Finite, Field(ge=0, le=MOST_HALF_WIDTH)]
Ratio = Annotated[Finite, Field(gt=0, le=1e6)]
Weight = Annotated[Finite, Field(ge=0, le=1e12)]
Seconds = Annotated[Finite, Field(gt=0, le=1e9)]
Amount = Annotated[Finite, Field(ge=0, le=1e9)]
"""Tokens, seconds or milliseconds that may be none."""
Share = Annotated[Finite, Field(ge=0, le=1)]
Time = Annotated[
    AwareDatetime,
    Field(ge=dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc), lt=dt.datetime(9000, 1, 1, tzinfo=dt.timezone.utc)),
]
Name = Annotated[str, Field(max_length=4096)]
"""Of a model, a device, a file, a version."""
Words = Annotated[str, Field(max_length=20_000)]
"""A sentence for a person, with whatever an engine said in it."""
Argument = Annotated[str, Field(max_length=131_072)]
"""Of a process: as long as Linux takes."""
Text = Annotated[str, Field(max_length=1 << 20)]
"""What a Kubernetes object can hold."""


def within(low: float, high: float) -> AfterValidator:
    """Bounds for the mean of an interval; its half-width has those of any other."""

    def check(interval: Interval) -> Interval:
        if not low <= interval.mean <= high:
            raise ValueError(f"mean must be from {low:g} to {high:g}, is {interval.mean:g}")
        if interval.half_width > MOST_HALF_WIDTH:
            raise ValueError(f"halfWidth must be at most {MOST_HALF_WIDTH:g}, is {interval.half_width:g}")
        return interval

    return AfterValidator(check)
