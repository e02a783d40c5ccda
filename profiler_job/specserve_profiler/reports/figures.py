"""The pictures of a profile, drawn by matplotlib. Colours are fit for the colour-blind, and never the only sign."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from specserve_profiler.contract.profile import ArmLoop, Interval, PartialProfile, Profile, Row, Speedup
from specserve_profiler.reports.reading import Reading, band, bars, number

T = TypeVar("T")

INK, FAINT, PAPER = "#1b1f24", "#8c959f", "#fffffe"
PALETTE = ("#7a7a7a", "#0072b2", "#d55e00", "#009e73", "#b8568f", "#b07d00", "#3a9bd9", "#6b4fa0", "#7f3b08")
"""By K; after Okabe and Ito, darkened where they would be pale on white. HTML gives each a lighter twin on black."""
_MARKS = "osD^vP*Xh"
_SIZE = (5.4, 3.7)
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "specserve",
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True)
class Picture:
    """A figure with what it says, in words for those who do not see it."""

    name: str
    """Fit for a file name."""
    title: str
    alt: str
    figure: Figure

    def svg(self, prefix: str) -> str:
        """As an ``svg`` element for HTML: no address in it, colours as variables, ids that begin with ``prefix``."""
        buffer = io.StringIO()
        with mpl.rc_context(_STYLE):
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            self.figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
        return _inline(buffer.getvalue(), f"{prefix}-{self.name}")

    def png(self) -> bytes:
        """As a PNG on white."""
        buffer = io.BytesIO()
        with mpl.rc_context(_STYLE):
            self.figure.savefig(buffer, format="png", dpi=160, facecolor="white")
        return buffer.getvalue()


def pictures(profile: Profile | PartialProfile) -> list[Picture]:
    """Every picture that the measurements are enough for."""
    decision = profile.decision if isinstance(profile, Profile) else None
    reading = Reading(profile.measurements, decision)
    with mpl.rc_context(_STYLE):
        return [picture for draw in _DRAWN if (picture := draw(reading)) is not None]


def colour(k: int) -> str:
    """The colour of K."""
    return PALETTE[k % len(PALETTE)]


def _table(reading: Reading) -> Picture | None:
    rows = reading.rows()
    if not rows:
        return None
    figure, axes = _axes((5.4, 1.7))
    last = rows[-1].last
    for row in rows:
        left, right = row.first - 0.5, row.last + 0.5
        axes.barh(0, right - left, left=left, height=1, color=colour(row.k), edgecolor=PAPER, linewidth=1)
        if _wide(row, last):
            middle = (left * right) ** 0.5
            axes.text(middle, 0, f"K={row.k}", ha="center", va="center", color=PAPER, fontweight="bold")
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.5, last + 0.5)
    _plain_ticks(axes, [row.first for row in rows] + [last])
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)
    axes.set_xlabel("batch size")
    words = "; ".join(f"batch sizes {row.first} to {row.last}: K = {row.k}" for row in rows)
    return Picture("table", "The table: K by batch size", words + ".", figure)


def _goodput(reading: Reading) -> Picture | None:
    figure = _curves(reading, _per_request(reading), "tokens/s of one request")
    if figure is None:
        return None
    best = []
    for size in _ends(reading.sizes):
        found = [(value.mean, k) for k in reading.ks if (value := reading.goodput(size, k)) is not None]
        base = reading.goodput(size, None)
        if found:
            most, k = max(found)
            against = f" (baseline {number(base.mean)})" if base is not None else ""
            best.append(
                f"at batch size {size} the best is K = {k} with {number(most)} tokens/s of the whole engine{against}"
            )
    return Picture(
        "goodput", "Goodput per request", "Goodput against batch size, a line per K: " + "; ".join(best) + ".", figure
    )


def _per_request(reading: Reading) -> Callable[[int, int | None], Interval | None]:
    """Goodput over the batch size: what differs between K is seen, which the whole engine's rise would hide."""

    def value(size: int, k: int | None) -> Interval | None:
        whole = reading.goodput(size, k)
        return None if whole is None else _shared(whole, size)

    return value


def _shared(whole: Interval, among: int) -> Interval:
    return Interval(mean=whole.mean / among, half_width=whole.half_width / among)


def _itl(reading: Reading) -> Picture | None:
    figure = _curves(reading, reading.itl, "ITL, ms per step")
    if figure is None:
        return None
    parts = []
    for k in _ends(reading.ks):
        values = [value.mean for size in reading.sizes if (value := reading.itl(size, k)) is not None]
        if values:
            parts.append(f"K = {k} from {number(values[0])} to {number(values[-1])} ms")
    alt = f"Milliseconds per step against batch size, a line per K: {'; '.join(parts)}."
    return Picture("itl", "Inter-token latency (one step)", alt, figure)


