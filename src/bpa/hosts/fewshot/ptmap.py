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

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bpa.errors import ArgumentError, ShapeError
from bpa.hosts.fewshot._sets import GramTransform, Prediction, TaskSet, join, transformed
from bpa.hosts.fewshot._transport import Assignment, solve
from bpa.records import Episode
from bpa.transforms.contract import Identity, SetTransform

_IDENTITY = Identity()

Nonneg = Literal["relu", "error", "signed", "off"]
Centre = Literal["separate", "off"]

VARIANTS: dict[str, dict[str, object]] = {
    "paper": {"epochs": 20},
    "reference-eval": {"epochs": 20},
    "reference-sweep": {"epochs": 20, "renormalize": False},
    "reference-train": {"epochs": 10, "centre": "off", "renormalize": False},
    "reference-val": {"epochs": 10, "renormalize": False},
}
"""Settings of the published variants, as keyword arguments of `ptmap` and `PTMap`.

The transform belongs to the variant too, and arrives as an argument: ``reg=0.1`` and five sweeps for
``paper``, ``reg=0.2`` for ``reference-eval`` and ``reference-train``, ``reg`` swept over 0.1 … 0.5 for
``reference-sweep``; ``reference-val`` clamps the known pairs (``support_labels`` of BPA).
"""


@dataclass(frozen=True, eq=False)
class PTMapPrediction(Prediction):
    """A `Prediction` with what the loop ended on.

    Parameters
    ----------
    scores : Tensor, shape (..., Q, k)
        Log of the final plan (row sums of the plan are one).
    class_mass : Tensor, shape (..., k)
        Number of queries per class that the last transport was asked for.
    assignment : Assignment
        The last transport: steps, error and convergence of each task.
    n_iter : Tensor, shape (...), int64
        Newton steps of all transports together.
    """

    class_mass: Tensor
    assignment: Assignment
    n_iter: Tensor

    @property
    def converged(self) -> Tensor:
        """Whether the last transport of each task reached its tolerance, shape (...)."""
        return self.assignment.converged


def ptmap(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    transform: SetTransform = _IDENTITY,
    n_way: int | None = None,
    support_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    prior: Literal["uniform", "estimate"] | Tensor = "uniform",
    relaxation: float = float("inf"),
    prior_step: float = 0.2,
    epochs: int = 20,
    step: float = 0.2,
    sharpness: float = 10.0,
    power: float = 0.5,
    nonneg: Nonneg = "relu",
    centre: Centre = "separate",
    renormalize: bool = True,
    tol: float = 1e-6,
    max_iter: int = 200,
) -> PTMapPrediction:
    r"""Label queries by alternating transport and centre updates.

    Preprocessing, on support and query rows: :math:`(x + 10^{-6})^\beta`; unit length; subtract the
    support mean from support rows and the query mean from query rows; unit length. Then the transform, and
    the last two steps again. From the support means on, ``epochs`` times:

    .. math::
        P = \arg\min_{P \mathbf 1 = \mathbf 1,\ P^\top \mathbf 1 = c} \langle P, D \rangle - H(P)/\lambda,
        \qquad \mu_j \leftarrow \mu_j + \alpha \left( \frac{\sum_i A_{ij} z_i}{\sum_i A_{ij}} - \mu_j \right)

    with D the squared distances of queries to centres and A the support's one-hot labels stacked on P.

    Parameters
    ----------
    support : Tensor, shape (..., L, d)
        Labelled rows, any order, any balance; at least one a class.
    support_labels : Tensor, shape (..., L), integers
        Their classes, ``0 .. n_way - 1``.
    query : Tensor, shape (..., Q, d)
        Rows to label.
    transform : SetTransform
        Applied to the preprocessed support and query together. The identity is the published baseline.
    n_way : int, optional
        Number of classes; the largest label plus one when not given.
    support_mask, query_mask : Tensor, bool, optional
        True at the rows that exist, for padded tasks.
    prior : {"uniform", "estimate"} or Tensor of shape (..., k)
        The class masses c: equal; re-estimated every epoch from the row softmax; or given (any positive
        scale). The published host assumes equal masses, and loses much where queries are unbalanced.
    relaxation : float
        ρ, the weight of the Kullback-Leibler penalty on the class masses. Infinity holds them exactly;
        zero drops them (a plain soft assignment).
    prior_step : float
        How far an estimated prior moves each epoch, in (0, 1].
    epochs, step, sharpness : int, float, float
        Number of centre updates, α and λ.
    power : float
        β.
    nonneg : {"relu", "error", "signed", "off"}
        What to do about negative inputs, which β cannot take: set them to zero; refuse; keep the sign and
        take the power of the magnitude; or leave out the power transform.
    centre : {"separate", "off"}
        Whether support and query rows are centred (training in the reference code leaves it out).
    renormalize : bool
        Normalise and centre again after the transform. Never done for the identity.
    tol, max_iter : float, int
        Largest admitted error of a class mass in queries, and Newton steps after which a task is handed
        back unsolved (see ``converged``).

    Returns
    -------
    PTMapPrediction
        ``scores`` of shape (..., Q, n_way).

    Notes
    -----
    Differentiable in both inputs: each transport by the implicit function theorem, the centre updates by
    recording them. The loop sees only inner products between rows; where the rows are wider than the set,
    they are computed once (O(n² w)), and an epoch costs O(n² k) whatever the width. The published code
    reduces the width by a QR decomposition instead, which changes no distance.

    The published loop stops a whole batch at its slowest task, or after 1000 sweeps; here each task is
    solved, so plans differ where the published loop gives up, and predictions hardly ever do.
    """
    task = join(support, support_labels, query, n_way=n_way, support_mask=support_mask, query_mask=query_mask,
                function="ptmap")  # fmt: skip
    _check(
        epochs=epochs,
        step=step,
        sharpness=sharpness,
        power=power,
        prior_step=prior_step,
        relaxation=relaxation,
    )
    rows = powered(task.x, power=power, nonneg=nonneg)
    if task.x.shape[-1] > task.x.shape[-2] and isinstance(transform, Identity | GramTransform):
        found = _from_gram(rows, task, transform, centre, renormalize)
    else:
        z = transformed(transform, _normalised(rows, task, centre), task.mask)
        if renormalize and not isinstance(transform, Identity):
            z = _normalised(z, task, centre)
        found = _Rows.of(z)
    return _loop(found, task, prior, relaxation, prior_step, epochs, step, sharpness, tol, max_iter)


