r"""Soft assignment of queries to classes with prescribed class masses, by Newton on the semi-dual.

With every query carrying mass one, the entropic plan is a row softmax with one shift a class,

.. math:: P_{ij} = \mathrm{softmax}_j(a_{ij} + g_j), \qquad a = -\lambda D,

and only the k shifts g are unknown. They minimise the convex function

.. math:: \phi(g) = \sum_i \mathrm{logsumexp}_j(a_{ij} + g_j) + \sum_j c_j \frac{e^{-\tau g_j} - 1}{\tau},

whose gradient is ``colsum(P) - c e^{-τ g}`` and whose Hessian is
``diag(colsum P) - PᵀP + diag(τ c e^{-τ g})``. ``τ = 0`` (where the second term is ``-c·g``) holds the class
masses at ``c`` exactly; ``τ = 1/(λ ρ)`` is the Kullback-Leibler relaxation of weight ρ, whose scaling
iteration raises the column update to the power ``ρ/(ρ + 1/λ)``.

A scaling loop needs thousands of sweeps where classes are well separated; Newton needs 2 to 15 steps, and
1 to 4 from the previous shifts. Nothing underflows, since only softmaxes are formed. Each task stops on
its own error, so no result depends on the tasks beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bpa.records import Convergence

__all__ = ["ClassShifts", "SoftAssignment", "class_shifts", "soft_assignment"]

_SUFFICIENT = 0.5  # a full Newton step is taken when it leaves at most this share of the error
_SHORTER = (1.0, 2**-2, 2**-4, 2**-6, 2**-8)  # steps weighed against a scaling sweep where it does not
_SAFE_SHIFT = 300.0  # exp of shifts and kernels within these bounds neither overflows nor vanishes in float64
_SAFE_KERNEL = 300.0
_EMPTY = -1e5  # logit of a class without mass: its exponential is zero, and stays finite in sums


@dataclass(frozen=True, eq=False)
class SoftAssignment:
    """A soft assignment and how well it meets its class masses.

    Parameters
    ----------
    log_plan : Tensor, shape (..., Q, k)
        Log of the plan; each row of the plan sums to one.
    shift : Tensor, shape (..., k), float64
        The solved ``g``: a warm start for a nearby problem.
    convergence : Convergence
        Newton steps of each task, and the largest error of a class mass, in queries.

    Examples
    --------
    >>> import torch
    >>> found = soft_assignment(torch.tensor([[0.0, -2.0], [0.0, -3.0]]), torch.tensor([1.0, 1.0]))
    >>> bool(found.convergence.converged), int(found.log_plan[0].argmax())
    (True, 1)
    """

    log_plan: Tensor
    shift: Tensor
    convergence: Convergence


def soft_assignment(
    logits: Tensor,
    mass: Tensor,
    *,
    relaxation: float = 0.0,
    mask: Tensor | None = None,
    start: Tensor | None = None,
    tol: float = 1e-9,
    max_iter: int = 200,
) -> SoftAssignment:
    """Solve for the shifts and return the plan.

    Parameters
    ----------
    logits : Tensor, shape (..., Q, k)
        ``a = -λ D``.
    mass : Tensor, shape (..., k)
        ``c``, non-negative. A class of mass zero receives nothing. Masses that are held exactly are scaled to sum to
        the number of queries.
    relaxation : float
        ``τ``; zero holds the masses exactly, infinity ignores them (a plain row softmax).
    mask : Tensor, shape (..., Q), bool, optional
        True at the queries that exist.
    start : Tensor, shape (..., k), optional
        Where to start; it changes the number of steps, not the answer.
    tol : float
        Largest admitted error of a class mass, in queries.
    max_iter : int
        Steps after which an unsolved task is handed back as it is.

    Returns
    -------
    SoftAssignment

    Notes
    -----
    Differentiable in ``logits`` and ``mass`` by the implicit function theorem: O(Q k) memory, exact at
    convergence.

    Examples
    --------
    >>> import torch
    >>> logits = torch.tensor([[0.0, -1.0], [0.0, -4.0], [0.0, -9.0]])
    >>> plan = soft_assignment(logits, torch.tensor([1.0, 2.0])).log_plan.exp()
    >>> plan.sum(dim=0), plan.argmax(dim=1)
    (tensor([1.0000, 2.0000]), tensor([1, 1, 0]))
    """
    batch, (n_query, k) = logits.shape[:-2], logits.shape[-2:]
    found = class_shifts(
        logits.transpose(-1, -2).reshape(-1, k, n_query),
        mass.to(logits.dtype).expand(*batch, k).reshape(-1, k),
        relaxation=relaxation,
        rows=None if mask is None else mask.expand(*batch, n_query).reshape(-1, n_query),
        start=None if start is None else start.detach().expand(*batch, k).reshape(-1, k),
        tol=tol,
        max_iter=max_iter,
    )
    return found.shaped(batch)


@dataclass(frozen=True, eq=False)
class ClassShifts:
    """Solved shifts (b, k) of flat problems with logits (b, k, Q), and the plan they give."""

    logits: Tensor
    shift: Tensor
    plan: Tensor
    n_iter: Tensor
    error: Tensor
    tol: float

    def shaped(self, batch: torch.Size) -> SoftAssignment:
        """As a `SoftAssignment` of leading shape ``batch``, with queries before classes."""
        log_plan = torch.log_softmax(self.logits + self.shift[..., None], dim=1).to(self.logits.dtype)
        return SoftAssignment(
            log_plan.transpose(-1, -2).reshape(*batch, log_plan.shape[-1], log_plan.shape[-2]),
            self.shift.detach().reshape(*batch, -1),
            Convergence(self.n_iter.reshape(batch), self.error.reshape(batch), self.tol),
        )


def class_shifts(
    logits: Tensor,
    mass: Tensor,
    *,
    relaxation: float,
    rows: Tensor | None,
    start: Tensor | None,
    tol: float,
    max_iter: int,
) -> ClassShifts:
    """Solve flat problems: logits (b, k, Q) with classes in rows, mass (b, k), rows (b, Q), start (b, k)."""
    if not bool((mass > 0).all()):
        logits = torch.where((mass > 0)[..., None], logits, torch.full_like(logits, _EMPTY))
    if relaxation == float("inf"):
        plan = torch.softmax(logits, dim=1)
        plan = plan if rows is None else plan * rows[:, None]
        nothing = torch.zeros(len(mass), device=mass.device)
        return ClassShifts(logits, torch.zeros_like(mass), plan, nothing.long(), nothing.double(), tol)
    apply: Any = _Solve.apply
    shift, plan, count, error = apply(logits, mass, relaxation, rows, start, tol, max_iter)
    if torch.is_grad_enabled() and (logits.requires_grad or mass.requires_grad):
        plan = torch.softmax(logits + shift[..., None], dim=1)
        plan = plan if rows is None else plan * rows[:, None]
    return ClassShifts(logits, shift, plan.to(logits.dtype), count, error, tol)


class _Solve(torch.autograd.Function):
    """Logits and masses to shifts; backward by the implicit function theorem."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        mass: Tensor,
        relaxation: float,
        rows: Tensor | None,
        start: Tensor | None,
        tol: float,
        max_iter: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        exact = torch.float64 if logits.device.type != "mps" else torch.float32
        a, c = logits.detach().to(exact), mass.detach().to(exact)
        scale = torch.ones_like(c[:, :1])
        if relaxation == 0:  # rows have mass one each; what float32 lost of that in the classes is given back
            queries = a.shape[-1] if rows is None else rows.sum(dim=-1, keepdim=True).to(exact)
            scale = queries / c.sum(dim=-1, keepdim=True)
            c = scale * c
        top = a.amax(dim=1, keepdim=True)
        a = a - top
        present = a if bool((c > 0).all()) else torch.where((c > 0)[..., None], a, torch.zeros_like(a))
        kernel = a.exp() if bool(present.amin() > -_SAFE_KERNEL) else None
        g = torch.zeros_like(c) if start is None else start.to(exact).clone()
        problem = _Problem(a, c, relaxation, None if rows is None else rows[:, None, :], kernel)
        g, plan, count, error = _newton(problem, g, tol, max_iter)
        ctx.save_for_backward(plan, g, c, scale)
        ctx.problem = _Problem(plan, c, relaxation, None, None)  # what the Hessian needs, and no more
        ctx.dtypes = (logits.dtype, mass.dtype)
        ctx.mark_non_differentiable(plan, count, error)
        return g, plan, count, error

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        plan, g, c, scale = ctx.saved_tensors
        problem = ctx.problem
        # F(g, a, c) = 0 with ∂F/∂g = H symmetric: solve H w = upstream, then pull w back through a and c
        w = torch.linalg.solve(problem.hessian(plan, g), upstream.to(plan.dtype)[..., None])
        w = torch.where((c > 0)[..., None], w, torch.zeros_like(w))
        grad_logits = -plan * (w - (plan * w).sum(dim=1, keepdim=True))
        w = w[..., 0]
        if problem.tau == 0:
            grad_mass = scale * (w - (w * c).sum(dim=-1, keepdim=True) / c.sum(dim=-1, keepdim=True))
        else:
            grad_mass = w * (-problem.tau * g).exp()
        return grad_logits.to(ctx.dtypes[0]), grad_mass.to(ctx.dtypes[1]), None, None, None, None, None


