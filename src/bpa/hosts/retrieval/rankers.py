r"""What else a user could do: query expansion, hubness corrections and re-ranking, all with one signature.

Every function takes ``(query, gallery=None, bank=None, *, ...)`` and returns scores of shape (n_query,
n_gallery), higher is better. Features are brought to unit length, :math:`s_{qj}` is their cosine.

* ``gallery=None``: every item queries the others; an item is never its own neighbour.
* ``bank``: the probes from which an item's popularity is measured; the gallery itself where it is None. An
item
  that is in the bank does not probe itself. *Using the test queries as the bank is transductive: say so.*
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bpa._checks import check_count, check_features, check_finite
from bpa.cost import unit_rows
from bpa.errors import ArgumentError, MemoryBudgetError, ShapeError
from bpa.hosts.retrieval.kreciprocal import k_reciprocal
from bpa.plans.neighbours import smallest

__all__ = [
    "RANKERS",
    "alpha_query_expansion",
    "average_query_expansion",
    "cosine",
    "csls",
    "database_augmentation",
    "diffusion",
    "dual_inverted_softmax",
    "gnn_reranking",
    "inverted_softmax",
    "k_reciprocal_scores",
    "local_scaling",
    "mutual_proximity",
    "mutual_proximity_empirical",
    "nearest_neighbour_normalisation",
    "nicdm",
    "query_bank_norm",
    "rectangular_sinkhorn",
]

_DENSE_ITEMS = 30_000


@dataclass(frozen=True)
class _Sides:
    """Unit rows of both sides and of the bank, and which of them are the same set."""

    query: Tensor
    gallery: Tensor
    bank: Tensor
    same: bool  # query is gallery
    bank_is_gallery: bool

    def scores(self) -> Tensor:
        return self.query @ self.gallery.T

    def bank_scores(self) -> Tensor:
        """Cosines of the bank (rows) to the gallery, −inf where a bank item is the gallery item itself."""
        out = self.bank @ self.gallery.T
        if self.bank_is_gallery:
            out.fill_diagonal_(-torch.inf)
        return out

    def neighbour_scores(self) -> Tensor:
        """Cosines of queries to the gallery, −inf where a query is the gallery item itself."""
        out = self.scores()
        if self.same:
            out.fill_diagonal_(-torch.inf)
        return out


def _sides(function: str, query: Tensor, gallery: Tensor | None, bank: Tensor | None) -> _Sides:
    for name, value in (("query", query), ("gallery", gallery), ("bank", bank)):
        if value is None:
            continue
        check_features(value, argument=name, function=function)
        check_finite(value, argument=name, function=function)
        if value.dim() != 2 or value.shape[1] != query.shape[1]:
            raise ShapeError(
                f"The {name!r} parameter of {function} must have shape (n, {query.shape[-1]}) like the "
                f"queries. "
                f"Got {tuple(value.shape)}."
            )
    same = gallery is None or gallery is query
    q = unit_rows(query if query.dtype == torch.float64 else query.float())
    g = q if gallery is None or same else unit_rows(gallery.to(q.dtype))
    bank_is_gallery = bank is None or bank is gallery or (same and bank is query)
    b = g if bank is None or bank_is_gallery else q if bank is query else unit_rows(bank.to(q.dtype))
    return _Sides(q, g, b, same, bank_is_gallery)


def _positive(function: str, **values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ArgumentError(f"The {name!r} parameter of {function} must be above 0. Got {value}.")


def _top_mean(scores: Tensor, k: int) -> Tensor:
    """Mean of the k largest finite entries of each row."""
    value = torch.topk(scores, min(k, scores.shape[1]), dim=1).values
    finite = torch.isfinite(value)
    return value.masked_fill(~finite, 0).sum(dim=1) / finite.sum(dim=1).clamp_min(1)


def _nearest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of each row: scores, positions; entries of −inf come back with weight zero below."""
    value, index = smallest(-scores, k)
    return -value, index


# ---------------------------------------------------------------------------------------------- plain


