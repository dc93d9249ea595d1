"""Costs against their definition."""

from __future__ import annotations

import pytest
import torch
from scipy.spatial.distance import cdist
from torch.autograd import gradcheck

from bpa.cost import cosine_cost, sqeuclidean_cost

PAIRS = pytest.mark.parametrize(
    ("cost", "name"),
    [(cosine_cost, "cosine"), (sqeuclidean_cost, "sqeuclidean")],
    ids=["cosine", "sqeuclidean"],
)


@PAIRS
def test_costs_equal_scipy(cost, name: str, generator: torch.Generator) -> None:
    x = torch.randn(9, 5, generator=generator, dtype=torch.float64) + 3
    y = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    for other in (x, y):
        expected = torch.from_numpy(cdist(x.numpy(), other.numpy(), name))
        torch.testing.assert_close(cost(x, other), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(cost(x), cost(x, x), rtol=0, atol=1e-12)
    batch = torch.stack([x, 2 * x - 1])
    torch.testing.assert_close(cost(batch)[1], cost(batch[1]))


@PAIRS
def test_gradients(cost, name: str, generator: torch.Generator) -> None:
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64).requires_grad_()
    y = torch.randn(5, 3, generator=generator, dtype=torch.float64).requires_grad_()
    assert gradcheck(cost, (x, y))
    assert gradcheck(cost, (x,))


def test_coinciding_rows_have_finite_gradients() -> None:
    x = torch.ones(4, 3, requires_grad=True)
    sqeuclidean_cost(x).sum().backward()
    assert torch.isfinite(x.grad).all()


def test_far_from_the_origin_distances_stay_exact() -> None:
    x = torch.tensor([[0.0], [1.0], [3.0]]) + 4096.0
    torch.testing.assert_close(sqeuclidean_cost(x), torch.tensor([[0.0, 1, 9], [1, 0, 4], [9, 4, 0]]))
