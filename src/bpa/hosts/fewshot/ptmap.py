r"""PT-MAP: power transform, centring, and class centres that follow an optimal transport of the queries.

Hu, Gripon, Pateux, "Leveraging the Feature Distribution in Transfer-based Few-Shot Learning", ICANN 2021.
Features are made Gaussian-like; queries are softly assigned to classes by entropic transport with known
class masses; the centres move towards the weighted means; repeat. The set transform, when there is one,
comes between the first and the second step, as in the paper's algorithm, and its rows are normalised and
centred like features before the loop.

Two further hosts of the paper are this one on other features. **PT-MAP-SF** runs on the 1280 columns
``[frequency | spatial]`` of each image, with no normalisation of the halves of their own; **SillNet** runs
on the features of a network trained with its illumination augmentation. Neither needs code of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from bpa._checks import check_shape
from bpa._words import explains
from bpa.errors import ArgumentError, DTypeError
from bpa.hosts.fewshot._preparation import Rows, from_gram, normalised, powered
from bpa.hosts.fewshot._sets import GramTransform, Prediction, TaskSet, join, transformed
from bpa.hosts.fewshot._settings import PTMapSettings
from bpa.records import Convergence, Episode
from bpa.solvers._semidual import class_shifts
from bpa.transforms.contract import Identity, SetTransform

_IDENTITY = Identity()
_PUBLISHED = PTMapSettings()


@dataclass(frozen=True, eq=False)
class PTMapPrediction(Prediction):
    """A `Prediction` with what the loop ended on.

    Parameters
    ----------
    scores : Tensor, shape (..., Q, k)
        Log of the final plan (row sums of the plan are one).
    class_mass : Tensor, shape (..., k)
        Number of queries per class that the last transport was asked for.
    convergence : Convergence
        Newton steps of all transports of a task together, and the largest error of a class mass, in queries, of the
        last one.

    Examples
    --------
    >>> import torch
    >>> from bpa.records import Episode
    >>> found = PTMap()(Episode(torch.eye(2), torch.arange(2), torch.eye(2).repeat(3, 1), n_way=2))
    >>> found.labels.tolist(), found.class_mass.tolist(), bool(found.convergence.converged)
    ([0, 1, 0, 1, 0, 1], [3.0, 3.0], True)
    """

    class_mass: Tensor
    convergence: Convergence


class PTMap(torch.nn.Module):
    r"""Label queries by alternating transport and centre updates.

    Preprocessing, on support and query rows: :math:`(x + 10^{-6})^\beta`; unit length; subtract the
    support mean from support rows and the query mean from query rows; unit length. Then the transform, and
    the last two steps again. From the support means on, ``epochs`` times:

    .. math::
        P = \arg\min_{P \mathbf 1 = \mathbf 1,\ P^\top \mathbf 1 = c} \langle P, D \rangle - H(P)/\lambda,
        \qquad \mu_j \leftarrow \mu_j + \alpha \left( \frac{\sum_i A_{ij} z_i}{\sum_i A_{ij}} - \mu_j \right)

    with D the squared distances of queries to centres and A the support's one-hot labels stacked on P.

    Called with an :class:`~bpa.records.Episode`, or a batch of them, it gives a `PTMapPrediction`.

    Parameters
    ----------
    transform : SetTransform
        Applied to the preprocessed support and query together. The identity is the published baseline.
    settings : PTMapSettings
        The published ones by default; `VARIANTS` has others by name.

    Notes
    -----
    Differentiable in both inputs: each transport by the implicit function theorem, the centre updates by
    recording them. The loop sees only inner products between rows; where the rows are wider than the set,
    they are computed once (O(n² w)), and an epoch costs O(n² k) whatever the width. The published code
    reduces the width by a QR decomposition instead, which changes no distance.

    The published loop stops a whole batch at its slowest task, or after 1000 sweeps; here each task is
    solved, so plans differ where the published loop gives up, and predictions hardly ever do. Rows shorter than
    1e-12 stay shorter than one, as in the published code; by inner products, rows of no length up to rounding
    become zero.

    Examples
    --------
    >>> import torch
    >>> from bpa import BPA
    >>> from bpa.hosts.fewshot import VARIANTS
    >>> from bpa.records import Episode
    >>> g = torch.Generator().manual_seed(0)
    >>> centres, truth = 3 * torch.rand(3, 16, generator=g), torch.arange(3).repeat(5)
    >>> rows = centres[truth] + torch.rand(15, 16, generator=g)
    >>> task = Episode(rows[:3], truth[:3], rows[3:], n_way=3)
    >>> bool((PTMap(BPA(), VARIANTS["paper"])(task).labels == truth[3:]).all())
    True
    """

    @explains(**{it.name: f"settings=PTMapSettings({it.name}=...)" for it in fields(PTMapSettings)})
    def __init__(self, transform: SetTransform = _IDENTITY, settings: PTMapSettings = _PUBLISHED) -> None:
        super().__init__()
        if not isinstance(settings, PTMapSettings):
            raise DTypeError(
                f"The 'settings' parameter of PTMap must be PTMapSettings. Got {type(settings).__name__}. Published "
                f"ones have names, as VARIANTS['paper']."
            )
        self.transform = transform
        self.settings = settings

    def forward(self, episode: Episode, *, class_mass: Tensor | None = None) -> PTMapPrediction:
        """Label the queries of ``episode``.

        Parameters
        ----------
        episode : Episode
            One task, or a batch of them.
        class_mass : Tensor, shape (..., n_way), optional
            How many queries each class has, where that is known, up to a positive factor; instead of
            ``settings.prior``.
        """
        settings, task = self.settings, join(episode)
        mass = _class_mass(class_mass, task, settings)
        rows = powered(task.x, power=settings.power, nonneg=settings.nonneg)
        renormalize = settings.renormalize and not isinstance(self.transform, Identity)
        if task.x.shape[-1] > task.x.shape[-2] and isinstance(self.transform, Identity | GramTransform):
            z = from_gram(rows, task, self.transform, settings.centre, renormalize)
        else:
            values = transformed(self.transform, normalised(rows, task, settings.centre), task.mask)
            z = Rows.of(normalised(values, task, settings.centre) if renormalize else values)
        return _loop(z, task, mass, settings)


def _loop(z: Rows, task: TaskSet, mass: Tensor, settings: PTMapSettings) -> PTMapPrediction:
    batch = task.x.shape[:-2]
    n_support, k = task.n_support, task.support_onehot.shape[-1]
    n_query = task.x.shape[-2] - n_support
    # Classes in rows and items in columns from here on, and one leading dimension.
    known = task.support_onehot.transpose(-1, -2).reshape(-1, k, n_support)
    there = None if task.query_mask is None else task.query_mask.expand(*batch, n_query).reshape(-1, n_query)
    mass = mass.reshape(-1, k)
    tau = float("inf") if settings.relaxation == 0 else 1.0 / (settings.sharpness * settings.relaxation)
    # A centre is a combination of rows, μ = A z; this is A, and it starts at the support means.
    weights = torch.nn.functional.pad(known / known.sum(dim=-1, keepdim=True), (0, n_query))
    start: Tensor | None = None
    count = torch.zeros(len(known), dtype=torch.int64, device=known.device)
    for epoch in range(settings.epochs + 1):
        products, lengths = z.products(weights)
        # -λ D up to |z_i|², which is the same for all classes and cancels in every row of the plan
        logits = settings.sharpness * (2.0 * products[..., n_support:] - lengths[..., None])
        if settings.prior == "estimate":
            soft = torch.softmax(logits, dim=1)
            soft = soft if there is None else soft * there[:, None]
            mass = (1.0 - settings.prior_step) * mass + settings.prior_step * soft.sum(dim=-1)
        found = class_shifts(
            logits, mass, relaxation=tau, rows=there, start=start, tol=settings.tol, max_iter=settings.max_iter,
        )  # fmt: skip
        count, start = count + found.n_iter, found.shift.detach()
        if epoch == settings.epochs:
            break
        assigned = torch.cat([known, found.plan], dim=-1)  # labelled rows keep their labels
        weights = weights + settings.step * (assigned / assigned.sum(dim=-1, keepdim=True) - weights)
    last = found.shaped(batch)
    convergence = replace(last.convergence, n_iter=count.reshape(batch))
    return PTMapPrediction(task.hidden(last.log_plan), mass.detach().reshape(*batch, k), convergence)


def _class_mass(given: Tensor | None, task: TaskSet, settings: PTMapSettings) -> Tensor:
    """Queries expected per class, shape (..., k), summing to the number of queries; equal where none are given."""
    z, batch, k = task.x, task.x.shape[:-2], task.support_onehot.shape[-1]
    n_query = z.shape[-2] - task.n_support
    total = (
        torch.full((*batch, 1), float(n_query), dtype=z.dtype, device=z.device)
        if task.query_mask is None
        else task.query_mask.sum(-1, keepdim=True).to(z.dtype)
    )
    if given is None:
        return (total / k).expand(*batch, k)
    if settings.prior == "estimate":
        raise ArgumentError(
            "The 'class_mass' parameter of PTMap is how many queries each class has, and prior='estimate' asks to find "
            "that out. Got both; leave one out."
        )
    check_shape(given.shape, ("...", k), argument="class_mass", function="PTMap")
    given = given.to(z)
    if not bool(torch.isfinite(given).all() & (given >= 0).all() & (given.sum(-1) > 0).all()):
        raise ArgumentError(
            "The 'class_mass' parameter of PTMap must be finite and non-negative, with a positive sum for each task."
        )
    return (total * given / given.sum(-1, keepdim=True)).expand(*batch, k)
