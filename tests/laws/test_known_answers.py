"""Sets whose affinities can be written down."""

from __future__ import annotations

import pytest
import torch

from bpa import balance, balanced_affinities, exact_matching
from bpa.solvers import Converged, Sweeps

SOLVERS = pytest.mark.parametrize("options", [{}, {"solver": Converged()}, {"mask": True}], ids=str)


def affinities(x: torch.Tensor, options: dict, **more: object) -> torch.Tensor:
    if options.get("mask"):
        options = {"mask": torch.ones(x.shape[:-1], dtype=torch.bool)}
    return balanced_affinities(x, **options, **more)


@SOLVERS
@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3)])
def test_one_item_has_affinity_one_to_itself(options: dict, batch: tuple[int, ...]) -> None:
    x = torch.randn(*batch, 1, 4)
    assert torch.equal(affinities(x, options), torch.ones(*batch, 1, 1))


@SOLVERS
@pytest.mark.parametrize("reg", [1e-3, 0.1, 1e3])
def test_two_items_can_only_choose_one_another(options: dict, reg: float) -> None:
    x = torch.randn(6, 2, 4)
    torch.testing.assert_close(affinities(x, options, reg=reg), torch.ones(6, 2, 2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_three_items_share_equally_at_convergence(dtype: torch.dtype) -> None:
    x = torch.randn(4, 3, 5, dtype=dtype, generator=torch.Generator().manual_seed(0))
    plan = balanced_affinities(x, solver=Converged(), scale=None, diagonal=0.0)
    half = (1 - torch.eye(3, dtype=dtype)) / 2
    torch.testing.assert_close(plan, half.expand(4, 3, 3), rtol=0, atol=1e-4)


@SOLVERS
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_identical_rows_share_equally(options: dict, value: float) -> None:
    x = torch.full((9, 4), value)
    torch.testing.assert_close(affinities(x, options), torch.ones(9, 9), rtol=0, atol=1e-5)


def test_a_zero_row_is_equally_far_from_everything() -> None:
    x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.2], [0.0, 0.0]], dtype=torch.float64)
    unit = x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)
    cost = 1 - unit @ unit.T
    torch.testing.assert_close(
        balanced_affinities(x), balanced_affinities(cost, cost="precomputed"), rtol=0, atol=1e-12
    )
    assert (cost[3, :3] == 1).all()


def test_large_reg_makes_everything_equal() -> None:
    x = torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plan = balanced_affinities(x, reg=1e6, scale=None, diagonal=0.0)
    torch.testing.assert_close(plan, (1 - torch.eye(12, dtype=torch.float64)) / 11, rtol=0, atol=1e-6)


def test_small_reg_follows_the_best_matching() -> None:
    generator = torch.Generator().manual_seed(3)
    for n in (4, 6, 8):
        x = torch.randn(n, 6, dtype=torch.float64, generator=generator)
        cost = torch.cdist(x, x).square()
        plan = balance(cost, reg=2e-3, solver=Sweeps(20_000)).plan
        best = exact_matching(cost)
        assert abs(float((plan * cost).sum() - (best * cost).sum())) < 0.05
        torch.testing.assert_close(plan.sum(dim=0), torch.ones(n, dtype=torch.float64))


def test_rows_of_any_finite_length_are_normalised() -> None:
    """Squares of these norms leave float32; a naive normalisation gives all ones, NaN, or a wrong floor."""
    x = torch.randn(30, 8, generator=torch.Generator().manual_seed(1))
    expected = balanced_affinities(x)
    for length in (1e-30, 1e-13, 1e13, 1e30):
        torch.testing.assert_close(balanced_affinities(x * length), expected, rtol=0, atol=1e-5)


def test_known_labels_are_written_in() -> None:
    x = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 0, -1, -1, 1])
    result = balanced_affinities(x, support_labels=labels)
    free = balanced_affinities(x)
    for i in range(6):
        for j in range(6):
            if i == j:
                expected = torch.ones(2)
            elif labels[i] < 0 or labels[j] < 0:
                expected = free[:, i, j]
            else:
                expected = torch.full((2,), float(labels[i] == labels[j]))
            torch.testing.assert_close(result[:, i, j], expected, rtol=0, atol=1e-5)
