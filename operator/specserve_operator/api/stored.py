"""Profiles as ConfigMaps hold them: read once, when one comes, into all that a decision needs; the text is not kept.

Anybody may write such a ConfigMap, and it is read beside all else that the operator does. So it is bounded before
anything is built of it: by its size, and by how many values are in it.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from specserve_operator.api import names
from specserve_profiler.contract.key import KeyInputs
from specserve_profiler.contract.model import SCHEMA_VERSION
from specserve_profiler.contract.profile import Decision, Profile
from specserve_profiler.dialect import render

MOST_BYTES = 128 * 1024
"""Of all that a profile's ConfigMap holds. One of 16 batch sizes and 9 K has some 30 kB."""
MOST_VALUES = 10_000
"""In its JSON. So it is read in a few milliseconds, whatever it is."""
MOST_FAULTS = 100
"""More are counted, not described."""
TOO_LARGE = f"it is larger than {MOST_BYTES // 1024} KiB"


@dataclass(frozen=True)
class Stored:
    """A valid profile of a ConfigMap."""

    config_map: str
    key: str
    measured_at: dt.datetime
    decision: Decision
    engine_version: str = ""
    reprofile: str = ""
    inputs: KeyInputs | None = None
    """None where somebody else put it there without them, or in another version's form."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The speculative config as it is stored; empty where an engine drafts nothing by it."""

    @property
    def speculates(self) -> bool:
        """Whether an engine that serves by it drafts at all."""
        decision = self.decision
        if decision.verdict == "Static":
            return decision.static_k > 0
        if decision.verdict == "Dynamic":
            return any(row.k for row in decision.table)
        return decision.verdict == "Adaptive"


@dataclass(frozen=True)
class Unusable:
    """What claims to be a profile, and why it is none."""

    problem: str
    outdated: bool = False
    """It is a profile in another version's form: it serves on where it serves, and is measured anew."""
    inputs: KeyInputs | None = None


def read(name: str, key: str, reprofile: str, data: Mapping[str, str]) -> Stored | Unusable:
    """What a ConfigMap holds that is labelled as a profile.

    Args:
        name: of the ConfigMap.
        key: of its label; empty where it has none.
        reprofile: value of the annotation that asked for it.
    """
    try:
        _check_size(data)
        return _read(name, key, reprofile, data)
    except OtherSchemaError as error:
        return Unusable(str(error), outdated=True, inputs=_inputs(data))
    except (ValueError, KeyError) as error:
        return Unusable(_faults(error))


def _check_size(data: Mapping[str, str]) -> None:
    if sum(len(text) for text in data.values()) > MOST_BYTES:
        raise ValueError(TOO_LARGE)
    if sum(data.get(name, "").count(",") for name in (names.PROFILE_JSON, names.KEY_INPUTS)) > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES} values")


def _faults(error: ValueError | KeyError) -> str:
    """The first faults, each with its field."""
    if not isinstance(error, ValidationError):
        return str(error)
    if error.error_count() > MOST_FAULTS:
        return f"it has {error.error_count()} faults"
    faults = error.errors(include_url=False, include_context=False, include_input=False)[:2]
    named = (f"{'.'.join(map(str, f['loc']))}: {f['msg'].removeprefix('Value error, ')}" for f in faults)
    return "; ".join(text.removeprefix(": ")[:300] for text in named)


class OtherSchemaError(ValueError):
    """A profile that an older or newer specserve stored."""


def _read(name: str, key: str, reprofile: str, data: Mapping[str, str]) -> Stored:
    if names.PROFILE_JSON not in data:
        raise ValueError(f"it has no {names.PROFILE_JSON}")
    text = data[names.PROFILE_JSON]
    version = _schema_version(text)
    if version != SCHEMA_VERSION:
        raise OtherSchemaError(f"schema version {version}, this operator reads {SCHEMA_VERSION}")
    profile = Profile.model_validate_json(text)
    if key and profile.key != key:
        raise ValueError(f"it is of key {profile.key}, its label says {key}")
    stored = Stored(
        config_map=name,
        key=profile.key,
        measured_at=profile.measured_at,
        decision=profile.decision,
        engine_version=profile.measurements.engine_version,
        reprofile=reprofile,
        inputs=_inputs(data),
    )
    if not stored.speculates:
        return stored
    return replace(stored, config=_config(data.get(names.SPECULATIVE_CONFIG), profile.decision))


def _schema_version(text: str) -> int:
    """Of a stored profile; before anything else of it, which may have another form. The current one where none is."""
    try:
        version = json.loads(text).get("schemaVersion", SCHEMA_VERSION)
    except (ValueError, RecursionError, AttributeError):
        return SCHEMA_VERSION
    return version if isinstance(version, int) else SCHEMA_VERSION


def _config(text: str | None, decision: Decision) -> Mapping[str, Any]:
    """Engines get this text as it is: one that does not say what was decided would crash them, or mislead people."""
    if text is None:
        raise ValueError(f"it has no {names.SPECULATIVE_CONFIG}")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{names.SPECULATIVE_CONFIG} is no JSON: {error}") from error
    for name, value in _decided(decision).items():
        if not isinstance(config, dict) or config.get(name) != value:
            raise ValueError(f"{names.SPECULATIVE_CONFIG} does not say {name} {value}, as {names.PROFILE_JSON} does")
    return dict(config)


def _decided(decision: Decision) -> dict[str, Any]:
    """What a speculative config must say where an engine is to do what was decided."""
    arm = render.decided_arm(decision)
    if arm.kind == "Adaptive":  # Kmax is not part of a decision
        return {render.ADAPTIVE_FIELD: True, render.TABLE_FIELD: None}
    table = [[row.first, row.last, row.k] for row in arm.rows] or None
    k = arm.k if arm.kind == "Static" else max(row.k for row in arm.rows)
    return {"num_speculative_tokens": k, render.TABLE_FIELD: table}


def _inputs(data: Mapping[str, str]) -> KeyInputs | None:
    # They only tell people what changed since: a profile without them is as good.
    try:
        return KeyInputs.model_validate_json(data.get(names.KEY_INPUTS, ""))
    except ValidationError:
        return None