class PTMap(torch.nn.Module):
    """`ptmap` as a module over an `Episode`; ``settings`` are its keyword arguments.

    Parameters
    ----------
    transform : SetTransform
        Applied to the preprocessed support and query together.
    **settings : object
        Any of ``prior, relaxation, prior_step, epochs, step, sharpness, power, nonneg, centre,
        renormalize, tol, max_iter``; see `VARIANTS` for the published combinations.
    """

    def __init__(self, transform: SetTransform = _IDENTITY, **settings: object) -> None:
        super().__init__()
        known = {"prior", "relaxation", "prior_step", "epochs", "step", "sharpness", "power", "nonneg",
        "centre",
                 "renormalize", "tol", "max_iter"}  # fmt: skip
        unknown = sorted(set(settings) - known)
        if unknown:
            raise ArgumentError(f"PTMap does not know {unknown[0]!r}; it takes {', '.join(sorted(known))}.")
        self.transform = transform
        self.settings = settings

    def forward(self, episode: Episode) -> PTMapPrediction:
        """Label the queries of ``episode``."""
        return ptmap(
            episode.support,
            episode.support_labels,
            episode.query,
            transform=self.transform,
            n_way=episode.n_way,
            support_mask=episode.support_mask,
            query_mask=episode.query_mask,
            **self.settings,  # type: ignore[arg-type]  # names are checked above, values by ptmap
        )


# ---------------------------------------------------------------------- the algorithm


