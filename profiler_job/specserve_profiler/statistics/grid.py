"""What to measure: batch sizes, candidate K, and which of their cells the engine can run at all. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from specserve_profiler.contract.steps import Limits


def default_batch_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """1, 2, 4, ... and ``max_num_seqs`` itself, so that nothing is extrapolated."""
    sizes = []
    size = 1
    while size < max_num_seqs:
        sizes.append(size)
        size *= 2
    return (*sizes, max_num_seqs)


def candidates(kmax: int) -> tuple[int, ...]:
    """Every K that a table may hold. K = 0 is one of them: it drafts nothing that is verified, but is no baseline."""
    return tuple(range(kmax + 1))


@dataclass(frozen=True)
class Target:
    """A cell to measure, or why it is not."""

    batch_size: int
    k: int
    skipped: str | None = None


def plan_grid(batch_sizes: Sequence[int], ks: Sequence[int], limits: Limits, request_tokens: int) -> Iterator[Target]:
    """Every cell in order of batch size and K, those that cannot run with the reason.

    ``request_tokens`` is the length of a request at its end, prompt and output. A step of a cell takes
    B x (K + 1) scheduled tokens, B x (K + 1 + the drafter's slots) places of the input batch; a cohort takes
    B x (``request_tokens`` + Kmax) tokens of KV cache.
    """
    for batch_size in batch_sizes:
        for k in ks:
            yield Target(batch_size, k, _why_skipped(batch_size, k, limits, request_tokens))


def _why_skipped(batch_size: int, k: int, limits: Limits, request_tokens: int) -> str | None:
    if batch_size > limits.max_num_seqs:
        return f"the engine runs at most {limits.max_num_seqs} requests at once"
    places = batch_size * (k + 1 + limits.draft_slots)
    if places > limits.max_num_batched_tokens:
        return f"a step takes {places} tokens, max_num_batched_tokens is {limits.max_num_batched_tokens}"
    tokens = batch_size * (k + 1)
    if tokens > limits.max_num_scheduled_tokens:
        return f"a step takes {tokens} tokens, the engine schedules at most {limits.max_num_scheduled_tokens}"
    cache = batch_size * (request_tokens + limits.num_speculative_tokens)
    if cache > limits.kv_cache_tokens:
        return f"the requests take {cache} tokens of KV cache, the engine has {limits.kv_cache_tokens}"
    return None


def runnable(targets: Iterable[Target]) -> dict[int, list[int]]:
    """Batch size -> its K that can run; without the batch sizes that have none."""
    cells: dict[int, list[int]] = {}
    for target in targets:
        if target.skipped is None:
            cells.setdefault(target.batch_size, []).append(target.k)
    return cells


def spread(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """At most ``most`` of the sizes, the first and the last among them, the others evenly between."""
    if len(sizes) <= most:
        return tuple(sizes)
    return tuple(dict.fromkeys(sizes[round(index * (len(sizes) - 1) / (most - 1))] for index in range(most)))
