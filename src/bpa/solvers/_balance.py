"""Any kernel between any marginals, as a record."""

from __future__ import annotations

from torch import Tensor

from bpa._checks import check_cost, is_tracing
from bpa.errors import ArgumentError, DTypeError, ShapeError
from bpa.records import Balance
from bpa.solvers._choice import PAPER_SWEEPS, Sweeps
from bpa.solvers._plan import KernelFacts, solve

__all__ = ["finite_bounds", "sinkhorn"]


def sinkhorn(
    log_kernel: Tensor,
    log_row: Tensor | None = None,
    log_col: Tensor | None = None,
    *,
    solver: Sweeps = PAPER_SWEEPS,
) -> Balance:
    r"""Scale a kernel to its marginals by alternating sweeps.

    .. math:: P = \mathrm{diag}(u)\, K \,\mathrm{diag}(v), \qquad u = r / (K v), \quad v = c / (K^\top u)

    Parameters
    ----------
    log_kernel : Tensor, shape (..., n, m)
        log K; −inf forbids a pair. Every row and column needs a pair.
    log_row, log_col : Tensor, shapes (..., n) and (..., m), optional
        Logarithms of the marginals; ones where they are left out. Their totals should agree.
    solver : Sweeps
        Full sweeps, rows before columns, from v = 1; five where it is left out.

    Returns
    -------
    Balance
        The plan is differentiable once with respect to ``log_kernel``, through the sweeps; the backward pass keeps the
        plan and ``2 n`` vectors. Column sums are exact.

    Examples
    --------
    >>> import torch
    >>> from bpa.solvers import Sweeps
    >>> sinkhorn(torch.zeros(2, 4), torch.zeros(2).add(2.0).log(), solver=Sweeps(1)).plan.sum(dim=0)
    tensor([1., 1., 1., 1.])
    """
    check_cost(log_kernel, argument="log_kernel", function="sinkhorn", square=False)
    if not isinstance(solver, Sweeps):
        raise DTypeError(
            f"The 'solver' parameter of sinkhorn must be Sweeps(n) of bpa.solvers. Got {solver!r}."
        )
    n, m = log_kernel.shape[-2:]
    for name, marginal, size in (("log_row", log_row, n), ("log_col", log_col, m)):
        if marginal is not None and marginal.shape[-1:] != (size,):
            raise ShapeError(
                f"The {name!r} parameter of sinkhorn must have shape (..., {size}) for a kernel of shape "
                f"{tuple(log_kernel.shape)}. Got {tuple(marginal.shape)}."
            )
    if not is_tracing():
        has_pair = log_kernel > -float("inf")
        if not bool(has_pair.any(dim=-1).all() & has_pair.any(dim=-2).all()):
            raise ArgumentError(
                "The 'log_kernel' parameter of sinkhorn must allow every row and every column at least one pair. "
                "Got one whose entries are all -inf or NaN."
            )
    found = solve(log_kernel, log_row, log_col, solver, KernelFacts(finite_bounds(log_kernel)))
    return Balance(found.plan, found.log_us[..., -1, :], found.log_vs[..., -1, :], found.convergence)


def finite_bounds(log_kernel: Tensor) -> tuple[float, float] | None:
    """Smallest and largest finite entry; None where values cannot be looked at."""
    if is_tracing():
        return None
    values = log_kernel.detach()
    finite = values.isfinite()
    low = values.where(finite, float("inf")).amin()
    high = values.where(finite, -float("inf")).amax()
    return float(low), float(high)
