r"""Derivatives of a plan with respect to log K, without unrolling anything of size n².

With :math:`A = \partial L / \partial \log P = \partial L/\partial P \odot P`, both solvers give

.. math:: \frac{\partial L}{\partial \log K} = A - \sum_k \mathrm{diag}(a_k)\, Q_k \,\mathrm{diag}(b_k),

where each :math:`Q_k` is K between two scalings. The alternating sweeps are walked backwards, one matrix-vector product
a half-sweep; the converged symmetric plan is differentiated implicitly, by conjugate gradients on :math:`I + P`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bpa.solvers._conjugate import solve_pair_preconditioned
from bpa.solvers._sinkhorn import Scalings

__all__ = ["LogScaledKernel", "ScaledPlan", "alternating_adjoint", "symmetric_adjoint"]


@dataclass(frozen=True)
class Term:
    """diag(``row``) · diag(u) K diag(v) · diag(``col``), with the scalings given as logarithms; None stands for 1."""

    log_u: Tensor
    log_v: Tensor | None
    row: Tensor | None
    col: Tensor | None


class Scalable(Protocol):
    """The kernel between any two scalings, as the adjoints need it."""

    def apply(self, log_u: Tensor, log_v: Tensor | None, w: Tensor) -> Tensor:
        """Return diag(u) K diag(v) w."""

    def apply_transposed(self, log_u: Tensor, log_v: Tensor | None, w: Tensor) -> Tensor:
        """Return (diag(u) K diag(v))ᵀ w."""


class ScaledPlan:
    """The kernel recovered from a plan and the scalings that made it; exact where K fits the number type."""

    def __init__(self, plan: Tensor, log_u: Tensor, log_v: Tensor) -> None:
        self.plan = plan
        self._log_u = log_u
        self._log_v = log_v

    def apply(self, log_u: Tensor, log_v: Tensor | None, w: Tensor) -> Tensor:
        rows, cols = self._ratios(log_u, log_v)
        return rows * (self.plan @ (cols * w)[..., :, None])[..., 0]

    def apply_transposed(self, log_u: Tensor, log_v: Tensor | None, w: Tensor) -> Tensor:
        rows, cols = self._ratios(log_u, log_v)
        return cols * ((rows * w)[..., None, :] @ self.plan)[..., 0, :]

    def subtract(self, adjoint: Tensor, terms: list[Term]) -> Tensor:
        left, right = self.low_rank(terms)
        return adjoint - self.plan * (left @ right.mT)

    def low_rank(self, terms: list[Term]) -> tuple[Tensor, Tensor]:
        """Return L and R, (..., n, k), so that the terms add up to P ⊙ (L Rᵀ)."""
        left, right = [], []
        for term in terms:
            rows, cols = self._ratios(term.log_u, term.log_v)
            left.append(rows if term.row is None else rows * term.row)
            right.append(cols if term.col is None else cols * term.col)
        return torch.stack(left, dim=-1), torch.stack(right, dim=-1)

    def _ratios(self, log_u: Tensor, log_v: Tensor | None) -> tuple[Tensor, Tensor]:
        log_v_ratio = -self._log_v if log_v is None else log_v - self._log_v
        return (log_u - self._log_u).exp(), log_v_ratio.exp()


class LogScaledKernel:
    """The kernel held as log K, for scalings that no plan can be divided by."""

    def __init__(self, log_kernel: Tensor) -> None:
        self._log_kernel = log_kernel

    def apply(self, log_u: Tensor, log_v: Tensor | None, w: Tensor) -> Tensor:
        return (self._scaled(log_u, log_v) @ w[..., :, None])[..., 0]

    def apply_transposed(self, log_u: Tensor, log_v: Tensor | None, w: Tensor) -> Tensor:
        return (w[..., None, :] @ self._scaled(log_u, log_v))[..., 0, :]

    def subtract(self, adjoint: Tensor, terms: list[Term]) -> Tensor:
        for term in terms:
            scaled = self._scaled(term.log_u, term.log_v)
            if term.row is not None:
                scaled = scaled * term.row[..., :, None]
            if term.col is not None:
                scaled = scaled * term.col[..., None, :]
            adjoint = adjoint - scaled
        return adjoint

    def _scaled(self, log_u: Tensor, log_v: Tensor | None) -> Tensor:
        scaled = log_u[..., :, None] + self._log_kernel
        return (scaled if log_v is None else scaled + log_v[..., None, :]).exp()


def alternating_adjoint(
    sweeps: Scalings,
    kernel: Scalable,
    row_sums: Tensor,
    col_sums: Tensor,
    row: Tensor | float = 1.0,
    col: Tensor | float = 1.0,
) -> list[Term]:
    """Walk the sweeps backwards from the row and column sums of A; ``row`` and ``col`` are the marginals."""
    terms = []
    from_u: Tensor | float = row_sums
    from_v = col_sums
    for sweep in reversed(range(sweeps.log_u.shape[-2])):
        log_u, log_v = sweeps.log_u[..., sweep, :], sweeps.log_v[..., sweep, :]
        log_v_before = sweeps.log_v[..., sweep - 1, :] if sweep > 0 else None  # None: the start, v = 1

        weight = from_v / col  # v = c / (Kᵀ u)
        terms.append(Term(log_u, log_v, None, weight))
        from_u = from_u - kernel.apply(log_u, log_v, weight)

        weight = from_u / row  # u = r / (K v_before)
        terms.append(Term(log_u, log_v_before, weight, None))
        if sweep > 0:
            from_v = -kernel.apply_transposed(log_u, log_v_before, weight)
            from_u = 0.0
    return terms


_MAX_PRODUCTS = 200


def symmetric_adjoint(plan: Tensor, sums: Tensor) -> Tensor:
    r"""Solve :math:`(\mathrm{diag}(P 1) + P)\, w = a` for ``sums`` a (..., n), the row plus column sums of A.

    The system is singular where the set falls apart into matched pairs or other bipartite pieces. Its right-hand side
    then lies in the range, and all solutions give the same gradient: they differ by z with :math:`z_i + z_j = 0`
    wherever :math:`P_{ij} > 0`.
    """
    strength, partner = plan.max(dim=-1)
    return solve_pair_preconditioned(
        lambda w: (w[..., None, :] @ plan)[..., 0, :],
        plan.sum(dim=-1),
        sums,
        partner=partner,
        strength=strength,
        goal=4 * torch.finfo(plan.dtype).eps * sums.norm(dim=-1),
        sets=torch.ones_like(sums[..., 0], dtype=torch.bool),
        max_products=_MAX_PRODUCTS,
    )
