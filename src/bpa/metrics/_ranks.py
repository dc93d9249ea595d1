"""Ranks of the relevant items of one query, after deletion: from a row of distances, or from a list in rank order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ranks:
    """Ranks (from 1) of one query's relevant items, in rank order, under both tie rules and as tie blocks."""

    by_index: Ints
    pessimistic: Ints
    block_end: Ints  # rank of the last item of the tie block each relevant item is in
    block_hits: Ints  # relevant items up to the end of that block
    n_relevant: int
    n_kept: int

    @classmethod
    def in_row(cls, row: NDArray[Any], relevant: Ints, deleted: Ints) -> Ranks:
        """Of a row of distances, without sorting positions: one value sort and a few searches."""
        kept = np.sort(np.delete(row, deleted) if len(deleted) else row)
        if len(relevant) == 0:
            none = np.zeros(0, np.int64)
            return cls(none, none, none, none, n_relevant=0, n_kept=len(kept))
        own = row[relevant]
        order = np.argsort(own, kind="stable")  # relevant is ascending: equal distances stay in gallery order
        own = own[order]
        less = np.searchsorted(kept, own, side="left")
        end = np.searchsorted(kept, own, side="right")
        own_less = np.searchsorted(own, own, side="left")
        own_end = np.searchsorted(own, own, side="right")
        place = np.arange(len(own))
        pessimistic = end - (own_end - place) + 1  # relevant items last inside their tie block
        by_index = less + (place - own_less) + 1
        mixed = (end - less) != (own_end - own_less)  # the block also holds items that are not relevant
        if mixed.any():
            gone = np.zeros(len(row), dtype=bool)
            gone[deleted] = True
            for value in np.unique(own[mixed]):
                block = np.flatnonzero((row == value) & ~gone)  # ascending gallery positions
                inside = own == value
                by_index[inside] = less[inside] + np.searchsorted(block, relevant[order][inside]) + 1
        return cls(by_index, pessimistic, end, own_end, n_relevant=len(relevant), n_kept=len(kept))

    @classmethod
    def in_list(cls, positions: Ints, relevant: Ints, deleted: Ints, n_gallery: int) -> Ranks:
        """Of gallery positions in rank order, which have no ties and may leave relevant items out."""
        kept = positions[~np.isin(positions, deleted)]
        ranks = np.flatnonzero(np.isin(kept, relevant)) + 1
        hits = np.arange(1, len(ranks) + 1)
        return cls(ranks, ranks, ranks, hits, n_relevant=len(relevant), n_kept=n_gallery - len(deleted))