def cosine(query: Tensor, gallery: Tensor | None = None, bank: Tensor | None = None) -> Tensor:
    """Cosine similarity: what there is without any correction.

    Parameters
    ----------
    query : Tensor, shape (n_query, d)
    gallery : Tensor, shape (n_gallery, d), optional
    bank : Tensor, shape (m, d), optional
        Not used.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)
    """
    return _sides("cosine", query, gallery, bank).scores()


# -------------------------------------------------------------------------------------------- query expansion


def _expand(query: Tensor, scores: Tensor, members: Tensor, n: int, alpha: float) -> Tensor:
    """Unit rows of query + Σ max(s, 0)^alpha · neighbour over the n best."""
    value, index = _nearest(scores, n)
    weight = value.clamp_min(0) ** alpha if alpha else torch.ones_like(value)
    weight = weight.masked_fill(torch.isinf(value), 0)
    out = query.clone()
    for c in range(index.shape[1]):
        out += weight[:, c : c + 1] * members[index[:, c]]
    return unit_rows(out)


def alpha_query_expansion(
    query: Tensor,
    gallery: Tensor | None = None,
    bank: Tensor | None = None,
    *,
    n: int = 10,
    alpha: float = 3.0,
) -> Tensor:
    """Add the best gallery items to the query, weighted by similarity ** alpha, and search again.

    Parameters
    ----------
    query, gallery, bank : Tensor
        As in :func:`cosine`; ``bank`` is not used.
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
    sides = _sides("alpha_query_expansion", query, gallery, bank)
    expanded = _expand(sides.query, sides.neighbour_scores(), sides.gallery, n, alpha)
    return expanded @ sides.gallery.T


def average_query_expansion(
    query: Tensor, gallery: Tensor | None = None, bank: Tensor | None = None, *, n: int = 10
) -> Tensor:
    """Add the best gallery items to the query with weight one, and search again (Chum et al. 2007).

    Parameters
    ----------
    query, gallery, bank : Tensor
        As in :func:`cosine`; ``bank`` is not used.
    n : int
        Neighbours added.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)
    """
    return alpha_query_expansion(query, gallery, bank, n=n, alpha=0.0)


def database_augmentation(
    query: Tensor,
    gallery: Tensor | None = None,
    bank: Tensor | None = None,
    *,
    n: int = 10,
    alpha: float = 3.0,
    expand_query: bool = False,
) -> Tensor:
    """Replace every gallery item by its sum with its best gallery neighbours (Turcot & Lowe 2009).

    Parameters
    ----------
    query, gallery, bank : Tensor
        As in :func:`cosine`; ``bank`` is not used.
    n, alpha
        As in :func:`alpha_query_expansion`.
    expand_query : bool
        Expand the queries too, among the augmented items.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)
    """
    check_count(n, argument="n", function="database_augmentation")
    sides = _sides("database_augmentation", query, gallery, bank)
    among = sides.gallery @ sides.gallery.T
    among.fill_diagonal_(-torch.inf)
    augmented = _expand(sides.gallery, among, sides.gallery, n, alpha)
    q = sides.query
    if expand_query:
        scores = q @ augmented.T
        if sides.same:
            scores.fill_diagonal_(-torch.inf)
        q = _expand(q, scores, augmented, n, alpha)
    return q @ augmented.T


# ---------------------------------------------------------------------------------------------- re-ranking


def _joint(sides: _Sides) -> Tensor:
    return sides.gallery if sides.same else torch.cat([sides.query, sides.gallery])


def k_reciprocal_scores(
    query: Tensor,
    gallery: Tensor | None = None,
    bank: Tensor | None = None,
    *,
    k1: int = 20,
    k2: int = 6,
    lam: float = 0.3,
    power: int = 2,
) -> Tensor:
    """Negative k-reciprocal distances of unit rows; see :func:`bpa.hosts.retrieval.kreciprocal.k_reciprocal`.

    Parameters
    ----------
    query, gallery, bank : Tensor
        As in :func:`cosine`; ``bank`` is not used. All queries take part at once.
    k1, k2, lam, power
        As in ``k_reciprocal``.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)
    """
    sides = _sides("k_reciprocal_scores", query, gallery, bank)
    fitted = k_reciprocal(
        _joint(sides), len(sides.query), k1=k1, k2=k2, lam=lam, power=power, all_against_all=sides.same
    )
    return -fitted.distances()


def gnn_reranking(
    query: Tensor,
    gallery: Tensor | None = None,
    bank: Tensor | None = None,
    *,
    k1: int = 26,
    k2: int = 7,
    lam: float = 0.3,
) -> Tensor:
    """Compare items by twice-propagated neighbour lists; a dense relative of k-reciprocal re-ranking.

    Parameters
    ----------
    query, gallery, bank : Tensor
        As in :func:`cosine`; ``bank`` is not used. All queries take part at once.
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
    sides = _sides("gnn_reranking", query, gallery, bank)
    x = _joint(sides)
    n = len(x)
    if n > _DENSE_ITEMS:
        raise MemoryBudgetError(
            f"gnn_reranking holds dense {n} × {n} matrices and is offered up to {_DENSE_ITEMS} items; use "
            f"k_reciprocal."
        )
    s = x @ x.T
    value, index = _nearest(s, max(k1, k2))
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
    bank: Tensor | None = None,
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
    query, gallery, bank : Tensor
        As in :func:`cosine`; ``bank`` is not used.
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
    if not 0 <= a < 1:
        raise ArgumentError(f"The 'a' parameter of diffusion must be in [0, 1). Got {a}.")
    sides = _sides("diffusion", query, gallery, bank)
    n = len(sides.gallery)
    among = sides.gallery @ sides.gallery.T
    among.fill_diagonal_(-torch.inf)
    value, index = (
        _nearest(among, min(k, n - 1)) if n > 1 else (among[:, :0], torch.zeros(n, 0, dtype=torch.long))
    )
    keys = torch.sort((torch.arange(n)[:, None] * n + index).reshape(-1)).values
    row = torch.arange(n)[:, None].expand_as(index).reshape(-1)
    column = index.reshape(-1)
    back = column * n + row
    place = torch.searchsorted(keys, back).clamp_(max=max(len(keys) - 1, 0))
    mutual = keys[place] == back if len(keys) else torch.zeros(0, dtype=torch.bool)
    row, column, weight = row[mutual], column[mutual], value.reshape(-1)[mutual].clamp_min(0) ** gamma
    degree = torch.zeros(n, dtype=weight.dtype).index_add_(0, row, weight)
    inverse = torch.where(degree > 0, degree, torch.ones_like(degree)).rsqrt()
    walk = torch.sparse_coo_tensor(
        torch.stack([row, column]), inverse[row] * weight * inverse[column], (n, n), check_invariants=True
    )
    walk = walk.coalesce()
    value, index = _nearest(sides.neighbour_scores(), k)
    start = value.clamp_min(0) ** gamma
    y = torch.zeros(n, len(sides.query), dtype=start.dtype)
    y.T.scatter_(1, index, start.masked_fill(torch.isinf(value), 0))
    return _conjugate_gradients(lambda z: z - a * torch.sparse.mm(walk, z), y, tol, max_iter).T.contiguous()


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


