r"""How two rows of W are compared; in retrieval this matters as much as the plan itself.

====================
============================================================================================= ``measure``
     ``"euclidean"`` (the paper) or ``"cosine"`` between rows. Euclidean distances favour rows of
                      small norm, and those are hubs; the cosine does not.
``top``               keep the largest entries of each row only, divided by their sum, next to the unit
diagonal.
                      Rows become sparse: comparing them costs 20 to 100 times less. Should not be far below
                      the number of items that belong together.
``neighbours``        balance on a nearest-neighbour graph instead of all pairs (an approximation).
====================
=============================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bpa._checks import check_choice, check_count, check_positive
from bpa.cost import unit_rows
from bpa.errors import ArgumentError
from bpa.plans.neighbours import Neighbours, block_rows, search
from bpa.plans.sparse_rows import SparseRows, products, segment_sum

__all__ = [
    "AUTO_REG",
    "PAPER",
    "PRESETS",
    "RETRIEVAL",
    "RowComparison",
    "SparseSource",
    "compare_dense",
    "compare_sparse",
    "truncate",
]


@dataclass(frozen=True)
class RowComparison:
    """A way to compare rows; see the module."""

    measure: Literal["euclidean", "cosine"] = "euclidean"
    top: int | None = None
    neighbours: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no comparison is."""
        check_choice(self.measure, ("euclidean", "cosine"), argument="measure", function="RowComparison")
        if self.top is not None:
            check_count(self.top, argument="top", function="RowComparison")
        if self.neighbours is not None:
            check_count(self.neighbours, argument="neighbours", function="RowComparison")

    @property
    def name(self) -> str:
        """Short name for tables."""
        parts: list[str] = [self.measure]
        if self.top is not None:
            parts.append(f"top-{self.top}")
        if self.neighbours is not None:
            parts.append(f"graph-{self.neighbours}")
        return " ".join(parts)


PAPER = RowComparison()
"""Euclidean distance between dense rows, as published."""

RETRIEVAL = RowComparison(measure="cosine", top=50)
"""The default of this library for retrieval; the evidence is in docs/howto/retrieval.md."""

AUTO_REG = 0.15
"""``reg="auto"`` in retrieval: this entropy weight, on unit rows minus their mean; the evidence is there too."""

PRESETS = {"paper": PAPER, "retrieval": RETRIEVAL}


def chosen_reg(reg: float | Literal["auto"], centre: bool, cost: str, function: str) -> tuple[float, bool]:
    """The entropy weight as a number, and whether features are centred first.

    Parameters
    ----------
    reg : float or "auto"
    centre : bool
    cost, function : str

    Returns
    -------
    tuple of (float, bool)
    """
    if isinstance(reg, str):
        if reg != "auto":
            raise ArgumentError(
                f"The 'reg' parameter of {function} must be a positive number or 'auto'. Got {reg!r}."
            )
        reg, centre = AUTO_REG, True
    check_positive(reg, argument="reg", function=function)
    if centre and cost != "cosine":
        raise ArgumentError(
            f"{function} centres unit rows, which belong to cost='cosine'. Got cost={cost!r}."
        )
    return float(reg), centre


