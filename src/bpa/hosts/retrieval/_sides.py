"""Both sides of a ranking as every ranker sees them: unit rows, and which of the sets are one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bpa._checks import check_features, check_finite, check_shape
from bpa.cost import unit_rows

__all__ = ["Sides", "sides_of"]


@dataclass(frozen=True)
class Sides:
    """Unit rows of both sides and of the bank, and which of them are the same set."""

    query: Tensor
    gallery: Tensor
    bank: Tensor
    same: bool  # query is gallery
    bank_is_gallery: bool

    def scores(self) -> Tensor:
        """Cosines of queries to the gallery, shape (n_query, n_gallery)."""
        return self.query @ self.gallery.T

    def neighbour_scores(self) -> Tensor:
        """The same, −inf where a query is the gallery item itself."""
        out = self.scores()
        return out.fill_diagonal_(-torch.inf) if self.same else out

    def bank_scores(self) -> Tensor:
        """Cosines of the bank to the gallery, −inf where a bank item is the gallery item itself."""
        out = self.bank @ self.gallery.T
        return out.fill_diagonal_(-torch.inf) if self.bank_is_gallery else out

    def gallery_scores(self) -> Tensor:
        """Cosines among the gallery, −inf at the item itself."""
        return (self.gallery @ self.gallery.T).fill_diagonal_(-torch.inf)

    def joint(self) -> Tensor:
        """All items once, queries first."""
        return self.gallery if self.same else torch.cat([self.query, self.gallery])


def sides_of(function: str, query: Tensor, gallery: Tensor | None, bank: Tensor | None = None) -> Sides:
    """Check features and bring them to unit length; without a gallery every item queries the others.

    Without a bank the gallery probes itself. An item that is in the bank does not probe itself.
    """
    for name, value in (("query", query), ("gallery", gallery), ("bank", bank)):
        if value is not None:
            check_features(value, argument=name, function=function)
            check_finite(value, argument=name, function=function)
            check_shape(value.shape, ("n", query.shape[-1]), argument=name, function=function)
    same = gallery is None or gallery is query
    q = unit_rows(query if query.dtype == torch.float64 else query.float())
    g = q if gallery is None or same else unit_rows(gallery.to(q.dtype))
    bank_is_gallery = bank is None or bank is gallery or (same and bank is query)
    b = g if bank is None or bank_is_gallery else q if bank is query else unit_rows(bank.to(q.dtype))
    return Sides(q, g, b, same, bank_is_gallery)
