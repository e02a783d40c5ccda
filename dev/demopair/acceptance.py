"""Acceptance rates by position, early and late in a generation, without an engine."""

from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from demopair.cache import Pair
from demopair.corpus import Prompt, prompts
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
_PROMPTS_OF_A_KIND = 32
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


def measure_acceptance(pair: Pair) -> Acceptance:
    """Measure as `HOW` says."""
    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(pair.target)
    target, drafter = _load(pair.target), _load(pair.draft)
    held_out = prompts().heldout
    some = held_out[:_PROMPTS_OF_A_KIND]
    long = [it for it in held_out[_PROMPTS_OF_A_KIND:] if _entries(it) >= _LONG_LOG][:_PROMPTS_OF_A_KIND]
    with torch.inference_mode():
        texts = [_continued(target, tokenizer, prompt) for prompt in (*some, *long)]
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


@dataclass(frozen=True)
class _Text:
    prompt: list[int]
    generated: list[int]


def _load(folder: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def _entries(prompt: Prompt) -> int:
    return int(prompt.text.split(". ")[1].split(" to go")[0])


def _continued(target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt) -> _Text:
    """The prompt with the target's greedy continuation up to its end of text.

    The rest of the log is tried first: as far as one pass finds each of its tokens to be the greedy choice after those
    before it, it is the greedy continuation, without a pass for every token.
    """
    end = tokenizer.eos_token_id
    given, rest = tokenizer([prompt.text, prompt.rest]).input_ids
    rest = [*rest, end]
    choices = target(torch.tensor([given + rest])).logits[0].argmax(-1)[len(given) - 1 :].tolist()
    right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(rest, choices, strict=False)))
    if right == len(rest):
        return _Text(given, rest)
    known = given + rest[:right]
    whole = target.generate(torch.tensor([known]), do_sample=False, max_new_tokens=_LONGEST_TEXT, pad_token_id=end)
    return _Text(given, whole[0].tolist()[len(given) :])


def _agreement(drafter: LlamaForCausalLM, text: _Text) -> list[bool]:
    """For each generated token whether it is the drafter's greedy choice after the tokens before it."""
    guesses = drafter(torch.tensor([text.prompt + text.generated])).logits[0].argmax(-1)
    first = len(text.prompt)
    return [guesses[first + i - 1].item() == token for i, token in enumerate(text.generated)]