def _curves(reading: Reading, value: Callable[[int, int | None], Interval | None], label: str) -> Figure | None:
    if not any(value(size, k) for size in reading.sizes for k in (None, *reading.ks)):
        return None
    figure, axes = _axes()
    for k in (None, *reading.ks):
        points = [(size, found) for size in reading.sizes if (found := value(size, k)) is not None]
        if points:
            _curve(axes, points, k)
    _size_axis(axes, reading.sizes)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(label)
    columns = 4 if len(reading.ks) > 3 else len(reading.ks) + 1
    figure.legend(loc="outside lower center", ncols=columns, fontsize=9.5, handlelength=1.6, columnspacing=1.2)
    return figure


def _curve(axes: Axes, points: Sequence[tuple[int, Interval]], k: int | None) -> None:
    sizes = [size for size, _ in points]
    low, high = zip(*(band(found) for _, found in points), strict=True)
    ink = INK if k is None else colour(k)
    axes.fill_between(sizes, low, high, color=ink, alpha=0.18, linewidth=0)
    axes.plot(
        sizes,
        [found.mean for _, found in points],
        color=ink,
        linestyle="--" if k is None else "-" if k < len(PALETTE) else "-.",
        marker="" if k is None else _MARKS[k % len(_MARKS)],
        markersize=4,
        linewidth=1.6,
        label="baseline" if k is None else f"K={k}",
    )


def _acceptance(reading: Reading) -> Picture | None:
    entries = [entry for entry in reading.measured.acceptance if entry.by_position]
    if not entries:
        return None
    figure, axes = _axes()
    for entry in entries:
        positions = range(1, len(entry.by_position) + 1)
        mark = _MARKS[entry.k % len(_MARKS)]
        axes.plot(positions, entry.by_position, color=colour(entry.k), marker=mark, label=f"K={entry.k}", markersize=5)
    most = max(len(entry.by_position) for entry in entries)
    axes.set_xticks(range(1, most + 1))
    axes.set_ylim(0, 1)
    axes.set_xlabel("draft position")
    axes.set_ylabel("share of drafts accepted up to here")
    figure.legend(loc="outside lower center", ncols=min(len(entries), 5), fontsize=9.5, handlelength=1.6)
    longest = max(entries, key=lambda entry: entry.k)
    rates = ", ".join(f"{rate:.2f}" for rate in longest.by_position)
    alt = f"Acceptance rate by draft position, a line per K. K = {longest.k}: {rates}."
    return Picture("acceptance", "Acceptance by draft position", alt, figure)


def _lengths(reading: Reading) -> Picture | None:
    entries = reading.measured.acceptance
    if len(entries) < 2:
        return None
    figure, axes = _axes()
    for entry in entries:
        length = entry.acceptance_length
        look: dict[str, Any] = {
            "color": colour(entry.k),
            "marker": _MARKS[entry.k % len(_MARKS)],
            "markersize": 6,
            "capsize": 4,
        }
        axes.errorbar([entry.k], [length.mean], yerr=bars([length]), **look)
    axes.plot([e.k for e in entries], [e.acceptance_length.mean for e in entries], color=FAINT, linewidth=1, zorder=0)
    axes.set_xticks([entry.k for entry in entries])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("K")
    axes.set_ylabel("tokens per request and step")
    alt = "; ".join(
        f"K = {e.k}: {e.acceptance_length.mean:.2f} ± {e.acceptance_length.half_width:.2f}" for e in entries
    )
    return Picture("acceptance-length", "Acceptance length", f"Acceptance length by K. {alt}.", figure)


def _over_baseline(reading: Reading) -> Picture | None:
    seen = {
        s.batch_size: Interval(mean=s.over_baseline, half_width=s.over_baseline * s.half_width)
        for s in _verified(reading)
    }
    return _speedup(reading, "speedup-baseline", "Speedup over no speculation", reading.over_baseline, seen)


def _over_static(reading: Reading) -> Picture | None:
    k = reading.decision.static_k if reading.decision is not None else 0
    seen = {s.batch_size: Interval(mean=s.over_static) for s in _verified(reading)}
    title = f"Speedup over the best single K ({k})"
    return _speedup(reading, "speedup-static", title, reading.over_static, seen)


def _verified(reading: Reading) -> Iterator[Speedup]:
    return (s for s in (reading.decision.speedups if reading.decision is not None else ()) if s.verified)


