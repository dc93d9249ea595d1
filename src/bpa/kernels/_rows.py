"""Features as kernels want them: rows whose inner products give the costs, the same for items that arrive later."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bpa._blocks import spans
from bpa.cost import unit_rows

__all__ = ["COSTS", "Preparation", "equal_pairs", "pair_costs"]

COSTS = ("cosine", "centred-cosine", "sqeuclidean")
"""Costs of features: one minus the cosine, the same of unit rows minus their mean, and the squared distance."""
_NUMBERS = 1 << 20
"""Numbers of a block of rows that is prepared at once."""
_PAIR_NUMBERS = 1 << 22
"""Numbers gathered at once where chosen pairs of rows are compared."""


@dataclass(frozen=True, eq=False)
class Preparation:
    """What is done to features before inner products are taken; made once, from the set that is balanced.

    Parameters
    ----------
    cost : {"cosine", "centred-cosine", "sqeuclidean"}
        What the prepared rows x give: one minus ⟨x_i, x_j⟩ for both cosines (unit rows), or |x_i − x_j|².
    mean : Tensor, shape (d,), or None
        What is subtracted: the mean of the set (``"sqeuclidean"``), or of its unit rows (``"centred-cosine"``).
    of_units : bool
        Whether ``mean`` is one of unit rows, and new items are brought to unit length before it is subtracted.
    """

    cost: str
    mean: Tensor | None
    of_units: bool = True

    @classmethod
    def of(cls, x: Tensor, cost: str, dtype: torch.dtype, *, of_units: bool = True) -> Preparation:
        """Look at a set (n, d) once; ``of_units`` matters for ``"centred-cosine"`` only."""
        if cost == "cosine":
            return cls(cost, None)
        of_units = of_units and cost == "centred-cosine"
        if not of_units:
            return cls(cost, x.mean(dim=0, dtype=torch.float64).to(dtype), of_units=False)
        total = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
        for rows in _blocks(x):
            total += unit_rows(x[rows].to(dtype)).sum(dim=0, dtype=torch.float64)
        return cls(cost, (total / len(x)).to(dtype))

    def rows(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Prepare items (m, d) of the set or new ones, block by block; every row by itself."""
        out = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
        for rows in _blocks(x):
            out[rows] = self._prepared(x[rows].to(dtype))
        return out

    def _prepared(self, x: Tensor) -> Tensor:
        if self.mean is None:
            return unit_rows(x)
        base = unit_rows(x) if self.of_units else x
        moved = base - self.mean
        if self.cost == "sqeuclidean":
            return moved
        # Rows that differ from the mean by rounding only have no direction.
        size = torch.maximum(base.abs().amax(dim=1, keepdim=True), self.mean.abs().amax())
        noise = 16 * torch.finfo(x.dtype).eps * size
        return unit_rows(moved.masked_fill(moved.abs().amax(dim=1, keepdim=True) <= noise, 0.0))


def pair_costs(left: Tensor, first: Tensor, right: Tensor, second: Tensor, cost: str) -> Tensor:
    """Costs of the pairs (left[first], right[second]) of prepared rows, shape (pairs,)."""
    out = left.new_empty(len(first))
    for part in spans(len(first), max(1, _PAIR_NUMBERS // left.shape[1])):
        a, b = left[first[part]], right[second[part]]
        if cost == "sqeuclidean":
            out[part] = (a - b).square_().sum(dim=1)
        else:
            out[part] = 1 - torch.linalg.vecdot(a, b)
    return out.clamp_(min=0)


def equal_pairs(new: Tensor, fitted: Tensor, pair: Tensor, cost: str) -> tuple[Tensor, Tensor]:
    """Of candidate pairs (c, 2), sorted, those whose rows hold the same numbers; the first of each new row.

    Rows are equal up to the rounding of their preparation: a few units in the last place of the largest number, more
    where a mean was subtracted from unit rows.
    """
    slack = (64 if cost == "centred-cosine" else 8) * torch.finfo(new.dtype).eps
    same = torch.zeros(len(pair), dtype=torch.bool, device=pair.device)
    for part in spans(len(pair), max(1, _PAIR_NUMBERS // new.shape[1])):
        there = fitted[pair[part, 1]]
        gap = (new[pair[part, 0]] - there).abs().amax(dim=1)
        same[part] = gap <= slack * there.abs().amax(dim=1)
    pair = pair[same]
    first = torch.ones(len(pair), dtype=torch.bool, device=pair.device)
    first[1:] = pair[1:, 0] != pair[:-1, 0]
    pair = pair[first]
    return pair[:, 0], pair[:, 1]


def _blocks(x: Tensor) -> list[slice]:
    return list(spans(len(x), max(1, _NUMBERS // x.shape[1])))
