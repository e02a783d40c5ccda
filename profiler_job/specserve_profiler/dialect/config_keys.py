"""Further keys of vLLM's ``--speculative-config`` that a user may set: which there are, and what they take. Pure.

What is refused here would end a boot, or say twice what specserve says; the engine's own parser stays the judge of the
rest. Keys and ``OWNED`` together are the fields of vLLM's ``SpeculativeConfig``, read in 0.24 to 0.33.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import Any

from specserve_profiler.contract.request import Speculation
from specserve_profiler.dialect.support import Version, version

Kind = type | int | tuple[str, ...]
"""A number: whole numbers from there on. A tuple: the words that are taken."""

_DICE = "drafts accepted by dice make another text: nothing that is measured so holds for yours"
INTERNAL = frozenset({"target_model_config", "target_parallel_config", "draft_model_config", "draft_parallel_config"})
"""Fields that vLLM fills in itself."""
OWNED: dict[str, str] = {
    "method": "specserve sets it: set speculation.method",
    "model": "specserve sets it: set speculation.model",
    "revision": "specserve sets it: set speculation.revision",
    "num_speculative_tokens": "specserve sets it: set speculation.maxTokens",
    "num_speculative_tokens_per_batch_size": "specserve sets it: the table is measured",
    "enable_adaptive_verification": "specserve sets it: profile.verify Full tries it, and it is served where it wins",
    "tensor_parallel_size": "vLLM takes draft_tensor_parallel_size instead",
    "synthetic_acceptance_rates": _DICE,
    "synthetic_acceptance_length": _DICE,
    **dict.fromkeys(sorted(INTERNAL), "vLLM makes it of its other arguments: leave it out"),
}
"""Key -> what to do instead, for every key that must not stand in ``speculation.config``."""

KEYS: dict[Version, dict[str, Kind]] = {
    (0, 24): {
        "enforce_eager": bool,
        "draft_tensor_parallel_size": 1,
        "quantization": str,
        "moe_backend": str,
        "attention_backend": str,
        "max_model_len": 1,
        "code_revision": str,
        "disable_padded_drafter_batch": bool,
        "use_local_argmax_reduction": bool,
        "prompt_lookup_max": 1,
        "prompt_lookup_min": 1,
        "parallel_drafting": bool,
        "suffix_decoding_max_tree_depth": 0,
        "suffix_decoding_max_cached_requests": 0,
        "suffix_decoding_max_spec_factor": float,
        "suffix_decoding_min_token_prob": float,
        "draft_load_config": dict,
        "rejection_sample_method": ("standard",),
        "draft_sample_method": ("greedy", "probabilistic"),
    },
    (0, 25): {"use_heterogeneous_vocab": bool, "rejection_sample_method": ("standard", "block")},
    (0, 26): {"kv_cache_dtype": str},
    (0, 28): {"dspark_draft_topk": 1},
    (0, 29): {"index_share_for_mtp_iteration": bool},
    (0, 30): {"disable_eagle_block_drop": bool},
    (0, 33): {
        "rejection_sample_method": ("standard", "block", "fly"),
        "disable_lookahead_block_hashes": bool,
        "draft_lm_head_quantization": ("fp8", "nvfp4"),
        "xpress_topc": 0,
        "fly_window_size": 1,
        "fly_entropy_threshold": float,
        "fly_entropy_top_k": 1,
    },
}
"""Release -> the keys that came with it, or take more since -> what they take. None of them has gone."""

ONLY: dict[str, str] = {
    "use_heterogeneous_vocab": "draft_model",
    "index_share_for_mtp_iteration": "mtp",
    "prompt_lookup_max": "ngram",
    "prompt_lookup_min": "ngram",
    "dspark_draft_topk": "dspark",
    **dict.fromkeys((key for key in KEYS[0, 24] if key.startswith("suffix_")), "suffix"),
}
"""Key -> the one method that reads it."""

_WORDS: dict[Kind, str] = {bool: "true or false", float: "a number", str: "a text", dict: "an object"}


def keys_of(release: Version) -> dict[str, Kind]:
    """The keys that a release of vLLM knows, as far as they may be set, and what they take."""
    return {key: kind for since, keys in KEYS.items() if since <= release for key, kind in keys.items()}


NEWEST = max(KEYS)
"""The newest release whose keys are here."""
_ALL = keys_of(NEWEST)
_SINCE = {key: since for since, keys in reversed(KEYS.items()) for key in keys}


def refused_config(
    speculation: Speculation, tensor_parallel_size: int | None, engine_version: str | None
) -> list[tuple[str, str]]:
    """(key, why) for each key of ``speculation.config`` that may not be there, or not with this value.

    ``tensor_parallel_size`` is the engine's, None where it is not known. An unknown version is taken for the newest. A
    version above that may know keys that are not here: what is not nearly one of these passes.
    """
    release = version(engine_version)
    refused = []
    for key, value in speculation.config.items():
        why = (
            _why_owned(key)
            or _why_unknown(key, release)
            or _why_wrong(key, value, release)
            or _why_idle(key, speculation.method)
            or _why_devices(key, value, tensor_parallel_size)
        )
        if why is not None:
            refused.append((key, why))
    return refused


def _why_owned(key: str) -> str | None:
    bare = re.sub("[-_]", "", key).lower()  # who writes numSpeculativeTokens means ours
    return next((why for name, why in OWNED.items() if name.replace("_", "") == bare), None)


def _why_unknown(key: str, release: Version | None) -> str | None:
    asked = release or NEWEST
    named = f"vLLM {asked[0]}.{asked[1]}"
    if key in _ALL:
        since = _SINCE[key]
        return None if since <= asked else f"{named} does not know it: it came with {since[0]}.{since[1]}"
    newer = asked > NEWEST
    close = difflib.get_close_matches(key.lower(), [*_ALL, *OWNED], n=1, cutoff=0.9 if newer else 0.6)
    if close:
        return f"{named} knows no such key; did you mean {close[0]}?"
    return None if newer else f"{named} knows no such key; there are {', '.join(sorted(keys_of(asked)))}"


def _why_wrong(key: str, value: Any, release: Version | None) -> str | None:
    if value is None:
        return "null says nothing: leave it out"
    if key == "rejection_sample_method" and value == "synthetic":
        return _DICE
    kind = keys_of(release or NEWEST).get(key)
    if kind is None or _fits(value, kind):
        return None
    words = " or ".join(kind) if isinstance(kind, tuple) else _WORDS.get(kind, f"a whole number from {kind} on")
    return f"takes {words}, not {json.dumps(value)[:80]}"


def _fits(value: Any, kind: Kind) -> bool:
    if isinstance(kind, tuple):
        return value in kind
    if isinstance(value, bool):
        return kind is bool
    if isinstance(kind, int):
        return isinstance(value, int) and value >= kind
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)


def _why_idle(key: str, method: str) -> str | None:
    only = ONLY.get(key, method)
    return None if only == method else f"only method {only} reads it, not {method}: leave it out"


def _why_devices(key: str, value: Any, engine: int | None) -> str | None:
    if key != "draft_tensor_parallel_size" or engine is None or value in (1, engine):
        return None
    return f"takes 1 or engine.tensorParallelSize ({engine}), not {value}"
