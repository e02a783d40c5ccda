"""A Job's log as tools hand it on: with timestamps, with names before each line, as a runtime stores it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from specserve_profiler.session.job import BEGIN, BEGIN_PARTIAL, END, END_PARTIAL

_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)"
_PREFIX = re.compile(rf"(?:\[pod/[^\]\s]*\] )?(?:{_TIME} )?(?:std(?:out|err) (?P<part>[PF])(?::\w+)* )?")
"""``kubectl logs --prefix``, ``--timestamps``, ``docker logs -t``; a CRI runtime's file: P is a line cut short."""
_REASON = re.compile(r"no profile: \w+: .*")


class LogError(ValueError):
    """Why there is no profile in a log."""


def profile_in(text: str) -> str | None:
    """The JSON between the marks of a log; None for a text that is no log of a Job. Raises LogError."""
    for begin, end in ((BEGIN, END), (BEGIN_PARTIAL, END_PARTIAL)):
        if begin in text:
            return _between(text, begin, end)
    if "[specserve] " not in text:
        return None
    reasons = _REASON.findall("\n".join(_lines(text)))
    why = f"; it says: {reasons[-1]}" if reasons else ", nor a reason: it may not have ended yet"
    raise LogError(f"the log has no profile{why}")


def _between(text: str, begin: str, end: str) -> str:
    """Of the last one. It is one line, an object: what a tool put before it and the lines of others are left out."""
    lines = _lines(text)
    start = max(index for index, line in enumerate(lines) if begin in line)
    stop = next((index for index in range(start, len(lines)) if end in lines[index]), None)
    if stop is None:
        raise LogError("the log ends within the profile: fetch all of it")
    inside = lines[start + 1 : stop]
    found = next((line for line in inside if '"measurements"' in line), "\n".join(inside))
    return found[max(found.find("{"), 0) :]


def _lines(text: str) -> list[str]:
    """The lines as they were written: without what was put before them, put together where a runtime cut them."""
    lines, rest = [], ""
    for raw in _undocked(text):
        found = _PREFIX.match(raw)
        part = found["part"] if found else None
        rest += raw[found.end() if found else 0 :]
        if part != "P":
            lines.append(rest)
            rest = ""
    return [*lines, rest]


def _undocked(text: str) -> Iterator[str]:
    """The lines of a log; of a file of docker's json-file driver the lines in it, which it cuts short, too."""
    rows = text.split("\n")
    if not rows[0].startswith('{"log":'):
        yield from rows
        return
    whole = ""
    for row in rows:
        try:
            whole += json.loads(row)["log"]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    yield from whole.split("\n")
