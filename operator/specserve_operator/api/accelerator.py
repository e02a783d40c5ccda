"""What an accelerator is to specserve: enough to tell two apart, and the node labels that say so."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, order=True)
class Accelerator:
    """A type of accelerator. Equal accelerators share a table."""

    vendor: str
    product: str
    partition: str = ""
    """Part of a device, such as a MIG profile."""
    sharing: str = ""
    """How a device is shared between pods; empty where it is not."""
    extra: tuple[tuple[str, str], ...] = ()
    """Labels of ``accelerators.identityLabels`` with their values."""
    selector: tuple[tuple[str, str], ...] = ()
    """Node labels by which its pods find its nodes."""

    def identity(self) -> dict[str, str]:
        """What a profile key hashes: filled fields only, so that new ones keep old keys."""
        fields = {
            "vendor": self.vendor,
            "product": self.product,
            "partition": self.partition,
            "sharing": self.sharing,
        }
        filled = {name: value for name, value in fields.items() if value}
        return filled | {f"label:{label}": value for label, value in self.extra}

    @cached_property
    def slug(self) -> str:
        """Short name for objects: product and 6 hex digits of the identity; at most 22 characters."""
        digest = hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:6]
        words = re.sub(r"[^a-z0-9]+", "-", self.product.lower()).strip("-")
        return f"{words[:15].strip('-')}-{digest}".lstrip("-")

    def to_json(self) -> str:
        """For the annotation that keeps a variant known when its nodes are gone."""
        return json.dumps(
            {"vendor": self.vendor, "product": self.product, "partition": self.partition, "sharing": self.sharing,
             "extra": dict(self.extra), "selector": dict(self.selector)},
            sort_keys=True,
        )  # fmt: skip

    @classmethod
    def from_json(cls, text: str) -> Accelerator:
        """The inverse of ``to_json``.

        Raises:
            ValueError: the text is not such JSON (somebody edited the annotation).
        """
        try:
            fields = json.loads(text)
            extra, selector = (tuple(sorted(fields.pop(name).items())) for name in ("extra", "selector"))
            texts = (*fields.values(), *(part for pair in extra + selector for part in pair))
            if not all(isinstance(part, str) for part in texts):
                raise TypeError("texts only")
            return cls(**fields, extra=extra, selector=selector)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an accelerator: {text[:200]!r}") from error
