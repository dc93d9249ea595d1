r"""One set over several processes: every rank holds its rows of the kernel (:mod:`bpa.kernels._ranks`), and of W.

Each rank brings its share of the features. Memory on a rank of n_r items is n_r·n for the kernel and n·d for
everybody's features; a half-sweep is one all-gather of an n-vector, forward and backward. With the loss of all ranks
summed, gradients are those of one process that holds the whole set, which is what training with the global batch as the
set needs. (DistributedDataParallel averages parameter gradients over ranks; multiply the local loss by the number of
ranks where the sum is meant.)

Works on any ``torch.distributed`` backend with all-gather and all-reduce (gloo, NCCL); every rank must take part in
the forward and in the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from bpa._checks import check_choice, check_features, check_finite, check_reg
from bpa._words import REG_WORDS, SOLVER_WORDS, explains
from bpa.cost import unit_rows
from bpa.errors import BPAError, NotDifferentiableError, ShapeError
from bpa.kernels._ranks import RANKS, Ranks, RanksKernel, gathered_rows, swept_plan
from bpa.kernels._recipe import PlanRequest
from bpa.kernels._table import choose_plan
from bpa.plans._potentials import warn_unless_converged
from bpa.plans._sets import compute_dtype
from bpa.records import Convergence
from bpa.solvers import Sweeps
from bpa.solvers._choice import PAPER_SWEEPS, Solver, check_solver
from bpa.solvers._kernel import is_exponential_safe
from bpa.solvers._sinkhorn import symmetrise

__all__ = ["ShardedPlan", "sharded_affinities"]


@dataclass(frozen=True, eq=False)
class ShardedPlan:
    """What one rank knows of the affinities of the whole set.

    Made by :func:`sharded_affinities`. A rank has its own rows only, so a sharded plan is read and trained through, and
    not asked for others' rows or for late items.

    Attributes
    ----------
    affinity : Tensor, shape (n_local, n)
        Rows of W of the local items; columns run over all ranks' items, in rank order.
    rows : slice
        Where the local items stand among all n.
    features : Tensor, shape (n_local, d)
        The local unit rows.
    reg, cost, scale, diagonal
        Entropy weight, ``"cosine"``, what the plan was divided by, and W's diagonal.
    log_u, log_v : Tensor, shape (n,)
        Potentials of all items, the same on every rank.
    convergence : Convergence
        How balanced the plan is, the same on every rank.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:  # torchrun does this for several processes
    ...     dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=0, world_size=1)
    ...     plan = sharded_affinities(torch.eye(4, 3), reg=0.2)
    ...     dist.destroy_process_group()
    >>> plan.n, plan.rows, plan.affinity.shape, bool(plan.convergence.converged)
    (4, slice(0, 4, None), torch.Size([4, 4]), True)
    """

    affinity: Tensor = field(repr=False)
    rows: slice
    features: Tensor = field(repr=False)
    reg: float
    cost: str
    scale: float
    diagonal: float
    log_u: Tensor = field(repr=False)
    log_v: Tensor = field(repr=False)
    convergence: Convergence

    @property
    def n(self) -> int:
        """Number of items over all ranks."""
        return self.log_u.shape[0]


@explains(**REG_WORDS, **SOLVER_WORDS)
def sharded_affinities(
    x: Tensor,
    *,
    reg: float = 0.1,
    solver: Solver = PAPER_SWEEPS,
    scale: Literal["max"] | None = "max",
    diagonal: float = 1.0,
    group: dist.ProcessGroup | None = None,
) -> ShardedPlan:
    """Compute this rank's rows of the affinities of all ranks' items together.

    Parameters
    ----------
    x : Tensor, shape (n_local, d)
        This rank's items; ranks may hold different numbers of them.
    reg, solver, scale, diagonal
        As for :func:`bpa.balanced_affinities`, with the cosine cost. The same on every rank. ``reg`` is a number: the
        rule looks at the whole set, which no rank has.
    group : ProcessGroup, optional
        The ranks that share the set; all of them where it is left out.

    Returns
    -------
    ShardedPlan
        ``affinity`` is differentiable once after alternating sweeps; the stretch is a constant, as for one process.

    Raises
    ------
    BPAError
        When ``torch.distributed`` has not been initialised.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:  # torchrun does this for several processes
    ...     dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=0, world_size=1)
    ...     x = torch.eye(4, 3, requires_grad=True)
    ...     sharded_affinities(x, reg=0.2).affinity.square().sum().backward()
    ...     dist.destroy_process_group()
    >>> x.grad.shape
    torch.Size([4, 3])
    """
    function = "sharded_affinities"
    check_features(x, argument="x", function=function)
    reg = check_reg(reg, function=function, auto=False)
    check_solver(solver, function=function)
    check_choice(scale, ("max", None), argument="scale", function=function)
    if x.dim() != 2:
        raise ShapeError(
            f"The 'x' parameter of {function} must have shape (n_local, d). Got {tuple(x.shape)}."
        )
    check_finite(x, argument="x", function=function)
    told = choose_plan(PlanRequest(len(x), x.shape[1], x.dtype, is_shared=True))
    if told.chosen != RANKS.name:
        reason = dict(told.reasons)[RANKS.name]
        raise BPAError(f"{function} needs processes that share the set: {reason}.")
    if not isinstance(solver, Sweeps) and x.requires_grad and torch.is_grad_enabled():
        raise NotDifferentiableError(
            f"{function} differentiates the alternating sweeps only. Use solver=Sweeps(n) with more sweeps, or "
            f"torch.no_grad()."
        )

    given = x.dtype
    x = x.to(compute_dtype(x))
    ranks = Ranks(len(x), x.device, group)
    if ranks.n < 2:
        raise ShapeError(f"{function} needs at least two items over all ranks. Got {ranks.n}.")
    unit = unit_rows(x)
    log_kernel = (unit @ gathered_rows(unit, ranks).T - 1) / reg
    own = torch.zeros_like(log_kernel, dtype=torch.bool)
    own.diagonal(offset=ranks.rows.start).fill_(True)
    log_kernel = log_kernel.masked_fill(own, -torch.inf)
    plan, log_u, log_v, n_iter = _balanced(log_kernel, ranks, solver, is_exponential_safe(2 / reg, x.dtype))
    with torch.no_grad():
        error = ranks.gather(plan.sum(dim=1)).sub(1).abs().max()
        largest = float(ranks.gather(plan.amax(dim=1)).max()) if scale == "max" else 1.0
    convergence = Convergence(n_iter, error, solver.tolerance(x.dtype))
    if not isinstance(solver, Sweeps):
        warn_unless_converged(convergence, function)
    affinity = (plan / largest).masked_fill(own, diagonal).to(given)
    return ShardedPlan(
        affinity, ranks.rows, unit.detach(), reg, "cosine", largest, float(diagonal), log_u, log_v, convergence
    )  # fmt: skip


def _balanced(
    log_kernel: Tensor, ranks: Ranks, solver: Solver, is_safe: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Local rows of the plan, everybody's log u and log v, and what was spent."""
    if isinstance(solver, Sweeps):
        plan, log_us, log_vs = swept_plan(log_kernel, solver.n, ranks, is_safe=is_safe)
        return plan, log_us[-1], log_vs[-1], torch.tensor(solver.n)
    kernel = RanksKernel(log_kernel, is_safe, ranks)
    zero = torch.zeros(ranks.n, dtype=torch.float64, device=log_kernel.device)
    found = symmetrise(kernel, zero, tol=solver.tolerance(log_kernel.dtype), max_iter=solver.max_iter)
    return kernel.plan(found.log_u), found.log_u, found.log_u, found.n_iter
