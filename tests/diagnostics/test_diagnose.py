"""The forecast for a set, before anybody has labels."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bpa import balance, choose_reg, diagnose
from bpa.diagnostics import _cloud
from bpa.errors import NonFiniteError, ShapeError
from bpa.kernels._weight import centred_cosines


def groups(seed: int = 0, *, k: int = 5, each: int = 16, d: int = 64, noise: float = 0.8) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(k, 1, d, generator=g) + noise * torch.randn(k, each, d, generator=g)).reshape(
        k * each, d
    )


def directions(seed: int = 0, *, n: int = 200, d: int = 64) -> Tensor:
    """No groups, but strong directions that all items share."""
    g = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(n, 6, generator=g) @ torch.randn(6, d, generator=g) + torch.randn(
        n, d, generator=g
    )


def test_groups_are_told_from_noise_and_from_mere_directions() -> None:
    assert diagnose(groups()).verdict == "likely helps"
    assert diagnose(torch.randn(80, 64, generator=torch.Generator().manual_seed(0))).verdict == "neutral"
    found = diagnose(directions())
    assert found.verdict == "neutral"
    assert float(found.choice.evidence) == 1.0, (
        "directions do make neighbourhoods; only the cloud tells them from groups"
    )
    assert diagnose(directions(), reg=0.1).verdict == "likely hurts"


def test_the_cloud_has_the_covariance_and_the_mean_of_the_set_and_no_groups() -> None:
    x = groups().double()
    unit = torch.nn.functional.normalize(x, dim=-1)
    moved = unit - unit.mean(dim=0)
    cloud = _cloud(x)
    torch.testing.assert_close(cloud.mT @ cloud, moved.mT @ moved)
    torch.testing.assert_close(cloud.sum(dim=0), torch.zeros(64, dtype=torch.float64))
    assert diagnose(cloud).verdict == "neutral"


def test_the_measures_are_what_they_are_called() -> None:
    x = groups(noise=1.5).double()
    found = diagnose(x)
    cosines, _ = centred_cosines(x, None, function="test")
    plan = balance(1 - cosines, reg=float(choose_reg(x).reg)).plan
    plan = (plan + plan.mT) / 2
    perplexity = torch.tensor(
        [math.exp(-sum(p * math.log(p) for p in row if p > 0)) for row in plan.tolist()]
    )
    assert found.perplexity == pytest.approx(float(perplexity.median()), rel=1e-6)
    assert found.second_eigenvalue == pytest.approx(sorted(torch.linalg.eigvalsh(plan).tolist())[-2])
    own = torch.eye(80, dtype=torch.bool)
    fifth = cosines.masked_fill(own, -2).sort(dim=1, descending=True).values[:, 4].mean()
    assert found.nearness == pytest.approx(float(fifth / cosines[~own].std()))


def test_a_set_in_two_parts_has_a_second_eigenvalue_near_one() -> None:
    g = torch.Generator().manual_seed(0)
    centre = torch.randn(1, 64, generator=g)
    parts = torch.cat([s * centre + 0.3 * torch.randn(30, 64, generator=g) for s in (-1, 1)])
    assert diagnose(parts).second_eigenvalue > 0.98
    assert diagnose(torch.randn(60, 64, generator=g)).second_eigenvalue < 0.5


def test_the_transform_evens_out_hubs() -> None:
    g = torch.Generator().manual_seed(0)
    level = 0.5 + 2.5 * torch.rand(
        300, 1, generator=g
    )  # the items with little noise are everybody's neighbours
    x = torch.randn(10, 1, 200, generator=g).expand(10, 30, 200).reshape(300, 200) + level * torch.randn(
        300, 200, generator=g
    )
    found = diagnose(x)
    assert found.hubness_before > 0.5
    assert found.hubness_after < found.hubness_before


def test_a_given_reg_is_judged_against_the_choice() -> None:
    x = groups()
    choice = float(choose_reg(x).plain_reg)
    assert diagnose(x, reg=choice / 3).verdict == "likely hurts"
    assert diagnose(x, reg=choice).verdict == "neutral"
    found = diagnose(x, reg=choice / 3)
    assert found.reg == choice / 3
    assert (diagnose(x).reg, diagnose(x, reg="Auto").verdict) == ("auto", diagnose(x).verdict)
    assert any("too few partners" in reason for reason in found.reasons)


def test_the_same_set_gives_the_same_diagnosis() -> None:
    assert diagnose(groups()).rows() == diagnose(groups()).rows()


def test_a_large_set_is_judged_by_600_items_spread_over_it() -> None:
    x = groups(k=50, each=40)
    found = diagnose(x)
    assert (found.n_items, found.n_seen) == (2000, 600)
    assert found.verdict == "likely helps"


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_tiny_sets_and_sets_of_one_item_repeated_are_neutral(n: int) -> None:
    assert diagnose(torch.randn(n, 8, generator=torch.Generator().manual_seed(0))).n_seen == n
    assert diagnose(torch.ones(n, 8)).verdict == "neutral"


def test_what_cannot_be_diagnosed_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"shape \(n, d\)\. .* one by one"):
        diagnose(groups()[None])
    with pytest.raises(NonFiniteError):
        diagnose(torch.full((5, 3), math.nan))
