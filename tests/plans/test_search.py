"""The exact search against full sorts: values, positions, ties, blocks, and an item in its own list."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bpa.errors import ArgumentError, ShapeError
from bpa.plans import nearest_neighbours
from bpa.plans._search import largest, search, smallest


def points(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5


def costs_of(x: torch.Tensor, y: torch.Tensor, cost: str) -> torch.Tensor:
    """All costs, from the definitions; the mean is that of ``y``."""
    if cost == "sqeuclidean":
        return torch.cdist(x, y).square()
    x, y = x / x.norm(dim=1, keepdim=True), y / y.norm(dim=1, keepdim=True)
    if cost == "centred-cosine":
        mean = y.mean(dim=0)
        x, y = ((rows - mean) / (rows - mean).norm(dim=1, keepdim=True) for rows in (x, y))
    return 1 - x @ y.T


@pytest.mark.parametrize("cost", ["cosine", "centred-cosine", "sqeuclidean"])
@pytest.mark.parametrize("k", [1, 7, 40])
def test_neighbours_are_those_of_a_full_sort(cost: str, k: int) -> None:
    x, y = points(150, 6), points(20, 6, seed=3)
    among = costs_of(x, x, cost).fill_diagonal_(torch.inf)
    for found, expected in (
        (nearest_neighbours(x, k, cost=cost), among),
        (nearest_neighbours(x, k, y=y, cost=cost), costs_of(y, x, cost)),
    ):
        value, index = expected.sort(dim=1)
        np.testing.assert_allclose(found.costs.numpy(), value[:, :k].numpy(), atol=1e-9)
        np.testing.assert_array_equal(found.indices.numpy(), index[:, :k].numpy())


def test_neighbours_over_several_blocks_are_those_of_a_full_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bpa.plans._search._rows_at_once", lambda *_: 300)
    x = points(1700, 5)
    value, index = costs_of(x, x, "cosine").fill_diagonal_(torch.inf).sort(dim=1)
    found = nearest_neighbours(x, 5)
    np.testing.assert_allclose(found.costs.numpy(), value[:, :5].numpy(), atol=1e-12)
    np.testing.assert_array_equal(found.indices.numpy(), index[:, :5].numpy())


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 700), st.integers(1, 30), st.integers(1, 40)
)
def test_selection_is_a_stable_sort_also_where_entries_are_equal(
    seed: int, m: int, n: int, k: int, levels: int
) -> None:
    values = torch.from_numpy(np.random.default_rng(seed).integers(0, levels, (m, n)).astype(np.float64))
    k = min(k, n)
    for select, sign in ((smallest, 1), (largest, -1)):
        order = np.argsort(sign * values.numpy(), axis=1, kind="stable")[:, :k]
        found, index = select(values, k)
        np.testing.assert_array_equal(index.numpy(), order)
        np.testing.assert_array_equal(found.numpy(), np.take_along_axis(values.numpy(), order, axis=1))


def test_infinite_entries_come_last_and_are_found() -> None:
    values = torch.full((2, 300), torch.inf)
    values[:, 7], values[1, 290] = 1.0, -torch.inf
    assert smallest(values, 2)[1].tolist() == [[7, 0], [290, 7]]


@pytest.mark.parametrize("own", ["excluded", "first", "as found"])
def test_an_item_in_its_own_list_is_where_it_was_asked_for(own: str) -> None:
    costs = torch.tensor([[0.0, 0.0, 2.0], [0.0, 0.0, 1.0], [2.0, 1.0, 0.0]])
    farthest = torch.empty(3)
    found = search(lambda span: costs[span].clone(), 3, 3, 2, own=own, farthest=farthest)
    expected = {
        "excluded": [[1, 2], [0, 2], [1, 0]],
        "first": [[0, 1], [1, 0], [2, 1]],
        "as found": [[0, 1], [0, 1], [2, 1]],
    }
    assert found.indices.tolist() == expected[own]
    assert farthest.tolist() == [2.0, 1.0, 2.0]


def test_what_cannot_be_searched_is_said() -> None:
    x = points(30, 4)
    with pytest.raises(ArgumentError, match="at most 29"):
        nearest_neighbours(x, 30)
    with pytest.raises(ArgumentError, match="'cost'"):
        nearest_neighbours(x, 3, cost="manhattan")
    with pytest.raises(ShapeError, match="4 features"):
        nearest_neighbours(x, 3, y=points(3, 5))
