"""Tables as SGLang and TensorRT-LLM write them: read, looked at and written, with what does not carry over. Pure.

A table is measured on one engine. Another drafts, verifies and captures graphs at other costs, so what is written here
is a table to begin measuring from, and every output says so.

Sources. SGLang: ``adaptive_spec_params.py`` in the wheels of 0.5.10 to 0.5.14, 0.5.16, 0.5.18 and 0.5.23. TensorRT-LLM:
``llm_args.py`` and ``speculative/utils.py`` of its repository before and after pull request 10860 (merged on 13 March
2026), which changed what a key means. Neither engine was run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from specserve_profiler.contract.profile import Row
from specserve_profiler.contract.request import Speculation
from specserve_profiler.reports.flags import extra_words
from specserve_profiler.reports.lint import Finding, lint_rows, shown

Elsewhere = Literal["sglang", "trtllm"]
NAMES: dict[Elsewhere, str] = {"sglang": "SGLang", "trtllm": "TensorRT-LLM"}
_ALGORITHMS = {"eagle": "EAGLE", "eagle3": "EAGLE3"}
_CHANGED = "pull request 10860 (merged on 13 March 2026)"
_FLOOR = (
    "K = 0 is no drafting in the sources of pull request 10860; those of 16888 keep one draft at least with drafters"
    " that carry state (n-grams carry none)"
)
_PADDED = (
    "SGLang pads a batch to its next captured graph size before it looks K up: edges of the table lie where sizes of"
    " --cuda-graph-bs do"
)


@dataclass(frozen=True)
class Written:
    """A table in another engine's form."""

    text: str
    """JSON for SGLang's file, YAML for TensorRT-LLM's."""
    config: dict[str, Any]
    arguments: tuple[str, ...]
    """Of the engine's command line, beside the text; empty where it takes a file alone."""
    notes: tuple[str, ...]
    """What does not carry over, and which releases are meant."""


def named(text: str) -> Elsewhere:
    """The engine of a name. Raises ValueError."""
    for name in NAMES:
        if text == name:
            return name
    raise ValueError(f"{text!r}: give one of {', '.join(NAMES)}")


def write(engine: Elsewhere, rows: Sequence[Row], speculation: Speculation) -> Written:
    """A table for another engine. Raises ValueError where that engine has no form for it."""
    table = [(row.first, row.last, row.k) for row in rows]
    if not any(k for _, _, k in table):
        raise ValueError("every K is 0: serve without speculation")
    written = _for_sglang(table, speculation) if engine == "sglang" else _for_trtllm(table, speculation)
    further = " ".join(extra_words(speculation.config))
    return replace(written, notes=(*written.notes, f"left out, for they are vLLM's: {further}")) if further else written


def recognise(value: object) -> Elsewhere | None:
    """Whose form a value is in; None where it is neither's."""
    if not isinstance(value, dict):
        return None
    if "candidate_steps" in value or any(isinstance(e, dict) and "candidate_steps" in e for e in value.values()):
        return "sglang"
    inner = value.get("speculative_config")
    if "draft_len_schedule" in (inner if isinstance(inner, dict) else value):
        return "trtllm"
    return "trtllm" if value and all(_size(key) is not None for key in value) else None


def look(engine: Elsewhere, value: object, max_batch: int | None = None) -> tuple[Finding, ...]:
    """What that engine refuses in a table, what it means otherwise, and its rows for vLLM; errors first."""
    found = list(_look_sglang(value) if engine == "sglang" else _look_trtllm(value))
    if not any(finding.level == "error" for finding in found):
        found += _as_rows(engine, value, max_batch)
    return tuple(sorted(found, key=lambda finding: finding.level))


def rows_of(engine: Elsewhere, value: object, max_batch: int | None = None) -> list[list[int]] | None:
    """The rows for vLLM that mean the same; None where the value is no table with one K at each batch size.

    The last row of SGLang goes on for ever, as vLLM's does; above TensorRT-LLM's last key K is 0.
    """
    if engine == "sglang":
        slots = sorted((size, steps) for size, steps in _slots(value).items())
        if not slots or any(len(set(steps)) != 1 for _, steps in slots):
            return None
        starts = [1, *(size for size, _ in slots[1:])]
        ends = [*(size - 1 for size in starts[1:]), max(max_batch or 0, starts[-1])]
        rows = [[first, last, steps[0]] for first, last, (_, steps) in zip(starts, ends, slots, strict=True)]
    else:
        keys = sorted(_schedule(value).items())
        lasts = [0, *(key for key, _ in keys)]
        rows = [[before + 1, key, k] for before, (key, k) in zip(lasts, keys, strict=False)]
        end = rows[-1][1] if rows else 0
        if rows and rows[-1][2] > 0 and end < (max_batch or end + 1):
            rows.append([end + 1, max_batch or end + 1, 0])
    return _merged(rows)


