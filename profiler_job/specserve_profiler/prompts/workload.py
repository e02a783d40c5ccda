"""The workload: prompts as the engine is given them, apart for measuring and for verifying.

First ``load``, before any engine boots: bad input costs no GPU time. Then ``tokenize``, with the engine's own tokenizer
and chat template. No prompt is ever logged.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.contract.request import PromptSource, Workload
from specserve_profiler.prompts.datasets import read_file, read_hub
from specserve_profiler.prompts.entries import Entry

SHORTEST_PROMPT = 8
"""Tokens that a cohort's prompt has at least, however short the workload's are."""
LEAST_PROMPTS = 4
"""Distinct prompts below which an interval over prompts says nothing."""
MOST_PROMPTS = 1024
"""Prompts that are tokenized at most."""
LEAST_TO_HOLD_OUT, HELD_OUT = 32, 4
"""With so many distinct prompts or more, every fourth is held out for verifying."""
_AT_ONCE = 16

T = TypeVar("T")


class Tokenizer(Protocol):
    """What the engine does for a workload."""

    async def tokenize(self, text: str) -> list[int]:
        """Token ids of a text."""
        ...

    async def tokenize_chat(self, chat: Mapping[str, Any]) -> list[int] | None:
        """Token ids of a chat (``Entry.chat``) up to the reply; None where the model has no chat template."""
        ...


async def load(source: PromptSource, say: Callable[[str], None] = lambda _: None) -> list[Entry]:
    """The prompts of a workload, in its order, enough to measure with.

    Raises ProfilingError: PromptsInvalid (which line, and why), DatasetUnreachable, DiskFull.
    """
    hub, path = source.hub, source.path
    entries, without = await _in_thread(lambda: read_hub(hub, say) if hub is not None else read_file(Path(path or "")))
    left_out = f"; {without} more have no prompt and are left out" if without else ""
    say(f"{len(entries)} prompts from {source}{left_out}")
    _enough(len(set(entries)), str(source))
    return entries


def _enough(distinct: int, where: str) -> None:
    if distinct < LEAST_PROMPTS:
        raise ProfilingError(
            "PromptsInvalid",
            f"{where} holds {distinct} distinct prompt{'s' * (distinct != 1)}: give at least {LEAST_PROMPTS}, better "
            "twice the largest batch size, of the kind that is served",
        )


async def tokenize(
    entries: Sequence[Entry],
    engine: Tokenizer,
    workload: Workload,
    max_model_len: int,
    say: Callable[[str], None] = lambda _: None,
    vocabulary: int | None = None,
) -> Prompts:
    """The prompts as token ids, cut so that an output fits after them, at most ``MOST_PROMPTS``, drawn by the seed.

    A chat is what the engine's chat template makes of it, up to the beginning of the reply; where the model has none,
    what the user says last. Token ids stay as they are; each must be below ``vocabulary``.
    Raises ProfilingError, with the line of the prompt: PromptsInvalid, EngineFailed.
    """
    length = min(workload.prompt_tokens, max_model_len - workload.output_tokens)
    drawn = random.Random(workload.seed).sample(list(entries), min(len(entries), MOST_PROMPTS))  # noqa: S311
    template = await _Template.of(engine) if any(entry.chat for entry in drawn) else None
    if template is not None and not template.there:
        say("the model has no chat template: of each chat, what the user says last is the prompt")
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(entry: Entry) -> tuple[int, ...]:
        if entry.ids:
            _known(entry, vocabulary)
            return cut(entry.ids, length)
        async with places:
            chat = None
            if entry.chat and template is not None and template.there:
                chat = await engine.tokenize_chat(json.loads(entry.chat))
            if chat is not None and template is not None:
                return cut(chat, length, template.end)
            return cut(await engine.tokenize(entry.text), length)

    async def told(entry: Entry) -> tuple[int, ...]:
        try:
            return await one(entry)
        except ProfilingError as error:
            raise ProfilingError(error.reason, f"{entry.where}: {error}" if entry.where else str(error)) from None

    return Prompts.of(await asyncio.gather(*(told(entry) for entry in drawn)), length)


def _known(entry: Entry, vocabulary: int | None) -> None:
    if vocabulary is not None and max(entry.ids) >= vocabulary:
        raise ProfilingError(
            "PromptsInvalid",
            f"token id {max(entry.ids)} is beyond the model's vocabulary of {vocabulary}: give its own tokenizer's ids",
        )


@dataclass(frozen=True)
class _Template:
    """What is known of the engine's chat template."""

    there: bool
    end: int = 0
    """Tokens after the last thing that the user says, up to the reply. They are never cut off."""

    @classmethod
    async def of(cls, engine: Tokenizer) -> _Template:
        """By two short chats: what they have in common at the end is the template's."""
        first, second = [
            await engine.tokenize_chat({"messages": [{"role": "user", "content": word}]}) for word in ("one", "2")
        ]
        if first is None or second is None:
            return cls(there=False)
        end = 0
        while end < min(len(first), len(second)) and first[-1 - end] == second[-1 - end]:
            end += 1
        return cls(there=True, end=end)


