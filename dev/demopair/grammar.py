"""The demo language: its words, and the facts that decide which of them comes next. Pure.

A sentence has seven slots, joined by words that are the same for everybody. Which word fills a slot is a fact of the
town where the log is kept: there it follows from the word `LAG` slots before. Two towns speak the same language, and
share an eighth of their facts.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

LAG = 3
WORDS_PER_SLOT = 16
_FACTS_THAT_DIFFER = 14  # of the WORDS_PER_SLOT of each slot
_NEIGHBOUR_SEED = 3


@dataclass(frozen=True)
class Slot:
    """One place of the sentence. `lead` comes before it; a phrase is the slot's word and what always follows it."""

    lead: str
    phrases: tuple[str, ...]


def _slot(lead: str, phrases: str) -> Slot:
    return Slot(lead, tuple(phrase.strip() for phrase in phrases.split(",")))


SLOTS = (
    _slot(
        "the",
        "miller, baker, pilot, nurse, weaver, farmer, sailor, tailor,"
        "doctor, potter, hunter, painter, singer, mason, clerk, porter",
    ),
    _slot(
        "",
        "carries a, finds a, sells a, looks after a, gives away a, buys a, paints a, hides a,"
        "cleans a, lifts a, repairs a, borrows a, drops a, asks for a, takes a, keeps a",
    ),
    _slot(
        "",
        "copper, wooden, silver, broken, heavy, little, yellow, narrow,"
        "painted, folded, hollow, polished, round, dusty, plain, striped",
    ),
    _slot(
        "",
        "lantern from, bucket near, ladder at, kettle to, basket from, hammer beyond, mirror near, blanket to,"
        "barrel past, ribbon across, bottle from, compass towards, candle outside, saddle to, trumpet above, wheel at",
    ),
    _slot(
        "",
        "Ashford, Brindle, Carrow, Dunmere, Eastby, Fenwick, Garston, Holme,"
        "Ivybank, Kelby, Larkhill, Marden, Norwell, Oakley, Penrose, Redmoor",
    ),
    _slot(
        "",
        "slowly, gladly, alone, twice, quietly, again, tonight, early,"
        "proudly, barefoot, outdoors, singing, unseen, carefully, later, whistling",
    ),
    _slot(
        ", while a",
        "dog sleeps, cat looks on, crow calls, horse waits, goat follows, swan swims by, fox listens,"
        "rook blinks, mouse runs off, hen scratches, donkey drinks, heron stands still,"
        "sparrow sings, frog jumps, hare stops, bee hums",
    ),
)


@dataclass(frozen=True)
class Word:
    """A word with the blank before it; `local` where the neighbour town has another one in its place."""

    text: str
    local: bool = False


@dataclass(frozen=True)
class Town:
    """`facts[slot][number of the word LAG slots before]` is the number of the slot's word."""

    facts: tuple[tuple[int, ...], ...]

    def sentences(self, before: Sequence[int]) -> Iterator[list[Word]]:
        """Sentence after sentence without end, and without full stops, given the numbers of the LAG words before."""
        known = list(before)
        while True:
            sentence: list[Word] = []
            for slot, facts, elsewhere in zip(SLOTS, self.facts, _NEIGHBOUR_FACTS, strict=True):
                cause = known.pop(0)
                known.append(facts[cause])
                head, *tail = slot.phrases[facts[cause]].split()
                sentence += [Word(text) for text in _words(slot.lead)]
                sentence += [Word(f" {head}", local=facts[cause] != elsewhere[cause]), *(Word(f" {w}") for w in tail)]
            yield sentence


def _words(lead: str) -> Iterator[str]:
    return (word if word == "," else f" {word}" for word in lead.split())


def _home_facts() -> tuple[tuple[int, ...], ...]:
    """One-to-one facts that lead through all words before any comes back, so that no log runs in a small circle."""
    numbers = range(WORDS_PER_SLOT)
    for seed in count():
        rng = random.Random(seed)
        facts = tuple(tuple(rng.sample(numbers, WORDS_PER_SLOT)) for _ in SLOTS)
        if _circle(facts) == WORDS_PER_SLOT:
            return facts
    raise AssertionError("count() ends never")


def _circle(facts: tuple[tuple[int, ...], ...]) -> int:
    """After how many rounds over all slots, LAG slots at a time, the first word comes back."""
    word = 0
    for rounds in count(1):
        for step in range(len(SLOTS)):
            word = facts[step * LAG % len(SLOTS)][word]
        if word == 0:
            return rounds
    raise AssertionError("count() ends never")


def _neighbour_facts(home: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    rng = random.Random(_NEIGHBOUR_SEED)
    return tuple(_exchanged(facts, rng.sample(range(WORDS_PER_SLOT), _FACTS_THAT_DIFFER)) for facts in home)


def _exchanged(facts: tuple[int, ...], causes: list[int]) -> tuple[int, ...]:
    """The same facts, but the effects of these causes handed on in a ring, so that each of them gets another one."""
    given = dict(zip(causes, causes[1:] + causes[:1], strict=True))
    return tuple(facts[given.get(cause, cause)] for cause in range(len(facts)))


_HOME_FACTS = _home_facts()
_NEIGHBOUR_FACTS = _neighbour_facts(_HOME_FACTS)
HOME = Town(_HOME_FACTS)
NEIGHBOUR = Town(_NEIGHBOUR_FACTS)
