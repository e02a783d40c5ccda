"""Any profile that the contract takes, drawn from the contract's own JSON schema, its bounds first of all."""

from __future__ import annotations

import datetime as dt
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from pydantic import ValidationError

from specserve_profiler.contract.profile import PartialProfile, Profile

_LETTERS = st.characters(exclude_categories=["Cs"])
_ENDS = [
    "",
    "L4",
    "x" * 300,
    "<b>&\"'",
    "\x00\x1b[2J\r\n",
    "\u202e",
    "模型",
    "🙂",
    "--",
    "{{.x}}",
    "$x `y` $(z)",
    "a:b",
    "%s",
]


def _within(low: float, high: float) -> st.SearchStrategy[Any]:
    return st.sampled_from([low, high]) | st.floats(low, high)


def _interval(low: float, high: float) -> st.SearchStrategy[Any]:
    half_width = st.sampled_from([0, 1e-300, 1e12]) | st.floats(0, high)
    return st.fixed_dictionaries({"mean": _within(low, high), "halfWidth": half_width})


_TIMES = st.datetimes(
    dt.datetime(1970, 1, 2), dt.datetime(8999, 12, 30), timezones=st.just(dt.timezone(dt.timedelta(hours=9)))
)
_BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "acceptanceLength": _interval(1, 17),
    "tokensPerSecond": _interval(0, 1e12),
    "ratio": _interval(1e-6, 1e6),
    "measuredAt": _TIMES.map(dt.datetime.isoformat),
    "schemaVersion": st.just(2),
}
"""Fields whose bounds a schema does not tell."""
_JSON = st.recursive(
    st.none() | st.booleans() | st.floats(-1e9, 1e9) | st.sampled_from(_ENDS),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(_ENDS), inner, max_size=2),
    max_leaves=4,
)
_CONFIG = st.dictionaries(st.sampled_from(["attention_backend", "draft-tensor-parallel-size", "x"]), _JSON, max_size=3)


def _number(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema["maximum"]
    open_ = "exclusiveMinimum" in schema
    ends = [high] if open_ else [low, high]
    return st.sampled_from(ends) | st.floats(low, high, exclude_min=open_)


def _integer(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    low = schema["minimum"]
    high = schema.get("maximum", schema.get("exclusiveMaximum", 0) - 1)
    return st.sampled_from([low, high]) | st.integers(low, min(low + 20, high)) | st.integers(low, high)


def _text(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    short = st.sampled_from(_ENDS) | st.text(_LETTERS, max_size=12)
    long = st.sampled_from(["x", "é", " w", "<"]).map(lambda part: part * (schema["maxLength"] // len(part)))
    fitting = st.integers(0, 19).flatmap(lambda n: long if n == 0 and schema["maxLength"] <= 20_000 else short)
    return fitting.filter(lambda text: len(text) >= schema.get("minLength", 0))


def _values(schema: dict[str, Any], defs: dict[str, Any], name: str = "") -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        return _values(defs[schema["$ref"].rpartition("/")[2]], defs, name)
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name == "itlMs" and schema.get("title") == "Interval":
        return _interval(1e-6, 1e9)
    if name == "config" and schema.get("type") == "object":
        return _CONFIG
    if "anyOf" in schema:
        return st.one_of([_values(option, defs, name) for option in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    return _TYPES[schema["type"]](schema, defs)


def _list(schema: dict[str, Any], defs: dict[str, Any]) -> st.SearchStrategy[Any]:
    return st.lists(_values(schema["items"], defs), min_size=schema.get("minItems", 0), max_size=4)


def _object(schema: dict[str, Any], defs: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "properties" not in schema:
        keys = st.sampled_from(["1", "64"]) if schema["title"] == "Weights" else st.sampled_from(_ENDS)
        return st.dictionaries(keys, _values(schema["additionalProperties"], defs), max_size=3)
    fields = {name: _values(part, defs, name) for name, part in schema["properties"].items()}
    needed = schema.get("required", ())
    optional = {name: field for name, field in fields.items() if name not in needed}
    return st.fixed_dictionaries(fields) | st.fixed_dictionaries(
        {name: fields[name] for name in needed}, optional=optional
    )


_TYPES = {
    "number": lambda schema, _: _number(schema),
    "integer": lambda schema, _: _integer(schema),
    "string": lambda schema, _: _text(schema),
    "boolean": lambda *_: st.booleans(),
    "null": lambda *_: st.none(),
    "array": _list,
    "object": _object,
}


def _repaired(content: dict[str, Any]) -> dict[str, Any]:
    """Rules across fields, kept: rows without gaps, cells measured or skipped, a request that can be."""
    for cell in content["measurements"].get("grid", ()):
        if (cell.get("itlMs") is None) == (cell.get("skipped") is None):
            cell.update(itlMs=1.5, skipped=None)
    first = 1
    for row in content.get("decision", {}).get("table", ()):
        row["first"], row["last"] = first, max(min(row["last"], 10**9 - 8), first)
        first = row["last"] + 1
    request = content.get("request")
    if request is not None:
        sizes = sorted({*request["batchSizes"], 1})
        request["batchSizes"] = sizes
        request["engine"]["maxNumSeqs"] = max(sizes[-1], request["engine"]["maxNumSeqs"])
        request["timeoutSeconds"], request["measureSeconds"] = 1e9, min(request["measureSeconds"], 1e8)
        request["prompts"] = {"path": "prompts.jsonl"} if len(request["prompts"]) != 1 else request["prompts"]
    return content


def _drawn(model: type[Any]) -> st.SearchStrategy[Any]:
    schema = model.model_json_schema()
    return _values(schema, schema["$defs"]).map(_repaired)


_PROFILES, _PARTIALS = _drawn(Profile), _drawn(PartialProfile)


@st.composite
def any_profile(draw: st.DrawFn) -> Profile:
    """A profile at the bounds of the contract and inside them."""
    content = draw(_PROFILES)
    if content.get("request") is not None:
        content["decision"]["table"][-1]["last"] = 10**9
        kmax = max([*(row["k"] for row in content["decision"]["table"]), content["decision"]["staticK"], 1])
        content["request"]["speculation"]["maxTokens"] = kmax
    return _valid(Profile, content)


@st.composite
def any_partial(draw: st.DrawFn) -> PartialProfile:
    """A partial one likewise."""
    return _valid(PartialProfile, draw(_PARTIALS))


def _valid(model: type[Any], content: dict[str, Any]) -> Any:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        assume({fault["type"] for fault in error.errors()} != {"value_error"})
        raise
