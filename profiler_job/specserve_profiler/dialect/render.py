"""Engine arguments, as vLLM 0.24 to 0.33 take them. Pure: the operator and the profiler render with the same code.

Arguments are lists and never pass through a shell: shells have mangled the JSON in them before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specserve_profiler.contract.profile import Arm, Decision
from specserve_profiler.contract.request import Engine, Speculation
from specserve_profiler.dialect import arguments
from specserve_profiler.dialect.config_keys import OWNED
from specserve_profiler.dialect.support import FIRST_WITH_TABLES, version

TABLE_FIELD = "num_speculative_tokens_per_batch_size"
ADAPTIVE_FIELD = "enable_adaptive_verification"
CAPTURE_SIZES = "--cudagraph-capture-sizes"
_OWN_CAPTURE_SIZES = (CAPTURE_SIZES, "--max-cudagraph-capture-size")
_CAPTURE_KEYS = frozenset({"cudagraph_capture_sizes", "max_cudagraph_capture_size"})


def serve_arguments(
    model: str,
    revision: str | None,
    engine: Engine,
    speculation_config: Mapping[str, Any] | str | None,
    *,
    host: str = "0.0.0.0",  # noqa: S104 - a server in a pod listens on the pod's address
    port: int = 8000,
    capture_sizes: Sequence[int] = (),
    extra: Sequence[str] = (),
) -> tuple[str, ...]:
    """The whole command line of an engine: its command, what specserve sets, ``extra``, then the user's own arguments.

    ``capture_sizes`` are left out where the user's own arguments say which graphs to capture.

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
    return (*command, *capture_arguments(capture_sizes, engine.args), *extra, *engine.args)


def config_text(config: Mapping[str, Any]) -> str:
    """The one JSON text of a ``--speculative-config``."""
    return json.dumps(config, separators=(",", ":"))


def capture_arguments(capture_sizes: Sequence[int], args: Sequence[str] = ()) -> tuple[str, ...]:
    """Arguments that have the engine capture graphs of just these token counts; empty where there are none.

    ``args`` are the user's own: where they choose captured sizes, in any spelling, theirs hold. vLLM takes both only
    together with a matching maximum, and else does not start.
    """
    if not capture_sizes or sets_capture_sizes(args):
        return ()
    return (CAPTURE_SIZES, *map(str, sorted(set(capture_sizes))))


def sets_capture_sizes(args: Sequence[str]) -> bool:
    """Whether a command line says which graphs to capture: by a flag, or within ``--compilation-config``."""
    return arguments.sets(args, *_OWN_CAPTURE_SIZES) or not _CAPTURE_KEYS.isdisjoint(arguments.compilation_config(args))


def speculative_config(
    speculation: Speculation, decision: Decision, engine_version: str | None = None
) -> dict[str, Any] | None:
    """What to serve with: a table (``Dynamic``), one K (``Static``), no speculation (``None``), or ``Adaptive``.

    Raises ValueError where a vLLM of ``engine_version`` knows no tables.
    """
    return arm_config(speculation, decided_arm(decision), engine_version)


def decided_arm(decision: Decision) -> Arm:
    """The arm that a verdict chose."""
    if decision.verdict == "Dynamic":
        return Arm(kind="Table", rows=decision.table)
    if decision.verdict == "Static":
        return Arm(kind="Static", k=decision.static_k)
    return Arm(kind="Adaptive" if decision.verdict == "Adaptive" else "None")


def arm_config(speculation: Speculation, arm: Arm, engine_version: str | None = None) -> dict[str, Any] | None:
    """The ``--speculative-config`` of one arm; None where it does not speculate.

    Raises ValueError where a vLLM of ``engine_version`` knows no tables.
    """
    if arm.kind == "Table":
        return table_config(speculation, [(row.first, row.last, row.k) for row in arm.rows], engine_version)
    if arm.kind == "Static":
        return static_config(speculation, arm.k or 0)
    if arm.kind == "Adaptive":
        config = static_config(speculation, speculation.max_tokens if arm.k is None else arm.k)
        return None if config is None else {**config, ADAPTIVE_FIELD: True}
    return None


def static_config(speculation: Speculation, k: int) -> dict[str, Any] | None:
    """Speculation with one K at every batch size, and the user's further keys; None for K = 0."""
    if k == 0:
        return None
    config: dict[str, Any] = {"method": speculation.method}
    if speculation.model is not None:
        config["model"] = speculation.model
    if speculation.revision is not None:
        config["revision"] = speculation.revision
    further = {key: value for key, value in speculation.config.items() if key not in OWNED}
    return {**config, **further, "num_speculative_tokens": k}


def table_config(
    speculation: Speculation, rows: Iterable[tuple[int, int, int]], engine_version: str | None = None
) -> dict[str, Any] | None:
    """Speculation with a table of ``(first, last, K)`` rows. The engine is booted with the largest K in it.

    Raises ValueError where a vLLM of ``engine_version`` knows no tables.
    """
    table = [list(row) for row in rows]
    config = static_config(speculation, max((row[2] for row in table), default=0))
    return None if config is None else {**config, **table_field(table, engine_version)}


def table_field(table: list[list[int]], engine_version: str | None = None) -> dict[str, Any]:
    """A table in the form that a vLLM of ``engine_version`` takes; None: any that knows tables.

    Profiles store rows, not this form: vLLM is changing it, and a newer one has its place here.
    """
    known = version(engine_version)
    if known is not None and known < FIRST_WITH_TABLES:
        raise ValueError(f"vLLM {engine_version} knows no tables: use 0.24 or newer")
    return {TABLE_FIELD: table}


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
