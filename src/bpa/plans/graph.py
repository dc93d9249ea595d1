r"""Sparse plans: the balanced plan on a k-nearest-neighbour kernel, with rows as CSR.

Entries of the kernel survive where one item is among the ``k`` nearest of the other; the plan

.. math:: P_{ij} = u_i K_{ij} u_j, \qquad (i, j) \in E, \qquad \textstyle\sum_j P_{ij} = 1

is balanced on that graph, in O(n·k) memory and time an iteration, to the same tolerance as the dense one.

**When it exists.** A symmetric kernel with zero diagonal can be scaled to a doubly stochastic matrix if its support
holds a fractional perfect matching of the items with one another, and its scaling is positive and unique if the
matrix is fully indecomposable (Sinkhorn and Knopp 1967, Csima and Datta 1972). A neighbour graph need not be: forty
items whose neighbours are the same ten hubs cannot all be matched. So a *tour* is added: one cycle through all items
and the two chords (0, 2), (1, 3) of it. That suffices. Number the items along the cycle and let σ(i) = i + 1 be its
perfect matching; an edge (i, j) is used by some perfect matching if and only if the arc i → j − 1 lies on a cycle of
the digraph that has an arc a → b for every edge (a, b + 1). The reverse edges of the tour give the arcs a → a − 2,
which connect all items when n is odd, and the odd and the even ones among themselves when n is even; the chords give
0 → 1 and 1 → 2, which connect these two. The digraph is strongly connected, hence the matrix fully indecomposable,
whatever other edges there are. The tour visits items in the order in which their neighbour graph
grows together, so that its edges are short, and carries the kernel's true values.

**When it is a good approximation** of the dense plan: when a row's mass lies within its neighbours, that is at small
``reg``. At large ``reg`` most of the dense plan's mass is in its tail, and the sparse plan is another transform:
the explanation page on speed has the distances measured between the two.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bpa import memory
from bpa._checks import check_choice, check_count, check_positive
from bpa.errors import ArgumentError, ConvergenceWarning, ShapeError
from bpa.plans.dense import _as_set, _compute_dtype, _equal_pairs, _Gram, _positions, _prepare, _spans
from bpa.solvers import is_exponential_safe, symmetrise

__all__ = ["GraphPlan", "Neighbours", "SparseReport", "nearest_neighbours"]

_ROWS = 512
_COLUMNS = 32768
_GROUPS = 16


class Neighbours(NamedTuple):
    """The nearest others of every item: ``indices`` and ``costs``, each (m, k), nearest first."""

    indices: Tensor
    costs: Tensor


@dataclass(frozen=True)
class SparseReport:
    """How a sparse plan was found.

    Attributes
    ----------
    n_iter : int
        Iterations of the symmetric solver.
    marginal_error : float
        Largest deviation of a row sum of the plan from one.
    converged : bool
        Whether the tolerance was reached.
    n_entries : int
        Entries of the kernel, both directions counted.
    n_repaired : int
        Entries that the feasibility tour added to the neighbour graph.
    repaired_mass : float
        Share of the plan that lies on them.
    bytes_estimated : int
        The memory planner's bound, beyond the input.
    """

    n_iter: int
    marginal_error: float
    converged: bool
    n_entries: int
    n_repaired: int
    repaired_mass: float
    bytes_estimated: int


def nearest_neighbours(
    x: Tensor | np.ndarray,
    k: int,
    *,
    y: Tensor | np.ndarray | None = None,
    cost: Literal["cosine", "sqeuclidean"] = "cosine",
) -> Neighbours:
    """Exact nearest neighbours by blocks of the Gram matrix, in O(n·(d + k)) memory.

    Parameters
    ----------
    x : Tensor or ndarray, shape (n, d)
        The set.
    k : int
        Neighbours of each item.
    y : Tensor or ndarray, shape (m, d), optional
        Items that ask; where it is left out, the set asks itself and no item is its own neighbour.
    cost : {"cosine", "sqeuclidean"}
        What "near" means.

    Returns
    -------
    Neighbours
        ``indices`` int64 and ``costs``, each (m, k), nearest first.

    Examples
    --------
    >>> import torch
    >>> nearest_neighbours(torch.tensor([[0.0], [1.0], [3.0]]), 1, cost="sqeuclidean").indices.flatten()
    tensor([1, 0, 1])
    """
    function = "nearest_neighbours"
    x = _as_set(x, function)
    check_choice(cost, ("cosine", "sqeuclidean"), argument="cost", function=function)
    check_count(k, argument="k", function=function)
    dtype = _compute_dtype(x)
    features, centre = _prepare(x, cost, dtype)
    asking = (
        features if y is None else _prepare(_as_set(y, function, minimum=1), cost, dtype, centre=centre)[0]
    )
    most = len(features) - (y is None)
    if k > most:
        raise ArgumentError(
            f"The 'k' parameter of {function} must be at most {most} for {len(x)} items. Got {k}."
        )
    return _nearest(asking, features, k, cost, itself=y is None)


def _nearest(asking: Tensor, features: Tensor, k: int, cost: str, *, itself: bool) -> Neighbours:
    gram = _Gram(features, cost, 1.0, _ROWS)
    offset = gram.offset.to(features.dtype)
    asking_offset = _Gram(asking, cost, 1.0, _ROWS).offset.to(features.dtype)
    m = len(asking)
    indices = torch.empty(m, k, dtype=torch.int64, device=features.device)
    costs = asking.new_empty(m, k)
    width = min(_COLUMNS, len(features))
    buffer = asking.new_empty(min(_ROWS, m) * width)
    for rows in _spans(m, _ROWS):
        height = rows.stop - rows.start
        best = asking.new_full((height, k), -math.inf)
        where = torch.zeros(height, k, dtype=torch.int64, device=features.device)
        for columns in _spans(len(features), width):
            span = columns.stop - columns.start
            tile = buffer[: height * span].view(height, span)
            gram.product(asking[rows], features[columns], tile)
            if cost != "cosine":
                tile.sub_(offset[columns])  # the item's own offset does not change its order
            if itself:
                own = torch.arange(rows.start, rows.stop, device=features.device)
                inside = ((own >= columns.start) & (own < columns.stop)).nonzero()[:, 0]
                tile[inside, own[inside] - columns.start] = -math.inf
            best, where = _merge_largest(best, where, tile, columns.start)
        indices[rows] = where
        shift = offset[0] if cost == "cosine" else 0.0
        costs[rows] = (asking_offset[rows][:, None] + shift - best).clamp_(min=0)
    return Neighbours(indices, costs)


def _merge_largest(best: Tensor, where: Tensor, tile: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Merge the largest entries of a tile into the ``k`` largest so far, both (rows, k), largest first.

    The k largest entries lie in the k groups of columns with the largest maxima, and in no group whose maximum is
    below the k-th largest so far: most entries are only looked at once.
    """
    k = best.shape[1]
    height, span = tile.shape
    if span % _GROUPS == 0 and span > 4 * _GROUPS * k:
        n_groups = span // _GROUPS
        top = tile.view(height, _GROUPS, n_groups).amax(dim=1)
        promising = min(k, int((top > best[:, -1:]).sum(dim=1).max()))
        if promising == 0:
            return best, where
        group = top.topk(promising, dim=1, sorted=False).indices
        strides = torch.arange(0, span, n_groups, device=tile.device)
        candidate = (group[:, :, None] + strides).flatten(1)
        value = tile.gather(1, candidate)
        candidate += start
    else:
        value = tile
        candidate = torch.arange(start, start + span, device=tile.device).expand(height, -1)
    value, candidate = torch.cat([best, value], dim=1), torch.cat([where, candidate], dim=1)
    best, order = value.topk(k, dim=1)
    return best, candidate.gather(1, order)


