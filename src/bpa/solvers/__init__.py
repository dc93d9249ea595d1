"""Kernels in, balanced plans out; the only Sinkhorn loop of the project lives here."""

from __future__ import annotations

from bpa.solvers._assignment import assign
from bpa.solvers._balance import finite_bounds, sinkhorn
from bpa.solvers._choice import PAPER_SWEEPS, Converged, Solver, Sweeps, check_solver, solver_named
from bpa.solvers._gradients import ScaledPlan, alternating_adjoint, symmetric_adjoint
from bpa.solvers._kernel import (
    ExponentialKernel,
    LogKernel,
    SymmetricKernel,
    is_exponential_safe,
    make_kernel,
)
from bpa.solvers._plan import KernelFacts, Solution, move_batch_first, refuse_second_derivative, solve
from bpa.solvers._semidual import ClassShifts, SoftAssignment, class_shifts, soft_assignment
from bpa.solvers._sinkhorn import Scalings, SymmetricScaling, alternate, symmetrise

__all__ = [
    "PAPER_SWEEPS",
    "ClassShifts",
    "Converged",
    "ExponentialKernel",
    "KernelFacts",
    "LogKernel",
    "ScaledPlan",
    "Scalings",
    "SoftAssignment",
    "Solution",
    "Solver",
    "Sweeps",
    "SymmetricKernel",
    "SymmetricScaling",
    "alternate",
    "alternating_adjoint",
    "assign",
    "check_solver",
    "class_shifts",
    "finite_bounds",
    "is_exponential_safe",
    "make_kernel",
    "move_batch_first",
    "refuse_second_derivative",
    "sinkhorn",
    "soft_assignment",
    "solve",
    "solver_named",
    "symmetric_adjoint",
    "symmetrise",
]
