"""A kernel in, its potentials and how balanced they leave it out: the one place where plans are solved."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bpa.errors import ConvergenceWarning
from bpa.kernels._large import LargeKernel
from bpa.records import Convergence
from bpa.solvers import Sweeps
from bpa.solvers._choice import Solver
from bpa.solvers._sinkhorn import alternate, symmetrise

__all__ = ["Potentials", "balanced", "warn_unless_converged"]


@dataclass(frozen=True, eq=False)
class Potentials:
    """Logarithms of the scalings (n,), float64, equal for the symmetric plan, and how balanced the plan is."""

    log_u: Tensor
    log_v: Tensor
    convergence: Convergence


def balanced(
    kernel: LargeKernel, solver: Solver, dtype: torch.dtype, *, function: str, start: Tensor | None = None
) -> Potentials:
    """Balance a kernel of one set.

    Parameters
    ----------
    kernel : LargeKernel
    solver : Sweeps or Converged
    dtype : torch.dtype
        Type of the computation, which decides the tolerance where none is named.
    function : str
        Who warns when the tolerance is not reached.
    start : Tensor, shape (n,), optional
        Potentials near the symmetric plan, such as those of a set that has grown a little.

    Returns
    -------
    Potentials
    """
    zero = torch.zeros(kernel.n, dtype=torch.float64, device=kernel.device)
    tol = solver.tolerance(dtype)
    if kernel.n == 1:  # nobody to match
        return Potentials(zero, zero, Convergence(torch.tensor(0), torch.tensor(0.0).double(), tol))
    if isinstance(solver, Sweeps):
        sweeps = alternate(kernel, n_iter=solver.n)
        log_u, log_v = sweeps.log_u[-1].double(), sweeps.log_v[-1].double()
        error = torch.expm1(log_u + kernel.log_apply(log_v)).abs().max()  # columns are exact
        return Potentials(log_u, log_v, Convergence(torch.tensor(solver.n), error, tol))
    begun = kernel if start is None else _Started(kernel, start)
    found = symmetrise(begun, zero, tol=tol, max_iter=solver.max_iter)
    log_u = found.log_u if start is None else found.log_u + start.to(found.log_u)
    convergence = Convergence(found.n_iter, found.marginal_error, tol)
    warn_unless_converged(convergence, function)
    return Potentials(log_u, log_u, convergence)


def warn_unless_converged(convergence: Convergence, function: str) -> None:
    """Say that a tolerance was asked for and not reached."""
    if not bool(convergence.converged):
        warnings.warn(
            f"{function} reached a marginal error of {float(convergence.marginal_error):.1e} after "
            f"{int(convergence.n_iter)} products, not tol={convergence.tol:.1e}. Raise reg, tol or max_iter.",
            ConvergenceWarning,
            stacklevel=_level_of_the_caller(),
        )


def _level_of_the_caller() -> int:
    """How far up the stack the first frame outside this package is."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "bpa":
        frame, level = frame.f_back, level + 1
    return level


class _Started:
    """A kernel as seen from potentials s: diag(eˢ) K diag(eˢ), so that the solver looks for what is still missing."""

    def __init__(self, kernel: LargeKernel, start: Tensor) -> None:
        self._kernel = kernel
        self._start = start.double()

    def log_apply(self, log_u: Tensor) -> Tensor:
        return self._kernel.log_apply(log_u + self._start) + self._start

    def plan_operator(self, log_u: Tensor) -> Callable[[Tensor], Tensor]:
        return self._kernel.plan_operator(log_u + self._start)

    def strongest_partner(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        return self._kernel.strongest_partner(log_u + self._start)
