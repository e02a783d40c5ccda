"""Thousands of random tables: vLLM takes what we render, and looks up just the K of our rows."""

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from demopair.cache import Pair
from devcluster.pace import patience
from specserve_profiler.contract.profile import Decision, Row
from specserve_profiler.contract.request import Engine, Speculation
from specserve_profiler.dialect import render

pytestmark = pytest.mark.vllm
JUDGE = Path(__file__).parent / "judge_tables.py"
SPECULATIONS = (
    Speculation(method="ngram", max_tokens=16),
    Speculation(method="mtp", max_tokens=16),
    Speculation(method="draft_model", model="org/draft", revision="abc", max_tokens=16),
    Speculation(method="eagle3", model="/models/a draft", max_tokens=16),
)


@pytest.fixture(scope="module")
def judge(engine_python: Path, engine_environment: dict[str, str]) -> Any:
    def run(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
        done = subprocess.run(
            [engine_python, JUDGE],
            input="".join(json.dumps(case) + "\n" for case in cases),
            env=engine_environment,
            capture_output=True,
            text=True,
            timeout=patience(240),
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return [json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("@")]

    return run


def random_rows(rng: random.Random, max_num_seqs: int, kmax: int) -> tuple[Row, ...]:
    """A table without gaps over 1 to ``max_num_seqs``, of any number of rows, that drafts somewhere."""
    edges = sorted(rng.sample(range(1, max_num_seqs), min(rng.randrange(0, 9), max_num_seqs - 1)))
    lasts = [*edges, max_num_seqs]
    ks = [rng.randint(0, kmax) for _ in lasts]
    ks[rng.randrange(len(ks))] = rng.randint(1, kmax)
    return tuple(
        Row(first=first, last=last, k=k) for first, last, k in zip([1, *(e + 1 for e in edges)], lasts, ks, strict=True)
    )


def arguments_for(speculation: Speculation, rows: tuple[Row, ...], engine: Engine, sizes: tuple[int, ...]) -> list[str]:
    decision = Decision(verdict="Dynamic", reason="x", table=rows, static_k=1, capture_sizes=sizes)
    config = render.speculative_config(speculation, decision, "0.32.0")
    return list(
        render.serve_arguments("org/target", None, engine, config, capture_sizes=decision.capture_sizes, port=8123)
    )


def expected(rows: tuple[Row, ...]) -> list[int]:
    return [row.k for row in rows for _ in range(row.first, row.last + 1)]


def test_vllm_takes_every_rendered_table_and_looks_up_the_k_of_its_rows(judge: Any) -> None:
    rng = random.Random(32374)  # noqa: S311
    cases, wanted = [], []
    for _ in range(3000):
        size = rng.choice((1, 2, 3, 8, 32, 64, 100, 256, 512))
        rows = random_rows(rng, size, rng.randint(1, 16))
        sizes = tuple(rng.sample(range(1, 2049), rng.randrange(0, 40)))
        engine = Engine(command=(), args=("--dtype=bfloat16",), max_num_seqs=size, max_model_len=1024)
        cases.append({"args": arguments_for(rng.choice(SPECULATIONS), rows, engine, sizes), "maxNumSeqs": size})
        wanted.append({"lookup": expected(rows), "capture": sorted(sizes) or None})

    answers = judge(cases)

    assert [{**answer, "lookup": answer["lookup"][1:]} for answer in answers] == wanted


def test_the_measured_engine_knows_every_k(judge: Any) -> None:
    """Its table is only there to have the graphs of each K captured, also where fewer requests than K fit."""
    cases = [
        {
            "args": list(
                render.serve_arguments(
                    "org/target",
                    None,
                    Engine(command=(), max_num_seqs=size, max_model_len=1024),
                    render.measuring_config(Speculation(method="ngram", max_tokens=kmax), size),
                )
            ),
            "maxNumSeqs": size,
        }
        for kmax in range(1, 17)
        for size in (kmax + 1, 64, 300)
    ]

    for case, answer in zip(cases, judge(cases), strict=True):
        assert set(answer["lookup"][1:]) == set(range(max(answer["lookup"]) + 1)), case


def test_whole_engine_configs_take_tables_and_captured_sizes(judge: Any, pair: Pair) -> None:
    """As far as vLLM goes without loading weights: models are read, every validator of its config runs."""
    rng = random.Random(8)  # noqa: S311
    speculation = Speculation(method="draft_model", model=str(pair.draft), max_tokens=5)
    engine = Engine(command=(), args=("--dtype=bfloat16",), max_num_seqs=32, max_model_len=512)
    tables = [random_rows(rng, 32, 5) for _ in range(12)]
    cases = []
    for rows in tables:
        arguments = arguments_for(speculation, rows, engine, tuple(rng.sample(range(1, 193), 9)))
        arguments[arguments.index("--model=org/target")] = f"--model={pair.target}"
        cases.append({"args": arguments, "config": True})

    answers = judge(cases)

    assert [answer.get("lookup", answer)[1:] for answer in answers] == [expected(rows) for rows in tables]