def centred_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Unit rows minus their mean, and the mean; (n, d) and (d,)."""
    unit = unit_rows(x if x.dtype == torch.float64 else x.float())
    mean = unit.mean(dim=0)
    return unit - mean, mean


def compare_dense(left: Tensor, right: Tensor, measure: str, *, out: Tensor | None = None) -> Tensor:
    """Squared Euclidean distances, or one minus the cosines, of every pair of rows.

    Parameters
    ----------
    left, right : Tensor, shape (q, m), (g, m)
    measure : {"euclidean", "cosine"}
    out : Tensor, shape (q, g), optional

    Returns
    -------
    Tensor, shape (q, g)
    """
    return finish(torch.mm(left, right.T, out=out), squared_norms(left), squared_norms(right), measure)


def compare_sparse(left: SparseRows, right: SparseRows, measure: str) -> Tensor:
    """As :func:`compare_dense`, for sparse rows."""
    return finish(products(left, right.transpose()), sparse_norms(left), sparse_norms(right), measure)


def finish(dot: Tensor, left: Tensor, right: Tensor, measure: str) -> Tensor:
    """Turn inner products (in place) and squared norms into distances."""
    if measure == "cosine":
        tiny = torch.finfo(dot.dtype).tiny
        return dot.mul_(-left.clamp_min(tiny).rsqrt()[:, None]).mul_(right.clamp_min(tiny).rsqrt()).add_(1)
    return dot.mul_(-2).add_(left[:, None]).add_(right).clamp_(min=0)


def squared_norms(rows: Tensor, *, block: int = 256) -> Tensor:
    """Squared Euclidean norms without a copy of the rows."""
    return torch.cat([(part * part).sum(dim=1) for part in torch.split(rows, block)])


def sparse_norms(rows: SparseRows) -> Tensor:
    """Squared Euclidean norms of sparse rows."""
    assert rows.value is not None  # noqa: S101 - valued rows only
    out = torch.zeros(rows.shape[0], dtype=rows.value.dtype)
    return out.index_add_(0, rows.row_of_entry(), rows.value.square())


def truncate(values: Tensor, columns: Tensor, own: Tensor, n: int) -> SparseRows:
    """Rows of the largest off-diagonal entries, divided by their sum, next to a unit diagonal.

    Parameters
    ----------
    values, columns : Tensor, shape (m, k)
        Largest off-diagonal entries of each row and where they are.
    own : Tensor of int64, shape (m,)
        Column of each row's diagonal.
    n : int
        Columns.

    Returns
    -------
    SparseRows, shape (m, n)
    """
    m, k = values.shape
    total = values.sum(dim=1, keepdim=True)
    shares = torch.where(total > 0, values / torch.where(total > 0, total, torch.ones_like(total)), values)
    column = torch.cat([own[:, None], columns], dim=1)
    value = torch.cat([torch.ones_like(values[:, :1]), shares], dim=1)
    column, order = torch.sort(column, dim=1)
    value = value.gather(1, order)
    start = torch.arange(m + 1) * (k + 1)
    return SparseRows(start, column.reshape(-1), value.reshape(-1), (m, n))


class SparseSource:
    """Squared distances of sparse rows, recomputed block by block; the joint set of a re-ranking.

    Parameters
    ----------
    rows : SparseRows, shape (n, m)
    measure : {"euclidean", "cosine"}
        With ``"cosine"`` the rows are brought to unit length first.
    """

    def __init__(self, rows: SparseRows, measure: str) -> None:
        assert rows.value is not None  # noqa: S101 - valued rows only
        self.n = rows.shape[0]
        if measure == "cosine":
            length = sparse_norms(rows).clamp_min(torch.finfo(rows.value.dtype).tiny).sqrt()
            rows = SparseRows(rows.start, rows.column, rows.value / length[rows.row_of_entry()], rows.shape)
        self._rows = rows
        self._columns = rows.transpose()
        self._norm = sparse_norms(rows)

    def rows(self, start: int, stop: int) -> Tensor:
        """Squared distances of items start..stop to all, shape (stop − start, n)."""
        dot = products(self._rows.slice(start, stop), self._columns)
        out = finish(dot, self._norm[start:stop], self._norm, "euclidean")
        own = torch.arange(start, stop)
        out[own - start, own] = 0
        return out

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        """Squared distance of each pair (i, j)."""
        assert self._rows.value is not None  # noqa: S101 - valued rows only
        known = self._rows.keys()
        out = torch.empty(len(i), dtype=self._norm.dtype)
        for first in range(0, len(i), 65536):
            left, right = i[first : first + 65536], j[first : first + 65536]
            pair, column = self._rows.gather(left)
            wanted = right[pair] * self._rows.shape[1] + column
            place = torch.searchsorted(known, wanted).clamp_(max=len(known) - 1)
            other = torch.where(known[place] == wanted, self._rows.value[place], torch.zeros(()))
            dot = segment_sum(self._rows.gather_values(left) * other, pair, len(left))
            out[first : first + 65536] = (self._norm[left] + self._norm[right] - 2 * dot).clamp_(min=0)
        out[i == j] = 0
        return out

    def neighbours(self, k: int, *, self_first: bool) -> Neighbours:
        """Search exactly, one block of rows at a time."""
        return search(self, k, block_rows(self.n, 4), self_first=self_first)
