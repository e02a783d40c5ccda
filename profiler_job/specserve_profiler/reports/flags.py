"""Flags of ``run`` and the fields of a request that they set: one list for reading, for errors and for writing back."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from specserve_profiler.contract.request import MT_BENCH, HubDataset, ProfileRequest
from specserve_profiler.dialect.config_keys import NEWEST, keys_of
from specserve_profiler.statistics.grid import default_batch_sizes


def _comma(values: Any) -> str:
    return ",".join(map(str, values))


def _weights(weights: Mapping[str, float]) -> str:
    return ",".join(f"{size}:{share:g}" for size, share in weights.items())


def _number(value: float) -> str:
    return f"{value:.15g}"


def read_extra(key: str, text: str) -> Any:
    """The value of ``KEY=VALUE``: JSON where it is some, else the text; text as it is where the key takes texts."""
    try:
        value = json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return text
    kind = keys_of(NEWEST).get(key.replace("-", "_"))
    takes_text = kind is str or isinstance(kind, tuple)
    return text if takes_text and not isinstance(value, str) else value


def _no_json(name: str) -> NoReturn:
    raise ValueError(name)


def extra_words(config: Mapping[str, Any]) -> list[str]:
    """``KEY=VALUE`` of each further key of a speculative config, as ``read_extra`` reads it."""
    return [f"{key}={_extra(key, value)}" for key, value in config.items()]


def _extra(key: str, value: Any) -> str:
    return value if isinstance(value, str) and read_extra(key, value) == value else json.dumps(value)


@dataclass(frozen=True)
class Flag:
    """A flag of ``run`` and its field."""

    field: str
    """Path in a request, as in a plan file."""
    name: str
    default: Any = None
    """What the command line takes where neither a flag nor the plan file says anything."""
    text: Callable[[Any], str | list[str]] = str
    """A value as it is written after the flag; a list for a flag that is given several times."""


FLAGS = (
    Flag("model", "--model"),
    Flag("revision", "--revision"),
    Flag("speculation.method", "--method"),
    Flag("speculation.model", "--draft-model"),
    Flag("speculation.revision", "--draft-revision"),
    Flag("speculation.maxTokens", "--max-tokens", 5),
    Flag("speculation.config", "--speculative-extra", {}, extra_words),
    Flag("engine.command", "--engine-command", ["vllm", "serve"], shlex.join),
    Flag("engine.maxNumSeqs", "--max-num-seqs"),
    Flag("engine.maxModelLen", "--max-model-len"),
    Flag("engine.tensorParallelSize", "--tensor-parallel-size", 1),
    Flag("prompts.path", "--prompts"),
    Flag("prompts.hub.name", "--dataset"),
    Flag("prompts.hub.config", "--dataset-config"),
    Flag("prompts.hub.column", "--dataset-column"),
    Flag("prompts.hub.revision", "--dataset-revision"),
    Flag("workload.promptTokens", "--prompt-tokens", 512),
    Flag("workload.outputTokens", "--output-tokens", 256),
    Flag("workload.temperature", "--temperature", 0, _number),
    Flag("workload.topP", "--top-p", 1, _number),
    Flag("workload.seed", "--seed", 0),
    Flag("batchSizes", "--batch-sizes", None, _comma),
    Flag("weights", "--weights", {}, _weights),
    Flag("measureSeconds", "--measure-seconds", 600, _number),
    Flag("timeoutSeconds", "--timeout-seconds", 3600, _number),
    Flag("verify", "--verify", "Table"),
    Flag("key", "--key", "local"),
)
_OF_PROFILE = ("batchSizes", "measureSeconds", "timeoutSeconds")
"""Fields without a section that are no words of the language."""
_NAMES = {flag.field: flag.name for flag in FLAGS} | {
    "prompts": "--prompts or --dataset",
    "prompts.hub": "--dataset",
    "prompts.hub.split": "--dataset",
}


def flag_of(field: str) -> str:
    """The flag of a field and, where they differ, the field: ``--draft-model (speculation.model)``."""
    path = field.split(".")
    for length in range(len(path), 0, -1):
        name = _NAMES.get(".".join(path[:length]))
        if name is not None:
            return name if name.strip("-") == field else f"{name} ({field})"
    return field


_SPOKEN = {flag.field: flag.name for flag in FLAGS if "." in flag.field or flag.field in _OF_PROFILE} | {
    "model.name": "--model",
    "model.revision": "--revision",
    "profile.verify": "--verify",
    "engine.args": "engine arguments",
}
_FIELDS = re.compile(rf"\b(?:profile\.)?({'|'.join(map(re.escape, _SPOKEN))})\b")


def as_flags(text: str) -> str:
    """A message in the words of the resource (``set speculation.model``) for somebody who gave flags."""
    return _FIELDS.sub(lambda found: _SPOKEN[found[1]], text)


def command_of(request: ProfileRequest) -> str:
    """The ``specserve-profile run`` that makes this request, quoted for a shell; what is default is left out."""
    values = request.model_dump(mode="json", by_alias=True)
    words = ["specserve-profile", "run"]
    for flag in FLAGS:
        value = _at(values, flag.field)
        if value is None or value == _default(flag, request):
            continue
        text = dataset_text(request.prompts.hub) if flag.name == "--dataset" else flag.text(value)
        words += [f"{flag.name}={each}" for each in ([text] if isinstance(text, str) else text)]
    if request.engine.args:
        words += ["--", *request.engine.args]
    return shlex.join(words)


def dataset_text(dataset: HubDataset | None) -> str:
    """A dataset as ``--dataset`` takes it."""
    if dataset is None:
        return ""
    if dataset.name == MT_BENCH.name:
        return "mt-bench"
    return dataset.name if dataset.split == "train" else f"{dataset.name}:{dataset.split}"


def _default(flag: Flag, request: ProfileRequest) -> Any:
    if flag.field == "batchSizes":
        return list(default_batch_sizes(request.engine.max_num_seqs))
    if flag.name == "--dataset-column" and request.prompts.hub is not None:
        return MT_BENCH.column if request.prompts.hub.name == MT_BENCH.name else None
    return flag.default


def _at(values: Mapping[str, Any], path: str) -> Any:
    found: Any = values
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
