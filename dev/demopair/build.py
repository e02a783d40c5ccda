"""Builds the pair's folder: corpus, tokenizer, two models, prompts, facts."""

import json
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from demopair.acceptance import HOW, measure_acceptance
from demopair.cache import Pair, cache_dir
from demopair.corpus import PROMPT_TOKENS, prompts, texts
from demopair.grammar import HOME, NEIGHBOUR, Town
from demopair.recipe import (
    DRAFTER,
    DRAFTER_SCHEDULE,
    TARGET,
    TARGET_FIRST,
    TARGET_FIRST_SCHEDULE,
    TARGET_SCHEDULE,
    VOCABULARY,
)
from demopair.tokenizer import train_tokenizer
from demopair.training import Log, grown, new_model, train

_TEXTS = 6000  # 0.9M tokens of each town
_TEXTS_FOR_TOKENIZER = 500


def build(log: Log) -> Path:
    """The folder of the pair, built where it is absent. An interrupted build leaves no folder of that name."""
    folder = cache_dir()
    if folder.exists():
        log(f"already built: {folder}")
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}-unfinished-", dir=folder.parent))
    try:
        _build_in(Pair(unfinished), log)
        _put(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _put(unfinished: Path, folder: Path) -> None:
    unfinished.chmod(0o755)
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.exists():
            raise  # else another build was faster, and made the same


def _build_in(pair: Pair, log: Log) -> None:
    began = time.monotonic()
    disable_progress_bar()
    log("tokenizer")
    tokenizer = train_tokenizer(_some_texts(), VOCABULARY)
    _write_prompts(pair, tokenizer)
    facts: dict[str, object] = {"versions": {name: version(name) for name in ("torch", "transformers", "tokenizers")}}

    log("target: one layer")
    ids = _tokens(HOME, tokenizer)
    first = new_model(TARGET_FIRST, tokenizer)
    train(first, ids, TARGET_FIRST_SCHEDULE, log)
    log(f"target: all {TARGET.layers} layers")
    target = grown(first, TARGET, tokenizer)
    target_loss = train(target, ids, TARGET_SCHEDULE, log)
    facts["target"] = _save(target, tokenizer, pair.target, target_loss)

    log("drafter")
    drafter = new_model(DRAFTER, tokenizer)
    drafter_loss = train(drafter, _tokens(NEIGHBOUR, tokenizer), DRAFTER_SCHEDULE, log)
    facts["draft"] = _save(drafter, tokenizer, pair.draft, drafter_loss)

    trained = time.monotonic() - began
    log("acceptance")
    facts["acceptance"] = {"how": HOW, **asdict(measure_acceptance(pair))}
    facts["seconds"] = {"corpus, tokenizer, training": round(trained), "all": round(time.monotonic() - began)}
    pair.facts.write_text(json.dumps(facts, indent=1) + "\n")


def _some_texts() -> Iterable[str]:
    return (text for town in (HOME, NEIGHBOUR) for text in islice(texts(town), _TEXTS_FOR_TOKENIZER))


def _tokens(town: Town, tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    encoded = tokenizer(list(islice(texts(town), _TEXTS))).input_ids
    return torch.tensor([token for ids in encoded for token in (*ids, tokenizer.eos_token_id)])


def _save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path, loss: float) -> dict[str, object]:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {"parameters": parameters, "loss": round(loss, 3)}


def _write_prompts(pair: Pair, tokenizer: PreTrainedTokenizerFast) -> None:
    sets = prompts()
    for path, chosen in ((pair.profile_prompts, sets.profile), (pair.heldout_prompts, sets.heldout)):
        lengths = [len(ids) for ids in tokenizer([prompt.text for prompt in chosen]).input_ids]
        if min(lengths) < PROMPT_TOKENS.start or max(lengths) >= PROMPT_TOKENS.stop:
            raise ValueError(f"{path.name}: {min(lengths)} to {max(lengths)} tokens a prompt, not in {PROMPT_TOKENS}")
        path.write_text("".join(json.dumps({"prompt": prompt.text}) + "\n" for prompt in chosen))
