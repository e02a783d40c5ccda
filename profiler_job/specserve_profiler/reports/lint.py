"""Looks at a table, or at a whole ``--speculative-config``, without an engine. Pure.

Errors are what vLLM itself refuses (its parser's type ``list[tuple[int, int, int]]``, then
``validate_and_normalize_dynamic_sd_schedule`` once the engine is up). Warnings are what it takes silently and means in
another way than people expect, and what is known to serve badly.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from specserve_profiler.contract.bounds import MOST_K
from specserve_profiler.contract.model import Model
from specserve_profiler.dialect import config_keys, support

TABLE_FIELD, KMAX_FIELD = "num_speculative_tokens_per_batch_size", "num_speculative_tokens"
EXAMPLE = "write [[1, 16, 4], [17, 64, 2]]"
_NUMBER = re.compile(r"([+-]?\d+(?:_\d+)*)(?:\.0+)?", re.ASCII)
_MOST_DIGITS = 4000
"""Python, and with it vLLM, reads no whole number of more than 4,300 digits."""
_TOO_LARGE = 10**_MOST_DIGITS
_SHORT_ROW = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?:(\d{1,18})", re.ASCII)
_WITHOUT_KMAX = frozenset({"mtp", "dspark"})
"""Methods for which vLLM finds Kmax in the model that is named; suffix has one of its own."""
_WITH_MODEL = frozenset({"eagle", "eagle3", "draft_model", "dflash", "medusa", "mlp_speculator", "custom_class"})
"""Methods for which vLLM does not start without a model; without a method it takes ``draft_model``."""
_METHODS = _WITH_MODEL | _WITHOUT_KMAX | {"ngram", "ngram_gpu", "suffix", "extract_hidden_states"}


class Finding(Model):
    """One thing to know about a table."""

    level: Literal["error", "warning"]
    where: str
    """The row as it is written, the field, or ``table``."""
    message: str
    fix: str
    """What to do, or to write instead."""

    def __str__(self) -> str:
        return f"{self.level}: {self.where}: {self.message}; {self.fix}"


def lint(
    text: str,
    max_num_seqs: int | None = None,
    engine_version: str | None = None,
    drafter: Mapping[str, Any] | None = None,
    target: Mapping[str, Any] | None = None,
) -> tuple[Finding, ...]:
    """Everything to know about a table or a config; errors first, empty where all is well.

    ``text`` is a JSON list of ``[first, last, K]``, the short form ``1-16:4 17-64:2``, or the JSON object of a
    ``--speculative-config``. ``max_num_seqs`` and ``engine_version`` are the engine's, ``drafter`` and ``target`` the
    models' ``config.json``, where they are known.
    """
    known = support.version(engine_version)
    try:
        value = _read(text)
        if isinstance(value, Finding):
            return (value,)
        if isinstance(value, dict) and not _is_schedule(value):
            config = {key.replace("-", "_"): given for key, given in value.items()}  # as vLLM does
            findings = [*_lint_config(config, max_num_seqs, known, drafter or {}, target or {})]
        else:
            findings = [*_lint_version(known), *lint_rows(value, None, max_num_seqs)]
    except RecursionError:
        return (_error("text", "is nested too deep for a table or a config", EXAMPLE),)
    return tuple(sorted(findings, key=lambda finding: finding.level))


def lint_rows(value: object, kmax: int | None = None, max_num_seqs: int | None = None) -> Iterator[Finding]:
    """Findings on the value of ``num_speculative_tokens_per_batch_size``; ``kmax`` is the engine's, where known."""
    if isinstance(value, dict):
        yield _dictionary(value, max_num_seqs)
        return
    if not isinstance(value, list):
        yield _error("table", "must be a list of [first, last, K]", EXAMPLE)
        return
    if not value:
        fix = "leave the field out to draft Kmax always, or give at least one row"
        yield _error("table", "is empty: vLLM's parser takes it, and what follows fails or ignores it", fix)
        return
    rows = []
    good = [row for row in map(_range, value) if row is not None]
    for entry in value:
        row = yield from _row(entry, good)
        if row is not None:
            rows.append(row)
    if len(rows) == len(value):
        yield from _order(rows)
        rows.sort()
        yield from _advice(rows, kmax, max_num_seqs)


def _read(text: str) -> Any:
    """The value of a text, or the finding that it has none."""
    stripped = text.strip()
    words = stripped.replace(",", " ").split()
    found = [_SHORT_ROW.fullmatch(word) for word in words]
    if words and all(found):
        return [[int(m[1]), int(m[2] or m[1]), int(m[3])] for m in found if m is not None]
    try:
        return json.loads(stripped)
    except json.JSONDecodeError as error:
        fix = f"{EXAMPLE}, or 1-16:4 17-64:2, or a --speculative-config"
        wrong = next((word for word, match in zip(words, found, strict=True) if match is None), "")
        if any(found):
            return _error(named(wrong), "is no row: first-last:K", fix)
        return _error(f"line {error.lineno}", f"no valid JSON: {error.msg} (column {error.colno})", fix)
    except ValueError:
        return _error("text", "holds a number of more digits than vLLM's parser reads", EXAMPLE)


