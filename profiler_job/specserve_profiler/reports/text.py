"""A profile as text for a terminal or ``kubectl logs``, at most 100 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from specserve_profiler.contract.plain import plain
from specserve_profiler.contract.profile import Decision, Interval, Measurements, PartialProfile, Profile, short_table
from specserve_profiler.reports.flags import extra_words
from specserve_profiler.reports.reading import Reading, minute, number, percent

WIDTH = 100
_BESIDE, _COLUMN = 7, 11
"""K beside each other, and the width of each: as many as fit."""
_BARS = " ▁▂▃▄▅▆▇█"


def report(profile: Profile | PartialProfile) -> str:
    """Grid, acceptance, goodput, table, verdict and speedups; of a partial profile what there is, marked as partial."""
    measured = profile.measurements
    decision = profile.decision if isinstance(profile, Profile) else None
    reading = Reading(measured, decision)
    parts = [_heading(profile)]
    if measured.acceptance:
        parts.append(_acceptance(measured))
    if reading.sizes:
        grid = _Grid(reading)
        chosen = ", the table's K in brackets" if decision is not None else ""
        parts += [
            _section("ITL: milliseconds per step, ± 95 % half-width", grid.itl()),
            _section(f"Goodput: tokens/s of the whole engine{chosen}", grid.goodput()),
            _section(
                "Goodput over K: height is the share of the best at that batch size, · is the baseline", grid.picture()
            ),
        ]
        if measured.levels:
            parts.append(_quality(reading))
    if measured.loops:
        parts.append(_loops(measured))
    if decision is not None:
        parts.append(_verdict(decision))
    return "\n\n".join(parts) + "\n"


def _heading(profile: Profile | PartialProfile) -> str:
    measured = profile.measurements
    when = f"measured {minute(profile.measured_at)}"
    lines = []
    if isinstance(profile, PartialProfile):
        lines += [_wrapped(f"PARTIAL profile, {when}: {profile.partial}"), "Serve nothing on its ground."]
    else:
        lines.append(_wrapped(f"Profile {profile.key}, {when}"))
    device = f" on {measured.device}" if measured.device else ""
    context = f"mean context {measured.mean_context_tokens:.0f} tokens"
    lines.append(_wrapped(f"vLLM {measured.engine_version} ({measured.scheduler} scheduler){device}, {context}"))
    request = profile.request
    if request is not None:
        speculation = request.speculation
        drafter = "".join(f" {word}" for word in (speculation.model, *extra_words(speculation.config)) if word)
        lines.append(
            _wrapped(
                f"model {request.model}, {speculation.method}{drafter}, Kmax {speculation.max_tokens}; "
                f"prompts {request.prompts}, {measured.distinct_prompts} distinct; up to "
                f"{request.workload.prompt_tokens} + {request.workload.output_tokens} tokens, "
                f"temperature {request.workload.temperature:g}"
            )
        )
    if measured.seconds:
        times = ", ".join(f"{stage} {seconds:.0f}" for stage, seconds in measured.seconds.items())
        lines.append(_wrapped(f"seconds: {times}"))
    return "\n".join(lines)


def _acceptance(measured: Measurements) -> str:
    lines = []
    for entry in measured.acceptance:
        if entry.k == 0:
            continue
        here = percent(Interval(mean=entry.acceptance_length.mean, half_width=entry.here))
        positions = " ".join(f"{rate:.2f}".lstrip("0") for rate in entry.by_position)
        lines.append(
            _wrapped(
                f"  K = {entry.k}  {entry.acceptance_length.mean:5.2f}  {percent(entry.acceptance_length)} over "
                f"prompts like these, {here} for just these {entry.prompts}"
                + (f"; by position {positions}" if positions else ""),
            )
        )
    spot = measured.spot_check
    if spot is not None:
        lines.append(
            f"  at batch size {spot.batch_size}, K = {spot.k}: {spot.ratio.mean:.3f} times that "
            f"(± {spot.ratio.half_width:.3f})"
        )
    return _section("Acceptance length: tokens per request and verify step", lines)


class _Grid:
    """The cells by batch size and K, rendered in columns of equal width, several K beside each other."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        ks = reading.ks
        self._groups = [ks[start : start + _BESIDE] for start in range(0, len(ks), _BESIDE)] or [[]]

    def itl(self) -> list[str]:
        """ITL of each cell."""
        return self._lines("baseline", lambda size, k: _with_error(self._reading.itl(size, k))) + self._footnotes()

    def goodput(self) -> list[str]:
        """Goodput of each cell."""
        return self._lines("baseline", self._goodput)

    def picture(self) -> list[str]:
        """Goodput of each cell as a bar."""
        return self._lines("", self._bar)

    def _lines(self, base: str, value: Callable[[int, int | None], str]) -> list[str]:
        lines = []
        for ks in self._groups:
            lines.append(self._line("batch", [base, *(f"K={k}" for k in ks)]))
            lines += [self._line(str(size), [value(size, k) for k in (None, *ks)]) for size in self._reading.sizes]
        return lines

    def _goodput(self, size: int, k: int | None) -> str:
        text = number(_mean(self._reading.goodput(size, k)))
        if k is None:
            return text
        return f"[{text}]" if k == self._reading.k_at(size) else f"{text} "

    def _bar(self, size: int, k: int | None) -> str:
        values = [_mean(self._reading.goodput(size, each)) for each in (None, *self._reading.ks)]
        best = max([value for value in values if value is not None], default=1.0)
        height = _height(_mean(self._reading.goodput(size, k)), best)
        if k is None:
            return f"·{height}"
        return f"[{3 * height}]" if k == self._reading.k_at(size) else f"{3 * height} "

    def _line(self, size: str, values: Sequence[str]) -> str:
        return f"{size:>7}" + "".join(f"{value:>{_COLUMN}}" for value in values)

    def _footnotes(self) -> list[str]:
        reasons: dict[str, list[str]] = {}
        for (size, k), cell in sorted(self._reading.cells.items()):
            if cell.skipped is not None:
                reasons.setdefault(cell.skipped, []).append(f"{size}/{k}")
        return [
            _wrapped(f"- not measured at (batch/K) {', '.join(cells)}: {why}", "  ") for why, cells in reasons.items()
        ]


