"""The profile key: what a table depends on, and its hash."""

from __future__ import annotations

import hashlib
from typing import Annotated

from pydantic import Field

from specserve_profiler.contract.bounds import MOST_SIZES, BatchSize, Count, Name, Text, Weight
from specserve_profiler.contract.model import Model
from specserve_profiler.contract.request import Engine, Speculation, Verify, Workload


class KeyInputs(Model):
    """Everything that a table depends on. Two servings with equal inputs share one profile.

    Fields at their default are left out of the hash, so that a new field keeps the keys of those who do not use it.
    """

    schema_version: Count
    model: Name
    revision: Name | None = None
    speculation: Speculation
    image: Name
    engine: Engine
    env: tuple[tuple[Text, Text], ...] = ()
    """(name, literal or reference) of the engine container, sorted by name; never a secret's value."""
    resources: dict[Text, Text] = {}
    workload: Workload
    workload_source: Text
    """What names the prompts: a path, a ConfigMap's content by its hash, or a dataset with its revision."""
    batch_sizes: Annotated[tuple[BatchSize, ...], Field(max_length=MOST_SIZES)]
    verify: Verify = "Table"
    """A table never verified must not pass for one that was: verifying may repair it, or choose another arm."""
    weights: Annotated[dict[BatchSize, Weight], Field(max_length=MOST_SIZES)] = {}
    """They decide between tables that win at different batch sizes."""
    accelerator: dict[Text, Text]
    """Identity of the accelerator, as ``Accelerator.identity()`` gives it."""
    driver: Text | None = None


def profile_key(inputs: KeyInputs) -> str:
    """Name of a profile: ``specserve-`` and 12 hex digits of SHA-256. Fit for the name of a Kubernetes object."""
    return "specserve-" + hashlib.sha256(inputs.to_json().encode()).hexdigest()[:12]
