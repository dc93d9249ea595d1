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

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import normalize

from bpa._checks import check_choice, check_count, check_interval, check_positive, check_shape
from bpa._words import explains
from bpa.errors import ArgumentError, DTypeError
from bpa.hosts.fewshot._sets import GramTransform, Prediction, TaskSet, join, transformed
from bpa.records import Convergence, Episode
from bpa.solvers import Solver, Sweeps, class_shifts
from bpa.transforms.contract import Identity, SetTransform

Prior = Literal["uniform", "estimate"]
Nonneg = Literal["relu", "error", "signed", "off"]
Centre = Literal["separate", "off"]


@explains(
    alpha="step", beta="power", lam="sharpness", lambda_="sharpness", n_epochs="epochs",
    reg="it belongs to the transform; the loop has its inverse, sharpness",
)  # fmt: skip
@dataclass(frozen=True)
class PTMapSettings:
    """Everything about `PTMap` but the transform; the defaults are the published host.

    Parameters
    ----------
    prior : {"uniform", "estimate"}
        The class masses c: equal, or re-estimated every epoch from the row softmax. The published host assumes equal
        masses, and loses much where queries are unbalanced. Known masses are an argument of the call.
    prior_step : float
        How far an estimated prior moves each epoch, in (0, 1].
    relaxation : float
        ρ, the weight of the Kullback-Leibler penalty on the class masses. Infinity holds them exactly;
        zero drops them (a plain soft assignment).
    epochs : int
        Number of centre updates.
    step : float
        α, how far a centre moves towards its weighted mean, in (0, 1].
    sharpness : float
        λ, what squared distances are multiplied by before the transport.
    power : float
        β.
    nonneg : {"relu", "error", "signed", "off"}
        What to do about negative inputs, which β cannot take: set them to zero; refuse; keep the sign and
        take the power of the magnitude; or leave out the power transform.
    centre : {"separate", "off"}
        Whether support and query rows are centred, each by its own mean (training in the reference code leaves it out).
    renormalize : bool
        Normalise and centre again after the transform. Never done for the identity.
    tol, max_iter : float, int
        Largest admitted error of a class mass in queries, and Newton steps after which a task is handed
        back unsolved (see ``PTMapPrediction.convergence``).

    Examples
    --------
    >>> PTMapSettings(prior="estimate").epochs
    20
    >>> PTMapSettings(alpha=0.4)
    Traceback (most recent call last):
    ...
    bpa.errors.UnknownArgumentError: PTMapSettings has no parameter 'alpha': it is called 'step' here.
    """

    prior: Prior = "uniform"
    prior_step: float = 0.2
    relaxation: float = float("inf")
    epochs: int = 20
    step: float = 0.2
    sharpness: float = 10.0
    power: float = 0.5
    nonneg: Nonneg = "relu"
    centre: Centre = "separate"
    renormalize: bool = True
    tol: float = 1e-6
    max_iter: int = 200

    def __post_init__(self) -> None:
        owner = "PTMapSettings"
        check_choice(self.prior, get_args(Prior), argument="prior", function=owner)
        check_choice(self.nonneg, get_args(Nonneg), argument="nonneg", function=owner)
        check_choice(self.centre, get_args(Centre), argument="centre", function=owner)
        check_interval(self.relaxation, "[0, inf]", argument="relaxation", function=owner)
        check_count(self.epochs, argument="epochs", function=owner, minimum=0)
        check_count(self.max_iter, argument="max_iter", function=owner)
        for name in ("prior_step", "step"):
            check_interval(getattr(self, name), "(0, 1]", argument=name, function=owner)
        for name in ("sharpness", "power", "tol"):
            check_positive(getattr(self, name), argument=name, function=owner)