def _loop(
    z: _Rows,
    task: TaskSet,
    prior: str | Tensor,
    relaxation: float,
    prior_step: float,
    epochs: int,
    step: float,
    sharpness: float,
    tol: float,
    max_iter: int,
) -> PTMapPrediction:
    batch = task.x.shape[:-2]
    n_support, k = task.n_support, task.support_onehot.shape[-1]
    n_query = task.x.shape[-2] - n_support
    # Classes in rows and items in columns from here on, and one leading dimension.
    known = task.support_onehot.transpose(-1, -2).reshape(-1, k, n_support)
    there = None if task.query_mask is None else task.query_mask.expand(*batch, n_query).reshape(-1, n_query)
    mass = _class_mass(prior, task, k).reshape(-1, k)
    tau = float("inf") if relaxation == 0 else 1.0 / (sharpness * relaxation)
    # A centre is a combination of rows, μ = A z; this is A, and it starts at the support means.
    weights = torch.nn.functional.pad(known / known.sum(dim=-1, keepdim=True), (0, n_query))
    start: Tensor | None = None
    count = torch.zeros(len(known), dtype=torch.int64, device=known.device)
    for epoch in range(epochs + 1):
        products, lengths = z.products(weights)
        # -λ D up to |z_i|², which is the same for all classes and cancels in every row of the plan
        logits = sharpness * (2.0 * products[..., n_support:] - lengths[..., None])
        if isinstance(prior, str) and prior == "estimate":
            soft = torch.softmax(logits, dim=1)
            soft = soft if there is None else soft * there[:, None]
            mass = (1.0 - prior_step) * mass + prior_step * soft.sum(dim=-1)
        found = solve(logits, mass, relaxation=tau, rows=there, start=start, tol=tol, max_iter=max_iter)
        count, start = count + found.n_iter, found.shift.detach()
        if epoch == epochs:
            break
        assigned = torch.cat([known, found.plan], dim=-1)  # labelled rows keep their labels
        weights = weights + step * (assigned / assigned.sum(dim=-1, keepdim=True) - weights)
    last = found.shaped(batch)
    scores = last.log_plan
    if task.query_mask is not None:
        scores = scores.masked_fill(~task.query_mask[..., None], 0.0)
    return PTMapPrediction(scores, mass.detach().reshape(*batch, k), last, count.reshape(batch))


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of each task, or their inner products where those are the smaller array."""

    values: Tensor  # (b, n, w), or (b, n, n) inner products
    is_gram: bool

    @classmethod
    def of(cls, z: Tensor) -> _Rows:
        """Rows (..., n, w) of any leading shape."""
        flat = z.reshape(-1, *z.shape[-2:])
        return cls(flat @ flat.transpose(-1, -2), True) if z.shape[-1] > z.shape[-2] else cls(flat, False)

    def products(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Inner products (b, k, n) of the combinations ``weights @ z`` with all rows, and their squared lengths."""
        if self.is_gram:
            products = weights @ self.values
            return products, (weights * products).sum(dim=-1)
        centres = weights @ self.values
        return centres @ self.values.transpose(-1, -2), (centres * centres).sum(dim=-1)


def _from_gram(rows: Tensor, task: TaskSet, transform: SetTransform, centre: str, renormalize: bool) -> _Rows:
    """The same steps on inner products: one pass over the features, whatever their width."""
    gram = _normalised_gram(rows @ rows.transpose(-1, -2), task, centre)
    if isinstance(transform, GramTransform):
        with torch.autocast(device_type=gram.device.type, enabled=False):
            z = transform.from_cosines(gram, mask=task.mask)
        if task.mask is not None:
            z = torch.where(task.mask[..., None], z, torch.zeros_like(z))
        if not renormalize:
            return _Rows.of(z)
        gram = _normalised_gram(z @ z.transpose(-1, -2), task, centre)
    return _Rows(gram.reshape(-1, *gram.shape[-2:]), True)


def _normalised_gram(gram: Tensor, task: TaskSet, centre: str) -> Tensor:
    """`_normalised`, on the inner products of the rows."""
    gram = _unit_gram(gram)
    if centre == "off":
        return gram
    # rows minus the mean row of their half, on both sides: G - E m - (E m)ᵀ with E the halves (n, 2)
    n_support, n = task.n_support, gram.shape[-1]
    halves = torch.zeros(n, 2, dtype=gram.dtype, device=gram.device)
    halves[:n_support, 0] = halves[n_support:, 1] = 1.0
    if task.mask is not None:
        halves = halves * task.mask[..., None]
    share = (halves / halves.sum(dim=-2, keepdim=True).clamp_min(1.0)).transpose(-1, -2)  # (..., 2, n)
    means = share @ gram
    among = means @ share.transpose(-1, -2)
    shift = halves @ (means - 0.5 * among @ halves.transpose(-1, -2))
    return _unit_gram(gram - shift - shift.transpose(-1, -2))


def _unit_gram(gram: Tensor) -> Tensor:
    """Cosines of rows with these inner products; a row of no length, up to rounding, becomes zero."""
    squares = gram.diagonal(dim1=-2, dim2=-1)
    tiny = 64 * torch.finfo(gram.dtype).eps * squares.detach().amax(dim=-1, keepdim=True)
    real = squares > tiny
    inverse = torch.where(real, squares, torch.ones_like(squares)).rsqrt() * real
    return gram * inverse[..., :, None] * inverse[..., None, :]


