"""``check`` and ``render`` on what people have: any text, what the other printed, and other engines' tables."""

from __future__ import annotations

import io
import json
import shlex
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.profiler.cli.doors import shell

from specserve_profiler.cli import main

CONFIG = '{"method":"eagle3","model":"org/d","num_speculative_tokens":4}'
WITH_TABLE = CONFIG[:-1] + ',"num_speculative_tokens_per_batch_size":[[1,16,4],[17,64,2]]}'
NO_TABLE = "warning: num_speculative_tokens_per_batch_size: is missing"
RENDER = "profile render --rows '1-16:4 17-64:2' --method eagle3 --draft-model org/d"

DOTTED = (
    "--speculative-config.method eagle3 --speculative-config.model org/d --spec-tokens 4 "
    "--speculative-config.num_speculative_tokens_per_batch_size [[1,16,4],[17,64,2]]"
)


def checked(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``check``."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["check", *words])
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    "line",
    [
        f"{RENDER} | profile check - --max-num-seqs 64",
        f"{RENDER} --json | profile check - --max-num-seqs 64",
        f"echo {shlex.quote(WITH_TABLE)} | profile check - --max-num-seqs 64",
        f'echo "vllm serve org/t --max-num-seqs=64 $({RENDER})" | profile check -',
        f"echo {DOTTED} | profile check -",
    ],
)
def test_what_is_printed_is_read_back(line: str) -> None:
    done = shell(line)

    assert (done.returncode, done.stdout, done.stderr) == (0, "nothing to find\n", "")


def test_arguments_say_how_far_the_table_must_reach() -> None:
    done = shell(f'echo "--max-num-seqs 256 $({RENDER})" | profile check -')

    assert done.stdout.startswith("warning: [17, 64, 2]: ends below max_num_seqs 256")


def test_what_serves_without_speculation_has_nothing_to_find() -> None:
    done = shell("profile render --rows 1-16:0 --method ngram --json 2>/dev/null | profile check -")

    assert (done.returncode, done.stdout) == (0, "nothing to find\n")


def test_words_that_are_no_shell_line_are_refused() -> None:
    code, out, told = checked("--", "--speculative-config '{")

    assert (code, out) == (2, "")
    assert told.startswith("specserve-profile check: --speculative-config '{: no words of a shell: No closing quot")


@pytest.mark.parametrize(
    ("given", "mistake"),
    [
        ("{" + CONFIG + "}", "doubled braces"),
        (CONFIG.replace('"', '\\"'), "backslashes before its quotes"),
        (json.dumps(CONFIG), "JSON within a JSON text"),
        (f"'{CONFIG}'", "quotes around it that are part of the text"),
        (f'"{CONFIG}"', "quotes around it that are part of the text"),
        ("map[method:eagle3 model:org/d num_speculative_tokens:4]", "Go's way to print a map"),
        (
            '["method:eagle3","model:org/d","num_speculative_tokens:4"]',
            "a list of texts: helm --set takes braces for a list",
        ),
        ("[method:eagle3 model:org/d num_speculative_tokens:4]", "a list of texts: helm --set takes braces for a list"),
        ("{'method': 'eagle3', 'model': 'org/d', 'num_speculative_tokens': 4}", "single quotes, as Python prints"),
        ("{method:eagle3,model:org/d,num_speculative_tokens:4}", "no quotes: a shell took them, or it is YAML"),
        ("{method: eagle3, model: org/d, num_speculative_tokens: 4}", "no quotes: a shell took them, or it is YAML"),
        ("method:eagle3 model:org/d num_speculative_tokens:4", "no quotes: a shell took them, or it is YAML"),
        (CONFIG.replace('"', "”"), "typographic quotes"),
        (CONFIG[:-1] + ",}", "a comma too many"),
    ],
)
def test_a_mangled_config_is_told_with_how_it_should_read(given: str, mistake: str) -> None:
    done = shell(f"profile check {shlex.quote(given)}")

    first, second = done.stdout.splitlines()
    assert first.startswith(f"error: text: is not what vLLM reads: {mistake}") and first.endswith(f"; write {CONFIG}")
    assert second.startswith(NO_TABLE)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_template_that_prints_a_table_is_told() -> None:
    _, told, _ = checked("[[1 16 4] [17 64 2]]")

    assert told == (
        "error: text: is not what vLLM reads: Go's way to print a list: a Helm template printed the value without "
        "toJson; write [[1, 16, 4], [17, 64, 2]]\n"
    )


