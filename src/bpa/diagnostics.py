r"""What the transform will do to a set, before anybody has labels: features in, :class:`Diagnosis` out.

The measures come from at most 600 items, evenly spaced. One of them needs a word. A set without groups can still have
a few strong directions (a lighting, a length, a style) along which items have neighbours; the transform would sharpen
those. So the set is compared with a *cloud*: a set of the same size and exactly the same covariance, but Gaussian,
made by rotating the items among each other,

.. math:: \tilde X = Q\,(X - \bar x), \qquad Q^\top Q = I,\ Q\,\mathbf 1 = \mathbf 1,

with a fixed Q drawn once. Neighbours that are nearer than in the cloud are what groups, not directions, contribute.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bpa._checks import check_features, check_finite, check_reg, check_shape
from bpa._words import REG_WORDS, explains
from bpa.cost import unit_rows
from bpa.errors import ConvergenceWarning
from bpa.kernels._weight import centred_cosines
from bpa.metrics.hubs import hubness
from bpa.solvers import Converged
from bpa.transforms.choosing import AutoReg, choose_reg
from bpa.transforms.functional import balance, balanced_affinities

__all__ = ["Diagnosis", "diagnose"]

Verdict = Literal["likely helps", "neutral", "likely hurts"]

_SEEN = 600
_FEW = 4
"""Sets of fewer items have nothing to diagnose."""
_NEAR = 5
"""Which neighbour's cosine is compared with the cloud's."""
_GROUPS = ((80, 1.11), (600, 1.17))
"""Items, and how many times as near as in the cloud neighbours must be to speak of groups; log-linear between."""
_TIGHT = 1.25
"""Or: how many times smaller their cost must be, which shows groups that are few and tight."""
_RATIO = (0.55, 4.0)
"""A given reg below the first or above the second times the choice is likely worse than doing nothing."""


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What was seen in one set, and what it means for the transform.

    Parameters
    ----------
    choice : AutoReg
        The entropy weight of ``reg="auto"`` for this set, with its reasons.
    reg : float or "auto"
        The weight that was asked about.
    perplexity : float
        Median number of partners a row of the plan is shared among, exp(entropy).
    second_eigenvalue : float
        Of the plan, whose first is 1: near 1, the set falls into parts that hardly touch; near 0, it is one.
    hubness_before, hubness_after : float
        Skewness of how often items are among the 10 nearest, by centred cosines and by the rows of W. 0 is even.
    marginal_error : float
        Largest relative error of a row sum after five sweeps.
    products : int
        Products the symmetric solver needs to converge to 1e-6; −1 where it did not within 300.
    nearness, cloud_nearness : float
        Mean centred cosine of the fifth nearest neighbour over the standard deviation of all, in the set and in its
        cloud.
    tightness : float
        Mean of one minus that cosine in the cloud, over the same in the set.
    n_items, n_seen : int
        Items of the set, and those looked at.
    verdict : {"likely helps", "neutral", "likely hurts"}
        Against the best of raw, unit and centred unit-norm features.
    reasons : tuple of str
        Why.

    Examples
    --------
    >>> import torch
    >>> groups = torch.eye(4, 32).repeat(10, 1) + 0.1 * torch.randn(40, 32, generator=torch.Generator().manual_seed(0))
    >>> found = diagnose(groups, reg=0.1)
    >>> found.verdict, found.reg, found.n_seen, found.groups > 1
    ('neutral', 0.1, 40, True)
    """

    choice: AutoReg
    reg: float | Literal["auto"]
    perplexity: float
    second_eigenvalue: float
    hubness_before: float
    hubness_after: float
    marginal_error: float
    products: int
    nearness: float
    cloud_nearness: float
    tightness: float
    n_items: int
    n_seen: int
    verdict: Verdict
    reasons: tuple[str, ...]

    @property
    def groups(self) -> float:
        """How many times as near neighbours are as in the cloud; 1 is a set without groups."""
        return self.nearness / self.cloud_nearness if self.cloud_nearness > 0 else 1.0

    def rows(self) -> tuple[tuple[str, float | int | str], ...]:
        """Names and values, in the order a table shows them."""
        shown = self.reg if self.reg == "auto" else f"{self.reg:g}"
        return (
            ("verdict", f"reg={shown}: {self.verdict}"),
            ("reg chosen, in units of the centred cosine", float(self.choice.reg)),
            ("about the same without centring", float(self.choice.plain_reg)),
            ("partners a row is shared among (median)", self.perplexity),
            ("second eigenvalue of the plan", self.second_eigenvalue),
            ("hubness before, skewness", self.hubness_before),
            ("hubness after, skewness", self.hubness_after),
            ("row-sum error after five sweeps", self.marginal_error),
            ("products to converge", self.products),
            ("nearness of neighbours", self.nearness),
            ("the same in a cloud of this covariance", self.cloud_nearness),
            ("times as close as in the cloud", self.tightness),
            ("items looked at", f"{self.n_seen:,} of {self.n_items:,}"),
        )


