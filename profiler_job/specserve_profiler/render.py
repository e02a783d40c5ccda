"""Engine arguments, as vLLM 0.24 to 0.33 take them. Pure: the operator and the profiler render with the same code.

Arguments are lists and never pass through a shell: shells have mangled the JSON in them before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specserve_profiler.contract import Decision, Engine, Speculation

_OWNED: dict[str, str] = {
    "--model": "set model.name",
    "--revision": "set model.revision",
    "--max-num-seqs": "set engine.maxNumSeqs",
    "--max-model-len": "set engine.maxModelLen",
    "--tensor-parallel-size": "set engine.tensorParallelSize",
    "-tp": "set engine.tensorParallelSize",
    "--speculative-config": "set speculation; its table is measured",
    "-sc": "set speculation; its table is measured",
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
_ONLY_ONE: dict[str, str] = {
    "--data-parallel-size": "with data parallelism vLLM drops the table; run more replicas instead",
    "-dp": "with data parallelism vLLM drops the table; run more replicas instead",
    "--pipeline-parallel-size": "a table under pipeline parallelism has open bugs in vLLM",
    "-pp": "a table under pipeline parallelism has open bugs in vLLM",
    "--decode-context-parallel-size": "speculation with decode context parallelism corrupts output silently",
    "-dcp": "speculation with decode context parallelism corrupts output silently",
}
_SHADOWED = frozenset({"-dc"})
"""Flags of vLLM's own that are the beginning of one above."""
_REFUSED_METHODS: dict[str, str] = {
    "ngram_gpu": "vLLM stops in the middle of a request as soon as K changes; use ngram",
    "suffix": "vLLM stops in the middle of a request as soon as K changes; use ngram",
    "medusa": "vLLM stops in the middle of a request as soon as K changes",
    "mlp_speculator": "K never reaches this drafter",
    "custom_class": "K never reaches a custom drafter",
    "extract_hidden_states": "it does not draft",
}
_FIRST_WITH_TABLES = (0, 24)
_NUMBER = re.compile(r"-\d+(\.\d*)?|-\.\d+")


def owned_flags() -> dict[str, str]:
    """Flag -> what to do instead, for every flag that must not stand in ``engine.args`` with any value."""
    return dict(_OWNED)


def serve_arguments(
    model: str,
    revision: str | None,
    engine: Engine,
    speculation_config: Mapping[str, Any] | str | None,
    *,
    host: str = "0.0.0.0",  # noqa: S104 - a server in a pod listens on the pod's address
    port: int = 8000,
    extra: Sequence[str] = (),
) -> tuple[str, ...]:
    """The whole command line of an engine: its command, what specserve sets, ``extra``, then the user's own arguments.

    ``speculation_config`` may be a text, for a reference such as ``$(SPECSERVE_SPECULATIVE_CONFIG)`` that the kubelet
    expands. The model is positional after a command that ends in ``serve`` and ``--model`` otherwise.
    """
    command = list(engine.command)
    command += [model] if command and command[-1] == "serve" else [f"--model={model}"]
    if revision is not None:
        command.append(f"--revision={revision}")
    command += [
        f"--host={host}",
        f"--port={port}",
        f"--max-num-seqs={engine.max_num_seqs}",
        f"--max-model-len={engine.max_model_len}",
        f"--tensor-parallel-size={engine.tensor_parallel_size}",
    ]
    if speculation_config is not None:
        text = speculation_config if isinstance(speculation_config, str) else config_text(speculation_config)
        command.append(f"--speculative-config={text}")
    return (*command, *extra, *engine.args)


def config_text(config: Mapping[str, Any]) -> str:
    """The one JSON text of a ``--speculative-config``."""
    return json.dumps(config, separators=(",", ":"))


def speculative_config(speculation: Speculation, decision: Decision) -> dict[str, Any] | None:
    """What to serve with: a table (``Dynamic``), one K (``Static``), or no speculation (``None``)."""
    if decision.verdict == "None":
        return None
    if decision.verdict == "Static":
        return static_config(speculation, decision.static_k)
    return table_config(speculation, [(row.first, row.last, row.k) for row in decision.table])


