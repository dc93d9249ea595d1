"""reg="auto": laws of a choice made for each set from that set alone."""

from __future__ import annotations

import math
import time

import pytest
import torch
from torch import Tensor

import bpa.transforms.choosing
from bpa import BPA, balance, balanced_affinities, choose_reg
from bpa.cost import cosine_cost
from bpa.errors import ArgumentError, NonFiniteError
from bpa.kernels._standardise import standardise
from bpa.kernels._weight import LEAST_REG, MOST_REG, centred_cosines, weigh
from bpa.solvers import Converged

FIELDS = ("reg", "evidence", "self_weight", "agreement", "share", "mean_cosine", "n_items")


def clusters(
    seed: int = 0, *, batch: int = 1, k: int = 5, each: int = 16, d: int = 64, noise: float = 1.0
) -> Tensor:
    """Non-negative features in k groups, shape (batch, k * each, d)."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(batch, k, 1, d, generator=g, dtype=torch.float64)
    points = centres + noise * torch.randn(batch, k, each, d, generator=g, dtype=torch.float64)
    return points.relu().reshape(batch, k * each, d)


def noise(seed: int = 0, *, n: int = 80, d: int = 128) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow(x: Tensor, reg: float, evidence: float, self_weight: float) -> Tensor:
    """W from its definition, entry by entry, for one set."""
    n = len(x)
    unit = [row / row.norm() for row in x]
    mean = sum(unit) / n
    moved = [(row - mean) / (row - mean).norm() for row in unit]
    cosine = [[float(moved[i] @ moved[j]) for j in range(n)] for i in range(n)]
    kernel = [[0.0 if i == j else math.exp((cosine[i][j] - 1) / reg) for j in range(n)] for i in range(n)]
    u, v = [1.0] * n, [1.0] * n
    for _ in range(5):
        u = [1 / sum(kernel[i][j] * v[j] for j in range(n)) for i in range(n)]
        v = [1 / sum(kernel[i][j] * u[i] for i in range(n)) for j in range(n)]
    w = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        plan = torch.zeros(n, dtype=torch.float64)
        for j in range(n):
            if j != i:
                plan[j] = (u[i] * kernel[i][j] * v[j] + u[j] * kernel[j][i] * v[i]) / 2 - 1 / (n - 1)
        row = plan / plan.norm()
        if evidence < 1:
            straight = torch.tensor([0.0 if j == i else cosine[i][j] for j in range(n)], dtype=torch.float64)
            straight = straight - straight.sum() / (n - 1)
            straight[i] = 0.0
            row = evidence * row + (1 - evidence) * straight / straight.norm()
            row = row / row.norm()
        w[i] = row / self_weight
        w[i, i] = 1.0
    return w


@pytest.mark.parametrize("level", [0.6, 1.2, 2.5])
def test_w_is_its_definition_entry_by_entry(level: float) -> None:
    x = clusters(3, each=4, noise=level)[0]
    choice = choose_reg(x)
    expected = slow(x, float(choice.reg), float(choice.evidence), float(choice.self_weight))
    torch.testing.assert_close(balanced_affinities(x, reg="auto"), expected, rtol=1e-6, atol=1e-8)


def test_the_strongest_partner_holds_the_promised_share() -> None:
    x = clusters(1)[0]
    choice = choose_reg(x)
    cosines, _ = centred_cosines(x, None, function="test")
    n = len(x)
    logits = (cosines / choice.reg).masked_fill(torch.eye(n, dtype=torch.bool), -math.inf)
    row = (torch.softmax(logits, -1) - 1 / (n - 1)).masked_fill(torch.eye(n, dtype=torch.bool), 0.0)
    share = (row.amax(-1).square() / row.square().sum(-1)).mean()
    assert LEAST_REG < float(choice.reg) < MOST_REG
    assert float(share) == pytest.approx(0.35, abs=0.03)


def test_rows_have_one_length_and_a_diagonal_of_one() -> None:
    w = balanced_affinities(clusters(2, batch=3), reg="auto")
    torch.testing.assert_close(w.diagonal(dim1=-2, dim2=-1), torch.ones(3, 80, dtype=torch.float64))
    torch.testing.assert_close(
        w.norm(dim=-1), torch.full((3, 80), math.sqrt(2.0), dtype=torch.float64), rtol=1e-6, atol=0
    )
    assert float((w.sum(-1) - 1).abs().max()) < 0.2  # off the diagonal rows sum to nearly zero


@pytest.mark.parametrize("make", [clusters, lambda: noise()[None]])
@pytest.mark.parametrize("n_kept", [80, 37])
def test_permuting_the_set_permutes_rows_and_columns_and_leaves_the_choice(make: object, n_kept: int) -> None:
    x = make()[0, :n_kept]  # type: ignore[operator]
    order = torch.randperm(n_kept, generator=torch.Generator().manual_seed(0))
    w, permuted = balanced_affinities(x, reg="auto"), balanced_affinities(x[order], reg="auto")
    torch.testing.assert_close(permuted, w[order][:, order], rtol=1e-7, atol=1e-9)
    for field in FIELDS:
        torch.testing.assert_close(
            getattr(choose_reg(x[order]), field), getattr(choose_reg(x), field), equal_nan=True
        )


def test_a_large_set_is_judged_the_same_in_any_order() -> None:
    x = clusters(5, k=20, each=15, noise=1.5)[0]  # 300 items: more than the landmarks
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    first, second = choose_reg(x), choose_reg(x[order])
    torch.testing.assert_close(first.agreement, second.agreement, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(first.reg, second.reg)


def test_a_batch_is_a_loop_and_an_item_does_not_move_its_neighbours() -> None:
    x = torch.cat([clusters(0), noise(1, n=80, d=64)[None], clusters(2, noise=3.0)])
    w, choice = balanced_affinities(x, reg="auto"), choose_reg(x)
    assert len({round(float(reg), 4) for reg in choice.reg}) == 3, "the sets should differ in their choice"
    for i in range(3):
        torch.testing.assert_close(w[i], balanced_affinities(x[i], reg="auto"), rtol=1e-9, atol=1e-12)
        for field in FIELDS:
            torch.testing.assert_close(
                getattr(choice, field)[i], getattr(choose_reg(x[i]), field), equal_nan=True
            )


def test_many_sets_in_chunks_are_the_sets_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x = clusters(0, batch=6).reshape(2, 3, 80, 64)
    mask = torch.ones(2, 3, 80, dtype=torch.bool)
    mask[1, 2, 50:] = False
    whole = balanced_affinities(x, reg="auto", mask=mask)
    monkeypatch.setattr("bpa.kernels._dense._CHUNK_BYTES", 1)
    torch.testing.assert_close(balanced_affinities(x, reg="auto", mask=mask), whole, rtol=0, atol=0)


@pytest.mark.parametrize("n", [1, 2, 3, 20, 79])
@pytest.mark.parametrize("filler", [0.0, 7.0, math.nan])
def test_padded_is_unpadded_on_the_valid_block(n: int, filler: float) -> None:
    x = torch.full((1, 90, 64), filler, dtype=torch.float64)
    keep = torch.arange(90) % 90 < n
    x[:, keep] = clusters(4)[:, :n]
    w = balanced_affinities(x, reg="auto", mask=keep[None])
    expected = balanced_affinities(clusters(4)[0, :n], reg="auto")
    torch.testing.assert_close(w[0][keep][:, keep], expected, rtol=1e-8, atol=1e-10)
    assert float(w[0][~keep].abs().sum()) == 0
    assert float(w[0][:, ~keep].abs().sum()) == 0
    padded, plain = choose_reg(x, mask=keep[None]), choose_reg(clusters(4)[0, :n])
    for field in FIELDS:
        torch.testing.assert_close(
            getattr(padded, field)[0], getattr(plain, field), equal_nan=True, msg=field
        )


def test_the_same_call_gives_the_same_bits() -> None:
    x = clusters(0, batch=2).float()
    assert torch.equal(balanced_affinities(x, reg="auto"), balanced_affinities(x, reg="auto"))


def test_the_length_of_a_feature_does_not_matter() -> None:
    x = clusters(0)[0]
    scales = torch.rand(80, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 100 + 0.01
    torch.testing.assert_close(
        balanced_affinities(x * scales, reg="auto"), balanced_affinities(x, reg="auto"), rtol=1e-7, atol=1e-9
    )


def test_moving_the_unit_sphere_away_from_the_origin_does_not_matter_much() -> None:
    x = torch.nn.functional.normalize(clusters(0)[0], dim=-1)
    far = torch.cat([x, torch.full((80, 1), 3.0, dtype=torch.float64)], dim=1)  # cosines squeezed to 0.9 … 1
    torch.testing.assert_close(
        balanced_affinities(far, reg="auto"), balanced_affinities(x, reg="auto"), rtol=1e-6, atol=1e-8
    )
    assert float(choose_reg(far).plain_reg) < 0.2 * float(choose_reg(x).plain_reg)


def test_sets_packed_together_are_centred_before_the_product() -> None:
    x = torch.nn.functional.normalize(clusters(0)[0], dim=-1)
    packed = torch.cat([x, torch.full((80, 1), 200.0, dtype=torch.float64)], dim=1)
    exact = balanced_affinities(packed, reg="auto")
    assert float((balanced_affinities(packed.float(), reg="auto") - exact).abs().max()) < 0.02


@pytest.mark.parametrize("make", [lambda: clusters(0, each=3, k=4, d=6)[0], lambda: noise(2, n=14, d=300)])
def test_the_choice_is_a_constant_and_the_rest_differentiates_exactly(make: object) -> None:
    x = make().requires_grad_()  # type: ignore[operator]

    assert float(choose_reg(x).evidence) in (0.0, 1.0)  # between, a finite difference would also see it move
    with torch.no_grad():
        fixed = weigh(*centred_cosines(x, None, function="test"), None)

    def affinity(x: Tensor) -> Tensor:
        cosines, _ = centred_cosines(x, None, function="test")
        plan = balance((1 - cosines) / float(fixed.reg), reg=1.0).plan
        return standardise(plan, cosines, fixed, diagonal=1.0, mask=None)[0]

    assert torch.autograd.gradcheck(affinity, (x,), atol=1e-5)
    weight = torch.randn(len(x), len(x), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (expected,) = torch.autograd.grad((affinity(x) * weight).sum(), x)
    (got,) = torch.autograd.grad((balanced_affinities(x, reg="auto") * weight).sum(), x)
    torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-9)
    for field in FIELDS:
        assert not getattr(choose_reg(x), field).requires_grad


def test_noise_is_recognised_and_answered_with_the_centred_cosines() -> None:
    x = noise(0, n=80, d=256)
    choice = choose_reg(x)
    assert float(choice.evidence) == 0.0
    assert any("steps aside by 100%" in reason for reason in choice.reasons())
    cosines, _ = centred_cosines(x, None, function="test")
    rows = (
        cosines - cosines.masked_fill(torch.eye(80, dtype=torch.bool), 0).sum(-1, keepdim=True) / 79
    ).fill_diagonal_(0)
    expected = rows / rows.norm(dim=-1, keepdim=True) + torch.eye(80, dtype=torch.float64)
    torch.testing.assert_close(balanced_affinities(x, reg="auto"), expected, rtol=1e-6, atol=1e-8)


def test_clear_groups_are_recognised_and_separated() -> None:
    x = clusters(0, noise=0.5)[0]
    choice = choose_reg(x)
    assert float(choice.evidence) == 1.0
    w = balanced_affinities(x, reg="auto")
    same = torch.arange(5).repeat_interleave(16)[:, None] == torch.arange(5).repeat_interleave(16)
    assert float(w[same].min()) > float(w[~same].max())


def test_evidence_grows_smoothly_from_noise_to_groups() -> None:
    levels = [
        float(choose_reg(clusters(0, noise=level, d=128)[0]).evidence)
        for level in (9.0, 4.0, 3.0, 2.5, 2.0, 1.0)
    ]
    assert levels == sorted(levels)
    assert levels[0] < 0.2
    assert levels[-1] == 1.0
    assert any(0.1 < level < 0.9 for level in levels)


def test_large_sets_get_their_own_weight_and_the_pair_counts_more() -> None:
    x = clusters(0, k=20, each=60, d=16)[0].float()
    choice = choose_reg(x)
    assert float(choice.reg) == pytest.approx(0.15)
    assert float(choice.self_weight) == 2.0
    assert math.isnan(float(choice.share))
    assert "large sets" in choice.reasons()[0]
    keep = torch.ones(1200, dtype=torch.bool)
    assert float(choose_reg(x, mask=keep).reg) == pytest.approx(0.15)


def test_a_cost_matrix_is_as_good_as_the_features_behind_it() -> None:
    x = torch.nn.functional.normalize(clusters(0)[0], dim=-1)
    w = balanced_affinities(x, reg="auto")
    torch.testing.assert_close(
        balanced_affinities(cosine_cost(x), cost="precomputed", reg="auto"), w, rtol=1e-6, atol=1e-8
    )
    torch.testing.assert_close(
        balanced_affinities(x, cost="sqeuclidean", reg="auto"), w, rtol=1e-6, atol=1e-8
    )
    torch.testing.assert_close(balanced_affinities(x, cost=cosine_cost, reg="auto"), w, rtol=1e-6, atol=1e-8)


def test_the_converged_plan_is_near_the_swept_one() -> None:
    x = clusters(0)[0]
    converged = balanced_affinities(x, reg="auto", solver=Converged())
    assert float((converged - balanced_affinities(x, reg="auto")).abs().max()) < 0.05


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    x = clusters(0)[0].to(dtype)
    w = balanced_affinities(x, reg="auto")
    assert w.dtype is dtype
    assert bool(torch.isfinite(w).all())
    exact = balanced_affinities(x.double(), reg="auto")
    assert float((w.double() - exact).abs().max()) < {torch.float16: 2e-3, torch.bfloat16: 1e-2}.get(
        dtype, 1e-4
    )


@pytest.mark.parametrize("n", [1, 2, 3])
def test_tiny_and_shapeless_sets_are_finite(n: int) -> None:
    x = torch.randn(n, 5, generator=torch.Generator().manual_seed(0))
    assert bool(torch.isfinite(balanced_affinities(x, reg="auto")).all())
    same = balanced_affinities(torch.ones(n + 3, 5), reg="auto")
    torch.testing.assert_close(same, torch.eye(n + 3), rtol=0, atol=1e-3)
    zero_row = clusters(0)[0].clone()
    zero_row[3] = 0
    assert bool(torch.isfinite(balanced_affinities(zero_row, reg="auto")).all())


def test_what_cannot_be_combined_is_refused_in_one_sentence() -> None:
    x = clusters(0)[0]
    with pytest.raises(
        ArgumentError, match="'scale' parameter of balanced_affinities has no effect with reg='auto'"
    ):
        balanced_affinities(x, reg="auto", scale=None)
    with pytest.raises(ArgumentError, match=r"'reg' parameter of balance .* above 0\. Got 'auto'"):
        balance(cosine_cost(x), reg="auto")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"'reg' parameter of BPA .* above 0, or 'auto'\. Got 'best'"):
        BPA(reg="best")  # type: ignore[arg-type]
    bad = x.clone()
    bad[7, 0] = math.nan
    with pytest.raises(NonFiniteError, match=r"Rows \[7\]"):
        balanced_affinities(bad, reg="auto")
    with pytest.raises(NonFiniteError, match="choose_reg"):
        choose_reg(bad)


def test_known_labels_are_written_over_the_rule() -> None:
    x, labels = clusters(0)[0], torch.full((80,), -1)
    labels[0], labels[1], labels[20] = 0, 0, 1
    w = balanced_affinities(x, reg="auto", support_labels=labels)
    assert float(w[0, 1]) == 1
    assert float(w[0, 20]) == 0
    assert float(w[0, 0]) == 1


def test_the_layer_says_what_it_does() -> None:
    assert "reg='auto'" in repr(BPA(reg="auto"))
    assert not list(BPA(reg="auto").state_dict())


def test_vmap_agrees_with_the_batch() -> None:
    x = clusters(0, batch=2, each=4)
    torch.testing.assert_close(torch.func.vmap(BPA(reg="auto"))(x), BPA(reg="auto")(x), rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_the_rule_costs_at_most_a_few_fixed_transforms() -> None:
    x = clusters(0, batch=32, d=640).float()
    fixed, auto = BPA(reg=0.1), BPA(reg="auto")
    ratios = []
    with torch.no_grad():
        for _ in range(12):
            began = time.perf_counter()
            fixed(x)
            middle = time.perf_counter()
            auto(x)
            ratios.append((time.perf_counter() - middle) / (middle - began))
    assert sorted(ratios)[3] < 4.0, "a quarter of the trials should be well within four times"


def test_the_module_of_the_rule_is_not_the_transform() -> None:
    """The choice is usable without W, and both take it from one place."""
    x = clusters(0)[0]
    assert float(bpa.transforms.choosing.choose_reg(x).reg) == float(choose_reg(x[None]).reg[0])