class GraphPlan:
    r"""The balanced affinities of one set on its neighbour graph. Made by :meth:`fit`.

    Attributes
    ----------
    features : Tensor, shape (n, d)
        Unit rows (cosine cost) or rows moved by the set's mean.
    crow, col : Tensor, int64
        Row starts (n + 1) and sorted column indices of the graph, without the diagonal.
    values : Tensor
        W at those entries.
    log_u : Tensor, shape (n,), float64
        Potential; the plan is exp(log_u_i + log_u_j − C_ij/reg) on the graph.
    scale : float
        What the plan is divided by.
    report : SparseReport
        How the plan was found.

    Examples
    --------
    >>> import torch
    >>> x = torch.randn(300, 16, generator=torch.Generator().manual_seed(0))
    >>> sparse = GraphPlan.fit(x, reg=0.1, k=20)
    >>> sparse.rows([7]).to_dense().shape, sparse.report.converged
    (torch.Size([1, 300]), True)
    """

    def __init__(
        self,
        features: Tensor,
        crow: Tensor,
        col: Tensor,
        values: Tensor,
        log_u: Tensor,
        *,
        reg: float,
        cost: str,
        k: int,
        scale: float,
        diagonal: float,
        centre: Tensor | None,
        report: SparseReport,
    ) -> None:
        self.features = features
        self.crow = crow
        self.col = col
        self.values = values
        self.log_u = log_u
        self.reg = reg
        self.cost = cost
        self.k = k
        self.scale = scale
        self.diagonal = diagonal
        self.report = report
        self._centre = centre
        self._complete: Tensor | None = None

    @classmethod
    def fit(
        cls,
        x: Tensor | np.ndarray,
        *,
        reg: float,
        k: int = 64,
        neighbours: Tensor | np.ndarray | None = None,
        cost: Literal["cosine", "sqeuclidean"] = "cosine",
        tol: float = 1e-3,
        max_iter: int = 1000,
        scale: Literal["max"] | None = "max",
        diagonal: float = 1.0,
        budget: str | int | None = None,
    ) -> GraphPlan:
        """Balance the kernel of a set's neighbour graph.

        Parameters
        ----------
        x : Tensor or ndarray, shape (n, d)
            Features of one set, n ≥ 3.
        reg : float
            Entropy weight.
        k : int
            Neighbours of each item (fewer where the set is small); the graph is their union in both directions.
            With k ≥ n − 1 the plan is the dense one.
        neighbours : Tensor or ndarray of int, shape (n, k'), optional
            Neighbour lists from elsewhere (faiss, pynndescent, ...), exact or not; then ``k`` is ignored. Entries
            that are negative or name the item itself are skipped. Costs are computed from ``x``.
        cost : {"cosine", "sqeuclidean"}
            What differs between two items.
        tol : float
            Largest marginal error allowed.
        max_iter : int
            Iterations of the symmetric solver, at most.
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
        check_positive(reg, argument="reg", function=function)
        check_positive(tol, argument="tol", function=function)
        check_count(k, argument="k", function=function)
        check_count(max_iter, argument="max_iter", function=function)
        check_choice(cost, ("cosine", "sqeuclidean"), argument="cost", function=function)
        check_choice(scale, ("max", None), argument="scale", function=function)
        x = _as_set(x, function, minimum=3)
        n, d = x.shape
        dtype = _compute_dtype(x)
        lists = None if neighbours is None else _as_lists(neighbours, n, function)
        k = min(k, n - 1) if lists is None else lists.shape[1]
        estimate = memory.estimate_sparse(n, d, k=k, dtype=dtype)
        memory.check(estimate, budget, way_out="Lower k, or raise the budget.")

        features, centre = _prepare(x, cost, dtype)
        if lists is None:
            lists = _nearest(features, features, k, cost, itself=True).indices
        crow, col, log_kernel, is_tour = _neighbour_graph(features, lists, cost, reg)
        del lists
        kernel = _CSRKernel(crow, col, log_kernel)
        found = symmetrise(
            kernel, torch.zeros(n, dtype=torch.float64, device=x.device), tol=tol, max_iter=max_iter
        )
        done, error = int(found.n_iter), float(found.marginal_error)
        if not error <= tol:
            warnings.warn(
                f"GraphPlan.fit reached a marginal error of {error:.1e} after {done} iterations, not "
                f"tol={tol:.1e}. Raise k, reg, tol or max_iter.",
                ConvergenceWarning,
                stacklevel=2,
            )
        values = kernel.plan(found.log_u)
        largest = float(values.max()) if scale == "max" else 1.0
        report = SparseReport(
            n_iter=done,
            marginal_error=error,
            converged=error <= tol,
            n_entries=len(col),
            n_repaired=int(is_tour.sum()),
            repaired_mass=float(values[is_tour].sum(dtype=torch.float64)) / n,
            bytes_estimated=estimate.total,
        )
        return cls(
            features, crow, col, values.div_(largest), found.log_u, reg=float(reg), cost=cost, k=k, scale=largest,
            diagonal=float(diagonal), centre=centre, report=report,
        )  # fmt: skip

    @property
    def n(self) -> int:
        """Number of fitted items."""
        return self.features.shape[0]

    def matrix(self) -> Tensor:
        """All of W, diagonal included.

        Returns
        -------
        Tensor, shape (n, n), layout CSR
        """
        if self._complete is None:
            self._complete = self._with_diagonal(torch.arange(self.n, device=self.col.device))
        return self._complete

    def rows(self, index: Sequence[int] | Tensor | np.ndarray) -> Tensor:
        """Rows of W of chosen items.

        Parameters
        ----------
        index : sequence of int, shape (m,)
            Positions in the fitted set.

        Returns
        -------
        Tensor, shape (m, n), layout CSR
        """
        return self._with_diagonal(self._index(index, "rows"))

    def distances(
        self,
        i: Sequence[int] | Tensor | np.ndarray,
        j: Sequence[int] | Tensor | np.ndarray | None = None,
        *,
        metric: Literal["euclidean", "sqeuclidean", "cosine"] = "euclidean",
    ) -> Tensor:
        """Distances between W-rows of chosen items, from one product of sparse matrices.

        Parameters
        ----------
        i : sequence of int, shape (m,)
            Positions in the fitted set.
        j : sequence of int, shape (p,), optional
            The other side; every item where it is left out.
        metric : {"euclidean", "sqeuclidean", "cosine"}
            Distance of the rows, its square, or one minus their cosine.

        Returns
        -------
        Tensor, shape (m, p)
            Exactly 0 between an item and itself. Rows that share no column are at the distance that their lengths
            alone give.
        """
        function = "GraphPlan.distances"
        check_choice(metric, ("euclidean", "sqeuclidean", "cosine"), argument="metric", function=function)
        left = self._index(i, "distances")
        right = torch.arange(self.n, device=left.device) if j is None else self._index(j, "distances")
        a, b = self._with_diagonal(left), self.matrix() if j is None else self._with_diagonal(right)
        transposed = (
            b if j is None else b.to_sparse(layout=torch.sparse_coo).t().to_sparse(layout=torch.sparse_csr)
        )  # all of W is symmetric
        out: Tensor = torch.sparse.mm(a, transposed).to_dense()
        a_squared, b_squared = _squared_lengths(a), _squared_lengths(b)
        if metric == "cosine":
            out.div_((a_squared[:, None] * b_squared).sqrt_()).neg_().add_(1)
        else:
            out.mul_(-2).add_(a_squared[:, None]).add_(b_squared)
        out.clamp_(min=0).masked_fill_(left[:, None] == right, 0)
        return out.sqrt_() if metric == "euclidean" else out

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
            Entry (q, j) is exp(f_q + log u_j − c_qj/reg) / scale on the list, f_q such that the row of the plan sums
            to one.
        """
        function = "GraphPlan.transform"
        x_new = _as_set(x_new, function, minimum=1)
        if x_new.shape[1] != self.features.shape[1]:
            raise ShapeError(
                f"The 'x_new' parameter of {function} must have {self.features.shape[1]} features, as the fitted set. "
                f"Got {x_new.shape[1]}."
            )
        new, _ = _prepare(x_new, self.cost, self.features.dtype, centre=self._centre)
        if neighbours is None:
            indices = _nearest(new, self.features, self.k, self.cost, itself=False).indices
        else:
            indices = _as_lists(neighbours, self.n, function, rows=len(new))
            if bool((indices < 0).any()):
                raise ArgumentError(
                    f"The 'neighbours' parameter of {function} must not hold negative positions."
                )
        indices = indices.sort(dim=1).values
        again = torch.zeros_like(indices, dtype=torch.bool)
        again[:, 1:] = indices[:, 1:] == indices[:, :-1]  # an item listed twice counts once
        costs = _list_costs(new, self.features, indices, self.cost)
        logits = (self.log_u[indices].to(new.dtype) - costs / self.reg).masked_fill_(again, -math.inf)
        weight = torch.softmax(logits, dim=1) / self.scale
        row = torch.arange(len(new), device=indices.device)[:, None].expand_as(indices)
        keep = ~again
        if recognise:
            near = (costs <= 1e-4 * (1 + costs.amax(dim=1, keepdim=True))).nonzero()
            known, position = _equal_pairs(new, self.features, _named(near, indices))
            keep[known] = False
            fitted_rows = self._with_diagonal(position).to_sparse(layout=torch.sparse_coo)
        row, col, value = row[keep], indices[keep], weight[keep]
        if recognise:
            row = torch.cat([row, known[fitted_rows.indices()[0]]])
            col = torch.cat([col, fitted_rows.indices()[1]])
            value = torch.cat([value, fitted_rows.values()])
        return _csr(row, col, value, (len(new), self.n))

    def _with_diagonal(self, index: Tensor) -> Tensor:
        """Rows of W, diagonal included, as CSR."""
        start, size = self.crow[index], self.crow[index + 1] - self.crow[index]
        row = torch.arange(len(index), device=index.device).repeat_interleave(size)
        first = size.cumsum(0) - size
        entry = torch.arange(len(row), device=index.device) - first[row] + start[row]
        own = torch.arange(len(index), device=index.device)
        return _csr(
            torch.cat([row, own]),
            torch.cat([self.col[entry].long(), index]),
            torch.cat([self.values[entry], self.values.new_full((len(index),), self.diagonal)]),
            (len(index), self.n),
        )

    def _index(self, index: Sequence[int] | Tensor | np.ndarray, function: str) -> Tensor:
        return _positions(index, self.n, f"GraphPlan.{function}", self.features.device)