class _Problem:
    """Many small transports with what never changes during their solution; classes in rows, queries in columns."""

    __slots__ = ("a", "c", "kernel", "rows", "tau")

    def __init__(self, a: Tensor, c: Tensor, tau: float, rows: Tensor | None, kernel: Tensor | None) -> None:
        self.a = a  # (b, k, Q), the largest entry of each query at zero
        self.c = c  # (b, k)
        self.tau = tau
        self.rows = rows  # (b, 1, Q)
        self.kernel = kernel  # exp(a), where no entry of it vanishes

    def part(self, index: Tensor) -> _Problem:
        rows, kernel = self.rows, self.kernel
        return _Problem(
            self.a[index],
            self.c[index],
            self.tau,
            None if rows is None else rows[index],
            None if kernel is None else kernel[index],
        )

    def plan(self, g: Tensor) -> Tensor:
        """Plan (b, k, Q) at the shifts ``g``."""
        if self.kernel is not None and bool(g.abs().amax() < _SAFE_SHIFT):
            weights = self.kernel * g.exp()[..., None]
        else:
            shifted = self.a + g[..., None]
            weights = (shifted - shifted.amax(dim=1, keepdim=True)).exp_()
        plan = weights.div_(weights.sum(dim=1, keepdim=True))
        return plan if self.rows is None else plan * self.rows

    def value(self, g: Tensor) -> Tensor:
        """The convex function (b,)."""
        height = torch.logsumexp(self.a + g[..., None], dim=1)
        if self.rows is not None:
            height = height * self.rows[:, 0]
        if self.tau == 0:
            return height.sum(-1) - (self.c * g).sum(-1)
        return height.sum(-1) + (self.c * torch.expm1(-self.tau * g)).sum(-1) / self.tau

    def residual(self, plan: Tensor, g: Tensor) -> Tensor:
        """Its gradient (b, k): by how much each class mass is missed."""
        return plan.sum(dim=-1) - (self.c if self.tau == 0 else self.c * (-self.tau * g).exp())

    def hessian(self, plan: Tensor, g: Tensor) -> Tensor:
        """Its Hessian (b, k, k), made regular where it is singular without changing the step."""
        k = plan.shape[1]
        column = plan.sum(dim=-1)
        size = column.sum(-1, keepdim=True) / k
        # an empty class has neither residual nor curvature
        diagonal = column + (1e-14 + (self.c <= 0)) * size
        if self.tau != 0:
            diagonal = diagonal + self.tau * self.c * (-self.tau * g).exp()
        hessian = torch.diag_embed(diagonal) - plan @ plan.transpose(-1, -2)
        # with masses held exactly, moving all shifts alike changes nothing, and the residual has no part along it
        return hessian if self.tau != 0 else hessian + (size / k)[..., None]

    def sweep(self, g: Tensor) -> Tensor:
        """One sweep of the scaling iteration in the log domain; it never increases the function."""
        log_plan = torch.log_softmax(self.a + g[..., None], dim=1)
        if self.rows is not None:
            log_plan = log_plan.masked_fill(~self.rows, -float("inf"))
        wanted = torch.where(self.c > 0, self.c, torch.ones_like(self.c)).log()
        new = (wanted - torch.logsumexp(log_plan, dim=-1) + g) / (1.0 + self.tau)
        new = torch.where(self.c > 0, new, g)
        return new - new.mean(dim=-1, keepdim=True) if self.tau == 0 else new


