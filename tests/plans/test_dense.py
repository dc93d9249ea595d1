"""The lazy object against a dense float64 derivation written from the equations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bpa.errors import (
    ArgumentError,
    ConvergenceWarning,
    FileError,
    MemoryBudgetError,
    NonFiniteError,
    ShapeError,
)
from bpa.plans.dense import DensePlan


def features(n: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(max(2, n // 8), d, generator=generator, dtype=torch.float64)
    label = torch.randint(len(centres), (n,), generator=generator)
    noise = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return (centres[label] + 0.7 * noise).to(dtype)


def cost_of(x: np.ndarray, cost: str) -> np.ndarray:
    n = len(x)
    c = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            if cost == "cosine":
                c[i, j] = 1 - x[i] @ x[j] / (np.linalg.norm(x[i]) * np.linalg.norm(x[j]))
            else:
                c[i, j] = ((x[i] - x[j]) ** 2).sum()
    return c


def oracle(
    x: torch.Tensor, reg: float, *, cost: str = "cosine", sweeps: int = 3000, scale: bool = True
) -> np.ndarray:
    """Algorithm 1 in float64 NumPy, log domain, from the equations."""
    log_k = -cost_of(x.double().numpy(), cost) / reg
    np.fill_diagonal(log_k, -np.inf)
    lu, lv = np.zeros(len(x)), np.zeros(len(x))
    for _ in range(sweeps):
        lu = -np.logaddexp.reduce(log_k + lv[None, :], axis=1)
        lv = -np.logaddexp.reduce(log_k + lu[:, None], axis=0)
    plan = np.exp(log_k + lu[:, None] + lv[None, :])
    w = plan / plan.max()
    np.fill_diagonal(w, 1.0)
    return w


PATHS = [
    pytest.param({"keep": True}, id="kept"),
    pytest.param({"keep": False, "block": 7}, id="streamed in ragged tiles"),
    pytest.param({"keep": False, "block": 512}, id="streamed in one tile"),
]


@pytest.mark.parametrize("path", PATHS)
def test_dense_is_the_converged_plan(path: dict[str, object]) -> None:
    x = features(45, 12)
    w = DensePlan.fit(x, reg=0.1, tol=1e-11, **path).dense()
    np.testing.assert_allclose(w.numpy(), oracle(x, 0.1), atol=1e-9)


@pytest.mark.parametrize("path", PATHS)
def test_alternating_is_algorithm_1_after_five_sweeps(path: dict[str, object]) -> None:
    x = features(45, 12)
    w = DensePlan.fit(x, reg=0.1, solver="alternating", n_iter=5, **path).dense()
    expected = oracle(x, 0.1, sweeps=5)
    assert abs(expected - expected.T).max() > 1e-6  # so a mix-up of rows and columns would show
    np.testing.assert_allclose(w.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("block", [7, 64])
@pytest.mark.parametrize("solver", ["symmetric", "alternating"])
def test_the_squared_euclidean_cost_is_streamed_too(block: int, solver: str) -> None:
    x = features(30, 5) + 100.0  # far from the origin
    options = {"tol": 1e-10} if solver == "symmetric" else {"n_iter": 5}
    lazy = DensePlan.fit(x, reg=8.0, cost="sqeuclidean", solver=solver, block=block, **options)
    sweeps = 4000 if solver == "symmetric" else 5
    np.testing.assert_allclose(
        lazy.dense().numpy(), oracle(x, 8.0, cost="sqeuclidean", sweeps=sweeps), atol=1e-8
    )


def test_small_reg_is_solved_in_the_log_domain() -> None:
    x = features(24, 12, dtype=torch.float32)
    lazy = DensePlan.fit(x, reg=0.01, solver="alternating", n_iter=5, block=10)
    np.testing.assert_allclose(lazy.dense().numpy(), oracle(x, 0.01, sweeps=5), atol=2e-4)
    assert not lazy.report.kept


@pytest.mark.parametrize("path", PATHS)
def test_float32_is_near_float64(path: dict[str, object]) -> None:
    x = features(120, 16)
    double = DensePlan.fit(x, reg=0.05, **path).dense()
    single = DensePlan.fit(x.float(), reg=0.05, **path).dense()
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), double.numpy(), atol=2e-5)


@pytest.mark.parametrize("solver", ["symmetric", "alternating"])
@pytest.mark.parametrize("path", PATHS)
def test_every_answer_is_a_view_of_the_same_w(path: dict[str, object], solver: str) -> None:
    x = features(50, 9)
    lazy = DensePlan.fit(x, reg=0.1, solver=solver, **path)
    w = lazy.dense().clone()
    index = [3, 0, 49, 3, -1]
    np.testing.assert_allclose(lazy.rows(index).numpy(), w[[3, 0, 49, 3, 49]].numpy(), atol=1e-12)
    pieces = list(lazy.row_blocks(8))
    np.testing.assert_allclose(torch.cat([rows for _, rows in pieces]).numpy(), w.numpy(), atol=1e-12)
    assert [(rows.start, rows.stop) for rows, _ in pieces][-1] == (48, 50)
    off = w.clone().fill_diagonal_(-1)
    for k in (1, 6, 49):
        values, indices = lazy.top_k(k)
        expected = off.topk(k, dim=1)
        np.testing.assert_allclose(values.numpy(), expected.values.numpy(), atol=1e-12)
        np.testing.assert_allclose(off.gather(1, indices).numpy(), expected.values.numpy(), atol=1e-12)
    np.testing.assert_array_equal(lazy.dense().numpy(), w.numpy())  # nothing above wrote into it


@pytest.mark.parametrize("path", PATHS)
def test_distances_are_those_of_the_rows(path: dict[str, object]) -> None:
    x = features(40, 9)
    lazy = DensePlan.fit(x, reg=0.1, **path)
    w = lazy.dense().numpy()
    i, j = np.array([5, 0, 39]), np.array([7, 5, 11, 12])
    difference = w[i][:, None, :] - w[j][None, :, :]
    np.testing.assert_allclose(lazy.distances(i, j).numpy(), np.linalg.norm(difference, axis=-1), atol=1e-7)
    np.testing.assert_allclose(
        lazy.distances(i, metric="sqeuclidean").numpy(), ((w[i][:, None] - w[None]) ** 2).sum(-1), atol=1e-12
    )
    cosine = 1 - w[i] @ w[j].T / np.linalg.norm(w[i], axis=1)[:, None] / np.linalg.norm(w[j], axis=1)
    np.testing.assert_allclose(
        lazy.distances(i, j, metric="cosine").numpy(), np.where(i[:, None] == j, 0, cosine), atol=1e-12
    )
    assert lazy.distances(i, j)[0, 1] == 0  # the same item on both sides


@pytest.mark.parametrize("cost", ["cosine", "sqeuclidean"])
@pytest.mark.parametrize("path", [PATHS[1], PATHS[2]])
def test_fitted_items_transform_to_their_rows(path: dict[str, object], cost: str) -> None:
    x = features(40, 9)
    reg = 0.1 if cost == "cosine" else 5.0
    lazy = DensePlan.fit(x, reg=reg, cost=cost, tol=1e-10, **path)
    order = [4, 4, 17, 0]
    np.testing.assert_allclose(lazy.transform(x[order]).numpy(), lazy.rows(order).numpy(), atol=1e-8)
    np.testing.assert_allclose(lazy.columns(x[order]).numpy(), lazy.dense()[:, order].T.numpy(), atol=1e-8)


def test_new_items_follow_the_extension_formula() -> None:
    x, new = features(40, 9), features(6, 9, seed=5)
    lazy = DensePlan.fit(x, reg=0.1, solver="alternating", n_iter=3, block=11)
    both = torch.cat([x, new]).numpy()
    c = cost_of(both, "cosine")[40:, :40]
    g = lazy.log_v.numpy()
    f = -np.logaddexp.reduce(g - c / 0.1, axis=1)
    expected = np.exp(f[:, None] + g - c / 0.1)
    np.testing.assert_allclose(expected.sum(axis=1), 1)
    np.testing.assert_allclose(lazy.transform(new).numpy(), expected / lazy.scale, atol=1e-12)
    g_new = -np.logaddexp.reduce(lazy.log_u.numpy() - c / 0.1, axis=1)
    column = np.exp(g_new[:, None] + lazy.log_u.numpy() - c / 0.1) / lazy.scale
    np.testing.assert_allclose(lazy.columns(new).numpy(), column, atol=1e-12)


def test_the_length_of_a_new_item_does_not_matter_and_recognition_can_be_off() -> None:
    x = features(30, 9)
    lazy = DensePlan.fit(x, reg=0.1)
    np.testing.assert_allclose(lazy.transform(7.5 * x[:3]).numpy(), lazy.transform(x[:3]).numpy(), atol=1e-9)
    stranger = lazy.transform(x[:3], recognise=False) * lazy.scale
    np.testing.assert_allclose(stranger.sum(dim=1).numpy(), 1, atol=1e-12)
    assert (stranger.diagonal() > 0.05).all()  # it matches itself most


def test_permuting_the_set_permutes_rows_and_columns() -> None:
    x = features(60, 9)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    w = DensePlan.fit(x, reg=0.1, keep=False, block=13).dense()
    np.testing.assert_allclose(
        DensePlan.fit(x[order], reg=0.1, keep=False, block=13).dense().numpy(),
        w[order][:, order].numpy(),
        atol=1e-6,
    )


@pytest.mark.parametrize("path", PATHS)
def test_marginals_hold_to_the_reported_error_and_the_plan_is_symmetric(path: dict[str, object]) -> None:
    x = features(100, 9)
    lazy = DensePlan.fit(x, reg=0.05, scale=None, diagonal=0.0, **path)
    plan = lazy.dense()
    assert lazy.report.converged
    assert lazy.report.marginal_error <= 1e-6
    assert (plan.sum(dim=1) - 1).abs().max() <= 1.01 * lazy.report.marginal_error + 1e-14
    assert torch.equal(plan, plan.T)


def test_half_storage_rounds_float32_entries() -> None:
    x = features(60, 9, dtype=torch.float32)
    lazy = DensePlan.fit(x, reg=0.1, keep=False)
    half = lazy.dense(torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, lazy.dense().to(torch.bfloat16))


@pytest.mark.parametrize("solver", ["symmetric", "alternating"])
@pytest.mark.parametrize("cost", ["cosine", "sqeuclidean"])
def test_it_comes_back_from_a_file_unchanged(tmp_path, solver: str, cost: str) -> None:
    x = features(30, 9, dtype=torch.float32)
    lazy = DensePlan.fit(x, reg=2.0, solver=solver, cost=cost, block=8, keep=False)
    lazy.save(tmp_path / "fitted.npz")
    back = DensePlan.load(tmp_path / "fitted.npz")
    assert torch.equal(back.dense(), lazy.dense())
    assert torch.equal(back.transform(x[:4] + 1), lazy.transform(x[:4] + 1))
    assert back.report == lazy.report
    with np.load(tmp_path / "fitted.npz", allow_pickle=False) as stored:  # nothing in it needs pickle
        assert all(stored[key].dtype != object for key in stored.files)


def test_files_that_are_something_else_are_refused(tmp_path) -> None:
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    np.savez(tmp_path / "pickle.npz", format=np.array([{"a": 1}], dtype=object))
    (tmp_path / "text.npz").write_text("no")
    for name in ("other.npz", "pickle.npz", "text.npz", "absent.npz"):
        with pytest.raises(FileError):
            DensePlan.load(tmp_path / name)


def test_what_cannot_be_done_is_said() -> None:
    x = features(20, 4)
    with pytest.raises(ShapeError, match=r"\(n, d\) with n ≥ 2"):
        DensePlan.fit(x[:1], reg=0.1)
    with pytest.raises(NonFiniteError):
        DensePlan.fit(torch.full((4, 2), torch.nan), reg=0.1)
    with pytest.raises(ArgumentError, match="n_iter"):
        DensePlan.fit(x, reg=0.1, n_iter=5)
    with pytest.raises(ArgumentError, match="tol"):
        DensePlan.fit(x, reg=0.1, solver="alternating", tol=1e-3)
    with pytest.raises(ArgumentError, match="keep"):
        DensePlan.fit(x.float(), reg=0.01, keep=True)
    lazy = DensePlan.fit(x, reg=0.1)
    with pytest.raises(ArgumentError, match="at most n − 1 = 19"):
        lazy.top_k(20)
    with pytest.raises(ArgumentError, match="outside"):
        lazy.rows([20])
    with pytest.raises(ArgumentError, match="whole numbers"):
        lazy.rows(torch.zeros(2))
    with pytest.raises(ShapeError, match="4 features"):
        lazy.transform(torch.zeros(2, 5))


def test_an_unreached_tolerance_is_data_and_one_warning() -> None:
    x = features(60, 9)
    with pytest.warns(ConvergenceWarning, match="marginal error"):
        lazy = DensePlan.fit(x, reg=0.05, max_iter=2)
    assert not lazy.report.converged
    assert lazy.report.marginal_error > 1e-6
    assert lazy.report.n_iter == 2


def test_the_budget_decides_what_is_kept_and_refuses_what_does_not_fit() -> None:
    x = features(300, 8, dtype=torch.float32)
    assert DensePlan.fit(x, reg=0.1).report.kept
    roomy = DensePlan.fit(x, reg=0.1, block=16, budget="1GB")
    tight = DensePlan.fit(x, reg=0.1, block=16, budget=roomy.report.bytes_estimated - 1)
    assert roomy.report.kept
    assert not tight.report.kept
    np.testing.assert_allclose(tight.dense().numpy(), roomy.dense().numpy(), atol=1e-5)
    with pytest.raises(MemoryBudgetError, match="sparse"):
        DensePlan.fit(x, reg=0.1, budget="1MB")
