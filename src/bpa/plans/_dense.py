r"""One set over all its pairs: a plan that answers everything about W without holding W.

It keeps the features and the potentials, n·d + 2n numbers, and rebuilds what is asked for, tile by tile
(:mod:`bpa.kernels._tiles`):

.. math:: W_{ij} = \frac{1}{M} \exp(\log u_i + \log v_j - C_{ij}/\mathrm{reg}), \qquad W_{ii} = \text{diagonal}.

Where memory allows, W itself is kept and read.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bpa import memory
from bpa._blocks import block_rows, spans
from bpa._checks import check_choice
from bpa._words import REG_WORDS, SOLVER_WORDS, explains
from bpa.errors import ArgumentError
from bpa.kernels._tiles import KeptKernel, Tiles, mirror, tile_side
from bpa.plans._comparison import METRICS, Metric, finish
from bpa.plans._files import PlanFile, write_plan
from bpa.plans._late import Late
from bpa.plans._pairs import Keep, holds_numbers, kernel_of, largest_entry, tiles_of
from bpa.plans._plan import Cost, Options, Plan, PreparedSet, TopK, prepared_set
from bpa.plans._potentials import Potentials, balanced
from bpa.plans._search import largest
from bpa.plans._sets import Index, as_costs, as_set, compute_dtype
from bpa.solvers import Converged
from bpa.solvers._choice import Solver

__all__ = ["DensePlan"]

_CONVERGED = Converged()


class DensePlan(Plan):
    r"""The balanced affinities of one set, and of items that arrive later. Made by :meth:`fit`; never changed.

    Attributes
    ----------
    features, reg, cost, scale, diagonal, log_u, log_v, convergence
        What every plan knows: the prepared rows (n, d), or the given costs (n, n); the entropy weight as a number; what
        differs between two items; what the plan is divided by; W's diagonal; potentials (n,); how balanced it is.
    kept : bool
        Whether W is held.
    estimate : MemoryEstimate
        What :meth:`fit` held at most, beyond its input.

    Notes
    -----
    :meth:`fit` makes one pass over the kernel and keeps it where that is allowed, or one pass an iteration in
    O(n·(d + block)) memory. Nothing here records gradients.

    With ``reg="auto"`` the plan is that of the rule (cost and weight); rows are divided by one maximum as with any
    number. ``balanced_affinities(x, reg="auto")`` and :class:`~bpa.estimators.BPATransformer` go on to bring each
    row to one length, which needs all of W.

    Examples
    --------
    >>> import torch
    >>> x = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    >>> plan = DensePlan.fit(x, reg=0.1)
    >>> plan.affinities().shape, plan.rows([3, 5]).shape, plan.top_k(10).indices.shape
    (torch.Size([200, 200]), torch.Size([2, 200]), torch.Size([200, 10]))
    >>> bool((plan.transform(x[:4]) - plan.rows([0, 1, 2, 3])).abs().max() < 1e-4)
    True
    >>> bool(plan.convergence.converged)
    True
    """

    def __init__(
        self,
        prepared: PreparedSet,
        potentials: Potentials,
        *,
        scale: float,
        diagonal: float,
        tiles: Tiles | None = None,
        matrix: Tensor | None = None,
    ) -> None:
        super().__init__(prepared, potentials, scale=scale, diagonal=diagonal)
        self._tiles = tiles_of(prepared) if tiles is None else tiles
        self._matrix = matrix
        dtype, offset = self.features.dtype, self._tiles.offset
        self._log_left = (self.log_u - offset - math.log(scale)).to(dtype)
        self._log_right = (self.log_v - offset).to(dtype)

    @classmethod
    @explains(**REG_WORDS, **SOLVER_WORDS)
    def fit(
        cls,
        x: Tensor | np.ndarray,
        *,
        reg: float | Literal["auto"],
        cost: Cost = "cosine",
        solver: Solver = _CONVERGED,
        scale: Literal["max"] | None = "max",
        diagonal: float = 1.0,
        keep: bool | torch.dtype | None = None,
        budget: str | int | None = None,
    ) -> DensePlan:
        """Balance one set and remember its potentials.

        Parameters
        ----------
        x : Tensor or ndarray, shape (n, d)
            Features of one set; with ``cost="precomputed"``, symmetric costs (n, n). Half precision is computed in
            float32. Copied; the input may be freed.
        reg : float or "auto"
            Entropy weight. ``"auto"`` lets the rule of :func:`bpa.choose_reg` choose it, on unit rows minus their mean
            (with ``"sqeuclidean"``: on features minus theirs); new items are moved by the same mean.
        cost : {"cosine", "centred-cosine", "sqeuclidean", "precomputed"}
            What differs between two items; ``"centred-cosine"`` is the cosine of unit rows minus their mean.
        solver : Converged or Sweeps
            The converged symmetric plan (default: its potentials extend exactly to new items), or some alternating
            sweeps.
        scale : {"max"} or None
            Divide by the largest off-diagonal entry, or not.
        diagonal : float
            W's diagonal.
        keep : bool or torch.dtype, optional
            Keep W (n × n) once it is built, or in a type such as ``torch.bfloat16``: the solver then needs one Gram
            product instead of one an iteration, and every later answer reads W. None keeps it where the numbers of K
            can be held and the budget allows (without a budget: up to 1 GiB).
        budget : str or int, optional
            Bytes allowed beyond the input, such as ``"2GB"``.

        Returns
        -------
        DensePlan

        Raises
        ------
        MemoryBudgetError
            When even the streamed computation would exceed the budget.
        """
        options = Options.checked(
            "DensePlan.fit",
            reg=reg,
            cost=cost,
            solver=solver,
            scale=scale,
            diagonal=diagonal,
            given_costs=True,
        )
        return cls.of(x, options, keep=keep, budget=budget)

    @classmethod
    def of(
        cls,
        x: Tensor | np.ndarray,
        options: Options,
        *,
        keep: bool | torch.dtype | None = None,
        budget: str | int | None = None,
    ) -> DensePlan:
        """:meth:`fit` for another door, in whose name the options were checked and warnings are said."""
        x = as_set(x, argument="x", function=options.function)
        if options.cost != "precomputed":
            return cls._balanced(prepared_set(x, options), options, keep, budget)
        costs = as_costs(x.to(compute_dtype(x)), function=options.function)
        given = PreparedSet(costs, None, options.cost, float(options.reg))
        return cls._balanced(given, options, keep, budget)

    @classmethod
    def _balanced(
        cls,
        prepared: PreparedSet,
        options: Options,
        keep: Keep,
        budget: str | int | None,
        start: Tensor | None = None,
    ) -> DensePlan:
        tiles = tiles_of(prepared)
        kernel = kernel_of(tiles, prepared.rows.shape[1], keep, budget, options.function)
        found = balanced(kernel, options.solver, tiles.dtype, function=options.function, start=start)
        stretch, diagonal = options.scale == "max" and tiles.n > 1, options.diagonal
        if isinstance(kernel, KeptKernel):
            matrix, scale = kernel.to_affinities(found.log_u, found.log_v, stretch=stretch, diagonal=diagonal)
            return cls(prepared, found, scale=scale, diagonal=diagonal, tiles=tiles, matrix=matrix)
        scale = largest_entry(tiles, found) if stretch else 1.0
        return cls(prepared, found, scale=scale, diagonal=diagonal, tiles=tiles)

    def add(self, x_new: Tensor | np.ndarray, *, solver: Solver = _CONVERGED) -> DensePlan:
        """The plan of a set that has grown, balanced again from the potentials found so far.

        Parameters
        ----------
        x_new : Tensor or ndarray, shape (a, d)
            Features of the new items; they come behind the others.
        solver : Converged or Sweeps
            As in :meth:`fit`; sweeps start from nothing.

        Returns
        -------
        DensePlan
            With the same weight and the same mean; W is kept where it was, or where memory allows.
        """
        if self.preparation is None:
            raise ArgumentError("DensePlan.add needs features; fit the grown set's costs again.")
        scale: Literal["max"] | None = None if self.scale == 1 else "max"
        options = Options("DensePlan.add", self.reg, self.cost, solver, scale, self.diagonal)
        new = self.prepared(x_new, function="DensePlan.add")
        late = [self.met(part, recognise=False).potentials() for part in torch.split(new, 1024)]
        start = torch.cat([self.log_v, *late]) if isinstance(solver, Converged) else None
        grown = PreparedSet(torch.cat([self.features, new]), self.preparation, self.cost, self.reg)
        held = self._matrix if holds_numbers(self.reg, self.cost, self.features.dtype) else None
        return self._balanced(grown, options, None if held is None else held.dtype, None, start)

    def lean(self) -> DensePlan:
        """The same plan without W, which is rebuilt when asked for."""
        other = copy.copy(self)
        other._matrix = None
        return other

    @property
    def kept(self) -> bool:
        """Whether W is held."""
        return self._matrix is not None

    @property
    def estimate(self) -> memory.MemoryEstimate:
        """What :meth:`fit` held at most, beyond its input."""
        n, d = self.features.shape
        return memory.estimate_dense_plan(n, d, dtype=self.features.dtype, block=tile_side(n), keep=self.kept)

    def affinities(self, dtype: torch.dtype | None = None) -> Tensor:
        """All of W.

        Parameters
        ----------
        dtype : torch.dtype, optional
            Storage type, also ``torch.float16`` or ``torch.bfloat16``: entries are computed in float32, then rounded.

        Returns
        -------
        Tensor, shape (n, n)
            The kept matrix itself where there is one of that type: do not write into it.
        """
        if self._matrix is not None:
            return self._matrix.to(self._matrix.dtype if dtype is None else dtype)
        out = torch.empty(self.n, self.n, dtype=dtype or self.features.dtype, device=self.features.device)
        for rows, columns, tile in self._tiles.upper():
            below = tile.T if self.is_symmetric else self._to_w(tile.T.clone(), columns, rows)
            self._to_w(tile, rows, columns)
            if rows != columns:
                out[columns, rows] = below
            elif self.is_symmetric:
                mirror(tile)
            out[rows, columns] = tile
        return out.fill_diagonal_(self.diagonal)

    def rows(self, index: Index) -> Tensor:
        """Rows of W of chosen items.

        Parameters
        ----------
        index : sequence of int, shape (m,)
            Positions in the fitted set.

        Returns
        -------
        Tensor, shape (m, n)
        """
        index = self._positions(index, "rows")
        if self._matrix is not None:
            return self._matrix[index]
        out = self.features.new_empty(len(index), self.n)
        for columns in spans(self.n, self._tiles.side):
            self._block(index, columns, out=out[:, columns])
        return out

    def top_k(self, k: int) -> TopK:
        """The ``k`` largest entries of every row, the diagonal left out.

        Parameters
        ----------
        k : int
            At most n − 1.

        Returns
        -------
        TopK
            Named pair ``values``, ``indices``, each (n, k), largest first; of equal entries the first comes first.
        """
        self._check_k(k)
        values = self.features.new_empty(self.n, k)
        indices = torch.empty(self.n, k, dtype=torch.int64, device=self.features.device)
        for span in spans(self.n, block_rows(self.n, self.features.element_size())):
            item = torch.arange(span.start, span.stop, device=self.features.device)
            rows = self.rows(item) if self._matrix is None else self._matrix[span].to(values.dtype)
            value, index = largest(rows, k + 1)  # one more, as the item itself may be among them
            others = torch.sort(index == item[:, None], dim=1, stable=True).indices[:, :k]
            values[span], indices[span] = value.gather(1, others), index.gather(1, others)
        return TopK(values, indices)

    def distances(self, i: Index, j: Index | None = None, *, metric: Metric = "euclidean") -> Tensor:
        r"""Distances between W-rows of chosen items.

        Parameters
        ----------
        i : sequence of int, shape (m,)
            Positions in the fitted set.
        j : sequence of int, shape (p,), optional
            The other side; every item where it is left out.
        metric : {"euclidean", "sqeuclidean", "cosine"}
            :math:`\|W_i - W_j\|`, its square, or one minus the cosine of the rows.

        Returns
        -------
        Tensor, shape (m, p)
            Exactly 0 between an item and itself.

        Notes
        -----
        Every needed entry of W is built once: (m + p)·n·d + m·p·n multiply-adds, O((m + p)·block) memory beyond the
        answer.
        """
        check_choice(metric, METRICS, argument="metric", function="DensePlan.distances")
        left = self._positions(i, "distances")
        right = torch.arange(self.n, device=left.device) if j is None else self._positions(j, "distances")
        same = torch.equal(left, right)
        out = self.features.new_zeros(len(left), len(right))
        left_squared, right_squared = out.new_zeros(len(left)), out.new_zeros(len(right))
        for columns in spans(self.n, self._tiles.side):
            w_left = self._block(left, columns).to(out.dtype)
            w_right = w_left if same else self._block(right, columns).to(out.dtype)
            left_squared += w_left.square().sum(dim=1)
            right_squared += w_right.square().sum(dim=1)
            out.addmm_(w_left, w_right.T)
        # the same item: no rounding
        return finish(out, left_squared, right_squared, metric).masked_fill_(left[:, None] == right, 0)

    def transform(self, x_new: Tensor | np.ndarray, *, recognise: bool = True) -> Tensor:
        """Rows for new items, from the fitted potentials.

        Parameters
        ----------
        x_new : Tensor or ndarray, shape (m, d)
            Features of items, as they were given to :meth:`fit` (costs (m, n), where those were).
        recognise : bool
            Treat an item whose features equal those of a fitted item as that item: it does not match itself, and its
            entry there is ``diagonal``. The row then equals the fitted one to the marginal error.

        Returns
        -------
        Tensor, shape (m, n)
            Entry (q, j) is exp(f_q + log v_j − c_qj/reg) / scale with f_q such that the row of the plan sums to one.
        """
        new = self.prepared(x_new, function="DensePlan.transform")
        out = self.features.new_empty(len(new), self.n)
        for rows in spans(len(new), self._tiles.side**2 // self.n):
            out[rows] = self.met(new[rows], recognise=recognise).rows()
        return out

    def late(self, x_new: Tensor | np.ndarray, *, recognise: bool = True) -> Late:
        """New items before the fitted ones: their rows, columns and potentials, from one pass over the features.

        Parameters
        ----------
        x_new, recognise
            As in :meth:`transform`.

        Returns
        -------
        Late
        """
        return self.met(self.prepared(x_new, function="DensePlan.late"), recognise=recognise)

    def save(self, path: str | Path) -> None:
        """Write features and potentials to a file that needs no pickle; :func:`load_plan` reads it. W is not written.

        Parameters
        ----------
        path : str or Path
            Replaced at once, when everything is written.
        """
        write_plan(path, "dense", self)

    @classmethod
    def from_file(cls, file: PlanFile) -> DensePlan:
        """The plan that a file of kind "dense", or of one that adds to it, holds."""
        prepared, potentials, scale, diagonal = file.balanced_set()
        return cls(prepared, potentials, scale=scale, diagonal=diagonal)

    def met(self, new: Tensor, *, recognise: bool) -> Late:
        """:meth:`late` for items that are prepared already."""
        entries = self._tiles.against(new)
        nobody = torch.zeros(0, dtype=torch.int64, device=new.device)
        known = self._tiles.same_items(new, entries) if recognise else (nobody, nobody)
        return Late(new, entries, known, self._tiles, self.log_u, self.log_v, self.scale, self.diagonal)

    def _block(self, index: Tensor, columns: slice, *, out: Tensor | None = None) -> Tensor:
        """Entries of W at the rows in ``index`` and a span of columns."""
        if self._matrix is not None:
            return self._matrix[:, columns][index]
        tile = self._to_w(self._tiles.between(index, columns, out), index, columns)
        inside = ((index >= columns.start) & (index < columns.stop)).nonzero()[:, 0]
        tile[inside, index[inside] - columns.start] = self.diagonal
        return tile

    def _to_w(self, tile: Tensor, rows: slice | Tensor, columns: slice) -> Tensor:
        """Turn a tile of the kernel's logarithms into one of W in place; the diagonal is not set."""
        return tile.add_(self._log_left[rows][:, None]).add_(self._log_right[columns]).exp_()
