"""A balanced plan, and how balanced it is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Convergence:
    """How balanced a plan is; the same record wherever a plan is made.

    Parameters
    ----------
    n_iter : Tensor, shape (...), int64
        Sweeps done, or products with K spent by the symmetric solver.
    marginal_error : Tensor, shape (...)
        Largest relative error of a row or column sum.
    tol : float
        The error up to which the plan counts as balanced: what was asked for, or one in a thousand after a count of
        sweeps.

    Examples
    --------
    >>> import torch
    >>> found = Convergence(torch.tensor([5, 5]), torch.tensor([1e-4, 0.3]), tol=1e-3)
    >>> found.converged.tolist()
    [True, False]
    """

    n_iter: Tensor
    marginal_error: Tensor
    tol: float

    @property
    def converged(self) -> Tensor:
        """Whether the marginal error is within ``tol``, shape (...)."""
        return self.marginal_error <= self.tol


@dataclass(frozen=True, eq=False)
class Balance:
    """A balanced plan, the scalings that make it, and for every set of the batch how balanced it is.

    Parameters
    ----------
    plan : Tensor, shape (..., n, m)
        diag(u) K diag(v). Its column sums are exact after alternating sweeps, its row sums nearly.
    log_u, log_v : Tensor, shapes (..., n) and (..., m)
        Logarithms of the scalings; equal for the symmetric plan.
    convergence : Convergence
        Sweeps or products spent, the largest relative error of a row sum, and whether that counts as balanced.
    reg : float, optional
        The entropy weight that turned a cost into K.

    Examples
    --------
    >>> import torch
    >>> from bpa import balance
    >>> from bpa.cost import cosine_cost
    >>> x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    >>> found = balance(cosine_cost(x), reg=0.2)
    >>> found.plan.shape, found.log_u.shape, int(found.convergence.n_iter)
    (torch.Size([12, 12]), torch.Size([12]), 5)
    """

    plan: Tensor
    log_u: Tensor
    log_v: Tensor
    convergence: Convergence
    reg: float | None = None

    def to(self, dtype: torch.dtype) -> Balance:
        """The same plan and scalings as numbers of another type."""
        return replace(self, plan=self.plan.to(dtype), log_u=self.log_u.to(dtype), log_v=self.log_v.to(dtype))
