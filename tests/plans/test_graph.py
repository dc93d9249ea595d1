"""Sparse plans against the dense plan, against dense linear algebra on the same graph, and against bad graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bpa.errors import ArgumentError, ConvergenceWarning, MemoryBudgetError, ShapeError
from bpa.plans.dense import DensePlan
from bpa.plans.graph import GraphPlan, nearest_neighbours


def clusters(n: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(max(2, n // 12), d, generator=generator, dtype=torch.float64)
    label = torch.randint(len(centres), (n,), generator=generator)
    noise = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return (centres[label] + 0.6 * noise).to(dtype)


@pytest.mark.parametrize("cost", ["cosine", "sqeuclidean"])
@pytest.mark.parametrize("k", [1, 7, 40])
def test_neighbours_are_those_of_a_full_sort(cost: str, k: int) -> None:
    x, y = clusters(150, 6), clusters(20, 6, seed=3)
    rows = x / x.norm(dim=1, keepdim=True) if cost == "cosine" else x
    asking = y / y.norm(dim=1, keepdim=True) if cost == "cosine" else y
    among = torch.cdist(rows, rows).square().fill_diagonal_(torch.inf) / (2 if cost == "cosine" else 1)
    new = torch.cdist(asking, rows).square() / (2 if cost == "cosine" else 1)
    for found, expected in (
        (nearest_neighbours(x, k, cost=cost), among),
        (nearest_neighbours(x, k, y=y, cost=cost), new),
    ):
        np.testing.assert_allclose(found.costs.numpy(), expected.sort(dim=1).values[:, :k].numpy(), atol=1e-9)
        np.testing.assert_allclose(expected.gather(1, found.indices).numpy(), found.costs.numpy(), atol=1e-9)


def test_neighbours_over_several_column_blocks_are_those_of_a_full_sort(monkeypatch) -> None:
    import bpa.plans.graph

    monkeypatch.setattr(
        bpa.plans.graph, "_COLUMNS", 512
    )  # groups of 32 columns, several blocks, a ragged last one
    monkeypatch.setattr(bpa.plans.graph, "_ROWS", 300)
    x = clusters(1700, 5)
    unit = x / x.norm(dim=1, keepdim=True)
    expected = (1 - unit @ unit.T).fill_diagonal_(torch.inf).sort(dim=1)
    found = nearest_neighbours(x, 5)
    np.testing.assert_allclose(found.costs.numpy(), expected.values[:, :5].numpy(), atol=1e-12)


@pytest.mark.parametrize("reg", [0.05, 0.1, 1.0])
@pytest.mark.parametrize("cost", ["cosine", "sqeuclidean"])
def test_with_full_support_it_is_the_dense_plan(reg: float, cost: str) -> None:
    x = clusters(60, 8)
    reg = reg if cost == "cosine" else 20 * reg
    sparse = GraphPlan.fit(x, reg=reg, k=59, cost=cost, tol=1e-10)
    dense = DensePlan.fit(x, reg=reg, cost=cost, tol=1e-10).dense()
    assert sparse.report.n_entries == 60 * 59
    assert sparse.report.n_repaired == 0
    np.testing.assert_allclose(sparse.matrix().to_dense().numpy(), dense.numpy(), atol=1e-8)


@pytest.mark.parametrize("n", [3, 4, 5, 8, 9])
def test_the_smallest_sets_work(n: int) -> None:
    sparse = GraphPlan.fit(clusters(n, 4), reg=0.2, k=1, tol=1e-8, scale=None, diagonal=0.0)
    plan = sparse.matrix().to_dense()
    assert sparse.report.converged
    np.testing.assert_allclose(plan.sum(dim=1).numpy(), 1, atol=1e-7)
    np.testing.assert_array_equal(plan.numpy(), plan.T.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reg", [0.01, 0.05, 0.3])
def test_the_plan_is_symmetric_and_balanced_on_its_graph(reg: float, dtype: torch.dtype) -> None:
    x = clusters(300, 8, dtype=dtype)
    sparse = GraphPlan.fit(x, reg=reg, k=10, scale=None, diagonal=0.0, tol=1e-4)
    plan = sparse.matrix().to_dense().double()
    assert sparse.report.converged
    assert (plan.sum(dim=1) - 1).abs().max() <= 1.2e-4
    assert torch.equal(plan, plan.T)
    listed = torch.zeros(300, 300, dtype=torch.bool)
    listed.scatter_(1, nearest_neighbours(x, 10).indices, True)
    outside = (plan > 0) & ~(listed | listed.T)
    assert int(outside.sum()) <= sparse.report.n_repaired
    assert sparse.report.repaired_mass == pytest.approx(float(plan[outside].sum()) / 300, abs=1e-6)


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
    sparse = GraphPlan.fit(x, reg=0.5, neighbours=lists, scale=None, diagonal=0.0, tol=1e-6)
    assert sparse.report.converged
    plan = sparse.matrix().to_dense()
    np.testing.assert_allclose(plan.sum(dim=1).numpy(), 1, atol=1e-5)
    # what the leaves cannot place on hubs must lie on repaired entries
    assert sparse.report.repaired_mass >= (n_leaves - n_hubs) / (n_hubs + n_leaves) - 1e-5


@pytest.mark.parametrize("n", [6, 7, 12, 25])
def test_the_tour_alone_makes_every_entry_part_of_a_perfect_matching(n: int) -> None:
    """The proof of the module's docstring, checked by brute force: remove any row and column, a matching is left."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    from bpa.plans.graph import _tour

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
    row = torch.arange(600).repeat_interleave(sparse.crow[1:] - sparse.crow[:-1])
    n_long = int((1 - (unit[row] * unit[sparse.col.long()]).sum(dim=1) > 0.8).sum())
    assert n_long <= 2 * 55  # about one long step, both directions counted, between each of the 50 clusters


