"""Throughput of every arm against client concurrency, as an SVG that reads on a white page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.serving_report import Curve, ratio

_GREYS = "#5b5b5b"
_TABLE = "#d55e00"
_MARKERS = "os^Dvph*"
"""Arms differ in marker as well as in colour."""
_LARGEST_K = 6
"""K from which on colours are all the same: still dark enough to be seen on white."""


def draw(found: Sequence[Curve], path: Path) -> None:
    """Writes the picture: tokens per second, and the same over no speculation, with 95 % intervals."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib import ticker

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "specserve", "font.size": 10})
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    base = next(curve for curve in found if curve.arm.kind == "None")
    offsets = _offsets(len(found))
    for curve, offset in zip(found, offsets, strict=True):
        rates = curve.tokens_per_second
        over = {c: ratio(rate, base.tokens_per_second[c]) for c, rate in rates.items()}
        where = [c * offset for c in rates]
        for axes, values in ((left, rates), (right, over)):
            if axes is right and curve is base:
                axes.axhline(1, **{name: _style(curve)[name] for name in ("color", "linestyle", "linewidth")})
                continue
            axes.errorbar(
                where,
                [value.mean for value in values.values()],
                yerr=[value.half_width for value in values.values()],
                capsize=2,
                **_style(curve),
            )
    left.set(ylabel="tokens per second", yscale="log")
    left.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter(ticker.ScalarFormatter())
    left.yaxis.set_minor_formatter(ticker.NullFormatter())
    right.set(ylabel="over no speculation")
    for axes in (left, right):
        _dress(axes, sorted(base.tokens_per_second))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _offsets(count: int) -> list[float]:
    """Factors that keep error bars of several arms from lying on one another."""
    return [1.02 ** (index - (count - 1) / 2) for index in range(count)]


def _style(curve: Curve) -> dict[str, Any]:
    import matplotlib as mpl

    arm = curve.arm
    common = {"label": str(arm), "linewidth": 1.2, "markersize": 4, "linestyle": "-"}
    if arm.kind == "None":
        return {**common, "color": _GREYS, "linestyle": "--", "marker": "."}
    if arm.kind == "Static":
        k = arm.k or 0
        return {
            **common,
            "color": mpl.colormaps["viridis"](min(k - 1, _LARGEST_K) / _LARGEST_K),
            "marker": _MARKERS[k % len(_MARKERS)],
        }
    return {**common, "color": _TABLE, "marker": "X", "linewidth": 2.4, "markersize": 6, "zorder": 5}


def _dress(axes: Any, concurrencies: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(concurrencies, [str(c) for c in concurrencies])
    axes.set_xlabel("client concurrency")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
