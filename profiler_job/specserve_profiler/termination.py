"""A result as the text of a container's termination message.

The kubelet keeps at most 4,096 bytes of ``/dev/termination-log``, fewer where other containers of the pod write too, so
a result takes at most ``LIMIT`` bytes. A profile is a positional JSON array, deflated, in base 85; a failure stays
readable, so that ``kubectl describe pod`` shows it. Both carry length and digest: half a message is never taken for a
whole one.

    specserve:<format>:<profile|failure>:<bytes of the body>:<digest of the body>:<body>

A profile that is too long gives up digits first, then stage times and the words of warnings, never a cell.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specserve_profiler.contract import (
    Acceptance,
    BaselineCell,
    Cell,
    Decision,
    Failure,
    Interval,
    Measurements,
    Profile,
    Row,
    Speedup,
    canonical_json,
)

LIMIT = 3000
"""Bytes that a message may take."""

DEFAULT_PATH = Path("/dev/termination-log")

_FORMAT = 1
_HEADER = re.compile(r"specserve:(\d{1,4}):(profile|failure):(\d{1,6}):([0-9a-f]{12}):", re.ASCII)
_VERDICTS = ("Dynamic", "Static", "None")
_SCHEDULERS = ("sync", "async")


class TerminationError(ValueError):
    """The text is no result of this profiler. The message says why, for a person."""


def encode(result: Profile | Failure, limit: int = LIMIT) -> str:
    """The message for a result, at most ``limit`` bytes of UTF-8.

    Numbers of a profile are rounded (to four significant digits where they fit), so ``decode`` returns nearly the same.
    Raises ValueError where even the shortest form is too long, which no grid that the contract allows for reaches.
    """
    forms = _failure_forms(result) if isinstance(result, Failure) else _profile_forms(result)
    for text in forms:
        if len(text.encode()) <= limit:
            return text
    raise ValueError(f"the result does not fit into {limit} bytes; measure fewer batch sizes or a smaller Kmax")


def decode(text: str) -> Profile | Failure:
    """The result in a message. Raises ``TerminationError`` for text that is foreign, cut short or altered."""
    kind, body = _body(text)
    try:
        if kind == "failure":
            return Failure.model_validate_json(body)
        return _unpack(json.loads(zlib.decompress(base64.b85decode(body))))
    except (ValidationError, ValueError, zlib.error, TypeError, IndexError, KeyError) as error:
        raise TerminationError(f"the termination message does not hold a valid {kind}: {error}") from error


def read(path: Path = DEFAULT_PATH) -> Profile | Failure:
    """The result in the file that ``write`` wrote."""
    return decode(path.read_text(encoding="utf-8", errors="replace"))


def write(result: Profile | Failure, path: Path = DEFAULT_PATH) -> None:
    """Writes a result where the kubelet looks for it. The file may be a mount, so it is written in place."""
    path.write_text(encode(result), encoding="utf-8")


def _body(text: str) -> tuple[str, str]:
    if not text.strip():
        raise TerminationError("the termination message is empty: the container ended before the profiler could write")
    header = _HEADER.match(text)
    if header is None:
        raise TerminationError(f"the termination message is not from the profiler: {text[:120]!r}")
    version, kind, length, digest = header.groups()
    if int(version) != _FORMAT:
        raise TerminationError(
            f"the termination message has format {version}, this reader knows {_FORMAT}: "
            "the profiler and the operator come from different releases"
        )
    body = text[header.end() :]
    found = len(body.encode())
    if found < int(length):
        raise TerminationError(
            f"the termination message was cut short: {found} of {length} bytes arrived. "
            "Containers of a pod share 12 KiB: remove injected sidecars from the Job's pod"
        )
    if found != int(length) or _digest(body) != digest:
        raise TerminationError("the termination message was altered: its digest does not match")
    return kind, body


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:12]


def _frame(kind: str, body: str) -> str:
    return f"specserve:{_FORMAT}:{kind}:{len(body.encode())}:{_digest(body)}:{body}"


def _failure_forms(failure: Failure) -> Iterator[str]:
    yield _frame("failure", canonical_json(failure.model_dump()))
    for length in range(len(failure.message) - 1, 0, -50):
        yield _frame("failure", canonical_json({"reason": failure.reason, "message": failure.message[:length] + "…"}))


def _profile_forms(profile: Profile) -> Iterator[str]:
    for mean_digits, error_digits in ((4, 2), (4, 1), (3, 1)):
        yield _deflated(_pack(profile, mean_digits, error_digits, words=400, seconds=True))
    for words in (120, 40, 0):
        yield _deflated(_pack(profile, 3, 1, words=words, seconds=False))


def _deflated(packed: list[Any]) -> str:
    return _frame("profile", base64.b85encode(zlib.compress(canonical_json(packed).encode(), 9)).decode())


def _rounded(value: float, digits: int) -> float | int:
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _pack(profile: Profile, mean_digits: int, error_digits: int, *, words: int, seconds: bool) -> list[Any]:
    def pair(interval: Interval) -> list[float | int]:
        return [_rounded(interval.mean, mean_digits), _rounded(interval.half_width, error_digits)]

    def short(text: str) -> str:
        return text if len(text) <= words else text[: max(words - 1, 0)] + "…"

    measured, decision = profile.measurements, profile.decision
    reasons = list(dict.fromkeys(cell.skipped for cell in measured.grid if cell.skipped is not None))
    return [
        profile.schema_version,
        profile.key,
        int(profile.measured_at.timestamp()),
        measured.engine_version,
        _SCHEDULERS.index(measured.scheduler),
        _rounded(measured.mean_context_tokens, 4),
        [[stage, _rounded(value, 3)] for stage, value in measured.seconds.items()] if seconds else [],
        [short(reason) for reason in reasons],
        [_pack_cell(cell, pair, reasons) for cell in measured.grid],
        [[entry.k, *pair(entry.acceptance_length), entry.prompts] for entry in measured.acceptance],
        [[cell.batch_size, *pair(cell.itl_ms), cell.blocks] for cell in measured.baseline],
        _VERDICTS.index(decision.verdict),
        short(decision.reason),
        [[row.first, row.last, row.k] for row in decision.table],
        decision.static_k,
        [[s.batch_size, _rounded(s.over_baseline, 4), _rounded(s.over_static, 4)] for s in decision.speedups],
        [short(warning) for warning in decision.warnings] if words else [],
    ]


def _pack_cell(cell: Cell, pair: Callable[[Interval], list[float | int]], reasons: list[str]) -> list[float | int]:
    if cell.skipped is not None:
        return [cell.batch_size, cell.k, reasons.index(cell.skipped)]
    assert cell.itl_ms is not None  # noqa: S101 - the contract: measured or skipped
    return [cell.batch_size, cell.k, *pair(cell.itl_ms), cell.blocks]


def _unpack(packed: list[Any]) -> Profile:
    (schema, key, measured_at, version, scheduler, context, seconds, reasons) = packed[:8]
    (cells, acceptance, baseline, verdict, reason, rows, static_k, speedups, warnings) = packed[8:]
    return Profile(
        schema_version=schema,
        key=key,
        measured_at=dt.datetime.fromtimestamp(measured_at, dt.timezone.utc),
        measurements=Measurements(
            engine_version=version,
            scheduler=_SCHEDULERS[scheduler],
            grid=tuple(_unpack_cells(cells, reasons)),
            acceptance=tuple(
                Acceptance(k=k, acceptance_length=Interval(mean=mean, half_width=error), prompts=prompts)
                for k, mean, error, prompts in acceptance
            ),
            baseline=tuple(
                BaselineCell(batch_size=size, itl_ms=Interval(mean=mean, half_width=error), blocks=blocks)
                for size, mean, error, blocks in baseline
            ),
            mean_context_tokens=context,
            seconds=dict(seconds),
        ),
        decision=Decision(
            verdict=_VERDICTS[verdict],
            reason=reason,
            table=tuple(Row(first=first, last=last, k=k) for first, last, k in rows),
            static_k=static_k,
            speedups=tuple(
                Speedup(batch_size=b, over_baseline=base, over_static=static) for b, base, static in speedups
            ),
            warnings=tuple(warnings),
        ),
    )


def _unpack_cells(cells: Iterable[list[Any]], reasons: list[str]) -> Iterator[Cell]:
    for cell in cells:
        if len(cell) == 3:
            yield Cell(batch_size=cell[0], k=cell[1], skipped=reasons[cell[2]])
        else:
            size, k, mean, error, blocks = cell
            yield Cell(batch_size=size, k=k, itl_ms=Interval(mean=mean, half_width=error), blocks=blocks)
