"""Query expansion: replace a query, or every gallery item, by its sum with its best neighbours, and search again."""

from __future__ import annotations

import torch
from torch import Tensor

from bpa._checks import check_count
from bpa.cost import unit_rows
from bpa.hosts.retrieval._sides import sides_of
from bpa.plans._search import largest

__all__ = ["alpha_query_expansion", "average_query_expansion", "database_augmentation"]


def alpha_query_expansion(
    query: Tensor, gallery: Tensor | None = None, *, n: int = 10, alpha: float = 3.0
) -> Tensor:
    """Add the best gallery items to the query, weighted by similarity ** alpha, and search again.

    Parameters
    ----------
    query : Tensor, shape (n_query, d)
    gallery : Tensor, shape (n_gallery, d), optional
    n : int
        Neighbours added.
    alpha : float
        Exponent; 0 is average query expansion.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)

    References
    ----------
    Radenović, Tolias, Chum: Fine-tuning CNN Image Retrieval with No Human Annotation. TPAMI 2018.
    """
    check_count(n, argument="n", function="alpha_query_expansion")
    sides = sides_of("alpha_query_expansion", query, gallery)
    expanded = _expand(sides.query, sides.neighbour_scores(), sides.gallery, n, alpha)
    return expanded @ sides.gallery.T


def average_query_expansion(query: Tensor, gallery: Tensor | None = None, *, n: int = 10) -> Tensor:
    """Add the best gallery items to the query with weight one, and search again (Chum et al. 2007).

    Parameters
    ----------
    query, gallery : Tensor
        As in :func:`alpha_query_expansion`.
    n : int
        Neighbours added.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)
    """
    return alpha_query_expansion(query, gallery, n=n, alpha=0.0)


def database_augmentation(
    query: Tensor,
    gallery: Tensor | None = None,
    *,
    n: int = 10,
    alpha: float = 3.0,
    expand_query: bool = False,
) -> Tensor:
    """Replace every gallery item by its sum with its best gallery neighbours (Turcot & Lowe 2009).

    Parameters
    ----------
    query, gallery, n, alpha
        As in :func:`alpha_query_expansion`.
    expand_query : bool
        Expand the queries too, among the augmented items.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)
    """
    check_count(n, argument="n", function="database_augmentation")
    sides = sides_of("database_augmentation", query, gallery)
    augmented = _expand(sides.gallery, sides.gallery_scores(), sides.gallery, n, alpha)
    q = sides.query
    if expand_query:
        scores = q @ augmented.T
        if sides.same:
            scores.fill_diagonal_(-torch.inf)
        q = _expand(q, scores, augmented, n, alpha)
    return q @ augmented.T


def _expand(query: Tensor, scores: Tensor, members: Tensor, n: int, alpha: float) -> Tensor:
    """Unit rows of query + Σ max(s, 0)^alpha · neighbour over the n best; a score of −inf is no neighbour."""
    value, index = largest(scores, n)
    weight = value.clamp_min(0) ** alpha if alpha else torch.ones_like(value)
    weight = weight.masked_fill(torch.isinf(value), 0)
    out = query.clone()
    for c in range(index.shape[1]):
        out += weight[:, c : c + 1] * members[index[:, c]]
    return unit_rows(out)
