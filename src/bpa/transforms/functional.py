r"""Features in, balanced pairwise affinities out: x (..., n, d) gives W (..., n, n).

For every set by itself,

.. math::

    C_{ij} = 1 - \cos(x_i, x_j), \qquad
    K_{ij} = e^{-C_{ij}/\mathrm{reg}}\ (i \ne j),\ K_{ii} = 0, \qquad
    P = \mathrm{diag}(u)\, K\, \mathrm{diag}(v), \qquad
    W = P / \max P,\ W_{ii} = 1,

with u and v from a few Sinkhorn sweeps towards rows and columns that sum to one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from bpa._checks import (
    check_choice,
    check_cost,
    check_count,
    check_features,
    check_finite,
    check_labels,
    check_mask,
    check_positive,
    is_tracing,
)
from bpa.cost import cosine_cost, sqeuclidean_cost
from bpa.errors import ArgumentError, ConvergenceWarning, DTypeError, ShapeError
from bpa.kernels._fused import fused_affinities, is_fusible
from bpa.records import Balance
from bpa.solvers import SolverSettings, assign, solve
from bpa.transforms.choosing import (
    BOUNDS,
    LEAST_REG,
    centred_cosines,
    centred_cosines_of_cost,
    standardise,
    weigh,
)

__all__ = ["BPA", "BPAAttention", "balance", "balanced_affinities", "exact_matching"]

Cost = Literal["cosine", "sqeuclidean", "precomputed"] | Callable[[Tensor], Tensor]
Solver = Literal["alternating", "symmetric"]
Reg = float | Literal["auto"]

_CHUNK_BYTES = 1 << 20
"""Room for the affinities of one chunk of small sets, where sets choose their own weight."""
_DEFAULT_SWEEPS = 5
_DEFAULT_PRODUCTS = 300
_DEFAULT_TOLERANCE = {torch.float32: 3e-6, torch.float64: 1e-6}


def balanced_affinities(
    x: Tensor,
    *,
    reg: Reg = 0.1,
    n_iter: int | None = None,
    cost: Cost = "cosine",
    solver: Solver = "alternating",
    tol: float | None = None,
    max_iter: int | None = None,
    scale: Literal["max"] | None = "max",
    scale_grad: bool = False,
    diagonal: float = 1.0,
    symmetrize: bool = False,
    mask: Tensor | None = None,
    support_labels: Tensor | None = None,
) -> Tensor:
    r"""Turn each set of features into the rows of its optimal self-transport plan.

    The default call is Algorithm 1 of the paper, for one set and for any batch of sets:

    .. math::

        K_{ij} = [i \ne j]\, e^{-(1 - \cos(x_i, x_j))/\mathrm{reg}}, \qquad
        u \leftarrow 1/(K v),\; v \leftarrow 1/(K^\top u) \ \text{(n\_iter times)}, \qquad
        W = \frac{\mathrm{diag}(u) K \mathrm{diag}(v)}{\max} \ \text{off the diagonal},\; W_{ii} = 1.

    Parameters
    ----------
    x : Tensor, shape (..., n, d)
        Sets of features; with ``cost="precomputed"``, costs of shape (..., n, n). Half precision is computed in
        float32 and cast back, also under autocast; float64 stays float64.
    reg : float or "auto", default 0.1
        Entropy weight: small values keep only the nearest neighbours, large ones look at the whole set. ``"auto"``
        chooses it for each set without labels, from the cosines of the centred set, and brings every row to one
        length instead of dividing by the maximum; :func:`~bpa.choose_reg` returns the choice and its reasons.
    n_iter : int, optional
        Sweeps of the alternating solver; 5 where it is left out.
    cost : {"cosine", "sqeuclidean", "precomputed"} or callable
        A callable maps x (..., n, d) to costs (..., n, n); gradients flow through it.
    solver : {"alternating", "symmetric"}
        ``"alternating"`` runs the paper's sweeps. ``"symmetric"`` gives the exactly symmetric plan, converged to
        ``tol``; it needs a symmetric cost.
    tol, max_iter : float and int, optional
        For the symmetric solver: the largest relative error of a row sum (1e-6 in float64, 3e-6 in float32), and
        the most products with K to spend on a set (300). Not arriving is a :class:`~bpa.ConvergenceWarning`.
    scale : {"max", None}
        Whether the affinities of each set are divided by their largest.
    scale_grad : bool, default False
        Whether that largest entry is differentiated; by default it is a constant in the backward pass, as in the
        paper's training code. The two gradients differ in length and direction.
    diagonal : float, default 1.0
        The affinity of an item to itself, written after scaling.
    symmetrize : bool, default False
        Average the plan with its transpose; the alternating solver leaves it slightly asymmetric.
    mask : Tensor of bool, shape (..., n), optional
        True at the items that exist. The others get zero rows and columns and change nothing, whatever they hold.
    support_labels : Tensor of int, shape (..., n), optional
        Known classes, −1 where unknown. Pairs of one class get affinity 1, pairs of two classes 0.

    Returns
    -------
    Tensor, shape (..., n, n)
        Entries in [0, 1] where scaled. One item alone gives ``[[1]]``, two give all ones, three give ones once
        converged. Before scaling, columns sum to one and rows nearly; with the symmetric solver both do.

    Notes
    -----
    Time and memory are O(n²) beyond the costs; nothing couples the sets of a batch. The gradient is exact for the
    sweeps done (or, for the symmetric solver, of the converged plan, by implicit differentiation) and keeps
    O(n²) numbers whatever ``n_iter`` is. Second derivatives are refused with an error.

    Rows are normalised one by one, ``1 − cos`` is not doubled, marginals are ones: where the paper's text, its
    pseudo-code and its published code disagree, this follows the pseudo-code. See the explanation page.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> balanced_affinities(x).round(decimals=2)
    tensor([[1., 1., 0., 0.],
            [1., 1., 0., 0.],
            [0., 0., 1., 1.],
            [0., 0., 1., 1.]])
    """
    options = _Options(
        reg,
        n_iter,
        cost,
        solver,
        tol,
        max_iter,
        scale,
        scale_grad,
        diagonal,
        symmetrize,
        "balanced_affinities",
    )
    return _affinities(x, options, mask, support_labels)


class BPA(nn.Module):
    """The transform as a layer: no parameters, no buffers, nothing stored in ``forward``.

    Takes the options of :func:`balanced_affinities`, which computes it. Inserting the layer into a trained network
    leaves the state dict as it was; taking it out again does too.

    Examples
    --------
    >>> import torch
    >>> layer = BPA(reg=0.1, n_iter=5)
    >>> layer(torch.randn(2, 80, 640)).shape
    torch.Size([2, 80, 80])
    >>> len(layer.state_dict())
    0
    """

    def __init__(
        self,
        reg: Reg = 0.1,
        n_iter: int | None = None,
        *,
        cost: Cost = "cosine",
        solver: Solver = "alternating",
        tol: float | None = None,
        max_iter: int | None = None,
        scale: Literal["max"] | None = "max",
        scale_grad: bool = False,
        diagonal: float = 1.0,
        symmetrize: bool = False,
    ) -> None:
        super().__init__()
        self.options = _Options(
            reg,
            n_iter,
            cost,
            solver,
            tol,
            max_iter,
            scale,
            scale_grad,
            diagonal,
            symmetrize,
            type(self).__name__,
        )

    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, support_labels: Tensor | None = None
    ) -> Tensor:
        """Map features ``x`` (..., n, d) to affinities (..., n, n)."""
        return _affinities(x, self.options, mask, support_labels)

    def extra_repr(self) -> str:
        """Name the options that differ from the default."""
        return self.options.describe()


class BPAAttention(BPA):
    r"""Balanced affinities as attention: :math:`W V`, of the width of V.

    Takes the options of :class:`BPA`.

    Parameters
    ----------
    normalize_rows : bool, default False
        Divide each output row by the sum of its affinities, which makes it a weighted mean. The paper does not.

    Examples
    --------
    >>> import torch
    >>> BPAAttention(reg=0.1)(torch.randn(80, 640)).shape
    torch.Size([80, 640])
    """

    def __init__(
        self, reg: Reg = 0.1, n_iter: int | None = None, *, normalize_rows: bool = False, **options: object
    ) -> None:
        super().__init__(reg, n_iter, **options)  # type: ignore[arg-type]  # checked by _Options
        self.normalize_rows = normalize_rows

    def forward(
        self,
        x: Tensor,
        *,
        values: Tensor | None = None,
        mask: Tensor | None = None,
        support_labels: Tensor | None = None,
    ) -> Tensor:
        """Take affinities from ``x`` (..., n, d) and mix ``values`` (..., n, w), which are ``x`` by default.

        Returns
        -------
        Tensor, shape (..., n, w)
            Rows of items outside ``mask`` are zero.
        """
        affinity = super().forward(x, mask=mask, support_labels=support_labels)
        values = x if values is None else values
        if values.dim() < 2 or values.shape[-2] != x.shape[-2]:
            raise ShapeError(
                f"The 'values' parameter of {type(self).__name__} must have shape (..., n, w) with n = "
                f"{x.shape[-2]}, one row an item. Got {tuple(values.shape)}."
            )
        if mask is not None:
            values = values.masked_fill(~mask[..., None], 0.0)
        if self.normalize_rows:
            total = affinity.sum(dim=-1, keepdim=True)
            affinity = affinity / torch.where(total > 0, total, 1.0)
        return affinity @ values.to(affinity.dtype)


def balance(
    cost: Tensor,
    *,
    reg: float = 0.1,
    n_iter: int | None = None,
    solver: Solver = "alternating",
    tol: float | None = None,
    max_iter: int | None = None,
    mask: Tensor | None = None,
) -> Balance:
    r"""Balance the plan of a set to itself from its pairwise costs.

    .. math:: P = \mathrm{diag}(u)\, K \,\mathrm{diag}(v), \qquad K_{ij} = [i \ne j]\, e^{-C_{ij}/\mathrm{reg}}

    Parameters
    ----------
    cost : Tensor, shape (..., n, n)
        Any finite costs off the diagonal; the diagonal is not read. Symmetric for ``solver="symmetric"``.
    reg, n_iter, solver, tol, max_iter, mask
        As for :func:`balanced_affinities`.

    Returns
    -------
    Balance
        Potentials, plan (diagonal 0, not scaled) and a report for every set. The plan is differentiable once.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[0.0], [0.2], [0.9], [2.0]])
    >>> result = balance((x - x.T).square(), reg=0.5, solver="symmetric")
    >>> bool(result.converged), result.plan.sum(dim=1).round(decimals=4)
    (True, tensor([1., 1., 1., 1.]))
    """
    options = _Options(reg, n_iter, "precomputed", solver, tol, max_iter, None, False, 0.0, False, "balance")
    check_cost(cost, argument="cost", function="balance")
    given = cost.dtype
    mask = None if mask is None else check_mask(mask, cost.shape[:-1], function="balance")
    with torch.autocast(cost.device.type, enabled=False):
        result = _balance(_computable(cost), options, mask)
    return result if result.plan.dtype == given else _cast(result, given)


def exact_matching(cost: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Balance without entropy: the limit of :func:`balance` as ``reg`` goes to 0, by an assignment solver.

    Parameters
    ----------
    cost : Tensor, shape (..., n, n)
        Costs of pairing item i with item j; the diagonal is not read.
    mask : Tensor of bool, shape (..., n), optional
        True at the items that exist.

    Returns
    -------
    Tensor, shape (..., n, n)
        A plan of least total cost with diagonal 0: the mean of an optimal permutation and its inverse, which is as
        good for a symmetric cost. Where several permutations are optimal, this is one of them, while the entropic
        limit is the mean of all. A set of one item has nothing to match and gives zero. No gradient.

    Notes
    -----
    O(n³) on the CPU: about a second at n = 2,000. Needs the ``sklearn`` extra (SciPy).

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[0.0], [0.1], [5.0], [5.2]])
    >>> exact_matching((x - x.T).square())
    tensor([[0., 1., 0., 0.],
            [1., 0., 0., 0.],
            [0., 0., 0., 1.],
            [0., 0., 1., 0.]])
    """
    check_cost(cost, argument="cost", function="exact_matching")
    if mask is not None:
        mask = check_mask(mask, cost.shape[:-1], function="exact_matching")
    forbidden, alone = _forbidden_pairs(cost, mask)
    own = _own_pairs(cost)
    check_finite(cost.masked_fill(forbidden, 0.0), argument="cost", function="exact_matching", mask=mask)
    masked = cost.masked_fill(forbidden, float("inf")).masked_fill(own & alone[..., None], 0.0)
    plan = assign((masked + masked.mT) / 2)
    return ((plan + plan.mT) / 2).masked_fill(own, 0.0)


