"""YAML and JSON as a person writes a plan: no name twice, no alias, neither endless nor endlessly deep."""

from __future__ import annotations

import json
from typing import Any

import yaml

MOST_YAML = 1 << 18
"""Characters; PyYAML reads about a million a minute."""


class WrittenError(ValueError):
    """What is wrong with the text, and where."""


class _Loader(yaml.SafeLoader):
    """An alias makes three lines billions of values, or a mapping its own content: no plan needs one."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not taken: write the value out", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is there twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_written(text: str) -> Any:
    """The value of a text in JSON or YAML. Raises WrittenError."""
    try:
        try:
            return json.loads(text, object_pairs_hook=_once)
        except json.JSONDecodeError:
            return _yaml(text)
    except RecursionError:
        raise WrittenError("it is nested too deeply") from None


def _yaml(text: str) -> Any:
    if len(text) > MOST_YAML:
        raise WrittenError(f"it has more than {MOST_YAML} letters, which is no plan; JSON may be longer")
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError) as error:  # numbers and dates that are none are ValueErrors
        raise WrittenError(" ".join(str(error).replace('in "<unicode string>", ', "in ").split())) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise WrittenError(f"{next(name for name in names if names.count(name) > 1)} is there twice")
    return found
