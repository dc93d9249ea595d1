r"""One set over several processes: every rank holds its rows of the kernel, and of W.

Each rank brings its share of the features. It holds the rows of

.. math:: K_{ij} = e^{-(1 - \cos(x_i, x_j))/\mathrm{reg}} \quad (i \text{ local},\ j \text{ anywhere})

and computes its share of every half-sweep; since K is symmetric, one all-gather of an n-vector completes it, rows and
columns alike. Vectors are the same on every rank to the last bit, so that all take the same decisions. Memory on a
rank of n_r items is n_r·n for the kernel and n·d for everybody's features.

The backward pass mirrors this: one all-gather or all-reduce of an n-vector a half-sweep, and one all-reduce of the
features' gradient. With the loss of all ranks summed, gradients are those of one process that holds the whole set,
which is what training with the global batch as the set needs. (DistributedDataParallel averages parameter gradients
over ranks; multiply the local loss by the number of ranks where the sum is meant.)

Works on any ``torch.distributed`` backend with all-gather and all-reduce (gloo, NCCL); every rank must take part in
the forward and in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from bpa._checks import check_choice, check_count, check_features, check_finite, check_positive
from bpa.cost import unit_rows
from bpa.errors import ArgumentError, BPAError, NotDifferentiableError, ShapeError
from bpa.solvers import Scalings, alternate, alternating_adjoint, is_exponential_safe, symmetrise

__all__ = ["ShardedPlan", "sharded_affinities"]


@dataclass(frozen=True)
class ShardedPlan:
    """What one rank knows of the affinities of the whole set.

    Attributes
    ----------
    affinity : Tensor, shape (n_local, n)
        Rows of W of the local items; columns run over all ranks' items, in rank order.
    rows : slice
        Where the local items stand among all n.
    log_u, log_v : Tensor, shape (n,)
        Potentials of all items, the same on every rank.
    scale : float
        What the plan was divided by.
    n_iter : int
        Scalings, or products of the symmetric solver.
    marginal_error : float
        Largest deviation of a row sum of the plan from one.
    """

    affinity: Tensor
    rows: slice
    log_u: Tensor
    log_v: Tensor
    scale: float
    n_iter: int
    marginal_error: float


def sharded_affinities(
    x: Tensor,
    *,
    reg: float = 0.1,
    n_iter: int | None = None,
    solver: Literal["alternating", "symmetric"] = "alternating",
    tol: float | None = None,
    max_iter: int | None = None,
    scale: Literal["max"] | None = "max",
    diagonal: float = 1.0,
    group: dist.ProcessGroup | None = None,
) -> ShardedPlan:
    """Compute this rank's rows of the affinities of all ranks' items together.

    Parameters
    ----------
    x : Tensor, shape (n_local, d)
        This rank's items; ranks may hold different numbers of them.
    reg, n_iter, solver, tol, max_iter, scale, diagonal
        As for :func:`bpa.balanced_affinities`, with the cosine cost. The same on every rank.
    group : ProcessGroup, optional
        The ranks that share the set; all of them where it is left out.

    Returns
    -------
    ShardedPlan
        ``affinity`` is differentiable once with ``solver="alternating"``; the stretch is a constant, as for one
        process.

    Raises
    ------
    BPAError
        When ``torch.distributed`` has not been initialised.
    """
    function = "sharded_affinities"
    check_features(x, argument="x", function=function)
    check_positive(reg, argument="reg", function=function)
    check_choice(solver, ("alternating", "symmetric"), argument="solver", function=function)
    check_choice(scale, ("max", None), argument="scale", function=function)
    if x.dim() != 2:
        raise ShapeError(
            f"The 'x' parameter of {function} must have shape (n_local, d). Got {tuple(x.shape)}."
        )
    check_finite(x, argument="x", function=function)
    if not dist.is_initialized():
        raise BPAError(
            f"{function} needs a process group. Call torch.distributed.init_process_group, or torchrun."
        )
    if solver == "alternating" and (tol is not None or max_iter is not None):
        raise ArgumentError(
            f"The 'tol' and 'max_iter' parameters of {function} belong to solver='symmetric'."
        )
    if solver == "symmetric" and n_iter is not None:
        raise ArgumentError(
            f"The 'n_iter' parameter of {function} belongs to solver='alternating'; use max_iter."
        )
    n_iter = 5 if n_iter is None else n_iter
    check_count(n_iter, argument="n_iter", function=function)
    if solver == "symmetric" and x.requires_grad and torch.is_grad_enabled():
        raise NotDifferentiableError(
            f"{function} differentiates the alternating sweeps only. Use solver='alternating' with more sweeps, or "
            f"torch.no_grad()."
        )

    given = x.dtype
    x = x if x.dtype == torch.float64 else x.float()
    ranks = _Ranks(len(x), x.device, group)
    if ranks.n < 2:
        raise ShapeError(f"{function} needs at least two items over all ranks. Got {ranks.n}.")
    unit = unit_rows(x)
    everyone: Tensor = _GatherRows.apply(unit, ranks)  # type: ignore[no-untyped-call]  # torch gives it no types
    log_kernel = (unit @ everyone.T - 1) / reg
    own = torch.zeros_like(log_kernel, dtype=torch.bool)
    own.diagonal(offset=ranks.rows.start).fill_(True)
    log_kernel = log_kernel.masked_fill(own, -torch.inf)
    is_safe = is_exponential_safe(2 / reg, x.dtype)
    if solver == "alternating":
        plan, log_us, log_vs = _ShardedPlan.apply(  # type: ignore[no-untyped-call]  # torch gives it no types
            log_kernel, n_iter, is_safe, ranks
        )
        log_u, log_v, done = log_us[-1], log_vs[-1], n_iter
    else:
        kernel = _ShardedKernel(log_kernel, is_safe, ranks)
        found = symmetrise(
            kernel,
            torch.zeros(ranks.n, dtype=torch.float64, device=x.device),
            tol=(1e-6 if x.dtype == torch.float64 else 3e-6) if tol is None else tol,
            max_iter=300 if max_iter is None else max_iter,
        )
        log_u = log_v = found.log_u
        plan = kernel.plan(log_u)
        done = int(found.n_iter)
    with torch.no_grad():
        error = float(ranks.gather(plan.sum(dim=1)).sub(1).abs().max())
        largest = float(ranks.gather(plan.amax(dim=1)).max()) if scale == "max" else 1.0
    affinity = (plan / largest).masked_fill(own, diagonal).to(given)
    return ShardedPlan(affinity, ranks.rows, log_u, log_v, largest, done, error)


class _Ranks:
    """How many items each rank holds, and the two ways in which ranks talk."""

    def __init__(self, n_local: int, device: torch.device, group: dist.ProcessGroup | None) -> None:
        self._group = group
        world, rank = dist.get_world_size(group), dist.get_rank(group)
        counts = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world)]
        dist.all_gather(counts, torch.tensor([n_local], device=device), group=group)
        self._counts = [int(count) for count in counts]
        start = sum(self._counts[:rank])
        self.rows = slice(start, start + n_local)
        self.n = sum(self._counts)

    def gather(self, local: Tensor) -> Tensor:
        """Concatenate what the ranks hold, along the first dimension."""
        longest = max(self._counts)
        padded = local.new_zeros((longest, *local.shape[1:]))
        padded[: len(local)] = local
        parts = [torch.empty_like(padded) for _ in self._counts]
        dist.all_gather(parts, padded, group=self._group)
        return torch.cat([part[:count] for part, count in zip(parts, self._counts, strict=True)])

    def add(self, partial: Tensor) -> Tensor:
        """Sum what the ranks hold; ``partial`` is overwritten."""
        dist.all_reduce(partial, group=self._group)
        return partial


class _GatherRows(torch.autograd.Function):
    """All ranks' rows; the gradient of a rank's rows is the sum over all ranks that used them."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, ranks: _Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.gather(local)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.add(grad.contiguous().clone())[ctx.ranks.rows], None


