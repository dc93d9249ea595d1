r"""Soft assignment of queries to classes with prescribed class masses, by Newton on the semi-dual.

With every query carrying mass one, the entropic plan is a row softmax with one shift a class,

.. math:: P_{ij} = \mathrm{softmax}_j(a_{ij} + g_j), \qquad a = -\lambda D,

and only the k shifts g are unknown. They minimise the convex function

.. math:: \phi(g) = \sum_i \mathrm{logsumexp}_j(a_{ij} + g_j) + \sum_j c_j \frac{e^{-\tau g_j} - 1}{\tau},

whose gradient is ``colsum(P) - c e^{-τ g}`` and whose Hessian is ``diag(colsum P) - PᵀP + diag(τ c e^{-τ
g})``. ``τ = 0`` (where the second term is ``-c·g``) holds the class masses at ``c`` exactly; ``τ = 1/(λ
ρ)`` is the Kullback-Leibler relaxation of weight ρ, whose scaling iteration raises the column update to
the power ``ρ/(ρ + 1/λ)``.

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

_SUFFICIENT = 1e-4  # Armijo: fraction of the predicted decrease that a step must deliver
_SHORTER = (0.25, 0.0625, 0.015625, 0.00390625, 0.0009765625)  # Newton steps tried after a full one fails


@dataclass(frozen=True, eq=False)
class Assignment:
    """A soft assignment and how well it meets its class masses.

    Parameters
    ----------
    log_plan : Tensor, shape (..., Q, k)
        Log of the plan; each row of the plan sums to one.
    shift : Tensor, shape (..., k), float64
        The solved ``g``: a warm start for a nearby problem.
    n_iter : Tensor, shape (...), int64
        Newton steps each task took.
    marginal_error : Tensor, shape (...), float64
        Largest error of a class mass, in queries.
    converged : Tensor, shape (...), bool
        Whether that error is within the tolerance.
    """

    log_plan: Tensor
    shift: Tensor
    n_iter: Tensor
    marginal_error: Tensor
    converged: Tensor


def assign(
    logits: Tensor,
    mass: Tensor,
    *,
    relaxation: float = 0.0,
    mask: Tensor | None = None,
    start: Tensor | None = None,
    tol: float = 1e-9,
    max_iter: int = 200,
) -> Assignment:
    """Solve for the shifts and return the plan.

    Parameters
    ----------
    logits : Tensor, shape (..., Q, k)
        ``a = -λ D``.
    mass : Tensor, shape (..., k)
        ``c``, non-negative, summing to the number of queries. A class of mass zero receives nothing.
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
    Assignment

    Notes
    -----
    Differentiable in ``logits`` and ``mass`` by the implicit function theorem: O(Q k) memory, exact at
    convergence.
    """
    batch, (n_query, k) = logits.shape[:-2], logits.shape[-2:]
    flat = logits.reshape(-1, n_query, k)
    masses = mass.to(logits.dtype).expand(*batch, k).reshape(-1, k)
    rows = None if mask is None else mask.expand(*batch, n_query).reshape(-1, n_query)
    first = None if start is None else start.detach().expand(*batch, k).reshape(-1, k)
    log_plan, shift, count, error = _Solve.apply(flat, masses, relaxation, rows, first, tol, max_iter)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
    return Assignment(
        log_plan.reshape(logits.shape),
        shift.reshape(*batch, k),
        count.reshape(batch),
        error.reshape(batch),
        (error <= tol).reshape(batch),
    )


class _Solve(torch.autograd.Function):
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
        a, c = logits.to(exact), mass.to(exact)
        g = torch.zeros_like(c) if start is None else start.to(exact).clone()
        if relaxation == float("inf"):
            g = torch.zeros_like(c)
            count = torch.zeros(len(c), dtype=torch.int64, device=c.device)
            error = torch.zeros(len(c), dtype=exact, device=c.device)
        else:
            g, count, error = _newton(a, c, g, relaxation, rows, tol, max_iter)
        shifted = a + g[:, None, :]
        shifted = torch.where((c > 0)[:, None, :], shifted, torch.full_like(shifted, -float("inf")))
        log_plan = torch.log_softmax(shifted, dim=-1)
        ctx.save_for_backward(log_plan, g, c)
        ctx.rows, ctx.relaxation, ctx.dtypes = rows, relaxation, (logits.dtype, mass.dtype)
        ctx.mark_non_differentiable(g, count, error)
        return log_plan.to(logits.dtype), g, count, error

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        log_plan, g, c = ctx.saved_tensors
        plan = log_plan.exp()
        if ctx.rows is not None:
            plan = plan * ctx.rows[:, :, None]
            upstream = upstream * ctx.rows[:, :, None]
        r = torch.where(plan > 0, upstream.to(plan.dtype), torch.zeros_like(plan))
        direct = r - plan * r.sum(-1, keepdim=True)  # log-softmax at fixed shifts
        if ctx.relaxation == float("inf"):
            return direct.to(ctx.dtypes[0]), None, None, None, None, None, None
        # the shifts move too: H w = colsum(direct), then subtract the softmax pull of w
        hessian = _hessian(plan, c, g, ctx.relaxation)
        w = torch.linalg.solve(hessian, direct.sum(dim=1)[..., None])[..., 0]
        through = plan * (w[:, None, :] - (plan * w[:, None, :]).sum(-1, keepdim=True))
        grad_mass = w if ctx.relaxation == 0 else w * (-ctx.relaxation * g).exp()
        grad_mass = torch.where(c > 0, grad_mass, torch.zeros_like(w))
        return (direct - through).to(ctx.dtypes[0]), grad_mass.to(ctx.dtypes[1]), None, None, None, None, None


def _newton(
    a: Tensor, c: Tensor, g: Tensor, tau: float, rows: Tensor | None, tol: float, max_iter: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Damped Newton, each task for itself; finished tasks leave the working set."""
    out_g = g.clone()
    out_count = torch.zeros(len(g), dtype=torch.int64, device=g.device)
    out_error = torch.zeros(len(g), dtype=g.dtype, device=g.device)
    if not (c > 0).all():  # an empty class stays out of every sum
        a = torch.where((c > 0)[:, None, :], a, torch.full_like(a, -1e300))
    live = torch.arange(len(g), device=g.device)
    value, plan = _evaluate(a, c, g, tau, rows)
    for step in range(max_iter + 1):
        residual = plan.sum(dim=1) - (c if tau == 0 else c * (-tau * g).exp())
        error = residual.abs().amax(dim=-1)
        done = error <= tol
        if step == max_iter:
            done = torch.ones_like(done)
        if bool(done.any()):
            finished = live[done]
            out_g[finished], out_count[finished], out_error[finished] = g[done], step, error[done]
            keep = ~done
            if not bool(keep.any()):
                break
            live, a, c, g, value, plan, residual = (
                part[keep] for part in (live, a, c, g, value, plan, residual)
            )
            rows = None if rows is None else rows[keep]
        g, value, plan = _step(a, c, g, tau, rows, value, plan, residual)
    return out_g, out_count, out_error


