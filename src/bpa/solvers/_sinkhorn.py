r"""The Sinkhorn solver of this project: a kernel and its marginals in, scalings out.

The plan is :math:`P = \mathrm{diag}(u)\,K\,\mathrm{diag}(v)`. At the fixed point

.. math:: u \odot (K v) = r, \qquad v \odot (K^\top u) = c.

``alternate`` runs the published sweeps: rows, then columns, a fixed number of times. ``symmetrise`` serves a symmetric
K with equal marginals: it keeps v = u, so that the plan is symmetric at every iteration, and runs until each set of the
batch has reached the tolerance by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bpa.solvers._conjugate import solve_pair_preconditioned
from bpa.solvers._kernel import Kernel, SymmetricKernel

__all__ = ["Scalings", "SymmetricScaling", "alternate", "symmetrise"]


@dataclass(frozen=True)
class Scalings:
    """Every scaling of the alternating sweeps, in logarithms: what a backward pass needs, n-vectors only.

    ``log_u`` (..., t, n) and ``log_v`` (..., t, m) hold sweep after sweep; the start v = 1 is not stored.
    """

    log_u: Tensor
    log_v: Tensor


@dataclass(frozen=True)
class SymmetricScaling:
    """The best symmetric scaling found, ``log_u`` (..., n), and for every set (...) how it went.

    ``n_iter`` counts products with K; ``marginal_error`` is the largest :math:`|u_i (K u)_i / r_i - 1|`.
    """

    log_u: Tensor
    n_iter: Tensor
    marginal_error: Tensor


def alternate(kernel: Kernel, *, n_iter: int) -> Scalings:
    """Match the rows, then the columns, ``n_iter`` times, from v = 1."""
    u_of_sweep, v_of_sweep = [], []
    v = kernel.start()
    for _ in range(n_iter):
        u = kernel.match_rows(v)  # u = r / (K v)
        v = kernel.match_columns(u)  # v = c / (Kᵀ u); columns last: they come out exact, rows nearly
        u_of_sweep.append(u)
        v_of_sweep.append(v)
    return Scalings(
        kernel.log_row_scaling(torch.stack(u_of_sweep, dim=-2)),
        kernel.log_column_scaling(torch.stack(v_of_sweep, dim=-2)),
    )


_DAMPED_STEPS = 6
"""Products spent on damped sweeps before Newton: they bring any start into its reach, for the price of one product a
step. 3 to 12 need nearly the same total; the hardest sets prefer 5 to 8."""
_DAMPING = 2 / 3
"""Share of the full sweep taken: 1 is the alternating scheme, 1/2 averages it; 2/3 is faster than both when the sets
are ordinary, and contracts whatever the plan's spectrum is."""
_INNER_TOLERANCE = 0.1
_MAX_INNER = 50
_MAX_HALVINGS = 20


def symmetrise(
    kernel: SymmetricKernel, log_marginal: Tensor, *, tol: float, max_iter: int
) -> SymmetricScaling:
    r"""Find u > 0 with :math:`u \odot (K u) = r` for symmetric K; ``log_marginal`` (..., n) is log r.

    A few damped sweeps, then Newton's method on the concave dual

    .. math:: \max_f \; \langle r, f\rangle - \tfrac12 \sum_{ij} e^{f_i} K_{ij} e^{f_j}, \qquad u = e^f,

    whose Newton system takes one product with K for each step of conjugate gradients (see ``_conjugate``). 15 to 60
    products in all reach 1e-6 on every kind of set measured; ``benchmarks/convergence`` prints them.

    Sets do not influence one another: one that has arrived keeps its value while others go on. Vectors are in the
    number type of ``log_marginal``; products are in the kernel's.
    """
    state = _State(kernel, log_marginal, tol=tol, max_iter=max_iter)
    for step in range(_DAMPED_STEPS):
        if not state.any_active():
            break
        weight = 0.5 if step == 0 else _DAMPING
        state.move_to(
            torch.where(state.active[..., None], state.log_u + weight * state.residual, state.log_u)
        )
    while state.any_active():
        _newton_step(state)
    return SymmetricScaling(state.best, state.n_iter, state.best_error)


