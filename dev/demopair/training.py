"""Trains Llama models from scratch on two CPU cores in about a minute."""

import time
from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from demopair.recipe import CONTEXT, VOCABULARY, Schedule, Shape

Log = Callable[[str], None]
_STEPS_PER_LINE = 20


def new_model(shape: Shape, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama model of this shape with random weights, the same at every call."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            intermediate_size=shape.inner,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def grown(small: LlamaForCausalLM, shape: Shape, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A deeper model that computes what `small` does: the new layers at first add nothing to the residual stream.

    A step of one layer takes a sixth of the time of a step of eight, and this language needs many steps more than it
    needs depth.
    """
    model = new_model(shape, tokenizer)
    model.load_state_dict(small.state_dict(), strict=False)
    with torch.no_grad():
        for layer in model.model.layers[small.config.num_hidden_layers :]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model


def train(model: LlamaForCausalLM, ids: torch.Tensor, schedule: Schedule, log: Log) -> float:
    """Train on random windows of `ids` (a vector of tokens). Returns the last loss in nats per token."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    generator = torch.Generator().manual_seed(0)
    offsets = torch.arange(schedule.window)
    began = time.monotonic()
    value = float("nan")
    model.train()
    for step in range(schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate * _share_of_peak(step, schedule.steps)
        starts = torch.randint(len(ids) - schedule.window, (schedule.batch, 1), generator=generator)
        windows = ids[starts + offsets]
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(windows, labels=windows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        if (step + 1) % _STEPS_PER_LINE == 0 or step + 1 == schedule.steps:
            log(f"  step {step + 1}/{schedule.steps}, loss {value:.2f}, {time.monotonic() - began:.0f} s")
    return value


def _share_of_peak(step: int, steps: int) -> float:
    warm_up = max(1, steps // 10)
    return min((step + 1) / warm_up, (steps - step) / (steps - warm_up))