# ---------------------------------------------------------------------------------------- hubness corrections


def csls(query: Tensor, gallery: Tensor | None = None, bank: Tensor | None = None, *, k: int = 10) -> Tensor:
    """Cross-domain similarity local scaling: twice the cosine minus how near the item is to its best probes.

    Parameters
    ----------
    query, gallery, bank : Tensor
        As in :func:`cosine`; the bank probes the gallery.
    k : int
        Probes averaged.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)
        The query's own term is left out: it does not change a ranking.

    References
    ----------
    Conneau, Lample, Ranzato, Denoyer, Jégou: Word Translation Without Parallel Data. ICLR 2018.
    """
    check_count(k, argument="k", function="csls")
    sides = _sides("csls", query, gallery, bank)
    return 2 * sides.scores() - _top_mean(sides.bank_scores().T, k)[None]


def nearest_neighbour_normalisation(
    query: Tensor,
    gallery: Tensor | None = None,
    bank: Tensor | None = None,
    *,
    k: int = 16,
    alpha: float = 0.75,
) -> Tensor:
    """Cosine minus ``alpha`` times the mean of the item's ``k`` best probes.

    Parameters
    ----------
    query, gallery, bank : Tensor
        As in :func:`cosine`; the bank probes the gallery.
    k : int
        Probes averaged.
    alpha : float
        Strength; with 0.5 the ranking is that of :func:`csls`.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)

    References
    ----------
    Chowdhury et al.: Nearest Neighbor Normalization Improves Multimodal Retrieval. EMNLP 2024.
    """
    check_count(k, argument="k", function="nearest_neighbour_normalisation")
    sides = _sides("nearest_neighbour_normalisation", query, gallery, bank)
    return sides.scores() - alpha * _top_mean(sides.bank_scores().T, k)[None]