@explains(**REG_WORDS)
def diagnose(x: Tensor, *, reg: float | Literal["auto"] = "auto") -> Diagnosis:
    """Say what the transform will do to one set, and whether it is likely to help.

    Parameters
    ----------
    x : Tensor, shape (n, d)
        One set of features; at most 600 of its items, evenly spaced, are looked at.
    reg : float or "auto"
        The entropy weight to judge; ``"auto"`` is what :func:`~bpa.choose_reg` chooses for this set.

    Returns
    -------
    Diagnosis

    Notes
    -----
    The verdict is a forecast from unlabelled features; the page "Choosing reg" says how often it was right. It is the
    same in every run: the rotation behind the cloud is fixed.

    Examples
    --------
    >>> import torch
    >>> g = torch.Generator().manual_seed(0)
    >>> groups = (torch.randn(5, 1, 64, generator=g) + 0.7 * torch.randn(5, 16, 64, generator=g)).reshape(80, 64)
    >>> diagnose(groups).verdict, diagnose(torch.randn(80, 64, generator=g)).verdict
    ('likely helps', 'neutral')
    """
    check_features(x, argument="x", function="diagnose")
    check_shape(x.shape, ("n", "d"), argument="x", function="diagnose", way_out="Diagnose sets one by one.")
    check_finite(x, argument="x", function="diagnose")
    reg = check_reg(reg, function="diagnose", auto=True)
    with torch.no_grad():
        seen = x[_spaced(len(x), x.device)].double()
        return _diagnose(seen, len(x), reg)


def _diagnose(x: Tensor, n_items: int, reg: float | Literal["auto"]) -> Diagnosis:
    n = len(x)
    cosines, _ = centred_cosines(x, None, function="diagnose")
    choice = choose_reg(x)
    cost = 1 - cosines if reg == "auto" else 1 - unit_rows(x) @ unit_rows(x).mT
    weight = float(choice.reg) if reg == "auto" else reg
    swept = balance(cost, reg=weight)
    plan = (swept.plan + swept.plan.mT) / 2
    affinity = balanced_affinities(x, reg=reg)
    nearness, fifth = _nearness(cosines)
    cloud, cloud_fifth = 0.0, 0.0
    if n >= _FEW:
        cloud, cloud_fifth = _nearness(centred_cosines(_cloud(x), None, function="diagnose")[0])
    tightness = (1 - cloud_fifth) / max(1 - fifth, 1e-9) if cloud > 0 else 1.0
    verdict, reasons = _judge(choice, reg, nearness / cloud if cloud > 0 else 0.0, tightness, n)
    return Diagnosis(
        choice=choice,
        reg=reg,
        perplexity=float((-(plan * plan.clamp_min(1e-300).log()).sum(dim=-1)).exp().median()),
        second_eigenvalue=float(torch.linalg.eigvalsh(plan)[-2]) if n > 1 else 0.0,
        hubness_before=_hubness(cosines),
        hubness_after=_hubness(-torch.cdist(affinity, affinity)),
        marginal_error=float(swept.convergence.marginal_error),
        products=_products(cost, weight),
        nearness=nearness,
        cloud_nearness=cloud,
        tightness=tightness,
        n_items=n_items,
        n_seen=n,
        verdict=verdict,
        reasons=reasons,
    )


