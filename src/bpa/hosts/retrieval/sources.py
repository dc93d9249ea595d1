"""Where the distances of a joint set come from, as re-ranking asks for them: features, a matrix, lists, rows of W."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bpa._blocks import BLOCK_BYTES, spans
from bpa._checks import check_features, check_finite
from bpa.errors import ArgumentError, NonFiniteError, ShapeError
from bpa.plans._comparison import finish
from bpa.plans._search import own_to_front, search, sorted_lists
from bpa.plans._sparse import SparseRows, products, segment_sum

__all__ = [
    "DistanceSource", "FeatureSource", "JointNeighbours", "ListSource", "MatrixSource", "SparseSource",
]  # fmt: skip

_PAIRS = 65536
"""Pairs of sparse rows compared at once."""


@dataclass(frozen=True, eq=False)
class JointNeighbours:
    """The nearest items of every item of a joint set.

    Attributes
    ----------
    index : Tensor of int64, shape (n, k)
        Nearest first.
    squared : Tensor, shape (n, k)
        Squared distances to them.
    largest : Tensor, shape (n,)
        The largest squared distance of the whole row (of the list only, where only lists are known).
    """

    index: Tensor
    squared: Tensor
    largest: Tensor


class DistanceSource(Protocol):
    """What re-ranking asks about a joint set of n items; all distances are squared."""

    n: int

    def neighbours(self, k: int, *, self_first: bool) -> JointNeighbours:
        """Return the ``k`` nearest of every item."""

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        """Distance of each pair (i, j)."""

    def rows(self, span: slice) -> Tensor:
        """Distances of a span of items to all, shape (b, n)."""


class _Searched:
    """A source whose neighbours are found by looking at its rows."""

    n: int
    _like: Tensor

    def rows(self, span: slice) -> Tensor:
        """Distances of a span of items to all."""
        raise NotImplementedError

    def neighbours(self, k: int, *, self_first: bool) -> JointNeighbours:
        """Search exactly, one block of rows at a time."""
        largest = self._like.new_empty(self.n)
        found = search(
            self.rows, self.n, self.n, k, own="first" if self_first else "as found",
            item_bytes=self._like.element_size(), farthest=largest,
        )  # fmt: skip
        return JointNeighbours(found.indices, found.costs, largest)


class FeatureSource(_Searched):
    """Squared Euclidean distances of features, recomputed block by block."""

    def __init__(self, features: Tensor) -> None:
        check_features(features, argument="features", function="FeatureSource")
        if features.dim() != 2:
            raise ShapeError(
                f"The 'features' parameter of FeatureSource must have shape (n, d). Got {tuple(features.shape)}."
            )
        check_finite(features, argument="features", function="FeatureSource")
        x = _computable(features)
        self._x = self._like = x
        self._norm = (x * x).sum(dim=1)
        self.n = int(x.shape[0])

    def rows(self, span: slice) -> Tensor:
        """Squared distances of a block of rows; the diagonal is exactly zero."""
        out = torch.mm(self._x[span], self._x.T)
        out.mul_(-2).add_(self._norm[None]).add_(self._norm[span, None]).clamp_(min=0)
        return _without_own(out, span)

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        """Squared distances of chosen pairs, in chunks of bounded size."""
        out = torch.empty(len(i), dtype=self._x.dtype)
        for part in spans(len(i), BLOCK_BYTES // (2 * self._x.shape[1] * self._x.element_size())):
            left, right = i[part], j[part]
            dot = torch.bmm(self._x[left][:, None], self._x[right][:, :, None])[:, 0, 0]
            out[part] = (self._norm[left] + self._norm[right] - 2 * dot).clamp_(min=0)
        return out.masked_fill_(i == j, 0)


class MatrixSource(_Searched):
    """A matrix of plain (not squared) distances over the joint set."""

    def __init__(self, distances: Tensor) -> None:
        if distances.dim() != 2 or distances.shape[0] != distances.shape[1]:
            raise ShapeError(
                "The 'distances' parameter of MatrixSource must have shape (n, n) over queries and gallery together. "
                f"Got {tuple(distances.shape)}."
            )
        if bool(torch.isnan(distances).any()) or bool((distances < 0).any()):
            raise NonFiniteError(
                "The 'distances' parameter of MatrixSource must hold no NaN and nothing negative."
            )
        self._d = self._like = _computable(distances)
        self.n = int(self._d.shape[0])

    def rows(self, span: slice) -> Tensor:
        """Squares of a block of rows, with a zero diagonal."""
        return _without_own(self._d[span].square(), span)

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        """Squares of chosen entries."""
        return self._d[i, j].square().masked_fill_(i == j, 0)


class ListSource:
    """Ready nearest-neighbour lists, as a search library returns them.

    A pair that is in no list is taken to be as far as the last entry of its row, and the row's largest distance is the
    largest listed one: with lists there is nothing better to know.

    Parameters
    ----------
    index : Tensor of int64, shape (n, k)
        Nearest first, over the joint set; −1 where a list is shorter.
    distances : Tensor, shape (n, k)
        Plain distances (take the square root of what an L2 index of faiss returns).
    """

    def __init__(self, index: Tensor, distances: Tensor) -> None:
        if index.dim() != 2 or index.shape != distances.shape:
            raise ShapeError(
                "The 'index' and 'distances' parameters of ListSource must have one shape (n, k). "
                f"Got {tuple(index.shape)} and {tuple(distances.shape)}."
            )
        self.n = int(index.shape[0])
        index = index.to(torch.int64)
        if bool((index >= self.n).any()):
            raise ArgumentError(
                f"The 'index' parameter of ListSource must number the joint set, 0..{self.n - 1}: queries and gallery "
                f"are searched together. Got {int(index.max())}."
            )
        missing = index < 0
        squared = _computable(distances).square().masked_fill(missing, torch.inf)
        if bool(torch.isnan(squared).any()):
            raise NonFiniteError("The 'distances' parameter of ListSource must not hold NaN.")
        self._index, self._squared = index, squared
        self._largest = squared.masked_fill(missing, 0).amax(dim=1)
        keys = (torch.arange(self.n)[:, None] * self.n + index)[~missing]
        self._keys, order = torch.sort(keys)
        self._values = squared[~missing][order]

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        """Look pairs up in either list; the row's largest where neither has them."""
        out = self._largest[i].clone()
        for a, b in ((j, i), (i, j)):
            keys = a * self.n + b
            place = torch.searchsorted(self._keys, keys).clamp_(max=max(len(self._keys) - 1, 0))
            found = self._keys[place] == keys
            out[found] = self._values[place[found]]
        return out.masked_fill_(i == j, 0)

    def rows(self, span: slice) -> Tensor:
        """Rows of listed distances, filled up with the largest listed one."""
        out = self._largest[span, None].expand(-1, self.n).contiguous()
        index = self._index[span]
        present = index >= 0
        row = torch.arange(len(index))[:, None].expand_as(index)[present]
        out[row, index[present]] = self._squared[span][present]
        return _without_own(out, span)

    def neighbours(self, k: int, *, self_first: bool) -> JointNeighbours:
        """The lists themselves, by (distance, index); the item itself is put in where it is missing."""
        own = torch.arange(self.n)
        index = torch.cat([own[:, None], self._index], dim=1)
        squared = torch.cat([torch.zeros_like(self._squared[:, :1]), self._squared], dim=1)
        squared[:, 1:][index[:, 1:] == own[:, None]] = (
            torch.inf
        )  # one copy of the item itself, at distance zero
        index[:, 1:][squared[:, 1:] == torch.inf] = self.n  # behind everything
        if index.shape[1] < k:
            raise ArgumentError(
                f"the lists hold {self._index.shape[1]} neighbours an item, and {k - 1} besides the item itself are "
                f"needed; search wider or pass a smaller k1."
            )
        index, squared = sorted_lists(index, squared)
        if self_first:
            index, squared = own_to_front(index, squared, own)
        index, squared = index[:, :k], squared[:, :k]
        if bool((index >= self.n).any()):
            raise ArgumentError(
                f"some lists hold fewer than {k} different items; search wider or pass a smaller k1."
            )
        return JointNeighbours(index.contiguous(), squared.contiguous(), self._largest)


