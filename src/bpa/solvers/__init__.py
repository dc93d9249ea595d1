"""Kernels in, balanced plans out; the only Sinkhorn loop of the project lives here.

What people say is at this door: how far to balance (`Sweeps`, `Converged`), and two solvers for marginals of any kind.
"""

from __future__ import annotations

from bpa.solvers._balance import sinkhorn
from bpa.solvers._choice import Converged, Sweeps
from bpa.solvers._semidual import SoftAssignment, soft_assignment

__all__ = ["Converged", "SoftAssignment", "Sweeps", "sinkhorn", "soft_assignment"]
