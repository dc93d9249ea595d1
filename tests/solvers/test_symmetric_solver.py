"""The converged solver: it arrives everywhere promised, and says so when it does not."""

from __future__ import annotations

import pytest
import torch

from bpa import ConvergenceWarning, balance
from bpa.cost import cosine_cost
from bpa.solvers import Converged
from bpa.solvers._kernel import ExponentialKernel, LogKernel, make_kernel
from bpa.solvers._sinkhorn import alternate, symmetrise

KINDS = ("classes", "pairs", "many classes", "zipf", "outliers", "centred")


def set_of(kind: str, n: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Feature sets of very different difficulty, (n, 64)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    noise = 0.5 * normal(n, 64)
    if kind == "classes":
        x = normal(5, 64)[torch.arange(n) % 5] + noise
    elif kind == "pairs":
        x = normal(n // 2, 64)[torch.arange(n) % (n // 2)] + noise
    elif kind == "many classes":
        x = normal(3 * n // 10, 64)[torch.arange(n) % (3 * n // 10)] + noise
    elif kind == "zipf":
        classes = n // 10
        frequency = 1 / torch.arange(1, classes + 1, dtype=torch.float64)
        label = torch.multinomial(frequency, n, replacement=True, generator=generator)
        x = normal(classes, 64)[label] + noise
    elif kind == "outliers":
        x = torch.cat([normal(1, 64) + 0.3 * normal(3 * n // 4, 64), 3 * normal(n - 3 * n // 4, 64)])
    else:
        x = normal(20, 64)[torch.arange(n) % 20] + 2 * noise
        x = x - x.mean(0)
    return x.to(dtype)


@pytest.mark.parametrize("reg", [0.05, 0.1, 0.25, 1.0])
@pytest.mark.parametrize("n", [80, 500])
@pytest.mark.parametrize("kind", KINDS)
def test_arrives_within_80_products_on_every_kind_of_set(kind: str, n: int, reg: float) -> None:
    result = balance(cosine_cost(set_of(kind, n)), reg=reg, solver=Converged(1e-6, max_iter=80))
    assert bool(result.convergence.converged)
    sums = result.plan.sum(dim=1)
    assert float((sums - 1).abs().max()) <= 2e-6
    assert float(result.convergence.marginal_error) <= 1e-6
    assert torch.equal(result.plan, result.plan.T)


@pytest.mark.slow
@pytest.mark.parametrize("reg", [0.05, 0.1])
@pytest.mark.parametrize("kind", ["pairs", "zipf", "centred"])
def test_arrives_within_80_products_on_four_thousand_items(kind: str, reg: float) -> None:
    kernel = (-cosine_cost(set_of(kind, 4000)) / reg).exp_().fill_diagonal_(0)
    ones = torch.zeros(4000, dtype=torch.float64)
    result = symmetrise(ExponentialKernel(kernel, 1.0, 1.0, symmetric=True), ones, tol=1e-6, max_iter=80)
    assert float(result.marginal_error) <= 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_float32_arrives_at_its_own_tolerance(kind: str) -> None:
    for reg in (0.05, 0.1, 1.0):
        cost = cosine_cost(set_of(kind, 80, dtype=torch.float32))
        assert bool(balance(cost, reg=reg, solver=Converged()).convergence.converged)


def test_what_is_not_reached_is_reported() -> None:
    cost = cosine_cost(torch.stack([set_of("zipf", 200), set_of("classes", 200)]))
    with pytest.warns(ConvergenceWarning, match="1 of 2 sets"):
        result = balance(cost, reg=0.1, solver=Converged(1e-6, max_iter=17))
    assert result.convergence.converged.tolist() == [False, True]
    true_error = (result.plan.sum(dim=-1) - 1).abs().amax(dim=-1)
    torch.testing.assert_close(true_error, result.convergence.marginal_error, rtol=1e-3, atol=1e-12)
    assert int(result.convergence.n_iter.max()) <= 17


def test_perfect_matchings_at_tiny_reg_are_balanced_or_reported() -> None:
    import warnings

    for reg in (0.02, 0.005):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = balance(cosine_cost(set_of("pairs", 40)), reg=reg, solver=Converged(1e-6))
        assert torch.isfinite(result.plan).all()
        assert bool(result.convergence.converged) == (not caught)
        error = float((result.plan.sum(dim=-1) - 1).abs().max())
        assert bool(result.convergence.converged) == (error <= 2e-6)


def test_marginals_other_than_one() -> None:
    kernel = (-cosine_cost(set_of("classes", 60)) / 0.1).exp().fill_diagonal_(0)
    marginal = torch.rand(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    operator = ExponentialKernel(kernel, 1.0, 1.0, symmetric=True)
    result = symmetrise(operator, marginal.log(), tol=1e-9, max_iter=100)
    u = result.log_u.exp()
    torch.testing.assert_close(u * (kernel @ u), marginal, rtol=1e-8, atol=0)


def worst_set(n: int, seed: int) -> torch.Tensor:
    """Opposite bundles with stragglers in between: costs that fill [0, 2]."""
    generator = torch.Generator().manual_seed(seed)
    axis = torch.zeros(n, 12, dtype=torch.float64)
    axis[: n // 2, 0], axis[n // 2 :, 0] = 1.0, -1.0
    axis[n // 2 - 2 : n // 2 + 1] = torch.randn(3, 12, generator=generator, dtype=torch.float64)
    return axis + 0.02 * torch.randn(n, 12, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("n", [5, 20, 81])
@pytest.mark.parametrize("seed", range(4))
def test_both_domains_give_the_same_plan_where_float32_is_trusted_least(n: int, seed: int) -> None:
    reg = 0.03  # the smallest that float32 takes in the exponential domain
    cost = cosine_cost(worst_set(n, seed))
    log_kernel = (cost / -reg).masked_fill(torch.eye(n, dtype=torch.bool), -torch.inf)
    fast = make_kernel(log_kernel.float(), None, None, bounds=(-2 / reg, 0.0), symmetric=True)
    safe = make_kernel(log_kernel, None, None, bounds=None, symmetric=True)
    assert isinstance(fast, ExponentialKernel)
    assert isinstance(safe, LogKernel)
    plans = []
    for kernel in (fast, safe):
        sweeps = alternate(kernel, n_iter=5)
        log_u, log_v = sweeps.log_u[-1].double(), sweeps.log_v[-1].double()
        plans.append((log_kernel + log_u[:, None] + log_v).exp())
    torch.testing.assert_close(plans[0], plans[1], rtol=2e-4, atol=1e-6)


def test_the_domain_changes_where_numbers_would_not_fit() -> None:
    log_kernel = torch.zeros(3, 3)
    for spread, kind in ((66.0, ExponentialKernel), (68.0, LogKernel)):
        assert isinstance(make_kernel(log_kernel, None, None, bounds=(-spread, 0.0), symmetric=True), kind)
    for spread, kind in ((599.0, ExponentialKernel), (601.0, LogKernel)):
        kernel = make_kernel(log_kernel.double(), None, None, bounds=(-spread, 0.0), symmetric=True)
        assert isinstance(kernel, kind)


@pytest.mark.parametrize("shift", [-300.0, -5.0, 7.0, 300.0])
def test_a_constant_on_the_kernel_moves_only_the_row_potential(shift: float) -> None:
    cost = torch.rand(8, 8, generator=torch.Generator().manual_seed(0))
    plain, moved = balance(cost, reg=0.5), balance(cost + shift, reg=0.5)
    torch.testing.assert_close(moved.plan, plain.plan, rtol=0, atol=2e-4)
    torch.testing.assert_close(moved.log_u, plain.log_u + shift / 0.5, rtol=1e-4, atol=2e-3)
    for result, shifted in ((plain, 0.0), (moved, shift)):
        rebuilt = (result.log_u[:, None] + result.log_v - (cost + shifted) / 0.5).exp().fill_diagonal_(0)
        torch.testing.assert_close(rebuilt, result.plan, rtol=0, atol=2e-4)