class SparseSource(_Searched):
    """Squared distances of sparse rows, recomputed block by block.

    Parameters
    ----------
    rows : SparseRows, shape (n, m)
    measure : {"euclidean", "sqeuclidean", "cosine"}
        With ``"cosine"`` the rows are brought to unit length first.
    """

    def __init__(self, rows: SparseRows, measure: str) -> None:
        self.n = rows.shape[0]
        if measure == "cosine":
            rows = rows.scaled(rows.squared_norms().clamp_min(torch.finfo(rows.values.dtype).tiny).rsqrt())
        self._rows = rows
        self._columns = rows.transpose()
        self._norm = self._like = rows.squared_norms()

    def rows(self, span: slice) -> Tensor:
        """Squared distances of a span of items to all."""
        dot = products(self._rows.slice(span.start, span.stop), self._columns)
        return _without_own(finish(dot, self._norm[span], self._norm, "sqeuclidean"), span)

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        """Squared distance of each pair (i, j)."""
        known = self._rows.keys()
        out = torch.empty(len(i), dtype=self._norm.dtype)
        for part in spans(len(i), _PAIRS):
            left, right = i[part], j[part]
            pair, column = self._rows.gather(left)
            wanted = right[pair] * self._rows.shape[1] + column
            place = torch.searchsorted(known, wanted).clamp_(max=len(known) - 1)
            other = self._rows.values[place].masked_fill_(known[place] != wanted, 0)
            dot = segment_sum(self._rows.gather_values(left) * other, pair, len(left))
            out[part] = (self._norm[left] + self._norm[right] - 2 * dot).clamp_(min=0)
        return out.masked_fill_(i == j, 0)


def _computable(values: Tensor) -> Tensor:
    """The values in a type to compute in, without their gradient."""
    values = values.detach()
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def _without_own(rows: Tensor, span: slice) -> Tensor:
    """A block of distances, exactly zero between an item and itself."""
    rows.diagonal(offset=span.start).fill_(0)
    return rows