def _lint_config(
    config: Mapping[str, Any],
    max_num_seqs: int | None,
    known: support.Version | None,
    drafter: Mapping[str, Any],
    target: Mapping[str, Any],
) -> Iterator[Finding]:
    yield from _lint_keys(config, known)
    yield from _lint_model(config)
    kmax = yield from _lint_kmax(config)
    yield from _lint_method(config, kmax, known, drafter, target)
    if "draft_len_schedule" in config:
        yield _dictionary(config["draft_len_schedule"], max_num_seqs)
    elif TABLE_FIELD not in config:
        yield _warning(
            TABLE_FIELD, "is missing: every batch size drafts Kmax tokens", "measure a table, or leave it so"
        )
    elif config[TABLE_FIELD] is not None:
        yield from lint_rows(config[TABLE_FIELD], kmax, max_num_seqs)


def _lint_version(known: support.Version | None) -> Iterator[Finding]:
    if known is not None and known < support.FIRST_WITH_TABLES:
        yield _error("table", f"vLLM {known[0]}.{known[1]} knows no tables", "use 0.24 or newer")


def _lint_keys(config: Mapping[str, Any], known: support.Version | None) -> Iterator[Finding]:
    """Keys that vLLM's parser does not know, which it refuses. Newer versions than were read may know more."""
    newest = config_keys.NEWEST
    there = sorted({*config_keys.keys_of(known or newest), *config_keys.OWNED} - config_keys.INTERNAL)
    for key in sorted(config.keys() - {*there, "draft_len_schedule"}):
        close = difflib.get_close_matches(key[:80], there, n=1, cutoff=0.8)
        fix = f"write {close[0]}" if close else "leave it out"
        if close or known is None or known <= newest:
            yield _error(named(key), "is no key of vLLM's speculative config, which refuses others", fix)
        else:
            read = ".".join(map(str, newest))
            yield _warning(named(key), f"is no key that vLLM {read} knows, and it refuses such", fix)


def _lint_model(config: Mapping[str, Any]) -> Iterator[Finding]:
    method, model = config.get("method"), config.get("model")
    if isinstance(method, str) and method not in _METHODS and not method.endswith("_mtp"):
        close = difflib.get_close_matches(method[:80], _METHODS, n=1)
        known = ", ".join(sorted(_METHODS))
        fix = f"write {close[0]}" if close else f"use one of {known}"
        yield _error("method", f"{shown(method)} is no method of vLLM", fix)
    elif model is not None and not isinstance(model, str):
        yield _error("model", f"{shown(model)} is no name of a model", "give its name or path")
    elif model is None and (method is None or (isinstance(method, str) and method in _WITH_MODEL)):
        why = "vLLM takes method draft_model, which loads" if method is None else f"method {method} loads"
        yield _error("model", f"is missing: {why} a model of its own to draft with", "give its name or path")
    elif model is not None and method in ("mtp", "ngram"):
        what = "is ignored" if method == "ngram" else "takes the place of the target's own heads"
        yield _warning("model", f"{what}: method {method} needs none", "leave it out unless that is meant")


def _lint_kmax(config: Mapping[str, Any]) -> Generator[Finding, None, int | None]:
    """Findings on Kmax; returns what vLLM reads, where it can."""
    given = config.get(KMAX_FIELD)
    kmax = None if isinstance(given, bool) else _integer(given)
    if given is None:
        method, model = str(config.get("method")), config.get("model")
        if KMAX_FIELD in config or not (method == "suffix" or (method in _WITHOUT_KMAX and model is not None)):
            yield _error(KMAX_FIELD, "is missing", "give the largest K of the table")
    elif kmax is None or kmax < 1:
        yield _error(KMAX_FIELD, f"{shown(given)} is no number of draft tokens", "give a whole number from 1 on")
        return None
    elif not isinstance(given, int):
        yield _warning(KMAX_FIELD, f"vLLM reads {shown(given)} as {kmax}", f"write {kmax}")
    return kmax


