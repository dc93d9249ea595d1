"""k-reciprocal re-ranking against published numbers and a dense procedure written from the equations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bpa.errors import ArgumentError, MemoryBudgetError
from bpa.hosts.retrieval import k_reciprocal
from bpa.plans._search import smallest
from bpa.plans._sparse import SparseRows, intersections, products

POINTS = [
    (0, 0), (5.13, 0.21), (0.37, 5.29),
    (0.41, 0.17), (0.11, 0.93), (1.31, 0.23), (5.47, 0.97), (4.43, 0.59), (0.29, 4.33), (2.71, 2.63),
]  # fmt: skip
# printed by the published Python procedure on these points
GOLDEN = {
    (4, 2, 0.3, 2): """
0.001915 0.109513 0.122737 1.000000 0.894153 0.883071 0.774304
0.837917 0.830893 0.760583 0.142880 0.003927 0.909393 0.476981
0.862281 0.789781 0.834211 0.976529 0.898088 0.005744 0.687487""",
    (3, 1, 0.3, 2): """
0.008523 0.021019 0.043641 1.000000 0.894153 0.883071 0.838628
0.837917 0.859204 0.790332 0.013350 0.256138 0.950083 0.657362
0.862281 0.818091 0.863960 0.976529 0.938777 0.319981 0.676752""",
    (4, 2, 1.0, 2): """
0.006383 0.028417 0.057320 1.000000 0.647175 0.610237 0.462092
0.459723 0.530678 0.301106 0.014303 0.013090 0.833608 0.241680
0.540938 0.393636 0.546534 0.921765 0.795923 0.019148 0.258980""",
    (4, 2, 0.3, 4): """
