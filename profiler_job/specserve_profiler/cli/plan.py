"""A request from a plan file and the flags of ``run``. Flags win over the file, the file over the defaults."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from specserve_profiler.cli.faults import FaultError, explain
from specserve_profiler.cli.load import read_text
from specserve_profiler.cli.written import WrittenError, read_written
from specserve_profiler.contract.request import METHODS_WITH_DRAFTER, MT_BENCH, ProfileRequest, Speculation
from specserve_profiler.dialect import support
from specserve_profiler.dialect.arguments import refused_arguments
from specserve_profiler.dialect.config_keys import refused_config
from specserve_profiler.engine import installed
from specserve_profiler.reports.flags import FLAGS, as_flags, flag_of, read_extra
from specserve_profiler.statistics.grid import default_batch_sizes

Values = dict[str, Any]


def build(plan: Values, flags: Mapping[str, Any], engine_arguments: Sequence[str] | None) -> ProfileRequest:
    """The request. ``flags``: values by field, None where the flag was not given. Raises FaultError."""
    values = merged(plan, flags, engine_arguments)
    _check_speculation(values)
    try:
        request = ProfileRequest.model_validate(values)
    except ValidationError as error:
        raise FaultError(explain(error, ProfileRequest, flag_of)) from error
    for argument, why in refused_arguments(request.engine.args):
        raise FaultError(f"engine argument {argument}: {as_flags(why)}")
    check_extras(
        request.speculation, request.engine.tensor_parallel_size, installed.engine_version(request.engine.command)
    )
    return request


def check_extras(speculation: Speculation, tensor_parallel_size: int | None, version: str | None) -> None:
    """Raises FaultError where a further key of the speculative config may not be there."""
    refused = refused_config(speculation, tensor_parallel_size, version)
    if refused:
        raise FaultError("\n".join(f"{flag_of(f'speculation.config.{key}')}: {as_flags(why)}" for key, why in refused))


def check_models(request: ProfileRequest) -> None:
    """Raises FaultError for a revision of what has none: vLLM would not say that it takes no notice of it."""
    drafter = request.speculation
    for flag, name, revision in (
        ("--revision", request.model, request.revision),
        ("--draft-revision", drafter.model, drafter.revision),
    ):
        if revision is not None and name is not None and Path(name).is_dir():
            raise FaultError(f"{flag}: {name} is a folder, which has no revisions; leave it out")


def merged(plan: Values, flags: Mapping[str, Any], engine_arguments: Sequence[str] | None) -> Values:
    """Fields of a request, not validated yet."""
    values: Values = copy.deepcopy(plan)
    for flag in FLAGS:
        if flag.default is not None and _section(values, flag.field) is not None:
            _put(values, flag.field, flag.default, over=False)
    _drop_other_prompts(values, flags)
    for field, value in flags.items():
        if value is not None and _section(values, field) is not None:
            _put(values, field, value, over=True)
    if engine_arguments is not None:
        _put(values, "engine.args", list(engine_arguments), over=True)
    largest = values.get("engine", {}).get("maxNumSeqs") if isinstance(values.get("engine"), dict) else None
    if not values.get("batchSizes"):
        # Without a largest one, any will do: that it is missing is the fault to tell.
        values["batchSizes"] = list(default_batch_sizes(largest)) if isinstance(largest, int) else [1]
    return values


def read_plan(path: Path) -> Values:
    """The content of a plan file: a request as YAML or JSON, or a profile, which has one. Raises FaultError."""
    try:
        content = read_written(read_text(path, "--config: "))
    except WrittenError as error:
        raise FaultError(f"--config: {path} is neither YAML nor JSON: {error}") from error
    if isinstance(content, dict) and "measurements" in content:
        content = content.get("request")
        if content is None:
            raise FaultError(f"--config: {path} is a profile without its request; write a plan file")
    if not isinstance(content, dict):
        raise FaultError(f"--config: {path} must hold the fields of a request, such as model: and engine:")
    plan: Values = _camel(content)
    if plan.get("verify") is False:
        plan["verify"] = "Off"  # which YAML takes for a truth value
    return plan


def dataset(text: str) -> Values:
    """The fields of ``--dataset``: ``mt-bench`` or ``org/name[:split]``."""
    if text in ("mt-bench", "mtbench", "MT-Bench"):
        return MT_BENCH.model_dump(mode="json", by_alias=True, exclude_none=True)
    name, _, split = text.partition(":")
    if not name or (":" in text and not split):
        raise FaultError(f"--dataset: {text!r}: give mt-bench or ORG/NAME[:SPLIT], such as openai/gsm8k:test")
    return {"name": name, **({"split": split} if split else {})}


def sizes(text: str) -> list[int]:
    """The value of ``--batch-sizes``: whole numbers with commas between."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise FaultError(f"--batch-sizes: {text!r}: give whole numbers with commas between, such as 1,8,64") from None