@dataclass(frozen=True)
class _Options:
    """What the caller chose, checked once."""

    reg: Reg
    n_iter: int | None
    cost: Cost
    solver: Solver
    tol: float | None
    max_iter: int | None
    scale: Literal["max"] | None
    scale_grad: bool
    diagonal: float
    symmetrize: bool
    function: str

    def __post_init__(self) -> None:
        function = self.function
        if self.reg != "auto":
            check_positive(self.reg, argument="reg", function=function)
        elif function == "balance":
            raise ArgumentError(
                "The 'reg' parameter of balance must be a number. Got 'auto', which is a choice for features: take it "
                "from bpa.transforms.choosing.choose_reg, or use balanced_affinities."
            )
        elif self.scale is None or self.scale_grad:
            name = "scale" if self.scale is None else "scale_grad"
            raise ArgumentError(
                f"The {name!r} parameter of {function} has no effect with reg='auto', which brings each row to one "
                f"length. Leave it out, or give reg a number."
            )
        check_choice(self.solver, ("alternating", "symmetric"), argument="solver", function=function)
        check_choice(self.scale, ("max", None), argument="scale", function=function)
        if not callable(self.cost):
            check_choice(
                self.cost, ("cosine", "sqeuclidean", "precomputed"), argument="cost", function=function
            )
        unused = ("tol", "max_iter") if self.solver == "alternating" else ("n_iter",)
        for name in unused:
            if getattr(self, name) is not None:
                way_out = (
                    'Use solver="symmetric" to run to a tolerance, or n_iter for a number of sweeps.'
                    if self.solver == "alternating"
                    else "Use max_iter to bound the work."
                )
                raise ArgumentError(
                    f'The {name!r} parameter of {function} has no effect with solver="{self.solver}". {way_out}'
                )
        if self.n_iter is not None:
            check_count(self.n_iter, argument="n_iter", function=function)
        if self.max_iter is not None:
            check_count(self.max_iter, argument="max_iter", function=function)
        if self.tol is not None:
            check_positive(self.tol, argument="tol", function=function)
        if self.scale_grad and self.scale is None:
            raise ArgumentError(f"The 'scale_grad' parameter of {function} has no effect with scale=None.")

    def solver_settings(self, dtype: torch.dtype, bounds: tuple[float, float] | None) -> SolverSettings:
        if self.solver == "alternating":
            sweeps = _DEFAULT_SWEEPS if self.n_iter is None else self.n_iter
            return SolverSettings(sweeps, bounds=bounds, is_symmetric=self.is_cost_symmetric)
        return SolverSettings(
            None,
            tol=_DEFAULT_TOLERANCE[dtype] if self.tol is None else self.tol,
            max_iter=_DEFAULT_PRODUCTS if self.max_iter is None else self.max_iter,
            bounds=bounds,
            is_symmetric=True,
        )

    @property
    def weight(self) -> float:
        """The entropy weight as a number, also where it was left to the set."""
        return LEAST_REG if self.reg == "auto" else self.reg

    @property
    def is_cost_symmetric(self) -> bool:
        return self.cost in ("cosine", "sqeuclidean")

    def describe(self) -> str:
        shown = ["reg='auto'" if self.reg == "auto" else f"reg={self.reg:g}"]
        if self.solver == "alternating":
            shown.append(f"n_iter={_DEFAULT_SWEEPS if self.n_iter is None else self.n_iter}")
        defaults = _DEFAULTS
        for name in ("cost", "solver", "tol", "max_iter", "scale", "scale_grad", "diagonal", "symmetrize"):
            value = getattr(self, name)
            if value != getattr(defaults, name):
                shown.append(f"{name}={getattr(value, '__name__', None) or repr(value)}")
        return ", ".join(shown)


