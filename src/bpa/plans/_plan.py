"""What every plan knows of the set it balanced, and how it says so."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bpa._blocks import spans
from bpa._checks import check_choice, check_count, check_reg
from bpa.errors import ArgumentError
from bpa.kernels._rows import COSTS, Preparation
from bpa.kernels._weight import LARGE, LARGE_REG, weigh
from bpa.plans._comparison import Metric
from bpa.plans._potentials import Potentials
from bpa.plans._sets import Index, as_new, compute_dtype, positions
from bpa.solvers._choice import Solver, check_solver

__all__ = ["Cost", "Options", "Plan", "PreparedSet", "TopK", "prepared_set"]

Cost = Literal["cosine", "centred-cosine", "sqeuclidean", "precomputed"]


class TopK(NamedTuple):
    """Largest entries of every row: ``values`` and ``indices``, each (n, k), largest first.

    Examples
    --------
    >>> from bpa.plans import DensePlan
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> DensePlan.fit(x, reg=0.1).top_k(1).indices.flatten()
    tensor([1, 0, 3, 2])
    """

    values: Tensor
    indices: Tensor


@dataclass(frozen=True)
class Options:
    """What the caller of a ``fit`` chose, checked once."""

    function: str
    reg: float | Literal["auto"]
    cost: str
    solver: Solver
    scale: Literal["max"] | None
    diagonal: float

    @classmethod
    def checked(
        cls,
        function: str,
        *,
        reg: object,
        cost: str,
        solver: Solver,
        scale: Literal["max"] | None,
        diagonal: float,
        given_costs: bool,
    ) -> Options:
        """Refuse what cannot be used, by the name of the door it came through."""
        costs = (*COSTS, "precomputed") if given_costs else COSTS
        check_choice(cost, costs, argument="cost", function=function)
        number = check_reg(reg, function=function, auto=cost != "precomputed")
        check_solver(solver, function=function)
        check_choice(scale, ("max", None), argument="scale", function=function)
        return cls(function, number, cost, solver, scale, float(diagonal))


@dataclass(frozen=True, eq=False)
class PreparedSet:
    """Prepared rows of a set, how new items are prepared, and the entropy weight as a number."""

    rows: Tensor
    preparation: Preparation | None
    cost: str
    reg: float


def prepared_set(x: Tensor, options: Options) -> PreparedSet:
    """Prepare features, and choose the weight where that is left to the rule.

    The rule looks at unit rows minus their mean (with the squared distance: at the features minus theirs), at unit
    length again; its cost is therefore ``"centred-cosine"`` whatever was asked for.
    """
    dtype = compute_dtype(x)
    cost = "centred-cosine" if options.reg == "auto" else options.cost
    preparation = Preparation.of(x, cost, dtype, of_units=options.cost != "sqeuclidean")
    rows = preparation.rows(x, dtype)
    return PreparedSet(rows, preparation, cost, _chosen_reg(rows) if options.reg == "auto" else options.reg)


def _chosen_reg(rows: Tensor) -> float:
    """The weight that the rule gives these directions around the mean; a large set costs no n × n work."""
    if len(rows) >= LARGE:
        return LARGE_REG
    cosines = (rows @ rows.T).clamp_(-1, 1)
    return float(weigh(cosines, cosines.new_zeros(()), None).reg)


class Plan(ABC):
    """A set that was balanced once.

    Attributes
    ----------
    features : Tensor, shape (n, d)
        The prepared rows: of unit length, around the set's mean, or both; the costs (n, n) where those were given.
    reg : float
        Entropy weight, also where it was chosen.
    cost : str
        What differs between two items; ``"centred-cosine"`` where reg was left to the rule.
    scale : float
        What the plan is divided by: its largest off-diagonal entry, or 1 with ``scale=None``.
    diagonal : float
        W's diagonal.
    log_u, log_v : Tensor, shape (n,), float64
        Potentials: the plan is exp(log_u_i + log_v_j − C_ij/reg) off the diagonal. Equal for the converged solver.
    convergence : Convergence
        How balanced the plan is.
    """

    def __init__(
        self, prepared: PreparedSet, potentials: Potentials, *, scale: float, diagonal: float
    ) -> None:
        self.features = prepared.rows
        self.preparation = prepared.preparation
        self.reg = prepared.reg
        self.cost = prepared.cost
        self.scale = scale
        self.diagonal = diagonal
        self.log_u = potentials.log_u
        self.log_v = potentials.log_v
        self.convergence = potentials.convergence

    @property
    def n(self) -> int:
        """Number of fitted items."""
        return self.features.shape[0]

    @property
    def is_symmetric(self) -> bool:
        """Whether both potentials are one, as the converged solver leaves them."""
        return self.log_u is self.log_v

    @abstractmethod
    def affinities(self) -> Tensor:
        """All of W, shape (n, n)."""

    @abstractmethod
    def rows(self, index: Index) -> Tensor:
        """Rows of W of chosen items, shape (m, n)."""

    @abstractmethod
    def top_k(self, k: int) -> TopK:
        """The ``k`` largest entries of every row, the diagonal left out."""

    @abstractmethod
    def distances(self, i: Index, j: Index | None = None, *, metric: Metric = "euclidean") -> Tensor:
        """Distances between W-rows of chosen items."""

    @abstractmethod
    def transform(self, x_new: Tensor | np.ndarray, *, recognise: bool = True) -> Tensor:
        """Rows for new items, from the fitted potentials."""

    @abstractmethod
    def save(self, path: str | Path) -> None:
        """Write the plan to a file that needs no pickle; :func:`load_plan` reads it."""

    def row_blocks(self, rows: int = 1024) -> Iterator[tuple[slice, Tensor]]:
        """Walk over W from the top, ``rows`` rows at a time.

        Yields
        ------
        tuple of (slice, Tensor of shape (rows, n))
            Where the block stands, and a fresh tensor each time.
        """
        check_count(rows, argument="rows", function=f"{type(self).__name__}.row_blocks")
        for span in spans(self.n, rows):
            yield span, self.rows(torch.arange(span.start, span.stop))

    def prepared(self, x_new: Tensor | np.ndarray, *, function: str, argument: str = "x_new") -> Tensor:
        """Check new items, in the name of the door they came through, and prepare them as the fitted ones were."""
        new = as_new(x_new, self.features.shape[1], argument=argument, function=function)
        if self.preparation is None:
            return new.to(self.features.dtype)
        return self.preparation.rows(new, self.features.dtype)

    def __repr__(self) -> str:
        n, d = self.features.shape
        error = float(self.convergence.marginal_error)
        word = "converged" if bool(self.convergence.converged) else "NOT converged"
        return (
            f"{type(self).__name__}(n={n}, d={d}, cost={self.cost!r}, reg={self.reg:.4g}, {word}: marginal error "
            f"{error:.1e})"
        )

    def _positions(self, index: Index, method: str) -> Tensor:
        function = f"{type(self).__name__}.{method}"
        return positions(index, self.n, function=function, device=self.features.device)

    def _check_k(self, k: int) -> None:
        function = f"{type(self).__name__}.top_k"
        check_count(k, argument="k", function=function)
        if k > self.n - 1:
            raise ArgumentError(
                f"The 'k' parameter of {function} must be at most n − 1 = {self.n - 1}. Got {k}."
            )
