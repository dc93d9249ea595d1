"""Exact nearest neighbours in blocks: distances from features, a matrix or ready lists, never all at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bpa._checks import check_features, check_finite
from bpa.errors import ArgumentError, NonFiniteError, ShapeError

_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Neighbours:
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
    """What re-ranking asks about a joint set of n items."""

    n: int

    def neighbours(self, k: int, *, self_first: bool) -> Neighbours:
        """Return the ``k`` nearest of every item."""

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        """Squared distance of each pair (i, j)."""

    def rows(self, start: int, stop: int) -> Tensor:
        """Squared distances of items start..stop to all, shape (stop − start, n)."""


class FeatureSource:
    """Squared Euclidean distances of features, recomputed block by block."""

    def __init__(self, features: Tensor, *, block: int | None = None) -> None:
        check_features(features, argument="features", function="FeatureSource")
        if features.dim() != 2:
            raise ShapeError(
                f"The 'features' parameter of FeatureSource must have shape (n, d). Got "
                f"{tuple(features.shape)}."
            )
        check_finite(features, argument="features", function="FeatureSource")
        x = features.detach()
        x = x if x.dtype in (torch.float32, torch.float64) else x.float()
        self._x = x
        self._norm = (x * x).sum(dim=1)
        self.n = int(x.shape[0])
        self.block = block or block_rows(self.n, x.element_size())

    def rows(self, start: int, stop: int) -> Tensor:
        """Squared distances of a block of rows; the diagonal is exactly zero."""
        out = torch.mm(self._x[start:stop], self._x.T)
        out.mul_(-2).add_(self._norm[None]).add_(self._norm[start:stop, None]).clamp_(min=0)
        own = torch.arange(start, stop)
        out[own - start, own] = 0
        return out

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        """Squared distances of chosen pairs, in chunks of bounded size."""
        out = torch.empty(len(i), dtype=self._x.dtype)
        step = max(1, _BLOCK_BYTES // (2 * self._x.shape[1] * self._x.element_size()))
        for a in range(0, len(i), step):
            left, right = i[a : a + step], j[a : a + step]
            dot = torch.bmm(self._x[left][:, None], self._x[right][:, :, None])[:, 0, 0]
            out[a : a + step] = (self._norm[left] + self._norm[right] - 2 * dot).clamp_(min=0)
        out[i == j] = 0
        return out

    def neighbours(self, k: int, *, self_first: bool) -> Neighbours:
        """Search exactly, one block of rows at a time."""
        return search(self, k, self.block, self_first=self_first)


class MatrixSource:
    """A matrix of plain (not squared) distances over the joint set."""

    def __init__(self, distances: Tensor, *, block: int | None = None) -> None:
        if distances.dim() != 2 or distances.shape[0] != distances.shape[1]:
            raise ShapeError(
                "The 'distances' parameter of MatrixSource must have shape (n, n) over queries and gallery "
                "together. "
                f"Got {tuple(distances.shape)}."
            )
        if bool(torch.isnan(distances).any()) or bool((distances < 0).any()):
            raise NonFiniteError(
                "The 'distances' parameter of MatrixSource must hold no NaN and nothing negative."
            )
        d = distances.detach()
        self._d = d if d.dtype in (torch.float32, torch.float64) else d.float()
        self.n = int(d.shape[0])
        self.block = block or block_rows(self.n, self._d.element_size())

    def rows(self, start: int, stop: int) -> Tensor:
        """Squares of a block of rows, with a zero diagonal."""
        out = self._d[start:stop].square()
        own = torch.arange(start, stop)
        out[own - start, own] = 0
        return out

    def pairs(self, i: Tensor, j: Tensor) -> Tensor:
        """Squares of chosen entries."""
        out = self._d[i, j].square()
        out[i == j] = 0
        return out

    def neighbours(self, k: int, *, self_first: bool) -> Neighbours:
        """Select from the matrix, one block of rows at a time."""
        return search(self, k, self.block, self_first=self_first)


class ListSource:
    """Ready nearest-neighbour lists, as a search library returns them.

    A pair that is in no list is taken to be as far as the last entry of its row, and the row's largest
    distance is the largest listed one: with lists there is nothing better to know.

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
                f"The 'index' parameter of ListSource must number the joint set, 0..{self.n - 1}: queries "
                f"and gallery "
                f"are searched together. Got {int(index.max())}."
            )
        squared = distances.to(torch.float64 if distances.dtype == torch.float64 else torch.float32).square()
        missing = index < 0
        squared = squared.masked_fill(missing, torch.inf)
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
        out[i == j] = 0
        return out

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of listed distances, filled up with the largest listed one."""
        out = self._largest[start:stop, None].expand(stop - start, self.n).contiguous()
        index = self._index[start:stop]
        present = index >= 0
        row = torch.arange(stop - start)[:, None].expand_as(index)[present]
        out[row, index[present]] = self._squared[start:stop][present]
        own = torch.arange(start, stop)
        out[own - start, own] = 0
        return out

    def neighbours(self, k: int, *, self_first: bool) -> Neighbours:
        """The lists themselves, by (distance, index); the item itself is put in where it is missing."""
        own = torch.arange(self.n)[:, None]
        index = torch.cat([own, self._index], dim=1)
        squared = torch.cat([torch.zeros_like(self._squared[:, :1]), self._squared], dim=1)
        squared[:, 1:][index[:, 1:] == own] = torch.inf  # one copy of the item itself, at distance zero
        index[:, 1:][squared[:, 1:] == torch.inf] = self.n  # behind everything
        if index.shape[1] < k:
            raise ArgumentError(
                f"the lists hold {self._index.shape[1]} neighbours an item, and {k - 1} besides the item "
                f"itself are "
                "needed; search wider or pass a smaller k1."
            )
        index, squared = _order(index, squared)
        if self_first:
            index, squared = _self_to_front(index, squared, torch.arange(self.n))
        index, squared = index[:, :k], squared[:, :k]
        if bool((index >= self.n).any()):
            raise ArgumentError(
                f"some lists hold fewer than {k} different items; search wider or pass a smaller k1."
            )
        return Neighbours(index.contiguous(), squared.contiguous(), self._largest)


def block_rows(n: int, item_bytes: int) -> int:
    """Rows of an n-wide block that fit the block budget."""
    return int(max(16, min(n, _BLOCK_BYTES // max(1, n * item_bytes))))


def spans(n: int, block: int) -> Iterator[tuple[int, int]]:
    """Cut 0..n into (start, stop) pieces."""
    for start in range(0, n, block):
        yield start, min(n, start + block)


def smallest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` smallest entries of each row and their positions, by (value, position), exactly.

    A partial selection leaves open which of several equal entries it takes; the rows where that matters are
    settled by a full stable sort.
    """
    k = min(k, values.shape[1])
    found, index = torch.topk(values, min(k + 1, values.shape[1]), dim=1, largest=False, sorted=True)
    if k < values.shape[1]:
        tied = found[:, k] == found[:, k - 1]  # one more entry than asked for shows where the choice is open
        found, index = found[:, :k], index[:, :k]
        for row in torch.nonzero(tied)[:, 0].tolist():
            whole, order = torch.sort(values[row], stable=True)
            found[row], index[row] = whole[:k], order[:k]
    index, found = _order(index, found)
    return found, index


