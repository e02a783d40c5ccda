"""A vLLM scheduler that takes K from a plan and writes down every step.

Named to the engine by ``--scheduler-cls specserve_profiler.engine.probe.scheduler``; runs in vLLM's engine process. It
changes which K is drafted and nothing else. The only module that imports vLLM, and it does so when called, so that the
rest of it can be tested without. Facts of vLLM that it rests on (read in 0.32, sync and async scheduler):

- ``Scheduler.schedule`` reads ``dynamic_sd_lookup[number of scheduled requests]`` once in every step that schedules
  anything; the K it finds is drafted at the end of that step and verified by the next.
- ``update_from_output`` is called once for each such step, in order. Under async scheduling the next step has been
  scheduled by then, so whatever is recorded must come from the step's own ``SchedulerOutput``, not from the lookup.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specserve_profiler.contract.steps import Finished, Limits, Plan, Step, digit
from specserve_profiler.engine.records import CELL_FILE, PLAN_FILE, STEPS_FILE, probe_directory, write_limits


def scheduler(vllm_config: Any, **arguments: Any) -> Any:
    """The scheduler that the configuration selects, sync or async, as a probing one. Called by vLLM like a class."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    base = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    return probing(base)(vllm_config=vllm_config, **arguments)


class PlannedK:
    """Stands in for vLLM's lookup, ``lookup[batch size] -> K``. Read once in every step; follows the plan file.

    Without a plan the engine's own lookup ``own`` is in force. Before a K takes effect that is not the last one's, the
    cell is written down, so that it can be named where the engine does not survive it.
    """

    def __init__(self, directory: Path, kmax: int, own: Sequence[int]) -> None:
        self._path = directory / PLAN_FILE
        self._cell = os.open(directory / CELL_FILE, os.O_WRONLY | os.O_CREAT, 0o644)
        self._kmax = kmax
        self._own = own
        self._stamp: tuple[int, int] | None = None
        self._plan: Plan | None = None
        self._blocks: Iterator[int] = iter(())
        self._k = kmax
        self._left = 0
        self._written: tuple[int, int] | None = None

    def __getitem__(self, batch_size: int) -> int:
        self._reload()
        k = min(self._planned(batch_size), self._kmax)
        if self._written != (batch_size, k):
            self._written = (batch_size, k)
            # One write of one length: an engine that is killed at any moment leaves a whole cell.
            os.pwrite(self._cell, f"{batch_size:8} {k:8}".encode(), 0)
        return k

    def _planned(self, batch_size: int) -> int:
        plan = self._plan
        if plan is None:
            return self._own[batch_size]
        if plan.rows:
            return next((k for first, _, k in reversed(plan.rows) if first <= batch_size), plan.rows[0][2])
        if plan.batch_size in (None, batch_size):
            if self._left == 0:
                self._k, self._left = next(self._blocks), plan.block_steps
            self._left -= 1
        return self._k

    def _reload(self) -> None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._plan = self._stamp = None
            return
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        self._plan = Plan.from_json(self._path.read_text(encoding="utf-8"))
        self._blocks = self._plan.sequence()
        self._k, self._left = (*self._plan.ks, self._kmax)[0], 0


def probing(base: type[Any]) -> type[Any]:
    """The subclass of a vLLM scheduler that follows the plan (where it speculates) and records."""

    class Probe(base):  # type: ignore[misc]
        dynamic_sd_lookup: Any

        def __init__(self, *, vllm_config: Any, **arguments: Any) -> None:
            super().__init__(vllm_config=vllm_config, **arguments)
            directory = probe_directory()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._specserve_log = os.open(directory / STEPS_FILE, flags, 0o644)
            self._specserve_running: dict[str, Running] = {}
            write_limits(limits_of(self, vllm_config), directory)
            if self.num_spec_tokens and self.dynamic_sd_lookup is not None:
                self.dynamic_sd_lookup = PlannedK(directory, self.num_spec_tokens, self.dynamic_sd_lookup)

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
            before = live_requests(self.requests, scheduler_output)
            result = super().update_from_output(scheduler_output, model_runner_output)
            if before or scheduler_output.num_scheduled_tokens:
                lines = record(scheduler_output, before, self._specserve_running, time.monotonic_ns(), time.time())
                os.write(self._specserve_log, lines.encode())
            return result

        def finish_requests(self, request_ids: Any, *arguments: Any, **keywords: Any) -> Any:
            result = super().finish_requests(request_ids, *arguments, **keywords)
            for request_id in [known for known in self._specserve_running if known not in self.requests]:
                del self._specserve_running[request_id]
            return result

        def shutdown(self, *arguments: Any, **keywords: Any) -> Any:
            os.close(self._specserve_log)
            return super().shutdown(*arguments, **keywords)

    Probe.__name__ = Probe.__qualname__ = f"Probing{base.__name__}"
    return Probe


