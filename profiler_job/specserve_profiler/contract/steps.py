"""What the probe inside the engine and the profiler outside tell each other; ``engine.records`` has the files. Pure.

The profiler's plan says which K to draft next. The probe answers with one line per step and one per finished request:

    S <time ns> <requests> <tokens> <K> <emitted> <prefills> <context>
    R <time to first token, µs> <chain> <request id>
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple


class Step(NamedTuple):
    """One step of the engine."""

    time_ns: int
    """Monotonic clock when the step's output had been taken in."""
    requests: int
    tokens: int
    """Tokens scheduled: one per decoding request, its drafts, and prompt tokens."""
    k: int
    """K drafted at the end of this step, as scheduled. The step itself verifies the drafts of the one before."""
    emitted: int
    """Tokens put out, the first ones after a prompt included."""
    prefills: int
    """Requests that were not decoding: a prompt, a chunk of one, or a request taken up again."""
    context: int
    """Mean number of tokens of its requests, prompt and output."""

    def line(self) -> str:
        """The step as the probe writes it."""
        return "S " + " ".join(map(str, self)) + "\n"


class Finished(NamedTuple):
    """One request that came to its end."""

    ttft_us: int
    """From the request's arrival to its first token."""
    chain: str
    """Tokens put out in each verify step, one character a step (``digit``). A text's first token is the prefill's."""
    request_id: str

    @property
    def verify_steps(self) -> int:
        """Steps in which the request decoded."""
        return len(self.chain)

    @property
    def emitted(self) -> tuple[int, ...]:
        """Tokens put out in each verify step, 1 + accepted drafts."""
        return tuple(int(character, 36) for character in self.chain)

    @property
    def tokens(self) -> int:
        """Tokens put out in all verify steps."""
        return sum(self.emitted)

    def line(self) -> str:
        """The request as the probe writes it."""
        return f"R {self.ttft_us} {self.chain or '-'} {self.request_id}\n"


def digit(tokens: int) -> str:
    """One character of a chain, for 0 to 35 tokens."""
    return "0123456789abcdefghijklmnopqrstuvwxyz"[tokens]


@dataclass(frozen=True)
class Plan:
    """Which K the next steps draft: one, several in blocks of ``block_steps`` (random order, balanced), or a table's.

    Where there is no plan, the engine's own table is in force.
    """

    ks: tuple[int, ...]
    block_steps: int = 1
    batch_size: int | None = None
    """Blocks advance at steps of this batch size only, so that no block is used up while prompts are prefilled."""
    seed: int = 0
    rows: tuple[tuple[int, int, int], ...] = ()
    """A table (first and last batch size, K) that is followed instead of ``ks``, as vLLM would."""

    def to_json(self) -> str:
        """The plan as ``from_json`` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that ``to_json`` wrote."""
        values = json.loads(text)
        return cls(**{**values, "ks": tuple(values["ks"]), "rows": tuple(map(tuple, values["rows"]))})

    def sequence(self) -> Iterator[int]:
        """K of one block after the other, without end.

        Every K comes once in a deck of ``ks``. The same K never comes twice in a row, so that blocks can be told apart.
        """
        shuffle = random.Random(self.seed)  # noqa: S311 - an order of measuring, no secret
        deck: list[int] = []
        last: int | None = None
        while True:
            deck = shuffle.sample(self.ks, len(self.ks))
            if deck[0] == last and len(deck) > 1:
                other = shuffle.randrange(1, len(deck))
                deck[0], deck[other] = deck[other], deck[0]
            last = deck[-1]
            yield from deck


@dataclass(frozen=True)
class Limits:
    """What the running engine can hold, as its own scheduler knows it."""

    engine_version: str
    scheduler: str
    """``sync`` or ``async``."""
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    max_num_scheduled_tokens: int
    kv_cache_tokens: int
    draft_slots: int
    """Slots of the input batch that the drafter takes per request besides its K + 1 tokens."""
    num_speculative_tokens: int
    """Kmax of this boot; 0 without speculation."""
    device: str = ""
    """What the engine calls its accelerator."""
    graph_sizes: tuple[int, ...] = ()
    """Token counts with a captured graph, increasing; empty where steps run eagerly."""
    runner: str = "V1"
    """Model runner: V1 or V2."""
    vocabulary: int | None = None
    """Token ids are below it."""

    def to_json(self) -> str:
        """The limits as ``from_json`` reads them."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Limits:
        """The limits that ``to_json`` wrote."""
        values = json.loads(text)
        return cls(**{**values, "graph_sizes": tuple(values["graph_sizes"])})