def test_a_mangled_config_with_a_fault_of_its_own_is_not_advised() -> None:
    code, told, _ = checked("{method: eagle3, num_speculative_tokens: 4}")

    assert code == 1 and "; as JSON, and still to mend: {" in told and "error: model: is missing" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("[[1,16,4]] --vllm-version 0.23", "error: table: vLLM 0.23 knows no tables; use 0.24 or newer\n"),
        ("""'{"4-1": 3}'""", "error: table: is an object, vLLM takes a list of [first, last, K] only; write"),
        (f"{shlex.quote(CONFIG)[:-2]},\"modle\":1}}'", "error: modle: is no key of vLLM's speculative config"),
    ],
)  # fmt: skip
def test_what_vllm_refuses_is_an_error(words: str, told: str) -> None:
    done = shell(f"profile check {words}")

    assert done.stdout.startswith(told)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("'[[1,16,' + '9' * 5000 + ']]'", "error: text: holds a number of more digits than vLLM's parser reads"),
        ("'[' * 100000 + ']' * 100000", "error: text: is nested too deep for a table or a config"),
        ("'{' * 100000", "error: line 1: no valid JSON"),
        ("chr(34) + '9' * 5000 + chr(34)", "error: table: must be a list of [first, last, K]"),
        ("''", "error: line 1: no valid JSON"),
    ],
)
def test_endless_text_ends_with_a_finding(program: str, told: str) -> None:
    done = shell(f'profile check - < <(python3 -c "print({program.replace(chr(34), chr(92) + chr(34))})")')

    assert done.stdout.startswith(told) and len(done.stdout) < 1000
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("line", ["table -", "render -", "report --text -", "compare - /dev/null"])
def test_endless_depth_is_no_profile_at_any_door(line: str) -> None:
    done = shell(f"profile {line} < <(python3 -c \"print('[' * 100000)\")")

    assert ": - is no profile: not JSON: " in done.stderr and (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("rows", ["'[' * 100000", "'[[1,16,' + '9' * 5000 + ']]'"])
def test_endless_rows_are_refused(rows: str) -> None:
    done = shell(f'profile render --method ngram --rows "$(python3 -c "print({rows})")"')

    assert 'give "[[1,16,4],[17,64,2]]" or "1-16:4 17-64:2"' in done.stderr and len(done.stderr) < 500
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(("method", "flag"), [("mtp", "--draft-model"), ("ngram", "--draft-revision")])
def test_render_refuses_a_draft_model_where_the_method_has_none(method: str, flag: str) -> None:
    done = shell(f"profile render --rows 1-16:4 --method {method} {flag} foo")

    assert done.stderr.startswith(
        f"specserve-profile render: {flag}: method {method} has no draft model: leave it out\n"
    )
    assert (done.returncode, done.stdout) == (2, "")


# other engines


def test_a_table_for_sglang_is_its_file_and_what_does_not_carry_over() -> None:
    done = shell(f"{RENDER} --for sglang")

    assert json.loads(done.stdout) == {"1": {"candidate_steps": [4]}, "17": {"candidate_steps": [2]}}
    assert "warning: a table of vLLM is not right for SGLang by itself" in done.stderr
    assert "warning: for SGLang 0.5.13 or newer; 0.5.11 and 0.5.12 know no batch sizes here" in done.stderr
    assert (
        "serve with: --speculative-algorithm EAGLE3 --speculative-draft-model-path org/d --speculative-eagle-topk 1 "
        "--speculative-num-steps 4 --speculative-num-draft-tokens 5 --speculative-adaptive "
        "--speculative-adaptive-config FILE" in done.stderr
    )


def test_a_table_for_tensorrt_llm_is_its_config_and_what_does_not_carry_over() -> None:
    done = shell(f"{RENDER} --for trtllm")

    assert done.stdout == (
        'speculative_config:\n  draft_len_schedule: {16: 4, 64: 2}\n  max_draft_len: 4\n  speculative_model: "org/d"\n'
    )
    assert "warning: a table of vLLM is not right for TensorRT-LLM by itself" in done.stderr
    assert "warning: before that a key was the first, and the same table is {1: 4, 17: 2}" in done.stderr
    assert "warning: above batch size 64 TensorRT-LLM drafts nothing, where vLLM goes on with 2" in done.stderr


@pytest.mark.parametrize("json_flag", ["", "--json"])
@pytest.mark.parametrize(
    ("engine", "rows"),
    [("sglang", "[[1, 16, 4], [17, 64, 2]]"), ("trtllm", "[[1, 16, 4], [17, 64, 2]]")],
)
def test_what_is_written_for_another_engine_is_read_back(engine: str, rows: str, json_flag: str) -> None:
    done = shell(f"{RENDER} --for {engine} {json_flag} 2>/dev/null | profile check - --for {engine} --max-num-seqs 64")

    assert (
        f"is not right for vLLM by itself: drafting and verifying cost otherwise there; write {rows}, and"
        in done.stdout
    )
    assert "error" not in done.stdout and done.returncode == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--for tgi", "--for: 'tgi': give one of sglang, trtllm"),
        ("--for sglang --vllm-version 0.33.0", "--vllm-version: says nothing about another engine"),
    ],
)
def test_what_is_said_of_no_engine_is_refused(words: str, told: str) -> None:
    for command in (f"{RENDER} {words}", f"profile check '[[1,4,2]]' {words}"):
        done = shell(command)
        assert told in done.stderr and (done.returncode, done.stdout) == (2, "")


