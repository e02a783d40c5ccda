"""What the lint calls an error is just what vLLM refuses."""

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import RunInEngine

from devcluster.pace import patience
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


METHODS = ["eagle", "eagle3", "draft_model", "dflash", "medusa", "mlp_speculator", "custom_class", "mtp", "dspark"]
METHODS += ["suffix", "ngram", "deepseek_mtp", "eagle4", "Eagle3", 5, None]
KMAX, TABLE = "num_speculative_tokens", "num_speculative_tokens_per_batch_size"
PASTED = [
    '{"method":"ngram","num_speculative_tokens":4,"num_speculative_tokens_per_batch_size":[[1,16,4]]}',
    '{{"method":"ngram","num_speculative_tokens":4}}',
    '{\\"method\\":\\"ngram\\",\\"num_speculative_tokens\\":4}',
    "{'method': 'ngram', 'num_speculative_tokens': 4}",
    "{method:ngram,num_speculative_tokens:4}",
    "map[method:ngram num_speculative_tokens:4]",
    '{"method":"ngram","num_speculative_tokens":4,}',
    '{"method":"ngram","num_speculative_tokens":' + "9" * 5000 + "}",
    '{"method":"ngram","num_speculative_tokens":4,"x":' + "[" * 100_000 + "]" * 100_000 + "}",
]


def random_config(rng: random.Random) -> dict[str, Any]:
    """A config without a table that is right more often than not, with whatever people get wrong in it."""
    config: dict[str, Any] = {"method": rng.choice(METHODS), "model": "d", KMAX: 4}
    if rng.random() < 0.3:
        config[KMAX] = rng.choice([1, "4", 4.0, " 4 ", 0, -1, 2.5, "x", None, [4]])
    if rng.random() < 0.3:
        config["model"] = rng.choice([None, 5, "ngram", "org/other"])
    if rng.random() < 0.2:
        del config[rng.choice(["method", "model"])]
    if rng.random() < 0.3:
        config[rng.choice(["num_speculative_token", "num-speculative-tokens", "modle", "draft_len_schedule"])] = 4
    if rng.random() < 0.3:
        table = rng.choice([[[1, 16, 4]], [[2, 16, 4]], [], {"16": 4}, None, [[1, 16, "4"]], [[1, 8, 4], [8, 16, 2]]])
        config[rng.choice([TABLE, TABLE.replace("_", "-")])] = table
    return config


def test_an_error_of_a_config_is_what_vllm_refuses_and_nothing_else(
    engine_python: Path, engine_environment: dict[str, str]
) -> None:
    """But for what serves badly or not at all: a table with a method that is known for it."""
    rng = random.Random(8)  # noqa: S311
    texts = [*(json.dumps(random_config(rng)) for _ in range(1500)), *PASTED]

    done = subprocess.run(
        [str(engine_python), str(Path(__file__).with_name("judge_configs.py"))],
        input="".join(json.dumps(text) + "\n" for text in texts),
        env=engine_environment,
        capture_output=True,
        text=True,
        timeout=patience(180),
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    answers = [line for line in done.stdout.splitlines() if line.startswith("@")]
    taken = sum(answer == "@1" for answer in answers)
    assert len(answers) == len(texts) and 300 < taken < 1200, taken
    for text, answer in zip(texts, answers, strict=True):
        refused = [str(found) for found in lint(text) if found.level == "error" and not serves_badly(found.message)]
        assert bool(refused) == (answer != "@1"), f"{text[:300]}: {refused} {answer[:300]}"


def serves_badly(message: str) -> bool:
    return "cannot be used with a table" in message