def _speedup(
    reading: Reading,
    name: str,
    title: str,
    predict: Callable[[int], Interval | None],
    seen: dict[int, Interval],
) -> Picture | None:
    predicted = [(size, found) for size in reading.sizes if (found := predict(size)) is not None]
    if not predicted:
        return None
    figure, axes = _axes()
    sizes = [size for size, _ in predicted]
    means = [found.mean for _, found in predicted]
    low, high = zip(*(band(found) for _, found in predicted), strict=True)
    axes.axhline(1, color=INK, linewidth=1, linestyle="--")
    axes.fill_between(sizes, low, high, color=PALETTE[1], alpha=0.18, linewidth=0)
    axes.plot(sizes, means, color=PALETTE[1], marker="o", markersize=4, label="predicted from the grid")
    if seen:
        axes.errorbar(
            list(seen),
            [found.mean for found in seen.values()],
            yerr=bars(list(seen.values())),
            color=PALETTE[2],
            linestyle="none",
            marker="D",
            markersize=6,
            capsize=4,
            label="verified in the closed loop",
        )
    _size_axis(axes, sorted({*sizes, *seen}))
    axes.set_ylabel("times")
    figure.legend(loc="outside lower center", ncols=2, fontsize=9.5)
    words = [f"predicted {found.mean:.2f} at batch size {size}" for size, found in _ends(predicted)]
    words += [f"verified {found.mean:.2f} at {size}" for size, found in seen.items()]
    return Picture(name, title, f"{title} against batch size: {'; '.join(words)}.", figure)


def _loops(reading: Reading) -> Picture | None:
    """Arms as they would be served; of tables that were followed in the boot of another only the decided one."""
    booted = {loop.arm for loop in reading.measured.loops if not loop.live}
    loops = [
        loop
        for loop in reading.measured.loops
        if loop.points and (not loop.live or (loop.arm.rows == reading.rows() and loop.arm not in booted))
    ]
    if not loops:
        return None
    figure, axes = _axes()
    for index, loop in enumerate(loops):
        clients = [point.concurrency for point in loop.points]
        of_a_client = [_shared(point.tokens_per_second, point.concurrency) for point in loop.points]
        axes.errorbar(
            clients,
            [found.mean for found in of_a_client],
            yerr=bars(of_a_client),
            color=_arm_colour(loop, index, reading),
            linestyle="--" if loop.arm.kind == "None" else "-",
            marker=_MARKS[index % len(_MARKS)],
            markersize=5,
            capsize=3,
            label=_arm_name(loop, reading),
        )
    _size_axis(axes, sorted({point.concurrency for loop in loops for point in loop.points}))
    axes.set_xlabel("clients")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("tokens/s of one client, prefills included")
    figure.legend(loc="outside lower center", ncols=3, fontsize=9.5)
    words = []
    for loop in loops:
        points = ", ".join(f"{number(p.tokens_per_second.mean)} with {p.concurrency} clients" for p in loop.points)
        words.append(f"{loop.arm}: {points}")
    return Picture("loops", "Verification in a closed loop", "Tokens per second. " + "; ".join(words) + ".", figure)


def _arm_name(loop: ArmLoop, reading: Reading) -> str:
    if loop.arm.kind != "Table":
        return str(loop.arm)
    return "table" if loop.arm.rows == reading.rows() or not reading.rows() else "table that was tried"


def _arm_colour(loop: ArmLoop, index: int, reading: Reading) -> str:
    fixed = {"no speculation": INK, "table": PALETTE[1]}
    return fixed.get(_arm_name(loop, reading), PALETTE[2 + index % (len(PALETTE) - 2)])


_DRAWN = (_table, _goodput, _over_baseline, _over_static, _itl, _lengths, _acceptance, _loops)


def _axes(size: tuple[float, float] = _SIZE) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size)
    return figure, figure.subplots()


def _size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    _plain_ticks(axes, sizes)
    axes.set_xlabel("batch size")


def _plain_ticks(axes: Axes, values: Sequence[int]) -> None:
    """Ticks at these values, fewer where their numbers would touch on the logarithmic axis."""
    shown: list[int] = []
    span = max(values) / min(values)
    for value in sorted(set(values)):
        if not shown or (value / shown[-1]) > max(span ** (1 / 14), 1.2):
            shown.append(value)
    axes.xaxis.set_major_locator(FixedLocator([float(value) for value in shown]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def _wide(row: Row, last: int) -> bool:
    """Whether a band has room for its name, as a share of the logarithmic axis."""
    return math.log((row.last + 0.5) / (row.first - 0.5)) / math.log((last + 0.5) / 0.5) > 0.08


def _ends(values: Sequence[T]) -> list[T]:
    return list(values) if len(values) < 2 else [values[0], values[-1]]


def _inline(svg: str, prefix: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = (
        re.sub(r'\s(xmlns(:\w+)?|width|height|version)="[^"]*"', "", svg.split(">", 1)[0]) + ">" + svg.split(">", 1)[1]
    )
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'(\bid="|href="#|url\(#)', lambda found: f"{found[1]}{prefix}-", svg)
    for name, value in {
        "--ink": INK,
        "--faint": FAINT,
        "--paper": PAPER,
        **{f"--k{n}": c for n, c in enumerate(PALETTE)},
    }.items():
        svg = svg.replace(value, f"var({name})")
    return svg.replace("<svg", '<svg aria-hidden="true"', 1).strip()