class _State:
    """Where every set of the batch stands; ``move_to`` spends one product with K."""

    def __init__(self, kernel: SymmetricKernel, log_marginal: Tensor, *, tol: float, max_iter: int) -> None:
        self.kernel = kernel
        self.log_marginal = log_marginal
        self.marginal = log_marginal.exp()
        self.tol = tol
        self.max_iter = max_iter
        shape = log_marginal.shape[:-1]
        self.best = torch.zeros_like(log_marginal)
        self.best_error = torch.full(shape, torch.inf, dtype=log_marginal.dtype, device=log_marginal.device)
        self.n_iter = torch.zeros(shape, dtype=torch.int64, device=log_marginal.device)
        self.active = torch.ones(shape, dtype=torch.bool, device=log_marginal.device)
        self.move_to(torch.zeros_like(log_marginal))

    def any_active(self) -> bool:
        return bool(self.active.any())

    def move_to(self, log_u: Tensor) -> None:
        """Stand at ``log_u``; sets that are done must be given where they already stand."""
        log_product = self.kernel.log_apply(log_u)
        self.spend(self.active)
        self.log_u = log_u
        self.residual = self.log_marginal - log_product - log_u  # 0 at the fixed point
        self.row_sums = (log_u + log_product).exp()  # s = u ⊙ (K u)
        self.error = torch.expm1(-self.residual).abs().amax(dim=-1).nan_to_num(nan=torch.inf)
        improved = self.active & (self.error < self.best_error)
        self.best = torch.where(improved[..., None], log_u, self.best)
        self.best_error = torch.where(improved, self.error, self.best_error)
        self._retire(self.best_error <= self.tol)

    def spend(self, sets: Tensor) -> Tensor:
        """Count one product for these sets; return the sets that are still active."""
        self.n_iter = self.n_iter + sets
        self._retire(self.n_iter >= self.max_iter)
        return self.active

    def _retire(self, sets: Tensor) -> None:
        self.active = self.active & ~sets

    def dual(self) -> Tensor:
        """Return what Newton's method minimises, one number a set."""
        return (0.5 * self.row_sums - self.marginal * self.log_u).sum(dim=-1)


def _newton_step(state: _State) -> None:
    """Move every active set along its Newton direction, as far as the dual goes down."""
    start, start_dual, start_error = state.log_u, state.dual(), state.error
    gradient = state.marginal - state.row_sums
    direction = _newton_direction(state, gradient)
    slope = (gradient * direction).sum(dim=-1)
    reach = direction.abs().amax(dim=-1)
    length = torch.where(reach > 4, 4 / reach, 1.0)  # e⁴: further than that the quadratic model means nothing
    pending = state.active
    for _ in range(_MAX_HALVINGS):
        moved = start + length[..., None] * direction
        state.move_to(torch.where(pending[..., None], moved, state.log_u))
        went_down = state.dual() <= start_dual - 1e-4 * length * slope + 1e-12 * start_dual.abs()
        pending = pending & ~(went_down | (state.error < start_error)) & state.active
        if not bool(pending.any()):
            return
        length = torch.where(pending, length / 2, length)


def _newton_direction(state: _State, gradient: Tensor) -> Tensor:
    """Solve (diag(s) + P) d = gradient, closely enough for the step to pay."""
    partner, log_strength = state.kernel.strongest_partner(state.log_u)
    norm = gradient.norm(dim=-1)
    return solve_pair_preconditioned(
        state.kernel.plan_operator(state.log_u),
        state.row_sums,
        gradient,
        partner=partner,
        strength=log_strength.exp(),
        goal=norm * norm.sqrt().clamp_max(_INNER_TOLERANCE),
        sets=state.active,
        max_products=_MAX_INNER,
        spend=state.spend,
    )
