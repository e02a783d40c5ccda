"""Cells of a grid that both their neighbours contradict: a slip of the pen, or a disturbed measurement. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specserve_profiler.reports.given import GivenGrid

FAR = 1.25
"""A cell this many times above or below both its neighbours is suspect: ITL grows with the batch size and with K."""
MOST = 8
"""Suspects that are told; with more the figures are no grid at all."""

Place = tuple[int, int | None]
"""Batch size and K; None for the baseline."""


def suspects(grid: GivenGrid) -> tuple[str, ...]:
    """What is said of each suspect, the furthest first; a suspect is no neighbour of those that follow.

    Neighbours are those in the batch size and those in K. Where acceptance is not known the figures are ms per token,
    which may well be lowest at a K between two others.
    """
    cells: dict[Place, float] = dict(grid.cells().items())
    cells |= {(size, None): ms for size, ms in grid.baseline().items()}
    found: list[str] = []
    while len(found) < MOST:
        _, size, k, words = max(_contradicted(cells, lowest=grid.acceptance_known), default=(0.0, 0, 0, ""))
        if not words:
            break
        del cells[size, None if k < 0 else k]
        found.append(f"batch size {size}, {'the baseline' if k < 0 else f'K = {k}'}: {words}")
    return tuple(found)


def _contradicted(cells: Mapping[Place, float], *, lowest: bool) -> Iterator[tuple[float, int, int, str]]:
    """(How far, batch size, K or -1, words) of each suspect. ``lowest``: one below both neighbours in K is, too."""
    for key, axis in ((0, "batch size"), (1, "K")):
        lines: dict[int | None, list[tuple[int, Place]]] = {}
        for place in cells:
            at = place[key]
            if at is not None:
                lines.setdefault(place[1 - key], []).append((at, place))
        for line in lines.values():
            line.sort()
            for (low, before), (_, place), (high, after) in zip(line, line[1:], line[2:], strict=False):
                ms, beside = cells[place], (cells[before], cells[after])
                below, above = min(beside) / ms, ms / max(beside)
                far = max(below if lowest or key == 0 else 0.0, above)
                if far > FAR:
                    way = "slower" if far == above else "faster"
                    words = f"{far:.3g} times {way} than at both {axis} {low} and {high}: suspect; measure it again"
                    yield far, place[0], -1 if place[1] is None else place[1], words
