"""How far to balance: a count of sweeps, or until the marginals hold; one choice, so that no mix can be said."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bpa._checks import check_count, check_positive
from bpa.errors import ArgumentError, DTypeError

__all__ = ["BALANCED", "PAPER_SWEEPS", "Converged", "Solver", "Sweeps", "check_solver", "solver_named"]

BALANCED = 1e-3
"""Largest relative error of a row sum up to which a plan counts as balanced where no tolerance was asked for."""
_TOLERANCE = {torch.float32: 3e-6, torch.float64: 1e-6}


@dataclass(frozen=True)
class Sweeps:
    """``n`` alternating sweeps, rows before columns: the paper's solver, and its five.

    Examples
    --------
    >>> str(Sweeps(5))
    'sweeps:5'
    """

    n: int = 5

    def __post_init__(self) -> None:
        check_count(self.n, argument="n", function="Sweeps")

    def __str__(self) -> str:
        return f"sweeps:{self.n}"

    def tolerance(self, dtype: torch.dtype) -> float:  # noqa: ARG002 - one signature for both choices
        """What ``converged`` means afterwards."""
        return BALANCED


PAPER_SWEEPS = Sweeps(5)
"""The solver of the paper, and of every layer that is not told otherwise."""


@dataclass(frozen=True)
class Converged:
    """The exactly symmetric plan, until every row sum is within ``tol`` of its marginal.

    Parameters
    ----------
    tol : float, optional
        Largest relative error of a row sum; 1e-6 in float64, 3e-6 in float32.
    max_iter : int
        The most products with the kernel to spend on a set. Not arriving is a :class:`~bpa.ConvergenceWarning`.

    Examples
    --------
    >>> str(Converged()), str(Converged(1e-4))
    ('converged', 'converged:0.0001')
    """

    tol: float | None = None
    max_iter: int = 300

    def __post_init__(self) -> None:
        if self.tol is not None:
            check_positive(self.tol, argument="tol", function="Converged")
        check_count(self.max_iter, argument="max_iter", function="Converged")

    def __str__(self) -> str:
        return "converged" if self.tol is None else f"converged:{self.tol:g}"

    def tolerance(self, dtype: torch.dtype) -> float:
        """The tolerance in numbers of this type."""
        return _TOLERANCE[dtype] if self.tol is None else self.tol


Solver = Sweeps | Converged


def check_solver(value: object, *, function: str) -> None:
    """Refuse what is neither of the two choices, old spellings by name."""
    if not isinstance(value, Sweeps | Converged):
        raise DTypeError(
            f"The 'solver' parameter of {function} must be Sweeps(n) or Converged(tol) of bpa.solvers. Got {value!r}."
        )


def solver_named(text: str) -> Solver:
    """Read what ``str`` of a solver writes: ``sweeps:5``, ``converged``, ``converged:1e-6``.

    Examples
    --------
    >>> solver_named("sweeps:20"), solver_named("converged:1e-4")
    (Sweeps(n=20), Converged(tol=0.0001, max_iter=300))
    """
    name, _, number = text.strip().lower().partition(":")
    try:
        if name == "sweeps":
            return Sweeps(int(number)) if number else Sweeps()
        if name == "converged":
            return Converged(float(number)) if number else Converged()
    except ValueError:
        pass
    raise ArgumentError(
        f"A solver is named 'sweeps:N', 'converged' or 'converged:TOL' (sweeps:5 is the paper's). Got {text!r}."
    )
