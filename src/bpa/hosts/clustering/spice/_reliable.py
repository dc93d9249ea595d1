"""Labels worth training another network on: where an item, its neighbours and its probability agree."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from bpa._checks import check_count, check_interval, check_shape
from bpa.errors import ArgumentError
from bpa.hosts.clustering.spice._neighbours import nearest_others

_NO_LABEL = -100


@dataclass(frozen=True)
class ReliableLabels:
    """Labels worth training another network on.

    Attributes
    ----------
    labels : Tensor of int64, shape (n,)
        The cluster of a reliable item, −100 elsewhere.
    n_agreeing : Tensor of int64, shape (K,)
        Items per cluster that passed the tests, before balancing.
    consistency, confidence : float
        The two thresholds.
    balanced : bool
        Whether every cluster was cut to the size of the smallest.

    Examples
    --------
    >>> kept = reliable_labels(torch.eye(2), torch.eye(2), n_neighbours=1)
    >>> kept.labels.tolist(), kept.n_agreeing.tolist(), kept.balanced
    ([0, 1], [1, 1], True)
    """

    labels: Tensor
    n_agreeing: Tensor
    consistency: float
    confidence: float
    balanced: bool


def reliable_labels(
    probabilities: Tensor,
    features: Tensor,
    *,
    consistency: float = 0.95,
    confidence: float = 0.99,
    n_neighbours: int = 100,
    balance: bool = True,
    seed: int = 0,
) -> ReliableLabels:
    """Keep the labels on which an item's neighbourhood and its own probability agree.

    Parameters
    ----------
    probabilities : Tensor, shape (n, K)
        Of the selected head, on clean views.
    features : Tensor, shape (n, d)
        f; rows are L2-normalised here. The published method uses plain features here, also where a
        transform made the pseudo-labels.
    consistency : float
        Share of the ``n_neighbours`` nearest items, the item itself included, that must carry its label.
        Released configurations use 0.90 (STL-10) and 0.99 (CIFAR).
    confidence : float
        The largest probability must exceed this.
    n_neighbours : int
        Neighbours looked at; all items if there are fewer.
    balance : bool
        Cut every cluster to the size of the smallest by a random choice.
    seed : int
        Of that choice.

    Returns
    -------
    ReliableLabels

    Raises
    ------
    ArgumentError
        A cluster has no reliable item, so that a balanced set would be empty.

    Notes
    -----
    Rows of cosines are held block by block: memory is a block of rows, never n².

    Examples
    --------
    >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> sure = torch.tensor([[0.999, 0.001], [0.999, 0.001], [0.001, 0.999], [0.4, 0.6]])
    >>> reliable_labels(sure, features, n_neighbours=2, balance=False).labels.tolist()
    [0, 0, 1, -100]
    """
    check_shape(probabilities.shape, ("n", "K"), argument="probabilities", function="reliable_labels")
    n, k = probabilities.shape
    check_shape(
        features.shape, (n, "d"), argument="features", function="reliable_labels",
        way_out="Probabilities and features are of the same items.",
    )  # fmt: skip
    check_interval(consistency, "[0, 1]", argument="consistency", function="reliable_labels")
    check_interval(confidence, "[0, 1]", argument="confidence", function="reliable_labels")
    check_count(n_neighbours, argument="n_neighbours", function="reliable_labels")
    labels = probabilities.argmax(dim=-1)
    n_near = min(n_neighbours, n)
    agree = torch.ones_like(labels)  # an item is among its neighbours, and agrees with itself
    for rows, _, near in nearest_others(normalize(features, dim=-1), n_near - 1):
        agree[rows] += (labels[near] == labels[rows, None]).sum(dim=-1)
    kept = (agree >= consistency * n_near) & (probabilities.max(dim=-1).values > confidence)

    n_agreeing = torch.bincount(labels[kept], minlength=k)
    result = torch.full_like(labels, _NO_LABEL)
    if not balance:
        result[kept] = labels[kept]
        return ReliableLabels(result, n_agreeing, consistency, confidence, balanced=False)
    smallest = int(n_agreeing.min())
    if smallest == 0:
        empty = [int(c) for c in (n_agreeing == 0).nonzero().flatten()]
        raise ArgumentError(
            f"reliable_labels found no reliable item in cluster {', '.join(map(str, empty))} of {k}, so that a "
            f"balanced set would be empty. Got consistency={consistency} and confidence={confidence}; lower them, or "
            f"pass balance=False to keep what there is."
        )
    rng = torch.Generator().manual_seed(seed)
    for cluster in range(k):
        members = (kept & (labels == cluster)).nonzero().flatten()
        chosen = members[torch.randperm(len(members), generator=rng)[:smallest].to(members.device)]
        result[chosen] = cluster
    return ReliableLabels(result, n_agreeing, consistency, confidence, balanced=True)