class _ShardedKernel:
    """Local rows of a symmetric kernel, as both solvers see it; vectors are everybody's, scalings logarithms."""

    def __init__(self, log_kernel: Tensor, is_safe: bool, ranks: _Ranks) -> None:
        self._log_kernel = log_kernel.detach()
        self._kernel = self._log_kernel.exp() if is_safe else None
        self._ranks = ranks

    def start(self) -> Tensor:
        return torch.zeros_like(self._log_kernel[0], dtype=torch.float64)

    def match_rows(self, v: Tensor) -> Tensor:
        return -self.log_apply(v)

    def match_columns(self, u: Tensor) -> Tensor:
        return -self.log_apply(u)

    def log_row_scaling(self, u: Tensor) -> Tensor:
        return u

    def log_column_scaling(self, v: Tensor) -> Tensor:
        return v

    def log_apply(self, log_u: Tensor) -> Tensor:
        if self._kernel is None:
            local = torch.logsumexp(self._log_kernel + log_u.to(self._log_kernel.dtype), dim=1)
        else:
            top = log_u.max()
            local = (self._kernel @ (log_u - top).exp().to(self._kernel.dtype)).to(log_u.dtype).log() + top
        return self._ranks.gather(local.to(log_u.dtype))

    def plan_operator(self, log_u: Tensor) -> Callable[[Tensor], Tensor]:
        plan = self.plan(log_u)
        return lambda w: self._ranks.gather((plan @ w.to(plan.dtype)).to(w.dtype))

    def strongest_partner(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        entry, partner = self._log_plan(log_u, log_u).max(dim=1)
        return self._ranks.gather(partner), self._ranks.gather(entry.to(log_u.dtype))

    def plan(self, log_u: Tensor, log_v: Tensor | None = None) -> Tensor:
        """Local rows of diag(u) K diag(v)."""
        log_v = log_u if log_v is None else log_v
        if self._kernel is None:
            return self._log_plan(log_u, log_v).exp_()
        u, v = log_u[self._ranks.rows, None].exp(), log_v.exp()  # in their own precision, then rounded
        return (self._kernel * u.to(self._kernel.dtype)).mul_(v.to(self._kernel.dtype))

    def _log_plan(self, log_u: Tensor, log_v: Tensor) -> Tensor:
        dtype = self._log_kernel.dtype
        return (log_u[self._ranks.rows, None].to(dtype) + log_v.to(dtype)).add_(self._log_kernel)


class _ShardedPlan(torch.autograd.Function):
    """Local rows of log K to local rows of the plan after some sweeps; keeps log K and n-vectors."""

    @staticmethod
    def forward(
        ctx: Any, log_kernel: Tensor, n_iter: int, is_safe: bool, ranks: _Ranks
    ) -> tuple[Tensor, Tensor, Tensor]:
        kernel = _ShardedKernel(log_kernel, is_safe, ranks)
        sweeps = alternate(kernel, n_iter=n_iter)
        log_us, log_vs = sweeps.log_u, sweeps.log_v
        ctx.mark_non_differentiable(log_us, log_vs)
        ctx.save_for_backward(log_kernel, log_us, log_vs)
        ctx.ranks = ranks
        return kernel.plan(log_us[-1], log_vs[-1]), log_us, log_vs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None, None, None]:
        log_kernel, log_us, log_vs = ctx.saved_tensors
        ranks: _Ranks = ctx.ranks
        scaled = _ShardedScaling(log_kernel, ranks)
        adjoint = grad * scaled.rows_of(log_us[-1], log_vs[-1])  # with respect to log P
        sums = ranks.gather(adjoint.sum(dim=1)), ranks.add(adjoint.sum(dim=0))
        for term in alternating_adjoint(Scalings(log_us, log_vs), scaled, *sums):
            part = scaled.rows_of(term.log_u, term.log_v)
            if term.row is not None:
                part *= term.row[ranks.rows, None]
            if term.col is not None:
                part *= term.col
            adjoint -= part
        return adjoint, None, None, None


class _ShardedScaling:
    """The kernel between any two scalings, from its local rows, as the adjoint needs it."""

    def __init__(self, log_kernel: Tensor, ranks: _Ranks) -> None:
        self._log_kernel = log_kernel
        self._ranks = ranks

    def apply(self, log_u: Tensor, log_v: Tensor | None, w: Tensor) -> Tensor:
        rows = self.rows_of(log_u, log_v)
        return self._ranks.gather(rows @ w.to(rows.dtype))

    def apply_transposed(self, log_u: Tensor, log_v: Tensor | None, w: Tensor) -> Tensor:
        rows = self.rows_of(log_u, log_v)
        return self._ranks.add(w[self._ranks.rows].to(rows.dtype) @ rows)

    def rows_of(self, log_u: Tensor, log_v: Tensor | None) -> Tensor:
        """Local rows of diag(u) K diag(v)."""
        scaled = log_u[self._ranks.rows, None].to(self._log_kernel.dtype) + self._log_kernel
        return (scaled if log_v is None else scaled.add_(log_v)).exp_()