class _CSRKernel:
    """The kernel of a symmetric graph, as the symmetric solver sees it."""

    def __init__(self, crow: Tensor, col: Tensor, log_kernel: Tensor) -> None:
        self.crow, self.col, self.log_kernel = crow, col, log_kernel
        self._size = crow[1:] - crow[:-1]
        self._row = torch.arange(len(crow) - 1, dtype=col.dtype, device=col.device).repeat_interleave(
            self._size
        )
        spread = float(log_kernel.max() - log_kernel.min())
        self._shift = float(log_kernel.max())
        self._safe = is_exponential_safe(spread, log_kernel.dtype)
        self._kernel = self._matrix((log_kernel - self._shift).exp_()) if self._safe else None

    def log_apply(self, log_u: Tensor) -> Tensor:
        if self._kernel is not None:
            top = log_u.max()
            product = self._kernel @ (log_u - top).exp().to(self.log_kernel.dtype)
            result = product.to(log_u.dtype).log() + (top + self._shift)
            if bool(result.isfinite().all()):
                return result
        logits = self.log_kernel + log_u.to(self.log_kernel.dtype)[self.col]
        top = self._row_maximum(logits)
        total = torch.segment_reduce(logits.sub_(top[self._row]).exp_(), "sum", lengths=self._size)
        return (total.log() + top).to(log_u.dtype)

    def plan_operator(self, log_u: Tensor) -> Callable[[Tensor], Tensor]:
        plan = self._matrix(self.plan(log_u))
        return lambda w: (plan @ w.to(plan.dtype)).to(w.dtype)

    def strongest_partner(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        logits = self._log_plan(log_u)
        top = self._row_maximum(logits)
        entry = (logits == top[self._row]).nonzero()[:, 0]
        row = self._row[entry]
        first = torch.ones_like(row, dtype=torch.bool)
        first[1:] = row[1:] != row[:-1]
        return self.col[entry[first]].long(), top.to(log_u.dtype)

    def plan(self, log_u: Tensor) -> Tensor:
        """Entries of diag(u) K diag(u)."""
        return self._log_plan(log_u).exp_()

    def _log_plan(self, log_u: Tensor) -> Tensor:
        u = log_u.to(self.log_kernel.dtype)
        return (u[self._row] + u[self.col]).add_(self.log_kernel)  # u first: the same number on both sides

    def _row_maximum(self, values: Tensor) -> Tensor:
        if values.device.type == "cpu":  # ten times faster than torch.segment_reduce
            return torch.from_numpy(np.maximum.reduceat(values.numpy(), self.crow[:-1].numpy()))
        return torch.segment_reduce(values, "max", lengths=self._size)

    def _matrix(self, values: Tensor) -> Tensor:
        n = len(self.crow) - 1
        # 32-bit indices: products with them are five times faster
        return _csr_tensor(self.crow.int(), self.col, values, (n, n))


def _neighbour_graph(
    features: Tensor, lists: Tensor, cost: str, reg: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Symmetrise neighbour lists, add the tour, and return crow, col, log K and which entries only the tour gave."""
    n = len(features)
    own = torch.arange(n, device=lists.device)[:, None].expand_as(lists)
    is_pair = (lists >= 0) & (lists != own)
    own, lists = own[is_pair], lists[is_pair]
    key = torch.unique(torch.minimum(own, lists) * n + torch.maximum(own, lists))
    del own, lists, is_pair
    costs = _pair_costs(features, key // n, features, key % n, cost)
    tour_key = _tour(n, key // n, key % n, costs)
    place = torch.searchsorted(key, tour_key).clamp_(max=max(len(key) - 1, 0))
    tour_key = tour_key[key[place] != tour_key] if len(key) else tour_key
    costs = torch.cat([costs, _pair_costs(features, tour_key // n, features, tour_key % n, cost)])
    is_tour = torch.zeros(len(costs), dtype=torch.bool, device=costs.device)
    is_tour[len(key) :] = True
    key = torch.cat([key, tour_key])
    both = torch.cat([key, key % n * n + key // n])  # (i, j) and (j, i)
    both, order = both.sort()
    order %= len(key)
    size = torch.bincount(both // n, minlength=n)
    crow = torch.cat([size.new_zeros(1), size.cumsum(0)])
    return crow, (both % n).int(), costs[order].div_(-reg), is_tour[order]


def _tour(n: int, first: Tensor, second: Tensor, costs: Tensor) -> Tensor:
    """Keys of a cycle through all items and two chords of it; see the module's docstring.

    Items are ordered as their graph grows together (Borůvka): in every round each component joins the component that
    its cheapest outgoing edge leads to, and components that joined early stay side by side.
    """
    order = costs.argsort(stable=True)  # one strict order of all edges: no cycles of equal costs
    first, second = first[order], second[order]
    component = torch.arange(n, device=costs.device)
    history = [component]
    while len(first):
        a, b = component[first], component[second]
        leads_out = a != b
        first, second, a, b = first[leads_out], second[leads_out], a[leads_out], b[leads_out]
        if not len(first):
            break
        rank = torch.arange(len(a), device=a.device)
        cheapest = torch.full((n,), len(a), dtype=torch.int64, device=a.device)
        cheapest.scatter_reduce_(0, a, rank, "amin").scatter_reduce_(0, b, rank, "amin")
        root = (cheapest < len(a)).nonzero()[:, 0]
        edge = cheapest[root]
        parent = torch.arange(n, device=a.device)
        parent[root] = torch.where(a[edge] == root, b[edge], a[edge])
        mutual = (parent[parent] == torch.arange(n, device=a.device)) & (
            parent > torch.arange(n, device=a.device)
        )
        parent[mutual] = mutual.nonzero()[:, 0]  # of two components that chose each other one stays
        while True:
            above = parent[parent]
            if torch.equal(above, parent):
                break
            parent = above
        component = parent[component]
        history.append(component)
    walk = torch.from_numpy(np.lexsort([labels.numpy(force=True) for labels in history])).to(costs.device)
    follows = walk.roll(-1)
    chord_from, chord_to = walk[: min(2, n - 2)], walk[2:4]
    one = torch.cat([walk, chord_from])
    other = torch.cat([follows, chord_to])
    key: Tensor = torch.unique(torch.minimum(one, other) * n + torch.maximum(one, other))
    return key


def _pair_costs(left: Tensor, first: Tensor, right: Tensor, second: Tensor, cost: str) -> Tensor:
    """Costs of the pairs (left[first], right[second])."""
    out = left.new_empty(len(first))
    for part in _spans(len(first), max(1, 2**22 // left.shape[1])):
        a, b = left[first[part]], right[second[part]]
        out[part] = 1 - torch.linalg.vecdot(a, b) if cost == "cosine" else (a - b).square_().sum(dim=1)
    return out.clamp_(min=0)


def _list_costs(new: Tensor, fitted: Tensor, indices: Tensor, cost: str) -> Tensor:
    """Costs between every row of ``new`` and the fitted rows on its list, (m, k)."""
    row = torch.arange(len(new), device=new.device)[:, None].expand_as(indices)
    return _pair_costs(new, row.flatten(), fitted, indices.flatten(), cost).view(indices.shape)


def _named(near: Tensor, indices: Tensor) -> Tensor:
    """Pairs (row, place on its list) as pairs (row, item)."""
    return torch.stack([near[:, 0], indices[near[:, 0], near[:, 1]]], dim=1)


def _csr(row: Tensor, col: Tensor, value: Tensor, shape: tuple[int, int]) -> Tensor:
    """A CSR tensor with sorted columns from entries in any order, none twice."""
    order = (row * shape[1] + col).argsort()
    size = torch.bincount(row, minlength=shape[0])
    crow = torch.cat([size.new_zeros(1), size.cumsum(0)])
    return _csr_tensor(crow, col[order], value[order], shape)


def _csr_tensor(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(crow, col, values, shape, check_invariants=False)


def _squared_lengths(matrix: Tensor) -> Tensor:
    values, crow = matrix.values(), matrix.crow_indices()
    squared: Tensor = torch.segment_reduce(values.square(), "sum", lengths=crow[1:] - crow[:-1])
    return squared


def _as_lists(lists: Tensor | np.ndarray, n: int, function: str, rows: int | None = None) -> Tensor:
    lists = torch.as_tensor(lists)
    rows = n if rows is None else rows
    if (
        lists.dim() != 2
        or lists.shape[0] != rows
        or lists.dtype.is_floating_point
        or lists.dtype == torch.bool
    ):
        raise ShapeError(
            f"The 'neighbours' parameter of {function} must hold whole numbers of shape ({rows}, k). Got "
            f"{lists.dtype}, shape {tuple(lists.shape)}."
        )
    lists = lists.long()
    if lists.numel() and int(lists.max()) >= n:
        raise ArgumentError(
            f"The 'neighbours' parameter of {function} names item {int(lists.max())}; there are {n:,} items."
        )
    return lists