def cut(tokens: Sequence[int], length: int, end: int = 0) -> tuple[int, ...]:
    """At most ``length`` tokens: the first ones, and the last ``end``, which begin the reply."""
    if len(tokens) <= length or not 0 < end < length:
        return tuple(tokens[:length])
    return (*tokens[: length - end], *tokens[-end:])


@dataclass(frozen=True)
class Prompts:
    """Tokenized prompts, each of them once."""

    ids: tuple[tuple[int, ...], ...] = field(repr=False)
    """One tuple of token ids a prompt, in the order that the seed gives: those to measure with."""
    held_out_ids: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    """Those that measuring never sees; empty where there are too few prompts to keep any back."""

    @classmethod
    def of(cls, tokenized: Sequence[tuple[int, ...]], length: int) -> Prompts:
        """Those with a token at all, each once, in their order, and every fourth held out where there are enough.

        ``length`` is what they were cut to. Raises ProfilingError (PromptsInvalid) where too few are left.
        """
        distinct = [ids for ids in dict.fromkeys(tokenized) if ids]
        if not distinct:
            raise ProfilingError("PromptsInvalid", "no prompt has a single token; use other prompts")
        _enough(len(distinct), f"the workload, each prompt cut to {length} tokens,")
        if len(distinct) < LEAST_TO_HOLD_OUT:
            return cls(tuple(distinct))
        held_out = distinct[HELD_OUT - 1 :: HELD_OUT]
        del distinct[HELD_OUT - 1 :: HELD_OUT]
        return cls(tuple(distinct), tuple(held_out))

    @property
    def heldout(self) -> Prompts:
        """The prompts to verify with: those held out, or the same again where there are too few (``reuse_warning``)."""
        return Prompts(self.held_out_ids) if self.held_out_ids else self

    @property
    def distinct(self) -> int:
        """Distinct prompts in the workload, held out or not."""
        return len(self.ids) + len(self.held_out_ids)

    def reuse_warning(self, largest_batch: int) -> str | None:
        """What a reader must know of a workload that is small for its largest batch size; None where it is not."""
        if self.distinct >= 2 * largest_batch and self.held_out_ids:
            return None
        warning = (
            f"the workload has {self.distinct} distinct prompts, fewer than twice the largest batch size "
            f"{largest_batch}: they are reused within a batch, and a prefix cache knows them"
            if self.distinct < 2 * largest_batch
            else f"the workload has only {self.distinct} distinct prompts"
        )
        seen = (
            "" if self.held_out_ids else "; none is held out, so the verification saw prompts that were measured with"
        )
        return f"{warning}{seen}"

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


async def _in_thread(work: Callable[[], T]) -> T:
    """What ``work`` returns, from a thread that nobody waits for once this is cancelled.

    Not asyncio's own: the end of its loop waits for them, and a download can hang for minutes.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as caught:
            error = caught
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            return  # the loop has ended meanwhile

    threading.Thread(target=run, daemon=True, name="prompts").start()
    return await done
