"""Which method, vLLM version and model runner honours a table, and how: knowledge as data. Pure.

A table only helps where fewer drafts cost less. Some engines stop where K changes, some draft Kmax whatever the table
says, some draft Kmax and verify fewer. That is measured honestly, because the measured engine is booted at Kmax
too. ``foresee`` answers from what is known before anything runs, ``confirm`` from what the booted engine tells.

Sources: vLLM's code up to 0.33 and its reports; docs/engine-support.md has the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from specserve_profiler.contract.request import Speculation
from specserve_profiler.contract.steps import Limits
from specserve_profiler.dialect import arguments

Version = tuple[int, int]
Runner = Literal["V1", "V2"]

RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
"""Environment variable of vLLM that chooses the model runner: 0 or 1."""
FIRST_WITH_TABLES: Version = (0, 24)
FIRST_WITH_V2: Version = (0, 27)
"""Where Triton is there, V2 runs by default from here on."""
FIRST_WITH_ADAPTIVE: Version = (0, 29)
_MTP_LAYERS = "num_nextn_predict_layers"


@dataclass(frozen=True)
class Measured:
    """The engine drafts what the table says: measure."""


@dataclass(frozen=True)
class Warned:
    """Measure, and tell the user that a table gains less here than it could."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class Refused:
    """Measuring would be a waste, or break the engine."""

    reason: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.way_out}"


Honour = Measured | Warned | Refused


@dataclass(frozen=True)
class Case:
    """What the answer depends on."""

    method: str
    version: Version | None = None
    """None where it is not known: taken for the newest."""
    runner: Runner | None = None
    """None where it is not known: the answer that costs nobody a boot."""
    parallel: bool = False
    """The drafter makes all its drafts in one pass (P-EAGLE, PARD). Not said of dflash, which always does."""
    modules: int = 1
    """MTP modules that take turns; no other method than mtp uses them."""


@dataclass(frozen=True)
class Rule:
    """One row of the knowledge: where all its fields fit a case, ``answer`` holds."""

    answer: Honour
    methods: frozenset[str] = frozenset()
    """Empty: any."""
    runner: Runner | None = None
    before: Version | None = None
    """Versions below this one."""
    parallel: bool = False
    """True: parallel drafters only."""
    several_modules: bool = False

    def fits(self, case: Case) -> bool:
        """Whether this row speaks about ``case``."""
        return (
            (not self.methods or case.method in self.methods)
            and self.runner in (None, case.runner)
            and (self.before is None or (case.version is not None and case.version < self.before))
            and (case.parallel or not self.parallel)
            and (case.modules > 1 or not self.several_modules)
        )


_TARGET_DEPENDENT = frozenset({"eagle", "eagle3", "mtp"})
_HONOURED = _TARGET_DEPENDENT | {"draft_model", "dflash", "ngram"}
_STOPS = "vLLM stops in the middle of a request as soon as K changes"
_TRUNCATES = (
    "Model Runner V2 drafts Kmax tokens with {method} and then cuts to K: a smaller K saves verification only,"
    " so a table gains less than it could"
)


def _refused(method: str, why: str) -> Rule:
    return Rule(Refused(f"method {method} cannot be used with a table", why), frozenset({method}))


RULES: tuple[Rule, ...] = (
    _refused("ngram_gpu", f"{_STOPS}; use ngram"),
    _refused("suffix", f"{_STOPS}; use ngram"),
    _refused("medusa", _STOPS),
    _refused("mlp_speculator", "K never reaches this drafter"),
    _refused("custom_class", "K never reaches a custom drafter"),
    _refused("extract_hidden_states", "it does not draft"),
    Rule(Refused("vLLM {version} knows no tables", "use 0.24 or newer"), before=FIRST_WITH_TABLES),
    Rule(
        Refused(
            "the drafter makes all its drafts in one pass (P-EAGLE, PARD), and vLLM lays them out for Kmax whatever K"
            " is: with K < Kmax the step fails or its drafts are wrong",
            "use a drafter that drafts one token after the other, or serve with a fixed K and no table",
        ),
        _TARGET_DEPENDENT | {"draft_model"},
        parallel=True,
    ),
    Rule(
        Refused(
            "vLLM {version} drafts Kmax tokens on Model Runner V2 whatever the table says with {method}",
            f"use 0.32 or newer, or set {RUNNER_VARIABLE}=0 in the engine's environment",
        ),
        _TARGET_DEPENDENT,
        runner="V2",
        before=(0, 32),
    ),
    Rule(
        Refused("method dspark does not run on Model Runner V1", "it needs Model Runner V2"),
        frozenset({"dspark"}),
        runner="V1",
    ),
    Rule(Warned(_TRUNCATES), frozenset({"draft_model", "dflash", "ngram", "dspark"}), runner="V2"),
    Rule(
        Warned(_TRUNCATES.replace("{method}", "several MTP modules")),
        frozenset({"mtp"}),
        runner="V2",
        several_modules=True,
    ),
    Rule(Measured(), _HONOURED),
)
"""The first that fits holds."""


def honour(case: Case) -> Honour:
    """How an engine honours a table.

    Where the runner is not known, both are asked and the worse answer holds: its way out says how to be sure.
    """
    if case.runner is None:
        return max((honour(replace(case, runner=runner)) for runner in _runners(case)), key=_severity)
    answer = next((rule.answer for rule in RULES if rule.fits(case)), None)
    if answer is None:
        known = ", ".join(sorted(_HONOURED))
        return Refused(f"how method {case.method} honours a table is not known", f"use one of {known}")
    return _worded(answer, case)


