"""Talks to a served model as a client does, and reads from its own metrics what its engine drafts."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from devcluster.pace import patience

DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens_total"
RUNNING = "vllm:num_requests_running"
GENERATED = "vllm:generation_tokens_total"

_SETTLING_SECONDS = 0.5
"""The last prefill's own draft is over by then."""
_LOOK_SECONDS = 0.3

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Drafted:
    """What an engine drafted while exactly ``batch_size`` requests were decoding."""

    batch_size: int
    drafts: float
    draft_tokens: float
    accepted: float
    generated: float
    seconds: float

    @property
    def k(self) -> float:
        """Draft tokens per draft; 0 where nothing was drafted."""
        return self.draft_tokens / self.drafts if self.drafts else 0.0


def complete(url: str, prompt: str, max_tokens: int = 48, timeout: float = 60) -> str:
    """One greedy completion.

    Args:
        url: of the Service, such as ``http://10.96.0.7:8000``.
    """
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    text: str = _post(url, body, patience(timeout))["choices"][0]["text"]
    return text


def metrics(url: str) -> dict[str, float]:
    """Sum of every series of each metric, by name."""
    with _DIRECT.open(f"{url}/metrics", timeout=patience(30)) as answer:
        return parse_metrics(answer.read().decode())


def parse_metrics(text: str) -> dict[str, float]:
    """Sums over labels from Prometheus' text format."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name = series.partition("{")[0]
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def drafted_at(
    url: str, batch_size: int, prompts: Sequence[str], tokens: int, seconds: float = 6, settle: float = 240
) -> Drafted:
    """Hold ``batch_size`` requests and read what the engine drafts in the steady part.

    All requests start together, and none takes the place of one that ended: the steady part is from shortly after the
    moment when all of them decode to the last look at which all still do.

    Args:
        prompts: at least ``batch_size``, distinct.
        tokens: length of each generation.
        seconds: the steady part is cut at this length.
        settle: seconds until all requests must be decoding, on a quiet machine.

    Raises:
        TimeoutError: they never all decoded at once.
        RuntimeError: the generations were too short for a steady part.
    """
    with _requests(url, prompts[:batch_size], tokens):
        _all_decode(url, batch_size, settle)
        time.sleep(_SETTLING_SECONDS)
        began, before = time.monotonic(), metrics(url)
        ended, after = began, before
        while time.monotonic() - began < seconds:
            time.sleep(_LOOK_SECONDS)
            seen = metrics(url)
            if seen.get(RUNNING) != batch_size:
                break
            ended, after = time.monotonic(), seen
    if after.get(GENERATED, 0) <= before.get(GENERATED, 0):
        raise RuntimeError(f"no steady part: the {batch_size} requests ended too soon; raise tokens ({tokens})")
    change = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in after}
    return Drafted(
        batch_size=batch_size,
        drafts=change.get(DRAFTS, 0.0),
        draft_tokens=change.get(DRAFT_TOKENS, 0.0),
        accepted=change.get(ACCEPTED_TOKENS, 0.0),
        generated=change[GENERATED],
        seconds=ended - began,
    )


def _all_decode(url: str, batch_size: int, limit: float) -> None:
    deadline = time.monotonic() + patience(limit)
    while (running := metrics(url).get(RUNNING)) != batch_size:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{running} of {batch_size} requests run after {patience(limit):.0f} s")
        time.sleep(0.1)


@contextmanager
def _requests(url: str, prompts: Sequence[str], tokens: int) -> Iterator[None]:
    """Streams that are cut when the block ends; vLLM then aborts their generations."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=_stream, args=(url, prompt, tokens, stop), name=f"client {number}")
        for number, prompt in enumerate(prompts)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=patience(60))


def _stream(url: str, prompt: str, tokens: int, stop: threading.Event) -> None:
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    request = _request(url, body)
    try:
        with _DIRECT.open(request, timeout=patience(300)) as answer:
            for _ in answer:
                if stop.is_set():
                    return
    except (urllib.error.URLError, OSError):
        if not stop.is_set():
            raise


def _post(url: str, body: dict[str, Any], timeout: float) -> dict[str, Any]:
    with _DIRECT.open(_request(url, body), timeout=timeout) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def _request(url: str, body: dict[str, Any]) -> urllib.request.Request:
    return urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
