"""A profile as text for a terminal, at most 100 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from specserve_profiler.contract import BaselineCell, Cell, Decision, Interval, Measurements, Profile, short_table

WIDTH = 100
_BARS = " ▁▂▃▄▅▆▇█"


def report(profile: Profile) -> str:
    """The measured grid, acceptance, goodput, table, verdict and predicted speedups."""
    measured, decision = profile.measurements, profile.decision
    grid = _Grid(measured, decision)
    parts = [
        _heading(profile),
        _acceptance(measured),
        _section("ITL: milliseconds per step, ± 95 % half-width", grid.itl()),
        _section("Goodput: tokens/s of the whole engine, the table's K in brackets", grid.goodput()),
        _section(
            "Goodput over K: height is the share of the best at that batch size, · is the baseline", grid.picture()
        ),
        _verdict(decision),
    ]
    return "\n\n".join(parts) + "\n"


def _heading(profile: Profile) -> str:
    measured = profile.measurements
    context = f"mean context {measured.mean_context_tokens:.0f} tokens"
    lines = [
        f"Profile {profile.key}, measured {profile.measured_at:%Y-%m-%d %H:%M} UTC",
        f"vLLM {measured.engine_version} ({measured.scheduler} scheduler), {context}",
    ]
    if measured.seconds:
        times = ", ".join(f"{stage} {seconds:.0f}" for stage, seconds in measured.seconds.items())
        lines.append(_wrapped(f"seconds: {times}"))
    return "\n".join(lines)


def _acceptance(measured: Measurements) -> str:
    lines = [
        f"  K = {entry.k}  {entry.acceptance_length.mean:5.2f}  ±{_percent(entry.acceptance_length)}"
        f"  {entry.prompts:4d} generations"
        for entry in measured.acceptance
        if entry.k > 0
    ]
    return _section("Acceptance length: tokens per request and verify step", lines)


class _Grid:
    """The cells by batch size and K, rendered in columns of equal width."""

    def __init__(self, measured: Measurements, decision: Decision) -> None:
        self._cells = {(cell.batch_size, cell.k): cell for cell in measured.grid}
        self._al = {entry.k: entry.acceptance_length.mean for entry in measured.acceptance}
        self._baseline = {cell.batch_size: cell for cell in measured.baseline}
        self._sizes = sorted({size for size, _ in self._cells})
        self._ks = sorted({k for _, k in self._cells})
        self._rows = decision.table
        self._column = 9 if len(self._ks) > 7 else 11

    def itl(self) -> list[str]:
        lines = [self._line("batch", ["baseline", *(f"K={k}" for k in self._ks)])]
        for size in self._sizes:
            cells = [_with_error(cell.itl_ms) if (cell := self._cells.get((size, k))) else "-" for k in self._ks]
            lines.append(self._line(str(size), [_with_error(_itl(self._baseline.get(size))), *cells]))
        return lines + self._footnotes()

    def goodput(self) -> list[str]:
        lines = [self._line("batch", ["baseline", *(f"K={k}" for k in self._ks)])]
        for size in self._sizes:
            base = self._goodput(size, None)
            values = [_number(base)]
            for k in self._ks:
                text = _number(self._goodput(size, k))
                values.append(f"[{text}]" if k == self._chosen(size) else f"{text} ")
            lines.append(self._line(str(size), values))
        return lines

    def picture(self) -> list[str]:
        lines = [self._line("batch", ["", *(f"K={k}" for k in self._ks)])]
        for size in self._sizes:
            goodputs = {k: self._goodput(size, k) for k in self._ks}
            base = self._goodput(size, None)
            best = max(value for value in [*goodputs.values(), base, 1e-9] if value is not None)
            bars = [_bar(goodputs[k], best, chosen=k == self._chosen(size)) for k in self._ks]
            lines.append(self._line(str(size), [f"·{_height(base, best)}", *bars]))
        return lines

    def _goodput(self, size: int, k: int | None) -> float | None:
        """Tokens per second of all requests together; K None is the baseline."""
        interval = _itl(self._baseline.get(size) if k is None else self._cells.get((size, k)))
        if interval is None:
            return None
        return 1000 * size * (1.0 if k is None else self._al[k]) / interval.mean

    def _chosen(self, size: int) -> int | None:
        return next((row.k for row in self._rows if row.first <= size <= row.last), None)

    def _line(self, size: str, values: Sequence[str]) -> str:
        return f"{size:>7}" + "".join(f"{value:>{self._column}}" for value in values)

    def _footnotes(self) -> list[str]:
        reasons: dict[str, list[str]] = {}
        for (size, k), cell in sorted(self._cells.items()):
            if cell.skipped is not None:
                reasons.setdefault(cell.skipped, []).append(f"{size}/{k}")
        return [
            _wrapped(f"- not measured at (batch/K) {', '.join(cells)}: {why}", "  ") for why, cells in reasons.items()
        ]


def _verdict(decision: Decision) -> str:
    lines = [_wrapped(f"Verdict {decision.verdict}: {decision.reason}")]
    lines.append(f"Table    {short_table(decision.table)}   (batch sizes:K)   best single K: {decision.static_k}")
    if decision.speedups:
        lines.append("")
        lines.append(f"  {'batch':>5} {'over no speculation':>21} {'over best single K':>20}")
    for speedup in decision.speedups:
        bar = "█" * min(round(20 * (speedup.over_baseline - 1)), 48) if speedup.over_baseline > 1 else ""
        lines.append(
            f"  {speedup.batch_size:>5} {speedup.over_baseline:>20.2f}x {speedup.over_static:>19.2f}x  {bar}".rstrip()
        )
    lines += [_wrapped(f"Warning: {warning}", "  ") for warning in decision.warnings]
    return "\n".join(lines)


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *lines])


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")


def _itl(cell: Cell | BaselineCell | None) -> Interval | None:
    return None if cell is None else cell.itl_ms


def _percent(interval: Interval) -> str:
    return f"{100 * interval.half_width / interval.mean:.0f}%"


def _with_error(interval: Interval | None) -> str:
    return "-" if interval is None else f"{_number(interval.mean)}±{_percent(interval)}"


def _number(value: float | None) -> str:
    """Three digits or more, without an exponent."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _height(value: float | None, best: float) -> str:
    return " " if value is None else _BARS[max(round(8 * value / best), 1)]


def _bar(value: float | None, best: float, *, chosen: bool) -> str:
    bar = 3 * _height(value, best)
    return f"[{bar}]" if chosen else f"{bar} "
