"""Sparse rows with index arithmetic only: what truncated rows, neighbour graphs and re-ranking are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bpa.errors import ArgumentError
from bpa.kernels._graph import csr_tensor

__all__ = ["SparseRows", "intersections", "member", "products", "segment_sum"]

_HAS_SPARSE_PRODUCT = bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]  # torch's own
_CHUNK = 4_000_000
"""Partial results held at once."""


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Compressed rows: entries of row i are ``start[i]..start[i + 1]``, columns ascending, none twice.

    Attributes
    ----------
    start : Tensor of int64, shape (rows + 1,)
    column : Tensor of int64 or int32, shape (entries,)
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
            fresh = torch.ones(len(keys), dtype=torch.bool, device=keys.device)
            fresh[1:] = keys[1:] != keys[:-1]
            group = torch.cumsum(fresh, 0) - 1
            keys = keys[fresh]
            merged = segment_sum(value[order], group, len(keys))
        rows = torch.div(keys, shape[1], rounding_mode="floor")
        counts = torch.bincount(rows, minlength=shape[0])
        return cls(_offsets(counts), keys - rows * shape[1], merged, shape)

    @classmethod
    def from_lists(cls, column: Tensor, value: Tensor, n: int) -> SparseRows:
        """Rows of k different columns each, in any order: ``column`` and ``value`` (m, k)."""
        m, k = column.shape
        column, order = torch.sort(column, dim=1)
        start = torch.arange(m + 1, device=column.device) * k
        return cls(start, column.reshape(-1), value.gather(1, order).reshape(-1), (m, n))

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

    @property
    def values(self) -> Tensor:
        """``value``, of rows that have them."""
        if self.value is None:
            raise ArgumentError("These sparse rows say where their entries are, and have no values.")
        return self.value

    def __repr__(self) -> str:
        kind = "present" if self.value is None else str(self.value.dtype)
        return f"SparseRows(shape={self.shape}, entries={len(self.column)}, {kind})"

    def lengths(self) -> Tensor:
        """Entries of each row."""
        return self.start[1:] - self.start[:-1]

    def row_of_entry(self) -> Tensor:
        """Row number of every entry."""
        rows = torch.arange(self.shape[0], device=self.start.device)
        return torch.repeat_interleave(rows, self.lengths(), output_size=len(self.column))

    def keys(self) -> Tensor:
        """Ascending numbers row · columns + column of the entries."""
        return self.row_of_entry() * self.shape[1] + self.column

    def squared_norms(self) -> Tensor:
        """Squared Euclidean norm of each row."""
        return segment_sum(self.values.square(), self.row_of_entry(), self.shape[0])

    def scaled(self, factor: Tensor) -> SparseRows:
        """Every row times its own factor."""
        return SparseRows(self.start, self.column, self.values * factor[self.row_of_entry()], self.shape)

    def slice(self, first: int, last: int) -> SparseRows:
        """Rows first..last."""
        a, b = int(self.start[first]), int(self.start[last])
        value = None if self.value is None else self.value[a:b]
        return SparseRows(
            self.start[first : last + 1] - a, self.column[a:b], value, (last - first, self.shape[1])
        )

    def select(self, rows: Tensor) -> SparseRows:
        """Chosen rows, in the order given."""
        place = self._places(rows)[1]
        value = None if self.value is None else self.value[place]
        return SparseRows(
            _offsets(self.lengths()[rows]), self.column[place], value, (len(rows), self.shape[1])
        )

    def with_entries(self, own: Tensor, value: float) -> SparseRows:
        """Every row with one more entry, ``value`` at the column ``own`` (rows,), where there was none."""
        row = self.row_of_entry()
        behind = self.column > own[row]
        start = self.start + torch.arange(self.shape[0] + 1, device=self.start.device)
        place = torch.arange(len(row), device=row.device) + row + behind
        own_place = start[1:] - 1 - segment_sum(behind.to(torch.int64), row, self.shape[0])
        column = own.new_empty(len(row) + self.shape[0])
        column[place], column[own_place] = self.column.long(), own
        values = self.values.new_empty(len(column))
        values[place], values[own_place] = self.values, value
        return SparseRows(start, column, values, self.shape)

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
        return self.values[self._places(rows)[1]]

    def transpose(self) -> SparseRows:
        """Columns as rows."""
        order = torch.sort(self.column, stable=True).indices
        counts = torch.bincount(self.column, minlength=self.shape[1])
        value = None if self.value is None else self.value[order]
        return SparseRows(_offsets(counts), self.row_of_entry()[order], value, (self.shape[1], self.shape[0]))

    def to_torch(self) -> Tensor:
        """The same as a tensor of layout CSR."""
        return csr_tensor(self.start, self.column.long(), self.values, self.shape)

    def dense(self) -> Tensor:
        """The whole matrix; for tests and small sets."""
        value = torch.ones(len(self.column)) if self.value is None else self.value
        out = torch.zeros(self.shape, dtype=value.dtype, device=value.device)
        out[self.row_of_entry(), self.column.long()] = value
        return out

    def _places(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Position in ``rows`` and place among all entries, for every entry of chosen rows."""
        lengths = self.lengths()[rows]
        owner = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), lengths)
        first = torch.cumsum(lengths, 0) - lengths
        return owner, torch.arange(len(owner), device=rows.device) - first[owner] + self.start[rows][owner]


def member(keys: Tensor, known: Tensor) -> Tensor:
    """Which ``keys`` occur in the ascending ``known``."""
    if len(known) == 0:
        return torch.zeros(len(keys), dtype=torch.bool)
    place = torch.searchsorted(known, keys).clamp_(max=len(known) - 1)
    return known[place] == keys


def segment_sum(value: Tensor, segment: Tensor, n: int) -> Tensor:
    """Sums of ``value`` by segment number, shape (n,)."""
    return torch.zeros(n, dtype=value.dtype, device=value.device).index_add_(0, segment, value)


def intersections(rows: SparseRows, columns: SparseRows, *, chunk: int = _CHUNK) -> Tensor:
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


def products(rows: SparseRows, columns: SparseRows, *, chunk: int = _CHUNK) -> Tensor:
    """Inner products of every row with every column, shape (rows, columns of the other).

    Where torch has a product of sparse matrices (it comes with MKL, and is up to twenty times faster), that is used.
    """
    if _HAS_SPARSE_PRODUCT:
        whole: Tensor = torch.sparse.mm(rows.to_torch(), columns.to_torch()).to_dense()
        return whole
    return _combine(rows, columns, chunk, minimum=False)


def _combine(rows: SparseRows, columns: SparseRows, chunk: int, *, minimum: bool) -> Tensor:
    g = columns.shape[1]
    out = torch.zeros(rows.shape[0] * g, dtype=rows.values.dtype, device=rows.values.device)
    owner = rows.row_of_entry()
    work = torch.cumsum(columns.lengths()[rows.column], 0)  # partial results up to each entry
    first = 0
    while first < len(owner):
        done = int(work[first - 1]) if first else 0
        last = int(torch.searchsorted(work, done + chunk, right=True))
        last = min(max(last, first + 1), len(owner))
        entry, target = columns.gather(rows.column[first:last])
        other = columns.gather_values(rows.column[first:last])
        mine = rows.values[first:last][entry]
        part = torch.minimum(mine, other) if minimum else mine * other
        out.index_add_(0, owner[first:last][entry] * g + target, part)
        first = last
    return out.view(rows.shape[0], g)


def _offsets(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), torch.cumsum(counts, 0)])
