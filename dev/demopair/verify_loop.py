"""What a verify loop accepts, told from where drafter and target agree. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile


@dataclass(frozen=True)
class Step:
    """A verify step: the place in the text of its first draft, and how many drafts were accepted."""

    start: int
    accepted: int


def steps(agree: Sequence[bool], kmax: int) -> Iterator[Step]:
    """The verify steps over one greedy text, as far as all `kmax` drafts lie within it.

    `agree[i]`: given the target's first i tokens, the drafter's greedy next token is the target's. That is enough: a
    draft after a wrong one is never accepted, and after right ones the drafter has seen only the target's text.
    The first token comes from the prefill, each step ends with one token of the target's own.
    """
    start = 1
    while start + kmax <= len(agree):
        accepted = sum(1 for _ in takewhile(bool, agree[start : start + kmax]))
        yield Step(start, accepted)
        start += accepted + 1


def acceptance_rates(taken: Sequence[Step], kmax: int) -> tuple[float, ...]:
    """The acceptance rate at positions 1..kmax: the share of all steps whose draft at that position was accepted."""
    if not taken:
        raise ValueError("no verify step to take acceptance rates from: the texts are shorter than Kmax tokens")
    return tuple(sum(step.accepted >= position for step in taken) / len(taken) for position in range(1, kmax + 1))
