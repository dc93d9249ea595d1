r"""The PMF classifier: prototypes, and the cosine to each times a learned scale.

Hu, Li, Stühmer, Kim, Hospedales, "Pushing the Limits of Simple Pipelines for Few-Shot Learning: External
Data and Fine-Tuning Make a Difference", CVPR 2022. The backbone (a DINO transformer in the paper) is not
part of the host: it starts from features. BPA enters immediately after feature extraction, on support and
query together, in at least float32 whatever autocast says.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bpa.hosts.fewshot._sets import Prediction, check_apply, class_means, join, transformed
from bpa.records import Episode
from bpa.transforms.contract import Identity, SetTransform

_IDENTITY = Identity()


def pmf(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    transform: SetTransform = _IDENTITY,
    n_way: int | None = None,
    scale: float | Tensor = 10.0,
    bias: float | Tensor = 0.0,
    support_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
) -> Prediction:
    r"""Scaled cosines to the class means.

    .. math:: \mathrm{scores}_{ic} = s \, (\cos(z_i, \mu_c) + b), \qquad Z = T([X_s; X_q])

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
    scale, bias : float or Tensor
        ``s`` and ``b``. Neither changes a prediction while ``s > 0``.
    support_mask, query_mask : Tensor, bool, optional
        True at the rows that exist, for padded tasks.

    Returns
    -------
    Prediction
        ``scores`` of shape (..., Q, n_way).

    Notes
    -----
    Differentiable in the features, the scale and the bias. Prototypes are means of rows as they come, not
    of unit rows, as in the published code.

    Examples
    --------
    >>> import torch
    >>> shots, rows = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[5.0, 1.0]])
    >>> pmf(shots, torch.tensor([0, 1]), rows).labels
    tensor([1])
    """
    task = join(support, support_labels, query, n_way=n_way, support_mask=support_mask, query_mask=query_mask,
                function="pmf")  # fmt: skip
    z = transformed(transform, task.x, task.mask)
    means = class_means(z[..., : task.n_support, :], task.support_onehot)
    queries = torch.nn.functional.normalize(z[..., task.n_support :, :], dim=-1, eps=1e-12)
    cosine = queries @ torch.nn.functional.normalize(means, dim=-1, eps=1e-12).transpose(-1, -2)
    scores = scale * (cosine + bias)
    return Prediction(scores if task.query_mask is None else scores * task.query_mask[..., None])


class PMF(torch.nn.Module):
    """`pmf` as a module over an `Episode`, with the published learnable scalars.

    ``scale_cls`` and ``bias`` have shape (1,) and the names they carry in published checkpoints.

    Parameters
    ----------
    transform : SetTransform
        Applied to support and query together.
    apply : {"always", "training"}
        ``"training"`` leaves the transform out in eval mode (the paper's BPA_i).
    """

    def __init__(
        self, transform: SetTransform = _IDENTITY, *, apply: Literal["always", "training"] = "always"
    ) -> None:
        super().__init__()
        self.transform = transform
        self.apply_transform = check_apply(apply, "PMF")
        self.scale_cls = torch.nn.Parameter(torch.full((1,), 10.0))
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, episode: Episode) -> Prediction:
        """Label the queries of ``episode``."""
        active = self.apply_transform == "always" or self.training
        return pmf(
            episode.support,
            episode.support_labels,
            episode.query,
            transform=self.transform if active else _IDENTITY,
            n_way=episode.n_way,
            scale=self.scale_cls,
            bias=self.bias,
            support_mask=episode.support_mask,
            query_mask=episode.query_mask,
        )
