r"""A kernel K as the solvers see it: something that is applied to vectors, never rewritten.

Two representations answer the same questions. ``ExponentialKernel`` holds K itself and works on the scalings
u, v > 0: a half-sweep is one matrix-vector product. ``LogKernel`` holds log K and works on log u, log v: a
half-sweep is one log-sum-exp over the matrix, some ten times slower and never out of range. ``make_kernel`` chooses;
nobody else needs to know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

__all__ = [
    "ExponentialKernel",
    "Kernel",
    "LogKernel",
    "SymmetricKernel",
    "is_exponential_safe",
    "make_kernel",
]

_SAFE_SPREAD = {torch.float32: 67.0, torch.float64: 600.0}
"""Largest spread of log K for which K and its scalings stay inside the number type.

The scalings of a kernel whose logarithms span r reach e^±r, and float32 holds e^±87. 67 admits cosine costs (which
span 2/reg) down to reg = 0.03; the tests compare it with the log domain on the worst sets that allows.
"""
_BLOCK_BYTES = 64 << 20
"""Room for one block of rows where a whole extra matrix would be wasteful."""


class Kernel(Protocol):
    """What the alternating sweeps ask of a kernel (..., n, m); scalings are opaque to them."""

    def start(self) -> Tensor:
        """Return the column scaling v = 1, shape (..., m)."""

    def match_rows(self, v: Tensor) -> Tensor:
        """Return u = r / (K v)."""

    def match_columns(self, u: Tensor) -> Tensor:
        """Return v = c / (Kᵀ u)."""

    def log_row_scaling(self, u: Tensor) -> Tensor:
        """Return log u."""

    def log_column_scaling(self, v: Tensor) -> Tensor:
        """Return log v."""


class SymmetricKernel(Protocol):
    """What the symmetric solver asks of a kernel K = Kᵀ (..., n, n); vectors keep their own number type."""

    def log_apply(self, log_u: Tensor) -> Tensor:
        """Return log(K exp(log_u))."""

    def plan_operator(self, log_u: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the map w → diag(u) K diag(u) w."""

    def strongest_partner(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        """For every row of diag(u) K diag(u), where its largest entry stands and the logarithm of that entry."""


class ExponentialKernel:
    """K itself, divided by exp(``shift``) so that its largest entry is one.

    ``symmetric`` promises K = Kᵀ: both half-sweeps then use the product that reads K row by row, which for many
    small sets is several times faster.
    """

    def __init__(
        self, kernel: Tensor, row: Tensor | float, col: Tensor | float, *, shift: float = 0.0, symmetric: bool
    ) -> None:
        self.kernel = kernel
        self.shift = shift
        self.symmetric = symmetric
        self._row = row
        self._col = col

    def start(self) -> Tensor:
        return self.kernel.new_ones(self.kernel.shape[:-2] + self.kernel.shape[-1:])

    def match_rows(self, v: Tensor) -> Tensor:
        return self._row / self._apply(v)

    def match_columns(self, u: Tensor) -> Tensor:
        return self._col / self._apply_transposed(u)

    def log_row_scaling(self, u: Tensor) -> Tensor:
        return u.log() - self.shift

    def log_column_scaling(self, v: Tensor) -> Tensor:
        return v.log()

    def log_apply(self, log_u: Tensor) -> Tensor:
        top = log_u.amax(dim=-1, keepdim=True)
        product = self._apply((log_u - top).exp().to(self.kernel.dtype))
        return product.to(log_u.dtype).log() + (top + self.shift)

    def plan_operator(self, log_u: Tensor) -> Callable[[Tensor], Tensor]:
        top = log_u.amax(dim=-1, keepdim=True)
        inner = (log_u - top).exp()
        outer = (log_u + (top + self.shift)).exp()

        def apply(w: Tensor) -> Tensor:
            return outer * self._apply((inner * w).to(self.kernel.dtype)).to(w.dtype)

        return apply

    def strongest_partner(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        top = log_u.amax(dim=-1, keepdim=True)
        u = (log_u - top).exp().to(self.kernel.dtype)
        value, partner = _largest_of_rows(self.kernel, lambda rows: rows * u[..., None, :])
        return partner, value.to(log_u.dtype).log() + (log_u + top + self.shift)

    def _apply(self, v: Tensor) -> Tensor:
        if self.symmetric:
            return self._apply_transposed(v)
        return (self.kernel @ v[..., :, None])[..., 0]

    def _apply_transposed(self, u: Tensor) -> Tensor:
        return (u[..., None, :] @ self.kernel)[..., 0, :]


class LogKernel:
    """log K, for spreads that numbers of this type cannot hold."""

    def __init__(self, log_kernel: Tensor, log_row: Tensor | float, log_col: Tensor | float) -> None:
        self.log_kernel = log_kernel
        self._log_row = log_row
        self._log_col = log_col

    def start(self) -> Tensor:
        return self.log_kernel.new_zeros(self.log_kernel.shape[:-2] + self.log_kernel.shape[-1:])

    def match_rows(self, v: Tensor) -> Tensor:
        return self._log_row - torch.logsumexp(self.log_kernel + v[..., None, :], dim=-1)

    def match_columns(self, u: Tensor) -> Tensor:
        return self._log_col - torch.logsumexp(self.log_kernel + u[..., :, None], dim=-2)

    def log_row_scaling(self, u: Tensor) -> Tensor:
        return u

    def log_column_scaling(self, v: Tensor) -> Tensor:
        return v

    def log_apply(self, log_u: Tensor) -> Tensor:
        scaled = self.log_kernel + log_u[..., None, :].to(self.log_kernel.dtype)
        return torch.logsumexp(scaled, dim=-1).to(log_u.dtype)

    def plan_operator(self, log_u: Tensor) -> Callable[[Tensor], Tensor]:
        log_u = log_u.to(self.log_kernel.dtype)
        plan = (log_u[..., :, None] + self.log_kernel + log_u[..., None, :]).exp()

        def apply(w: Tensor) -> Tensor:
            return (plan @ w[..., :, None].to(plan.dtype))[..., 0].to(w.dtype)

        return apply

    def strongest_partner(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        rounded = log_u.to(self.log_kernel.dtype)
        value, partner = _largest_of_rows(self.log_kernel, lambda rows: rows + rounded[..., None, :])
        return partner, value.to(log_u.dtype) + log_u


def make_kernel(
    log_kernel: Tensor,
    log_row: Tensor | None,
    log_col: Tensor | None,
    *,
    bounds: tuple[float, float] | None,
    symmetric: bool,
) -> ExponentialKernel | LogKernel:
    """Choose the representation.

    ``bounds`` holds the smallest and the largest finite entry of ``log_kernel``, or bounds on them; None where they
    cannot be known, and then the log domain serves. Marginals of one are given as None.
    """
    if bounds is not None and is_exponential_safe(bounds[1] - bounds[0], log_kernel.dtype):
        kernel = (log_kernel - bounds[1]).exp() if bounds[1] != 0 else log_kernel.exp()
        row = 1.0 if log_row is None else log_row.exp()
        col = 1.0 if log_col is None else log_col.exp()
        return ExponentialKernel(kernel, row, col, shift=bounds[1], symmetric=symmetric)
    return LogKernel(log_kernel, 0.0 if log_row is None else log_row, 0.0 if log_col is None else log_col)


def is_exponential_safe(spread: float, dtype: torch.dtype) -> bool:
    """Whether a kernel whose logarithms span ``spread`` can be held as numbers of this type."""
    return spread <= _SAFE_SPREAD[dtype]


def _largest_of_rows(matrix: Tensor, scale: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Value and position of the largest entry of every row of ``scale(matrix)``, by blocks of rows."""
    bytes_of_row = matrix.element_size() * matrix[..., :1, :].numel()
    rows = max(1, _BLOCK_BYTES // max(1, bytes_of_row))
    parts = [
        scale(matrix[..., start : start + rows, :]).max(dim=-1) for start in range(0, matrix.shape[-2], rows)
    ]
    return torch.cat([p.values for p in parts], dim=-1), torch.cat([p.indices for p in parts], dim=-1)