def _step(
    a: Tensor,
    c: Tensor,
    g: Tensor,
    tau: float,
    rows: Tensor | None,
    value: Tensor,
    plan: Tensor,
    residual: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    direction = -torch.linalg.solve(_hessian(plan, c, g, tau), residual[..., None])[..., 0]
    slope = (direction * residual).sum(-1)
    slack = 1e-14 * value.abs()  # below this, differences of the function are rounding
    new_g = g + direction
    new_value, new_plan = _evaluate(a, c, new_g, tau, rows)
    bad = ~(new_value <= value + _SUFFICIENT * slope + slack)
    if bool(bad.any()):
        # Far from the answer the plan is nearly 0/1, the Hessian nearly zero and its step useless. There a
        # scaling sweep, g += log(c / colsum), goes the right distance at once; near the answer a shorter
        # Newton step will do.
        index = bad.nonzero()[:, 0]
        part = (a[index], c[index], g[index], tau, None if rows is None else rows[index])
        best_g, best_value, best_plan = _sweep(*part)
        for length in _SHORTER:
            trial = part[2] + length * direction[index]
            trial_value, trial_plan = _evaluate(part[0], part[1], trial, tau, part[4])
            better = trial_value < best_value
            best_g = torch.where(better[:, None], trial, best_g)
            best_plan = torch.where(better[:, None, None], trial_plan, best_plan)
            best_value = torch.where(better, trial_value, best_value)
        new_g, new_value, new_plan = new_g.clone(), new_value.clone(), new_plan.clone()
        new_g[index], new_value[index], new_plan[index] = best_g, best_value, best_plan
    return new_g, new_value, new_plan


def _sweep(a: Tensor, c: Tensor, g: Tensor, tau: float, rows: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """One sweep of the scaling iteration in the log domain; it never increases the function."""
    shifted = a + g[:, None, :]
    log_plan = torch.log_softmax(shifted, dim=-1)
    if rows is not None:
        log_plan = log_plan.masked_fill(~rows[:, :, None], -float("inf"))
    log_sum = torch.logsumexp(log_plan, dim=1)
    positive = torch.where(c > 0, c, torch.ones_like(c))
    # κ (log c - log colsum + g), κ = 1/(1 + τ)
    new = (positive.log() - log_sum + g) / (1.0 + tau)
    new = torch.where(c > 0, new, g)
    if tau == 0:
        new = new - new.mean(dim=-1, keepdim=True)
    return (new, *_evaluate(a, c, new, tau, rows))


def _evaluate(a: Tensor, c: Tensor, g: Tensor, tau: float, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """The convex function and the plan at ``g``, with one exponential an entry."""
    shifted = a + g[:, None, :]
    top = shifted.amax(dim=-1, keepdim=True)
    weights = (shifted - top).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    height = (top + total.log())[..., 0]
    plan = weights.div_(total)
    if rows is not None:
        plan = plan * rows[:, :, None]
        height = torch.where(rows, height, torch.zeros_like(height))
    pull = (c * g).sum(-1).neg() if tau == 0 else (c * torch.expm1(-tau * g)).sum(-1) / tau
    return height.sum(-1) + pull, plan


def _hessian(plan: Tensor, c: Tensor, g: Tensor, tau: float) -> Tensor:
    """Hessian of the convex function, made regular where it is singular without changing the step."""
    k = plan.shape[-1]
    column = plan.sum(dim=1)
    hessian = torch.diag_embed(column) - plan.transpose(-1, -2) @ plan
    size = column.sum(-1) / k
    if tau == 0:  # moving all shifts alike changes nothing, and the residual has no part along it
        hessian = hessian + (size / k)[:, None, None]
    else:
        hessian = hessian + torch.diag_embed(tau * c * (-tau * g).exp())
    ridge = (
        1e-14 * size[:, None] + (c <= 0) * size[:, None]
    )  # an empty class has neither residual nor curvature
    return hessian + torch.diag_embed(ridge)