def inverted_softmax(
    query: Tensor, gallery: Tensor | None = None, bank: Tensor | None = None, *, beta: float = 20.0
) -> Tensor:
    """Log of the share of the item's probe mass that a query takes: one Sinkhorn column step.

    Parameters
    ----------
    query, gallery, bank : Tensor
        As in :func:`cosine`; the bank probes the gallery.
    beta : float
        Inverse temperature.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)

    References
    ----------
    Smith, Turban, Hamblin, Hammerla: Offline Bilingual Word Vectors. ICLR 2017.
    """
    _positive("inverted_softmax", beta=beta)
    sides = _sides("inverted_softmax", query, gallery, bank)
    return beta * sides.scores() - torch.logsumexp(beta * sides.bank_scores(), dim=0)[None]


def query_bank_norm(
    query: Tensor,
    gallery: Tensor | None = None,
    bank: Tensor | None = None,
    *,
    beta: float = 20.0,
    k: int = 1,
) -> Tensor:
    """Inverted softmax for the queries whose best item is some probe's best too; plain cosine for the others.

    Parameters
    ----------
    query, gallery, bank : Tensor
        As in :func:`cosine`; the bank probes the gallery.
    beta : float
        Inverse temperature.
    k : int
        Items of each probe that count as hubs.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)
        Scores of two kinds: compare within a row only.

    References
    ----------
    Bogolin, Croitoru, Jin, Liu, Albanie: Cross Modal Retrieval with Querybank Normalisation. CVPR 2022.
    """
    _positive("query_bank_norm", beta=beta)
    check_count(k, argument="k", function="query_bank_norm")
    sides = _sides("query_bank_norm", query, gallery, bank)
    probes = sides.bank_scores()
    hub = torch.zeros(len(sides.gallery), dtype=torch.bool)
    hub[torch.topk(probes, min(k, probes.shape[1]), dim=1).indices.reshape(-1)] = True
    scores = sides.scores()
    corrected = beta * scores - torch.logsumexp(beta * probes, dim=0)[None]
    active = hub[sides.neighbour_scores().argmax(dim=1)]
    return torch.where(active[:, None], corrected, scores)


def dual_inverted_softmax(
    query: Tensor,
    gallery: Tensor | None = None,
    bank: Tensor | None = None,
    *,
    beta: float = 20.0,
    gallery_beta: float = 20.0,
) -> Tensor:
    """Product (sum of logarithms) of two inverted softmaxes, one from the bank and one from the gallery.

    Parameters
    ----------
    query, gallery, bank : Tensor
        As in :func:`cosine`. With ``bank=None`` both banks are the gallery.
    beta, gallery_beta : float
        Inverse temperatures of the two.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)

    References
    ----------
    Wang, Jian, Xue: Balance Act: Mitigating Hubness in Cross-Modal Retrieval with Query and Gallery Banks.
    EMNLP 2023.
    """
    _positive("dual_inverted_softmax", beta=beta, gallery_beta=gallery_beta)
    sides = _sides("dual_inverted_softmax", query, gallery, bank)
    scores = sides.scores()
    among = sides.gallery @ sides.gallery.T
    among.fill_diagonal_(-torch.inf)
    first = beta * scores - torch.logsumexp(beta * sides.bank_scores(), dim=0)[None]
    second = gallery_beta * scores - torch.logsumexp(gallery_beta * among, dim=0)[None]
    return first + second