def _lint_method(
    config: Mapping[str, Any],
    kmax: int | None,
    known: support.Version | None,
    drafter: Mapping[str, Any],
    target: Mapping[str, Any],
) -> Iterator[Finding]:
    """How the engine would honour the table, if there is one."""
    method, with_table = config.get("method"), config.get(TABLE_FIELD) is not None
    if method is not None and not isinstance(method, str):
        yield _error("method", f"{shown(method)} is no name of a method", "name one, such as eagle3")
    if not isinstance(method, str):
        if method is None:
            yield _warning("method", "is missing: vLLM guesses it from the model", "name it, so that it cannot change")
        if with_table:
            yield from _lint_version(known)
        return
    if method.endswith("_mtp"):
        yield _warning("method", f"vLLM reads {shown(method)} as mtp", "write mtp")
        method = "mtp"
    if not with_table or method not in _METHODS:
        return
    answer = support.honour(
        support.Case(
            method,
            known,
            parallel=support.drafts_in_parallel(config) or support.drafts_in_parallel(drafter),
            modules=support.mtp_modules(target, kmax),
        )
    )
    if isinstance(answer, support.Refused):
        yield _error("method", answer.reason, answer.way_out)
    elif isinstance(answer, support.Warned):
        yield _warning("method", answer.reason, "expect less of the table, or run the engine that honours it")


def _is_schedule(value: Mapping[str, Any]) -> bool:
    """Whether an object is a table written as one: batch sizes, or ranges of them, with a K each."""
    return bool(value) and all(re.fullmatch(r"\s*\d+(\s*-\s*\d+)?\s*", key) for key in value)


def _dictionary(value: object, max_num_seqs: int | None) -> Finding:
    """An object in place of rows, with the rows that it means, where it means some."""
    message = "is an object, vLLM takes a list of [first, last, K] only"
    rows = _ranges(value) if isinstance(value, dict) else None
    if rows is None or any(finding.level == "error" for finding in lint_rows([list(row) for row in rows])):
        return _error("table", message, f"{EXAMPLE}: rows of [first, last, K], the first from 1 on, none over another")
    text = json.dumps(rows)
    if isinstance(value, dict) and any("-" in key for key in value):
        return _error("table", message, f"write {text}")
    beyond = f"[{rows[-1][1] + 1}, {max_num_seqs or 'maxNumSeqs'}, 0]"
    return _error(
        "table",
        f"{message}; in TensorRT-LLM's draft_len_schedule K is 0 above the last batch size, in vLLM the last K goes on",
        f"write {text}, with {beyond} at its end if nothing shall be drafted there",
    )


def _ranges(value: Mapping[str, Any]) -> list[tuple[int, int, int]] | None:
    """Rows of ``{"1-4": 3}``, or of ``{"4": 3}`` where each key is the last batch size of its row."""
    rows: list[tuple[int, int, int]] = []
    try:
        for key, k in sorted(value.items(), key=lambda item: int(str(item[0]).split("-")[0])):
            first, dash, last = str(key).partition("-")
            begin = int(first) if dash else (rows[-1][1] + 1 if rows else 1)
            rows.append((begin, int(last if dash else first), int(k)))
    except (TypeError, ValueError):
        return None
    return rows or None


def _row(entry: object, good: Sequence[tuple[int, int, int]]) -> Generator[Finding, None, tuple[int, int, int] | None]:
    """Findings on one row; returns it as integers where vLLM can read it so and it is a range.

    ``good`` are the rows of the table that are ranges: nothing is advised that overlaps them.
    """
    where = shown(entry)
    if not isinstance(entry, list) or len(entry) != 3:
        yield _error(where, "is no row of three", "write [first batch size, last batch size, K]")
        return None
    numbers = [_integer(value) for value in entry]
    if any(number is None for number in numbers):
        yield _error(where, "holds something that is no whole number", "write three whole numbers")
        return None
    first, last, k = (number or 0 for number in numbers)
    if any(not isinstance(value, int) or isinstance(value, bool) for value in entry):
        yield _warning(
            where, f"vLLM reads it as {_text((first, last, k))}", "write whole numbers, without quotes or a point"
        )
    if first < 1 or last < 1:
        fix = _instead((1 if first < 1 else first, last, max(k, 0)), good)
        yield _error(where, "batch sizes begin at 1", fix)
    elif first > last:
        yield _error(where, "begins above its end", _instead((last, first, max(k, 0)), good))
    if k < 0:
        yield _error(where, "K cannot be below 0", "write 0 where nothing shall be drafted")
    return _range(entry)


def _range(entry: object) -> tuple[int, int, int] | None:
    """A row as integers where vLLM takes it."""
    if not isinstance(entry, list) or len(entry) != 3:
        return None
    first, last, k = map(_integer, entry)
    if first is None or last is None or k is None:
        return None
    return (first, last, k) if 1 <= first <= last and k >= 0 else None


