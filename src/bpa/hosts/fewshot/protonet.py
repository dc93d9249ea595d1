r"""ProtoNet: a query belongs to the class whose mean support row is nearest.

Snell, Swersky, Zemel, "Prototypical Networks for Few-shot Learning", NeurIPS 2017. With a set transform,
support and query rows are transformed *together*, and prototypes and distances live in the transformed
space; the identity gives the published, inductive host.
"""

from __future__ import annotations

from torch import Tensor

from bpa._checks import check_positive
from bpa.hosts.fewshot._prototypes import Apply, PrototypeHost
from bpa.transforms.contract import Identity, SetTransform

_IDENTITY = Identity()


class ProtoNet(PrototypeHost):
    r"""Negative squared distances to the class means.

    .. math:: \mathrm{scores}_{ic} = -\lVert z_i - \mu_c \rVert^2 / t, \qquad
              \mu_c = \frac{1}{|S_c|} \sum_{i \in S_c} z_i, \qquad Z = T([X_s; X_q])

    Called with an :class:`~bpa.records.Episode`, or a batch of them, it gives a `Prediction`.

    Parameters
    ----------
    transform : SetTransform
        T, applied to support and query together. The identity is the published host.
    temperature : float
        t; it changes a loss and no prediction. FEAT trains raw 640-d features with 64.
    apply : {"always", "training"}
        ``"training"`` leaves the transform out in eval mode: a host trained with BPA and used without it,
        which the paper calls BPA_i, stays inductive.

    Notes
    -----
    Differentiable in both inputs. O(Q k w) after the transform. Squared distances, as in the published
    method; some published code takes their root.

    Examples
    --------
    >>> import torch
    >>> from bpa.records import Episode
    >>> shots, labels = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1])
    >>> task = Episode(shots, labels, query=torch.tensor([[0.1, 0.9]]), n_way=2)
    >>> ProtoNet()(task).labels
    tensor([0])
    """

    def __init__(
        self, transform: SetTransform = _IDENTITY, *, temperature: float = 1.0, apply: Apply = "always"
    ) -> None:
        super().__init__(transform, apply)
        check_positive(temperature, argument="temperature", function="ProtoNet")
        self.temperature = temperature

    def scores(self, queries: Tensor, means: Tensor) -> Tensor:
        """Negative squared distances (..., Q, k) over the temperature."""
        inner = queries @ means.transpose(-1, -2)
        lengths = (queries * queries).sum(-1)[..., None], (means * means).sum(-1)[..., None, :]
        return -(lengths[0] - 2.0 * inner + lengths[1]).clamp_min(0.0) / self.temperature