def rectangular_sinkhorn(
    query: Tensor,
    gallery: Tensor | None = None,
    bank: Tensor | None = None,
    *,
    beta: float = 20.0,
    n_iter: int = 5,
) -> Tensor:
    r"""Cosine plus the item's Sinkhorn potential against the bank: :math:`\beta s_{qj} + \log v_j`.

    Parameters
    ----------
    query, gallery, bank : Tensor
        As in :func:`cosine`; bank and gallery are balanced with uniform marginals of equal mass.
    beta : float
        Inverse temperature.
    n_iter : int
        Sweeps; one is inverted softmax after a row step.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)

    References
    ----------
    Pan, Zhang, et al.: Dual-bank Sinkhorn normalisation for cross-modal retrieval. ACM MM 2025.
    """
    _positive("rectangular_sinkhorn", beta=beta)
    check_count(n_iter, argument="n_iter", function="rectangular_sinkhorn")
    sides = _sides("rectangular_sinkhorn", query, gallery, bank)
    log_kernel = beta * sides.bank_scores()
    m, n = log_kernel.shape
    log_v = torch.zeros(n, dtype=log_kernel.dtype)
    for _ in range(n_iter):
        log_u = -torch.logsumexp(log_kernel + log_v[None], dim=1)  # rows of mass one
        log_v = -torch.logsumexp(
            log_kernel + log_u[:, None], dim=0
        )  # columns of mass m / n, up to a constant
        log_v += torch.log(torch.tensor(m / n, dtype=log_v.dtype))
    return beta * sides.scores() + log_v[None]


def _euclidean(scores: Tensor) -> Tensor:
    return (2 - 2 * scores).clamp_min(0).sqrt()


def mutual_proximity(query: Tensor, gallery: Tensor | None = None, bank: Tensor | None = None) -> Tensor:
    """Probability that both would be farther from a random item, with independent Gaussian distances.

    Parameters
    ----------
    query, gallery, bank : Tensor
        As in :func:`cosine`. Means and deviations of a gallery item are over the distances of the bank to it;
        those of a query over its distances to the gallery.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)
        Logarithms of the probabilities, which do not underflow.

    References
    ----------
    Schnitzer, Flexer, Schedl, Widmer: Local and Global Scaling Reduce Hubs in Space. JMLR 2012.
    """
    sides = _sides("mutual_proximity", query, gallery, bank)
    cross = _euclidean(sides.scores())
    own = cross.clone()
    if sides.same:
        own.fill_diagonal_(torch.nan)
    probes = _euclidean(sides.bank @ sides.gallery.T)
    if sides.bank_is_gallery:
        probes.fill_diagonal_(torch.nan)
    mean_q, sd_q = _moments(own, 1)
    mean_g, sd_g = _moments(probes, 0)
    out: Tensor = torch.special.log_ndtr((mean_q - cross) / sd_q) + torch.special.log_ndtr(
        (mean_g - cross) / sd_g
    )
    return out


