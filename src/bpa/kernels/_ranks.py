r"""Local rows of one kernel over several processes, and what the ranks say to one another.

Each rank holds the rows of

.. math:: K_{ij} = e^{-(1 - \cos(x_i, x_j))/\mathrm{reg}} \quad (i \text{ local},\ j \text{ anywhere})

and computes its share of every half-sweep; since K is symmetric, one all-gather of an n-vector completes it, rows and
columns alike. Vectors are the same on every rank to the last bit, so that all take the same decisions. The backward
pass mirrors this: one all-gather or all-reduce of an n-vector a half-sweep, and one all-reduce of the features'
gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bpa.kernels._large import LargeKernel
from bpa.kernels._recipe import PlanRequest
from bpa.solvers._gradients import alternating_adjoint
from bpa.solvers._sinkhorn import Scalings, alternate

__all__ = ["RANKS", "Ranks", "RanksKernel", "gathered_rows", "swept_plan"]


class Ranks:
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


def gathered_rows(local: Tensor, ranks: Ranks) -> Tensor:
    """All ranks' rows, in rank order; differentiable."""
    rows: Tensor = _GatherRows.apply(local, ranks)  # type: ignore[no-untyped-call]  # torch gives it no types
    return rows


def swept_plan(
    log_kernel: Tensor, n_iter: int, ranks: Ranks, *, is_safe: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Local rows of the plan after some sweeps, differentiable once, and everybody's log u and log v of each sweep."""
    found: tuple[Tensor, Tensor, Tensor] = _SweptPlan.apply(  # type: ignore[no-untyped-call]  # torch gives it no types
        log_kernel, n_iter, is_safe, ranks
    )
    return found


class _GatherRows(torch.autograd.Function):
    """All ranks' rows; the gradient of a rank's rows is the sum over all ranks that used them."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.gather(local)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.add(grad.contiguous().clone())[ctx.ranks.rows], None


class RanksKernel(LargeKernel):
    """Local rows of a symmetric kernel; vectors are everybody's."""

    def __init__(self, log_kernel: Tensor, is_safe: bool, ranks: Ranks) -> None:
        super().__init__(ranks.n, log_kernel.device)
        self._log_kernel = log_kernel.detach()
        self._kernel = self._log_kernel.exp() if is_safe else None
        self._ranks = ranks

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


class _SweptPlan(torch.autograd.Function):
    """Local rows of log K to local rows of the plan after some sweeps; keeps log K and n-vectors."""

    @staticmethod
    def forward(
        ctx: Any, log_kernel: Tensor, n_iter: int, is_safe: bool, ranks: Ranks
    ) -> tuple[Tensor, Tensor, Tensor]:
        kernel = RanksKernel(log_kernel, is_safe, ranks)
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
        ranks: Ranks = ctx.ranks
        scaled = _RanksScaling(log_kernel, ranks)
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


class _RanksScaling:
    """The kernel between any two scalings, from its local rows, as the adjoint needs it."""

    def __init__(self, log_kernel: Tensor, ranks: Ranks) -> None:
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


class _RanksEntry:
    """Entry of :class:`RanksKernel`."""

    name = "ranks"

    def why_not(self, request: PlanRequest) -> str | None:
        """None where a process group shares the set, else the reason."""
        if not request.is_shared:
            return "the set is not shared by processes"
        if not (dist.is_available() and dist.is_initialized()):
            return "there is no process group: call torch.distributed.init_process_group, or torchrun"
        return None


RANKS = _RanksEntry()
