"""What the lint calls an error is just what vLLM refuses."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import RunInEngine

from specserve_profiler.reports.lint import lint

pytestmark = pytest.mark.vllm

JUDGE = """
import json, sys
from pydantic import TypeAdapter
from vllm.config.speculative import SpeculativeConfig
from vllm.v1.spec_decode.dynamic.utils import validate_and_normalize_dynamic_sd_schedule as validate
field = SpeculativeConfig.__annotations__["num_speculative_tokens_per_batch_size"]
parser = TypeAdapter(field if not isinstance(field, str) else eval(field))
for line in open(sys.argv[1]):
    try:
        validate(list(map(list, parser.validate_python(json.loads(line)))))
        print("@1")
    except (ValueError, TypeError):
        print("@0")
"""


ODDITIES = ("4", "4.0", " 7 ", "x", "", 4.0, 4.5, True, None, [], "1_0", "+3", "4.")


def random_table(rng: random.Random) -> Any:
    """A table that is right more often than not, with whatever people get wrong in it."""
    rows: list[Any] = []
    last = 0
    for _ in range(rng.randrange(0, 5)):
        first = last + rng.choice([*[1] * 20, 0, 3, -2])
        last = first + rng.choice([*[0, 3, 20] * 8, -1])
        row: list[Any] = [first, last, rng.choice([*range(9), *range(9), -1])]
        if rng.random() < 0.2:
            row[rng.randrange(3)] = rng.choice(ODDITIES)
        if rng.random() < 0.05:
            row = rng.choice([row[:2], [*row, 1], [], {"1-4": 3}, "1-4:3", 5])
        rows.append(row)
    if rng.random() < 0.2:
        rng.shuffle(rows)
    return rng.choice([{"1-4": 3}, {}, 7, "1-4"]) if rng.random() < 0.03 else rows


def test_an_error_is_what_vllm_refuses_and_nothing_else(run_in_engine: RunInEngine, tmp_path: Path) -> None:
    rng = random.Random(4)  # noqa: S311
    tables = [random_table(rng) for _ in range(3000)]
    (tmp_path / "tables").write_text("".join(json.dumps(table) + "\n" for table in tables), encoding="utf-8")
    (tmp_path / "judge.py").write_text(JUDGE, encoding="utf-8")

    done = run_in_engine(tmp_path / "judge.py", tmp_path / "tables")

    assert done.returncode == 0, done.stderr[-2000:]
    accepted = [line == "@1" for line in done.stdout.splitlines() if line.startswith("@")]
    assert len(accepted) == len(tables) and 500 < sum(accepted) < 2500
    for table, takes in zip(tables, accepted, strict=True):
        refused = [finding for finding in lint(json.dumps(table)) if finding.level == "error"]
        assert bool(refused) != takes, f"{table}: {refused}"
