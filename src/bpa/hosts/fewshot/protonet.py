r"""ProtoNet: a query belongs to the class whose mean support row is nearest.

Snell, Swersky, Zemel, "Prototypical Networks for Few-shot Learning", NeurIPS 2017. With a set transform,
support and query rows are transformed *together*, and prototypes and distances live in the transformed
space; the identity gives the published, inductive host.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bpa.errors import ArgumentError
from bpa.hosts.fewshot._sets import Prediction, check_apply, class_means, join, sqdistances, transformed
from bpa.records import Episode
from bpa.transforms.contract import Identity, SetTransform

_IDENTITY = Identity()


def protonet(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    transform: SetTransform = _IDENTITY,
    n_way: int | None = None,
    temperature: float = 1.0,
    support_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
) -> Prediction:
    r"""Negative squared distances to the class means.

    .. math:: \mathrm{scores}_{ic} = -\lVert z_i - \mu_c \rVert^2 / t, \qquad
              \mu_c = \frac{1}{|S_c|} \sum_{i \in S_c} z_i, \qquad Z = T([X_s; X_q])

    Parameters
    ----------
    support : Tensor, shape (..., L, d)
        Labelled rows, any order, any balance; at least one a class.
    support_labels : Tensor, shape (..., L), integers
        Their classes, ``0 .. n_way - 1``.
    query : Tensor, shape (..., Q, d)
        Rows to label.
    transform : SetTransform
        Applied to support and query together.
    n_way : int, optional
        Number of classes; the largest label plus one when not given.
    temperature : float
        ``t``; it changes a loss and no prediction. FEAT trains raw 640-d features with 64.
    support_mask, query_mask : Tensor, bool, optional
        True at the rows that exist, for padded tasks.

    Returns
    -------
    Prediction
        ``scores`` of shape (..., Q, n_way).

    Notes
    -----
    Differentiable in both inputs. O(Q k w) after the transform. Squared distances, as in the published
    method; some published code takes their root.

    Examples
    --------
    >>> import torch
    >>> shots, rows = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[0.1, 0.9]])
    >>> protonet(shots, torch.tensor([0, 1]), rows).labels
    tensor([0])
    """
    if not temperature > 0:
        raise ArgumentError(f"The 'temperature' of protonet must be positive. Got {temperature!r}.")
    task = join(support, support_labels, query, n_way=n_way, support_mask=support_mask, query_mask=query_mask,
                function="protonet")  # fmt: skip
    z = transformed(transform, task.x, task.mask)
    shots, queries = z[..., : task.n_support, :], z[..., task.n_support :, :]
    scores = -sqdistances(queries, class_means(shots, task.support_onehot)) / temperature
    return Prediction(scores if task.query_mask is None else scores * task.query_mask[..., None])


class ProtoNet(torch.nn.Module):
    """`protonet` as a module over an `Episode`.

    Parameters
    ----------
    transform : SetTransform
        Applied to support and query together.
    temperature : float
        Divides the squared distances.
    apply : {"always", "training"}
        ``"training"`` leaves the transform out in eval mode: a host trained with BPA and used without it,
        which the paper calls BPA_i, stays inductive.
    """

    def __init__(
        self,
        transform: SetTransform = _IDENTITY,
        *,
        temperature: float = 1.0,
        apply: Literal["always", "training"] = "always",
    ) -> None:
        super().__init__()
        self.transform = transform
        self.temperature = temperature
        self.apply_transform = check_apply(apply, "ProtoNet")

    def forward(self, episode: Episode) -> Prediction:
        """Label the queries of ``episode``."""
        active = self.apply_transform == "always" or self.training
        return protonet(
            episode.support,
            episode.support_labels,
            episode.query,
            transform=self.transform if active else _IDENTITY,
            n_way=episode.n_way,
            temperature=self.temperature,
            support_mask=episode.support_mask,
            query_mask=episode.query_mask,
        )
