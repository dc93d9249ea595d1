"""Re-ranking on neighbour graphs: shared neighbours, propagated lists, and walks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bpa._checks import check_count, check_interval
from bpa.cost import unit_rows
from bpa.errors import MemoryBudgetError
from bpa.hosts.retrieval._sides import sides_of
from bpa.hosts.retrieval.kreciprocal import k_reciprocal
from bpa.plans._search import largest
from bpa.plans._sparse import member, segment_sum

__all__ = ["diffusion", "gnn_reranking", "k_reciprocal_scores"]

_DENSE_ITEMS = 30_000


def k_reciprocal_scores(
    query: Tensor,
    gallery: Tensor | None = None,
    *,
    k1: int = 20,
    k2: int = 6,
    lam: float = 0.3,
    power: int = 2,
) -> Tensor:
    """Negative k-reciprocal distances of unit rows; see :func:`~bpa.hosts.retrieval.k_reciprocal`.

    Parameters
    ----------
    query : Tensor, shape (n_query, d)
        All queries take part at once.
    gallery : Tensor, shape (n_gallery, d), optional
    k1, k2, lam, power
        As in ``k_reciprocal``.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)
    """
    sides = sides_of("k_reciprocal_scores", query, gallery)
    fitted = k_reciprocal(
        sides.joint(), len(sides.query), k1=k1, k2=k2, lam=lam, power=power, all_against_all=sides.same
    )
    return -fitted.distances()


def gnn_reranking(
    query: Tensor,
    gallery: Tensor | None = None,
    *,
    k1: int = 26,
    k2: int = 7,
    lam: float = 0.3,
) -> Tensor:
    """Compare items by twice-propagated neighbour lists; a dense relative of k-reciprocal re-ranking.

    Parameters
    ----------
    query : Tensor, shape (n_query, d)
        All queries take part at once.
    gallery : Tensor, shape (n_gallery, d), optional
    k1, k2 : int
        Entries of a list (the item itself included), and of the part that is propagated.
    lam : float
        Weight of the original cosine.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)

    References
    ----------
    Zhang, Jiang, Zhu, Liu, Ng, Ma: Understanding Image Retrieval Re-Ranking: A Graph Neural Network
    Perspective. 2020.
    """
    check_count(k1, argument="k1", function="gnn_reranking")
    check_count(k2, argument="k2", function="gnn_reranking")
    sides = sides_of("gnn_reranking", query, gallery)
    x = sides.joint()
    n = len(x)
    if n > _DENSE_ITEMS:
        raise MemoryBudgetError(
            f"gnn_reranking holds dense {n} × {n} matrices and is offered up to {_DENSE_ITEMS} items; use k_reciprocal."
        )
    s = x @ x.T
    value, index = largest(s, max(k1, k2))
    k2 = min(k2, n)
    adjacency = torch.zeros_like(s).scatter_(1, index[:, :k1], 1.0)
    weight = value[:, :k2].square()
    for _ in range(2):
        adjacency = adjacency + adjacency.T
        spread = torch.zeros_like(adjacency)
        for c in range(k2):
            spread.addcmul_(weight[:, c : c + 1].expand_as(spread), adjacency[index[:, c]])
        adjacency = unit_rows(spread)
    q = len(sides.query)
    return (1 - lam) * (adjacency[:q] @ adjacency[n - len(sides.gallery) :].T) + lam * sides.scores()


def diffusion(
    query: Tensor,
    gallery: Tensor | None = None,
    *,
    k: int = 50,
    gamma: float = 3.0,
    a: float = 0.99,
    tol: float = 1e-6,
    max_iter: int = 200,
) -> Tensor:
    r"""Rank by a random walk on the mutual neighbour graph of the gallery.

    .. math:: (I - a S) z_q = y_q, \quad S = D^{-1/2} A D^{-1/2}, \quad A_{ij} = \max(s_{ij}, 0)^\gamma

    on mutual k-nearest neighbours, solved by conjugate gradients for all queries at once; ``y_q`` holds
    ``max(s_qj, 0) ** gamma`` on the query's own neighbours.

    Parameters
    ----------
    query : Tensor, shape (n_query, d)
    gallery : Tensor, shape (n_gallery, d), optional
    k : int
        Neighbours.
    gamma, a : float
        Exponent of the similarities, and how far the walk goes, in [0, 1).
    tol : float
        Relative residual at which a query is solved.
    max_iter : int
        Products, at most.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)

    References
    ----------
    Iscen, Tolias, Avrithis, Furon, Chum: Efficient Diffusion on Region Manifolds. CVPR 2017.
    """
    check_count(k, argument="k", function="diffusion")
    check_interval(a, "[0, 1)", argument="a", function="diffusion")
    sides = sides_of("diffusion", query, gallery)
    walk = _mutual_walk(sides.gallery_scores(), k, gamma)
    value, index = largest(sides.neighbour_scores(), k)
    start = value.clamp_min(0) ** gamma
    y = torch.zeros(len(sides.gallery), len(sides.query), dtype=start.dtype)
    y.T.scatter_(1, index, start.masked_fill(torch.isinf(value), 0))
    return _conjugate_gradients(lambda z: z - a * torch.sparse.mm(walk, z), y, tol, max_iter).T.contiguous()


def _mutual_walk(among: Tensor, k: int, gamma: float) -> Tensor:
    """S of :func:`diffusion`, sparse, from the cosines among the gallery (−inf on the diagonal)."""
    n = len(among)
    value, index = largest(among, min(k, n - 1))
    row, column = torch.arange(n)[:, None].expand_as(index).reshape(-1), index.reshape(-1)
    keys = torch.sort(row * n + column).values
    mutual = member(column * n + row, keys)
    row, column, weight = row[mutual], column[mutual], value.reshape(-1)[mutual].clamp_min(0) ** gamma
    degree = segment_sum(weight, row, n)
    inverse = torch.where(degree > 0, degree, torch.ones_like(degree)).rsqrt()
    walk = torch.sparse_coo_tensor(
        torch.stack([row, column]), inverse[row] * weight * inverse[column], (n, n), check_invariants=True
    )
    return walk.coalesce()


def _conjugate_gradients(apply: Callable[[Tensor], Tensor], y: Tensor, tol: float, max_iter: int) -> Tensor:
    """Solve apply(z) = y for every column of y."""
    z = torch.zeros_like(y)
    residual = y.clone()
    direction = residual.clone()
    energy = (residual * residual).sum(0)
    goal = tol**2 * energy
    for _ in range(max_iter):
        if bool((energy <= goal).all()):
            break
        product = apply(direction)
        curvature = (direction * product).sum(0)
        step = torch.where(curvature > 0, energy / curvature.clamp_min(1e-38), torch.zeros_like(energy))
        z += step * direction
        residual -= step * product
        new = (residual * residual).sum(0)
        direction = (
            residual
            + torch.where(energy > 0, new / energy.clamp_min(1e-38), torch.zeros_like(new)) * direction
        )
        energy = new
    return z
