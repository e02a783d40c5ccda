"""Acceptance rates by position, early and late in a generation, without an engine."""

import json
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from demopair.cache import Pair
from demopair.recipe import KMAX
from demopair.verify_loop import acceptance_rates, steps

EARLY = range(80)  # tokens of the generation
LATE = range(200, 10_000)
HOW = (
    "The target continues held-out prompts greedily to their end, in bfloat16. Along these texts a verify loop with "
    f"K={KMAX} is walked, with the drafter's greedy token at each place. Rates are unconditional. Half of the prompts "
    f"are any, half begin long logs; of the latter, early are the steps before token {EARLY.stop}, late those from "
    f"token {LATE.start} on."
)
_LONGEST_TEXT = 400  # tokens
_LONG_LOG = 14  # entries; such a log has more than 200 tokens left after any prompt


@dataclass(frozen=True)
class Acceptance:
    """Acceptance rates at positions 1..KMAX with the number of verify steps behind them, and the texts' lengths."""

    rates: tuple[float, ...]
    early: tuple[float, ...]
    late: tuple[float, ...]
    steps: int
    early_steps: int
    late_steps: int
    mean_length: float  # tokens generated, over the prompts that are any
    ended: float  # share of the texts that ended by themselves


def measure_acceptance(pair: Pair, prompts: int = 64) -> Acceptance:
    """Measure on `prompts` held-out prompts, see `HOW`."""
    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(pair.target)
    target, drafter = _load(pair.target), _load(pair.draft)
    held_out = read_prompts(pair.heldout_prompts)
    some = held_out[: prompts // 2]
    long = [prompt for prompt in held_out[prompts // 2 :] if _entries(prompt) >= _LONG_LOG][: prompts - len(some)]
    with torch.inference_mode():
        texts = _continued(target, tokenizer, some + long)
        taken = [list(steps(_agreement(drafter, text), KMAX)) for text in texts]
    everything, of_long = list(chain(*taken)), list(chain(*taken[len(some) :]))
    early = [step for step in of_long if step.start in EARLY]
    late = [step for step in of_long if step.start in LATE]
    return Acceptance(
        rates=acceptance_rates(everything, KMAX),
        early=acceptance_rates(early, KMAX),
        late=acceptance_rates(late, KMAX),
        steps=len(everything),
        early_steps=len(early),
        late_steps=len(late),
        mean_length=sum(len(text.generated) for text in texts[: len(some)]) / len(some),
        ended=sum(text.generated[-1] == tokenizer.eos_token_id for text in texts) / len(texts),
    )


def read_prompts(path: Path) -> list[str]:
    """The prompts of a file with one {"prompt": "..."} a line."""
    return [json.loads(line)["prompt"] for line in path.read_text().splitlines()]


@dataclass(frozen=True)
class _Text:
    prompt: list[int]
    generated: list[int]


def _entries(prompt: str) -> int:
    return int(prompt.split(". ")[1].split(" to go")[0])


def _load(folder: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def _continued(target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[str]) -> list[_Text]:
    """The prompts with the target's greedy continuations, each up to its end of text, all in one batch."""
    end = tokenizer.eos_token_id
    encoded = [tokenizer(prompt).input_ids for prompt in prompts]
    width = max(map(len, encoded))
    padded = torch.tensor([[end] * (width - len(ids)) + ids for ids in encoded])
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in encoded])
    rows = target.generate(
        padded, attention_mask=mask, do_sample=False, max_new_tokens=_LONGEST_TEXT, pad_token_id=end
    )[:, width:].tolist()
    return [
        _Text(ids, row[: row.index(end) + 1] if end in row else row) for ids, row in zip(encoded, rows, strict=True)
    ]


def _agreement(drafter: LlamaForCausalLM, text: _Text) -> list[bool]:
    """For each generated token whether it is the drafter's greedy choice after the tokens before it."""
    guesses = drafter(torch.tensor([text.prompt + text.generated])).logits[0].argmax(-1)
    first = len(text.prompt)
    return [guesses[first + i - 1].item() == token for i, token in enumerate(text.generated)]
