r"""The kernel of a neighbour graph: entries survive where one item is among the ``k`` nearest of the other.

The plan

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
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bpa import memory
from bpa.kernels._large import LargeKernel
from bpa.kernels._recipe import PlanRequest
from bpa.kernels._rows import pair_costs
from bpa.solvers._kernel import is_exponential_safe

__all__ = ["GRAPH", "GraphKernel", "csr_tensor", "neighbour_graph"]


class GraphKernel(LargeKernel):
    """The kernel of a symmetric graph: row starts (n + 1), columns and log K of its entries, without the diagonal."""

    def __init__(self, crow: Tensor, col: Tensor, log_kernel: Tensor) -> None:
        super().__init__(len(crow) - 1, log_kernel.device)
        self.crow, self.col, self.log_kernel = crow, col, log_kernel
        self._size = crow[1:] - crow[:-1]
        self._row = torch.arange(self.n, dtype=col.dtype, device=col.device).repeat_interleave(self._size)
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

    def plan(self, log_u: Tensor, log_v: Tensor | None = None) -> Tensor:
        """Entries of diag(u) K diag(v); v = u where it is left out."""
        return self._log_plan(log_u, log_v).exp_()

    def _log_plan(self, log_u: Tensor, log_v: Tensor | None = None) -> Tensor:
        u = log_u.to(self.log_kernel.dtype)
        v = u if log_v is None else log_v.to(self.log_kernel.dtype)
        return (u[self._row] + v[self.col]).add_(self.log_kernel)  # u and v first: symmetric to the last bit

    def _row_maximum(self, values: Tensor) -> Tensor:
        if values.device.type == "cpu":  # ten times faster than torch.segment_reduce
            return torch.from_numpy(np.maximum.reduceat(values.numpy(), self.crow[:-1].numpy()))
        return torch.segment_reduce(values, "max", lengths=self._size)

    def _matrix(self, values: Tensor) -> Tensor:
        # 32-bit indices: products with them are five times faster
        return csr_tensor(self.crow.int(), self.col, values, (self.n, self.n))


def neighbour_graph(
    features: Tensor, lists: Tensor, cost: str, reg: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Symmetrise neighbour lists, add the tour, and return crow, col, log K and which entries only the tour gave."""
    n = len(features)
    own = torch.arange(n, device=lists.device)[:, None].expand_as(lists)
    is_pair = (lists >= 0) & (lists != own)
    own, lists = own[is_pair], lists[is_pair]
    key = torch.unique(torch.minimum(own, lists) * n + torch.maximum(own, lists))
    del own, lists, is_pair
    costs = pair_costs(features, key // n, features, key % n, cost)
    tour_key = _tour(n, key // n, key % n, costs)
    place = torch.searchsorted(key, tour_key).clamp_(max=max(len(key) - 1, 0))
    tour_key = tour_key[key[place] != tour_key] if len(key) else tour_key
    costs = torch.cat([costs, pair_costs(features, tour_key // n, features, tour_key % n, cost)])
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


def csr_tensor(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A tensor of layout CSR, unchecked."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(crow, col, values, shape, check_invariants=False)


class _Graph:
    """Entry of :class:`GraphKernel`."""

    name = "graph"

    def why_not(self, request: PlanRequest) -> str | None:
        """None where a neighbour graph was asked for and fits, else the reason."""
        if request.neighbours is None:
            return "all pairs were asked for, not those of a neighbour graph"
        if request.n < 3:
            return "fewer than three items have no neighbour graph"
        needed = memory.estimate_graph_plan(
            request.n, request.d, k=request.neighbours, dtype=request.dtype
        ).total
        if request.budget is not None and needed > request.budget:
            allowed = memory.format_bytes(request.budget)
            return f"the graph needs {memory.format_bytes(needed)}, and {allowed} are allowed"
        return None


GRAPH = _Graph()
