"""Prompts: read from a file, tokenized by the engine's own tokenizer, cut and joined to what a measurement needs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from specserve_profiler.errors import ProfilingError

SHORTEST_PROMPT = 8
"""Tokens that a cohort's prompt has at least, however short the workload's are."""


def load_prompts(path: Path) -> list[str]:
    """The prompts of a JSONL file, in its order.

    A line is ``{"prompt": text}`` or a ShareGPT ``{"conversations": [{"from": "human", "value": text}, ...]}``, of
    which the first human turn is taken. Raises ProfilingError (PromptsInvalid) that names the file and the line.
    """
    try:
        # Not splitlines: JSON texts may hold U+2028 and its like as they are.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfilingError("PromptsInvalid", f"prompts {path} cannot be read: {error}") from error
    prompts = [_prompt(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise ProfilingError("PromptsInvalid", f'prompts {path} is empty: write one {{"prompt": "..."}} a line')
    return prompts


def _prompt(line: str, where: str) -> str:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProfilingError("PromptsInvalid", f"{where}: not JSON ({error}); write one JSON object a line") from error
    if isinstance(entry, dict):
        text = entry["prompt"] if "prompt" in entry else _first_human_turn(entry.get("conversations"))
        if isinstance(text, str) and text.strip():
            # Half of a surrogate pair is no text that an engine could be sent.
            return text.encode(errors="replace").decode()
    raise ProfilingError(
        "PromptsInvalid",
        f'{where}: neither {{"prompt": "text"}} nor a ShareGPT "conversations" list with a human turn',
    )


def _first_human_turn(turns: Any) -> Any:
    if not isinstance(turns, list):
        return None
    return next((t.get("value") for t in turns if isinstance(t, dict) and t.get("from") in ("human", "user")), None)


@dataclass(frozen=True)
class Prompts:
    """Tokenized prompts, cut to the workload's length."""

    ids: tuple[tuple[int, ...], ...]
    """One tuple of token ids a prompt, in a random order that is the same every time."""

    @classmethod
    def cut(cls, tokenized: Sequence[Sequence[int]], prompt_tokens: int, seed: int = 0) -> Prompts:
        """Cuts each prompt to its first ``prompt_tokens`` tokens. Raises ProfilingError where nothing is left."""
        ids = [tuple(tokens[:prompt_tokens]) for tokens in tokenized if tokens]
        if not ids:
            raise ProfilingError("PromptsInvalid", "no prompt has a single token; use other prompts")
        random.Random(seed).shuffle(ids)  # noqa: S311 - an order of measuring, no secret
        return cls(tuple(ids))

    @property
    def mean_tokens(self) -> float:
        """Mean length."""
        return sum(map(len, self.ids)) / len(self.ids)

    def batch(self, count: int, start: int) -> list[list[int]]:
        """``count`` prompts from position ``start`` on, from the beginning again after the last."""
        return [list(self.ids[(start + index) % len(self.ids)]) for index in range(count)]

    def cohort(self, count: int, length: int, start: int) -> list[list[int]]:
        """``count`` prompts of exactly ``length`` tokens, made of whole prompts one after the other, cut at the end.

        Each begins with another prompt (as far as there are enough), so that their texts and their caches differ.
        """
        return [list(islice(self._from(start + index), length)) for index in range(count)]

    def _from(self, start: int) -> Iterator[int]:
        position = start % len(self.ids)
        for ids in cycle((*self.ids[position:], *self.ids[:position])):
            yield from ids


def cohort_prompt_tokens(mean_context: float, window_tokens: float, max_model_len: int, room: int) -> int:
    """Length of a cohort's prompts for which its window of ``window_tokens`` has the workload's mean context.

    At least ``SHORTEST_PROMPT``; ``room`` tokens after it must still fit into ``max_model_len``.
    """
    wanted = round(mean_context - window_tokens / 2)
    return max(min(wanted, max_model_len - room), SHORTEST_PROMPT)
