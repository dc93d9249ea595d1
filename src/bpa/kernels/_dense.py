"""The dense kernel: rows → costs → log K → plan → W, room by room, whatever the options are.

This is the assembly line every other entry of the table is measured against. Fixed weights and ``reg="auto"`` differ in
two steps only, what K is and how the plan becomes W:

===========  ==============================  ==================================
step         ``reg`` a number                ``reg="auto"``
===========  ==============================  ==================================
log K        −C / reg                        (cosine of centred rows − 1) / reg
W            P / max P                       rows of P − 1/(n−1) at one length
===========  ==============================  ==================================
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bpa._checks import check_finite, is_tracing
from bpa.cost import cosine_cost, sqeuclidean_cost
from bpa.errors import ArgumentError, ConvergenceWarning, ShapeError
from bpa.kernels._recipe import Recipe, Request
from bpa.kernels._standardise import standardise
from bpa.kernels._weight import FACTS, Weight, centred_cosines, centred_cosines_of_cost, weigh
from bpa.records import Balance, Convergence
from bpa.solvers import Converged
from bpa.solvers._plan import KernelFacts, solve

__all__ = ["Dense", "balance_costs", "cosine_bounds", "forbidden_pairs", "own_pairs"]

_CHUNK_BYTES = 1 << 20
"""Room for the affinities of one chunk of small sets, where sets choose their own weight."""


class Dense:
    """Every set, every option, in a handful of n × n buffers."""

    name = "dense"

    def why_not(self, request: Request) -> str | None:  # noqa: ARG002 - one signature for every entry
        """Nothing is beyond it."""
        return None

    def affinities(self, request: Request) -> tuple[Tensor, Convergence]:
        """W (..., n, n) and how balanced its plan is."""
        parts = [_assemble(part) for part in _chunks(request)]
        if len(parts) == 1:
            affinity, convergence = parts[0]
        else:
            shape, n = request.x.shape[:-2], request.x.shape[-2]
            affinity = torch.cat([w for w, _ in parts]).view(*shape, n, n)
            convergence = Convergence(
                torch.cat([c.n_iter for _, c in parts]).view(shape),
                torch.cat([c.marginal_error for _, c in parts]).view(shape),
                parts[0][1].tol,
            )
        warn_not_converged(convergence, request.recipe)
        return _close(affinity, request), convergence


@dataclass(frozen=True, eq=False)
class _Kernel:
    """log K (..., n, n), what is known of it, and what its finish needs to remember."""

    log_kernel: Tensor
    facts: KernelFacts
    memory: tuple[Tensor, Weight] | None = None


def _assemble(request: Request) -> tuple[Tensor, Convergence]:
    """Rows to W of one chunk; known pairs and missing items come later."""
    is_chosen = request.recipe.reg == "auto"
    kernel = _chosen_kernel(request) if is_chosen else _fixed_kernel(_costs(request), request)
    solution = solve(kernel.log_kernel, None, None, request.recipe.solver, kernel.facts)
    if kernel.memory is not None:
        cosines, weight = kernel.memory
        diagonal = request.recipe.diagonal
        affinity = standardise(solution.plan, cosines, weight, diagonal=diagonal, mask=request.mask)[0]
    else:
        affinity = _stretch(solution.plan.masked_fill(own_pairs(solution.plan), 0.0), request.recipe)
    return affinity, solution.convergence


def _chunks(request: Request) -> list[Request]:
    """Many small sets in parts that stay in the cache, where the rule makes a dozen passes over each of them."""
    x, n = request.x, request.x.shape[-2]
    count = math.prod(x.shape[:-2])
    at_once = max(1, _CHUNK_BYTES // max(1, n * n * x.element_size()))
    if request.recipe.reg != "auto" or count <= at_once or is_tracing():
        return [request]
    sets = torch.split(x.reshape(count, *x.shape[-2:]), at_once)
    masks: Any = [None] * len(sets)
    if request.mask is not None:
        masks = torch.split(request.mask.reshape(count, n), at_once)
    return [replace(request, x=part, mask=mask) for part, mask in zip(sets, masks, strict=True)]


# ---------------------------------------------------------------------------------------- rows to log K


def balance_costs(request: Request) -> Balance:
    """Costs to a balanced plan with diagonal 0; items without any partner get a zero row and column."""
    kernel = _fixed_kernel(request.x, request)
    found = solve(kernel.log_kernel, None, None, request.recipe.solver, kernel.facts)
    warn_not_converged(found.convergence, request.recipe)
    plan = found.plan.masked_fill(own_pairs(found.plan), 0.0)
    reg = request.recipe.reg
    assert not isinstance(reg, str)  # noqa: S101 - refused at the door
    return Balance(plan, found.log_us[..., -1, :], found.log_vs[..., -1, :], found.convergence, reg)


def cosine_bounds(reg: float) -> tuple[float, float]:
    """Bounds on log K for cosine costs, which lie in [0, 2]."""
    return -2 / reg, 0.0


def _chosen_kernel(request: Request) -> _Kernel:
    recipe, mask = request.recipe, request.mask
    if recipe.cost == "cosine":
        cosines, mean = centred_cosines(request.x, mask, function=recipe.function)
    else:
        cosines, mean = centred_cosines_of_cost(_costs(request), mask)
    weight = weigh(cosines, mean, mask)
    return _Kernel(weight.log_kernel(cosines, mask), FACTS, (cosines, weight))


def _fixed_kernel(cost: Tensor, request: Request) -> _Kernel:
    recipe, mask = request.recipe, request.mask
    assert not isinstance(recipe.reg, str)  # noqa: S101 - the other kernel serves "auto"
    reg = recipe.reg
    forbidden, alone = forbidden_pairs(cost, mask)
    cost = cost.masked_fill(forbidden, 0.0)
    if not recipe.is_cost_symmetric:
        check_finite(cost, argument="cost", function=recipe.function, mask=mask)
    if isinstance(recipe.solver, Converged):
        cost = _symmetric(cost, recipe)
    bounds = cosine_bounds(reg) if recipe.cost == "cosine" else _bounds(cost, forbidden, reg)
    facts = KernelFacts(bounds, recipe.is_cost_symmetric or isinstance(recipe.solver, Converged))
    # An item without a partner is given itself, and nobody else, to match: it stays finite and touches nothing.
    log_kernel = (cost / -reg).masked_fill(forbidden, -math.inf)
    top = 0.0 if bounds is None else bounds[1]
    return _Kernel(log_kernel.masked_fill(own_pairs(cost) & alone[..., None], top), facts)


def _costs(request: Request) -> Tensor:
    """Costs (..., n, n) of the items that exist; the others may hold anything."""
    recipe, x, mask = request.recipe, request.x, request.mask
    if recipe.cost == "precomputed":
        return x
    check_finite(x, argument="x", function=recipe.function, mask=mask)
    if mask is not None:
        # The mean of the set stands in for missing items: whatever is padded, nothing of it reaches the result.
        x = x.masked_fill(~mask[..., None], 0.0)
        mean = x.sum(dim=-2, keepdim=True) / mask.sum(dim=-1).clamp_min(1)[..., None, None]
        x = torch.where(mask[..., None], x, mean.detach())
    if recipe.cost == "cosine":
        return cosine_cost(x)
    if recipe.cost == "sqeuclidean":
        return sqeuclidean_cost(x)
    costs = recipe.cost(x)
    expected = (*x.shape[:-1], x.shape[-2])
    if not isinstance(costs, Tensor) or tuple(costs.shape) != expected:
        got = tuple(costs.shape) if isinstance(costs, Tensor) else type(costs).__name__
        raise ShapeError(
            f"The 'cost' parameter of {recipe.function} must return costs of shape {expected} for features of shape "
            f"{tuple(x.shape)}. Got {got}."
        )
    return costs.to(x.dtype)


def forbidden_pairs(cost: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Pairs (..., n, n) that may not match, and the items (..., n) that this leaves without a partner."""
    forbidden = own_pairs(cost)
    n = cost.shape[-1]
    if mask is None:
        alone = torch.full((n,), n == 1, dtype=torch.bool, device=cost.device)
        return forbidden, alone
    forbidden = forbidden | ~(mask[..., :, None] & mask[..., None, :])
    return forbidden, ~mask | (mask.sum(dim=-1, keepdim=True) == 1)