0.000012 0.117476 0.120787 1.000000 0.825651 0.811717 0.695125
0.763403 0.750967 0.692839 0.152148 0.000051 0.863048 0.416549
0.787784 0.712966 0.755249 0.954895 0.844625 0.000110 0.619749""",
}


def dense(x, n_query, k1, k2, lam, power=2, self_first=True, squared=None):
    """The procedure step by step with Python sets and n × n arrays in float64."""
    x = np.asarray(x, dtype=np.float64)
    n = len(x)
    d2 = ((x[:, None] - x[None]) ** 2).sum(-1) if squared is None else np.array(squared, dtype=np.float64)
    np.fill_diagonal(d2, 0)
    dn = d2 ** (power // 2)
    dn = dn / dn.max(axis=1, keepdims=True)
    rank = []
    for i in range(n):
        order = sorted(range(n), key=lambda j, i=i: (d2[i, j], j))
        if self_first:
            order.remove(i)
            order.insert(0, i)
        rank.append(order)
    half = int(np.around(k1 / 2))

    def reciprocal(i, k):
        return {j for j in rank[i][: k + 1] if i in rank[j][: k + 1]}

    v = np.zeros((n, n))
    for i in range(n):
        base = reciprocal(i, k1)
        expanded = set(base)
        for c in base:
            candidate = reciprocal(c, half)
            if 3 * len(candidate & base) > 2 * len(candidate):
                expanded |= candidate
        for j in expanded:
            v[i, j] = np.exp(-dn[i, j])
        v[i] /= v[i].sum()
    if k2 > 1:
        v = np.stack([v[rank[i][:k2]].mean(axis=0) for i in range(n)])
    out = np.empty((n_query, n - n_query))
    for i in range(n_query):
        for j in range(n_query, n):
            shared = np.minimum(v[i], v[j]).sum()
            out[i, j - n_query] = (1 - lam) * (1 - shared / np.maximum(v[i], v[j]).sum()) + lam * dn[i, j]
    return out


@pytest.mark.parametrize("setting", list(GOLDEN))
def test_published_values_come_out(setting):
    k1, k2, lam, power = setting
    expected = np.array([[float(v) for v in line.split()] for line in GOLDEN[setting].strip().splitlines()])
    x = torch.tensor(POINTS, dtype=torch.float32)
    result = k_reciprocal(x, 3, k1=k1, k2=k2, lam=lam, power=power).distances()
    np.testing.assert_allclose(result.numpy(), expected, atol=2e-6)
    np.testing.assert_allclose(dense(POINTS, 3, k1, k2, lam, power), expected, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(6, 40),
    st.integers(1, 12),
    st.integers(1, 6),
    st.floats(0, 1),
    st.sampled_from([2, 4]),
    st.booleans(),
)
def test_sparse_equals_dense_from_features_distances_and_lists(seed, n, k1, k2, lam, power, duplicates):
    rng = np.random.default_rng(seed)
    k1, k2 = min(k1, n - 1), min(k2, k1 + 1)
    x = rng.normal(size=(n, 3))
    if duplicates:  # exact twins, on a grid so that sums of squares are exact
        x = rng.integers(0, 3, size=(n, 2)).astype(float)
        if len(np.unique(x, axis=0)) < 2:
            return
    n_query = int(rng.integers(1, n))
    t = torch.tensor(x)
    expected = dense(x, n_query, k1, k2, lam, power)
    options = {"k1": k1, "k2": k2, "lam": lam, "power": power}
    got = k_reciprocal(t, n_query, **options)
    np.testing.assert_allclose(got.distances().numpy(), expected, atol=1e-9)
    distances = torch.tensor(np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1)))
    np.testing.assert_allclose(
        k_reciprocal(distances=distances, n_query=n_query, **options).distances().numpy(), expected, atol=1e-7
    )
    value, index = smallest(distances, n)
    whole = k_reciprocal(lists=(index, value), n_query=n_query, **options).distances().numpy()
    np.testing.assert_allclose(whole, expected, atol=1e-7)
    best, _ = got.top(3)
    np.testing.assert_array_equal(best.numpy(), smallest(got.distances(), 3)[1].numpy())


def test_float32_ranks_like_float64_on_features_in_general_position():
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(12, 16))
    x = centres[rng.integers(0, 12, 150)] + 0.6 * rng.normal(size=(150, 16))
    expected = dense(x, 40, 10, 4, 0.3)
    got = k_reciprocal(torch.tensor(x, dtype=torch.float32), 40, k1=10, k2=4, lam=0.3).distances().numpy()
    np.testing.assert_allclose(got, expected, atol=2e-5)


def test_twins_precede_an_item_only_when_self_first_is_off():
    x = [(0.0, 0.0), (1.0, 0.0), (1.0, 0.0), (3.0, 0.0), (3.5, 0.0), (7.0, 1.0)]
    for self_first in (True, False):
        expected = dense(x, 2, 1, 2, 0.3, self_first=self_first)
        got = k_reciprocal(
            torch.tensor(x, dtype=torch.float64), 2, k1=1, k2=2, self_first=self_first
        ).distances()
        np.testing.assert_allclose(got.numpy(), expected, atol=1e-12)
    # self first: item 2 is its own neighbour although its twin 1 comes before it by index
    first = k_reciprocal(torch.tensor(x, dtype=torch.float64), 2, k1=1, k2=1).encoding.dense()
    assert first[2, 2] > 0


def test_all_against_all_keeps_every_item_on_both_sides():
    x = torch.randn(25, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    both = k_reciprocal(x, 25, k1=6, k2=3, all_against_all=True).distances()
    assert both.shape == (25, 25)
    one_sided = k_reciprocal(x, 10, k1=6, k2=3).distances()
    torch.testing.assert_close(both[:10, 10:], one_sided)
    torch.testing.assert_close(both.diagonal(), torch.zeros(25, dtype=torch.float64), atol=1e-12, rtol=0)


def test_blocks_do_not_change_values():
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(2))
    fitted = k_reciprocal(x, 20, k1=8, k2=3)
    for block in (1, 7, 100):
        pieces = list(fitted.blocks(block))
        assert [start for start, _ in pieces] == list(range(0, 20, block))
        torch.testing.assert_close(
            torch.cat([rows for _, rows in pieces]), fitted.distances(), atol=1e-6, rtol=0
        )


def test_short_lists_rank_the_near_items_like_the_whole():
    rng = np.random.default_rng(8)
    x = np.repeat(rng.normal(size=(20, 8)), 6, axis=0) + 0.2 * rng.normal(size=(120, 8))
    distances = torch.tensor(np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1)))
    value, index = smallest(distances, 40)
    full = k_reciprocal(distances=distances, n_query=30, k1=6, k2=3, lam=0.0).distances()
    listed = k_reciprocal(lists=(index, value), n_query=30, k1=6, k2=3, lam=0.0).distances()
    overlap = (smallest(full, 4)[1][:, :, None] == smallest(listed, 4)[1][:, None, :]).any(-1).double().mean()
    assert overlap > 0.85


def test_arguments_that_make_no_sense_are_named():
    x = torch.randn(10, 3)
    with pytest.raises(ArgumentError, match="Got none"):
        k_reciprocal(n_query=3)
    assert len(repr(k_reciprocal(x, 3, k1=3, k2=2))) < 200
    with pytest.raises(ArgumentError, match="exactly one of"):
        k_reciprocal(x, 3, distances=torch.zeros(10, 10))
    with pytest.raises(ArgumentError, match="'power'"):
        k_reciprocal(x, 3, power=3)
    with pytest.raises(ArgumentError, match="leave a gallery"):
        k_reciprocal(x, 10)
    with pytest.raises(ArgumentError, match="'k2'"):
        k_reciprocal(x, 3, k1=2, k2=9)
    with pytest.raises(MemoryBudgetError, match="smaller k1"):
        k_reciprocal(x, 3, budget="1kB")
    with pytest.raises(ArgumentError, match="search wider"):
        k_reciprocal(lists=(torch.zeros(10, 2, dtype=torch.long), torch.zeros(10, 2)), n_query=3, k1=5, k2=2)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 8), st.integers(1, 9), st.integers(1, 50))
def test_sparse_products_equal_dense_ones(seed, q, m, g, chunk):
    rng = np.random.default_rng(seed)
    a = rng.random((q, m)) * (rng.random((q, m)) < 0.5)
    b = rng.random((g, m)) * (rng.random((g, m)) < 0.5)

    def sparse(matrix):
        row, column = np.nonzero(matrix)
        value = torch.tensor(matrix[row, column])
        return SparseRows.from_pairs(torch.tensor(row), torch.tensor(column), value, matrix.shape)

    left, right = sparse(a), sparse(b).transpose()
    np.testing.assert_allclose(sparse(a).dense().numpy(), a)
    np.testing.assert_allclose(right.dense().numpy(), b.T)
    for has_product in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bpa.plans._sparse._HAS_SPARSE_PRODUCT", has_product)
            np.testing.assert_allclose(products(left, right, chunk=chunk).numpy(), a @ b.T, atol=1e-12)
    expected = np.minimum(a[:, None], b[None]).sum(-1)
    np.testing.assert_allclose(intersections(left, right, chunk=chunk).numpy(), expected, atol=1e-12)
