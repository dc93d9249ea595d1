"""Whether neighbours in the features can mean anything, seen without labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from bpa._checks import check_count, check_shape
from bpa.hosts.clustering.spice._neighbours import nearest_others


@dataclass(frozen=True)
class EmbeddingDiagnostics:
    """Signs, without labels, of whether neighbours in the features can mean anything.

    Attributes
    ----------
    mean_cosine : float
        Mean cosine between different items. Above 0.5 the features have collapsed towards one direction.
    mean_neighbour_cosine : float
        Mean cosine between an item and its nearest ``n_neighbours`` others.
    hubness : float
        Skewness of how often an item is among the neighbours of others.
    n_neighbours : int
        Neighbours looked at.

    Examples
    --------
    >>> embedding_diagnostics(torch.eye(4), n_neighbours=2).mean_neighbour_cosine
    0.0
    """

    mean_cosine: float
    mean_neighbour_cosine: float
    hubness: float
    n_neighbours: int


def embedding_diagnostics(features: Tensor, *, n_neighbours: int = 20) -> EmbeddingDiagnostics:
    """Measure, without labels, how collapsed and how hubby features are.

    Parameters
    ----------
    features : Tensor, shape (n, d)
        Rows are L2-normalised here; n ≥ 2.
    n_neighbours : int
        Nearest other items looked at, at most n − 1.

    Returns
    -------
    EmbeddingDiagnostics

    Examples
    --------
    >>> x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    >>> abs(embedding_diagnostics(x).mean_cosine) < 0.1, embedding_diagnostics(x + 5).mean_cosine > 0.9
    (True, True)
    """
    check_shape(features.shape, ("n", "d"), argument="features", function="embedding_diagnostics")
    f = normalize(features, dim=-1)
    n = len(f)
    check_count(n_neighbours, argument="n_neighbours", function="embedding_diagnostics", maximum=n - 1)
    squares = f.double().square().sum()
    mean_cosine = (f.double().sum(dim=0).square().sum() - squares) / (n * (n - 1))
    total = 0.0
    occurrences = torch.zeros(n, dtype=torch.float64, device=f.device)
    for _, cosines, near in nearest_others(f, n_neighbours):
        total += float(cosines.double().sum())
        occurrences += torch.bincount(near.flatten(), minlength=n)
    centred = occurrences - occurrences.mean()
    spread = centred.square().mean().sqrt()
    return EmbeddingDiagnostics(
        mean_cosine=float(mean_cosine),
        mean_neighbour_cosine=total / (n * n_neighbours),
        hubness=float((centred**3).mean() / spread**3) if spread > 0 else 0.0,
        n_neighbours=n_neighbours,
    )