def _quality(reading: Reading) -> str:
    lines = [f"  {'batch':>5} {'cohorts':>8} {'blocks a cell':>14} {'drift':>7} {'steps dropped':>14}  stopped"]
    why = {"Known": "the best K is known", "Budget": "the time was over"}
    for size, level in sorted(reading.levels.items()):
        blocks = [cell.blocks for (at, _), cell in reading.cells.items() if at == size and cell.itl_ms is not None]
        span = f"{min(blocks)}-{max(blocks)}" if blocks else "-"
        lines.append(
            f"  {size:>5} {level.cohorts:>8} {span:>14} {100 * level.half_width:>6.1f}% {level.dropped_steps:>14}"
            f"  {why[level.stopped]}"
        )
    return _section("Quality of the measurement", lines)


def _loops(measured: Measurements) -> str:
    lines = [f"  {'clients':>7} {'tokens/s':>16} {'TTFT p95':>10}"]
    for loop in measured.loops:
        lines.append(_wrapped(f"{loop.arm}{', followed in the boot of another' if loop.live else ''}", "  "))
        if loop.failed is not None:
            lines.append(_wrapped(f"the engine does not serve like this: {loop.failed}", "    "))
        lines += [
            f"  {point.concurrency:>7} {_with_error(point.tokens_per_second):>16} {number(point.ttft_ms):>7} ms"
            for point in loop.points
        ]
    return _section("Verification: a closed loop of held-out prompts, arms in boots of their own", lines)


def _verdict(decision: Decision) -> str:
    lines = [_wrapped(f"Verdict {decision.verdict}: {decision.reason}")]
    lines.append(
        _wrapped(f"Table    {short_table(decision.table)}   (batch sizes:K)   best single K: {decision.static_k}")
    )
    if decision.speedups:
        lines.append("")
        lines.append(f"  {'batch':>5} {'over no speculation':>21} {'over best single K':>20}")
    for speedup in decision.speedups:
        error = f"±{100 * speedup.half_width:.0f}%"
        seen = "verified" if speedup.verified else "predicted"
        lines.append(
            f"  {speedup.batch_size:>5} {speedup.over_baseline:>15.2f}x {error:>4}"
            f" {speedup.over_static:>19.2f}x  {seen}"
        )
    lines += [_wrapped(f"Warning: {warning}", "  ") for warning in decision.warnings]
    return "\n".join(lines)


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *lines])


def _wrapped(text: str, indent: str = "") -> str:
    """Lines of at most ``WIDTH``; a longer word, such as a path, is broken. Names of others stay within them."""
    return textwrap.fill(plain(text, "\n"), WIDTH, initial_indent=indent, subsequent_indent=indent + "    ")


def _mean(interval: Interval | None) -> float | None:
    return None if interval is None else interval.mean


def _with_error(interval: Interval | None) -> str:
    return "-" if interval is None else f"{number(interval.mean)}{percent(interval)}"


def _height(value: float | None, best: float) -> str:
    return " " if value is None else _BARS[max(round(8 * value / best), 1)]