_DEFAULTS = _Options(0.1, None, "cosine", "alternating", None, None, "max", False, 1.0, False, "BPA")


def _affinities(x: Tensor, options: _Options, mask: Tensor | None, support_labels: Tensor | None) -> Tensor:
    """Map checked options and unchecked tensors to W."""
    function = options.function
    if options.cost == "precomputed":
        check_cost(x, argument="x", function=function)
    else:
        check_features(x, argument="x", function=function)
    shape = x.shape[:-1]
    mask = None if mask is None else check_mask(mask, shape, function=function)
    labels = None if support_labels is None else check_labels(support_labels, shape, function=function)
    with torch.autocast(x.device.type, enabled=False):
        values = _computable(x)
        if options.reg == "auto":
            return _auto_affinities(values, options, mask, labels).to(x.dtype)
        settings = options.solver_settings(values.dtype, _cosine_bounds(options.reg))
        is_plain = mask is None and labels is None and not options.symmetrize and not options.scale_grad
        if options.cost == "cosine" and is_plain and is_fusible(values, settings):
            affinity = fused_affinities(
                values, options.reg, settings, stretch=options.scale == "max", diagonal=options.diagonal
            )
        else:
            plan = _balance(_costs(values, options, mask), options, mask).plan
            affinity = _finish(plan, options, mask, labels)
    return affinity.to(x.dtype)


