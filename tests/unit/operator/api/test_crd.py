"""The CRD and the reference: made from the models, and written as the API server takes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from specserve_operator.api import crd, docs
from specserve_operator.api.serving import Part, Rule, ServingSpec, ServingStatus

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("copy", ["crds/speculativeservings.yaml", "charts/specserve/files/speculativeservings.yaml"])
def test_the_crd_in_the_repository_is_what_the_models_say(copy: str) -> None:
    assert (ROOT / copy).read_text() == crd.to_yaml(), "run `make crds`"


def test_the_reference_in_the_repository_is_what_the_models_say() -> None:
    assert (ROOT / "docs/resource.md").read_text() == docs.to_markdown(), "run `make crds`"


class Inner(Part):
    """An inner part."""

    size: Annotated[int, Field(gt=0, lt=9)] = 3
    share: Annotated[float, Field(gt=0)] = 0.5

    rules: ClassVar[tuple[Rule, ...]] = (Rule(rule="self.size > 1", message="too small", field=".size"),)


class Sample(Part):
    """A part with one field of every kind that pydantic and the API server write differently."""

    only: Literal["One"] = "One"
    maybe: str | None = None
    maybe_word: Literal["A", "B"] | None = None
    maybe_part: Annotated[Inner | None, Field(description="Says more.")] = None
    several: tuple[Inner, ...] = ()
    part: Inner = Inner(size=5)
    labels: dict[Annotated[str, Field(max_length=5)], str] = Field(default={})
    patterned: dict[Annotated[str, Field(pattern="^x")], int] = Field(default={})
    anything: dict[str, Any] = Field(default={})
    needed: bool


def test_a_model_becomes_a_structural_schema() -> None:
    inner = {
        "description": "An inner part.",
        "type": "object",
        "properties": {
            "size": {
                "type": "integer",
                "minimum": 0,
                "exclusiveMinimum": True,
                "maximum": 9,
                "exclusiveMaximum": True,
                "default": 3,
            },
            "share": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "default": 0.5},
        },
        "x-kubernetes-validations": [{"rule": "self.size > 1", "message": "too small", "fieldPath": ".size"}],
    }

    schema = crd.structural(Sample)

    assert schema["type"] == "object"
    assert schema["required"] == ["needed"]
    assert schema["properties"] == {
        "only": {"type": "string", "enum": ["One"], "default": "One"},
        "maybe": {"type": "string", "nullable": True},
        "maybeWord": {"type": "string", "enum": ["A", "B"]},
        "maybePart": inner | {"description": "Says more.", "nullable": True},
        "several": {"type": "array", "items": inner, "default": []},
        "part": inner | {"default": {"size": 5, "share": 0.5}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}, "default": {}},
        "patterned": {"type": "object", "additionalProperties": {"type": "integer"}, "default": {}},
        "anything": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "default": {}},
        "needed": {"type": "boolean"},
    }


def fields(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields(f"{path}.{name}", field.get("items", field))


@pytest.mark.parametrize("model", [ServingSpec, ServingStatus])
def test_every_field_says_what_it_means(model: type[Part]) -> None:
    silent = [path for path, field in fields("", crd.structural(model)) if not field.get("description")]

    assert silent == []


def test_every_string_list_and_map_of_the_spec_is_bounded() -> None:
    bound = {"string": "maxLength", "array": "maxItems", "object": "maxProperties"}
    unbounded = [
        path
        for path, field in fields("", crd.structural(ServingSpec))
        if field["type"] in bound
        and bound[field["type"]] not in field
        and not {"properties", "enum", "x-kubernetes-preserve-unknown-fields"} & field.keys()
    ]

    # No rule looks into these; the API server bounds an object's size as a whole.
    assert unbounded == [".podTemplate.metadata.labels", ".podTemplate.metadata.annotations"]
