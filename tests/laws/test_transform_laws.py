"""Laws that the transform keeps on any set, drawn at random."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bpa import balance, balanced_affinities
from bpa.cost import cosine_cost
from bpa.solvers import Converged, Sweeps

DTYPES = (torch.float32, torch.float64)
OPTIONS = (
    {},
    {"solver": Sweeps(1)},
    {"scale": None},
    {"scale_grad": True},
    {"symmetrize": True},
    {"cost": "sqeuclidean", "reg": 1.0},
    {"solver": Converged(1e-5)},
    {"solver": Converged(1e-5), "cost": "sqeuclidean", "reg": 20.0},
    {"diagonal": 0.0},
    {"reg": 0.004},
)


@st.composite
def sets(draw: st.DrawFn, *, batch: tuple[int, ...] = (), dtype: torch.dtype | None = None) -> torch.Tensor:
    """Features (*batch, n, d): random directions around random centres, of any length."""
    n = draw(st.integers(1, 14))
    d = draw(st.integers(1, 9))
    seed = draw(st.integers(0, 2**32 - 1))
    centres = draw(st.integers(1, 4))
    spread = draw(st.sampled_from((0.01, 0.3, 2.0)))
    dtype = draw(st.sampled_from(DTYPES)) if dtype is None else dtype
    source = torch.Generator().manual_seed(seed)
    centre = torch.randn(*batch, centres, d, generator=source, dtype=torch.float64)
    which = torch.randint(centres, (n,), generator=source)
    noise = torch.randn(*batch, n, d, generator=source, dtype=torch.float64)
    return (centre[..., which, :] + spread * noise).to(dtype)


def close(x: torch.Tensor, options: dict) -> dict[str, float]:
    """Rounding allowed: a few units in the last place of cost / reg, and what the tolerance leaves open."""
    reg = options.get("reg", 0.1)
    largest = 2.0
    if options.get("cost") == "sqeuclidean":
        largest = 4 * float(x[x.isfinite()].square().max()) * x.shape[-1]
    unit = torch.finfo(x.dtype).eps
    return {
        "rtol": 0.0,
        "atol": 30 * unit * max(1.0, largest / reg)
        + 20 * (getattr(options.get("solver"), "tol", None) or 0.0),
    }


@settings(deadline=None, max_examples=60)
@given(x=sets(batch=(2, 3)), options=st.sampled_from(OPTIONS))
def test_batch_equals_loop(x: torch.Tensor, options: dict) -> None:
    together = balanced_affinities(x, **options)
    alone = torch.stack([torch.stack([balanced_affinities(one, **options) for one in row]) for row in x])
    torch.testing.assert_close(together, alone, **close(x, options))


@settings(deadline=None, max_examples=40)
@given(x=sets(batch=(3,)), options=st.sampled_from(OPTIONS))
def test_batch_mates_do_not_move_a_set(x: torch.Tensor, options: dict) -> None:
    before = balanced_affinities(x, **options)[1]
    changed = x.clone()
    changed[0], changed[2] = 100 * torch.randn_like(x[0]), 0.0
    after = balanced_affinities(changed, **options)[1]
    torch.testing.assert_close(after, before, **close(x, options))


@pytest.mark.parametrize("reg", [0.05, 0.1, 1.0])
def test_batch_mates_do_not_change_the_iteration_count(reg: float) -> None:
    generator = torch.Generator().manual_seed(7)
    centres = torch.randn(6, 4, 8, generator=generator, dtype=torch.float64)
    spread = torch.tensor([0.05, 0.2, 0.5, 1.0, 2.0, 5.0], dtype=torch.float64)[:, None, None]
    noise = torch.randn(6, 24, 8, generator=generator, dtype=torch.float64)
    cost = cosine_cost(centres.repeat(1, 6, 1) + spread * noise)
    together = balance(cost, reg=reg, solver=Converged(1e-9))
    assert together.convergence.n_iter.unique().numel() > 1  # sets of different difficulty
    for one, count, error in zip(
        cost, together.convergence.n_iter, together.convergence.marginal_error, strict=True
    ):
        alone = balance(one, reg=reg, solver=Converged(1e-9))
        assert int(alone.convergence.n_iter) == int(count)
        torch.testing.assert_close(alone.convergence.marginal_error, error, rtol=0, atol=1e-9)


@settings(deadline=None, max_examples=60)
@given(x=sets(), options=st.sampled_from(OPTIONS), seed=st.integers(0, 999))
def test_permuting_the_set_permutes_rows_and_columns(x: torch.Tensor, options: dict, seed: int) -> None:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    permuted = balanced_affinities(x[order], **options)
    expected = balanced_affinities(x, **options)[order][:, order]
    torch.testing.assert_close(permuted, expected, **close(x, options))


@settings(deadline=None, max_examples=60)
@given(x=sets(batch=(2,)), options=st.sampled_from(OPTIONS), extra=st.integers(1, 5), data=st.data())
def test_padding_changes_nothing(x: torch.Tensor, options: dict, extra: int, data: st.DataObject) -> None:
    n = x.shape[1]
    garbage = data.draw(st.sampled_from((0.0, 1e6, float("nan"), float("inf"))))
    order = torch.randperm(n + extra, generator=torch.Generator().manual_seed(n))
    padded = torch.cat([x, torch.full_like(x[:, :1], garbage).expand(-1, extra, -1)], dim=1)[:, order]
    mask = (torch.arange(n + extra) < n)[order]
    result = balanced_affinities(padded, mask=mask, **options)
    expected = balanced_affinities(x, **options)
    back = torch.argsort(order)
    torch.testing.assert_close(result[:, back[:n]][:, :, back[:n]], expected, **close(x, options))
    assert (result[:, ~mask] == 0).all()
    assert (result[:, :, ~mask] == 0).all()


@settings(deadline=None, max_examples=40)
@given(x=sets(dtype=torch.float64), seed=st.integers(0, 999))
def test_cosine_ignores_the_length_of_every_feature(x: torch.Tensor, seed: int) -> None:
    assume((x.norm(dim=-1) > 1e-6).all())
    lengths = 10 ** torch.empty(len(x), 1).uniform_(-20, 20, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(balanced_affinities(x * lengths), balanced_affinities(x), **close(x, {}))


@settings(deadline=None, max_examples=40)
@given(x=sets(dtype=torch.float64), shift=st.floats(-100, 100))
def test_euclidean_ignores_a_shift_of_the_whole_set(x: torch.Tensor, shift: float) -> None:
    options = {"cost": "sqeuclidean", "reg": 1.0}
    torch.testing.assert_close(
        balanced_affinities(x + shift, **options), balanced_affinities(x, **options), rtol=0, atol=1e-9
    )


@settings(deadline=None, max_examples=40)
@given(x=sets(dtype=torch.float64), seed=st.integers(0, 999), solver=st.sampled_from(("rows", "both")))
def test_constants_added_to_rows_of_the_cost_change_nothing(x: torch.Tensor, seed: int, solver: str) -> None:
    """A constant on a row is absorbed by its scaling in one half-sweep; on rows and columns alike at convergence."""
    cost = torch.cdist(x, x).square()
    constant = torch.randn(len(x), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if solver == "rows":
        plain, moved = (balance(c, reg=5.0).plan for c in (cost, cost + constant[:, None]))
    else:
        changed = cost + constant[:, None] + constant[None, :]
        plain, moved = (balance(c, reg=5.0, solver=Converged(1e-11)).plan for c in (cost, changed))
    torch.testing.assert_close(moved, plain, rtol=0, atol=1e-8)


@settings(deadline=None, max_examples=60)
@given(x=sets(), reg=st.sampled_from((0.03, 0.1, 1.0, 30.0)))
def test_columns_of_the_plan_sum_to_one_and_its_diagonal_is_zero(x: torch.Tensor, reg: float) -> None:
    assume(len(x) > 1)
    plan = balanced_affinities(x, reg=reg, scale=None, diagonal=0.0)
    torch.testing.assert_close(plan.sum(dim=0), torch.ones_like(plan[0]), rtol=0, atol=1e-5)
    assert (plan.diagonal() == 0).all()
    assert (plan >= 0).all()


@settings(deadline=None, max_examples=60)
@given(x=sets(), reg=st.sampled_from((0.05, 0.1, 1.0, 30.0)))
def test_the_symmetric_plan_is_symmetric_to_the_last_bit_and_doubly_stochastic(
    x: torch.Tensor, reg: float
) -> None:
    assume(len(x) > 1)
    tol = 1e-9 if x.dtype == torch.float64 else 3e-5
    plan = balanced_affinities(x, reg=reg, solver=Converged(tol), scale=None, diagonal=0.0)
    assert torch.equal(plan, plan.T)
    torch.testing.assert_close(plan.sum(dim=1), torch.ones_like(plan[0]), rtol=0, atol=4 * tol)


@settings(deadline=None, max_examples=30)
@given(x=sets(dtype=torch.float64))
def test_sweeps_approach_the_symmetric_plan(x: torch.Tensor) -> None:
    assume(len(x) > 3)
    options = {"reg": 0.3, "scale": None, "diagonal": 0.0}
    limit = balanced_affinities(x, solver=Converged(1e-12), **options)
    few, many = (
        (balanced_affinities(x, solver=Sweeps(count), **options) - limit).abs().max() for count in (3, 300)
    )
    assert many <= few + 1e-12
    assert many < 1e-3


@settings(deadline=None, max_examples=60)
@given(x=sets(), reg=st.sampled_from((1e-3, 0.01, 0.1, 10.0, 1e3)), options=st.sampled_from(OPTIONS))
@pytest.mark.filterwarnings("ignore::bpa.ConvergenceWarning")
def test_valid_input_never_gives_nan_or_inf(x: torch.Tensor, reg: float, options: dict) -> None:
    x = torch.cat([x, x[:1], torch.zeros_like(x[:1])])  # a duplicate and a zero row
    result = balanced_affinities(x, **{**options, "reg": reg})
    assert torch.isfinite(result).all()
    assert (result >= 0).all()
    if options.get("scale", "max") == "max":
        assert (result <= 1 + 1e-6).all()


@settings(deadline=None, max_examples=60)
@given(
    x=sets(dtype=torch.float32), reg=st.sampled_from((0.03, 0.1, 1.0)), options=st.sampled_from(OPTIONS[:6])
)
def test_float32_is_near_float64(x: torch.Tensor, reg: float, options: dict) -> None:
    if options.get("cost") == "sqeuclidean":
        assume(x.abs().max() < 5)
    options = {**options, "reg": reg if options.get("cost") != "sqeuclidean" else 2.0}
    single, double = balanced_affinities(x, **options), balanced_affinities(x.double(), **options)
    torch.testing.assert_close(single.double(), double, rtol=0, atol=3e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype, n: int) -> None:
    x = torch.randn(n, 16, generator=torch.Generator().manual_seed(n)).to(dtype)
    result = balanced_affinities(x)
    assert result.dtype == dtype
    assert torch.equal(result, balanced_affinities(x.float()).to(dtype))
