"""log K in, plan out, as one differentiable step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bpa.errors import NotDifferentiableError
from bpa.records import Convergence
from bpa.solvers._choice import Converged, Solver
from bpa.solvers._gradients import LogScaledKernel, ScaledPlan, alternating_adjoint, symmetric_adjoint
from bpa.solvers._kernel import is_exponential_safe, make_kernel
from bpa.solvers._sinkhorn import Scalings, alternate, symmetrise

__all__ = ["KernelFacts", "Solution", "move_batch_first", "refuse_second_derivative", "solve"]


@dataclass(frozen=True)
class KernelFacts:
    """What is known of log K beforehand: ``bounds`` on its finite entries (see ``make_kernel``), and that K = Kᵀ."""

    bounds: tuple[float, float] | None = None
    is_symmetric: bool = False

    def keeps_plan_exact(self, dtype: torch.dtype) -> bool:
        """Whether K can be recovered from the plan by dividing the scalings out."""
        return self.bounds is not None and is_exponential_safe(self.bounds[1] - self.bounds[0], dtype)


@dataclass(frozen=True, eq=False)
class Solution:
    """A balanced kernel.

    Parameters
    ----------
    plan : Tensor, shape (..., n, m)
        Differentiable once with respect to log K.
    log_us, log_vs : Tensor, shapes (..., t, n) and (..., t, m)
        The scalings of every sweep, the last at the end; t = 1 for the symmetric plan.
    convergence : Convergence
        How balanced each set of the batch is.
    """

    plan: Tensor
    log_us: Tensor
    log_vs: Tensor
    convergence: Convergence


def solve(
    log_kernel: Tensor, log_row: Tensor | None, log_col: Tensor | None, solver: Solver, facts: KernelFacts
) -> Solution:
    """Balance ``log_kernel`` (..., n, m) to marginals given as logarithms, ones where they are None."""
    run = _forward if torch.compiler.is_compiling() else _Plan.apply
    plan, log_us, log_vs, n_iter, error = run(log_kernel, log_row, log_col, solver, facts)
    tol = solver.tolerance(log_kernel.dtype)
    return Solution(plan, log_us, log_vs, Convergence(n_iter, error, tol))


def _forward(
    log_kernel: Tensor, log_row: Tensor | None, log_col: Tensor | None, solver: Solver, facts: KernelFacts
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Plain operations only: what compilers trace and differentiate by themselves."""
    kernel = make_kernel(log_kernel, log_row, log_col, bounds=facts.bounds, symmetric=facts.is_symmetric)
    if isinstance(solver, Converged):
        like = log_kernel[..., 0].double()
        scaling = symmetrise(
            kernel,
            torch.zeros_like(like) if log_row is None else log_row.expand(like.shape).double(),
            tol=solver.tolerance(log_kernel.dtype),
            max_iter=solver.max_iter,
        )
        log_us = log_vs = scaling.log_u.to(log_kernel.dtype)[..., None, :]
        n_iter, error = scaling.n_iter, scaling.marginal_error.to(log_kernel.dtype)
        log_u = log_us[..., 0, :]
        plan = (log_kernel + (log_u[..., :, None] + log_u[..., None, :])).exp()  # symmetric to the last bit
    else:
        sweeps = alternate(kernel, n_iter=solver.n)
        log_us, log_vs = sweeps.log_u, sweeps.log_v
        plan = (log_us[..., -1, :, None] + log_kernel + log_vs[..., -1, None, :]).exp()
        rows = plan.detach().sum(dim=-1)
        error = (rows / (1.0 if log_row is None else log_row.exp()) - 1).abs().amax(dim=-1)
        n_iter = torch.full_like(error, solver.n, dtype=torch.int64)
    return plan, log_us, log_vs, n_iter, error


class _Plan(torch.autograd.Function):
    @staticmethod
    def forward(
        log_kernel: Tensor, log_row: Tensor | None, log_col: Tensor | None, solver: Solver, facts: KernelFacts
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return _forward(log_kernel, log_row, log_col, solver, facts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        log_kernel, log_row, log_col, solver, facts = inputs
        plan, log_us, log_vs, n_iter, error = output
        ctx.mark_non_differentiable(log_us, log_vs, n_iter, error)
        kept = None if facts.keeps_plan_exact(plan.dtype) else log_kernel
        ctx.save_for_backward(plan, log_us, log_vs, kept, log_row, log_col)
        ctx.solver = solver

    @staticmethod
    def backward(ctx: Any, grad_plan: Tensor, *_: Tensor) -> tuple[Tensor, None, None, None, None]:
        grad = _PlanBackward.apply(grad_plan, *ctx.saved_tensors, ctx.solver)
        return grad, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        outputs = _Plan.apply(*move_batch_first(inputs, in_dims, info.batch_size))
        return outputs, (0,) * len(outputs)


class _PlanBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        grad_plan: Tensor,
        plan: Tensor,
        log_us: Tensor,
        log_vs: Tensor,
        log_kernel: Tensor | None,
        log_row: Tensor | None,
        log_col: Tensor | None,
        solver: Solver,
    ) -> Tensor:
        adjoint = grad_plan * plan
        row_sums, col_sums = adjoint.sum(dim=-1), adjoint.sum(dim=-2)
        if isinstance(solver, Converged):
            weight = symmetric_adjoint(plan, row_sums + col_sums)
            adjoint = adjoint - weight[..., :, None] * plan
            return (adjoint + adjoint.mT) / 2
        sweeps = Scalings(log_us, log_vs)
        kernel = (
            ScaledPlan(plan, log_us[..., -1, :], log_vs[..., -1, :])
            if log_kernel is None
            else LogScaledKernel(log_kernel)
        )
        row = 1.0 if log_row is None else log_row.exp()
        col = 1.0 if log_col is None else log_col.exp()
        return kernel.subtract(adjoint, alternating_adjoint(sweeps, kernel, row_sums, col_sums, row, col))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(_ctx: Any, *_grads: Tensor) -> Any:
        refuse_second_derivative()

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        return _PlanBackward.apply(*move_batch_first(inputs, in_dims, info.batch_size)), 0


def move_batch_first(inputs: tuple[Any, ...], in_dims: tuple[Any, ...], size: int) -> list[Any]:
    """Give every tensor the mapped dimension in front; what is not mapped is repeated without copying."""
    moved = []
    for value, dim in zip(inputs, in_dims, strict=True):
        if isinstance(value, Tensor):
            value = value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
        moved.append(value)
    return moved


def refuse_second_derivative() -> None:
    """Say that the plan can be differentiated once."""
    raise NotDifferentiableError(
        "The balanced plan can be differentiated once, not twice: its backward pass is analytic and keeps no graph. "
        "Drop create_graph=True, or differentiate the first derivative numerically."
    )