def _moments(values: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    mean = torch.nanmean(values, dim=dim, keepdim=True)
    deviation = torch.nanmean((values - mean).square(), dim=dim, keepdim=True).sqrt()
    return mean, deviation.clamp_min(torch.finfo(values.dtype).tiny ** 0.5)


def mutual_proximity_empirical(
    query: Tensor, gallery: Tensor | None = None, bank: Tensor | None = None
) -> Tensor:
    """Share of third items that are farther from both; cubic, for small sets.

    Parameters
    ----------
    query, gallery, bank : Tensor
        As in :func:`cosine`. Third items are those of the bank, the pair itself left out.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)
    """
    sides = _sides("mutual_proximity_empirical", query, gallery, bank)
    n_query, n_gallery, n_bank = len(sides.query), len(sides.gallery), len(sides.bank)
    if n_query * n_gallery * n_bank > 4e9:
        raise ArgumentError(
            f"mutual_proximity_empirical compares {n_query} × {n_gallery} × {n_bank} triples, which is too "
            f"many; use "
            "mutual_proximity."
        )
    cross = _euclidean(sides.scores())
    to_query = _euclidean(sides.query @ sides.bank.T)
    to_gallery = _euclidean(sides.gallery @ sides.bank.T)
    if sides.same and sides.bank_is_gallery:
        to_query.fill_diagonal_(-torch.inf)
    if sides.bank_is_gallery:
        to_gallery.fill_diagonal_(-torch.inf)  # the item itself is never a farther third one
    elif sides.bank is sides.query:
        to_query.fill_diagonal_(-torch.inf)
    out = torch.empty_like(cross)
    for i in range(n_query):
        far = (to_query[i][None] > cross[i][:, None]) & (to_gallery > cross[i][:, None])
        out[i] = far.sum(dim=1) / n_bank
    return out


def local_scaling(
    query: Tensor, gallery: Tensor | None = None, bank: Tensor | None = None, *, k: int = 10
) -> Tensor:
    r"""Exponential of the squared distance in units of both items' k-th neighbour distances.

    .. math:: \exp(-d_{qj}^2 / (\sigma_q \sigma_j))

    Parameters
    ----------
    query, gallery, bank : Tensor
        As in :func:`cosine`. A query's unit comes from the gallery, a gallery item's from the bank.
    k : int
        Which neighbour.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)
        Minus the scaled squared distance, which ranks like the exponential and does not underflow.
    """
    check_count(k, argument="k", function="local_scaling")
    sides = _sides("local_scaling", query, gallery, bank)
    sigma_q = _euclidean(_kth(sides.neighbour_scores(), k))
    sigma_g = _euclidean(_kth(sides.bank_scores().T, k))
    tiny = torch.finfo(sigma_q.dtype).tiny ** 0.5
    squared = (2 - 2 * sides.scores()).clamp_min(0)
    return -squared / (sigma_q.clamp_min(tiny)[:, None] * sigma_g.clamp_min(tiny)[None])


def _kth(scores: Tensor, k: int) -> Tensor:
    """The k-th best finite score of each row (the worst one where there are fewer)."""
    value = torch.topk(scores, min(k, scores.shape[1]), dim=1).values
    count = torch.isfinite(value).sum(dim=1).clamp_min(1)
    return value.gather(1, count[:, None] - 1)[:, 0]


def nicdm(query: Tensor, gallery: Tensor | None = None, bank: Tensor | None = None, *, k: int = 10) -> Tensor:
    r"""Distance over the geometric mean of both items' mean neighbour distances.

    .. math:: -d_{qj} / \sqrt{\mu_q \mu_j}

    Parameters
    ----------
    query, gallery, bank : Tensor
        As in :func:`local_scaling`.
    k : int
        Neighbours averaged.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)

    References
    ----------
    Jégou, Harzallah, Schmid: A Contextual Dissimilarity Measure for Accurate and Efficient Image Search. CVPR
    2007.
    """
    check_count(k, argument="k", function="nicdm")
    sides = _sides("nicdm", query, gallery, bank)
    mean_q = _mean_distance(sides.neighbour_scores(), k)
    mean_g = _mean_distance(sides.bank_scores().T, k)
    tiny = torch.finfo(mean_q.dtype).tiny ** 0.5
    scale = (mean_q.clamp_min(tiny)[:, None] * mean_g.clamp_min(tiny)[None]).sqrt()
    return -_euclidean(sides.scores()) / scale


def _mean_distance(scores: Tensor, k: int) -> Tensor:
    value = torch.topk(scores, min(k, scores.shape[1]), dim=1).values
    finite = torch.isfinite(value)
    distance = _euclidean(value.masked_fill(~finite, 1.0))
    return distance.sum(dim=1) / finite.sum(dim=1).clamp_min(1)


RANKERS: dict[str, Callable[..., Tensor]] = {
    "cosine": cosine,
    "average-qe": average_query_expansion,
    "alpha-qe": alpha_query_expansion,
    "dba": database_augmentation,
    "k-reciprocal": k_reciprocal_scores,
    "gnn": gnn_reranking,
    "diffusion": diffusion,
    "csls": csls,
    "nnn": nearest_neighbour_normalisation,
    "inverted-softmax": inverted_softmax,
    "qb-norm": query_bank_norm,
    "dual-is": dual_inverted_softmax,
    "sinkhorn": rectangular_sinkhorn,
    "mutual-proximity": mutual_proximity,
    "local-scaling": local_scaling,
    "nicdm": nicdm,
}
"""Every baseline that scales beyond toy size, by the name the commands use."""