def test_lists_from_elsewhere_give_the_same_plan() -> None:
    x = clusters(200, 8)
    lists = nearest_neighbours(x, 12).indices.numpy()
    padded = np.concatenate([np.arange(200)[:, None], lists, np.full((200, 1), -1)], axis=1)
    own = GraphPlan.fit(x, reg=0.1, k=12)
    given = GraphPlan.fit(x, reg=0.1, neighbours=padded)
    np.testing.assert_array_equal(given.matrix().to_dense().numpy(), own.matrix().to_dense().numpy())


def test_rows_and_distances_are_those_of_the_matrix() -> None:
    x = clusters(120, 8)
    sparse = GraphPlan.fit(x, reg=0.1, k=10)
    w = sparse.matrix().to_dense().numpy()
    assert (np.diag(w) == 1).all()
    i, j = [5, 0, 119, -2], [7, 5, 11]
    np.testing.assert_array_equal(sparse.rows(i).to_dense().numpy(), w[i])
    difference = w[i][:, None] - w[j][None]
    np.testing.assert_allclose(sparse.distances(i, j).numpy(), np.linalg.norm(difference, axis=-1), atol=1e-7)
    everything = ((w[i][:, None] - w[None]) ** 2).sum(-1)
    np.testing.assert_allclose(sparse.distances(i, metric="sqeuclidean").numpy(), everything, atol=1e-12)
    cosine = 1 - w[i] @ w.T / np.linalg.norm(w[i], axis=1)[:, None] / np.linalg.norm(w, axis=1)
    np.testing.assert_allclose(sparse.distances(i, metric="cosine").numpy(), cosine, atol=1e-12)


def test_new_items_get_rows_and_fitted_items_their_own() -> None:
    x, new = clusters(150, 8), clusters(9, 8, seed=4)
    sparse = GraphPlan.fit(x, reg=0.1, k=10, tol=1e-8)
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
        dense = DensePlan.fit(x, reg=reg, scale=None, diagonal=0.0).dense()
        for k in (5, 40, 200):
            plan = GraphPlan.fit(x, reg=reg, k=k, scale=None, diagonal=0.0, tol=1e-6).matrix().to_dense()
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
    with pytest.raises(ArgumentError, match="at most 29"):
        nearest_neighbours(x, 30)
    with pytest.raises(MemoryBudgetError, match="Lower k"):
        GraphPlan.fit(x, reg=0.1, budget="1MB")
    with pytest.warns(ConvergenceWarning, match="marginal error"):
        assert not GraphPlan.fit(x, reg=0.1, k=3, tol=1e-12, max_iter=2).report.converged
    with pytest.raises(ShapeError, match="4 features"):
        GraphPlan.fit(x, reg=0.1, k=3).transform(torch.zeros(2, 5))
