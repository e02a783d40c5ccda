"""Sizes and training schedules of the two models. Pure.

Tuned with torch 2.13, transformers 5.19, tokenizers 0.23 on two cores; `facts.json` says what a build really used.
"""

from dataclasses import dataclass, replace

VOCABULARY = 1024
CONTEXT = 2048  # tokens
KMAX = 5


@dataclass(frozen=True)
class Shape:
    """A Llama model: `width` of the hidden states, `inner` of the feed-forward."""

    layers: int
    width: int
    heads: int
    inner: int


@dataclass(frozen=True)
class Schedule:
    """AdamW, its rate rising over the first tenth and then falling to zero; a step sees `batch` windows of text."""

    steps: int
    learning_rate: float
    batch: int = 4
    window: int = 256  # tokens; with windows much shorter than the texts, acceptance would fall along a generation


# The target's first layer is trained alone, then the others are added (see training.grown).
TARGET = Shape(layers=8, width=512, heads=8, inner=1408)
TARGET_FIRST = replace(TARGET, layers=1)
TARGET_FIRST_SCHEDULE = Schedule(steps=160, learning_rate=2e-3)
TARGET_SCHEDULE = Schedule(steps=24, learning_rate=6e-4)

DRAFTER = Shape(layers=1, width=192, heads=4, inner=512)
DRAFTER_SCHEDULE = Schedule(steps=300, learning_rate=2e-3)
