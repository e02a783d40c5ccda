"""A user's engine arguments: read as vLLM reads them, and refused where specserve sets them. Pure.

vLLM takes underscores for dashes, any unambiguous prefix of a flag, ``--flag=value`` and ``--flag.key=value``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_OWNED: dict[str, str] = {
    "--model": "set model.name",
    "--revision": "set model.revision",
    "--max-num-seqs": "set engine.maxNumSeqs",
    "--max-model-len": "set engine.maxModelLen",
    "--tensor-parallel-size": "set engine.tensorParallelSize",
    "-tp": "set engine.tensorParallelSize",
    "--speculative-config": "set speculation, further keys in speculation.config; its table is measured",
    "-sc": "set speculation, further keys in speculation.config; its table is measured",
    "--spec-method": "set speculation.method",
    "--spec-model": "set speculation.model",
    "--spec-tokens": "set speculation.maxTokens",
    "--scheduler-cls": "the profiler's probe is the scheduler while measuring",
    "--host": "specserve chooses the address",
    "--port": "specserve chooses the port",
    "--uds": "specserve talks to the engine over TCP",
    "--ssl-keyfile": "specserve talks to the engine over plain HTTP; end TLS in front of the Service",
    "--ssl-certfile": "specserve talks to the engine over plain HTTP; end TLS in front of the Service",
    "--api-key": "set VLLM_API_KEY from a Secret instead, so that no key stands in a pod's arguments",
    "--headless": "the engine must serve HTTP",
    "--grpc": "the engine must serve HTTP",
    "--config": "a file can bring back any flag that specserve sets; write its content as arguments",
}
_SHADOWED = frozenset({"-dc"})
"""Flags of vLLM's own that are the beginning of one above."""

SINGLE: dict[str, str] = {
    "--data-parallel-size": "with data parallelism vLLM drops the table; run more replicas instead",
    "-dp": "with data parallelism vLLM drops the table; run more replicas instead",
    "--pipeline-parallel-size": "a table under pipeline parallelism has open bugs in vLLM",
    "-pp": "a table under pipeline parallelism has open bugs in vLLM",
    "--decode-context-parallel-size": "speculation with decode context parallelism corrupts output silently",
    "-dcp": "speculation with decode context parallelism corrupts output silently",
}
"""Flags that may say 1 only, and why: no table is measured with another value, whatever the method."""


def _flags(names: str) -> frozenset[str]:
    return frozenset(f"--{name}" for name in names.split())


_SWITCHES = _flags("""
aggregate-engine-logging allow-credentials allow-deprecated-quantization async-scheduling cohere-is-reasoning-model
cudagraph-metrics dcp-q-replicate enforce-eager exclude-tools-when-tool-choice-none fail-on-environ-validation
fully-sharded-loras help interleave-mm-strings jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill
language-model-only log-error-stack long-prefill-token-threshold-adaptive mm-device-do-normalize mm-encoder-only
numa-bind ray-workers-use-nsight return-sampling-mask return-tokens-as-token-ids scheduler-reserve-full-isl
skip-mm-profiling skip-tokenizer-init sleep-mode-offload-cudagraph specialize-active-lora swa-bounded-replay
tokens-only trust-remote-code trust-request-chat-template trust-request-mm-kwargs use-fp64-gumbel use-replayssm
use-tqdm-on-load
""") | {"-ep", "-h"}
"""Flags of vLLM 0.32 that take no value, beside those that begin with ``--enable-``, ``--disable-`` and ``--no-``."""
_SEVERAL = _flags("""
allowed-media-domains collect-detailed-traces cpu-offload-params cudagraph-capture-sizes ignore-patterns
kv-cache-dtype-skip-layers logits-processors lora-modules lora-target-modules numa-bind-cpus numa-bind-nodes
offload-params served-model-name sleep-preserve-parameter-names
""")
"""Flags that take any number of values."""
_VALUED = _flags("disable-access-log-for-endpoints kv-cache-dtype long-prefill-token-threshold")
"""Flags that take a value, although they look like a switch or the beginning of one."""

_NUMBER = re.compile(r"-\d+(\.\d*)?|-\.\d+")
_COMPILATION = ("--compilation-config", "-cc")


class Flag(NamedTuple):
    """One flag of a command line."""

    text: str
    """As it was given."""
    name: str
    """With dashes for underscores, without dotted keys."""
    keys: tuple[str, ...]
    """Dotted keys behind the name: ``--flag.a.b`` has ``a`` and ``b``."""
    value: str | None
    """What follows an equals sign, else the next argument, where that is no flag itself."""


def flags(args: Sequence[str]) -> Iterator[Flag]:
    """Every flag of a command line, in order."""
    for index, argument in enumerate(args):
        if not is_flag(argument):
            continue
        following = args[index + 1] if index + 1 < len(args) and not is_flag(args[index + 1]) else None
        head, equals, value = argument.partition("=")
        name, *keys = head.split(".")
        yield Flag(
            argument,
            name.rstrip("+").replace("_", "-"),
            tuple(key.rstrip("+").replace("-", "_") for key in keys),
            value if equals else following,
        )