def _auto_affinities(x: Tensor, options: _Options, mask: Tensor | None, labels: Tensor | None) -> Tensor:
    """W with an entropy weight chosen for each set; many small sets go through in chunks that stay in the cache."""
    lead, n = x.shape[:-2], x.shape[-2]
    count = math.prod(lead)
    at_once = max(1, _CHUNK_BYTES // (n * n * x.element_size()))
    if count <= at_once or is_tracing():
        affinity = _auto_affinities_of(x, options, mask)
    else:
        sets = torch.split(x.reshape(count, *x.shape[-2:]), at_once)
        masks = [None] * len(sets) if mask is None else torch.split(mask.reshape(count, n), at_once)
        parts = [_auto_affinities_of(part, options, kept) for part, kept in zip(sets, masks, strict=True)]
        affinity = torch.cat(parts).view(*lead, n, n)
    return affinity if labels is None else _clamp_known(affinity, labels)


def _auto_affinities_of(x: Tensor, options: _Options, mask: Tensor | None) -> Tensor:
    if options.cost == "cosine":
        cosines, mean = centred_cosines(x, mask, function=options.function)
    else:
        cosines, mean = centred_cosines_of_cost(_costs(x, options, mask), mask)
    weight = weigh(cosines, mean, mask)
    settings = replace(options, cost="cosine").solver_settings(cosines.dtype, BOUNDS)
    plan, _, _, _, error = solve(weight.log_kernel(cosines, mask), None, None, settings)
    if settings.n_iter is None and not is_tracing():
        converged = error <= settings.tol
        if not bool(converged.all()):
            _warn_not_converged(error, converged, settings, options)
    return standardise(plan, cosines, weight, diagonal=options.diagonal, mask=mask)[0]


def _clamp_known(affinity: Tensor, labels: Tensor) -> Tensor:
    """Write 1 at pairs of one known class, 0 at pairs of two."""
    is_known = (labels >= 0)[..., :, None] & (labels >= 0)[..., None, :] & ~_own_pairs(affinity)
    is_same = (labels[..., :, None] == labels[..., None, :]).to(affinity.dtype)
    return torch.where(is_known, is_same, affinity)


def _costs(x: Tensor, options: _Options, mask: Tensor | None) -> Tensor:
    """Costs (..., n, n) of the items that exist; the others may hold anything."""
    if options.cost == "precomputed":
        return x
    check_finite(x, argument="x", function=options.function, mask=mask)
    if mask is not None:
        # The mean of the set stands in for missing items: whatever is padded, nothing of it reaches the result.
        x = x.masked_fill(~mask[..., None], 0.0)
        mean = x.sum(dim=-2, keepdim=True) / mask.sum(dim=-1).clamp_min(1)[..., None, None]
        x = torch.where(mask[..., None], x, mean.detach())
    if options.cost == "cosine":
        return cosine_cost(x)
    if options.cost == "sqeuclidean":
        return sqeuclidean_cost(x)
    costs = options.cost(x)
    expected = (*x.shape[:-1], x.shape[-2])
    if not isinstance(costs, Tensor) or tuple(costs.shape) != expected:
        got = tuple(costs.shape) if isinstance(costs, Tensor) else type(costs).__name__
        raise ShapeError(
            f"The 'cost' parameter of {options.function} must return costs of shape {expected} for features of "
            f"shape {tuple(x.shape)}. Got {got}."
        )
    return costs.to(x.dtype)


def _balance(cost: Tensor, options: _Options, mask: Tensor | None) -> Balance:
    """Costs to a balanced plan with diagonal 0; items without any partner get a zero row and column."""
    reg = options.weight
    own = _own_pairs(cost)
    forbidden, alone = _forbidden_pairs(cost, mask)
    cost = cost.masked_fill(forbidden, 0.0)
    if not options.is_cost_symmetric:
        check_finite(cost, argument="cost", function=options.function, mask=mask)
    if options.solver == "symmetric":
        cost = _symmetric(cost, options)
    is_cosine = options.cost == "cosine"
    bounds = _cosine_bounds(reg) if is_cosine else _bounds(cost, forbidden, reg)
    # An item without a partner is given itself, and nobody else, to match: it stays finite and touches nothing.
    log_kernel = (cost / -reg).masked_fill(forbidden, -float("inf"))
    log_kernel = log_kernel.masked_fill(own & alone[..., None], bounds[1] if bounds is not None else 0.0)
    settings = options.solver_settings(cost.dtype, bounds)
    plan, log_us, log_vs, n_iter, error = solve(log_kernel, None, None, settings)
    converged = None
    if settings.n_iter is None:
        converged = error <= settings.tol
        if not is_tracing() and not bool(converged.all()):
            _warn_not_converged(error, converged, settings, options)
    return Balance(
        plan.masked_fill(own, 0.0),
        log_us[..., -1, :],
        log_vs[..., -1, :],
        n_iter,
        error,
        converged,
        reg,
    )


def _finish(plan: Tensor, options: _Options, mask: Tensor | None, labels: Tensor | None) -> Tensor:
    """Plan to W: stretch, known pairs, diagonal, missing items."""
    if options.symmetrize:
        plan = (plan + plan.mT) / 2
    if options.scale == "max":
        largest = plan.amax(dim=(-2, -1), keepdim=True)
        largest = torch.where(largest > 0, largest, 1.0)
        plan = plan / (largest if options.scale_grad else largest.detach())
    if labels is not None:
        is_known = (labels >= 0)[..., :, None] & (labels >= 0)[..., None, :]
        is_same = (labels[..., :, None] == labels[..., None, :]).to(plan.dtype)
        plan = torch.where(is_known, is_same, plan)
    plan = torch.where(_own_pairs(plan), options.diagonal, plan)
    if mask is not None:
        plan = plan.masked_fill(~(mask[..., :, None] & mask[..., None, :]), 0.0)
    return plan


def _forbidden_pairs(cost: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Pairs (..., n, n) that may not match, and the items (..., n) that this leaves without a partner."""
    forbidden = _own_pairs(cost)
    n = cost.shape[-1]
    if mask is None:
        alone = torch.full((n,), n == 1, dtype=torch.bool, device=cost.device)
        return forbidden, alone
    forbidden = forbidden | ~(mask[..., :, None] & mask[..., None, :])
    return forbidden, ~mask | (mask.sum(dim=-1, keepdim=True) == 1)


def _own_pairs(cost: Tensor) -> Tensor:
    return torch.eye(cost.shape[-1], dtype=torch.bool, device=cost.device)


def _symmetric(cost: Tensor, options: _Options) -> Tensor:
    """Remove rounding from a symmetric cost; refuse one that is not symmetric."""
    if not options.is_cost_symmetric and not is_tracing():
        gap = (cost.detach() - cost.detach().mT).abs().amax()
        size = cost.detach().abs().amax()
        if bool(gap > 1e-3 * size):
            raise ArgumentError(
                f'The cost of {options.function} must be symmetric for solver="symmetric". Got entries that differ '
                f"by up to {float(gap):.3g} from their transposes. Average it with its transpose, or use "
                f'solver="alternating".'
            )
    return (cost + cost.mT) / 2


def _cosine_bounds(reg: float) -> tuple[float, float]:
    """Bounds on log K for cosine costs, which lie in [0, 2]."""
    return -2 / reg, 0.0


def _bounds(cost: Tensor, forbidden: Tensor, reg: float) -> tuple[float, float] | None:
    """Bounds on log K for any costs; None where values cannot be looked at."""
    if is_tracing():
        return None
    values = cost.detach()
    low = float(values.masked_fill(forbidden, float("inf")).amin())
    high = float(values.masked_fill(forbidden, -float("inf")).amax())
    return (-high / reg, -low / reg) if low <= high else (0.0, 0.0)


def _computable(x: Tensor) -> Tensor:
    """``x`` in a type to compute in: float32 for the half types."""
    if x.dtype in (torch.float32, torch.float64):
        return x
    if x.dtype in (torch.float16, torch.bfloat16):
        return x.float()
    raise DTypeError(f"Numbers of type {x.dtype} are not supported. Convert them to float32 first.")


def _cast(result: Balance, dtype: torch.dtype) -> Balance:
    return Balance(
        result.plan.to(dtype),
        result.log_u.to(dtype),
        result.log_v.to(dtype),
        result.n_iter,
        result.marginal_error,
        result.converged,
        result.reg,
    )


def _warn_not_converged(
    error: Tensor, converged: Tensor, settings: SolverSettings, options: _Options
) -> None:
    missed = int((~converged).sum())
    warnings.warn(
        f"{options.function}: {missed} of {converged.numel()} sets did not reach tol={settings.tol:g} within "
        f"max_iter={settings.max_iter}; the largest row-sum error is {float(error.max()):.2g} (reg={options.reg}, "
        f"{error.dtype}). Raise reg, tol or max_iter, or compute in float64.",
        ConvergenceWarning,
        stacklevel=2,
    )
