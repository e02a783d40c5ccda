"""Why an engine ended, from the last lines of its log. Pure.

The patterns are words of vLLM, PyTorch, safetensors, the hub's client and the kernel; each was seen in a log of vLLM
0.32, or stands in its source where it takes a GPU to see it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_LONGEST = 600
_FLAGS = re.IGNORECASE
_AFTERMATH = re.compile(
    r"See root cause above|in a background process|EngineDeadError|EngineCore encountered an issue|died unexpectedly|"
    r"^(asyncio\.exceptions\.)?CancelledError|^KeyboardInterrupt"
)
"""Exceptions that only tell that another process has ended."""


@dataclass(frozen=True)
class Diagnosis:
    """Why an engine ended."""

    reason: str
    cause: str
    """The line of the log that says it best."""
    way_out: str


@dataclass(frozen=True)
class _Rule:
    reason: str
    pattern: re.Pattern[str]
    way_out: str


def _rule(reason: str, pattern: str, way_out: str) -> _Rule:
    return _Rule(reason, re.compile(pattern, _FLAGS), way_out)


_MEMORY = (
    "leave it more: a smaller --gpu-memory-utilization where weights or graphs did not fit, a larger one where the KV "
    "cache did not; a smaller engine.maxModelLen or engine.maxNumSeqs; another drafter; a larger accelerator"
)
_CPU_MEMORY = "set VLLM_CPU_KVCACHE_SPACE (GiB) to what the machine or the container's memory limit leaves for it"
_ACCESS = "set HF_TOKEN to one that may read it, and accept its terms on the hub if it is gated"
_MODEL = (
    "check model and speculation.model, their revisions, the volumes and the access to the hub: what the engine cannot "
    "read here, it cannot read where it is deployed"
)
_RULES = (
    _rule(
        "DiskFull",
        r"No space left on device|Errno 28\b|Disk quota exceeded|insufficient space in /dev/shm",
        "free some, or give the folder that it names, TMPDIR, HF_HOME and /dev/shm more",
    ),
    _rule("PortInUse", r"Address already in use|Errno 98\b", "end what listens there, or run it again"),
    _rule(
        "DrafterMismatch",
        r"should have the same vocabulary size|vocab\w*[ _]size.*(draft|target).*(mismatch|differ|same|match)",
        "a drafter must have the tokenizer of its target: choose one that was made for it",
    ),
    _rule("OutOfMemory", r"less than requested memory for kv|DefaultCPUAllocator: .*memory", _CPU_MEMORY),
    _rule(
        "OutOfMemory",
        r"\b(CUDA|HIP|XPU|NPU|GPU|HPU) out of memory|OutOfMemoryError|CUDA error: out of memory|"
        r"cudaErrorMemoryAllocation|No available memory for the cache blocks|larger than the available KV cache|"
        r"Free memory on device .* is less|Cannot allocate memory|^MemoryError\b|std::bad_alloc",
        _MEMORY,
    ),
    _rule(
        "ModelUnreadable",
        r"GatedRepoError|gated repo|RepositoryNotFoundError|\b40[13] (Client Error|Unauthorized|Forbidden)",
        _ACCESS,
    ),
    _rule(
        "ModelUnreadable",
        r"SafetensorError|Error while deserializing header|Unterminated string starting at|invalid load key",
        "its weights are damaged or cut short: download them again",
    ),
    _rule(
        "ModelUnreadable",
        r"Invalid repository ID or local directory|Repo id must be in the form|LocalEntryNotFoundError|"
        r"RevisionNotFoundError|OfflineModeIsEnabled|is not a valid model identifier|Cannot find any model weights|"
        r"does not appear to have (a file|files) named|Can.?t load (the )?(configuration|config|tokenizer)|"
        r"(PermissionError|FileNotFoundError): \[Errno \d+\] .*(safetensors|config|tokenizer|model|\.bin|\.gguf)",
        _MODEL,
    ),
    _rule(
        "EngineUnsupported",
        r"unrecognized arguments: .*(--scheduler-cls|--speculative-config|--cudagraph-capture-sizes)|"
        r"Model architectures? .* (is|are) not supported|not supported for .*speculative|"
        r"speculative decoding .*not supported",
        "use an engine that has it (vLLM 0.24 or newer), or another method",
    ),
    _rule("ArgumentsInvalid", r"^[\w. -]+: error: |error: (unrecognized arguments|argument )", "correct engine.args"),
    _rule(
        "OutOfMemory",
        r"\(exit code: -9\)|core proc\(s\): \{[^}]*: -9\b",
        "the kernel has most likely killed it for its memory: raise the container's memory limit, or " + _CPU_MEMORY,
    ),
)
_GONE = re.compile(r"engine core exited unexpectedly|died unexpectedly", _FLAGS)
_ANY = "it would end where it is deployed, too: check image, engine.args and the models"


def diagnose(lines: Sequence[str], returncode: int | None) -> Diagnosis:
    """Why an engine ended while it booted. ``returncode`` is negative for a signal, None while it still runs."""
    said = [line for line in map(_complaint, lines) if line]
    for rule in _RULES:
        found = next((line for line in reversed(said) if rule.pattern.search(line)), None)
        if found is not None:
            return Diagnosis(rule.reason, found[:_LONGEST], rule.way_out)
    if returncode == -signal.SIGKILL:
        return Diagnosis("OutOfMemory", _last(lines), _RULES[-1].way_out)
    return Diagnosis("EngineFailed", error_line(lines), _ANY)


def diagnose_measured(lines: Sequence[str], returncode: int | None) -> Diagnosis:
    """Why an engine ended while it was measured: a full disk ends the run, anything else is this cell's."""
    found = diagnose(lines, returncode)
    if found.reason == "DiskFull":
        return found
    if not _root_causes(lines) and any(_GONE.search(line) for line in lines):
        cause = "its core process was killed from outside, most likely by the kernel for its memory"
        return Diagnosis("EngineCrashed", cause, _RULES[-1].way_out.partition(": ")[2])
    hint = " (out of memory)" if found.reason == "OutOfMemory" else ""
    return Diagnosis("EngineCrashed", found.cause + hint, "it would do so where it is deployed, too, at such a load")


