"""What every model of the contract is: frozen, strict, and one canonical JSON."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

SCHEMA_VERSION = 2
"""Version of the stored profile. It is part of the profile key: another schema means another measurement."""


class Model(BaseModel):
    """Frozen, camelCase on the wire, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    def to_json(self) -> str:
        """Canonical JSON: fields by alias, defaults left out, keys sorted, no white space."""
        return canonical_json(self.model_dump(mode="json", by_alias=True, exclude_defaults=True))


def canonical_json(value: Any) -> str:
    """The one JSON text of a value; hashes are taken of this. Raises ValueError for NaN or Infinity: no JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