def live_requests(requests: dict[str, Any], scheduled: Any) -> dict[str, tuple[Any, int]]:
    """Request id -> (request, tokens put out so far), of the step's requests that did not end meanwhile."""
    live = {}
    for request_id in scheduled.num_scheduled_tokens:
        request = requests.get(request_id)
        if request is not None and not request.is_finished():
            live[request_id] = (request, request.num_output_tokens)
    return live


@dataclass
class Running:
    """What is known of a request that has put out its first token."""

    ttft_us: int
    chain: list[str] = field(default_factory=list)


def record(
    scheduled: Any,
    before: dict[str, tuple[Any, int]],
    running: dict[str, Running],
    time_ns: int,
    now: float,
) -> str:
    """The lines for a step whose output has been taken in. ``now`` is wall-clock seconds, as arrival times are."""
    emitted = prefills = context = 0
    finished = []
    resumed = scheduled.scheduled_cached_reqs.resumed_req_ids
    for request_id, (request, tokens_before) in before.items():
        context += request.num_tokens
        new = request.num_output_tokens - tokens_before
        emitted += new
        if tokens_before == 0 and new:
            running[request_id] = Running(max(round((now - request.arrival_time) * 1e6), 0))
        drafts = len(scheduled.scheduled_spec_decode_tokens.get(request_id, ()))
        decodes = tokens_before > 0 and request_id not in resumed
        if not decodes or scheduled.num_scheduled_tokens[request_id] != 1 + drafts:
            prefills += 1
        elif request_id in running:
            running[request_id].chain.append(digit(new))
        if request.is_finished():
            entry = running.pop(request_id, Running(0))
            finished.append(Finished(entry.ttft_us, "".join(entry.chain), request_id))
    step = Step(
        time_ns=time_ns,
        requests=len(scheduled.num_scheduled_tokens),
        tokens=scheduled.total_num_scheduled_tokens,
        k=scheduled.num_spec_tokens_to_schedule,
        emitted=emitted,
        prefills=prefills,
        context=context // len(before) if before else 0,
    )
    return step.line() + "".join(entry.line() for entry in finished)


def limits_of(engine_scheduler: Any, vllm_config: Any) -> Limits:
    """What this engine can hold."""
    from vllm import __version__

    kv = engine_scheduler.kv_cache_config
    block_tokens = min(group.kv_cache_spec.block_size for group in kv.kv_cache_groups)
    speculative = vllm_config.speculative_config
    compilation = vllm_config.compilation_config
    graphs = getattr(compilation.cudagraph_mode, "name", "NONE") not in ("NONE", "None")
    return Limits(
        engine_version=__version__,
        scheduler="async" if vllm_config.scheduler_config.async_scheduling else "sync",
        max_num_seqs=vllm_config.scheduler_config.max_num_seqs,
        max_model_len=engine_scheduler.max_model_len,
        max_num_batched_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
        max_num_scheduled_tokens=engine_scheduler.max_num_scheduled_tokens,
        kv_cache_tokens=kv.num_blocks // len(kv.kv_cache_groups) * block_tokens,
        draft_slots=getattr(speculative, "max_num_new_slots_for_drafting", 0) if speculative is not None else 0,
        num_speculative_tokens=engine_scheduler.num_spec_tokens,
        device=_device_name(),
        graph_sizes=tuple(sorted(compilation.cudagraph_capture_sizes or ())) if graphs else (),
        vocabulary=vllm_config.model_config.get_vocab_size(),
        runner="V2" if getattr(vllm_config, "use_v2_model_runner", False) else "V1",
    )


def _device_name() -> str:
    """The accelerator in the platform's own words; empty where the platform does not say."""
    from vllm.platforms import current_platform

    try:
        return str(current_platform.get_device_name())
    except (NotImplementedError, RuntimeError, AttributeError):
        return ""