@dataclass(frozen=True)
class PTMapVariant(PTMapSettings):
    """Published settings, and as data the transform that was published with them.

    Parameters
    ----------
    reg : float
        Entropy weight of the BPA that belongs to the variant.
    reg_grid : tuple of float
        Weights it was swept over, where it was.
    solver : Solver
        How far that BPA was balanced. (The reference's batched form stops early, after two or three sweeps.)
    knows_pairs : bool
        Whether it was told which support rows belong together (``support_labels`` of BPA).

    Examples
    --------
    >>> from bpa import BPA
    >>> variant = VARIANTS["reference-eval"]
    >>> variant.reg, str(variant.solver), variant.renormalize
    (0.2, 'sweeps:10', True)
    >>> host = PTMap(BPA(reg=variant.reg), variant)
    """

    reg: float = 0.1
    reg_grid: tuple[float, ...] = ()
    solver: Solver = field(default_factory=Sweeps)
    knows_pairs: bool = False


VARIANTS: Mapping[str, PTMapVariant] = MappingProxyType(
    {
        "paper": PTMapVariant(),
        "reference-eval": PTMapVariant(reg=0.2, solver=Sweeps(10)),
        "reference-sweep": PTMapVariant(
            renormalize=False, reg_grid=(0.1, 0.2, 0.3, 0.4, 0.5), solver=Sweeps(10)
        ),
        "reference-train": PTMapVariant(epochs=10, centre="off", renormalize=False, reg=0.2),
        "reference-val": PTMapVariant(epochs=10, renormalize=False, reg=0.2, knows_pairs=True),
    }
)
"""The published variants by name: the paper's algorithm, and four the authors' code has run under its name."""

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
            z = _from_gram(rows, task, self.transform, settings.centre, renormalize)
        else:
            values = transformed(self.transform, _normalised(rows, task, settings.centre), task.mask)
            z = _Rows.of(_normalised(values, task, settings.centre) if renormalize else values)
        return _loop(z, task, mass, settings)


# ---------------------------------------------------------------------- the algorithm


def _loop(z: _Rows, task: TaskSet, mass: Tensor, settings: PTMapSettings) -> PTMapPrediction:
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


def _from_gram(
    rows: Tensor, task: TaskSet, transform: SetTransform, centre: Centre, renormalize: bool
) -> _Rows:
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


def _normalised_gram(gram: Tensor, task: TaskSet, centre: Centre) -> Tensor:
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


def powered(x: Tensor, *, power: float = 0.5, nonneg: Nonneg = "relu") -> Tensor:
    """Make the distribution of each feature less skewed: the first step of `PTMap`, entry by entry.

    A whole feature file can be taken through it once; `PTMap` with ``nonneg="off"`` then leaves it out.

    Parameters
    ----------
    x : Tensor, any shape
        Features.
    power : float
        The exponent β.
    nonneg : {"relu", "error", "signed", "off"}
        What to do about negative entries; see `PTMapSettings`.

    Returns
    -------
    Tensor, the shape of ``x``

    Examples
    --------
    >>> import torch
    >>> powered(torch.tensor([4.0, -9.0]), nonneg="signed")
    tensor([ 2.0000, -3.0000])
    """
    check_choice(nonneg, get_args(Nonneg), argument="nonneg", function="powered")
    if nonneg == "off":
        return x
    if nonneg == "signed":
        return x.sign() * (x.abs() + 1e-6).pow(power)
    if nonneg == "error" and bool((x < 0).any()):
        raise ArgumentError(
            "The power transform of PT-MAP needs features ≥ 0 and some are negative; nonneg='relu' sets them to zero, "
            "nonneg='signed' keeps their sign."
        )
    return (x.clamp_min(0.0) + 1e-6).pow(power)


def _normalised(x: Tensor, task: TaskSet, centre: Centre) -> Tensor:
    """Steps 2 to 4: unit length, support and query centred each by its own mean, unit length."""
    x = normalize(x, dim=-1)  # by the published floor of 1e-12
    if centre == "off":
        return x if task.mask is None else x * task.mask[..., None]
    halves = []
    for rows, mask in zip(task.halves(x), (task.support_mask, task.query_mask), strict=True):
        if mask is None:
            halves.append(rows - rows.mean(dim=-2, keepdim=True))
        else:
            there = mask[..., None]
            mean = (rows * there).sum(dim=-2, keepdim=True) / mask.sum(-1).clamp_min(1)[..., None, None]
            halves.append(torch.where(there, rows - mean, torch.zeros_like(rows)))
    return normalize(torch.cat(halves, dim=-2), dim=-1)


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