def own_pairs(cost: Tensor) -> Tensor:
    """True on the diagonal, (n, n)."""
    return torch.eye(cost.shape[-1], dtype=torch.bool, device=cost.device)


def _symmetric(cost: Tensor, recipe: Recipe) -> Tensor:
    """Remove rounding from a symmetric cost; refuse one that is not symmetric."""
    if not recipe.is_cost_symmetric and not is_tracing():
        gap = (cost.detach() - cost.detach().mT).abs().amax()
        size = cost.detach().abs().amax()
        if bool(gap > 1e-3 * size):
            raise ArgumentError(
                f"The cost of {recipe.function} must be symmetric for solver=Converged(). Got entries that differ by "
                f"up to {float(gap):.3g} from their transposes. Average it with its transpose, or use solver=Sweeps(n)."
            )
    return (cost + cost.mT) / 2


def _bounds(cost: Tensor, forbidden: Tensor, reg: float) -> tuple[float, float] | None:
    """Bounds on log K for any costs; None where values cannot be looked at."""
    if is_tracing():
        return None
    values = cost.detach()
    low = float(values.masked_fill(forbidden, math.inf).amin())
    high = float(values.masked_fill(forbidden, -math.inf).amax())
    return (-high / reg, -low / reg) if low <= high else (0.0, 0.0)