def foresee(
    speculation: Speculation,
    engine_version: str | None = None,
    environment: Mapping[str, str] | None = None,
    drafter: Mapping[str, Any] | None = None,
    target: Mapping[str, Any] | None = None,
) -> Honour:
    """How the engine will honour a table, from what is known before it boots.

    Args:
        engine_version: as the installed package or the image's tag says it, where one does.
        environment: of the engine's process; it may choose the model runner.
        drafter: content of the draft model's ``config.json``, where it can be read.
        target: content of the target's ``config.json``; its MTP modules are counted.
    """
    return honour(
        Case(
            speculation.method,
            version(engine_version),
            _chosen_runner(environment or {}),
            parallel=drafts_in_parallel(speculation.config) or drafts_in_parallel(drafter or {}),
            modules=mtp_modules(target or {}, speculation.max_tokens),
        )
    )


def confirm(speculation: Speculation, limits: Limits, target: Mapping[str, Any] | None = None) -> Honour:
    """How the booted engine honours a table. ``limits`` are those of a boot at Kmax; ``target`` as in ``foresee``."""
    return honour(
        Case(
            speculation.method,
            version(limits.engine_version),
            "V2" if limits.runner == "V2" else "V1",
            parallel=_parallel_by_slots(speculation.method, limits),
            modules=mtp_modules(target or {}, speculation.max_tokens),
        )
    )


def adaptive_allowed(
    engine_version: str | None,
    runner: str | None,
    args: Sequence[str],
    method: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> str | None:
    """Why ``enable_adaptive_verification`` cannot be tried beside ``config``, or None where it can.

    vLLM's own checks (0.32, ``_validate_adaptive_verification``), asked before a boot is spent on them. Attention
    backends have conditions of their own that only the boot tells.
    """
    known = version(engine_version)
    if known is None or known < FIRST_WITH_ADAPTIVE:
        return f"adaptive verification needs vLLM 0.29 or newer, this is {engine_version or 'unknown'}"
    if runner != "V2":
        return f"adaptive verification needs Model Runner V2, this is {runner or 'unknown'}"
    if method == "ngram":
        return "adaptive verification goes by the drafter's confidence, and n-grams have none"
    if (config or {}).get("use_local_argmax_reduction"):
        return "adaptive verification goes by the drafter's logits, which use_local_argmax_reduction does not make"
    if arguments.switched_on(args, "--enable-lora"):
        return "adaptive verification does not work with LoRA (--enable-lora)"
    if any(
        flag.value != "1"
        for flag in arguments.flags(args)
        if arguments.names(flag.name, "--pipeline-parallel-size") or arguments.names(flag.name, "-pp")
    ):
        return "adaptive verification does not work with pipeline parallelism"
    graphs = str(arguments.compilation_config(args).get("cudagraph_mode", "FULL")).upper()
    if arguments.switched_on(args, "--enforce-eager") or graphs in ("NONE", "0", "PIECEWISE", "1"):
        return "adaptive verification needs full graphs: without --enforce-eager, and no other cudagraph_mode"
    return None


def version(text: str | None) -> Version | None:
    """Major and minor of a version as vLLM writes it (``0.32.0``, ``v0.33.0rc1``); None where it is none."""
    found = re.match(r"v?(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else None


def version_of_image(image: str) -> str | None:
    """The version in the tag of an image of vLLM's name (``vllm/vllm-openai:v0.33.0``); None where none is told."""
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    found = re.match(r"v?(\d+\.\d+[^-+]*)", tag)
    return found[1] if found and "vllm" in name else None


def mtp_modules(target: Mapping[str, Any], kmax: int | None) -> int:
    """MTP modules of a target that take turns, by its ``config.json``, as vLLM counts them: at most Kmax, if given."""
    text = target.get("text_config")
    layers = target.get(_MTP_LAYERS, text.get(_MTP_LAYERS) if isinstance(text, Mapping) else None)
    return min(layers, kmax or layers) if isinstance(layers, int) else 1


def drafts_in_parallel(drafter: Mapping[str, Any]) -> bool:
    """Whether the ``config.json`` of a draft model names a parallel drafter (P-EAGLE, PARD)."""
    return (
        bool(drafter.get("parallel_drafting"))
        or drafter.get("speculators_model_type") == "peagle"
        or not drafter.keys().isdisjoint({"pard_token", "ptd_token_id"})
    )


def _chosen_runner(environment: Mapping[str, str]) -> Runner | None:
    chosen = environment.get(RUNNER_VARIABLE)
    return None if chosen is None else "V1" if chosen in ("0", "") else "V2"


def _runners(case: Case) -> tuple[Runner, ...]:
    """The model runners that an engine may choose by itself."""
    if case.method == "dspark":
        return ("V2",)
    return ("V1",) if case.version is not None and case.version < FIRST_WITH_V2 else ("V1", "V2")


def _parallel_by_slots(method: str, limits: Limits) -> bool:
    """Drafters take no slots of their own, ``draft_model`` one, dflash and parallel ones about one for each draft."""
    return method != "dflash" and limits.draft_slots > (1 if method == "draft_model" else 0)


def _severity(answer: Honour) -> int:
    return (Measured, Warned, Refused).index(type(answer))


def _worded(answer: Honour, case: Case) -> Honour:
    told = "?" if case.version is None else f"{case.version[0]}.{case.version[1]}"
    if isinstance(answer, Measured):
        return answer
    return replace(answer, reason=answer.reason.replace("{version}", told).replace("{method}", case.method))
