"""Which engines honour a table: refused before a boot is spent, warned about, or measured."""

from pathlib import Path
from typing import Any

import pytest

from specserve_profiler.contract.request import Speculation
from specserve_profiler.contract.steps import Limits
from specserve_profiler.dialect.support import (
    Case,
    Honour,
    Measured,
    Refused,
    Warned,
    adaptive_allowed,
    confirm,
    drafts_in_parallel,
    foresee,
    honour,
    version_of_image,
)
from specserve_profiler.reports.honours import support_table

DOC = Path(__file__).parents[4] / "docs" / "engine-support.md"


def speculation(method: str, kmax: int = 5) -> Speculation:
    model = None if method in ("mtp", "ngram") else "org/draft"
    return Speculation(method=method, model=model, max_tokens=kmax)  # type: ignore[arg-type]


def limits(runner: str, slots: int, version: str = "0.32.0", kmax: int = 5) -> Limits:
    return Limits(version, "async", 32, 1024, 8192, 8192, 65536, slots, kmax, runner=runner)


def is_(answer: Honour, kind: type, words: str = "") -> None:
    assert type(answer) is kind, answer
    assert words in str(answer)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("ngram_gpu", "in the middle of a request"),
        ("suffix", "in the middle of a request"),
        ("medusa", "in the middle of a request"),
        ("mlp_speculator", "K never reaches"),
        ("custom_class", "K never reaches"),
        ("extract_hidden_states", "does not draft"),
        ("telepathy", "use one of dflash, draft_model, eagle, eagle3, mtp, ngram"),
    ],
)
@pytest.mark.parametrize("runner", ["V1", "V2", None])
def test_methods_that_a_table_breaks_or_never_reaches_are_refused_everywhere(
    method: str, words: str, runner: Any
) -> None:
    is_(honour(Case(method, (0, 33), runner)), Refused, words)


def test_no_engine_before_0_24_knows_tables() -> None:
    is_(honour(Case("draft_model", (0, 23), "V1")), Refused, "vLLM 0.23 knows no tables: use 0.24 or newer")
    is_(honour(Case("draft_model", (0, 24), "V1")), Measured)


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp"])
def test_runner_v2_ignored_the_table_of_these_up_to_0_31(method: str) -> None:
    """Reported as 51510 and 57053."""
    for minor in (27, 29, 31):
        is_(honour(Case(method, (0, minor), "V2")), Refused, f"vLLM 0.{minor} drafts Kmax tokens on Model Runner V2")
        is_(honour(Case(method, (0, minor), "V1")), Measured)
        is_(honour(Case(method, (0, minor), None)), Refused, "set VLLM_USE_V2_MODEL_RUNNER=0")
    is_(honour(Case(method, (0, 26), None)), Measured)
    is_(honour(Case(method, (0, 32), "V2")), Measured)


@pytest.mark.parametrize("method", ["draft_model", "dflash", "ngram"])
def test_what_v2_drafts_at_kmax_and_truncates_is_measured_with_a_warning(method: str) -> None:
    is_(honour(Case(method, (0, 33), "V2")), Warned, f"drafts Kmax tokens with {method} and then cuts to K")
    is_(honour(Case(method, (0, 33), "V1")), Measured)


def test_dspark_needs_v2() -> None:
    is_(honour(Case("dspark", (0, 33), "V1")), Refused, "it needs Model Runner V2")
    is_(honour(Case("dspark", (0, 33), None)), Warned, "cuts to K")


def test_several_mtp_modules_are_truncated_on_v2_only() -> None:
    target = {"num_nextn_predict_layers": 3}
    is_(foresee(speculation("mtp"), "0.33.0", target=target), Warned, "several MTP modules")
    is_(foresee(speculation("mtp", kmax=1), "0.33.0", target=target), Measured)
    is_(foresee(speculation("eagle3"), "0.33.0", target=target), Measured)
    is_(foresee(speculation("mtp"), "0.33.0", {"VLLM_USE_V2_MODEL_RUNNER": "0"}, target=target), Measured)


def test_the_booted_engine_is_warned_about_with_the_modules_of_its_target() -> None:
    for target in ({"num_nextn_predict_layers": 3}, {"text_config": {"num_nextn_predict_layers": 2}}):
        is_(confirm(speculation("mtp"), limits("V2", 0), target), Warned, "drafts Kmax tokens with several MTP modules")
        is_(confirm(speculation("mtp"), limits("V1", 0), target), Measured)
        is_(confirm(speculation("mtp", kmax=1), limits("V2", 0, kmax=1), target), Measured)
    is_(confirm(speculation("mtp"), limits("V2", 0), {"num_nextn_predict_layers": 1}), Measured)
    is_(confirm(speculation("mtp"), limits("V2", 0)), Measured)


@pytest.mark.parametrize(
    "config",
    [
        {"speculators_model_type": "peagle"},
        {"model_type": "llama", "pard_token": 128256},
        {"ptd_token_id": 151669},
        {"parallel_drafting": True},
    ],
)
def test_a_parallel_drafter_is_refused_by_its_config_before_it_boots(config: dict[str, Any]) -> None:
    """vLLM lays out Kmax slots and reads K of them: PR 45695."""
    assert drafts_in_parallel(config)
    is_(foresee(speculation("eagle3"), "0.33.0", drafter=config), Refused, "in one pass")
    is_(foresee(speculation("draft_model"), drafter=config), Refused, "fixed K and no table")


