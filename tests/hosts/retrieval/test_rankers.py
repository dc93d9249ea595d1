"""Every baseline against loops written from its formula, in float64 numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bpa.errors import ArgumentError, DTypeError, MemoryBudgetError, ShapeError
from bpa.hosts.retrieval import RANKERS, expansion, graphs, hubs
from bpa.solvers import Converged, Sweeps

N_QUERY, N_GALLERY, N_BANK, DIM = 7, 19, 11, 6


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def draw(seed, n):
    centre = np.array([1.0, 0.5, 0, 0, 0, 0])
    return np.random.default_rng(seed).normal(size=(n, DIM)) + centre


def close(actual, expected, atol=1e-9):
    np.testing.assert_allclose(actual.numpy(), expected, atol=atol, rtol=1e-9)


def cases():
    """Sides and bank as given, unit query, unit gallery, bank scores and query scores with self as NaN."""
    q, g, b = draw(0, N_QUERY), draw(1, N_GALLERY), draw(2, N_BANK)
    uq, ug, ub = unit(q), unit(g), unit(b)
    own = ug @ ug.T
    np.fill_diagonal(own, np.nan)
    tq, tg, tb = (torch.tensor(v) for v in (q, g, b))
    yield tq, tg, None, uq, ug, own, uq @ ug.T
    yield tq, tg, tb, uq, ug, ub @ ug.T, uq @ ug.T
    yield tg, None, None, ug, ug, own, own


def top(values, k):
    """Positions of the k largest entries that are not NaN, by (value, position)."""
    return sorted((j for j in range(len(values)) if not np.isnan(values[j])), key=lambda j: (-values[j], j))[
        :k
    ]


@pytest.mark.parametrize("case", range(3))
class TestAgainstLoops:
    @pytest.fixture
    def data(self, case):
        return list(cases())[case]

    def test_csls_and_nnn_subtract_the_mean_of_the_best_probes(self, data):
        q, g, b, uq, ug, probes, _ = data
        r = np.array([np.mean([probes[p, j] for p in top(probes[:, j], 4)]) for j in range(len(ug))])
        close(hubs.csls(q, g, b, k=4), 2 * uq @ ug.T - r)
        close(hubs.nearest_neighbour_normalisation(q, g, b, k=4, alpha=0.3), uq @ ug.T - 0.3 * r)

    def test_inverted_softmax_shares_the_probe_mass(self, data):
        q, g, b, uq, ug, probes, _ = data
        mass = np.nansum(np.exp(7 * probes), axis=0)
        close(hubs.inverted_softmax(q, g, b, beta=7.0).exp(), np.exp(7 * uq @ ug.T) / mass)

    def test_dual_softmax_multiplies_bank_and_gallery_terms(self, data):
        q, g, b, uq, ug, probes, _ = data
        own = ug @ ug.T
        np.fill_diagonal(own, np.nan)
        s = uq @ ug.T
        expected = (
            np.exp(7 * s) / np.nansum(np.exp(7 * probes), 0) * np.exp(3 * s) / np.nansum(np.exp(3 * own), 0)
        )
        close(hubs.dual_inverted_softmax(q, g, b, beta=7.0, gallery_beta=3.0).exp(), expected)

    def test_query_bank_norm_acts_on_hub_queries_only(self, data):
        q, g, b, uq, ug, probes, neighbour = data
        popular = {j for row in probes for j in top(row, 2)}
        expected = uq @ ug.T
        acted = 0
        for i in range(len(uq)):
            if top(neighbour[i], 1)[0] in popular:
                acted += 1
                expected[i] = 9 * expected[i] - np.log(np.nansum(np.exp(9 * probes), 0))
        assert acted > 0
        close(hubs.query_bank_norm(q, g, b, beta=9.0, k=2), expected)

    def test_rectangular_sinkhorn_balances_bank_and_gallery(self, data):
        q, g, b, uq, ug, probes, _ = data
        kernel = np.nan_to_num(np.exp(4 * probes))
        u, v = np.ones(len(kernel)), np.ones(len(ug))
        for _ in range(6):
            u = 1 / (kernel @ v)
            v = (len(kernel) / len(ug)) / (kernel.T @ u)
        close(hubs.rectangular_sinkhorn(q, g, b, beta=4.0, solver=Sweeps(6)), 4 * uq @ ug.T + np.log(v))

    def test_query_expansion_adds_neighbours(self, data):
        q, g, _, uq, ug, _, neighbour = data
        for alpha, name in ((3.0, "alpha_query_expansion"), (0.0, "average_query_expansion")):
            expanded = []
            for i in range(len(uq)):
                best = top(neighbour[i], 3)
                weight = [max(neighbour[i, j], 0) ** alpha if alpha else 1.0 for j in best]
                expanded.append(uq[i] + sum(w * ug[j] for w, j in zip(weight, best, strict=True)))
            close(getattr(expansion, name)(q, g, n=3), unit(np.array(expanded)) @ ug.T)

    def test_database_augmentation_moves_the_gallery(self, data):
        q, g, _, uq, ug, _, _ = data
        own = ug @ ug.T
        np.fill_diagonal(own, np.nan)
        moved = unit(
            np.array(
                [x + sum(max(own[i, j], 0) ** 3 * ug[j] for j in top(own[i], 3)) for i, x in enumerate(ug)]
            )
        )
        close(expansion.database_augmentation(q, g, n=3), uq @ moved.T)
        s = uq @ moved.T
        if g is None:
            np.fill_diagonal(s, np.nan)
        both = unit(
            np.array(
                [x + sum(max(s[i, j], 0) ** 3 * moved[j] for j in top(s[i], 3)) for i, x in enumerate(uq)]
            )
        )
        close(expansion.database_augmentation(q, g, n=3, expand_query=True), both @ moved.T)

    def test_local_scaling_and_nicdm_use_both_items_units(self, data):
        q, g, b, uq, ug, probes, neighbour = data
        d = np.sqrt(np.maximum(2 - 2 * uq @ ug.T, 0))

        def units(rows):
            kth, mean = [], []
            for row in rows:
                best = np.sqrt(2 - 2 * np.array([row[j] for j in top(row, 4)]))
                kth.append(best[-1])
                mean.append(best.mean())
            return np.array(kth), np.array(mean)

        (kq, mq), (kg, mg) = units(neighbour), units(probes.T)
        off = ~np.isclose(uq @ ug.T, 1)  # an item with itself: rounding decides
        got = hubs.local_scaling(q, g, b, k=4).numpy()
        np.testing.assert_allclose(got[off], (-(d**2) / np.outer(kq, kg))[off], rtol=1e-9)
        got = hubs.nicdm(q, g, b, k=4).numpy()
        np.testing.assert_allclose(got[off], (-d / np.sqrt(np.outer(mq, mg)))[off], rtol=1e-7)

    def test_mutual_proximity_multiplies_normal_tails(self, data):
        q, g, b, uq, ug, probes, neighbour = data
        d = np.sqrt(np.maximum(2 - 2 * uq @ ug.T, 0))
        own, bank = np.sqrt(2 - 2 * neighbour), np.sqrt(2 - 2 * probes)
        expected = np.zeros_like(d)
        for i in range(len(uq)):
            for j in range(len(ug)):
                zq = (d[i, j] - np.nanmean(own[i])) / np.nanstd(own[i])
                zg = (d[i, j] - np.nanmean(bank[:, j])) / np.nanstd(bank[:, j])
                expected[i, j] = 0.5 * math.erfc(zq / math.sqrt(2)) * 0.5 * math.erfc(zg / math.sqrt(2))
        np.testing.assert_allclose(hubs.mutual_proximity(q, g, b).exp().numpy(), expected, rtol=1e-5)

    def test_empirical_mutual_proximity_counts_farther_thirds(self, data):
        q, g, b, uq, ug, _, _ = data
        third = unit(b.numpy()) if b is not None else ug
        out = hubs.mutual_proximity_empirical(q, g, b).numpy()
        for i in range(len(uq)):
            for j in range(len(ug)):
                if g is None and i == j:
                    continue
                sij = uq[i] @ ug[j]
                count = 0
                for k in range(len(third)):
                    itself = b is None and (k == j or (g is None and k == i))
                    count += (not itself) and third[k] @ uq[i] < sij and third[k] @ ug[j] < sij
                assert out[i, j] == pytest.approx(count / len(third))

    def test_diffusion_solves_its_linear_system(self, data):
        q, g, _, uq, ug, _, neighbour = data
        n, k, gamma, a = len(ug), 5, 3.0, 0.9
        own = ug @ ug.T
        np.fill_diagonal(own, np.nan)
        lists = [set(top(row, k)) for row in own]
        graph = np.zeros((n, n))
        for i in range(n):
            for j in lists[i]:
                if i in lists[j]:
                    graph[i, j] = max(own[i, j], 0) ** gamma
        degree = graph.sum(1)
        scale = np.where(degree > 0, degree, 1) ** -0.5
        system = np.eye(n) - a * scale[:, None] * graph * scale[None]
        y = np.zeros((len(uq), n))
        for i in range(len(uq)):
            for j in top(neighbour[i], k):
                y[i, j] = max(neighbour[i, j], 0) ** gamma
        got = graphs.diffusion(q, g, k=k, gamma=gamma, a=a, tol=1e-12)
        close(got, np.linalg.solve(system, y.T).T, atol=1e-8)

    def test_gnn_reranking_propagates_twice(self, data):
        q, g, _, uq, ug, _, _ = data
        x = ug if g is None else np.concatenate([uq, ug])
        s = x @ x.T
        order = [sorted(range(len(x)), key=lambda j, i=i: (-s[i, j], j)) for i in range(len(x))]
        adjacency = np.zeros_like(s)
        for i in range(len(x)):
            adjacency[i, order[i][:6]] = 1
        for _ in range(2):
            adjacency = adjacency + adjacency.T
            adjacency = unit(
                np.array([sum(s[i, j] ** 2 * adjacency[j] for j in order[i][:3]) for i in range(len(x))])
            )
        first = len(x) - len(ug)
        expected = 0.7 * adjacency[: len(uq)] @ adjacency[first:].T + 0.3 * uq @ ug.T
        close(graphs.gnn_reranking(q, g, k1=6, k2=3, lam=0.3), expected)


def test_nnn_at_one_half_ranks_like_csls():
    q, g = torch.tensor(draw(0, 9)), torch.tensor(draw(1, 30))
    a = hubs.csls(q, g, k=5).argsort(dim=1)
    b = hubs.nearest_neighbour_normalisation(q, g, k=5, alpha=0.5).argsort(dim=1)
    assert torch.equal(a, b)


@pytest.mark.parametrize("name", list(RANKERS))
def test_every_ranker_keeps_the_signature_and_ignores_feature_length(name):
    q, g, b = (torch.tensor(draw(s, n)) for s, n in ((0, 20), (1, 60), (2, 30)))
    bank = b if RANKERS[name].uses_bank else None
    scores = RANKERS[name](q, g, bank)
    assert scores.shape == (20, 60)
    assert torch.isfinite(scores).all()
    scaled = RANKERS[name](3 * q, g * torch.linspace(0.5, 2, 60)[:, None], None if bank is None else 2 * bank)
    torch.testing.assert_close(scores, scaled, atol=1e-8, rtol=1e-6)
    assert RANKERS[name](g).shape == (60, 60)


@pytest.mark.parametrize("name", list(RANKERS))
def test_a_bank_is_used_or_refused(name):
    q, g, b = (torch.tensor(draw(s, n)) for s, n in ((0, 20), (1, 60), (2, 30)))
    if RANKERS[name].uses_bank:
        assert not torch.allclose(RANKERS[name](q, g, b), RANKERS[name](q, g))
    else:
        with pytest.raises(ArgumentError, match="'bank' parameter has no effect"):
            RANKERS[name](q, g, b)


def test_a_wide_gallery_and_wrong_shapes_are_refused_by_name():
    q = torch.zeros(2, 3) + 1
    with pytest.raises(ShapeError, match="'gallery' parameter of csls"):
        hubs.csls(q, torch.ones(4, 5))
    with pytest.raises(ArgumentError, match="'beta'"):
        hubs.inverted_softmax(q, q.clone(), beta=0.0)
    with pytest.raises(DTypeError, match=r"must be Sweeps\(n\)"):
        hubs.rectangular_sinkhorn(q, solver=Converged())
    with pytest.raises(MemoryBudgetError, match="use k_reciprocal"):
        graphs.gnn_reranking(torch.ones(30_001, 1))
