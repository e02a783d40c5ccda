"""Which engines honour a table, as Markdown: ``python -m specserve_profiler.reports.honours``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from specserve_profiler.dialect.support import RULES, Case, Honour, Measured, Refused, Version, Warned, honour

_BANDS: tuple[tuple[str, Version], ...] = (("0.24 to 0.31", (0, 31)), ("0.32 and newer", (0, 32)))
_VARIATIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    *((method, {}) for method in ("eagle", "eagle3", "mtp")),
    ("mtp", {"modules": 3}),
    *((method, {}) for method in ("draft_model", "dflash", "ngram", "dspark")),
    ("eagle3", {"parallel": True}),
    ("draft_model", {"parallel": True}),
    *(
        (method, {})
        for method in ("ngram_gpu", "suffix", "medusa", "mlp_speculator", "custom_class", "extract_hidden_states")
    ),
)
_LABELS = {"modules": "several modules", "parallel": "parallel drafter"}


def support_table() -> str:
    """The knowledge as Markdown: method by runner and version. docs/engine-support.md has it."""
    columns = [(f"{runner}, {band}", runner, known) for runner in ("V1", "V2") for band, known in _BANDS]
    rows = [["method", *(title for title, _, _ in columns)], ["---"] * (len(columns) + 1)]
    for method, more in _VARIATIONS:
        label = " ".join([f"`{method}`", *(f"({_LABELS[field]})" for field in more)])
        answers = [honour(Case(method, known, runner, **more)) for _, runner, known in columns]  # type: ignore[arg-type]
        rows.append([label, *(_short(answer) for answer in answers)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n" + "".join(_reasons())


def _short(answer: Honour) -> str:
    return {Measured: "measured", Warned: "measured, with a warning", Refused: "refused"}[type(answer)]


def _reasons() -> Iterator[str]:
    """Every warning and refusal in full, once."""
    told: dict[str, None] = {}
    for rule in RULES:
        if not isinstance(rule.answer, Measured):
            told[str(rule.answer).replace("{version}", "0.x").replace("{method}", "this method")] = None
    return (f"- {reason}.\n" for reason in told)


if __name__ == "__main__":
    sys.stdout.write(support_table())
