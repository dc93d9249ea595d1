"""The gradient is that of the numbers returned: against finite differences, autograd, and other paths."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from bpa import BPAAttention, balance, balanced_affinities
from bpa.errors import NotDifferentiableError
from bpa.solvers import Converged, Sweeps, sinkhorn

DOUBLE = {"dtype": torch.float64}


def features(n: int = 7, d: int = 5, batch: tuple[int, ...] = (2,), seed: int = 0) -> torch.Tensor:
    x = torch.randn(*batch, n, d, generator=torch.Generator().manual_seed(seed), **DOUBLE)
    return x.requires_grad_()


def unrolled(x: torch.Tensor, reg: float, n_iter: int, *, scale_grad: bool = False) -> torch.Tensor:
    """Algorithm 1 in plain operations that autograd unrolls: an independent derivation."""
    unit = x / x.norm(dim=-1, keepdim=True)
    log_k = -(1 - unit @ unit.mT) / reg
    log_k = log_k.masked_fill(torch.eye(x.shape[-2], dtype=torch.bool), -torch.inf)
    f, g = torch.zeros_like(x[..., 0]), torch.zeros_like(x[..., 0])
    for _ in range(n_iter):
        f = -torch.logsumexp(log_k + g[..., None, :], -1)
        g = -torch.logsumexp(log_k + f[..., :, None], -2)
    plan = (log_k + f[..., :, None] + g[..., None, :]).exp()
    largest = plan.amax(dim=(-2, -1), keepdim=True)
    plan = plan / (largest if scale_grad else largest.detach())
    return plan + torch.eye(x.shape[-2], dtype=x.dtype)


@pytest.mark.parametrize("reg", [0.003, 0.05, 0.1, 1.0, 100.0])
@pytest.mark.parametrize("n_iter", [1, 2, 5, 12])
@pytest.mark.parametrize("scale_grad", [False, True])
def test_gradient_equals_unrolled_autograd(reg: float, n_iter: int, scale_grad: bool) -> None:
    x = features(n=9)
    weight = torch.randn(2, 9, 9, generator=torch.Generator().manual_seed(1), **DOUBLE)
    values, gradients = [], []
    for compute in (
        unrolled,
        lambda x, reg, n, scale_grad: balanced_affinities(
            x, reg=reg, solver=Sweeps(n), scale_grad=scale_grad
        ),
    ):
        result = compute(x, reg, n_iter, scale_grad=scale_grad)
        values.append(result)
        gradients.append(torch.autograd.grad((result * weight).sum(), x)[0])
    torch.testing.assert_close(values[1], values[0], rtol=1e-9, atol=1e-10)
    size = gradients[0].abs().max().item()
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-7, atol=1e-9 * max(1.0, size))


@pytest.mark.parametrize("n", [2, 3, 7])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"solver": Sweeps(1)},
        {"reg": 0.003},
        {"mask": torch.tensor([True, True, False, True, True, False, True])},
        {"support_labels": torch.tensor([0, 1, 0, -1, 1, -1, -1])},
        {"symmetrize": True},
        {"diagonal": 0.3},
        {"cost": "sqeuclidean", "reg": 1.0},
        {"cost": lambda x: (x[..., :, None, :] - x[..., None, :, :]).square().sum(-1).add(1).log()},
        {"solver": Converged(1e-13)},
        {"solver": Converged(1e-13), "reg": 1.0, "cost": "sqeuclidean"},
        {"solver": Converged(1e-12, max_iter=2000), "reg": 0.02},
    ],
    ids=str,
)
def test_gradcheck_without_stretch(options: dict, n: int) -> None:
    options = {k: v[:n] if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    x = features(n=n)
    assert gradcheck(lambda x: balanced_affinities(x, scale=None, **options), (x,), atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"solver": Converged(1e-13)}], ids=str)
def test_gradcheck_with_differentiated_stretch(options: dict) -> None:
    assert gradcheck(lambda x: balanced_affinities(x, scale_grad=True, **options), (features(),), atol=1e-6)


def test_gradcheck_of_balance_and_of_any_kernel() -> None:
    cost = torch.rand(2, 6, 6, generator=torch.Generator().manual_seed(0), **DOUBLE).requires_grad_()
    assert gradcheck(lambda c: balance(c, reg=0.3).plan, (cost,))
    assert gradcheck(
        lambda c: balance((c + c.mT) / 2, reg=0.3, solver=Converged(1e-13)).plan, (cost,), atol=1e-6
    )
    kernel = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(1), **DOUBLE).requires_grad_()
    row = torch.rand(3, 4, **DOUBLE).add(0.5).log()
    col = (row.exp().sum(-1, keepdim=True) / 6).expand(3, 6).log()
    assert gradcheck(lambda k: sinkhorn(k, row, col, solver=Sweeps(4)).plan, (kernel,))


def test_gradcheck_of_attention() -> None:
    x, values = features(), features(d=3, seed=5)
    for normalize in (False, True):
        layer = BPAAttention(scale=None, normalize_rows=normalize)
        assert gradcheck(lambda x, v, layer=layer: layer(x, values=v), (x, values))


def test_implicit_and_unrolled_gradients_agree_at_convergence() -> None:
    x = features(n=12)
    weight = torch.randn(2, 12, 12, generator=torch.Generator().manual_seed(1), **DOUBLE)
    implicit = balanced_affinities(x, reg=0.3, solver=Converged(1e-13), scale=None)
    sweeps = balanced_affinities(x, reg=0.3, solver=Sweeps(400), scale=None)
    first, second = (torch.autograd.grad((w * weight).sum(), x)[0] for w in (implicit, sweeps))
    torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-8)


def test_gradient_of_a_batch_equals_that_of_its_sets() -> None:
    for options in ({}, {"solver": Converged()}, {"mask": torch.ones(40, dtype=torch.bool)}):
        x = features(n=40, d=8, batch=(3, 5))
        weight = torch.randn(3, 5, 40, 40, generator=torch.Generator().manual_seed(1), **DOUBLE)
        whole = torch.autograd.grad((balanced_affinities(x, **options) * weight).sum(), x)[0]
        for i in range(3):
            for j in range(5):
                one = x[i, j].detach().requires_grad_()
                loss = (balanced_affinities(one, **options) * weight[i, j]).sum()
                torch.testing.assert_close(
                    torch.autograd.grad(loss, one)[0], whole[i, j], rtol=1e-5, atol=1e-7
                )


def test_zero_rows_and_extreme_lengths_pass_finite_gradients() -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    x[2] = 0.0
    for mask in (None, torch.ones(8, dtype=torch.bool)):
        leaf = x.clone().requires_grad_()
        balanced_affinities(leaf, mask=mask)[:4].square().sum().backward()
        assert torch.isfinite(leaf.grad).all()
        assert (leaf.grad[2] == 0).all()
        assert leaf.grad.abs().max() < 1e3
    plain = x[3:].clone().requires_grad_()
    long = (x[3:] * 1e20).requires_grad_()
    for leaf in (plain, long):
        balanced_affinities(leaf)[0, 1:].square().sum().backward()
    torch.testing.assert_close(long.grad * 1e20, plain.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("n", [5, 80, 700])
def test_float32_gradient_is_near_float64(n: int) -> None:
    x = torch.randn(n, 32, generator=torch.Generator().manual_seed(n))
    weight = torch.randn(n, n, generator=torch.Generator().manual_seed(1))
    gradients = []
    for dtype in (torch.float32, torch.float64):
        leaf = x.to(dtype, copy=True).requires_grad_()
        (balanced_affinities(leaf) * weight.to(dtype)).sum().backward()
        gradients.append(leaf.grad.double())
    error = (gradients[0] - gradients[1]).norm() / gradients[1].norm()
    assert error < 1e-4


def test_input_and_output_are_never_written_into() -> None:
    for options in ({}, {"solver": Converged()}, {"mask": torch.tensor([True] * 9 + [False])}):
        x = torch.randn(10, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
        before = x.detach().clone()
        result = balanced_affinities(x, **options)
        kept = result.detach().clone()
        result.square().sum().backward()
        assert torch.equal(x.detach(), before)
        assert torch.equal(result.detach(), kept)


def test_second_derivative_is_refused_in_words() -> None:
    for options in ({}, {"solver": Converged()}):
        x = features()
        (first,) = torch.autograd.grad(balanced_affinities(x, **options).square().sum(), x, create_graph=True)
        with pytest.raises(NotDifferentiableError, match="once, not twice"):
            first.sum().backward()