def weights(text: str) -> dict[str, float]:
    """The value of ``--weights``: ``batch size:share`` with commas between."""
    try:
        pairs = [(int(size), float(share)) for size, share in (word.split(":") for word in text.split(","))]
    except ValueError:
        raise FaultError(f"--weights: {text!r}: give BATCH_SIZE:SHARE with commas between, such as 1:5,32:1") from None
    if any(size < 1 for size, _ in pairs):
        raise FaultError(f"--weights: {text!r}: batch sizes begin at 1")
    found = {str(size): share for size, share in pairs}
    if len(found) < len(pairs):
        raise FaultError(f"--weights: {text!r}: a batch size is there twice")
    return found


def extras(words: Sequence[str]) -> Values:
    """The values of ``--speculative-extra``, by key."""
    found: Values = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not key or not equals:
            raise FaultError(f"--speculative-extra: {word!r}: give KEY=VALUE, such as attention_backend=FLASH_ATTN")
        if key in found:
            raise FaultError(f"--speculative-extra: {key} is given twice")
        found[key] = read_extra(key, text)
    return found


def words(text: str) -> list[str]:
    """The value of ``--engine-command``, split as a shell would."""
    try:
        found = shlex.split(text)
    except ValueError as error:
        raise FaultError(f"--engine-command: {text!r}: {error}") from None
    if not found:
        raise FaultError('--engine-command: give a command, such as "vllm serve"')
    return found


def _check_speculation(values: Values) -> None:
    """What a person gets wrong first, said before the models do."""
    speculation = values.get("speculation")
    method = speculation.get("method") if isinstance(speculation, dict) else None
    if not isinstance(method, str) or not isinstance(speculation, dict):
        return
    honour = support.honour(support.Case(method))
    if isinstance(honour, support.Refused):
        raise FaultError(f"--method: {honour}")
    needs = method in METHODS_WITH_DRAFTER
    if needs and speculation.get("model") is None:
        raise FaultError(f"--draft-model: method {method} needs one: the model that drafts")
    if not needs and speculation.get("model") is not None and method in ("mtp", "ngram"):
        raise FaultError(f"--draft-model: method {method} takes none; leave it out")


def _drop_other_prompts(values: Values, flags: Mapping[str, Any]) -> None:
    """Prompts given by a flag replace those of the file, whichever kind they are."""
    prompts = values.get("prompts")
    if not isinstance(prompts, dict):
        return
    if flags.get("prompts.path") is not None and flags.get("prompts.hub") is None:
        prompts.pop("hub", None)
    if flags.get("prompts.hub") is not None and flags.get("prompts.path") is None:
        values["prompts"] = {}


def _put(values: Values, path: str, value: Any, *, over: bool) -> None:
    section = _section(values, path)
    last = path.rpartition(".")[2]
    if section is not None and (over or section.get(last) is None):
        section[last] = value


def _section(values: Values, path: str) -> Values | None:
    """The mapping that holds the field, made where it is not there; None where something else is in its place."""
    section = values
    for part in path.split(".")[:-1]:
        inner = section.setdefault(part, {})
        if not isinstance(inner, dict):
            return None
        section = inner
    return section


def _camel(value: Any) -> Any:
    """Field names as on the wire; ``max_tokens`` is as good as ``maxTokens`` in a file that a person writes.

    What is below ``config`` (of ``speculation``) has the engine's names.
    """
    if isinstance(value, dict):
        found = {
            to_camel(name) if isinstance(name, str) else str(name): part if name == "config" else _camel(part)
            for name, part in value.items()
        }
        if len(found) < len(value):
            raise FaultError(f"--config: a field is there in two spellings, among: {', '.join(map(str, value))}")
        return found
    return [_camel(part) for part in value] if isinstance(value, list) else value