def powered(x: Tensor, *, power: float = 0.5, nonneg: str = "relu") -> Tensor:
    """Make the distribution of each feature less skewed: the first step of `ptmap`, entry by entry.

    A whole feature file can be taken through it once; `ptmap` with ``nonneg="off"`` then leaves it out.

    Parameters
    ----------
    x : Tensor, any shape
        Features.
    power : float
        The exponent β.
    nonneg : {"relu", "error", "signed", "off"}
        What to do about negative entries; see `ptmap`.

    Returns
    -------
    Tensor, the shape of ``x``
    """
    if nonneg == "off":
        return x
    if nonneg == "signed":
        return x.sign() * (x.abs() + 1e-6).pow(power)
    if nonneg == "error":
        if bool((x < 0).any()):
            raise ArgumentError(
                "The power transform of ptmap needs features ≥ 0 and some are negative; "
                "nonneg='relu' sets them to "
                "zero, nonneg='signed' keeps their sign."
            )
    elif nonneg == "relu":
        x = x.clamp_min(0.0)
    else:
        raise ArgumentError(
            f"The 'nonneg' of ptmap must be 'relu', 'error', 'signed' or 'off'. Got {nonneg!r}."
        )
    return (x + 1e-6).pow(power)


def _normalised(x: Tensor, task: TaskSet, centre: str) -> Tensor:
    """Steps 2 to 4: unit length, support and query centred each by its own mean, unit length."""
    x = torch.nn.functional.normalize(x, dim=-1, eps=1e-12)
    if centre == "off":
        return x if task.mask is None else x * task.mask[..., None]
    if centre != "separate":
        raise ArgumentError(f"The 'centre' of ptmap must be 'separate' or 'off'. Got {centre!r}.")
    halves = []
    for rows, mask in (
        (x[..., : task.n_support, :], task.support_mask),
        (x[..., task.n_support :, :], task.query_mask),
    ):
        if mask is None:
            halves.append(rows - rows.mean(dim=-2, keepdim=True))
        else:
            there = mask[..., None]
            mean = (rows * there).sum(dim=-2, keepdim=True) / mask.sum(-1).clamp_min(1)[..., None, None]
            halves.append(torch.where(there, rows - mean, torch.zeros_like(rows)))
    return torch.nn.functional.normalize(torch.cat(halves, dim=-2), dim=-1, eps=1e-12)


def _class_mass(prior: str | Tensor, task: TaskSet, k: int) -> Tensor:
    """Queries expected per class, shape (..., k), summing to the number of queries."""
    z, batch = task.x, task.x.shape[:-2]
    n_query = z.shape[-2] - task.n_support
    total = (
        torch.full((*batch, 1), float(n_query), dtype=z.dtype, device=z.device)
        if task.query_mask is None
        else task.query_mask.sum(-1, keepdim=True).to(z.dtype)
    )
    if isinstance(prior, str):
        if prior not in ("uniform", "estimate"):
            raise ArgumentError(
                f"The 'prior' of ptmap must be 'uniform', 'estimate' or a tensor. Got {prior!r}."
            )
        return (total / k).expand(*batch, k)
    if prior.shape[-1:] != (k,):
        raise ShapeError(f"The 'prior' of ptmap must have shape (..., {k}). Got {tuple(prior.shape)}.")
    given = prior.to(z)
    if not bool(torch.isfinite(given).all() & (given >= 0).all() & (given.sum(-1) > 0).all()):
        raise ArgumentError("The 'prior' of ptmap must be finite and non-negative, with a positive sum.")
    return (total * given / given.sum(-1, keepdim=True)).expand(*batch, k)


def _check(
    *, epochs: int, step: float, sharpness: float, power: float, prior_step: float, relaxation: float
) -> None:
    positive = {"sharpness": sharpness, "power": power}
    for name, value in positive.items():
        if not value > 0:
            raise ArgumentError(f"The {name!r} of ptmap must be positive. Got {value!r}.")
    for name, value in {"step": step, "prior_step": prior_step}.items():
        if not 0 < value <= 1:
            raise ArgumentError(f"The {name!r} of ptmap must lie in (0, 1]. Got {value!r}.")
    if epochs < 0:
        raise ArgumentError(f"The 'epochs' of ptmap must not be negative. Got {epochs!r}.")
    if not relaxation >= 0:
        raise ArgumentError(f"The 'relaxation' of ptmap must not be negative. Got {relaxation!r}.")
