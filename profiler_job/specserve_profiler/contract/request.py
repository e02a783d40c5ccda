"""What a profiling Job is asked for: models, engine, workload, and how long it may take."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from specserve_profiler.contract.bounds import (
    MOST_SIZES,
    Argument,
    BatchSize,
    Name,
    SchemaVersion,
    Seconds,
    Tokens,
    Weight,
)
from specserve_profiler.contract.model import SCHEMA_VERSION, Model

Method = Literal["draft_model", "eagle", "eagle3", "mtp", "dflash", "ngram"]
Verify = Literal["Table", "Full", "Off"]

METHODS_WITH_DRAFTER: frozenset[Method] = frozenset({"draft_model", "eagle", "eagle3", "dflash"})
"""Methods that load a draft model of their own; ``mtp`` drafts with the target's own heads, ``ngram`` with its text."""

_MOST_KEYS, _MOST_BYTES, _DEEPEST = 32, 2048, 8


def config_fault(config: Mapping[str, Any]) -> str | None:
    """What keeps ``config`` from being further keys of a speculative config, whatever the engine; None where nothing.

    Names of letters, digits, ``_`` and ``-``, once each; JSON below them; bounded in number and size.
    """
    for key in config:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", str(key)):
            return f"{str(key)[:64]!r} is no key: give names such as attention_backend"
    if len({_underscored(key) for key in config}) < len(config):
        return "one key is there twice, with dashes and with underscores: give it once"
    try:
        size = len(json.dumps(dict(config), ensure_ascii=False, allow_nan=False).encode())
    except (ValueError, TypeError, RecursionError):
        return "its values must be JSON: text, numbers, true or false, lists and objects"
    if not _within(config, _DEEPEST + 1):
        return f"its values are nested more than {_DEEPEST} deep"
    if len(config) > _MOST_KEYS or size > _MOST_BYTES:
        return f"it has {len(config)} keys and {size} bytes, at most {_MOST_KEYS} and {_MOST_BYTES} are taken"
    return None


def _within(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return levels >= 0 and all(_within(part, levels - 1) for part in inner)


def _underscored(key: object) -> str:
    return str(key).replace("-", "_")


class Speculation(Model):
    """How the engine drafts."""

    method: Method
    model: Name | None = None
    """Draft model; present exactly where the method has one."""
    revision: Name | None = None
    max_tokens: Annotated[int, Field(ge=1, le=16)]
    """Kmax: the K that the engine is booted with."""
    config: dict[str, JsonValue] = {}
    """Further keys of vLLM's speculative config; none that specserve sets itself (``config_keys.refused_config``)."""

    @field_validator("config", mode="before")
    @classmethod
    def _bounded(cls, config: Any) -> Any:
        if not isinstance(config, Mapping):
            return config
        fault = config_fault(config)
        if fault is not None:
            raise ValueError(fault)
        return {_underscored(key): value for key, value in config.items()}

    @model_serializer(mode="wrap")
    def _without_no_config(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Stored as before where there are no further keys: an older version reads it, and no name changes."""
        values: dict[str, Any] = dump(self)
        if not self.config:
            values.pop("config", None)
        return values


class Engine(Model):
    """The engine as it is deployed. It is profiled with exactly these."""

    command: Annotated[tuple[Argument, ...], Field(max_length=1000)] = ("vllm", "serve")
    args: Annotated[tuple[Argument, ...], Field(max_length=1000)] = ()
    """The user's own arguments; none of the flags that specserve owns (``arguments.owned_flags``)."""
    max_num_seqs: BatchSize
    max_model_len: Tokens
    tensor_parallel_size: Annotated[int, Field(ge=1, le=4096)] = 1


class Workload(Model):
    """What is generated while measuring. Acceptance depends on it as much as ITL depends on the accelerator."""

    prompt_tokens: Tokens
    """Prompts are cut to at most this many tokens."""
    output_tokens: Tokens
    """Upper bound of a generation; texts end earlier where they end by themselves."""
    temperature: Annotated[float, Field(ge=0, le=100)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    """Of the order of the prompts."""


class HubDataset(Model):
    """A dataset of a Hugging Face hub (``HF_ENDPOINT``, ``HF_TOKEN`` and ``HF_HOME`` apply)."""

    name: Annotated[Name, Field(min_length=1)]
    config: Name | None = None
    split: Name = "train"
    column: Name | None = None
    """Column of the prompts; None for the first known one: prompt, messages, conversations, turns, question, text."""
    revision: Name | None = None


MT_BENCH = HubDataset(name="philschmid/mt-bench", column="turns")
"""The 80 prompts of MT-Bench, first turns."""


class PromptSource(Model):
    """Where the prompts are: exactly one of the two."""

    path: Name | None = None
    """JSONL file inside the container, one prompt a line: OpenAI chat ``messages``, ``prompt``, or ShareGPT."""
    hub: HubDataset | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> PromptSource:
        if (self.path is None) == (self.hub is None):
            raise ValueError("prompts: give exactly one of path and hub")
        return self

    def __str__(self) -> str:
        return self.path if self.hub is None else f"dataset {self.hub.name}"  # type: ignore[return-value]


class ProfileRequest(Model):
    """Everything that a profiling Job must know. Travels as JSON in an environment variable."""

    schema_version: SchemaVersion = SCHEMA_VERSION
    key: Name
    model: Name
    """Target model: a name or a path inside the container."""
    revision: Name | None = None
    speculation: Speculation
    engine: Engine
    workload: Workload
    prompts: PromptSource
    batch_sizes: Annotated[tuple[BatchSize, ...], Field(max_length=MOST_SIZES)]
    """Increasing; the last is at most ``engine.max_num_seqs``."""
    measure_seconds: Seconds
    """Time for measuring, boots excluded, at most; but every cell is measured once. It ends where enough is known."""
    timeout_seconds: Seconds
    """Time for everything. The profiler stops by itself a little before the pod's own deadline."""
    verify: Verify = "Table"
    """Table: the finished table against the baseline in a closed loop. Full: against the best static K, too."""
    weights: Annotated[dict[BatchSize, Weight], Field(max_length=MOST_SIZES)] = {}
    """Share of the user's load at each batch size, any unit; empty for all measured batch sizes alike."""

    @model_validator(mode="after")
    def _batch_sizes_fit(self) -> ProfileRequest:
        sizes = self.batch_sizes
        if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
            raise ValueError("batchSizes: must be distinct, increasing and at least 1")
        if sizes[-1] > self.engine.max_num_seqs:
            raise ValueError(f"batchSizes: {sizes[-1]} exceeds maxNumSeqs {self.engine.max_num_seqs}")
        return self

    @model_validator(mode="after")
    def _weights_can_be_met(self) -> ProfileRequest:
        for size in self.weights:
            if not 1 <= size <= self.engine.max_num_seqs:
                raise ValueError(f"weights: batch size {size} is none of 1 to maxNumSeqs {self.engine.max_num_seqs}")
        if self.weights and not any(self.weights.values()):
            raise ValueError("weights: at least one must be above 0; none at all means all alike")
        return self

    @model_validator(mode="after")
    def _time_is_enough(self) -> ProfileRequest:
        if self.timeout_seconds <= self.measure_seconds:
            raise ValueError(
                f"timeoutSeconds: {self.timeout_seconds:g} leaves no time for two boots beside measureSeconds "
                f"{self.measure_seconds:g}"
            )
        return self
