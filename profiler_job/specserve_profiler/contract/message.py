"""A result as the text of a container's termination message.

The kubelet keeps at most 4,096 bytes of ``/dev/termination-log``, fewer where other containers of the pod write too, so
a result takes at most ``LIMIT`` bytes. A profile is a positional JSON array, deflated, in base 85; a failure stays
readable, so that ``kubectl describe pod`` shows it. Both carry length and digest: half a message is never taken for a
whole one.

    specserve:<format>:<profile|failure>:<bytes of the body>:<digest of the body>:<body>

A profile that is too long gives up what no decision asks for, then digits and the words of warnings, never a cell
(``precision.FORMS``). The request that led to it stays behind: the operator knows it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specserve_profiler.contract.model import canonical_json
from specserve_profiler.contract.packing import pack, unpack
from specserve_profiler.contract.precision import FORMS
from specserve_profiler.contract.profile import Failure, Profile

LIMIT = 3000
"""Bytes that a message may take."""

DEFAULT_PATH = Path("/dev/termination-log")

MOST_BYTES = 4096
"""What the kubelet keeps of a message: a longer one comes from elsewhere."""
MOST_INFLATED = 65_536
"""Bytes of the JSON inside: several times what any grid that fits into a message needs."""

_FORMAT = 3
_HEADER = re.compile(r"specserve:(\d{1,4}):(profile|failure):(\d{1,6}):([0-9a-f]{12}):", re.ASCII)


class TerminationError(ValueError):
    """The text is no result of this profiler. The message says why, for a person."""


def encode(result: Profile | Failure, limit: int = LIMIT) -> str:
    """The message for a result, at most ``limit`` bytes of UTF-8.

    A profile loses its ``request``, and its numbers are rounded (means to four significant digits where they fit), so
    ``decode`` returns nearly the same. Raises ValueError where even the shortest form is too long, which no grid that
    the contract allows for reaches.
    """
    forms = _failure_forms(result) if isinstance(result, Failure) else _profile_forms(result)
    for text in forms:
        if len(text.encode()) <= limit:
            return text
    raise ValueError(f"the result does not fit into {limit} bytes; measure fewer batch sizes or a smaller Kmax")


def decode(text: str) -> Profile | Failure:
    """The result in a message. Raises ``TerminationError`` for text that is foreign, cut short or altered.

    Whoever can end a pod can write one, so everything is bounded before it is built: a few milliseconds at most.
    """
    kind, body = _body(text)
    try:
        return Failure.model_validate_json(body) if kind == "failure" else unpack(_parsed(_inflated(body)))
    except Exception as error:  # whatever parsing of foreign text may raise, RecursionError among it
        raise TerminationError(f"the termination message does not hold a valid {kind}: {_short(error)}") from error


def read(path: Path = DEFAULT_PATH) -> Profile | Failure:
    """The result in the file that ``write`` wrote."""
    return decode(path.read_text(encoding="utf-8", errors="replace"))


def write(result: Profile | Failure, path: Path = DEFAULT_PATH) -> None:
    """Writes a result where the kubelet looks for it. The file may be a mount, so it is written in place."""
    path.write_text(encode(result), encoding="utf-8")


def _body(text: str) -> tuple[str, str]:
    if not text.strip():
        raise TerminationError("the termination message is empty: the container ended before the profiler could write")
    if len(text) > MOST_BYTES:
        raise TerminationError(f"the termination message has {len(text)} characters: no more than {MOST_BYTES} are one")
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


def _inflated(body: str) -> bytes:
    inflate = zlib.decompressobj()
    content = inflate.decompress(base64.b85decode(body), MOST_INFLATED)
    if not inflate.eof:
        raise ValueError(f"it does not end within {MOST_INFLATED} bytes")
    return content


def _parsed(content: bytes) -> Any:
    """JSON without what no message of ours holds: numbers of many digits, and those that are none."""
    return json.loads(content, parse_int=_integer, parse_constant=_refused)


def _integer(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _short(error: Exception) -> str:
    """The first faults of many."""
    text = str(error) or type(error).__name__
    if isinstance(error, ValidationError):
        faults = error.errors(include_url=False, include_context=False, include_input=False)[:3]
        text = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
    return text[:500]


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:12]


def _frame(kind: str, body: str) -> str:
    return f"specserve:{_FORMAT}:{kind}:{len(body.encode())}:{_digest(body)}:{body}"


def _failure_forms(failure: Failure) -> Iterator[str]:
    yield _frame("failure", canonical_json(failure.model_dump()))
    for length in range(len(failure.message) - 1, 0, -50):
        yield _frame("failure", canonical_json({"reason": failure.reason, "message": failure.message[:length] + "…"}))


def _profile_forms(profile: Profile) -> Iterator[str]:
    for precision in FORMS:
        content = canonical_json(pack(profile, precision)).encode()
        if len(content) <= MOST_INFLATED:
            yield _frame("profile", base64.b85encode(_deflated(content)).decode())


def _deflated(content: bytes) -> bytes:
    """For figures without a pattern ``Z_FILTERED`` is a twentieth shorter: fewer matches, more Huffman coding."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_FILTERED)
    return deflate.compress(content) + deflate.flush()
