"""What is known of an engine before it boots: the installed version, the environment, the models' own config files."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.contract.steps import Limits
from specserve_profiler.dialect import support


def foresee(request: ProfileRequest) -> support.Honour:
    """How the engine will honour a table, as far as this machine tells (``engines.foresee``)."""
    speculation = request.speculation
    return support.foresee(
        speculation,
        engine_version(request.engine.command),
        os.environ,
        model_config(speculation.model, speculation.revision),
        model_config(request.model, request.revision),
    )


def confirm(request: ProfileRequest, limits: Limits) -> support.Honour:
    """How the booted engine honours a table (``engines.confirm``); its model is on this machine by now."""
    return support.confirm(request.speculation, limits, model_config(request.model, request.revision))


def drafter_mismatch(request: ProfileRequest) -> str | None:
    """Why the draft model cannot draft for its target; None where it can, or where their files are not at hand.

    A draft model proposes token ids, so both must mean the same by them; an EAGLE head may have a smaller vocabulary
    with a mapping, which the engine checks.
    """
    speculation = request.speculation
    if speculation.method != "draft_model":
        return None
    draft = model_config(speculation.model, speculation.revision).get("vocab_size")
    target = model_config(request.model, request.revision).get("vocab_size")
    if None in (draft, target) or draft == target:
        return None
    return f"the draft model has a vocabulary of {draft} tokens, its target one of {target}"


def unreadable_models(request: ProfileRequest) -> list[str]:
    """What is wrong with models that are paths: the engine would say so after minutes. A hub's names are the hub's."""
    named = (("model", request.model), ("speculation.model", request.speculation.model))
    return [f"{field} {name}: {why}" for field, name in named if name is not None and (why := _unreadable(name))]


def _unreadable(name: str) -> str | None:
    path = Path(name)
    is_path = name.startswith(("/", ".", "~")) or (name.count("/") > 1 and "://" not in name)
    try:
        if not path.exists():
            return "there is no such folder" if is_path else None
        if path.is_file():
            return None if path.suffix == ".gguf" else "it is a file; give the folder that holds it and config.json"
        known = [file for file in ("config.json", "params.json") if (path / file).is_file()]
        if not known:
            return "the folder has no config.json"
        if not isinstance(json.loads((path / known[0]).read_text(encoding="utf-8")), dict):
            return f"its {known[0]} is no JSON object"
    except OSError as error:
        return error.strerror if is_path else None
    except (ValueError, RecursionError):
        return f"its {known[0]} is no JSON"
    return None


def short_drafter(request: ProfileRequest) -> str | None:
    """What a draft model that knows fewer positions than contexts may have means for speed; None where it does not."""
    speculation, longest = request.speculation, request.engine.max_model_len
    if speculation.method != "draft_model":
        return None  # vLLM lengthens an EAGLE head
    config = model_config(speculation.model, speculation.revision)
    known, rope = config.get("max_position_embeddings"), config.get("rope_scaling") or config.get("rope_parameters")
    stretched = isinstance(rope, dict) and rope.get("rope_type", "default") != "default"
    if not isinstance(known, int) or known >= longest or stretched:
        return None
    return (
        f"the draft model knows {known} positions, engine.maxModelLen is {longest}: in a step with a longer context "
        "vLLM drafts for no request at all; choose another drafter, or a smaller maxModelLen"
    )


def engine_version(command: tuple[str, ...]) -> str | None:
    """Version of the vLLM that ``command`` starts; None where that is not the one beside this interpreter."""
    program = shutil.which(command[0]) if command else None
    if program is None or Path(program).parent != Path(sys.executable).parent:
        return None
    names = metadata.packages_distributions().get("vllm", ())
    return next((metadata.version(name) for name in names), None)


def model_config(model: str | None, revision: str | None = None) -> Mapping[str, Any]:
    """``config.json`` of a model on this disk: in a folder, or in the hub's cache. Empty where there is none."""
    if model is None:
        return {}
    path = Path(model) / "config.json"
    try:
        if not path.is_file():
            path = _cached(model, revision) or path
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}  # the engine will say what is wrong with it
    return content if isinstance(content, dict) else {}


def _cached(model: str, revision: str | None) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model, "config.json", revision=revision)
    except (ImportError, ValueError):
        return None
    return Path(found) if isinstance(found, str) else None