def test_an_ordinary_drafter_is_not_taken_for_a_parallel_one() -> None:
    config = {"architectures": ["LlamaForCausalLM"], "parallel_drafting": False, "speculators_model_type": "eagle3"}
    assert not drafts_in_parallel(config)
    is_(foresee(speculation("eagle3"), "0.33.0", drafter=config), Measured)


@pytest.mark.parametrize(
    ("method", "slots", "kind"),
    [
        ("eagle3", 0, Measured),
        ("eagle3", 4, Refused),  # P-EAGLE: Kmax - 1
        ("mtp", 0, Measured),
        ("draft_model", 1, Measured),
        ("draft_model", 5, Refused),  # PARD: Kmax
        ("dflash", 5, Measured),
        ("ngram", 0, Measured),
    ],
)
def test_the_booted_engines_slots_tell_a_parallel_drafter(method: str, slots: int, kind: type) -> None:
    is_(confirm(speculation(method), limits("V1", slots)), kind)


def test_a_parallel_drafter_of_two_drafts_is_told_too() -> None:
    is_(confirm(speculation("eagle3", kmax=2), limits("V1", 1, kmax=2)), Refused, "in one pass")
    is_(confirm(speculation("draft_model", kmax=2), limits("V1", 1, kmax=2)), Measured)
    is_(confirm(speculation("draft_model", kmax=2), limits("V1", 2, kmax=2)), Refused, "in one pass")


def test_the_boot_settles_what_was_not_known_before() -> None:
    is_(confirm(speculation("draft_model"), limits("V2", 1)), Warned, "saves verification only")
    is_(confirm(speculation("eagle3"), limits("V2", 0, "0.31.2")), Refused, "use 0.32 or newer")
    is_(confirm(speculation("eagle3"), limits("V1", 0, "0.31.2")), Measured)
    is_(confirm(speculation("eagle3"), limits("V1", 0, "0.23.0")), Refused, "knows no tables")
    is_(confirm(speculation("draft_model", kmax=1), limits("V1", 1, kmax=1)), Measured)


def test_an_unknown_version_is_taken_for_the_newest() -> None:
    is_(foresee(speculation("eagle3"), "dev"), Measured)
    is_(foresee(speculation("eagle3"), None), Measured)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("vllm/vllm-openai:v0.33.0", "0.33.0"),
        ("registry:5000/mirror/vllm-openai:v0.31.1-cu129@sha256:00", "0.31.1"),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai@sha256:0123", None),
        ("registry:5000/team/engine:0.3", None),  # of whom nobody knows what it counts
        ("vllm", None),
    ],
)
def test_an_image_of_vllms_name_tells_its_version(image: str, expected: str | None) -> None:
    assert version_of_image(image) == expected


@pytest.mark.parametrize(
    ("version", "runner", "args", "words"),
    [
        ("0.32.0", "V2", [], None),
        ("0.29.0", "V2", ["--no-enable-lora", "-pp", "1", "--no-enforce-eager"], None),
        ("0.28.1", "V2", [], "0.29 or newer, this is 0.28.1"),
        (None, "V2", [], "0.29 or newer, this is unknown"),
        ("0.32.0", "V1", [], "needs Model Runner V2, this is V1"),
        ("0.32.0", "V2", ["--enable_lora"], "LoRA"),
        ("0.32.0", "V2", ["--pipeline-parallel-size=2"], "pipeline"),
        ("0.32.0", "V2", ["-pp", "2"], "pipeline"),
        ("0.32.0", "V2", ["--enforce-eager"], "full graphs"),
        ("0.32.0", "V2", ["--enforce-eag"], "full graphs"),
        ("0.32.0", "V2", ['--compilation-config={"cudagraph_mode": "PIECEWISE"}'], "full graphs"),
        ("0.32.0", "V2", ["-cc.cudagraph_mode=none"], "full graphs"),
        ("0.32.0", "V2", ["-cc.cudagraph_mode=FULL_DECODE_ONLY"], None),
    ],
)
def test_adaptive_verification_is_gated_as_vllm_gates_it(
    version: str | None, runner: str, args: list[str], words: str | None
) -> None:
    why = adaptive_allowed(version, runner, args)
    assert why is None if words is None else why is not None and words in why


def test_ngram_has_no_confidence_to_adapt_to() -> None:
    assert "n-grams have none" in str(adaptive_allowed("0.33.0", "V2", [], "ngram"))
    assert adaptive_allowed("0.33.0", "V2", [], "eagle3") is None


def test_what_makes_no_logits_has_no_confidence_either() -> None:
    config = {"use_local_argmax_reduction": True}
    assert "use_local_argmax_reduction" in str(adaptive_allowed("0.33.0", "V2", [], "eagle3", config))
    assert adaptive_allowed("0.33.0", "V2", [], "eagle3", {"use_local_argmax_reduction": False}) is None


def test_the_docs_show_the_table_as_the_code_has_it() -> None:
    """`python -m specserve_profiler.reports.honours` prints it."""
    begin, end = "<!-- python -m specserve_profiler.reports.honours -->\n", "<!-- end -->"
    assert DOC.read_text().split(begin)[1].split(end)[0] == support_table()