def _judge(
    choice: AutoReg, reg: float | Literal["auto"], nearer: float, tightness: float, n: int
) -> tuple[Verdict, tuple[str, ...]]:
    if n < _FEW:
        return "neutral", (f"{n} items are too few to have neighbourhoods.",)
    said = list(choice.reasons()) if reg == "auto" else []
    (few, low), (many, high) = _GROUPS
    wanted = low + (high - low) * min(max(math.log(n / few) / math.log(many / few), 0.0), 1.0)
    has_groups = nearer >= wanted or (nearer > 0 and tightness >= _TIGHT)
    said.append(
        f"{'items fall into groups' if has_groups else 'hardly any groups'}: beside a cloud of the same covariance, "
        f"neighbours are {nearer:.2f} times as near (groups show from {wanted:.2f}) and {tightness:.2f} times as close "
        f"(from {_TIGHT:g})."
    )
    if reg == "auto":
        return ("likely helps" if has_groups else "neutral"), tuple(said)
    ratio = reg / max(float(choice.plain_reg), 1e-9)
    if ratio < _RATIO[0]:
        said.append(
            f"reg={reg:g} is {ratio:.2g} times the choice for this set: rows rest on too few partners."
        )
        return "likely hurts", tuple(said)
    if ratio > _RATIO[1]:
        said.append(f"reg={reg:g} is {ratio:.2g} times the choice for this set: neighbourhoods are blurred.")
        return ("neutral" if has_groups else "likely hurts"), tuple(said)
    return ("neutral" if has_groups else "likely hurts"), tuple(said)


def _spaced(n: int, device: torch.device) -> Tensor:
    kept = min(n, _SEEN)
    return (torch.arange(kept, device=device) * n) // kept


def _cloud(x: Tensor) -> Tensor:
    """A Gaussian set of the size and covariance of ``x``: items mixed by one orthogonal matrix that keeps the mean."""
    n = len(x)
    unit = unit_rows(x)
    moved = unit - unit.mean(dim=0)
    drawn = torch.randn(n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(x.device)
    drawn[:, 0] = 1.0
    basis = torch.linalg.qr(drawn)[0][:, 1:]
    mixed = torch.linalg.qr(drawn[1:, 1:].mT)[0]
    cloud: Tensor = basis @ (mixed @ (basis.mT @ moved))
    return cloud


def _nearness(cosines: Tensor) -> tuple[float, float]:
    """Mean cosine of the fifth nearest neighbour, over the standard deviation of all cosines and as it is."""
    n = len(cosines)
    if n < 2:
        return 0.0, 0.0
    own = torch.eye(n, dtype=torch.bool, device=cosines.device)
    spread = float(cosines[~own].std()) if n > 2 else 0.0
    fifth = float(cosines.masked_fill(own, -2.0).topk(min(_NEAR, n - 1), dim=-1).values[:, -1].mean())
    return (fifth / spread if spread > 1e-9 else 0.0), fifth


def _hubness(similarity: Tensor) -> float:
    n = len(similarity)
    if n < _FEW:
        return 0.0
    found = hubness(-similarity.cpu().numpy(), k=min(10, n - 1), self_index=torch.arange(n).numpy())
    return float(found.skewness)


def _products(cost: Tensor, reg: float) -> int:
    if len(cost) < 2:
        return 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is told as a number
        result = balance((cost + cost.mT) / 2, reg=reg, solver=Converged(1e-6))
    found = result.convergence
    return int(found.n_iter) if bool(found.converged) else -1
