"""The CustomResourceDefinition, made from the models: ``python -m specserve_operator.api.crd > crds/....yaml``.

A CRD takes a "structural" subset of JSON schema. What pydantic writes differs from it in a few places, and
``StructuralSchema`` rewrites just those; see the Kubernetes docs, "Specifying a structural schema".
"""

from __future__ import annotations

import sys
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from specserve_operator.api import names
from specserve_operator.api.serving import Part, Rule, ServingSpec, ServingStatus, SpeculativeServing

Json = dict[str, Any]

HEADER = "# Made from operator/specserve_operator/api/serving.py by `make crds`. Do not edit.\n"

COLUMNS: tuple[Json, ...] = (
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "Desired", "type": "integer", "jsonPath": ".spec.replicas"},
    {"name": "Up", "type": "integer", "jsonPath": ".status.readyReplicas"},
    {"name": "Summary", "type": "string", "jsonPath": ".status.summary"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Reason", "type": "string", "priority": 1, "jsonPath": '.status.conditions[?(@.type=="Ready")].reason'},
    {"name": "Method", "type": "string", "priority": 1, "jsonPath": ".spec.speculation.method"},
    {"name": "Model", "type": "string", "priority": 1, "jsonPath": ".spec.model.name"},
)
"""What ``kubectl get ss`` shows; priority 1 with ``-o wide`` only."""


class StructuralSchema(GenerateJsonSchema):
    """Pydantic's JSON schema in the words of a CRD. References remain; ``structural`` inlines them."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """A flag; a rule's ``has()`` takes a null for absent. An enum cannot hold a null: the API server drops it."""
        result = self.generate_inner(schema["schema"])
        return result if "enum" in result else result | {"nullable": True}

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        """Always ``enum``; a CRD has no ``const``."""
        result = super().literal_schema(schema)
        return {"enum": [result.pop("const")], **result} if "const" in result else result

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        """Exclusive bounds as flags."""
        return _flag_exclusive_bounds(super().int_schema(schema))

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        """Exclusive bounds as flags."""
        return _flag_exclusive_bounds(super().float_schema(schema))

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """Without a schema of keys, which a CRD lacks (use a rule); ``dict[str, Any]`` takes anything."""
        result = super().dict_schema(schema)
        result.pop("propertyNames", None)
        if "patternProperties" in result:
            (result["additionalProperties"],) = result.pop("patternProperties").values()
        if result.get("additionalProperties", True) is True:
            result.pop("additionalProperties", None)
            result["x-kubernetes-preserve-unknown-fields"] = True
        return result

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Without a default of null: leaving the field out says the same."""
        result = super().default_schema(schema)
        if result.get("default", ...) is None:
            del result["default"]
        return result

    def encode_default(self, dft: Any) -> Any:
        """A default model in full: the API server checks it against the rules before it fills in nested defaults."""
        if isinstance(dft, BaseModel):
            return dft.model_dump(mode="json", by_alias=True, exclude_none=True)
        return super().encode_default(dft)

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """With the rules of the model."""
        result = super().model_schema(schema)
        result.pop("title", None)
        cls = schema["cls"]
        return result | _validations(cls.rules) if issubclass(cls, Part) else result

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Never: the name of a field is its title."""
        return False


def structural(model: type[BaseModel]) -> Json:
    """Structural schema of a model, its references inlined."""
    schema = model.model_json_schema(by_alias=True, schema_generator=StructuralSchema)
    definitions = schema.pop("$defs", {})

    def inlined(node: Any) -> Any:
        if isinstance(node, list):
            return [inlined(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:  # what stands beside a reference says more than what it refers to
            target = definitions[node["$ref"].removeprefix("#/$defs/")]
            node = target | {key: value for key, value in node.items() if key != "$ref"}
        return {key: inlined(value) for key, value in node.items()}

    result: Json = inlined(schema)
    return result


def definition() -> Json:
    """The CustomResourceDefinition of SpeculativeServing."""
    root = {
        "description": SpeculativeServing.__doc__,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": structural(ServingSpec),
            "status": structural(ServingStatus),
        },
        **_validations(SpeculativeServing.rules),
    }
    version = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": root},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": list(COLUMNS),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # A chart that is uninstalled must not take every serving of the cluster with it.
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}", "annotations": {"helm.sh/resource-policy": "keep"}},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.KIND.lower(),
                "shortNames": ["ss"],
                "categories": ["specserve"],
            },
            "versions": [version],
        },
    }


def to_yaml() -> str:
    """The definition as the YAML that is kept in ``crds/``."""
    return HEADER + yaml.dump(definition(), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _validations(rules: tuple[Rule, ...]) -> Json:
    entries = [{"rule": r.rule, "message": r.message} | ({"fieldPath": r.field} if r.field else {}) for r in rules]
    return {"x-kubernetes-validations": entries} if entries else {}


def _flag_exclusive_bounds(schema: Json) -> Json:
    for bound in ("minimum", "maximum"):
        exclusive = f"exclusive{bound.capitalize()}"
        if exclusive in schema:
            schema |= {bound: schema[exclusive], exclusive: True}
    return schema


if __name__ == "__main__":
    sys.stdout.write(to_yaml())
