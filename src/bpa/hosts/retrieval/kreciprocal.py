r"""k-reciprocal re-ranking, exact and sparse.

Two items are k-reciprocal neighbours when each is among the k nearest of the other. Re-ranking replaces the
distance of two items by how much their (expanded, smoothed) sets of reciprocal neighbours differ:

.. math:: d^*(i, j) = (1 - \lambda) \, J(i, j) + \lambda \, \bar d(i, j), \qquad
          J(i, j) = 1 - \frac{\sum_l \min(V_{il}, V_{jl})}{\sum_l \max(V_{il}, V_{jl})},

with :math:`V_{ij} = e^{-\bar d(i,j)}` on the expanded neighbours of i, rows summing to one and averaged over
the first ``k2`` neighbours. The published procedure holds six n × n matrices; here V is sparse (some 40
entries a row), the intersections come from an inverted index, and the peak is O(n·k + block·n).

References
----------
Zhong, Zheng, Cao, Li: Re-ranking Person Re-identification with k-reciprocal Encoding. CVPR 2017.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bpa._blocks import block_rows, spans
from bpa._checks import check_choice, check_count, check_interval
from bpa.errors import ArgumentError, MemoryBudgetError
from bpa.hosts.retrieval.sources import (
    DistanceSource,
    FeatureSource,
    JointNeighbours,
    ListSource,
    MatrixSource,
)
from bpa.memory import format_bytes, parse_bytes
from bpa.plans._search import smallest
from bpa.plans._sparse import SparseRows, intersections, member, segment_sum

__all__ = ["KReciprocal", "estimate_k_reciprocal_bytes", "k_reciprocal"]

_CHUNK_ENTRIES = 4_000_000


@dataclass(frozen=True)
class KReciprocal:
    """Re-ranked distances of a joint set, ready to be read in blocks or as top lists.

    Made by :meth:`fit`. Queries are the first ``n_query`` items.

    Attributes
    ----------
    encoding : SparseRows
        V after the local expansion, n × n.
    gallery_start : int
        First gallery item: ``n_query``, or 0 where every item is on both sides.

    Examples
    --------
    >>> fitted = k_reciprocal(torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), 10, k1=5, k2=2)
    >>> [rows.shape for _, rows in fitted.blocks(4)], fitted.top(3)[0].shape
    ([torch.Size([4, 20]), torch.Size([4, 20]), torch.Size([2, 20])], torch.Size([10, 3]))
    """

    source: DistanceSource = field(repr=False)
    encoding: SparseRows
    largest: Tensor = field(repr=False)
    n_query: int
    gallery_start: int
    lam: float
    power: int

    @classmethod
    def fit(
        cls,
        source: DistanceSource,
        n_query: int,
        *,
        k1: int = 20,
        k2: int = 6,
        lam: float = 0.3,
        power: int = 2,
        self_first: bool = True,
        all_against_all: bool = False,
    ) -> KReciprocal:
        """Find the reciprocal neighbours of every item and encode them; see :func:`k_reciprocal`."""
        n = source.n
        _check(n, n_query, k1, k2, lam, power, all_against_all)
        found = source.neighbours(min(k1 + 1, n), self_first=self_first)
        scale = _scaled_power(found.largest, power)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        expanded = _expand(
            _reciprocal(found.index[:, : k1 + 1]), _reciprocal(found.index[:, : round(k1 / 2) + 1])
        )
        encoding = _encode(expanded, found, source, scale, power)
        if k2 > 1:
            encoding = _average_over_neighbours(encoding, found.index[:, :k2])
        return cls(source, encoding, scale, n_query, 0 if all_against_all else n_query, lam, power)

    @property
    def n_gallery(self) -> int:
        """Number of gallery items."""
        return self.source.n - self.gallery_start

    def blocks(self, block: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """Yield (first query, distances of shape (b, n_gallery)), all queries once.

        Parameters
        ----------
        block : int, optional
            Queries a block.

        Yields
        ------
        start : int
        distances : Tensor
        """
        gallery = self.encoding.slice(self.gallery_start, self.source.n).transpose()
        for span in spans(self.n_query, block or block_rows(self.source.n, 4)):
            shared = intersections(self.encoding.slice(span.start, span.stop), gallery)
            # rows sum to one, so the sum of maxima is two minus the sum of minima
            jaccard = 1 - shared / (2 - shared)
            rows = self.source.rows(span)[:, self.gallery_start :]
            original = _scaled_power(rows, self.power) / self.largest[span, None]
            yield span.start, jaccard.to(original.dtype).mul_(1 - self.lam).add_(original, alpha=self.lam)

    def distances(self) -> Tensor:
        """All distances, shape (n_query, n_gallery)."""
        out = torch.empty(self.n_query, self.n_gallery, dtype=self.largest.dtype)
        for start, rows in self.blocks():
            out[start : start + len(rows)] = rows
        return out

    def top(self, m: int) -> tuple[Tensor, Tensor]:
        """The ``m`` best gallery positions of every query and their distances, each of shape (n_query, m)."""
        index, value = [], []
        for _, rows in self.blocks():
            best, place = smallest(rows, m)
            index.append(place)
            value.append(best)
        return torch.cat(index), torch.cat(value)


def k_reciprocal(
    features: Tensor | None = None,
    n_query: int = 1,
    *,
    distances: Tensor | None = None,
    lists: tuple[Tensor, Tensor] | None = None,
    k1: int = 20,
    k2: int = 6,
    lam: float = 0.3,
    power: int = 2,
    self_first: bool = True,
    all_against_all: bool = False,
    budget: str | int | None = None,
) -> KReciprocal:
    """Re-rank a joint set by shared reciprocal neighbours.

    Parameters
    ----------
    features : Tensor, shape (n, d), optional
        Queries first, then gallery. Give exactly one of ``features``, ``distances`` and ``lists``.
    n_query : int
        How many of the n items are queries.
    distances : Tensor, shape (n, n), optional
        Plain Euclidean distances of all items, queries first. They are raised to ``power`` here.
    lists : (index, distances), each of shape (n, k), optional
        Nearest-neighbour lists over the joint set and plain distances, as a search library gives them.
    k1, k2, lam
        Neighbours that must be reciprocal, neighbours averaged over (1 switches it off), and the weight of
        the *original* distance.
    power : {2, 4}
        2 scales squared distances, as published; 4 squares once more, as the re-identification toolboxes do
        that hand squared distances to the procedure. Neighbours are the same; weights and the mix are not.
    self_first : bool
        Put each item first in its own list, also where an exact duplicate of smaller index would precede it
        (the published code does not).
    all_against_all : bool
        Every item is on both sides; then ``n_query`` must be n.
    budget : str or int, optional
        Bytes allowed beyond the input, such as ``"2GB"``.

    Returns
    -------
    KReciprocal
        Read it with ``distances()``, ``blocks()`` or ``top(m)``.

    Notes
    -----
    Lists hold ``k1 + 1`` entries, normally the item and k1 others; the half lists of the expansion hold
    ``round(k1 / 2) + 1`` with halves rounded to even. Both are the published behaviour. Row maxima are over
    all items, so one outlier changes the weights of a row.

    Examples
    --------
    >>> x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    >>> k_reciprocal(x, 10, k1=5, k2=2).distances().shape
    torch.Size([10, 20])
    """
    given = sum(value is not None for value in (features, distances, lists))
    if given > 1:
        raise ArgumentError(
            f"k_reciprocal needs exactly one of 'features', 'distances' and 'lists'. Got {given} of them."
        )
    return KReciprocal.fit(
        _source_of(features, distances, lists, n_query, k1, budget), n_query, k1=k1, k2=k2, lam=lam, power=power,
        self_first=self_first, all_against_all=all_against_all,
    )  # fmt: skip


def _source_of(
    features: Tensor | None,
    distances: Tensor | None,
    lists: tuple[Tensor, Tensor] | None,
    n_query: int,
    k1: int,
    budget: str | int | None,
) -> DistanceSource:
    if lists is not None:
        return ListSource(*lists)
    if distances is not None:
        return MatrixSource(distances)
    if features is None:
        raise ArgumentError(
            "k_reciprocal needs exactly one of 'features', 'distances' and 'lists'. Got none."
        )
    n = int(features.shape[0])
    need = estimate_k_reciprocal_bytes(n, n_query, k1=k1, item_bytes=features.element_size())
    if budget is not None and need > parse_bytes(budget):
        raise MemoryBudgetError(
            f"k_reciprocal on {n} items needs about {format_bytes(need)} beyond the features, and the budget is "
            f"{format_bytes(parse_bytes(budget))}; pass a smaller k1, or lists from a search library."
        )
    return FeatureSource(features)


def estimate_k_reciprocal_bytes(n: int, n_query: int, *, k1: int = 20, item_bytes: int = 4) -> int:
    """Bytes beyond the input that re-ranking holds at its peak, read in blocks.

    Parameters
    ----------
    n, n_query : int
        Items of the joint set, and queries among them.
    k1 : int
        Length of the neighbour lists.
    item_bytes : int
        Of one feature.

    Returns
    -------
    int
        An upper bound for sets whose encoded rows have up to 10·k1 entries.
    """
    lists = n * (k1 + 1) * (8 + item_bytes) * 2
    encoding = n * 10 * k1 * (8 + 4) * 2
    block = 4 * block_rows(max(n, n_query), item_bytes) * n * max(item_bytes, 4)
    return lists + encoding + block + _CHUNK_ENTRIES * 8 * 8


# ---------------------------------------------------------------------------------------------- the steps


def _check(n: int, n_query: int, k1: int, k2: int, lam: float, power: int, all_against_all: bool) -> None:
    check_count(k1, argument="k1", function="k_reciprocal")
    check_count(k2, argument="k2", function="k_reciprocal")
    check_count(n_query, argument="n_query", function="k_reciprocal")
    if k2 > k1 + 1:
        raise ArgumentError(
            f"The 'k2' parameter of k_reciprocal must be at most k1 + 1 = {k1 + 1}. Got {k2}."
        )
    check_interval(lam, "[0, 1]", argument="lam", function="k_reciprocal")
    check_choice(power, (2, 4), argument="power", function="k_reciprocal")
    if all_against_all and n_query != n:
        raise ArgumentError(f"all_against_all means that all {n} items query. Got n_query={n_query}.")
    if not all_against_all and n_query >= n:
        raise ArgumentError(
            f"The 'n_query' parameter of k_reciprocal must leave a gallery among the {n} items. Got {n_query}."
        )


def _scaled_power(squared: Tensor, power: int) -> Tensor:
    return squared if power == 2 else squared.square()


def _reciprocal(index: Tensor) -> SparseRows:
    """Keep j in i's list where i is in j's list."""
    n, k = index.shape
    row = torch.arange(n)[:, None].expand(n, k).reshape(-1)
    column = index.reshape(-1)
    keys = torch.sort(row * n + column).values
    keep = member(column * n + row, keys)
    return SparseRows.from_pairs(row[keep], column[keep], None, (n, n))


def _expand(reciprocal: SparseRows, half: SparseRows) -> SparseRows:
    """Add a candidate's half list where more than two thirds of it are reciprocal neighbours already."""
    n = reciprocal.shape[0]
    known = reciprocal.keys()
    rows, columns = [reciprocal.row_of_entry()], [reciprocal.column]
    for start, stop in reciprocal.chunks(_CHUNK_ENTRIES // 16):
        owner, candidate = reciprocal.entries(start, stop)
        edge, member_of = half.gather(candidate)  # for each (i, c): the half list of c
        i = owner[edge]
        inside = member(i * n + member_of, known)
        shared = segment_sum(inside.to(torch.int64), edge, len(candidate))
        size = half.lengths()[candidate]
        accept = 3 * shared > 2 * size
        taken = accept[edge]
        rows.append(i[taken])
        columns.append(member_of[taken])
    return SparseRows.from_pairs(torch.cat(rows), torch.cat(columns), None, (n, n))


def _encode(
    expanded: SparseRows, found: JointNeighbours, source: DistanceSource, scale: Tensor, power: int
) -> SparseRows:
    """Weights exp(−scaled distance) on the expanded neighbours, rows summing to one."""
    n, k = found.index.shape
    row, column = expanded.row_of_entry(), expanded.column
    listed, order = torch.sort((torch.arange(n)[:, None] * n + found.index).reshape(-1))
    wanted = row * n + column
    place = torch.searchsorted(listed, wanted).clamp_(max=n * k - 1)
    hit = listed[place] == wanted
    squared = found.squared.reshape(-1)[order[place]]
    squared[~hit] = source.pairs(row[~hit], column[~hit]).to(squared.dtype)
    weight = torch.exp(-_scaled_power(squared, power) / scale[row])
    total = segment_sum(weight, row, n)
    return SparseRows(expanded.start, column, weight / total[row], (n, n))


def _average_over_neighbours(encoding: SparseRows, index: Tensor) -> SparseRows:
    """Replace each row by the mean of the rows of the first neighbours, all from the old rows."""
    n, k = index.shape
    per_row = max(1, int(encoding.lengths().sum()) // n) * k
    pieces = []
    for span in spans(n, _CHUNK_ENTRIES // per_row):
        edge, column = encoding.gather(index[span].reshape(-1))
        value = encoding.gather_values(index[span].reshape(-1)) / k
        pieces.append(SparseRows.from_pairs(edge // k, column, value, (span.stop - span.start, n)))
    return SparseRows.stack(pieces)