def error_line(lines: Sequence[str]) -> str:
    """The line of an engine's log that says best why it ended.

    The last exception that does not only tell of another process' end; without one the last complaint of the argument
    parser, else the last exception of any kind, else the last line.
    """
    plain = [text for text in map(_text, lines) if text]
    choices: tuple[Callable[[], list[str]], ...] = (
        lambda: _root_causes(lines),
        lambda: [line for line in plain if re.search(r"\berror: ", line)],
        lambda: _exceptions(lines),
        lambda: plain,
    )
    for choice in choices:
        if found := choice():
            return found[-1][:_LONGEST]
    return "the engine wrote nothing"


def _exceptions(lines: Sequence[str]) -> list[str]:
    return [text for text in map(_text, lines) if re.match(r"[\w.]*(Error|Exception|Interrupt)\b.*:", text)]


def _root_causes(lines: Sequence[str]) -> list[str]:
    """Exceptions that tell of more than another process' end."""
    return [line for line in _exceptions(lines) if not _AFTERMATH.search(line)]


def _last(lines: Sequence[str]) -> str:
    return next((text[:_LONGEST] for text in map(_text, reversed(lines)) if text), "the engine wrote nothing")


_PROCESS = re.compile(r"^\([\w ]+pid=\d+\) ?")
_LEVEL = re.compile(r"^(ERROR|WARNING|INFO|DEBUG|CRITICAL) [\d-]+ [\d:.]+ \[[^\]]*\] ?")


def _text(line: str) -> str:
    return _LEVEL.sub("", _PROCESS.sub("", line)).strip()


def _complaint(line: str) -> str:
    """The text of a line that may say why: no news, no warning, no source of a traceback."""
    line = _PROCESS.sub("", line)
    level = _LEVEL.match(line)
    if level and level[1] in ("INFO", "DEBUG", "WARNING"):
        return ""
    text = _LEVEL.sub("", line)
    return "" if re.match(r"\s+(File \"|[~^]+$|raise |return )", text) else text.strip()