def test_another_engines_table_is_no_table_for_vllm() -> None:
    code, told, _ = checked('{"4": 4, "8": 2, "32": 1}', "--max-num-seqs=64")

    assert code == 1
    assert told.startswith("error: table: is in a form of TensorRT-LLM, which vLLM does not take; measure a table")
    assert "write [[1, 4, 4], [5, 8, 2], [9, 32, 1], [33, 64, 0]], and measure it for vLLM" in told


# any text

PIECES = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    '"',
    "'",
    "\\",
    " ",
    "\n",
    "method",
    "eagle3",
    "model",
    "num_speculative_tokens",
]
PIECES += [
    "num_speculative_tokens_per_batch_size",
    "draft_len_schedule",
    "candidate_steps",
    "config",
    "arguments",
    "for",
]
PIECES += [
    "speculative_config",
    "measurements",
    "itlMs",
    "map[",
    "1",
    "16",
    "-3",
    "4.5",
    "1e400",
    "null",
    "true",
    "NaN",
]
PIECES += ["--speculative-config ", "-sc ", "1-16:4", "&a", "*a", "|", "{{", "\x1b[2J", "\ud800", "٣", "”", CONFIG]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 20) | st.floats() | st.sampled_from(PIECES),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(PIECES), inner, max_size=4),
    max_leaves=10,
)
TEXTS = (
    st.text(max_size=40)
    | st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
    | JSON.map(json.dumps)
    | JSON.map(str)
    | JSON.map(lambda value: "speculative_config: " + json.dumps(value))
)


@settings(max_examples=300, deadline=None)
@given(
    TEXTS.filter(lambda text: text != "-" and "\0" not in text),
    st.sampled_from([(), ("--for=sglang",), ("--for=trtllm",)]),
)
def test_any_text_ends_with_findings_or_usage(text: str, words: tuple[str, ...]) -> None:
    code, out, err = checked(*words, "--json", "--", text)

    assert "a fault of its own" not in err and "Traceback" not in err
    if code == 2:
        assert out == "" and err.startswith("specserve-profile check: ")
        return
    found: list[dict[str, Any]] = json.loads(out)["findings"]
    assert code == (1 if any(finding["level"] == "error" for finding in found) else 0)
    for finding in found:
        assert finding["message"] and finding["fix"]
        if finding["where"] == "text" and finding["fix"].startswith("write {") and not words:
            assert checked("--", finding["fix"].removeprefix("write "))[0] == 0


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_any_file_ends_with_findings_or_usage(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = _file(tmp_path_factory)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")

    code, out, err = checked(str(path))

    assert code in (0, 1, 2) and bool(out) == (code != 2)
    assert "a fault of its own" not in err
    assert "\x1b" not in out + err


def _file(factory: pytest.TempPathFactory) -> Path:
    return factory.getbasetemp() / "given.txt"
