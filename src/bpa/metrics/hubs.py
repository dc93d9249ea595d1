"""Hubness: how unevenly gallery items appear in the top lists of the queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bpa._checks import check_count, check_shape
from bpa.errors import NonFiniteError, ShapeError

__all__ = ["Hubness", "as_blocks", "hubness", "nearest"]


@dataclass(frozen=True)
class Hubness:
    """The k-occurrence distribution of a gallery.

    Attributes
    ----------
    skewness : float
        Third standardised moment of the k-occurrences (population form); 0 when all items occur equally
        often.
    largest : int
        How many queries the most popular item serves.
    never : float
        Share of gallery items that are in nobody's top ``k``.
    k : int
        Length of the lists.
    occurrences : ndarray of int, shape (n_gallery,)
        How many queries have the item among their ``k`` nearest.

    Examples
    --------
    >>> hubness([[0.1, 0.9], [0.2, 0.8]], k=1)
    Hubness(skewness=0.0, largest=2, never=0.5, k=1)
    """

    skewness: float
    largest: int
    never: float
    k: int
    occurrences: NDArray[np.int64] = field(repr=False)


def hubness(
    distances: ArrayLike | Iterable[tuple[int, ArrayLike]],
    *,
    k: int = 10,
    self_index: ArrayLike | None = None,
) -> Hubness:
    r"""Count how often each gallery item is among the ``k`` nearest of a query, and the skew of these counts.

    .. math:: S_k = \frac{\mathbb{E}\,(N_k - \mathbb{E} N_k)^3}{(\mathbb{E}\,(N_k - \mathbb{E} N_k)^2)^{3/2}}

    Parameters
    ----------
    distances : array, shape (n_query, n_gallery)
        Smaller is closer; equal distances are taken in gallery order. Or an iterable of (first query, rows).
    k : int
        Length of a list; cut to the gallery size.
    self_index : array of int, shape (n_query,), optional
        Gallery position of each query itself, left out of its own list; −1 where it is not in the gallery.

    Returns
    -------
    Hubness

    Examples
    --------
    >>> hubness([[0.1, 0.9], [0.2, 0.8]], k=1).occurrences.tolist()
    [2, 0]
    """
    check_count(k, argument="k", function="hubness")
    own = None if self_index is None else np.asarray(self_index, dtype=np.int64)
    counts: NDArray[np.int64] | None = None
    for start, values in as_blocks(distances):
        block = values
        check_shape(block.shape, ("n_query", "n_gallery"), argument="distances", function="hubness")
        if np.isnan(block).any():
            raise NonFiniteError("The 'distances' parameter of hubness must not hold NaN.")
        if counts is None:
            counts = np.zeros(block.shape[1], np.int64)
        if own is not None:
            block = block.astype(np.float64 if block.dtype == np.float64 else np.float32)
            rows = np.arange(len(block))
            inside = own[start : start + len(block)] >= 0
            block[rows[inside], own[start : start + len(block)][inside]] = np.inf
        counts += np.bincount(nearest(block, k).ravel(), minlength=len(counts))
    if counts is None:
        raise ShapeError("The 'distances' parameter of hubness must hold at least one query.")
    deviation = counts - counts.mean()
    spread = float(np.mean(deviation**2))
    return Hubness(
        skewness=0.0 if spread == 0 else float(np.mean(deviation**3)) / spread**1.5,
        largest=int(counts.max()),
        never=float(np.mean(counts == 0)),
        k=min(k, len(counts)),
        occurrences=counts,
    )


def nearest(distances: ArrayLike, k: int) -> NDArray[np.int64]:
    """Positions of the ``k`` smallest entries of each row, ascending, equal entries by position.

    Parameters
    ----------
    distances : array, shape (n_query, n_gallery)
    k : int

    Returns
    -------
    ndarray of int64, shape (n_query, min(k, n_gallery))

    Examples
    --------
    >>> nearest([[0.5, 0.1, 0.5]], 2).tolist()
    [[1, 0]]
    """
    block = np.asarray(distances)
    k = min(k, block.shape[1])
    threshold = np.partition(block, k - 1, axis=1)[:, k - 1 : k]
    out = np.empty((len(block), k), np.int64)
    for i, row in enumerate(block):
        candidates = np.flatnonzero(row <= threshold[i])
        out[i] = candidates[np.argsort(row[candidates], kind="stable")[:k]]
    return out


def as_blocks(distances: ArrayLike | Iterable[tuple[int, ArrayLike]]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Read a matrix, or blocks of one, as (first row, rows).

    Parameters
    ----------
    distances : array, shape (n_query, n_gallery), or an iterable of (first query, rows)

    Yields
    ------
    start : int
    rows : ndarray

    Examples
    --------
    >>> [(start, rows.shape) for start, rows in as_blocks(np.zeros((3, 2)))]
    [(0, (3, 2))]
    """
    if hasattr(distances, "shape") or isinstance(distances, list | tuple):
        yield 0, np.asarray(distances)
        return
    for start, rows in cast("Iterable[tuple[int, ArrayLike]]", distances):
        yield int(start), np.asarray(rows)
