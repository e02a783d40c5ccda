"""The probe's own logic, without vLLM: which K a step gets, and what is written down about it."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from timeit import timeit

import pytest

from specserve_profiler.contract.steps import Finished, Limits, Plan, Step
from specserve_profiler.engine.probe import PlannedK, Running, live_requests, record
from specserve_profiler.engine.records import StepLog, probe_directory, read_limits, write_limits, write_plan


def test_every_k_comes_equally_often_in_random_order_and_never_twice_in_a_row() -> None:
    ks = list(islice(Plan(ks=(0, 1, 2, 5), seed=3).sequence(), 400))

    assert Counter(ks) == {0: 100, 1: 100, 2: 100, 5: 100}
    assert all(before != after for before, after in pairwise(ks))
    assert len({tuple(ks[i : i + 4]) for i in range(0, 400, 4)}) > 10
    assert ks == list(islice(Plan(ks=(0, 1, 2, 5), seed=3).sequence(), 400))
    assert ks != list(islice(Plan(ks=(0, 1, 2, 5), seed=4).sequence(), 400))


def test_without_a_plan_the_engines_own_table_is_in_force(tmp_path: Path) -> None:
    assert PlannedK(tmp_path, kmax=5, own=[0, 4, 4, 2])[3] == 2


def test_blocks_advance_at_the_planned_batch_size_only(tmp_path: Path) -> None:
    write_plan(Plan(ks=(1, 4), block_steps=2, batch_size=8, seed=1), tmp_path)
    lookup = PlannedK(tmp_path, kmax=5, own=[5] * 9)

    prefilling = [lookup[3] for _ in range(5)]
    decoding = [lookup[8] for _ in range(8)]

    assert prefilling == [1] * 5
    assert [decoding[i] for i in range(0, 8, 2)] == [decoding[i] for i in range(1, 8, 2)]
    assert Counter(decoding) == {1: 4, 4: 4}


def test_a_new_plan_is_followed_from_the_next_step_on_and_k_is_never_above_kmax(tmp_path: Path) -> None:
    lookup = PlannedK(tmp_path, kmax=5, own=[5] * 9)
    write_plan(Plan(ks=(2,)), tmp_path)
    first = lookup[1]
    write_plan(Plan(ks=(9,)), tmp_path)

    assert (first, lookup[1]) == (2, 5)


def test_a_planned_table_is_followed_as_vllm_would(tmp_path: Path) -> None:
    """A gap carries the K before it on, and so does the last row."""
    write_plan(Plan(ks=(), rows=((1, 2, 5), (5, 6, 1))), tmp_path)
    lookup = PlannedK(tmp_path, kmax=5, own=[0] * 10)

    assert [lookup[size] for size in range(1, 9)] == [5, 5, 5, 5, 1, 1, 1, 1]


def test_the_cell_that_is_about_to_run_is_written_down(tmp_path: Path) -> None:
    write_plan(Plan(ks=(3,)), tmp_path)
    lookup = PlannedK(tmp_path, kmax=5, own=[5] * 9)

    lookup[128]
    lookup[8]

    assert (tmp_path / "cell").read_text().split() == ["8", "3"]


def test_reading_the_plan_costs_a_step_next_to_nothing(tmp_path: Path) -> None:
    write_plan(Plan(ks=(2, 3), block_steps=4), tmp_path)
    lookup = PlannedK(tmp_path, kmax=5, own=[5] * 9)

    small = tmp_path / "small"
    small.write_text("8")

    assert timeit(lambda: lookup[1], number=2000) < 10 * timeit(small.read_text, number=2000)


def test_outside_the_profiler_the_probe_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECSERVE_PROBE_DIR", raising=False)
    with pytest.raises(RuntimeError, match="SPECSERVE_PROBE_DIR is not set"):
        probe_directory()


@dataclass
class FakeRequest:
    num_output_tokens: int
    num_tokens: int = 100
    arrival_time: float = 1000.0
    finished: bool = False

    def is_finished(self) -> bool:
        return self.finished


@dataclass
class FakeCached:
    resumed_req_ids: set[str] = field(default_factory=set)


@dataclass
class FakeOutput:
    num_scheduled_tokens: dict[str, int]
    scheduled_spec_decode_tokens: dict[str, list[int]]
    num_spec_tokens_to_schedule: int
    scheduled_cached_reqs: FakeCached = field(default_factory=FakeCached)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


def taken_in(
    output: FakeOutput, requests: dict[str, FakeRequest], new: dict[str, int], running: dict[str, Running]
) -> str:
    """What is recorded when each request of the step puts out ``new`` tokens."""
    before = live_requests(requests, output)
    for name, tokens in new.items():
        requests[name].num_output_tokens += tokens
        requests[name].num_tokens += tokens
    return record(output, before, running, 7, 1000.25)


def test_a_step_is_recorded_as_scheduled_not_as_drafted() -> None:
    """An n-gram drafter found nothing for b: the step still is one of K = 3."""
    requests = {"a": FakeRequest(5, num_tokens=100), "b": FakeRequest(2, num_tokens=200)}
    output = FakeOutput({"a": 4, "b": 1}, {"a": [1, 2, 3]}, 3)
    running = {"a": Running(9), "b": Running(9, ["2"])}

    line = taken_in(output, requests, {"a": 3, "b": 1}, running)

    assert line == Step(7, requests=2, tokens=5, k=3, emitted=4, prefills=0, context=152).line()
    assert running == {"a": Running(9, ["3"]), "b": Running(9, ["2", "1"])}


def test_prompts_chunks_and_resumed_requests_are_prefills() -> None:
    requests = {"new": FakeRequest(0), "chunk": FakeRequest(0), "resumed": FakeRequest(9), "decodes": FakeRequest(9)}
    output = FakeOutput(
        {"new": 30, "chunk": 1, "resumed": 40, "decodes": 2}, {"decodes": [1]}, 1, FakeCached({"resumed"})
    )

    line = taken_in(output, requests, {"new": 1, "resumed": 1, "decodes": 2}, {})

    assert line.split()[5:7] == ["4", "3"]  # tokens put out; three prefills


def test_a_request_that_ends_leaves_its_time_to_first_token_and_what_each_verify_step_put_out() -> None:
    requests = {"a": FakeRequest(0)}
    running: dict[str, Running] = {}
    taken_in(FakeOutput({"a": 20}, {}, 2), requests, {"a": 1}, running)
    taken_in(FakeOutput({"a": 3}, {"a": [1, 2]}, 2), requests, {"a": 3}, running)
    requests_before_last = dict(requests)
    output = FakeOutput({"a": 3}, {"a": [1, 2]}, 2)
    before = live_requests(requests_before_last, output)
    requests["a"].num_output_tokens += 2
    requests["a"].finished = True

    lines = record(output, before, running, 7, 1009.0).splitlines(keepends=True)

    finished = Finished(ttft_us=250_000, chain="32", request_id="a")
    assert lines[1] == finished.line()
    assert (finished.verify_steps, finished.tokens) == (2, 5)
    assert running == {}


def test_a_request_that_was_aborted_meanwhile_is_left_out() -> None:
    requests = {"gone": FakeRequest(4, finished=True), "stays": FakeRequest(4)}
    output = FakeOutput({"gone": 2, "stays": 2, "unknown": 2}, {"gone": [1], "stays": [1], "unknown": [1]}, 1)

    line = taken_in(output, requests, {"stays": 1}, {})

    assert line.startswith("S 7 3 6 1 1 0 ")


def test_step_log_reads_whole_lines_only_and_each_once(tmp_path: Path) -> None:
    log = StepLog(tmp_path)
    step, finished = Step(1, 2, 3, 4, 5, 6, 7), Finished(3000, "313", "cmpl-1")
    path = tmp_path / "steps.log"

    with path.open("a") as file:
        file.write(step.line() + finished.line() + "S 9 9")
    first = log.new()
    with path.open("a") as file:
        file.write(" 9 9 9 9 9\n")

    assert first == ([step], [finished])
    assert log.new() == ([Step(9, 9, 9, 9, 9, 9, 9)], [])
    assert log.new() == ([], [])


def test_limits_travel_through_the_directory(tmp_path: Path) -> None:
    limits = Limits("0.32.0", "async", 32, 1024, 2048, 2048, 65536, 1, 5, "cpu", (1, 2, 4), "V2")

    write_limits(limits, tmp_path)

    assert read_limits(tmp_path) == limits