def _for_sglang(table: list[tuple[int, int, int]], speculation: Speculation) -> Written:
    if speculation.method not in _ALGORITHMS:
        raise ValueError(f"SGLang's adaptive speculation takes EAGLE and EAGLE3, not {speculation.method}")
    kmax = max(k for _, _, k in table)
    config = {str(first): {"candidate_steps": [k]} for first, _, k in _merged([list(row) for row in table])}
    arguments = ["--speculative-algorithm", _ALGORITHMS[speculation.method]]
    if speculation.model is not None:
        arguments += ["--speculative-draft-model-path", speculation.model]
    if speculation.revision is not None:
        arguments += ["--speculative-draft-model-revision", speculation.revision]
    arguments += ["--speculative-eagle-topk", "1", "--speculative-num-steps", str(kmax)]
    arguments += ["--speculative-num-draft-tokens", str(kmax + 1)]
    arguments += ["--speculative-adaptive", "--speculative-adaptive-config", "FILE"]
    least = "0.5.14 or newer, older ones refuse K = 0" if any(k == 0 for _, _, k in table) else "0.5.13 or newer"
    notes = (
        _measured("vLLM", "SGLang"),
        f"for SGLang {least}; 0.5.11 and 0.5.12 know no batch sizes here and would take their own steps without a word",
        _PADDED,
        "with one value for each batch size SGLang adapts nothing; it takes no attention DP and one EAGLE layer only",
    )
    return Written(json.dumps(config), config, tuple(arguments), notes)


def _for_trtllm(table: list[tuple[int, int, int]], speculation: Speculation) -> Written:
    kmax = max(k for _, _, k in table)
    if table[0][2] != kmax:
        raise ValueError(
            f"TensorRT-LLM wants its largest K at the smallest batch sizes, and this table has {table[0][2]} there and"
            f" {kmax} above"
        )
    ends = [*(after[0] - 1 for after in table[1:]), table[-1][1]]
    schedule = {last: k for last, (_, _, k) in zip(ends, table, strict=True)}
    config: dict[str, Any] = {"max_draft_len": kmax, "draft_len_schedule": schedule}
    if speculation.model is not None:
        config["speculative_model"] = speculation.model
    before = {first: k for first, _, k in table}
    notes = [
        _measured("vLLM", "TensorRT-LLM"),
        f"for TensorRT-LLM since its {_CHANGED}, where a key is the last batch size of its row",
        f"before that a key was the first, and the same table is {before}",
        "decoding_type is yours to add: what TensorRT-LLM calls a method differs between its releases",
        _FLOOR,
    ]
    if table[-1][2]:
        notes.append(f"above batch size {ends[-1]} TensorRT-LLM drafts nothing, where vLLM goes on with {table[-1][2]}")
    if speculation.method == "mtp":
        notes.append("TensorRT-LLM leaves a schedule out of account for vanilla MTP with several modules")
    if speculation.revision is not None:
        notes.append("the revision of the draft model has no place in this config")
    lines = [f"  {key}: {_yaml(value)}" for key, value in sorted(config.items())]
    return Written("\n".join(["speculative_config:", *lines]), {"speculative_config": config}, (), tuple(notes))


def _yaml(value: object) -> str:
    return json.dumps(value) if not isinstance(value, dict) else str(value)


def _look_sglang(value: object) -> Iterator[Finding]:
    example = 'write {"1": {"candidate_steps": [3]}}'
    if not isinstance(value, dict):
        yield _error("table", "is no object of batch sizes", example)
        return
    sizes = {key: entry for key, entry in value.items() if _size(key) is not None}
    if not sizes and "candidate_steps" not in value:
        yield _error("table", "has no batch size among its keys", example)
    for key, entry in (sizes or {"candidate_steps": value}).items():
        steps = entry.get("candidate_steps") if isinstance(entry, dict) else None
        if not isinstance(steps, list) or not steps or not all(isinstance(step, int) and step >= 0 for step in steps):
            yield _error(shown(key), "candidate_steps must be a list of whole numbers from 0 on", "write [3]")
        elif 0 in steps:
            yield _warning(shown(key), "0 steps are refused by SGLang 0.5.13", "use 0.5.14 or newer")
    if not sizes:
        message = "have no batch sizes: the form of SGLang 0.5.11 and 0.5.12, which 0.5.13 and newer refuse"
        yield _warning("candidate_steps", message, f"{example} for those")
    elif not any(_size(key) == 1 for key in sizes):
        least = min(sizes, key=lambda key: _size(key) or 0)
        yield _warning(shown(least), "smaller batch sizes use its steps too", "begin at 1")


