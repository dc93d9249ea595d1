"""Sparse rows with index arithmetic only: what re-ranking and truncated plans need, on torch alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SparseRows:
    """Compressed rows: entries of row i are ``start[i]..start[i + 1]``, columns ascending, none twice.

    Attributes
    ----------
    start : Tensor of int64, shape (rows + 1,)
    column : Tensor of int64, shape (entries,)
    value : Tensor, shape (entries,), or None
        None where every entry is just present.
    shape : (rows, columns)
    """

    start: Tensor
    column: Tensor
    value: Tensor | None
    shape: tuple[int, int]

    @classmethod
    def from_pairs(
        cls, row: Tensor, column: Tensor, value: Tensor | None, shape: tuple[int, int]
    ) -> SparseRows:
        """Collect (row, column) pairs; values of repeated pairs are added, repeated plain pairs merge."""
        keys = row * shape[1] + column
        if value is None:
            keys = torch.unique(keys)
            merged = None
        else:
            keys, order = torch.sort(keys)
            fresh = torch.ones(len(keys), dtype=torch.bool)
            fresh[1:] = keys[1:] != keys[:-1]
            group = torch.cumsum(fresh, 0) - 1
            keys = keys[fresh]
            merged = segment_sum(value[order], group, len(keys))
        rows = torch.div(keys, shape[1], rounding_mode="floor")
        counts = torch.bincount(rows, minlength=shape[0])
        return cls(_offsets(counts), keys - rows * shape[1], merged, shape)

    @classmethod
    def stack(cls, pieces: Sequence[SparseRows]) -> SparseRows:
        """Put pieces of equal width on top of each other."""
        lengths = torch.cat([piece.lengths() for piece in pieces])
        values = [piece.value for piece in pieces if piece.value is not None]
        return cls(
            _offsets(lengths),
            torch.cat([piece.column for piece in pieces]),
            torch.cat(values) if values else None,
            (len(lengths), pieces[0].shape[1]),
        )

    def lengths(self) -> Tensor:
        """Entries of each row."""
        return self.start[1:] - self.start[:-1]

    def row_of_entry(self) -> Tensor:
        """Row number of every entry."""
        return torch.repeat_interleave(torch.arange(self.shape[0]), self.lengths())

    def keys(self) -> Tensor:
        """Ascending numbers row · columns + column of the entries."""
        return self.row_of_entry() * self.shape[1] + self.column

    def slice(self, first: int, last: int) -> SparseRows:
        """Rows first..last."""
        a, b = int(self.start[first]), int(self.start[last])
        value = None if self.value is None else self.value[a:b]
        return SparseRows(
            self.start[first : last + 1] - a, self.column[a:b], value, (last - first, self.shape[1])
        )

    def entries(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Row numbers and columns of the entries of rows first..last."""
        a, b = int(self.start[first]), int(self.start[last])
        lengths = self.start[first + 1 : last + 1] - self.start[first:last]
        return torch.repeat_interleave(torch.arange(first, last), lengths), self.column[a:b]

    def chunks(self, entries: int) -> Iterator[tuple[int, int]]:
        """Cut the rows into pieces of about so many entries."""
        first = 0
        while first < self.shape[0]:
            limit = int(self.start[first]) + entries
            last = int(torch.searchsorted(self.start, limit, right=True)) - 1
            last = min(max(last, first + 1), self.shape[0])
            yield first, last
            first = last

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Entries of chosen rows one after the other: position in ``rows``, and column."""
        owner, place = self._places(rows)
        return owner, self.column[place]

    def gather_values(self, rows: Tensor) -> Tensor:
        """Values in the order of :meth:`gather`."""
        assert self.value is not None  # noqa: S101 - asked of valued rows only
        return self.value[self._places(rows)[1]]

    def _places(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        lengths = self.lengths()[rows]
        owner = torch.repeat_interleave(torch.arange(len(rows)), lengths)
        first = torch.cumsum(lengths, 0) - lengths
        return owner, torch.arange(len(owner)) - first[owner] + self.start[rows][owner]

    def transpose(self) -> SparseRows:
        """Columns as rows."""
        order = torch.sort(self.column, stable=True).indices
        counts = torch.bincount(self.column, minlength=self.shape[1])
        value = None if self.value is None else self.value[order]
        return SparseRows(_offsets(counts), self.row_of_entry()[order], value, (self.shape[1], self.shape[0]))

    def dense(self) -> Tensor:
        """The whole matrix; for tests and small sets."""
        value = torch.ones(len(self.column)) if self.value is None else self.value
        out = torch.zeros(self.shape, dtype=value.dtype)
        out[self.row_of_entry(), self.column] = value
        return out


def member(keys: Tensor, known: Tensor) -> Tensor:
    """Which ``keys`` occur in the ascending ``known``."""
    if len(known) == 0:
        return torch.zeros(len(keys), dtype=torch.bool)
    place = torch.searchsorted(known, keys).clamp_(max=len(known) - 1)
    return known[place] == keys


def segment_sum(value: Tensor, segment: Tensor, n: int) -> Tensor:
    """Sums of ``value`` by segment number, shape (n,)."""
    return torch.zeros(n, dtype=value.dtype).index_add_(0, segment, value)


def intersections(rows: SparseRows, columns: SparseRows, *, chunk: int = 4_000_000) -> Tensor:
    """Sum of element-wise minima of every row with every column, shape (rows, columns of the other).

    Parameters
    ----------
    rows : SparseRows, shape (q, m)
    columns : SparseRows, shape (m, g)
        The other side transposed: an inverted index.
    chunk : int
        Partial results held at once.

    Returns
    -------
    Tensor, shape (q, g)
    """
    return _combine(rows, columns, chunk, minimum=True)


def products(rows: SparseRows, columns: SparseRows, *, chunk: int = 4_000_000) -> Tensor:
    """Inner products of every row with every column, shape (rows, columns of the other)."""
    return _combine(rows, columns, chunk, minimum=False)


def _combine(rows: SparseRows, columns: SparseRows, chunk: int, *, minimum: bool) -> Tensor:
    assert rows.value is not None  # noqa: S101 - valued rows only
    assert columns.value is not None  # noqa: S101
    g = columns.shape[1]
    out = torch.zeros(rows.shape[0] * g, dtype=rows.value.dtype)
    owner = rows.row_of_entry()
    work = torch.cumsum(columns.lengths()[rows.column], 0)  # partial results up to each entry
    first = 0
    while first < len(owner):
        done = int(work[first - 1]) if first else 0
        last = int(torch.searchsorted(work, done + chunk, right=True))
        last = min(max(last, first + 1), len(owner))
        entry, target = columns.gather(rows.column[first:last])
        other = columns.gather_values(rows.column[first:last])
        mine = rows.value[first:last][entry]
        part = torch.minimum(mine, other) if minimum else mine * other
        out.index_add_(0, owner[first:last][entry] * g + target, part)
        first = last
    return out.view(rows.shape[0], g)


def _offsets(counts: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(counts, 0)])
