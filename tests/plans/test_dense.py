"""The dense plan against a dense float64 derivation written from the equations."""

from __future__ import annotations

from dataclasses import replace

import algorithm_1
import numpy as np
import pytest
import torch

from bpa import balance, balanced_affinities, choose_reg
from bpa.errors import (
    ArgumentError,
    ConvergenceWarning,
    DTypeError,
    MemoryBudgetError,
    NonFiniteError,
    ShapeError,
    UnknownArgumentError,
)
from bpa.kernels import _tiles
from bpa.kernels._recipe import PlanRequest
from bpa.plans import DensePlan
from bpa.solvers import Converged, Sweeps


def features(n: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(max(2, n // 8), d, generator=generator, dtype=torch.float64)
    label = torch.randint(len(centres), (n,), generator=generator)
    noise = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return (centres[label] + 0.7 * noise).to(dtype)


PATHS = [
    pytest.param({"keep": True}, id="kept"),
    pytest.param({"keep": False, "side": 7}, id="streamed in ragged tiles"),
    pytest.param({"keep": False, "side": 512}, id="streamed in one tile"),
]


def fit(x: torch.Tensor, *, side: int | None = None, **options: object) -> DensePlan:
    """The plan, from tiles of another side than the usual one."""
    with pytest.MonkeyPatch.context() as patch:
        if side is not None:
            patch.setattr(_tiles, "_SIDE", side)
        return DensePlan.fit(x, **options)


@pytest.mark.parametrize("path", PATHS)
def test_dense_is_the_converged_plan(path: dict[str, object]) -> None:
    x = features(45, 12)
    w = fit(x, reg=0.1, solver=Converged(1e-11), **path).affinities()
    np.testing.assert_allclose(w.numpy(), algorithm_1.affinities(x, 0.1, 3000), atol=1e-9)


@pytest.mark.parametrize("path", PATHS)
def test_alternating_is_algorithm_1_after_five_sweeps(path: dict[str, object]) -> None:
    x = features(45, 12)
    w = fit(x, reg=0.1, solver=Sweeps(5), **path).affinities()
    expected = algorithm_1.affinities(x, 0.1, 5)
    assert abs(expected - expected.T).max() > 1e-6  # so a mix-up of rows and columns would show
    np.testing.assert_allclose(w.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("solver", [Converged(1e-10), Sweeps(5)], ids=str)
def test_the_squared_euclidean_cost_is_served_too(
    path: dict[str, object], solver: Converged | Sweeps
) -> None:
    x = features(30, 5) + 100.0  # far from the origin
    plan = fit(x, reg=8.0, cost="sqeuclidean", solver=solver, **path)
    assert plan.kept == path["keep"]
    sweeps = 4000 if isinstance(solver, Converged) else 5
    expected = algorithm_1.affinities(x, 8.0, sweeps, cost="sqeuclidean")
    np.testing.assert_allclose(plan.affinities().numpy(), expected, atol=1e-8)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shift", [0.0, 1e4], ids=["costs", "costs with a constant"])
def test_given_costs_are_a_plan_like_any_other(path: dict[str, object], shift: float) -> None:
    x, new = features(30, 5), features(4, 5, seed=3)
    given = torch.cdist(x, x).square() + shift  # a constant off the diagonal changes nothing
    late = torch.cdist(new, x).square() + shift
    plan = fit(given, reg=4.0, cost="precomputed", solver=Converged(1e-11), **path)
    of_features = fit(x, reg=4.0, cost="sqeuclidean", solver=Converged(1e-11), **path)
    np.testing.assert_allclose(plan.affinities().numpy(), of_features.affinities().numpy(), atol=1e-8)
    np.testing.assert_allclose(plan.transform(late).numpy(), of_features.transform(new).numpy(), atol=1e-8)
    np.testing.assert_allclose(
        plan.distances([3, 1]).numpy(), of_features.distances([3, 1]).numpy(), atol=1e-7
    )
    np.testing.assert_array_equal(plan.top_k(5).indices.numpy(), of_features.top_k(5).indices.numpy())
    if shift == 0:
        np.testing.assert_allclose(
            plan.transform(given[[4, 0]]).numpy(), plan.rows([4, 0]).numpy(), atol=1e-9
        )
    with pytest.raises(ArgumentError, match="symmetric costs"):
        DensePlan.fit(given + torch.arange(30), reg=4.0, cost="precomputed")
    with pytest.raises(ArgumentError, match="'auto'"):
        DensePlan.fit(given, reg="auto", cost="precomputed")


def test_small_reg_is_solved_in_the_log_domain() -> None:
    x = features(24, 12, dtype=torch.float32)
    plan = fit(x, reg=0.01, solver=Sweeps(5), side=10)
    np.testing.assert_allclose(plan.affinities().numpy(), algorithm_1.affinities(x, 0.01, 5), atol=2e-4)
    assert not plan.kept


@pytest.mark.parametrize("path", PATHS)
def test_float32_is_near_float64(path: dict[str, object]) -> None:
    x = features(120, 16)
    double = fit(x, reg=0.05, **path).affinities()
    single = fit(x.float(), reg=0.05, **path).affinities()
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), double.numpy(), atol=2e-5)


@pytest.mark.parametrize("solver", [Converged(), Sweeps(5)], ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_every_answer_is_a_view_of_the_same_w(path: dict[str, object], solver: Converged | Sweeps) -> None:
    x = features(50, 9)
    plan = fit(x, reg=0.1, solver=solver, **path)
    w = plan.affinities().clone()
    index = [3, 0, 49, 3, -1]
    np.testing.assert_allclose(plan.rows(index).numpy(), w[[3, 0, 49, 3, 49]].numpy(), atol=1e-12)
    pieces = list(plan.row_blocks(8))
    np.testing.assert_allclose(torch.cat([rows for _, rows in pieces]).numpy(), w.numpy(), atol=1e-12)
    assert [(rows.start, rows.stop) for rows, _ in pieces][-1] == (48, 50)
    off = w.clone().fill_diagonal_(-1)
    for k in (1, 6, 49):
        values, indices = plan.top_k(k)
        expected = off.topk(k, dim=1)
        np.testing.assert_allclose(values.numpy(), expected.values.numpy(), atol=1e-12)
        np.testing.assert_allclose(off.gather(1, indices).numpy(), expected.values.numpy(), atol=1e-12)
    np.testing.assert_array_equal(plan.affinities().numpy(), w.numpy())  # nothing above wrote into it


@pytest.mark.parametrize("path", PATHS)
def test_distances_are_those_of_the_rows(path: dict[str, object]) -> None:
    x = features(40, 9)
    plan = fit(x, reg=0.1, **path)
    w = plan.affinities().numpy()
    i, j = np.array([5, 0, 39]), np.array([7, 5, 11, 12])
    difference = w[i][:, None, :] - w[j][None, :, :]
    np.testing.assert_allclose(plan.distances(i, j).numpy(), np.linalg.norm(difference, axis=-1), atol=1e-7)
    np.testing.assert_allclose(
        plan.distances(i, metric="sqeuclidean").numpy(), ((w[i][:, None] - w[None]) ** 2).sum(-1), atol=1e-12
    )
    cosine = 1 - w[i] @ w[j].T / np.linalg.norm(w[i], axis=1)[:, None] / np.linalg.norm(w[j], axis=1)
    np.testing.assert_allclose(
        plan.distances(i, j, metric="cosine").numpy(), np.where(i[:, None] == j, 0, cosine), atol=1e-12
    )
    assert plan.distances(i, j)[0, 1] == 0  # the same item on both sides


@pytest.mark.parametrize("cost", ["cosine", "sqeuclidean"])
@pytest.mark.parametrize("path", [PATHS[1], PATHS[2]])
def test_fitted_items_transform_to_their_rows(path: dict[str, object], cost: str) -> None:
    x = features(40, 9)
    reg = 0.1 if cost == "cosine" else 5.0
    plan = fit(x, reg=reg, cost=cost, solver=Converged(1e-10), **path)
    order = [4, 4, 17, 0]
    np.testing.assert_allclose(plan.transform(x[order]).numpy(), plan.rows(order).numpy(), atol=1e-8)
    columns = plan.late(x[order]).columns()
    np.testing.assert_allclose(columns.numpy(), plan.affinities()[:, order].T.numpy(), atol=1e-8)


def test_new_items_follow_the_extension_formula() -> None:
    x, new = features(40, 9), features(6, 9, seed=5)
    plan = fit(x, reg=0.1, solver=Sweeps(3), side=11)
    both = torch.cat([x, new]).numpy()
    c = algorithm_1.costs(both, "cosine")[40:, :40]
    g = plan.log_v.numpy()
    f = -np.logaddexp.reduce(g - c / 0.1, axis=1)
    expected = np.exp(f[:, None] + g - c / 0.1)
    np.testing.assert_allclose(expected.sum(axis=1), 1)
    np.testing.assert_allclose(plan.transform(new).numpy(), expected / plan.scale, atol=1e-12)
    g_new = -np.logaddexp.reduce(plan.log_u.numpy() - c / 0.1, axis=1)
    column = np.exp(g_new[:, None] + plan.log_u.numpy() - c / 0.1) / plan.scale
    np.testing.assert_allclose(plan.late(new).columns().numpy(), column, atol=1e-12)


def test_the_length_of_a_new_item_does_not_matter_and_recognition_can_be_off() -> None:
    x = features(30, 9)
    plan = DensePlan.fit(x, reg=0.1)
    np.testing.assert_allclose(plan.transform(7.5 * x[:3]).numpy(), plan.transform(x[:3]).numpy(), atol=1e-9)
    stranger = plan.transform(x[:3], recognise=False) * plan.scale
    np.testing.assert_allclose(stranger.sum(dim=1).numpy(), 1, atol=1e-12)
    assert (stranger.diagonal() > 0.05).all()  # it matches itself most


def test_permuting_the_set_permutes_rows_and_columns() -> None:
    x = features(60, 9)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    w = fit(x, reg=0.1, keep=False, side=13).affinities()
    np.testing.assert_allclose(
        fit(x[order], reg=0.1, keep=False, side=13).affinities().numpy(),
        w[order][:, order].numpy(),
        atol=1e-6,
    )


@pytest.mark.parametrize("path", PATHS)
def test_marginals_hold_to_the_reported_error_and_the_plan_is_symmetric(path: dict[str, object]) -> None:
    x = features(100, 9)
    plan = fit(x, reg=0.05, scale=None, diagonal=0.0, **path)
    p = plan.affinities()
    assert bool(plan.convergence.converged)
    assert plan.convergence.marginal_error <= 1e-6
    assert (p.sum(dim=1) - 1).abs().max() <= 1.01 * plan.convergence.marginal_error + 1e-14
    assert torch.equal(p, p.T)


def test_half_storage_rounds_float32_entries() -> None:
    x = features(60, 9, dtype=torch.float32)
    plan = DensePlan.fit(x, reg=0.1, keep=False)
    half = plan.affinities(torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, plan.affinities().to(torch.bfloat16))


def test_what_cannot_be_done_is_said() -> None:
    x = features(20, 4)
    with pytest.raises(NonFiniteError):
        DensePlan.fit(torch.full((4, 2), torch.nan), reg=0.1)
    with pytest.raises(UnknownArgumentError, match=r"write solver=Sweeps\(n\)"):
        DensePlan.fit(x, reg=0.1, n_iter=5)
    with pytest.raises(DTypeError, match="'solver'"):
        DensePlan.fit(x, reg=0.1, solver="symmetric")
    with pytest.raises(ArgumentError, match=r"'keep'.*cannot be True: the logarithms of K span 200"):
        DensePlan.fit(x.float(), reg=0.01, keep=True)
    with pytest.raises(ArgumentError, match=r"'keep'.*must be True, False, None"):
        DensePlan.fit(x, reg=0.1, keep="yes")
    plan = DensePlan.fit(x, reg=0.1)
    with pytest.raises(ArgumentError, match="at most n − 1 = 19"):
        plan.top_k(20)
    with pytest.raises(ArgumentError, match="outside"):
        plan.rows([20])
    with pytest.raises(ArgumentError, match="whole numbers"):
        plan.rows(torch.zeros(2))
    with pytest.raises(ShapeError, match="4 features"):
        plan.transform(torch.zeros(2, 5))
    assert plan.rows([]).shape == (0, 20)


def test_an_unreached_tolerance_is_data_and_one_warning() -> None:
    x = features(60, 9)
    with pytest.warns(ConvergenceWarning, match="DensePlan.fit reached a marginal error") as seen:
        plan = DensePlan.fit(x, reg=0.05, solver=Converged(max_iter=2))
    assert [warning.filename for warning in seen] == [__file__]  # it points at the caller
    assert not bool(plan.convergence.converged)
    assert plan.convergence.marginal_error > 1e-6
    assert int(plan.convergence.n_iter) == 2
    assert "NOT converged" in repr(plan)


@pytest.mark.parametrize("path", PATHS)
def test_a_few_sweeps_are_not_called_converged(path: dict[str, object]) -> None:
    plan = fit(features(60, 9), reg=0.01, solver=Sweeps(1), **path)
    plan_sums = plan.affinities().clone().fill_diagonal_(0).sum(dim=1) * plan.scale
    assert plan.convergence.marginal_error == pytest.approx(float((plan_sums - 1).abs().max()), rel=1e-6)
    assert plan.convergence.marginal_error > 0.1
    assert not bool(plan.convergence.converged)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_smallest_sets_are_those_of_the_transform(n: int) -> None:
    x = features(5, 4)[:n]
    for path in ({"keep": True}, {"keep": False}):
        plan = DensePlan.fit(x, reg=0.1, **path)
        expected = balanced_affinities(x, reg=0.1, solver=Converged())
        np.testing.assert_allclose(plan.affinities().numpy(), expected.numpy(), atol=1e-6)
        np.testing.assert_allclose(plan.transform(x).numpy(), expected.numpy(), atol=1e-6)
        assert plan.transform(features(2, 4, seed=4)).isfinite().all()


@pytest.mark.parametrize("n", [60, 400])
@pytest.mark.parametrize("cost", ["cosine", "sqeuclidean"])
def test_auto_is_the_rule_of_the_library_on_centred_directions(n: int, cost: str) -> None:
    x = features(n, 12) + 3.0
    plan = DensePlan.fit(x, reg="Auto", cost=cost, solver=Converged(1e-10))
    base = x / x.norm(dim=1, keepdim=True) if cost == "cosine" else x
    moved = base - base.mean(dim=0)
    moved = moved / moved.norm(dim=1, keepdim=True)
    if cost == "cosine":
        assert plan.reg == pytest.approx(float(choose_reg(x).reg), rel=1e-9)
    assert plan.cost == "centred-cosine"
    costs = 1 - moved @ moved.T
    found = balance(costs, reg=plan.reg, solver=Converged(1e-10)).plan
    np.testing.assert_allclose(
        plan.affinities().clone().fill_diagonal_(0).numpy(), (found / found.max()).numpy(), atol=1e-8
    )
    by_hand = DensePlan.fit(moved, reg=plan.reg, solver=Converged(1e-10))
    new = features(5, 12, seed=8) + 3.0
    late = new / new.norm(dim=1, keepdim=True) if cost == "cosine" else new
    expected = by_hand.transform(late - base.mean(dim=0))
    np.testing.assert_allclose(plan.transform(new).numpy(), expected.numpy(), atol=1e-9)
    np.testing.assert_allclose(
        plan.transform(2 * x[:3] if cost == "cosine" else x[:3]).numpy(), plan.rows([0, 1, 2])
    )
    named = DensePlan.fit(x, reg=plan.reg, cost="centred-cosine", solver=Converged(1e-10))
    if cost == "cosine":
        np.testing.assert_allclose(named.affinities().numpy(), plan.affinities().numpy(), atol=1e-12)


def test_auto_of_a_large_set_makes_no_matrix_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("a large set needs no cosines for its weight")

    monkeypatch.setattr("bpa.plans._plan.weigh", forbidden)
    assert DensePlan.fit(features(1000, 4), reg="auto", solver=Converged(1e-2)).reg == 0.15


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("reg", [0.1, "auto"])
def test_a_grown_set_is_balanced_from_where_it_was(path: dict[str, object], reg: float | str) -> None:
    x, new = features(80, 9), features(6, 9, seed=5)
    plan = fit(x, reg=reg, solver=Converged(1e-10), **path)
    grown = plan.add(new, solver=Converged(1e-10))
    assert (grown.n, grown.reg) == (86, plan.reg)
    if reg == 0.1:
        whole = fit(torch.cat([x, new]), reg=reg, solver=Converged(1e-10), **path)
        np.testing.assert_allclose(grown.affinities().numpy(), whole.affinities().numpy(), atol=1e-8)
        again = fit(torch.cat([x, new]), reg=reg, **path).convergence.n_iter
        assert fit(x, reg=reg, **path).add(new).convergence.n_iter < again
    sums = grown.affinities().clone().fill_diagonal_(0).sum(dim=1) * grown.scale
    np.testing.assert_allclose(sums.numpy(), 1, atol=1e-8)


@pytest.mark.parametrize("measure", ["euclidean", "cosine"])
def test_a_plan_held_in_half_precision_is_near_the_whole_one(measure: str) -> None:
    x = features(300, 9, dtype=torch.float32)
    whole = DensePlan.fit(x, reg=0.1, solver=Sweeps(5))
    half = DensePlan.fit(x, reg=0.1, solver=Sweeps(5), keep=torch.bfloat16)
    assert half.affinities().dtype == torch.bfloat16
    assert (half.affinities().float() - whole.affinities()).abs().max() < 0.02
    gap = half.distances([0, 5], metric=measure) - whole.distances([0, 5], metric=measure)
    assert gap.abs().max() < 0.05


def test_the_budget_decides_what_is_kept_and_refuses_what_does_not_fit() -> None:
    x = features(300, 8, dtype=torch.float32)
    assert DensePlan.fit(x, reg=0.1).kept
    roomy = fit(x, reg=0.1, side=16, budget="1GB")
    tight = fit(x, reg=0.1, side=16, budget=_estimate_of(roomy, 16) - 1)
    assert roomy.kept
    assert not tight.kept
    np.testing.assert_allclose(tight.affinities().numpy(), roomy.affinities().numpy(), atol=1e-5)
    with pytest.raises(MemoryBudgetError, match="GraphPlan"):
        DensePlan.fit(x, reg=0.1, budget="1MB")
    with pytest.raises(MemoryBudgetError, match="keep=False"):
        DensePlan.fit(x, reg=0.1, keep=True, budget="1MB")


def _estimate_of(plan: DensePlan, side: int) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tiles, "_SIDE", side)
        return plan.estimate.total


def test_the_two_kernels_say_why_not() -> None:
    request = PlanRequest(20000, 8, torch.float32, 20.0)
    assert "2 GB" not in str(_tiles.KEPT.why_not(request))
    assert "are allowed" in _tiles.KEPT.why_not(request)
    assert _tiles.STREAMED.why_not(request) is None
    small = replace(request, n=100)
    assert _tiles.KEPT.why_not(small) is None
    assert "leave torch.float32" in _tiles.KEPT.why_not(replace(small, spread=200.0))
    assert "keep=False" in _tiles.KEPT.why_not(replace(small, keep=False))
    assert "asked for" in _tiles.STREAMED.why_not(replace(small, keep=True))
    assert "even tiles need" in _tiles.STREAMED.why_not(replace(small, budget=1000))


def test_it_says_what_it_is_in_one_line() -> None:
    text = repr(DensePlan.fit(features(20, 4), reg=0.1))
    assert text.startswith("DensePlan(n=20, d=4, cost='cosine', reg=0.1, converged: marginal error ")
    assert len(text) < 110
