r"""Features in, balanced pairwise affinities out: x (..., n, d) gives W (..., n, n).

For every set by itself,

.. math::

    C_{ij} = 1 - \cos(x_i, x_j), \qquad
    K_{ij} = e^{-C_{ij}/\mathrm{reg}}\ (i \ne j),\ K_{ii} = 0, \qquad
    P = \mathrm{diag}(u)\, K\, \mathrm{diag}(v), \qquad
    W = P / \max P,\ W_{ii} = 1,

with u and v from a few Sinkhorn sweeps towards rows and columns that sum to one. What is computed where is the business
of `bpa.kernels`; this is its front.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor

from bpa._checks import check_cost, check_finite, check_mask, check_reg
from bpa._words import REG_WORDS, SOLVER_WORDS, explains
from bpa.kernels._dense import balance_costs, forbidden_pairs, own_pairs
from bpa.kernels._recipe import Cost, Recipe, Reg, Request
from bpa.kernels._table import choose, computable, request_of
from bpa.records import Balance, Convergence
from bpa.solvers._assignment import assign
from bpa.solvers._choice import PAPER_SWEEPS, Solver

__all__ = [
    "Affinities",
    "AffinityOptions",
    "affinities_and_convergence",
    "affinities_of",
    "balance",
    "balanced_affinities",
    "exact_matching",
]


WORDS = {
    **REG_WORDS,
    **SOLVER_WORDS,
    "distance_metric": "cost",
    "metric": "cost",
    "max_scale": "scale",
    "mask_diag": "items are never matched with themselves",
}
"""What the paper, its code and other transport libraries call the options of the transform."""


class AffinityOptions(TypedDict, total=False):
    """The options of :func:`balanced_affinities` beside ``reg`` and ``solver``."""

    cost: Cost
    scale: Literal["max"] | None
    scale_grad: bool
    diagonal: float
    symmetrize: bool


class Affinities(NamedTuple):
    """W, and how balanced the plan behind it is.

    Examples
    --------
    >>> import torch
    >>> affinity, convergence = affinities_and_convergence(torch.eye(4))
    >>> affinity.shape, bool(convergence.converged)
    (torch.Size([4, 4]), True)
    """

    affinity: Tensor
    convergence: Convergence


@explains(**WORDS)
def balanced_affinities(
    x: Tensor,
    *,
    reg: Reg = 0.1,
    solver: Solver = PAPER_SWEEPS,
    cost: Cost = "cosine",
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
        u \leftarrow 1/(K v),\; v \leftarrow 1/(K^\top u) \ \text{(5 times)}, \qquad
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
    solver : Sweeps or Converged, default Sweeps(5)
        :class:`~bpa.solvers.Sweeps` runs the paper's alternating sweeps. :class:`~bpa.solvers.Converged` gives the
        exactly symmetric plan, to a tolerance; it needs a symmetric cost.
    cost : {"cosine", "sqeuclidean", "precomputed"} or callable
        A callable maps x (..., n, d) to costs (..., n, n); gradients flow through it.
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
        converged. Before scaling, columns sum to one and rows nearly; with ``Converged()`` both do. How nearly,
        :func:`bpa.transforms.affinities_and_convergence` says.

    Notes
    -----
    Time and memory are O(n²) beyond the costs; nothing couples the sets of a batch. The gradient is exact for the
    sweeps done (or of the converged plan, by implicit differentiation) and keeps O(n²) numbers however many there
    are. Second derivatives are refused with an error.

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
    recipe = Recipe(reg, solver, cost, scale, scale_grad, diagonal, symmetrize)
    return affinities_of(x, recipe, mask, support_labels)


@explains(**WORDS)
def affinities_and_convergence(
    x: Tensor,
    *,
    reg: Reg = 0.1,
    solver: Solver = PAPER_SWEEPS,
    mask: Tensor | None = None,
    support_labels: Tensor | None = None,
    **options: Unpack[AffinityOptions],
) -> Affinities:
    """:func:`balanced_affinities`, and how balanced each set's plan is.

    Parameters
    ----------
    x, reg, solver, mask, support_labels, **options
        As there.

    Returns
    -------
    Affinities
        ``affinity``, what :func:`balanced_affinities` gives, and ``convergence``, fields of shape (...). It costs one
        product with K more.

    Examples
    --------
    Five sweeps do not balance a plan at a very small weight:

    >>> import torch
    >>> x = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    >>> found = affinities_and_convergence(x, reg=0.002)
    >>> bool(found.convergence.converged), float(found.convergence.marginal_error) > 0.05
    (False, True)
    """
    recipe = Recipe(reg, solver, **options, function="affinities_and_convergence")
    with torch.autocast(_device_of(x), enabled=False):
        request = request_of(x, recipe, mask, support_labels, wants_convergence=True)
        affinity, convergence = choose(request).affinities(request)
    assert convergence is not None  # noqa: S101 - it was asked for
    return Affinities(affinity.to(x.dtype), convergence)


def affinities_of(x: Tensor, recipe: Recipe, mask: Tensor | None, support_labels: Tensor | None) -> Tensor:
    """Rows to W by a recipe."""
    with torch.autocast(_device_of(x), enabled=False):
        request = request_of(x, recipe, mask, support_labels)
        return choose(request).affinities(request)[0].to(x.dtype)


def _device_of(x: Tensor) -> str:
    return x.device.type if isinstance(x, Tensor) else "cpu"  # what x is not, the checks say


@explains(**REG_WORDS, **SOLVER_WORDS)
def balance(
    cost: Tensor,
    *,
    reg: float = 0.1,
    solver: Solver = PAPER_SWEEPS,
    mask: Tensor | None = None,
) -> Balance:
    r"""Balance the plan of a set to itself from its pairwise costs.

    .. math:: P = \mathrm{diag}(u)\, K \,\mathrm{diag}(v), \qquad K_{ij} = [i \ne j]\, e^{-C_{ij}/\mathrm{reg}}

    Parameters
    ----------
    cost : Tensor, shape (..., n, n)
        Any finite costs off the diagonal; the diagonal is not read. Symmetric for ``solver=Converged()``.
    reg, solver, mask
        As for :func:`balanced_affinities`.

    Returns
    -------
    Balance
        Potentials, plan (diagonal 0, not scaled) and a report for every set. The plan is differentiable once.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[0.0], [0.2], [0.9], [2.0]])
    >>> from bpa.solvers import Converged
    >>> result = balance((x - x.T).square(), reg=0.5, solver=Converged())
    >>> bool(result.convergence.converged), result.plan.sum(dim=1).round(decimals=4)
    (True, tensor([1., 1., 1., 1.]))
    """
    recipe = Recipe(
        check_reg(reg, function="balance", auto=False),
        solver,
        "precomputed",
        scale=None,
        diagonal=0.0,
        function="balance",
    )
    check_cost(cost, argument="cost", function="balance")
    mask = None if mask is None else check_mask(mask, cost.shape[:-1], function="balance")
    with torch.autocast(cost.device.type, enabled=False):
        result = balance_costs(Request(recipe, computable(cost), mask))
    return result if result.plan.dtype == cost.dtype else result.to(cost.dtype)


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
    forbidden, alone = forbidden_pairs(cost, mask)
    own = own_pairs(cost)
    check_finite(cost.masked_fill(forbidden, 0.0), argument="cost", function="exact_matching", mask=mask)
    masked = cost.masked_fill(forbidden, float("inf")).masked_fill(own & alone[..., None], 0.0)
    plan = assign((masked + masked.mT) / 2)
    return ((plan + plan.mT) / 2).masked_fill(own, 0.0)
