r"""The rows of a gallery as they are kept between queries: whole, or their largest entries.

A query's row :math:`w_q` is compared with a gallery row :math:`W_j` that is completed by the query's own column:

.. math:: D^2(q, j) = \sum_k (w_{qk} - W_{jk})^2 + (1 - w_{jq})^2.

Without the last term, the coordinate in which the query itself lies, mean average precision drops by up to 0.055. Where
rows are cut to their largest entries, the query's column joins the item's list if it is large enough, and the list is
shared out again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from bpa._blocks import block_rows, spans
from bpa.plans import DensePlan, RowComparison
from bpa.plans._comparison import compare_dense, compare_sparse, finish, shares, squared_norms, truncate
from bpa.plans._sparse import SparseRows, products

__all__ = ["KeptRows", "LargestEntries", "WholeRows", "kept_rows"]

_GATHERED = 16
"""Rows gathered at once stay in the cache."""


class KeptRows(ABC):
    """Rows of the gallery items, and how others are compared with them."""

    def __init__(self, measure: str) -> None:
        self.measure = measure

    @abstractmethod
    def compare(self, row: Tensor, column: Tensor, candidates: Tensor | None) -> Tensor:
        """Distances of queries from their rows (q, n) and columns.

        ``column`` (q, g) holds w_jq of the gallery items, or of the ``candidates`` (q, c) alone.
        """

    @abstractmethod
    def between(self, i: Tensor, j: Tensor) -> Tensor:
        """Distances between rows of fitted gallery items, exactly 0 between an item and itself."""

    @abstractmethod
    def between_late(self, left: Tensor, right: Tensor, entry: Tensor) -> Tensor:
        """Distances between queries (q, n) and late items (a, n), who exchange ``entry`` (q, a)."""


def kept_rows(
    plan: DensePlan, rows: RowComparison, n_gallery: int, storage: torch.dtype | None
) -> tuple[DensePlan, KeptRows]:
    """Keep what ranking needs of the first ``n_gallery`` items, and the plan without what it does not."""
    if rows.top is None:
        whole = WholeRows(plan.affinities(storage)[:n_gallery], rows.measure, plan.features.dtype)
        return (plan if storage is None else plan.lean()), whole
    best = plan.top_k(min(rows.top, plan.n - 1))
    values, columns = best.values[:n_gallery], best.indices[:n_gallery]
    return plan.lean(), LargestEntries(values, columns, rows, plan.n)


class WholeRows(KeptRows):
    """Rows (g, n) of any type; products are made in the type of the features."""

    def __init__(self, rows: Tensor, measure: str, dtype: torch.dtype) -> None:
        super().__init__(measure)
        self.rows = rows
        self._dtype = dtype
        self._norm = squared_norms(rows, dtype)

    def compare(self, row: Tensor, column: Tensor, candidates: Tensor | None) -> Tensor:
        own = row.square().sum(dim=1) + 1
        dot = torch.empty_like(column)
        if candidates is None:
            for span in spans(len(self.rows), block_rows(self.rows.shape[1], 4)):
                torch.mm(row, self.rows[span].to(self._dtype).T, out=dot[:, span])
            norm = self._norm + column.square()
        else:
            buffer = self.rows.new_empty(_GATHERED, self.rows.shape[1])
            for i, chosen in enumerate(candidates):
                for span in spans(len(chosen), _GATHERED):
                    part = buffer[: span.stop - span.start]
                    torch.index_select(self.rows, 0, chosen[span], out=part)
                    dot[i, span] = part.to(self._dtype) @ row[i]
            norm = self._norm[candidates] + column.square()
        return finish(dot.add_(column), own, norm, self.measure)

    def between(self, i: Tensor, j: Tensor) -> Tensor:
        left, right = self.rows[i].to(self._dtype), self.rows[j].to(self._dtype)
        return compare_dense(left, right, self.measure).masked_fill_(i[:, None] == j, 0)

    def between_late(self, left: Tensor, right: Tensor, entry: Tensor) -> Tensor:
        # rows completed by the query's coordinate (1, entry) and the item's (entry, 1)
        both = 1 + entry.square()
        dot = torch.addmm(2 * entry, left, right.T)
        return finish(dot, squared_norms(left)[:, None] + both, squared_norms(right) + both, self.measure)


class LargestEntries(KeptRows):
    """The largest entries of each row, largest first: ``values`` and ``columns``, each (g, k)."""

    def __init__(self, values: Tensor, columns: Tensor, rows: RowComparison, n: int) -> None:
        super().__init__(rows.measure)
        self._most = n + 1 if rows.top is None else rows.top
        self.values = values
        self.columns = columns
        self._n = n
        self._shares = shares(values)
        self._norm = self._shares.square().sum(dim=1)
        self._totals, self._smallest = values.sum(dim=1), values[:, -1].clone()
        self._inverted = SparseRows.from_lists(columns, self._shares, n).transpose()

    def compare(self, row: Tensor, column: Tensor, candidates: Tensor | None) -> Tensor:
        value, index = torch.topk(row, min(self.columns.shape[1], row.shape[1]), dim=1)
        value = shares(value)
        own = value.square().sum(dim=1) + 1
        kept = torch.zeros_like(row).scatter_(1, index, value)
        if candidates is None:
            dot = products(SparseRows.from_lists(index, value, self._n), self._inverted)
            totals, smallest, norm = self._totals, self._smallest, self._norm
            at_item = kept[:, : column.shape[1]]
        else:
            dot = torch.empty_like(column)
            for i, chosen in enumerate(candidates):
                dot[i] = (kept[i][self.columns[chosen]] * self._shares[chosen]).sum(dim=1)
            totals, smallest, norm = (of[candidates] for of in (self._totals, self._smallest, self._norm))
            at_item = kept.gather(1, candidates)
        # the query joins the item's list where it is large enough, and the list is shared out again
        joins = torch.where(column >= smallest, column, 0.0)
        shrink = totals / (totals + joins).clamp_min(torch.finfo(row.dtype).tiny)
        share = 1 - shrink
        dot = dot * shrink + at_item + share
        return finish(dot, own, norm * shrink.square() + 1 + share.square(), self.measure)

    def between(self, i: Tensor, j: Tensor) -> Tensor:
        left, right = (truncate(self.values[index], self.columns[index], index, self._n) for index in (i, j))
        return compare_sparse(left, right, self.measure).masked_fill_(i[:, None] == j, 0)

    def between_late(self, left: Tensor, right: Tensor, entry: Tensor) -> Tensor:
        k = min(self._most, self._n + 1)
        ours, theirs = _Shared(left, k, entry), _Shared(right, k, entry.T)
        dot = ours.share + theirs.share.T  # the query's coordinate and the item's
        for mine, factor, is_mine in ours.parts:
            for other, weight, is_other in theirs.parts:
                dot += torch.where(is_mine & is_other.T, (mine @ other.T) * factor * weight.T, 0.0)
        return finish(dot, ours.squared(), theirs.squared().T, self.measure)


class _Shared:
    """Late rows (m, n) cut to their ``k`` largest entries, once for every late item that may be one of them.

    ``entry`` (m, p) is what each row has for each of the others. Where it is among the largest it takes the place of
    the smallest of them, and the list is shared out again: ``share`` (m, p) is its part. ``parts`` holds, for lists
    without and with it, the fitted entries (m, n), what they are multiplied by, and where they are meant, (m, p) each.
    """

    def __init__(self, rows: Tensor, k: int, entry: Tensor) -> None:
        value, index = torch.topk(rows, min(k, rows.shape[1]), dim=1)
        bound = value[:, k - 1 : k] if value.shape[1] == k else torch.full_like(value[:, :1], -torch.inf)
        joins = entry > bound
        fewer = value[:, : k - 1]
        tiny = torch.finfo(rows.dtype).tiny
        alone = 1 / value.sum(dim=1, keepdim=True).clamp_min(tiny)
        beside = 1 / (fewer.sum(dim=1, keepdim=True) + entry).clamp_min(tiny)
        blank = torch.zeros_like(rows)
        self.parts = (
            (blank.scatter(1, index, value), alone.expand_as(entry), ~joins),
            (blank.scatter(1, index[:, : k - 1], fewer), beside, joins),
        )
        self.share = torch.where(joins, entry * beside, 0.0)

    def squared(self) -> Tensor:
        """Squared norms of the completed rows, shape (m, p)."""
        out = 1 + self.share.square()
        for rows, factor, is_meant in self.parts:
            out += torch.where(is_meant, rows.square().sum(dim=1, keepdim=True) * factor.square(), 0.0)
        return out
