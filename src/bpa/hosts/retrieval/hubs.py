r"""Hubness corrections: take from a gallery item what makes it popular with every query.

Scores are cosines :math:`s_{qj}`, higher is better, minus what a *bank* of probes says of item j; without a bank the
gallery probes itself. An item that is in the bank does not probe itself. *Using the test queries as the bank is
transductive: say so.* Shapes: query (n_query, d), gallery (n_gallery, d), bank (m, d); without a gallery every item
queries the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bpa._checks import check_count, check_positive
from bpa.errors import ArgumentError, DTypeError
from bpa.hosts.retrieval._sides import sides_of
from bpa.solvers import Sweeps
from bpa.solvers._choice import PAPER_SWEEPS
from bpa.solvers._kernel import make_kernel
from bpa.solvers._sinkhorn import alternate

__all__ = [
    "csls",
    "dual_inverted_softmax",
    "inverted_softmax",
    "local_scaling",
    "mutual_proximity",
    "mutual_proximity_empirical",
    "nearest_neighbour_normalisation",
    "nicdm",
    "query_bank_norm",
    "rectangular_sinkhorn",
]


def csls(query: Tensor, gallery: Tensor | None = None, bank: Tensor | None = None, *, k: int = 10) -> Tensor:
    """Cross-domain similarity local scaling: twice the cosine minus how near the item is to its best probes.

    Parameters
    ----------
    query, gallery, bank : Tensor
        See the module.
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
    sides = sides_of("csls", query, gallery, bank)
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
        See the module.
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
    sides = sides_of("nearest_neighbour_normalisation", query, gallery, bank)
    return sides.scores() - alpha * _top_mean(sides.bank_scores().T, k)[None]


def inverted_softmax(
    query: Tensor, gallery: Tensor | None = None, bank: Tensor | None = None, *, beta: float = 20.0
) -> Tensor:
    """Log of the share of the item's probe mass that a query takes: one Sinkhorn column step.

    Parameters
    ----------
    query, gallery, bank : Tensor
        See the module.
    beta : float
        Inverse temperature.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)

    References
    ----------
    Smith, Turban, Hamblin, Hammerla: Offline Bilingual Word Vectors. ICLR 2017.
    """
    check_positive(beta, argument="beta", function="inverted_softmax")
    sides = sides_of("inverted_softmax", query, gallery, bank)
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
        See the module.
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
    check_positive(beta, argument="beta", function="query_bank_norm")
    check_count(k, argument="k", function="query_bank_norm")
    sides = sides_of("query_bank_norm", query, gallery, bank)
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
        See the module. Without a bank both banks are the gallery.
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
    check_positive(beta, argument="beta", function="dual_inverted_softmax")
    check_positive(gallery_beta, argument="gallery_beta", function="dual_inverted_softmax")
    sides = sides_of("dual_inverted_softmax", query, gallery, bank)
    scores = sides.scores()
    first = beta * scores - torch.logsumexp(beta * sides.bank_scores(), dim=0)[None]
    second = gallery_beta * scores - torch.logsumexp(gallery_beta * sides.gallery_scores(), dim=0)[None]
    return first + second


def rectangular_sinkhorn(
    query: Tensor,
    gallery: Tensor | None = None,
    bank: Tensor | None = None,
    *,
    beta: float = 20.0,
    solver: Sweeps = PAPER_SWEEPS,
) -> Tensor:
    r"""Cosine plus the item's Sinkhorn potential against the bank: :math:`\beta s_{qj} + \log v_j`.

    Parameters
    ----------
    query, gallery, bank : Tensor
        See the module; bank and gallery are balanced with uniform marginals of equal mass.
    beta : float
        Inverse temperature.
    solver : Sweeps
        How many; one is inverted softmax after a row step.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)

    References
    ----------
    Pan, Zhang, et al.: Dual-bank Sinkhorn normalisation for cross-modal retrieval. ACM MM 2025.
    """
    check_positive(beta, argument="beta", function="rectangular_sinkhorn")
    if not isinstance(solver, Sweeps):
        raise DTypeError(
            f"The 'solver' parameter of rectangular_sinkhorn must be Sweeps(n): bank and gallery are no symmetric set. "
            f"Got {solver!r}."
        )
    sides = sides_of("rectangular_sinkhorn", query, gallery, bank)
    log_kernel = sides.bank_scores().mul_(beta)
    m, n = log_kernel.shape
    mass = log_kernel.new_full((n,), m / n).log()  # rows of mass one, columns of mass m / n
    kernel = make_kernel(log_kernel, None, mass, bounds=(-beta, beta), symmetric=False)
    return beta * sides.scores() + alternate(kernel, n_iter=solver.n).log_v[-1]


def _euclidean(scores: Tensor) -> Tensor:
    return (2 - 2 * scores).clamp_min(0).sqrt()


def mutual_proximity(query: Tensor, gallery: Tensor | None = None, bank: Tensor | None = None) -> Tensor:
    """Probability that both would be farther from a random item, with independent Gaussian distances.

    Parameters
    ----------
    query, gallery, bank : Tensor
        See the module. Means and deviations of a gallery item are over the distances of the bank to it; those of a
        query over its distances to the gallery.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)
        Logarithms of the probabilities, which do not underflow.

    References
    ----------
    Schnitzer, Flexer, Schedl, Widmer: Local and Global Scaling Reduce Hubs in Space. JMLR 2012.
    """
    sides = sides_of("mutual_proximity", query, gallery, bank)
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
        See the module. Third items are those of the bank, the pair itself left out.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)
    """
    sides = sides_of("mutual_proximity_empirical", query, gallery, bank)
    n_query, n_gallery, n_bank = len(sides.query), len(sides.gallery), len(sides.bank)
    if n_query * n_gallery * n_bank > 4e9:
        raise ArgumentError(
            f"mutual_proximity_empirical compares {n_query} × {n_gallery} × {n_bank} triples, which is too many; use "
            f"mutual_proximity."
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
        See the module. A query's unit comes from the gallery, a gallery item's from the bank.
    k : int
        Which neighbour.

    Returns
    -------
    Tensor, shape (n_query, n_gallery)
        Minus the scaled squared distance, which ranks like the exponential and does not underflow.
    """
    check_count(k, argument="k", function="local_scaling")
    sides = sides_of("local_scaling", query, gallery, bank)
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
    sides = sides_of("nicdm", query, gallery, bank)
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


def _top_mean(scores: Tensor, k: int) -> Tensor:
    """Mean of the k largest finite entries of each row."""
    value = torch.topk(scores, min(k, scores.shape[1]), dim=1).values
    finite = torch.isfinite(value)
    return value.masked_fill(~finite, 0).sum(dim=1) / finite.sum(dim=1).clamp_min(1)
