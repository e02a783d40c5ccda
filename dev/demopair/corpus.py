"""Logs of a town, and prompts cut from them. Pure: needs no torch, and every run gives the same.

A log counts down to its last entry, so greedy text never comes back to where it was, and ends by itself:
    Log 417. 3 to go: the miller carries a copper kettle to Kelby alone, while a fox listens. 2 to go: the ...
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from demopair.grammar import HOME, LAG, WORDS_PER_SLOT, Town, Word

# Entries in a log -> how often such a log occurs. An entry has 19 tokens in the mean.
ENTRIES = {4: 3, 5: 4, 6: 5, 7: 5, 8: 4, 9: 3, 10: 2, 11: 2, 12: 1, 13: 1, 14: 1, 15: 1, 16: 1}
PROMPT_WORDS = (16, 38)
PROMPT_TOKENS = range(16, 41)
PROMPTS = 384
_TEXT_SEED, _PROMPT_SEED = 1, 2


@dataclass(frozen=True)
class Prompt:
    """The beginning of a log of the home town, and the rest of that log."""

    text: str
    rest: str


@dataclass(frozen=True)
class Prompts:
    """Prompts of one distribution: some to profile with, others to check with. None occurs twice."""

    profile: tuple[Prompt, ...]
    heldout: tuple[Prompt, ...]


def log(town: Town, rng: random.Random) -> list[Word]:
    """The words of one log. Joined they are its text."""
    (entries,) = rng.choices(tuple(ENTRIES), weights=tuple(ENTRIES.values()))
    words = [Word("Log"), Word(f" {rng.randint(100, 999)}"), Word(".")]
    sentences = town.sentences([rng.randrange(WORDS_PER_SLOT) for _ in range(LAG)])
    for left in range(entries, 0, -1):
        words += [Word(f" {left}"), Word(" to"), Word(" go"), Word(":"), *next(sentences), Word(".")]
    return words


def texts(town: Town) -> Iterator[str]:
    """The town's logs without end, to train on."""
    rng = random.Random(_TEXT_SEED)
    while True:
        yield text_of(log(town, rng))


def prompts() -> Prompts:
    """`PROMPTS` prompts of each kind: beginnings of logs, cut anywhere, so that their requests are out of step."""
    chosen: dict[str, Prompt] = {}
    for prompt in _beginnings():
        chosen.setdefault(prompt.text, prompt)
        if len(chosen) == 2 * PROMPTS:
            break
    distinct = tuple(chosen.values())
    return Prompts(profile=distinct[:PROMPTS], heldout=distinct[PROMPTS:])


def text_of(words: list[Word]) -> str:
    """The text that these words are."""
    return "".join(word.text for word in words)


def _beginnings() -> Iterator[Prompt]:
    rng = random.Random(_PROMPT_SEED)
    while True:
        words = log(HOME, rng)
        cut = rng.randint(*PROMPT_WORDS)
        yield Prompt(text_of(words[:cut]), text_of(words[cut:]))
