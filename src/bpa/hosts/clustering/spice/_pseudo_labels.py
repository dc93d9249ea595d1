"""What a head teaches itself: labels for the items nearest to its prototypes, and the loss it learns them by."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bpa._checks import check_count
from bpa.errors import ShapeError


@dataclass(frozen=True)
class PseudoLabels:
    """What one head teaches itself in one round.

    Attributes
    ----------
    indices : Tensor of int64, shape (K · n_labelled,)
        Items, cluster after cluster. An item may appear under several clusters, or under none.
    labels : Tensor of int64, shape (K · n_labelled,)
        Their clusters; every cluster occurs ``n_labelled`` times.
    prototypes : Tensor, shape (K, w)
        Means of the confident items, not normalised.

    Examples
    --------
    >>> sure = torch.tensor([[0.9, 0.1], [0.1, 0.9]])
    >>> prototype_pseudo_labels(sure, torch.eye(2), n_confident=1, n_labelled=1).prototypes.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    indices: Tensor
    labels: Tensor
    prototypes: Tensor


def prototype_pseudo_labels(
    probabilities: Tensor, embedding: Tensor, *, n_confident: int, n_labelled: int
) -> PseudoLabels:
    """Label the items nearest to each cluster's prototype.

    Parameters
    ----------
    probabilities : Tensor, shape (M, K)
        Of one head.
    embedding : Tensor, shape (M, w)
        E: the features prototypes are averaged and compared in.
    n_confident : int
        k, the items with the highest probability that make a prototype.
    n_labelled : int
        The items with the largest dot product with a prototype that receive its label.

    Returns
    -------
    PseudoLabels
        Balanced by construction. Ties are decided in favour of the smaller index.

    Examples
    --------
    >>> sure = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.4, 0.6], [0.1, 0.9]])
    >>> taught = prototype_pseudo_labels(sure, torch.eye(4), n_confident=1, n_labelled=2)
    >>> taught.indices.tolist(), taught.labels.tolist()
    ([0, 1, 3, 0], [0, 0, 1, 1])
    """
    m, k = probabilities.shape
    if embedding.shape[:-1] != (m,):
        raise ShapeError(
            f"The 'embedding' parameter of prototype_pseudo_labels must have one row for each of the {m} rows of "
            f"'probabilities'. Got {tuple(embedding.shape)}."
        )
    for name, count in (("n_confident", n_confident), ("n_labelled", n_labelled)):
        check_count(count, argument=name, function="prototype_pseudo_labels", maximum=m)
    confident = _largest(probabilities.T, n_confident)  # (K, k)
    prototypes = embedding[confident].mean(dim=1)  # (K, w), not normalised again
    nearest = _largest(prototypes @ embedding.T, n_labelled)  # (K, n), clusters independent of one another
    labels = torch.arange(k, device=nearest.device).repeat_interleave(n_labelled)
    return PseudoLabels(indices=nearest.flatten(), labels=labels, prototypes=prototypes)


def double_softmax_loss(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of probabilities taken as logits.

    Parameters
    ----------
    probabilities : Tensor, shape (..., b, K)
        Already softmaxed.
    labels : Tensor of int64, shape (..., b)

    Returns
    -------
    Tensor, shape ()
        Mean over all items; never below :func:`double_softmax_floor`. Differentiable, with gradients
        bounded in the probabilities.

    Examples
    --------
    >>> certain, right = torch.eye(3), torch.arange(3)
    >>> round(float(double_softmax_loss(certain, right)), 4), round(double_softmax_floor(3), 4)
    (0.5514, 0.5514)
    """
    return nn.functional.cross_entropy(probabilities.flatten(0, -2), labels.flatten())


def double_softmax_floor(n_clusters: int) -> float:
    """Smallest value of the double softmax loss: log((e + K − 1) / e).

    Parameters
    ----------
    n_clusters : int
        K.

    Returns
    -------
    float

    Examples
    --------
    >>> round(double_softmax_floor(10), 4), round(double_softmax_floor(20), 4)
    (1.4612, 2.0782)
    """
    return math.log((math.e + n_clusters - 1) / math.e)


def _largest(values: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` largest along the last axis; equal values keep their order, on any device."""
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :count]
