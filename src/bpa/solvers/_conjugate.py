r"""The linear system of the symmetric plan, :math:`(\mathrm{diag}(s) + P)\, d = b`, with s the row sums of P.

Newton's step towards the plan and the derivative of the plan both solve it. It is symmetric and positive
semi-definite, since :math:`z^\top (\mathrm{diag}(s) + P) z = \tfrac12 \sum_{ij} P_{ij} (z_i + z_j)^2`, and has an
eigenvalue near zero for every pair of items that match almost only one another: that is what makes every plain method
slow on clustered features at small ``reg``. Such pairs are known, each being the other's strongest partner, so their
2 × 2 blocks are inverted exactly as the preconditioner of conjugate gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["solve_pair_preconditioned"]


def solve_pair_preconditioned(
    apply_plan: Callable[[Tensor], Tensor],
    row_sums: Tensor,
    right: Tensor,
    *,
    partner: Tensor,
    strength: Tensor,
    goal: Tensor,
    sets: Tensor,
    max_products: int,
    spend: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Solve for d (..., n), each set of the batch to its own ``goal``.

    Parameters
    ----------
    apply_plan : callable
        w (..., n) → P w.
    row_sums, right : Tensor, shape (..., n)
        s and b.
    partner, strength : Tensor, shape (..., n)
        Where the largest entry of each row of P stands, and that entry.
    goal : Tensor, shape (...)
        Norm of the residual to stop at.
    sets : Tensor of bool, shape (...)
        Sets to solve for; the others get zero.
    max_products : int
        Products with P to spend at most.
    spend : callable, optional
        Told with each product which sets it is spent on; returns those that may go on.
    """
    precondition = _pair_preconditioner(row_sums, partner, strength)
    solution = torch.zeros_like(right)
    rest = right
    step = preconditioned = precondition(rest)
    weight = (rest * preconditioned).sum(dim=-1)
    running = sets & (rest.norm(dim=-1) > goal)
    for _ in range(max_products):
        if not bool(running.any()):
            break
        may_go_on = sets if spend is None else spend(running)
        image = row_sums * step + apply_plan(step)
        curvature = (step * image).sum(dim=-1)
        running = running & (curvature > 0)  # else nothing is left but rounding
        length = torch.where(running, weight / torch.where(running, curvature, 1.0), 0.0)[..., None]
        solution = solution + length * step
        rest = rest - length * image
        running = running & (rest.norm(dim=-1) > goal) & may_go_on
        preconditioned = precondition(rest)
        new_weight = (rest * preconditioned).sum(dim=-1)
        ratio = torch.where(running, new_weight / torch.where(running, weight, 1.0), 0.0)
        step = preconditioned + ratio[..., None] * step
        weight = new_weight
    return solution


def _pair_preconditioner(row_sums: Tensor, partner: Tensor, strength: Tensor) -> Callable[[Tensor], Tensor]:
    """Invert the 2 × 2 blocks of pairs that are each other's strongest partner, and the diagonal elsewhere."""
    own = torch.arange(partner.shape[-1], device=partner.device)
    is_pair = (partner.gather(-1, partner) == own) & (partner != own)
    # A pair that matches nobody else has a singular block; this much more on its diagonal keeps the digits of both
    # directions, the one that is determined and the one that is not.
    sums = row_sums + 4096 * torch.finfo(row_sums.dtype).eps
    sums_of_partner = sums.gather(-1, partner)
    strength = torch.where(is_pair, strength, 0.0)
    determinant = sums * sums_of_partner - strength.square()
    determinant = torch.where(is_pair & (determinant > 0), determinant, 1.0)

    def precondition(w: Tensor) -> Tensor:
        in_pair = (sums_of_partner * w - strength * w.gather(-1, partner)) / determinant
        return torch.where(is_pair, in_pair, w / sums)

    return precondition
