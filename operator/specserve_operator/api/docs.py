"""The reference of the resource, made from its schema: ``python -m specserve_operator.api.docs > docs/resource.md``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from specserve_operator.api import names
from specserve_operator.api.crd import structural
from specserve_operator.api.serving import ServingSpec, ServingStatus, SpeculativeServing

Json = dict[str, Any]

HEADER = f"""<!-- Made from operator/specserve_operator/api/serving.py by `make crds`. Do not edit. -->
# {names.KIND}

{SpeculativeServing.__doc__} `apiVersion: {names.API_VERSION}`, namespaced, short name `ss`.
`kubectl explain ss.spec` says the same as this page. Unknown fields are refused.

`metadata.name`: {SpeculativeServing.rules[0].message}.
"""


def to_markdown() -> str:
    """One section for each object of the schema, with a table of its fields and the rules across them."""
    parts = [HEADER]
    for path, model in (("spec", ServingSpec), ("status", ServingStatus)):
        for name, schema in _objects(path, structural(model)):
            parts.append("\n".join(_section(name, schema)))
    return "\n".join(parts)


def _objects(path: str, schema: Json) -> Iterator[tuple[str, Json]]:
    """Path and schema of every object that has fields, itself first, in the order of declaration."""
    if schema.get("type") == "array":
        yield from _objects(f"{path}[]", schema["items"])
    elif schema.get("properties"):
        yield path, schema
        for name, field in schema["properties"].items():
            yield from _objects(f"{path}.{name}", field)


def _section(path: str, schema: Json) -> Iterator[str]:
    yield f"## {path}\n"
    yield f"{schema['description']}\n"
    yield "| Field | Type | Default | Meaning |"
    yield "|---|---|---|---|"
    for name, field in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else _default(field)
        cells = (f"`{name}`", _type(field), default, field["description"])
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    rules = schema.get("x-kubernetes-validations", ())
    if rules:
        yield ""
    for rule in rules:
        field = rule.get("fieldPath", "").removeprefix(".")
        yield f"- `{field}`: {rule['message']}." if field else f"- {rule['message']}."
    yield ""


def _default(field: Json) -> str:
    if field.get("default") in (None, "") or "properties" in field:  # an object's fields have defaults of their own
        return ""
    return f"`{json.dumps(field['default'])}`"


def _type(field: Json) -> str:
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    kind: str = field["type"]
    if kind == "array":
        return f"list{_range(field, 'Items', ' items')}: {_type(field['items'])}"
    if kind == "object" and "additionalProperties" in field:
        return f"map{_range(field, 'Properties', ' entries')}: {_type(field['additionalProperties'])}"
    if kind == "object":
        return kind + _range(field, "Properties", " entries")
    if kind == "string":
        return kind + _range(field, "Length", " characters")
    return kind + _range(field, "imum", "")


def _range(field: Json, suffix: str, unit: str) -> str:
    low, high = (field.get(f"{side}{suffix}") for side in ("min", "max"))
    if high is None:
        return "" if low is None else f", at least {low}{unit}"
    return f", at most {high}{unit}" if low is None else f", {low} to {high}{unit}"


if __name__ == "__main__":
    sys.stdout.write(to_markdown())