def static_config(speculation: Speculation, k: int) -> dict[str, Any] | None:
    """Speculation with one K at every batch size; None for K = 0."""
    if k == 0:
        return None
    config: dict[str, Any] = {"method": speculation.method}
    if speculation.model is not None:
        config["model"] = speculation.model
    if speculation.revision is not None:
        config["revision"] = speculation.revision
    return {**config, "num_speculative_tokens": k}


def table_config(speculation: Speculation, rows: Iterable[tuple[int, int, int]]) -> dict[str, Any] | None:
    """Speculation with a table of ``(first, last, K)`` rows. The engine is booted with the largest K in it."""
    table = [list(row) for row in rows]
    config = static_config(speculation, max((row[2] for row in table), default=0))
    return None if config is None else {**config, "num_speculative_tokens_per_batch_size": table}


def measuring_config(speculation: Speculation, max_num_seqs: int) -> dict[str, Any]:
    """Speculation for the measured engine: booted with Kmax, and a table that names every K from 0 to Kmax.

    vLLM captures graphs for the K of the table. Which K a step gets while measuring is the probe's to say.
    """
    kmax = speculation.max_tokens
    rows = [(kmax - k + 1, kmax - k + 1, k) for k in range(kmax, -1, -1)]
    first, last, k = rows[-1]
    rows[-1] = (first, max(last, max_num_seqs), k)
    config = table_config(speculation, rows)
    assert config is not None  # noqa: S101 - Kmax is at least 1
    return config


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
    for index, argument in enumerate(args):
        why = _why_refused(argument, args[index + 1] if index + 1 < len(args) else None)
        if why is not None:
            refused.append((argument, why))
    return refused


def _why_refused(argument: str, following: str | None) -> str | None:
    if not argument.startswith("-") or _NUMBER.fullmatch(argument):
        return None
    flag, value = _normalised(argument)
    malformed = _why_malformed(flag)
    if malformed is not None:
        return malformed
    if flag in _SHADOWED:
        return None
    for owned, instead in _OWNED.items():
        if _names(flag, owned):
            return f"specserve sets {owned} itself: {instead}"
    for single, why in _ONLY_ONE.items():
        if _names(flag, single) and (value if value is not None else following) != "1":
            return f"{single} greater than 1 is not supported: {why}"
    if flag.startswith("--data-parallel-") and flag != "--data-parallel-size":
        return f"{flag} is not supported: {_ONLY_ONE['-dp']}"
    if flag in {"-dpn", "-dpr", "-dpl", "-dpa", "-dpp", "-dpb", "-dph", "-dpe", "-dpm"}:
        return f"{flag} is not supported: {_ONLY_ONE['-dp']}"
    return None


def _why_malformed(flag: str) -> str | None:
    if flag == "--":
        return "it turns everything after it into positional arguments"
    if flag.startswith("--") and re.search(r"\s", flag):
        return "a flag and its value are two arguments, or one with = between them"
    return None


def _normalised(argument: str) -> tuple[str, str | None]:
    """The flag with dashes and without dotted keys, and the value that follows an equals sign."""
    name, equals, value = argument.partition("=")
    return name.partition(".")[0].rstrip("+").replace("_", "-"), value if equals else None


def _names(flag: str, owned: str) -> bool:
    """Whether argparse could read ``flag`` as ``owned``: the same, or a prefix with as many dashes in front."""
    return owned.startswith(flag) and flag.startswith("--") == owned.startswith("--") and flag.strip("-") != ""


def refused_speculation(method: str, engine_version: str | None = None) -> str | None:
    """Why a method cannot be served with a table, or None where it can.

    ``engine_version`` is vLLM's own (``0.32.0``); None where it is not known yet.
    """
    if method in _REFUSED_METHODS:
        return f"method {method} cannot be used with a table: {_REFUSED_METHODS[method]}"
    version = _version(engine_version)
    if version is None:
        return None
    if version < _FIRST_WITH_TABLES:
        return f"vLLM {engine_version} knows no tables: use 0.24 or newer"
    if method in {"eagle", "eagle3", "mtp"} and (0, 27) <= version <= (0, 31):
        return f"vLLM {engine_version} drafts Kmax tokens whatever the table says with {method}: use 0.32 or newer"
    return None


def _version(text: str | None) -> tuple[int, int] | None:
    found = re.match(r"v?(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else None
