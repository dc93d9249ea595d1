r"""The PMF classifier: prototypes, and the cosine to each times a learned scale.

Hu, Li, Stühmer, Kim, Hospedales, "Pushing the Limits of Simple Pipelines for Few-Shot Learning: External
Data and Fine-Tuning Make a Difference", CVPR 2022. The backbone (a DINO transformer in the paper) is not
part of the host: it starts from features. BPA enters immediately after feature extraction, on support and
query together, in at least float32 whatever autocast says.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from bpa.hosts.fewshot._prototypes import Apply, PrototypeHost
from bpa.transforms.contract import Identity, SetTransform

_IDENTITY = Identity()


class PMF(PrototypeHost):
    r"""Scaled cosines to the class means.

    .. math:: \mathrm{scores}_{ic} = s \, (\cos(z_i, \mu_c) + b), \qquad Z = T([X_s; X_q])

    Called with an :class:`~bpa.records.Episode`, or a batch of them, it gives a `Prediction`. The learnable s and b
    are ``scale_cls`` and ``bias``, of shape (1,): the names they carry in published checkpoints. Neither changes a
    prediction while s > 0.

    Parameters
    ----------
    transform : SetTransform
        T, applied to support and query together. The identity is the published host.
    apply : {"always", "training"}
        ``"training"`` leaves the transform out in eval mode (the paper's BPA_i).

    Notes
    -----
    Differentiable in the features, the scale and the bias. Prototypes are means of rows as they come, not
    of unit rows, and a row shorter than 1e-12 stays shorter than one, both as in the published code.

    Examples
    --------
    >>> import torch
    >>> from bpa.records import Episode
    >>> shots, labels = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1])
    >>> task = Episode(shots, labels, query=torch.tensor([[5.0, 1.0]]), n_way=2)
    >>> PMF()(task).labels
    tensor([1])
    """

    def __init__(self, transform: SetTransform = _IDENTITY, *, apply: Apply = "always") -> None:
        super().__init__(transform, apply)
        self.scale_cls = torch.nn.Parameter(torch.full((1,), 10.0))
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def scores(self, queries: Tensor, means: Tensor) -> Tensor:
        """Scaled cosines (..., Q, k)."""
        cosine = normalize(queries, dim=-1) @ normalize(means, dim=-1).transpose(-1, -2)
        scaled: Tensor = self.scale_cls * (cosine + self.bias)
        return scaled
