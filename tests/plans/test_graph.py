"""Plans on a graph against the dense plan, against dense linear algebra on the same graph, and on bad graphs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bpa.errors import ArgumentError, ConvergenceWarning, MemoryBudgetError, ShapeError
from bpa.kernels._graph import GRAPH
from bpa.plans import DensePlan, GraphPlan, nearest_neighbours
from bpa.solvers import Converged, Sweeps


def clusters(n: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(max(2, n // 12), d, generator=generator, dtype=torch.float64)
    label = torch.randint(len(centres), (n,), generator=generator)
    noise = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return (centres[label] + 0.6 * noise).to(dtype)


@pytest.mark.parametrize("reg", [0.05, 0.1, 1.0])
@pytest.mark.parametrize("cost", ["cosine", "sqeuclidean"])
def test_with_full_support_it_is_the_dense_plan(reg: float, cost: str) -> None:
    x = clusters(60, 8)
    reg = reg if cost == "cosine" else 20 * reg
    sparse = GraphPlan.fit(x, reg=reg, k=59, cost=cost, solver=Converged(1e-10, 1000))
    dense = DensePlan.fit(x, reg=reg, cost=cost, solver=Converged(1e-10)).affinities()
    assert len(sparse.entries.column) == 60 * 59
    assert sparse.n_repaired == 0
    np.testing.assert_allclose(sparse.affinities().to_dense().numpy(), dense.numpy(), atol=1e-8)


@pytest.mark.parametrize("n", [3, 4, 5, 8, 9])
def test_the_smallest_sets_work(n: int) -> None:
    sparse = GraphPlan.fit(
        clusters(n, 4), reg=0.2, k=1, solver=Converged(1e-8, 1000), scale=None, diagonal=0.0
    )
    plan = sparse.affinities().to_dense()
    assert bool(sparse.convergence.converged)
    np.testing.assert_allclose(plan.sum(dim=1).numpy(), 1, atol=1e-7)
    np.testing.assert_array_equal(plan.numpy(), plan.T.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reg", [0.01, 0.05, 0.3])
def test_the_plan_is_symmetric_and_balanced_on_its_graph(reg: float, dtype: torch.dtype) -> None:
    x = clusters(300, 8, dtype=dtype)
    sparse = GraphPlan.fit(x, reg=reg, k=10, scale=None, diagonal=0.0, solver=Converged(1e-4, 1000))
    plan = sparse.affinities().to_dense().double()
    assert bool(sparse.convergence.converged)
    assert (plan.sum(dim=1) - 1).abs().max() <= 1.2e-4
    assert torch.equal(plan, plan.T)
    listed = torch.zeros(300, 300, dtype=torch.bool)
    listed.scatter_(1, nearest_neighbours(x, 10).indices, True)
    outside = (plan > 0) & ~(listed | listed.T)
    assert int(outside.sum()) <= sparse.n_repaired
    assert sparse.repaired_mass == pytest.approx(float(plan[outside].sum()) / 300, abs=1e-6)


def hub_graph(n_hubs: int, n_leaves: int) -> torch.Tensor:
    """Leaves that list only hubs: no balanced plan exists on it, |neighbours of the leaves| < |leaves|."""
    n = n_hubs + n_leaves
    lists = torch.arange(n_hubs).expand(n, -1).clone()
    own = torch.arange(n)[:, None]
    return torch.where(lists == own, (lists + 1) % n_hubs, lists)


@pytest.mark.parametrize(("n_hubs", "n_leaves"), [(3, 40), (4, 41), (5, 6)])
def test_a_graph_without_a_balanced_plan_is_repaired(n_hubs: int, n_leaves: int) -> None:
    x = torch.randn(n_hubs + n_leaves, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lists = hub_graph(n_hubs, n_leaves)
    sparse = GraphPlan.fit(
        x, reg=0.5, neighbours=lists, scale=None, diagonal=0.0, solver=Converged(1e-6, 1000)
    )
    assert bool(sparse.convergence.converged)
    plan = sparse.affinities().to_dense()
    np.testing.assert_allclose(plan.sum(dim=1).numpy(), 1, atol=1e-5)
    # what the leaves cannot place on hubs must lie on repaired entries
    assert sparse.repaired_mass >= (n_leaves - n_hubs) / (n_hubs + n_leaves) - 1e-5


@pytest.mark.parametrize("n", [6, 7, 12, 25])
def test_the_tour_alone_makes_every_entry_part_of_a_perfect_matching(n: int) -> None:
    """The proof of the module's docstring, checked by brute force: remove any row and column, a matching is left."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    from bpa.kernels._graph import _tour

    key = _tour(n, torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    support = np.zeros((n, n), dtype=int)
    support[key // n, key % n] = support[key % n, key // n] = 1
    assert support.trace() == 0
    for i in range(n):
        for j in range(n):  # fully indecomposable: also entries that are not there could be used
            rest = np.delete(np.delete(support, i, 0), j, 1)
            assert (maximum_bipartite_matching(csr_matrix(rest)) >= 0).all(), (i, j)


def test_the_tour_keeps_clusters_together() -> None:
    x = clusters(600, 16)
    sparse = GraphPlan.fit(x, reg=0.1, k=5)
    unit = sparse.features
    row, column = sparse.entries.row_of_entry(), sparse.entries.column.long()
    n_long = int((1 - (unit[row] * unit[column]).sum(dim=1) > 0.8).sum())
    assert n_long <= 2 * 55  # about one long step, both directions counted, between each of the 50 clusters


def test_lists_from_elsewhere_give_the_same_plan() -> None:
    x = clusters(200, 8)
    lists = nearest_neighbours(x, 12).indices.numpy()
    padded = np.concatenate([np.arange(200)[:, None], lists, np.full((200, 1), -1)], axis=1)
    own = GraphPlan.fit(x, reg=0.1, k=12)
    given = GraphPlan.fit(x, reg=0.1, neighbours=padded)
    np.testing.assert_array_equal(given.affinities().to_dense().numpy(), own.affinities().to_dense().numpy())


def test_rows_and_distances_are_those_of_the_matrix() -> None:
    x = clusters(120, 8)
    sparse = GraphPlan.fit(x, reg=0.1, k=10)
    w = sparse.affinities().to_dense().numpy()
    assert (np.diag(w) == 1).all()
    i, j = [5, 0, 119, -2], [7, 5, 11]
    np.testing.assert_array_equal(sparse.rows(i).to_dense().numpy(), w[i])
    difference = w[i][:, None] - w[j][None]
    np.testing.assert_allclose(sparse.distances(i, j).numpy(), np.linalg.norm(difference, axis=-1), atol=1e-7)
    everything = ((w[i][:, None] - w[None]) ** 2).sum(-1)
    np.testing.assert_allclose(sparse.distances(i, metric="sqeuclidean").numpy(), everything, atol=1e-12)
    cosine = 1 - w[i] @ w.T / np.linalg.norm(w[i], axis=1)[:, None] / np.linalg.norm(w, axis=1)
    np.testing.assert_allclose(sparse.distances(i, metric="cosine").numpy(), cosine, atol=1e-12)


@pytest.mark.parametrize("has_product", [True, False], ids=["torch's product", "our own"])
def test_distances_do_not_depend_on_who_multiplies(
    has_product: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bpa.plans._sparse._HAS_SPARSE_PRODUCT", has_product)
    sparse = GraphPlan.fit(clusters(90, 8), reg=0.1, k=6)
    w = sparse.affinities().to_dense()
    np.testing.assert_allclose(
        sparse.distances([3, 80]).numpy(), torch.cdist(w[[3, 80]], w).numpy(), atol=1e-7
    )


@pytest.mark.parametrize("k", [1, 4, 119])
def test_the_largest_entries_of_rows_are_those_of_the_matrix(k: int) -> None:
    sparse = GraphPlan.fit(clusters(120, 8), reg=0.1, k=5)
    off = sparse.affinities().to_dense().fill_diagonal_(0)
    values, indices = sparse.top_k(k)
    np.testing.assert_array_equal(values.numpy(), off.topk(k, dim=1).values.numpy())
    there = indices >= 0
    np.testing.assert_array_equal(off.gather(1, indices.clamp_min(0))[there].numpy(), values[there].numpy())
    assert torch.equal(there, values > 0)
    assert torch.equal(there.sum(dim=1), (off > 0).sum(dim=1).clamp(max=k))


def test_blocks_of_rows_are_the_matrix() -> None:
    sparse = GraphPlan.fit(clusters(50, 8), reg=0.1, k=5)
    pieces = [rows.to_dense() for _, rows in sparse.row_blocks(16)]
    np.testing.assert_array_equal(torch.cat(pieces).numpy(), sparse.affinities().to_dense().numpy())


@pytest.mark.parametrize("reg", ["auto", 0.1])
def test_centring_and_the_rule_are_those_of_the_dense_plan(reg: float | str) -> None:
    x, new = clusters(70, 8) + 2, clusters(5, 8, seed=7) + 2
    tight = Converged(1e-10, 1000)
    sparse = GraphPlan.fit(x, reg=reg, cost="centred-cosine", k=69, solver=tight)
    dense = DensePlan.fit(x, reg=reg, cost="centred-cosine", solver=tight)
    assert sparse.reg == dense.reg
    np.testing.assert_allclose(sparse.affinities().to_dense().numpy(), dense.affinities().numpy(), atol=1e-8)
    late = torch.cat([new, x[[3, 60]]])
    found = sparse.transform(late, neighbours=torch.arange(70).expand(7, -1)).to_dense()
    np.testing.assert_allclose(found.numpy(), dense.transform(late).numpy(), atol=1e-8)


def test_sweeps_give_the_published_plan_of_the_graph() -> None:
    x = clusters(60, 8)
    sparse = GraphPlan.fit(x, reg=0.1, k=59, solver=Sweeps(3))
    dense = DensePlan.fit(x, reg=0.1, solver=Sweeps(3))
    w = sparse.affinities().to_dense()
    assert (w - w.T).abs().max() > 1e-6  # so a mix-up of rows and columns would show
    np.testing.assert_allclose(w.numpy(), dense.affinities().numpy(), atol=1e-10)
    np.testing.assert_allclose(sparse.distances([5]).numpy(), dense.distances([5]).numpy(), atol=1e-7)
    new = clusters(4, 8, seed=2)
    found = sparse.transform(new, neighbours=torch.arange(60).expand(4, -1)).to_dense()
    np.testing.assert_allclose(found.numpy(), dense.transform(new).numpy(), atol=1e-9)
    assert float(sparse.convergence.marginal_error) == pytest.approx(float(dense.convergence.marginal_error))


def test_the_graph_kernel_says_why_not() -> None:
    request = SimpleNamespace(n=100, d=8, dtype=torch.float32, neighbours=5, budget=None)
    assert GRAPH.why_not(request) is None
    assert "all pairs" in GRAPH.why_not(SimpleNamespace(**{**vars(request), "neighbours": None}))
    assert "fewer than three" in GRAPH.why_not(SimpleNamespace(**{**vars(request), "n": 2}))
    assert "are allowed" in GRAPH.why_not(SimpleNamespace(**{**vars(request), "budget": 1000}))


def test_new_items_get_rows_and_fitted_items_their_own() -> None:
    x, new = clusters(150, 8), clusters(9, 8, seed=4)
    sparse = GraphPlan.fit(x, reg=0.1, k=10, solver=Converged(1e-8, 1000))
    rows = sparse.transform(torch.cat([new, x[[3, 3, 90]]])).to_dense()
    np.testing.assert_allclose(rows[9:].numpy(), sparse.rows([3, 3, 90]).to_dense().numpy(), atol=0)
    unit, asking = x / x.norm(dim=1, keepdim=True), new / new.norm(dim=1, keepdim=True)
    cost, indices = (1 - asking @ unit.T).topk(10, dim=1, largest=False)
    expected = torch.zeros(9, 150, dtype=torch.float64)
    expected.scatter_(1, indices, torch.softmax(sparse.log_u[indices] - cost / 0.1, dim=1) / sparse.scale)
    np.testing.assert_allclose(rows[:9].numpy(), expected.numpy(), atol=1e-12)
    given = sparse.transform(new, neighbours=torch.cat([indices, indices[:, :2]], dim=1)).to_dense()
    np.testing.assert_allclose(given.numpy(), expected.numpy(), atol=1e-12)


def test_it_nears_the_dense_plan_as_the_lists_grow_and_says_less_at_large_reg() -> None:
    x = clusters(400, 8)
    gap = {}
    for reg in (0.05, 1.0):
        dense = DensePlan.fit(x, reg=reg, scale=None, diagonal=0.0).affinities()
        for k in (5, 40, 200):
            plan = (
                GraphPlan.fit(x, reg=reg, k=k, scale=None, diagonal=0.0, solver=Converged(1e-6, 1000))
                .affinities()
                .to_dense()
            )
            gap[reg, k] = float((plan - dense).abs().sum(dim=1).mean()) / 2
    assert gap[0.05, 5] > gap[0.05, 40] > gap[0.05, 200]
    assert gap[0.05, 40] < 0.1
    assert gap[1.0, 40] > 0.5


def test_what_cannot_be_done_is_said() -> None:
    x = clusters(30, 4)
    with pytest.raises(ShapeError, match="n ≥ 3"):
        GraphPlan.fit(x[:2], reg=0.1)
    with pytest.raises(ShapeError, match="neighbours"):
        GraphPlan.fit(x, reg=0.1, neighbours=torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(ArgumentError, match="item 30"):
        GraphPlan.fit(x, reg=0.1, neighbours=torch.full((30, 2), 30))
    with pytest.raises(MemoryBudgetError, match="Lower k"):
        GraphPlan.fit(x, reg=0.1, budget="1MB")
    with pytest.warns(ConvergenceWarning, match="marginal error"):
        assert not GraphPlan.fit(x, reg=0.1, k=3, solver=Converged(1e-12, 2)).convergence.converged
    with pytest.raises(ShapeError, match="4 features"):
        GraphPlan.fit(x, reg=0.1, k=3).transform(torch.zeros(2, 5))
