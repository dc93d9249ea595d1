r"""A plan on the neighbour graph: entries of the kernel survive where one item is among the nearest of the other.

O(n·k) memory and time an iteration; that the plan exists whatever the graph looks like is shown in
:mod:`bpa.kernels._graph`.

**When it is a good approximation** of the dense plan: when a row's mass lies within its neighbours, that is at small
``reg``. At large ``reg`` most of the dense plan's mass is in its tail, and the plan on the graph is another transform:
the explanation page on speed has the distances measured between the two.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bpa import memory
from bpa._blocks import block_rows, spans
from bpa._checks import check_choice, check_count
from bpa._words import REG_WORDS, SOLVER_WORDS, explains
from bpa.errors import ArgumentError
from bpa.kernels._graph import GraphKernel, neighbour_graph
from bpa.kernels._rows import equal_pairs, pair_costs
from bpa.plans._comparison import METRICS, Metric, finish
from bpa.plans._files import PlanFile, write_plan
from bpa.plans._late import late_rows
from bpa.plans._plan import Options, Plan, PreparedSet, TopK, prepared_set
from bpa.plans._potentials import Potentials, balanced
from bpa.plans._search import nearest_rows
from bpa.plans._sets import Index, as_lists, as_set, compute_dtype
from bpa.plans._sparse import SparseRows, products
from bpa.solvers import Converged
from bpa.solvers._choice import Solver

__all__ = ["GraphPlan"]

_SOLVER = Converged(1e-3, max_iter=1000)


class GraphPlan(Plan):
    r"""The balanced affinities of one set on its neighbour graph. Made by :meth:`fit`; never changed.

    Attributes
    ----------
    features, reg, cost, scale, diagonal, log_u, log_v, convergence
        What every plan knows; see :class:`DensePlan`.
    entries : SparseRows
        W off the diagonal, on the graph.
    k : int
        Neighbours of each item; those a new item is matched to.
    n_repaired : int
        Entries that the feasibility tour added to the neighbour graph.
    repaired_mass : float
        Share of the plan that lies on them.

    Examples
    --------
    >>> import torch
    >>> x = torch.randn(300, 16, generator=torch.Generator().manual_seed(0))
    >>> plan = GraphPlan.fit(x, reg=0.1, k=20)
    >>> plan.rows([7]).to_dense().shape, bool(plan.convergence.converged)
    (torch.Size([1, 300]), True)
    """

    def __init__(
        self,
        prepared: PreparedSet,
        potentials: Potentials,
        entries: SparseRows,
        *,
        k: int,
        scale: float,
        diagonal: float,
        repaired: tuple[int, float],
    ) -> None:
        super().__init__(prepared, potentials, scale=scale, diagonal=diagonal)
        self.entries = entries
        self.k = k
        self.n_repaired, self.repaired_mass = repaired
        self._complete: SparseRows | None = None

    @classmethod
    @explains(**REG_WORDS, **SOLVER_WORDS)
    def fit(
        cls,
        x: Tensor | np.ndarray,
        *,
        reg: float | Literal["auto"],
        k: int = 64,
        neighbours: Tensor | np.ndarray | None = None,
        cost: Literal["cosine", "centred-cosine", "sqeuclidean"] = "cosine",
        solver: Solver = _SOLVER,
        scale: Literal["max"] | None = "max",
        diagonal: float = 1.0,
        budget: str | int | None = None,
    ) -> GraphPlan:
        """Balance the kernel of a set's neighbour graph.

        Parameters
        ----------
        x : Tensor or ndarray, shape (n, d)
            Features of one set, n ≥ 3.
        reg : float or "auto"
            Entropy weight; ``"auto"`` as in :meth:`DensePlan.fit`.
        k : int
            Neighbours of each item (fewer where the set is small); the graph is their union in both directions.
            With k ≥ n − 1 the plan is the dense one.
        neighbours : Tensor or ndarray of int, shape (n, k'), optional
            Neighbour lists from elsewhere (faiss, pynndescent, ...), exact or not; then ``k`` is ignored. Entries
            that are negative or name the item itself are skipped. Costs are computed from ``x``.
        cost : {"cosine", "centred-cosine", "sqeuclidean"}
            What differs between two items.
        solver : Converged or Sweeps
            To one in a thousand (default: cutting the kernel to lists moves rows by far more), or some sweeps.
        scale : {"max"} or None
            Divide by the largest entry, or not.
        diagonal : float
            W's diagonal.
        budget : str or int, optional
            Bytes allowed beyond the input, such as ``"2GB"``.

        Returns
        -------
        GraphPlan

        Raises
        ------
        MemoryBudgetError
            When the planner's bound exceeds the budget.
        """
        function = "GraphPlan.fit"
        options = Options.checked(
            function, reg=reg, cost=cost, solver=solver, scale=scale, diagonal=diagonal, given_costs=False
        )
        check_count(k, argument="k", function=function)
        x = as_set(x, argument="x", function=function, minimum=3)
        n, d = x.shape
        lists = None if neighbours is None else as_lists(neighbours, n, n, function=function)
        k = min(k, n - 1) if lists is None else lists.shape[1]
        estimate = memory.estimate_graph_plan(n, d, k=k, dtype=compute_dtype(x))
        memory.check(estimate, budget, way_out="Lower k, or raise the budget.")

        prepared = prepared_set(x, options)
        rows = prepared.rows
        if lists is None:
            lists = nearest_rows(rows, rows, k, prepared.cost, own="excluded").indices
        crow, col, log_kernel, is_tour = neighbour_graph(rows, lists, prepared.cost, prepared.reg)
        del lists
        kernel = GraphKernel(crow, col, log_kernel)
        found = balanced(kernel, solver, rows.dtype, function=function)
        values = kernel.plan(found.log_u, found.log_v)
        repaired = int(is_tour.sum()), float(values[is_tour].sum(dtype=torch.float64)) / n
        largest = float(values.max()) if scale == "max" else 1.0
        entries = SparseRows(crow, col, values.div_(largest), (n, n))
        return cls(prepared, found, entries, k=k, scale=largest, diagonal=float(diagonal), repaired=repaired)

    @property
    def estimate(self) -> memory.MemoryEstimate:
        """What :meth:`fit` held at most, beyond its input."""
        n, d = self.features.shape
        return memory.estimate_graph_plan(n, d, k=self.k, dtype=self.features.dtype)

    def affinities(self) -> Tensor:
        """All of W, diagonal included.

        Returns
        -------
        Tensor, shape (n, n), layout CSR
        """
        return self.whole().to_torch()

    def whole(self) -> SparseRows:
        """All of W, diagonal included, as this library's sparse rows."""
        if self._complete is None:
            own = torch.arange(self.n, device=self.features.device)
            self._complete = self.entries.with_entries(own, self.diagonal)
        return self._complete

    def rows(self, index: Index) -> Tensor:
        """Rows of W of chosen items, as :meth:`DensePlan.rows`.

        Returns
        -------
        Tensor, shape (m, n), layout CSR
        """
        return self._chosen(self._positions(index, "rows")).to_torch()

    def top_k(self, k: int) -> TopK:
        """The ``k`` largest entries of every row, the diagonal left out, as :meth:`DensePlan.top_k`.

        Returns
        -------
        TopK
            Named pair ``values``, ``indices``, each (n, k), largest first. A row with fewer entries ends in the value 0
            at position −1.
        """
        self._check_k(k)
        row, found = self.entries.row_of_entry(), self.entries.values
        order = torch.argsort(found, descending=True, stable=True)
        order = order[torch.argsort(row[order], stable=True)]  # by row, largest first
        place = torch.arange(len(order), device=row.device) - self.entries.start[row]
        order, row, place = order[place < k], row[place < k], place[place < k]
        values = found.new_zeros(self.n, k)
        indices = torch.full((self.n, k), -1, dtype=torch.int64, device=row.device)
        values[row, place], indices[row, place] = found[order], self.entries.column[order].long()
        return TopK(values, indices)

    def distances(self, i: Index, j: Index | None = None, *, metric: Metric = "euclidean") -> Tensor:
        """Distances between W-rows of chosen items, from one product of sparse matrices.

        Parameters
        ----------
        i, j, metric
            As in :meth:`DensePlan.distances`.

        Returns
        -------
        Tensor, shape (m, p)
            Exactly 0 between an item and itself. Rows that share no column are at the distance that their lengths
            alone give.
        """
        check_choice(metric, METRICS, argument="metric", function="GraphPlan.distances")
        left = self._positions(i, "distances")
        everybody = torch.arange(self.n, device=left.device)
        right = everybody if j is None else self._positions(j, "distances")
        a, b = self._chosen(left), self.whole() if j is None else self._chosen(right)
        columns = b if j is None and self.is_symmetric else b.transpose()
        b_squared = b.squared_norms()
        out = b.values.new_empty(len(left), len(right))
        for rows in spans(len(left), block_rows(max(1, len(right)), b.values.element_size())):
            part = a.slice(rows.start, rows.stop)
            out[rows] = finish(products(part, columns), part.squared_norms(), b_squared, metric)
        return out.masked_fill_(left[:, None] == right, 0)

    def transform(
        self,
        x_new: Tensor | np.ndarray,
        *,
        neighbours: Tensor | np.ndarray | None = None,
        recognise: bool = True,
    ) -> Tensor:
        """Rows for new items: each is matched to its ``k`` nearest fitted items.

        Parameters
        ----------
        x_new : Tensor or ndarray, shape (m, d)
            Features of items, as they were given to :meth:`fit`.
        neighbours : Tensor or ndarray of int, shape (m, k'), optional
            Lists of fitted items to match, from elsewhere; the exact nearest where it is left out.
        recognise : bool
            Give an item whose features equal those of a fitted item the fitted row.

        Returns
        -------
        Tensor, shape (m, n), layout CSR
            Entry (q, j) is exp(f_q + log v_j − c_qj/reg) / scale on the list, f_q such that the row of the plan sums
            to one.
        """
        new = self.prepared(x_new, function="GraphPlan.transform")
        indices = self._lists_of(new, neighbours)
        row = torch.arange(len(new), device=indices.device)[:, None].expand_as(indices)
        costs = pair_costs(new, row.flatten(), self.features, indices.flatten(), self.cost).view(
            indices.shape
        )
        again = torch.zeros_like(indices, dtype=torch.bool)
        again[:, 1:] = indices[:, 1:] == indices[:, :-1]  # an item listed twice counts once
        entries = (self.log_v[indices].to(new.dtype) - costs / self.reg).masked_fill_(again, -math.inf)
        weight, keep = late_rows(entries, self.scale), ~again
        if not recognise:
            return SparseRows.from_pairs(
                row[keep], indices[keep], weight[keep], (len(new), self.n)
            ).to_torch()
        near = (costs <= 1e-4 * (1 + costs.amax(dim=1, keepdim=True))).nonzero()
        candidates = torch.stack([near[:, 0], indices[near[:, 0], near[:, 1]]], dim=1)
        known, position = equal_pairs(new, self.features, candidates, self.cost)
        keep[known] = False
        fitted = self._chosen(position)
        return SparseRows.from_pairs(
            torch.cat([row[keep], known[fitted.row_of_entry()]]),
            torch.cat([indices[keep], fitted.column.long()]),
            torch.cat([weight[keep], fitted.values]),
            (len(new), self.n),
        ).to_torch()

    def save(self, path: str | Path) -> None:
        """Write features, potentials and the graph to a file that needs no pickle; :func:`load_plan` reads it.

        Parameters
        ----------
        path : str or Path
            Replaced at once, when everything is written.
        """
        write_plan(
            path, "graph", self, k=self.k, n_repaired=self.n_repaired, repaired_mass=self.repaired_mass,
            start=self.entries.start, column=self.entries.column, values=self.entries.values,
        )  # fmt: skip

    @classmethod
    def from_file(cls, file: PlanFile) -> GraphPlan:
        """The plan that a file of kind "graph" holds."""
        prepared, potentials, scale, diagonal = file.balanced_set()
        if prepared.preparation is None:
            raise file.wrong("a neighbour graph has features, not costs")
        n, dtype = len(prepared.rows), prepared.rows.dtype
        values = file.floats("values", (None,), np.dtype(str(dtype).removeprefix("torch.")))
        column = file.positions("column", (len(values),), n - 1)
        start = file.positions("start", (n + 1,), len(values)).long()
        entries = SparseRows(start, column, values, (n, n))
        if int(start[0]) != 0 or int(start[-1]) != len(values) or bool((entries.lengths() < 0).any()):
            raise file.wrong("the rows of its graph do not follow one another")
        keys = entries.keys()
        if bool((keys[1:] <= keys[:-1]).any()) or bool((entries.row_of_entry() == column).any()):
            raise file.wrong("the entries of its graph are not in order")
        repaired = file.count("n_repaired", most=len(values)), file.number("repaired_mass", least=0)
        k = file.count("k", least=1, most=n - 1)
        return cls(prepared, potentials, entries, k=k, scale=scale, diagonal=diagonal, repaired=repaired)

    def _chosen(self, index: Tensor) -> SparseRows:
        """Rows of W, diagonal included."""
        return self.entries.select(index).with_entries(index, self.diagonal)

    def _lists_of(self, new: Tensor, neighbours: Tensor | np.ndarray | None) -> Tensor:
        """Fitted items to match, in the order of their positions, shape (m, k)."""
        function = "GraphPlan.transform"
        if neighbours is None:
            return nearest_rows(new, self.features, self.k, self.cost).indices.sort(dim=1).values
        lists = as_lists(neighbours, len(new), self.n, function=function)
        if bool((lists < 0).any()):
            raise ArgumentError(f"The 'neighbours' parameter of {function} must not hold negative positions.")
        return lists.sort(dim=1).values
