"""What is asked of a kernel: the recipe from rows to W, checked once, and one call of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from bpa._checks import check_choice, check_reg
from bpa.errors import ArgumentError
from bpa.solvers._choice import PAPER_SWEEPS, Solver, check_solver

__all__ = ["Cost", "PlanRequest", "Recipe", "Reg", "Request"]

Cost = Literal["cosine", "sqeuclidean", "precomputed"] | Callable[[Tensor], Tensor]
Reg = float | Literal["auto"]


@dataclass(frozen=True)
class Recipe:
    """How rows become W; the options of :func:`bpa.balanced_affinities`, and whose they are.

    ``function`` is the name that error sentences use.
    """

    reg: Reg = 0.1
    solver: Solver = PAPER_SWEEPS
    cost: Cost = "cosine"
    scale: Literal["max"] | None = "max"
    scale_grad: bool = False
    diagonal: float = 1.0
    symmetrize: bool = False
    function: str = "balanced_affinities"

    def __post_init__(self) -> None:
        function = self.function
        object.__setattr__(self, "reg", check_reg(self.reg, function=function, auto=True))
        if self.reg == "auto" and (self.scale is None or self.scale_grad):
            name = "scale" if self.scale is None else "scale_grad"
            raise ArgumentError(
                f"The {name!r} parameter of {function} has no effect with reg='auto', which brings each row to one "
                f"length. Leave it out, or give reg a number."
            )
        check_solver(self.solver, function=function)
        check_choice(self.scale, ("max", None), argument="scale", function=function)
        if not callable(self.cost):
            known = ("cosine", "sqeuclidean", "precomputed")
            check_choice(self.cost, known, argument="cost", function=function)
        if self.scale_grad and self.scale is None:
            raise ArgumentError(f"The 'scale_grad' parameter of {function} has no effect with scale=None.")

    @property
    def is_cost_symmetric(self) -> bool:
        """Whether C = Cᵀ whatever the rows are."""
        return self.cost in ("cosine", "sqeuclidean")

    def describe(self) -> str:
        """The weight, the solver, and what else differs from the default."""
        shown = ["reg='auto'" if self.reg == "auto" else f"reg={self.reg:g}", f"solver={self.solver!r}"]
        for option in fields(self)[2:-1]:
            value = getattr(self, option.name)
            if value != option.default:
                shown.append(f"{option.name}={getattr(value, '__name__', None) or repr(value)}")
        return ", ".join(shown)


@dataclass(frozen=True, eq=False)
class Request:
    """One call: a recipe, and the sets it is for.

    Parameters
    ----------
    recipe : Recipe
    x : Tensor, shape (..., n, d)
        Rows in the type to compute in, float32 or float64; costs (..., n, n) where they are precomputed.
    mask : Tensor of bool, shape (..., n), optional
        True at the items that exist.
    labels : Tensor of int, shape (..., n), optional
        Known classes, −1 where unknown.
    wants_convergence : bool
        Whether to say how balanced the plan is, which costs one more product.
    """

    recipe: Recipe
    x: Tensor
    mask: Tensor | None = None
    labels: Tensor | None = None
    wants_convergence: bool = False


@dataclass(frozen=True)
class PlanRequest:
    """One set that is balanced once and asked later, as representations of its kernel look at it.

    Parameters
    ----------
    n, d : int
        Items and dimension.
    dtype : torch.dtype
        Type to compute in.
    spread : float
        How far the logarithms of K are apart, at most.
    keep : bool or torch.dtype or None
        True (or a type) where the n × n numbers were asked for, False where they were refused, None where either is
        right.
    neighbours : int or None
        Entries of a neighbour list; None where all pairs were asked for.
    is_shared : bool
        Whether several processes share the set.
    budget : int or None
        Bytes beyond the input.
    """

    n: int
    d: int
    dtype: torch.dtype
    spread: float = 0.0
    keep: bool | torch.dtype | None = None
    neighbours: int | None = None
    is_shared: bool = False
    budget: int | None = None
