"""The kernel of a plan over all pairs: which representation takes the set, and why the other does not."""

from __future__ import annotations

import math
from typing import Literal

import torch

from bpa import memory
from bpa.errors import ArgumentError
from bpa.kernels._large import LargeKernel
from bpa.kernels._recipe import PlanRequest
from bpa.kernels._table import choose_plan
from bpa.kernels._tiles import KEPT, STREAMED, CostTiles, GramTiles, KeptKernel, StreamedKernel, Tiles
from bpa.plans._plan import PreparedSet
from bpa.plans._potentials import Potentials
from bpa.solvers._kernel import is_exponential_safe

__all__ = ["Keep", "holds_numbers", "kernel_of", "largest_entry", "tiles_of"]

Keep = bool | torch.dtype | None
"""Whether n × n numbers are kept: they must be (perhaps in a named type), must not be, or may be."""


def holds_numbers(reg: float | Literal["auto"], cost: str, dtype: torch.dtype) -> bool:
    """Whether the numbers of K can be held whatever the features are: cosines span 2 / reg, distances anything."""
    return cost != "sqeuclidean" and (reg == "auto" or is_exponential_safe(2 / reg, dtype))


def tiles_of(prepared: PreparedSet) -> Tiles:
    """Tiles of features, or of the costs that were given instead."""
    if prepared.preparation is None:
        return CostTiles(prepared.rows, prepared.reg)
    return GramTiles(prepared.rows, prepared.cost, prepared.reg)


def kernel_of(tiles: Tiles, d: int, keep: Keep, budget: str | int | None, function: str) -> LargeKernel:
    """The kept kernel where it is allowed, else the streamed one, or the reason why neither is."""
    is_type = isinstance(keep, torch.dtype) and keep.is_floating_point
    if not (keep is None or isinstance(keep, bool) or is_type):
        raise ArgumentError(
            f"The 'keep' parameter of {function} must be True, False, None or a type such as torch.bfloat16. "
            f"Got {keep!r}."
        )
    limit = None if budget is None else memory.parse_bytes(budget)
    request = PlanRequest(tiles.n, d, tiles.dtype, tiles.spread, keep, budget=limit)
    told = choose_plan(request)
    if told.chosen == KEPT.name:
        return KeptKernel(tiles, keep if isinstance(keep, torch.dtype) else None)
    if told.chosen == STREAMED.name:
        return StreamedKernel(tiles)
    if keep and not tiles.is_exponential_safe():
        reason = dict(told.reasons)[KEPT.name]
        raise ArgumentError(
            f"The 'keep' parameter of {function} cannot be {keep}: {reason}. Pass keep=False."
        )
    if keep:
        memory.check(KEPT.estimate(request), limit, way_out="Pass keep=False to stream the kernel in tiles.")
    memory.check(STREAMED.estimate(request), limit, way_out="Use bpa.plans.GraphPlan, or raise the budget.")
    raise AssertionError("one of the checks above says what is in the way")


def largest_entry(tiles: Tiles, potentials: Potentials) -> float:
    """Largest off-diagonal entry of the plan, of a kernel that is not kept."""
    left = (potentials.log_u - tiles.offset).to(tiles.dtype)
    right = (potentials.log_v - tiles.offset).to(tiles.dtype)
    top = -math.inf
    for rows, columns, tile in tiles.upper():
        if rows == columns:
            tile.fill_diagonal_(-math.inf)
        if potentials.log_u is not potentials.log_v:
            top = max(top, float((tile + right[rows][:, None]).add_(left[columns]).max()))
        top = max(top, float(tile.add_(left[rows][:, None]).add_(right[columns]).max()))
    return math.exp(top)
