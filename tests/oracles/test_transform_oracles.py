"""The transform against programs that share no code with it."""

from __future__ import annotations

import math

import algorithm_1
import numpy as np
import ot
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from bpa import balance, balanced_affinities, exact_matching
from bpa.cost import cosine_cost
from bpa.solvers import Converged, Sweeps, sinkhorn


@pytest.mark.parametrize("stretch", [True, False])
@pytest.mark.parametrize("sweeps", [1, 5, 10])
@pytest.mark.parametrize("reg", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("n", [2, 3, 11, 40])
def test_default_call_is_algorithm_1(n: int, reg: float, sweeps: int, stretch: bool) -> None:
    x = np.random.default_rng(n).normal(size=(n, 6)) + 0.5
    expected = torch.tensor(algorithm_1.entry_by_entry(x.tolist(), reg, sweeps, stretch), dtype=torch.float64)
    options = {"reg": reg, "solver": Sweeps(sweeps), "scale": "max" if stretch else None}
    double = balanced_affinities(torch.from_numpy(x), **options)
    torch.testing.assert_close(double, expected, rtol=0, atol=1e-12)
    single = balanced_affinities(torch.from_numpy(x).float(), **options)
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("n", [599, 601, 777])
def test_large_sets_take_another_way_to_the_same_numbers(n: int) -> None:
    x = torch.randn(n, 24, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    kernel = torch.exp(-cosine_cost(x) / 0.1)
    kernel.fill_diagonal_(0)
    v = torch.ones(n, dtype=torch.float64)
    for _ in range(5):
        u = 1 / (kernel @ v)
        v = 1 / (kernel.T @ u)
    plan = u[:, None] * kernel * v
    expected = plan / plan.max()
    expected.fill_diagonal_(1)
    torch.testing.assert_close(balanced_affinities(x), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("reg", [0.05, 0.1, 1.0])
def test_converged_plan_is_the_one_of_another_solver(reg: float) -> None:
    x = torch.randn(30, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cost = cosine_cost(x).fill_diagonal_(1e3)
    ones = np.ones(30)
    expected = ot.bregman.sinkhorn_log(ones, ones, cost.numpy(), reg, numItermax=200_000, stopThr=1e-12)
    ours = balance(cosine_cost(x), reg=reg, solver=Converged(1e-11)).plan
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-8)
    sweeps = balance(cosine_cost(x), reg=reg, solver=Sweeps(20_000)).plan
    np.testing.assert_allclose(sweeps.numpy(), expected, atol=1e-7)


def test_rectangular_plan_is_the_one_of_another_solver() -> None:
    generator = np.random.default_rng(0)
    cost = generator.random((7, 4))
    row, col = generator.random(7) + 0.2, generator.random(4) + 0.2
    row, col = row / row.sum(), col / col.sum()
    expected = ot.bregman.sinkhorn_log(row, col, cost, 0.2, numItermax=100_000, stopThr=1e-13)
    result = sinkhorn(
        torch.from_numpy(-cost / 0.2),
        torch.from_numpy(row).log(),
        torch.from_numpy(col).log(),
        solver=Sweeps(500),
    )
    np.testing.assert_allclose(result.plan.numpy(), expected, atol=1e-9)
    assert float(result.convergence.marginal_error) < 1e-9


def test_exact_matching_is_the_best_assignment() -> None:
    generator = np.random.default_rng(1)
    for n in (2, 5, 30):
        x = generator.normal(size=(n, 3))
        cost = ((x[:, None] - x[None]) ** 2).sum(-1)
        masked = cost.copy()
        np.fill_diagonal(masked, np.inf)
        rows, columns = linear_sum_assignment(masked)
        plan = exact_matching(torch.from_numpy(cost)).numpy()
        assert abs((plan * cost).sum() - masked[rows, columns].sum()) < 1e-9
        np.testing.assert_allclose(plan.sum(0), 1.0)
        np.testing.assert_allclose(plan, plan.T)
        assert (np.diag(plan) == 0).all()
    assert (exact_matching(torch.zeros(2, 1, 1)) == 0).all()


def test_exact_matching_leaves_missing_items_out() -> None:
    x = torch.tensor([[0.0], [9.0], [0.1], [5.0], [5.2]])
    mask = torch.tensor([True, False, True, True, True])
    plan = exact_matching((x - x.T).square(), mask=mask)
    expected = torch.zeros(5, 5)
    for i, j in ((0, 2), (2, 0), (3, 4), (4, 3)):
        expected[i, j] = 1.0
    assert torch.equal(plan, expected)


def test_batched_results_differ_from_the_published_batched_code_where_they_should() -> None:
    """The published batched path stops on a batch mean, so that neighbours change a set; ours never does.

    A transcription of its stopping rule (cost units, mean over the batch below 0.1) shows the effect on a hard set.
    """

    def published(sets: torch.Tensor, reg: float = 0.1, sweeps: int = 10) -> torch.Tensor:
        n = sets.shape[1]
        cost = cosine_cost(sets).masked_fill(torch.eye(n, dtype=torch.bool), 1e5)
        log_marginal = -math.log(n)
        u, v = torch.zeros_like(cost[..., 0]), torch.zeros_like(cost[..., 0])
        for _ in range(sweeps):
            before = u
            u = reg * (log_marginal - torch.logsumexp((-cost + v[:, None]) / reg, -1))
            v = reg * (log_marginal - torch.logsumexp((-cost + u[..., None]) / reg, -2))
            if (u - before).abs().sum(-1).mean() < 0.1:
                break
        plan = ((u[..., None] + v[:, None] - cost) / reg).exp()
        plan = plan / plan.amax((-1, -2), keepdim=True)
        return plan + torch.eye(n, dtype=plan.dtype)

    generator = torch.Generator().manual_seed(0)
    hard = torch.cat(
        [torch.randn(60, 8, generator=generator) * 0.1 + 1, torch.randn(20, 8, generator=generator)]
    )
    easy = torch.rand(15, 80, 8, generator=generator)
    alone, together = published(hard[None])[0], published(torch.cat([hard[None], easy]))[0]
    assert (alone - together).abs().max() > 1e-3
    ours_alone = balanced_affinities(hard, solver=Sweeps(10))
    ours_together = balanced_affinities(torch.cat([hard[None], easy]), solver=Sweeps(10))[0]
    torch.testing.assert_close(ours_together, ours_alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("reg", [0.02, 0.1, 0.5])
def test_the_two_forms_of_the_oracle_agree(reg: float) -> None:
    x = np.random.default_rng(3).normal(size=(23, 6)) + 0.5
    for stretch in (True, False):
        slow = np.array(algorithm_1.entry_by_entry(x.tolist(), reg, 5, stretch))
        np.testing.assert_allclose(
            algorithm_1.affinities(x, reg, 5, stretch=stretch), slow, rtol=0, atol=1e-12
        )