# ---------------------------------------------------------------------------------------- plan to W


def _stretch(plan: Tensor, recipe: Recipe) -> Tensor:
    """Average with the transpose and divide by the largest entry, where asked; write the diagonal."""
    if recipe.symmetrize:
        plan = (plan + plan.mT) / 2
    if recipe.scale == "max":
        largest = plan.amax(dim=(-2, -1), keepdim=True)
        largest = torch.where(largest > 0, largest, 1.0)
        plan = plan / (largest if recipe.scale_grad else largest.detach())
    return torch.where(own_pairs(plan), recipe.diagonal, plan)


def _close(affinity: Tensor, request: Request) -> Tensor:
    """Write known pairs, 1 in one class and 0 in two, and zeros where an item is missing."""
    if request.labels is not None:
        known = request.labels >= 0
        is_known = known[..., :, None] & known[..., None, :] & ~own_pairs(affinity)
        is_same = (request.labels[..., :, None] == request.labels[..., None, :]).to(affinity.dtype)
        affinity = torch.where(is_known, is_same, affinity)
    if request.mask is not None:
        affinity = affinity.masked_fill(~(request.mask[..., :, None] & request.mask[..., None, :]), 0.0)
    return affinity


def warn_not_converged(found: Convergence, recipe: Recipe) -> None:
    """Say which share of the sets missed the tolerance that was asked for."""
    if not isinstance(recipe.solver, Converged) or is_tracing():
        return
    converged = found.converged
    if bool(converged.all()):
        return
    missed = int((~converged).sum())
    warnings.warn(
        f"{recipe.function}: {missed} of {converged.numel()} sets did not reach tol={found.tol:g} within "
        f"max_iter={recipe.solver.max_iter}; the largest row-sum error is {float(found.marginal_error.max()):.2g} "
        f"(reg={recipe.reg}, {found.marginal_error.dtype}). Raise reg, tol or max_iter, or compute in float64.",
        ConvergenceWarning,
        stacklevel=2,
    )