def _newton(problem: _Problem, g: Tensor, tol: float, max_iter: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Damped Newton, each task for itself; finished tasks leave the working set."""
    out_g = g.clone()
    out_plan = torch.empty_like(problem.a)
    out_count = torch.zeros(len(g), dtype=torch.int64, device=g.device)
    out_error = torch.zeros(len(g), dtype=g.dtype, device=g.device)
    live = torch.arange(len(g), device=g.device)
    plan = problem.plan(g)
    residual = problem.residual(plan, g)
    error = residual.abs().amax(dim=-1)
    for step in range(max_iter + 1):
        done = error <= tol if step < max_iter else torch.ones_like(error, dtype=torch.bool)
        if bool(done.any()):
            at = live[done]
            out_g[at], out_plan[at], out_error[at], out_count[at] = g[done], plan[done], error[done], step
            keep = (~done).nonzero()[:, 0]
            if len(keep) == 0:
                break
            live, g, plan, residual, error = live[keep], g[keep], plan[keep], residual[keep], error[keep]
            problem = problem.part(keep)
        direction = -torch.linalg.solve(problem.hessian(plan, g), residual[..., None])[..., 0]
        new_g = g + direction
        plan = problem.plan(new_g)
        new_residual = problem.residual(plan, new_g)
        new_error = new_residual.abs().amax(dim=-1)
        poor = (~(new_error <= _SUFFICIENT * error)).nonzero()[:, 0]
        if len(poor) > 0:
            part = problem.part(poor)
            new_g[poor] = _cautious(part, g[poor], direction[poor])
            plan[poor] = part.plan(new_g[poor])
            new_residual[poor] = part.residual(plan[poor], new_g[poor])
            new_error[poor] = new_residual[poor].abs().amax(dim=-1)
        g, residual, error = new_g, new_residual, new_error
    return out_g, out_plan, out_count, out_error


def _cautious(problem: _Problem, g: Tensor, direction: Tensor) -> Tensor:
    """The best of a scaling sweep and shortened Newton steps, by the convex function.

    Far from the answer the plan is nearly 0/1, the Hessian nearly zero and its step useless; there a scaling sweep,
    ``g += log(c / colsum)``, goes the right distance at once.
    """
    best = problem.sweep(g)
    value = problem.value(best)
    for length in _SHORTER:
        trial = g + length * direction
        trial_value = problem.value(trial)
        better = trial_value < value
        best = torch.where(better[:, None], trial, best)
        value = torch.where(better, trial_value, value)
    return best