def _instead(row: tuple[int, int, int], good: Sequence[tuple[int, int, int]]) -> str:
    first, last, _ = row
    clear = not any(first <= other[1] and other[0] <= last for other in good)
    if first <= last and clear and min([first, *(other[0] for other in good)]) == 1:
        return f"write {_text(row)}"
    return "write [first, last, K] with batch sizes that no other row has"


def _integer(value: object) -> int | None:
    """What vLLM's parser makes of a value: numeric text and whole floats become integers."""
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value.strip()) if len(value) <= _MOST_DIGITS else None
        return int(found[1]) if found else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return int(value) if isinstance(value, int) and abs(value) < _TOO_LARGE else None


def _order(rows: Sequence[tuple[int, int, int]]) -> Iterator[Finding]:
    """Rows of whole numbers, in the order in which they are written."""
    ordered = sorted(rows)
    if list(rows) != ordered:
        sound = ordered[0][0] == 1 and all(after[0] > before[1] for before, after in pairwise(ordered))
        fix = f"write {json.dumps(ordered)}" if sound else "begin with the smallest batch sizes"
        yield _warning("table", "its rows are not in order; vLLM sorts them", fix)
    if ordered[0][0] != 1:
        first = ordered[0]
        yield _error(_text(first), "the first row must begin at batch size 1", f"write [1, {first[1]}, {first[2]}]")
    for before, after in pairwise(ordered):
        if after[0] <= before[1]:
            fix = f"let one end before {after[0]} or the other begin at {before[1] + 1}"
            yield _error(_text(after), f"overlaps {_text(before)}", fix)
        elif after[0] > before[1] + 1:
            gap = f"{before[1] + 1} to {after[0] - 1}"
            fix = f"write [{before[0]}, {after[0] - 1}, {before[2]}] if that is meant"
            yield _warning(_text(before), f"nothing is said of batch sizes {gap}; vLLM carries K = {before[2]} on", fix)


def _advice(rows: Sequence[tuple[int, int, int]], kmax: int | None, max_num_seqs: int | None) -> Iterator[Finding]:
    """What vLLM takes and does otherwise than expected, or badly."""
    for first, last, k in rows:
        where = _text((first, last, k))
        if kmax is not None and k > kmax:
            fix = f"write K = {kmax}, or set {KMAX_FIELD} to {k}"
            yield _warning(where, f"K = {k} is above {KMAX_FIELD} {kmax}; vLLM drafts {kmax} and says nothing", fix)
        if k > MOST_K:
            fix = f"write {MOST_K} at most: more drafts have not been seen to pay, and specserve renders none"
            yield _warning(where, f"K = {k} is above {MOST_K}", fix)
        if k == 0:
            message = "K = 0 still runs the drafter, 4 to 11% slower than a server without speculation"
            yield _warning(
                where, message, "measure a server without speculation, and serve that if it wins where you are"
            )
        if 2 * (last - first + 1) < first:
            message = (
                f"is only {last - first + 1} wide: running requests swing by a few, so K flips from step to step, "
                "and throughput has been seen to collapse at such an edge"
            )
            yield _warning(where, message, "merge it with a neighbour, or verify it under load")
    for before, after in pairwise(rows):
        if before[2] == after[2] and after[0] == before[1] + 1:
            yield _warning(
                _text(after), "has the K of the row before", f"write [{before[0]}, {after[1]}, {after[2]}] for both"
            )
    largest = max(k for _, _, k in rows)
    if kmax is not None and 0 < largest < kmax:
        yield _warning(
            KMAX_FIELD, f"{kmax} is above every K of the table", f"set it to {largest}; it sizes buffers and graphs"
        )
    yield from _end(rows[-1], max_num_seqs)


def _end(last: tuple[int, int, int], max_num_seqs: int | None) -> Iterator[Finding]:
    if max_num_seqs is not None and last[1] < max_num_seqs:
        fix = f"write [{last[0]}, {max_num_seqs}, {last[2]}] if that is meant; it was not measured there"
        yield _warning(_text(last), f"ends below max_num_seqs {max_num_seqs}; vLLM carries K = {last[2]} on", fix)
    if max_num_seqs is not None and last[0] > max_num_seqs:
        yield _warning(_text(last), f"begins above max_num_seqs {max_num_seqs}: it is never used", "leave it out")


def shown(value: object) -> str:
    """A foreign value as JSON that fits into a line: no control characters, 80 letters at most."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:76]} ..."


def named(name: str) -> str:
    """A foreign name likewise, without quotes."""
    return shown(name).strip('"')


def _text(row: tuple[int, int, int]) -> str:
    return shown(list(row))


def _error(where: str, message: str, fix: str) -> Finding:
    return Finding(level="error", where=where, message=message, fix=fix)


def _warning(where: str, message: str, fix: str) -> Finding:
    return Finding(level="warning", where=where, message=message, fix=fix)