def _order(index: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Sort each row by (value, index)."""
    index, by_index = torch.sort(index, dim=1)
    value = value.gather(1, by_index)
    value, by_value = torch.sort(value, dim=1, stable=True)
    return index.gather(1, by_value), value


def _self_to_front(index: Tensor, value: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Put the item itself first in its own list; if absent it takes the place of the last."""
    is_own = index == own[:, None]
    absent = ~is_own.any(dim=1)
    index, value = index.clone(), value.clone()
    index[absent, -1] = own[absent]
    value[absent, -1] = 0
    is_own = index == own[:, None]
    order = torch.sort(~is_own, dim=1, stable=True).indices
    return index.gather(1, order), value.gather(1, order)


def search(source: DistanceSource, k: int, block: int, *, self_first: bool) -> Neighbours:
    """Find the ``k`` nearest of every item of a source, ``block`` rows at a time."""
    k = min(k, source.n)
    index, squared, largest = [], [], []
    for start, stop in spans(source.n, block):
        rows = source.rows(start, stop)
        value, place = smallest(rows, k)
        if self_first:
            place, value = _self_to_front(place, value, torch.arange(start, stop))
        index.append(place)
        squared.append(value)
        largest.append(rows.amax(dim=1))
    return Neighbours(torch.cat(index), torch.cat(squared), torch.cat(largest))
