r"""How two rows of W are compared; in retrieval this matters as much as the plan itself.

==================  ====================================================================================================
``"euclidean"``     :math:`\|W_i - W_j\|`, as published. Rows of small norm are near everything: they become hubs.
``"sqeuclidean"``   its square
``"cosine"``        one minus the cosine of the rows, which knows no small rows
==================  ====================================================================================================

The same three words mean the same three numbers wherever rows are compared, whole, truncated or sparse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bpa._checks import check_choice, check_count
from bpa.plans._sparse import SparseRows, products

__all__ = [
    "METRICS", "PRESETS", "Metric", "RowComparison", "compare_dense", "compare_sparse", "finish", "shares",
    "squared_norms", "truncate",
]  # fmt: skip

Metric = Literal["euclidean", "sqeuclidean", "cosine"]
METRICS = ("euclidean", "sqeuclidean", "cosine")


@dataclass(frozen=True)
class RowComparison:
    """A way to compare rows.

    Parameters
    ----------
    measure : {"euclidean", "sqeuclidean", "cosine"}
        Distance between two rows, its square, or one minus their cosine.
    top : int, optional
        Keep the largest entries of each row only, divided by their sum, next to the unit diagonal. Rows become sparse:
        comparing them costs 20 to 100 times less. Should not be far below the number of items that belong together.
    neighbours : int, optional
        Balance on a graph of so many nearest neighbours instead of all pairs (another transform, unless reg is small).

    Examples
    --------
    >>> RowComparison.retrieval().name, RowComparison.paper().name
    ('cosine top-50', 'euclidean')
    """

    measure: Metric = "euclidean"
    top: int | None = None
    neighbours: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no comparison is."""
        check_choice(self.measure, METRICS, argument="measure", function="RowComparison")
        if self.top is not None:
            check_count(self.top, argument="top", function="RowComparison")
        if self.neighbours is not None:
            check_count(self.neighbours, argument="neighbours", function="RowComparison")

    @classmethod
    def paper(cls) -> RowComparison:
        """Euclidean distance between whole rows, as published."""
        return cls()

    @classmethod
    def retrieval(cls) -> RowComparison:
        """The default of this library for retrieval; the evidence is in docs/howto/retrieval.md."""
        return cls(measure="cosine", top=50)

    @property
    def name(self) -> str:
        """Short name for tables."""
        parts: list[str] = [self.measure]
        if self.top is not None:
            parts.append(f"top-{self.top}")
        if self.neighbours is not None:
            parts.append(f"graph-{self.neighbours}")
        return " ".join(parts)


PRESETS = {"paper": RowComparison.paper(), "retrieval": RowComparison.retrieval()}
"""Comparisons by the names that commands and configurations use."""


def compare_dense(left: Tensor, right: Tensor, metric: str) -> Tensor:
    """Compare every row of ``left`` (q, m) with every row of ``right`` (g, m), shape (q, g)."""
    return finish(torch.mm(left, right.T), squared_norms(left), squared_norms(right), metric)


def compare_sparse(left: SparseRows, right: SparseRows, metric: str) -> Tensor:
    """As :func:`compare_dense`, for sparse rows."""
    return finish(products(left, right.transpose()), left.squared_norms(), right.squared_norms(), metric)


def finish(dot: Tensor, left: Tensor, right: Tensor, metric: str) -> Tensor:
    """Turn inner products (q, g), in place, and squared norms into distances.

    Norms have shape (q,) and (g,), or (q, g) where a pair has its own.
    """
    left = left[:, None] if left.dim() == 1 else left
    if metric == "cosine":
        tiny = torch.finfo(dot.dtype).tiny
        dot.mul_(-left.clamp_min(tiny).rsqrt()).mul_(right.clamp_min(tiny).rsqrt()).add_(1)
        return dot.clamp_(min=0)
    dot.mul_(-2).add_(left).add_(right).clamp_(min=0)
    return dot.sqrt_() if metric == "euclidean" else dot


def squared_norms(rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Squared Euclidean norms (n,) without a copy of the rows, in another type where one is named."""
    return torch.cat([part.to(dtype or rows.dtype).square().sum(dim=1) for part in torch.split(rows, 256)])


def shares(values: Tensor) -> Tensor:
    """Values (..., k) divided by their sum; what has no sum stays zero."""
    total = values.sum(dim=-1, keepdim=True)
    return values / total.clamp_min(torch.finfo(values.dtype).tiny)


def truncate(values: Tensor, columns: Tensor, own: Tensor, n: int) -> SparseRows:
    """Rows of the largest off-diagonal entries, divided by their sum, next to a unit diagonal.

    Parameters
    ----------
    values, columns : Tensor, shape (m, k)
        Largest off-diagonal entries of each row and where they are; a column of −1 is none.
    own : Tensor of int64, shape (m,)
        Column of each row's diagonal.
    n : int
        Columns.

    Returns
    -------
    SparseRows, shape (m, n)
    """
    rows = shares(values)
    if bool((columns >= 0).all()):
        sparse = SparseRows.from_lists(columns, rows, n)
    else:
        owner = torch.arange(len(columns), device=columns.device)[:, None].expand_as(columns)
        there = columns >= 0
        sparse = SparseRows.from_pairs(owner[there], columns[there], rows[there], (len(columns), n))
    return sparse.with_entries(own, 1.0)
