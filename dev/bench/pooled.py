"""Several profiles of one engine as one long measurement. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from specserve_profiler.contract.profile import Acceptance, BaselineCell, Cell, Interval, Measurements, Profile


def pooled(profiles: Sequence[Profile]) -> Measurements:
    """The measurements of all ``profiles`` together: geometric means, weighted by the blocks of profile and batch size.

    All K of a batch size get the same weights, so what a profile has in common to all of them (other load, drift)
    cancels between K. Cells that are missing in one profile are left out for the same reason. Of the intervals only
    counts are kept: what is pooled here is looked at as it is. Raises ValueError where no cell is in all of them.
    """
    measured = [profile.measurements for profile in profiles]
    grids = [{(cell.batch_size, cell.k): cell for cell in m.grid if cell.itl_ms is not None} for m in measured]
    common = sorted(set.intersection(*(set(grid) for grid in grids))) if grids else []
    if not common:
        raise ValueError("no (batch size, K) cell was measured in every profile")
    weights = [_blocks_by_size(grid.values()) for grid in grids]
    grid = tuple(
        Cell(
            batch_size=size,
            k=k,
            itl_ms=_geometric((_itl(grid[size, k]) for grid in grids), [w[size] for w in weights]),
            blocks=sum(grid[size, k].blocks for grid in grids),
        )
        for size, k in common
    )
    ks = sorted({k for _, k in common})
    return measured[0].model_copy(
        update={
            "grid": grid,
            "acceptance": tuple(_acceptance([m.acceptance for m in measured], k) for k in ks),
            "baseline": _baseline([m.baseline for m in measured]),
            "levels": (),
            "contrasts": (),
            "loops": (),
        }
    )


def _itl(cell: Cell) -> float:
    assert cell.itl_ms is not None
    return cell.itl_ms


def _blocks_by_size(cells: Iterable[Cell]) -> dict[int, int]:
    blocks: dict[int, int] = {}
    for cell in cells:
        blocks[cell.batch_size] = blocks.get(cell.batch_size, 0) + cell.blocks
    return blocks


def _geometric(values: Iterable[float], weights: Sequence[float]) -> float:
    return math.exp(sum(w * math.log(v) for v, w in zip(values, weights, strict=True)) / sum(weights))


def _acceptance(found: Sequence[Sequence[Acceptance]], k: int) -> Acceptance:
    entries = [entry for acceptance in found for entry in acceptance if entry.k == k]
    prompts = [max(entry.prompts, 1) for entry in entries]
    mean = _geometric((entry.acceptance_length.mean for entry in entries), prompts)
    return Acceptance(k=k, acceptance_length=Interval(mean=mean), prompts=sum(entry.prompts for entry in entries))


def _baseline(found: Sequence[Sequence[BaselineCell]]) -> tuple[BaselineCell, ...]:
    cells = [{cell.batch_size: cell for cell in baseline} for baseline in found]
    sizes = sorted(set.intersection(*(set(cell) for cell in cells)))
    return tuple(
        BaselineCell(
            batch_size=size,
            itl_ms=Interval(mean=_geometric((c[size].itl_ms.mean for c in cells), [c[size].blocks for c in cells])),
            blocks=sum(c[size].blocks for c in cells),
        )
        for size in sizes
    )