def is_flag(argument: str) -> bool:
    """Whether argparse takes an argument for a flag; a negative number is a value."""
    return argument.startswith("-") and _NUMBER.fullmatch(argument) is None


def names(flag: str, full: str) -> bool:
    """Whether argparse could read ``flag`` as ``full``: the same, or a prefix with as many dashes in front."""
    return full.startswith(flag) and flag.startswith("--") == full.startswith("--") and flag.strip("-") != ""


def sets(args: Sequence[str], *full: str) -> bool:
    """Whether one of the flags ``full`` is given, in any spelling."""
    return any(names(flag.name, each) for flag in flags(args) for each in full)


def switched_on(args: Sequence[str], full: str) -> bool:
    """Whether a switch such as ``--enforce-eager`` is on at the end; ``--no-...`` turns it off again."""
    on = False
    for flag in flags(args):
        if names(flag.name, full):
            on = (flag.value or "true").lower() not in ("false", "0")
        elif names(flag.name, full.replace("--", "--no-", 1)):
            on = False
    return on


def compilation_config(args: Sequence[str]) -> dict[str, Any]:
    """What a command line says of vLLM's compilation config: JSON and dotted keys, the top level only.

    Text that is no JSON is left to vLLM, which says what is wrong with it.
    """
    found: dict[str, Any] = {}
    for flag in flags(args):
        attached = flag.text.removeprefix("-O").lstrip("=") if flag.text.startswith("-O") else ""
        if attached.startswith("{"):
            found.update(_json_object(attached))
        elif flag.name.startswith("-O") or any(names(flag.name, full) for full in _COMPILATION):
            found.update({flag.keys[0]: flag.value} if flag.keys else _json_object(flag.value))
    return found


def _json_object(text: str | None) -> Mapping[str, Any]:
    try:
        value = json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, Mapping) else {}


def owned_flags() -> dict[str, str]:
    """Flag -> what to do instead, for every flag that must not stand in ``engine.args`` with any value."""
    return dict(_OWNED)


def refused_arguments(args: Sequence[str]) -> list[tuple[str, str]]:
    """(argument, why) for each of the user's arguments that may not be there, in any spelling that vLLM accepts.

    vLLM takes underscores for dashes, any unambiguous prefix, ``--flag=value`` and ``--flag.key=value``.
    A prefix of an owned flag is refused even where it is ambiguous: vLLM would not take it either.
    """
    refused = []
    if args and not args[0].startswith("-"):
        refused.append(
            (args[0], "arguments begin with a flag; set model.name for the model, engine.command for a command")
        )
    for flag in flags(args):
        why = _why_refused(flag)
        if why is not None:
            refused.append((flag.text, why))
    return refused + list(_positionals(args))


def most_values(argument: str) -> float:
    """How many arguments vLLM takes for values of this flag; 1 for one that is not known here."""
    name = argument.partition("=")[0].replace("_", "-")
    if "=" in argument or (name.startswith("-O") and len(name) > 2):
        return 0
    if name in _VALUED:
        return 1
    if name.startswith(("--no-", "--enable-", "--disable-")) or any(names(name, full) for full in _SWITCHES):
        return 0
    return math.inf if any(names(name, full) for full in _SEVERAL) else 1


def _positionals(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Arguments that are neither a flag nor a value of one."""
    flag, left = "", 0.0
    for argument in args:
        if is_flag(argument):
            flag, left = argument, most_values(argument)
        elif left:
            left -= 1
        elif flag:
            yield argument, f"it is no value of {flag}: vLLM would take it for the model, whatever model.name says"


def _why_refused(flag: Flag) -> str | None:
    malformed = _why_malformed(flag.name)
    if malformed is not None:
        return malformed
    if flag.name in _SHADOWED:
        return None
    for owned, instead in _OWNED.items():
        if names(flag.name, owned):
            return f"specserve sets {owned} itself: {instead}"
    for single, why in SINGLE.items():
        if names(flag.name, single) and flag.value != "1":
            return f"{single} greater than 1 is not supported: {why}"
    if flag.name.startswith("--data-parallel-") and flag.name != "--data-parallel-size":
        return f"{flag.name} is not supported: {SINGLE['-dp']}"
    if flag.name in {"-dpn", "-dpr", "-dpl", "-dpa", "-dpp", "-dpb", "-dph", "-dpe", "-dpm"}:
        return f"{flag.name} is not supported: {SINGLE['-dp']}"
    return None


def _why_malformed(flag: str) -> str | None:
    if flag == "--":
        return "it turns everything after it into positional arguments"
    if flag.startswith("--") and re.search(r"\s", flag):
        return "a flag and its value are two arguments, or one with = between them"
    return None
