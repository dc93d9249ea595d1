"""The fused path gives the same numbers whatever it is cut into, and holds one n × n buffer."""

from __future__ import annotations

import algorithm_1
import numpy as np
import pytest
import torch

from bpa import balanced_affinities
from bpa.kernels import _fused
from bpa.solvers import Sweeps


def features(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


CUTS = {
    "one chunk, one panel": {},
    "a chunk a set": {"_CHUNK_BYTES": 1, "_FEATURE_BYTES": 1},
    "ragged chunks": {"_CHUNK_BYTES": 8 * 13 * 13 * 3},
    "panels of four": {"_LARGE": 5, "_PANEL": 4},
    "panels of one": {"_LARGE": 5, "_PANEL": 1},
    "panels on huge pages": {"_LARGE": 5, "_PANEL": 6, "_HUGE_PAGES_FROM": 1},
}


@pytest.fixture(params=CUTS.values(), ids=CUTS.keys())
def _cut(request, monkeypatch):
    for name, value in request.param.items():
        monkeypatch.setattr(_fused, name, value)


@pytest.mark.usefixtures("_cut")
@pytest.mark.parametrize("diagonal", [1.0, 0.0, 0.3])
@pytest.mark.parametrize("n_iter", [1, 5])
def test_every_cut_is_algorithm_1(n_iter: int, diagonal: float) -> None:
    x = features(7, 13, 6)
    w = balanced_affinities(x, reg=0.1, solver=Sweeps(n_iter), diagonal=diagonal)
    for one, expected in zip(w, x, strict=True):
        np.testing.assert_allclose(
            one.numpy(), algorithm_1.affinities(expected, 0.1, n_iter, diagonal=diagonal), atol=1e-12
        )


@pytest.mark.usefixtures("_cut")
@pytest.mark.parametrize("options", [{"scale": None}, {"scale": None, "diagonal": 0.4, "solver": Sweeps(2)}])
def test_every_cut_has_the_right_gradient(options: dict[str, object]) -> None:
    x = features(3, 11, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: balanced_affinities(y, reg=0.3, **options), x)


@pytest.mark.usefixtures("_cut")
def test_the_stretch_is_a_constant_for_the_gradient() -> None:
    x = features(3, 11, 4).requires_grad_()
    grad = features(3, 11, 11, seed=1)
    plain = balanced_affinities(x, reg=0.3, scale=None, diagonal=0.0)
    (expected,) = torch.autograd.grad((plain / plain.detach().amax((-2, -1), keepdim=True) * grad).sum(), x)
    (found,) = torch.autograd.grad((balanced_affinities(x, reg=0.3) * grad).sum(), x)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-10)


@pytest.mark.usefixtures("_cut")
def test_a_gradient_without_memory_of_its_own_is_understood() -> None:
    x = features(3, 11, 4).requires_grad_()
    (found,) = torch.autograd.grad(balanced_affinities(x).sum(), x)  # an expanded one
    (expected,) = torch.autograd.grad(balanced_affinities(x), x, torch.ones(3, 11, 11, dtype=torch.float64))
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


@pytest.mark.parametrize("n", [_fused._LARGE, _fused._LARGE + 1, 2 * _fused._LARGE + 17])
def test_real_panels_agree_with_the_other_rooms(n: int) -> None:
    x = features(n, 24, dtype=torch.float32)
    grad = features(n, n, seed=1, dtype=torch.float32)
    fused, rooms = x.clone().requires_grad_(), x.clone().requires_grad_()
    everyone = torch.ones(n, dtype=torch.bool)
    w = balanced_affinities(fused)
    expected = balanced_affinities(rooms, mask=everyone)  # a mask is not fused
    w.backward(grad)
    expected.backward(grad)
    np.testing.assert_allclose(w.detach().numpy(), expected.detach().numpy(), atol=3e-6)
    scale = rooms.grad.abs().max()
    np.testing.assert_allclose((fused.grad / scale).numpy(), (rooms.grad / scale).numpy(), atol=2e-5)


def test_huge_pages_are_advice_only(monkeypatch) -> None:
    monkeypatch.setattr(_fused, "_HUGE_PAGES_FROM", 1)
    buffer = torch.zeros(5000)
    assert _fused._on_huge_pages(buffer) is buffer
    assert (buffer == 0).all()
    monkeypatch.setattr(_fused, "_madvise", lambda: None)  # a system without them
    assert _fused._on_huge_pages(buffer) is buffer