def _look_trtllm(value: object) -> Iterator[Finding]:
    config = value.get("speculative_config", value) if isinstance(value, dict) else value
    schedule = config.get("draft_len_schedule", config) if isinstance(config, dict) else config
    if not isinstance(schedule, dict) or not schedule:
        yield _error("draft_len_schedule", "is no object of batch sizes", "write {16: 4, 64: 2}")
        return
    for key, k in schedule.items():
        if (_size(key) or 0) < 1:
            yield _error(shown(key), "is no batch size from 1 on", "write a whole number")
        if isinstance(k, bool) or not isinstance(k, int) or k < 0:
            yield _error(shown(key), f"{shown(k)} is no draft length", "write a whole number from 0 on")
            return
    keys = _schedule(value)
    kmax = config.get("max_draft_len") if isinstance(config, dict) else None
    if keys and isinstance(kmax, int) and (keys[min(keys)] != kmax or max(keys.values()) > kmax):
        fix = "let the smallest batch size have max_draft_len, and none more"
        yield _error("draft_len_schedule", f"does not begin with max_draft_len {kmax}, its largest value", fix)
    elif keys and max(keys.values()) > keys[min(keys)]:
        fix = "let the smallest batch size have the largest draft length"
        yield _error("draft_len_schedule", "its smallest batch size must have max_draft_len, the largest value", fix)
    if isinstance(config, dict) and config.get("max_concurrency") is not None:
        yield _error("max_concurrency", "excludes draft_len_schedule", "leave it out")


def _as_rows(engine: Elsewhere, value: object, max_batch: int | None) -> Iterator[Finding]:
    """What the table means for vLLM, as warnings: it is another engine's."""
    rows = rows_of(engine, value, max_batch)
    if rows is None:
        message = "SGLang chooses among several steps by what is accepted; a table has one K at each batch size"
        yield _warning("candidate_steps", message, "measure a table for vLLM")
        return
    carried = "" if any(finding.level == "error" for finding in lint_rows(rows)) else f"write {json.dumps(rows)}, and "
    yield _warning("table", _measured(NAMES[engine], "vLLM"), f"{carried}measure it for vLLM")
    if engine == "sglang":
        yield _warning("table", _PADDED, "compare at captured sizes")
        return
    keys = sorted(_schedule(value).items())
    message = (
        f"read as TensorRT-LLM does since its {_CHANGED}: a key is the last batch size of its row; above all K is 0"
    )
    fix = "use it with such a release"
    if keys[0][0] == 1:  # what the older form demanded
        ends = [*(after - 1 for (_, _), (after, _) in pairwise(keys)), max(max_batch or 0, keys[-1][0])]
        older = _merged([[first, last, k] for (first, k), last in zip(keys, ends, strict=True)])
        fix = f"for an older release, where a key was the first batch size, write {json.dumps(older)}"
    yield _warning("draft_len_schedule", message, fix)
    yield _warning("draft_len_schedule", _FLOOR, "look at what your release does")


def _slots(value: object) -> dict[int, list[int]]:
    if not isinstance(value, dict):
        return {}
    if "candidate_steps" in value and not any(_size(key) is not None for key in value):
        return {1: value["candidate_steps"]} if isinstance(value["candidate_steps"], list) else {}
    return {int(key): entry["candidate_steps"] for key, entry in value.items() if _size(key) is not None}


def _schedule(value: object) -> dict[int, int]:
    """A ``draft_len_schedule``, by itself or within a config. Keys that are no batch sizes are left out."""
    config = value.get("speculative_config", value) if isinstance(value, dict) else {}
    schedule = config.get("draft_len_schedule", config) if isinstance(config, dict) else {}
    found = schedule if isinstance(schedule, Mapping) else {}
    return {int(key): k for key, k in found.items() if _size(key) is not None}


def _size(key: object) -> int | None:
    """A batch size as a key of JSON or YAML says it."""
    if isinstance(key, int) and not isinstance(key, bool):
        return key
    return int(key) if isinstance(key, str) and key.isdecimal() and len(key) <= 18 else None


def _merged(rows: list[list[int]]) -> list[list[int]]:
    """Neighbours of one K as one row."""
    merged: list[list[int]] = []
    for first, last, k in rows:
        if merged and merged[-1][2] == k:
            merged[-1][1] = last
        else:
            merged.append([first, last, k])
    return merged


def _measured(here: str, there: str) -> str:
    return f"a table of {here} is not right for {there} by itself: drafting and verifying cost otherwise there"


def _error(where: str, message: str, fix: str) -> Finding:
    return Finding(level="error", where=where, message=message, fix=fix)


def _warning(where: str, message: str, fix: str) -> Finding:
    return Finding(level="warning", where=where, message=message, fix=fix)
