"""Drives vLLM's real schedulers, sync and async, with the probe on them and no model behind. Runs beside vLLM.

    python drive_probe.py sync|async TARGET DRAFT DIRECTORY

The loop is that of vLLM's ``EngineCore``: ``step`` for sync, ``step_with_batch_queue`` (the next step is scheduled
before the output of the last has come) for async. In place of a model, every request accepts all but the last of its
drafts. Prints what each step was, as the loop itself saw it, for comparison with what the probe wrote to DIRECTORY.
"""

import json
import sys
from collections import deque
from pathlib import Path

import torch
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from specserve_profiler.contract.steps import Plan
from specserve_profiler.engine import probe
from specserve_profiler.engine.records import write_plan

BLOCK = 16


def make_scheduler(mode: str, target: str, draft: str):
    speculative = {
        "method": "draft_model",
        "model": draft,
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": [[1, 4, 3]],
    }
    config = EngineArgs(
        model=target,
        max_num_seqs=4,
        max_model_len=512,
        dtype="bfloat16",
        enable_prefix_caching=False,
        speculative_config=speculative,
    ).create_engine_config()
    config.scheduler_config.async_scheduling = mode == "async"
    config.cache_config.num_gpu_blocks = 200
    groups = [
        KVCacheGroupSpec(
            ["layer"], FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        )
    ]
    with set_current_vllm_config(config):
        return probe.scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(num_blocks=200, kv_cache_tensors=[], kv_cache_groups=groups),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=True,
        )


def run_model(scheduler, output: SchedulerOutput) -> ModelRunnerOutput:
    """One token after a whole prompt, all drafts but the last and one more token in a verify step."""
    sampled = []
    for name, count in output.num_scheduled_tokens.items():
        drafts = output.scheduled_spec_decode_tokens.get(name, [])
        request = scheduler.requests.get(name)
        if request is not None and request.is_prefill_chunk and count < request.num_prompt_tokens:
            sampled.append([])
        else:
            sampled.append([7] * (max(len(drafts) - 1, 0) + 1))
    names = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)


def take_in(scheduler, output: SchedulerOutput, seen: list[dict]) -> None:
    result = run_model(scheduler, output)
    delivered = scheduler.update_from_output(output, result)
    seen.append(
        {
            "requests": len(output.num_scheduled_tokens),
            "tokens": output.total_num_scheduled_tokens,
            "k": output.num_spec_tokens_to_schedule,
            "drafts": {name: len(ids) for name, ids in output.scheduled_spec_decode_tokens.items()},
            "delivered": {
                entry.request_id: len(entry.new_token_ids) for client in delivered.values() for entry in client.outputs
            },
            "new": [request.req_id for request in output.scheduled_new_reqs],
        }
    )


def step(scheduler, queue: deque, seen: list[dict], depth: int) -> None:
    """Schedules until ``depth`` steps are under way, then takes in the oldest."""
    while len(queue) < depth and scheduler.has_requests():
        output = scheduler.schedule()
        if not output.num_scheduled_tokens:
            break
        queue.append(output)
    if not queue:
        return
    output = queue.popleft()
    take_in(scheduler, output, seen)
    if depth == 1:
        alive = [name for name in output.num_scheduled_tokens if name in scheduler.requests]
        drafts = [[9] * output.num_spec_tokens_to_schedule for _ in alive]
        scheduler.update_draft_token_ids(DraftTokenIds(alive, drafts))


def add(scheduler, name: str, prompt_tokens: int, max_tokens: int) -> None:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    sampling.update_from_generation_config({}, eos_token_id=1)
    scheduler.add_request(Request(name, list(range(2, 2 + prompt_tokens)), sampling, None))


def main() -> None:
    mode, target, draft, directory = sys.argv[1:]
    depth = 2 if mode == "async" else 1
    scheduler = make_scheduler(mode, target, draft)
    seen: list[dict] = []
    queue: deque = deque()
    write_plan(Plan(ks=(0, 1, 2, 3), block_steps=3, batch_size=2, seed=5), Path(directory))
    add(scheduler, "a", 20, 40)
    add(scheduler, "b", 33, 60)
    for _ in range(20):
        step(scheduler, queue, seen, depth)
    add(scheduler, "c", 25, 30)
    for _ in range(4):
        step(scheduler, queue, seen, depth)
    scheduler.finish_requests("c", RequestStatus.FINISHED_ABORTED)
    write_plan(Plan(ks=(2,)), Path(directory))
    while scheduler.has_requests() and len(seen) < 200:
        step(scheduler, queue, seen, depth)
    names = {"class": type(scheduler).__name__, "base": type(scheduler).__mro__[1].__name__}
    sys.stdout.write(json.dumps({**names, "seen": seen}) + "\n")


if __name__ == "__main__":
    main()
