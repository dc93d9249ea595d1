"""The transform as a layer, and under torch's transforms."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bpa import BPA, BPAAttention, ConvergenceWarning, balance, balanced_affinities
from bpa.solvers import Converged, Sweeps, sinkhorn


@pytest.fixture
def x(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 30, 16, generator=generator)


def test_layer_and_function_agree(x: torch.Tensor) -> None:
    options = {"reg": 0.2, "solver": Sweeps(3), "scale": None, "symmetrize": True}
    assert torch.equal(BPA(**options)(x), balanced_affinities(x, **options))
    labels = torch.full((30,), -1)
    labels[:6] = torch.arange(6) % 3
    mask = torch.arange(30) < 25
    layer = BPA(reg=0.05, solver=Converged(1e-5), scale=None)
    expected = balanced_affinities(
        x, reg=0.05, solver=Converged(1e-5), scale=None, mask=mask, support_labels=labels
    )
    assert torch.equal(layer(x, mask=mask, support_labels=labels), expected)


def test_inserting_the_layer_leaves_the_state_dict_unchanged() -> None:
    plain = nn.Sequential(nn.Linear(16, 8), nn.ReLU())
    upgraded = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), BPA())
    upgraded.load_state_dict(plain.state_dict(), strict=True)
    assert list(upgraded.state_dict()) == list(plain.state_dict())
    assert not list(BPA().parameters())
    assert not list(BPAAttention().buffers())


def test_forward_stores_nothing(x: torch.Tensor) -> None:
    layer = BPA()
    before = dict(vars(layer))
    layer(x)
    assert vars(layer) == before


def test_printing_names_what_differs_from_the_default() -> None:
    assert repr(BPA()) == "BPA(reg=0.1, solver=Sweeps(n=5))"
    shown = repr(BPA(0.05, Converged(1e-4), scale=None))
    assert shown == "BPA(reg=0.05, solver=Converged(tol=0.0001, max_iter=300), scale=None)"
    assert "cost=my_cost" in repr(BPA(cost=my_cost))


def my_cost(x: torch.Tensor) -> torch.Tensor:
    return torch.cdist(x, x)


def test_costs_of_ones_own(x: torch.Tensor) -> None:
    by_callable = balanced_affinities(x, cost=my_cost, reg=1.0)
    by_hand = balanced_affinities(my_cost(x), cost="precomputed", reg=1.0)
    assert torch.equal(by_callable, by_hand)
    plan = balance(my_cost(x), reg=1.0).plan
    largest = plan.amax(dim=(-2, -1), keepdim=True)
    torch.testing.assert_close(by_hand, plan / largest + torch.eye(30))


def test_the_diagonal_of_a_precomputed_cost_is_not_read(x: torch.Tensor) -> None:
    cost = my_cost(x)
    spoiled = cost.masked_fill(torch.eye(30, dtype=torch.bool), float("nan"))
    assert torch.equal(balance(spoiled).plan, balance(cost).plan)


def test_attention_mixes_values_by_affinity(x: torch.Tensor) -> None:
    values = torch.randn(4, 30, 3)
    affinity = balanced_affinities(x)
    torch.testing.assert_close(BPAAttention()(x), affinity @ x)
    torch.testing.assert_close(BPAAttention()(x, values=values), affinity @ values)
    normalized = BPAAttention(normalize_rows=True)(x, values=torch.ones(4, 30, 2))
    torch.testing.assert_close(normalized, torch.ones(4, 30, 2))


def test_attention_keeps_padding_out(x: torch.Tensor) -> None:
    mask = torch.arange(30) < 20
    spoiled = x.masked_fill(~mask[:, None], float("nan"))
    result = BPAAttention(normalize_rows=True)(spoiled, mask=mask)
    torch.testing.assert_close(result[:, :20], BPAAttention(normalize_rows=True)(x[:, :20]))
    assert (result[:, 20:] == 0).all()


def test_autocast_changes_nothing(x: torch.Tensor) -> None:
    for options in ({}, {"solver": Converged()}, {"cost": "sqeuclidean"}):
        plain = balanced_affinities(x, **options)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(balanced_affinities(x, **options), plain)
            low = torch.nn.functional.linear(x, torch.eye(16))
            assert low.dtype == torch.bfloat16
            assert balanced_affinities(low, **options).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "options", [{}, {"reg": 0.003}, {"cost": "sqeuclidean"}, {"solver": Converged()}], ids=str
)
def test_vmap_equals_batch(x: torch.Tensor, options: dict) -> None:
    expected = balanced_affinities(x, **options)
    mapped = torch.func.vmap(lambda one: balanced_affinities(one, **options))(x)
    torch.testing.assert_close(mapped, expected, rtol=0, atol=1e-5)
    other_dim = torch.func.vmap(lambda one: balanced_affinities(one, **options), in_dims=1)(x.transpose(0, 1))
    torch.testing.assert_close(other_dim, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"solver": Converged(1e-9)}], ids=str)
def test_functional_derivatives_agree_with_autograd(generator: torch.Generator, options: dict) -> None:
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64)

    def transform(x: torch.Tensor) -> torch.Tensor:
        return balanced_affinities(x, scale=None, **options)

    expected = torch.autograd.functional.jacobian(transform, x)
    torch.testing.assert_close(torch.func.jacrev(transform)(x), expected, rtol=1e-5, atol=1e-8)
    per_set = torch.func.vmap(torch.func.grad(lambda x: transform(x).square().sum()))(torch.stack([x, 2 * x]))
    single = torch.func.grad(lambda x: transform(x).square().sum())(x)
    torch.testing.assert_close(per_set, torch.stack([single, single / 2]), rtol=1e-5, atol=1e-8)


@pytest.mark.slow
def test_compiles_whole_and_agrees(x: torch.Tensor) -> None:
    compiled = torch.compile(BPA(), fullgraph=True)
    eager = BPA()
    first, second = x.clone().requires_grad_(), x.clone().requires_grad_()
    weight = torch.randn(4, 30, 30, generator=torch.Generator().manual_seed(0))
    a, b = compiled(first), eager(second)
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    (a * weight).sum().backward()
    (b * weight).sum().backward()
    torch.testing.assert_close(first.grad, second.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_exports_with_any_number_of_items(generator: torch.Generator) -> None:
    n = torch.export.Dim("n", min=2, max=4096)
    program = torch.export.export(BPA(), (torch.randn(9, 16),), dynamic_shapes={"x": {0: n}})
    for size in (2, 9, 33):
        x = torch.randn(size, 16, generator=generator)
        torch.testing.assert_close(program.module()(x), balanced_affinities(x), rtol=0, atol=1e-5)


def test_balance_answers_in_the_type_it_was_asked_in(x: torch.Tensor) -> None:
    cost = my_cost(x).half()
    for solver in (Sweeps(5), Converged()):
        low, full = balance(cost, reg=1.0, solver=solver), balance(cost.float(), reg=1.0, solver=solver)
        assert low.plan.dtype == low.log_u.dtype == low.log_v.dtype == torch.float16
        assert torch.equal(low.plan, full.plan.half())


def test_any_kernel_can_be_mapped_over(generator: torch.Generator) -> None:
    kernels = torch.randn(3, 4, 6, generator=generator)
    row = torch.full((4,), 1.5).log()
    mapped = torch.func.vmap(lambda kernel: sinkhorn(kernel, row, solver=Sweeps(3)).plan)(kernels)
    torch.testing.assert_close(mapped, sinkhorn(kernels, row, solver=Sweeps(3)).plan, rtol=0, atol=1e-6)


def test_a_chosen_reg_says_when_its_plan_did_not_converge(x: torch.Tensor) -> None:
    with pytest.warns(ConvergenceWarning, match="4 of 4 sets"):
        balanced_affinities(x, reg="auto", solver=Converged(max_iter=2))


def test_works_on_views_and_under_no_grad(x: torch.Tensor) -> None:
    expected = balanced_affinities(x)
    strided = x.repeat(1, 2, 1)[:, ::2].mT.contiguous().mT
    again = balanced_affinities(torch.cat([x, x], dim=-1)[..., :16])
    torch.testing.assert_close(again, expected, rtol=0, atol=1e-6)
    with torch.no_grad():
        assert balanced_affinities(strided).shape == (4, 30, 30)
    with torch.inference_mode():
        torch.testing.assert_close(balanced_affinities(x), expected)
    assert balanced_affinities(torch.zeros(0, 5, 3)).shape == (0, 5, 5)
    assert balanced_affinities(torch.zeros(2, 0, 5, 3), solver=Converged()).shape == (2, 0, 5, 5)
