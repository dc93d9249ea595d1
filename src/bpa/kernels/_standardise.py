r"""A balanced plan to W where the set chose its weight: every row minus its mean, at one length.

With ``reg="auto"`` the transform keeps its plan and changes three things around it, each for a reason that the
page "Choosing reg" derives and measures:

=================  =========================================  =============================================
                   ``reg=0.1``                                ``reg="auto"``
=================  =========================================  =============================================
cost               1 − cosine of the rows                     1 − cosine of the rows minus their mean
reg                one number for every set                   chosen for each set, in units of that cost
stretch            P / max P                                  each row of P − 1/(n−1) at its own length
=================  =========================================  =============================================

so that, with :math:`A_i` row i of the symmetrised plan minus its mean, off the diagonal,

.. math:: W_{ij} = \frac{A_{ij}}{s\,\|A_i\|}\ (i \ne j), \qquad W_{ii} = 1 .

All rows have the same length; their squared distance is, up to a factor, one minus the correlation of two
neighbourhood profiles (third parties) minus 2 s times the affinity of the pair itself (directly). Where the set shows
no neighbourhoods, A fades into the centred cosines: the transform steps aside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bpa._checks import is_tracing
from bpa.kernels._weight import (
    FACTS,
    LARGE,
    LARGE_REG,
    LEAST_REG,
    MOST_REG,
    SHARE,
    SMALL,
    Weight,
    pairs_of,
    weigh,
    with_diagonal,
)
from bpa.solvers import Sweeps
from bpa.solvers._plan import solve

__all__ = ["AutoReg", "standardise", "standardise_rows"]

_NO_EVIDENCE, _FULL_EVIDENCE = 0.45, 0.75
"""Agreement of a plan with its square: below the first no neighbourhoods, above the second no doubt."""
_MOST_SELF = 2.0
_SOME = 128
"""Items that show whether a larger set has neighbourhoods."""


@dataclass(frozen=True, eq=False)
class AutoReg:
    """What ``reg="auto"`` chose for each set, and what it saw there. All fields have the shape (...) of the batch.

    Parameters
    ----------
    reg : Tensor
        The entropy weight, in units of the cosine cost of the centred set.
    evidence : Tensor
        1 where the set has neighbourhoods, 0 where the transform steps aside entirely, smooth between.
    self_weight : Tensor
        s: how much an item itself counts against all its partners together; 1 to 2.
    agreement : Tensor
        Correlation between the affinity of two items and the agreement of their other partners; what ``evidence``
        is read from; of 128 items where there are more.
    share : Tensor
        Share of a row (squared, mean removed) that its strongest partner holds at the weight for small sets. NaN
        for large ones.
    mean_cosine : Tensor
        Mean cosine before centring: ``reg * (1 - mean_cosine)`` is about the same weight without centring.
    n_items : Tensor of int64

    Examples
    --------
    >>> import torch
    >>> from bpa import choose_reg
    >>> choice = choose_reg(torch.eye(8).repeat_interleave(5, dim=0) + 0.01)
    >>> print(choice.reasons()[0])
    reg=0.08: the strongest partner of an item holds 22% of its row (aim: 35%, with reg between 0.08 and 0.4).
    """

    reg: Tensor
    evidence: Tensor
    self_weight: Tensor
    agreement: Tensor
    share: Tensor
    mean_cosine: Tensor
    n_items: Tensor

    @property
    def plain_reg(self) -> Tensor:
        """About the same weight for cosines that are not centred, shape (...)."""
        return self.reg * (1 - self.mean_cosine).clamp_min(0)

    def reasons(self, index: tuple[int, ...] = ()) -> tuple[str, ...]:
        """Say why, for one set of the batch."""
        n = int(self.n_items[index])
        reg, evidence = float(self.reg[index]), float(self.evidence[index])
        if n < 4:
            return (
                f"{n} items have no neighbourhoods to choose from: every choice gives the same distances.",
            )
        said = []
        if n < LARGE:
            said.append(
                f"reg={reg:.3g}: the strongest partner of an item holds {float(self.share[index]):.0%} of its row "
                f"(aim: {SHARE:.0%}, with reg between {LEAST_REG:g} and {MOST_REG:g}"
                + (")." if n <= SMALL else f"; drawn towards {LARGE_REG:g} as n grows).")
            )
        else:
            said.append(
                f"reg={reg:.3g}: the value for large sets ({n} items), in units of the centred cosine."
            )
        if n > SMALL:
            said.append(
                f"self weight {float(self.self_weight[index]):.2g}: the larger the set, the more the pair counts."
            )
        if evidence < 1:
            said.append(
                f"steps aside by {1 - evidence:.0%}: partners of partners agree little more than in noise (agreement "
                f"{float(self.agreement[index]):.2f}; noise is near {_NO_EVIDENCE}, clear from {_FULL_EVIDENCE})."
            )
        return tuple(said)


def standardise(
    plan: Tensor, cosines: Tensor, weight: Weight, *, diagonal: float, mask: Tensor | None
) -> tuple[Tensor, AutoReg]:
    """Turn a balanced plan (..., n, n), diagonal 0, into W: rows minus their mean, at one length, diagonal written.

    Differentiable in ``plan`` and ``cosines``; what is chosen is constant.
    """
    n, largeness = weight.n, weight.largeness
    pairs = pairs_of(plan, mask)
    partners = (n - 1).clamp_min(1)[..., None, None]
    profile = _profile(plan, pairs, n, mask)
    agreement = _agreement(profile.detach(), cosines.detach(), pairs, n, mask)
    evidence = (
        ((agreement - _NO_EVIDENCE) / (_FULL_EVIDENCE - _NO_EVIDENCE)).clamp(0, 1).masked_fill(n < 4, 1.0)
    )
    if is_tracing() or bool((evidence < 1).any()):
        linear = _only_pairs(cosines * 1, pairs, mask)
        linear = _only_pairs(linear - linear.sum(dim=-1, keepdim=True) / partners, pairs, mask)
        share = evidence[..., None, None]
        mixed = _unit_profile(share * profile + (1 - share) * _unit_profile(linear, n), n)
        profile = torch.where(share < 1, mixed, profile)
    self_weight = 1 + (_MOST_SELF - 1) * largeness * evidence
    affinity = profile / self_weight[..., None, None]
    if mask is None:
        affinity = with_diagonal(affinity, diagonal)
    else:
        own = torch.eye(plan.shape[-1], dtype=torch.bool, device=plan.device) & mask[..., None]
        affinity = affinity.masked_fill(own, diagonal)
    chosen = AutoReg(weight.reg, evidence, self_weight, agreement, weight.share, weight.mean_cosine, n.long())
    return affinity, chosen


def standardise_rows(plan: Tensor, cosines: Tensor, is_self: Tensor, choice: AutoReg) -> Tensor:
    """Turn plan rows (m, k) of items towards k fitted ones into rows of W, by the choice made for the fitted set.

    ``is_self`` (m, k) marks the fitted item that a row is; the plan is zero there. The row of a fitted item is its
    row of the symmetric, converged W.
    """
    partners = (~is_self).sum(dim=-1, keepdim=True).clamp_min(1)
    n = choice.n_items.to(plan.dtype)
    profile = _unit_profile((plan - 1 / partners).masked_fill(is_self, 0.0), n) * (n > 3)
    evidence = float(choice.evidence)
    if evidence < 1:
        linear = cosines.masked_fill(is_self, 0.0)
        linear = (linear - linear.sum(dim=-1, keepdim=True) / partners).masked_fill(is_self, 0.0)
        profile = _unit_profile(evidence * profile + (1 - evidence) * _unit_profile(linear, n), n)
    return (profile / float(choice.self_weight)).masked_fill(is_self, 1.0)


def _only_pairs(fresh: Tensor, pairs: Tensor, mask: Tensor | None) -> Tensor:
    """``fresh`` (..., n, n), which nobody else holds, with zeros where no pair is."""
    return with_diagonal(fresh, 0.0) if mask is None else fresh.masked_fill(~pairs, 0.0)


def _unit_profile(rows: Tensor, n: Tensor) -> Tensor:
    """Rows at length one; rows that are nothing but rounding (of entries near 1/n) fade to zero."""
    rounding = 64 * torch.finfo(rows.dtype).eps / n.clamp_min(2).sqrt()[..., None, None]
    length: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows * (length.square() + rounding.square()).rsqrt()


def _profile(plan: Tensor, pairs: Tensor, n: Tensor, mask: Tensor | None) -> Tensor:
    """Rows (..., n, n) of the symmetrised plan minus their mean, at length one."""
    twice = plan + plan.mT
    twice -= 2 / (n - 1).clamp_min(1)[..., None, None]
    profile = _unit_profile(_only_pairs(twice, pairs, mask), n)
    return profile * (n > 3)[..., None, None]  # up to three items a balanced plan is uniform


def _agreement(profile: Tensor, cosines: Tensor, pairs: Tensor, n: Tensor, mask: Tensor | None) -> Tensor:
    """Correlation over pairs of A and A Aᵀ, A being the standardised plan.

    The third parties of a large set would agree on noise, too. Sets of more than `_SOME` items are therefore judged
    by the plan of as many of them, taken evenly from all in the order of how pronounced their cosines are, so that
    the order of the set does not matter.
    """
    if profile.shape[-1] <= _SOME:
        profile = (profile + profile.mT) / 2
        return _correlation(profile, _only_pairs(profile @ profile, pairs, mask), pairs)
    strength = torch.linalg.vector_norm(cosines, dim=-1)
    strength = strength if mask is None else strength.masked_fill(~mask, math.inf)
    place = torch.arange(_SOME, device=n.device)
    spaced = torch.where(n[..., None] > _SOME, ((place + 0.5) * (n[..., None] / _SOME)).long(), place)
    picked = strength.argsort(dim=-1).gather(-1, spaced)
    some = cosines.gather(-2, picked[..., None].expand(*picked.shape, cosines.shape[-1]))
    some = some.gather(-1, picked[..., None, :].expand(*picked.shape, _SOME))
    kept = None if mask is None else place < n[..., None]
    weight = weigh(some, torch.zeros_like(n), kept)
    plan = solve(weight.log_kernel(some, kept), None, None, Sweeps(5), FACTS).plan
    some_pairs = pairs_of(some, kept)
    return _agreement(_profile(plan, some_pairs, weight.n, kept), some, some_pairs, weight.n, kept)


def _correlation(a: Tensor, b: Tensor, allowed: Tensor) -> Tensor:
    """Correlation (...) of a and b, zero where not allowed, over the allowed entries of the last two dimensions."""
    both = (-2, -1)
    count = allowed.sum(dim=both).clamp_min(1)
    mean_a, mean_b = a.sum(dim=both) / count, b.sum(dim=both) / count
    flat_a, flat_b = a.flatten(-2), b.flatten(-2)
    joint = torch.linalg.vecdot(flat_a, flat_b) / count - mean_a * mean_b
    of_a = torch.linalg.vecdot(flat_a, flat_a) / count - mean_a.square()
    of_b = torch.linalg.vecdot(flat_b, flat_b) / count - mean_b.square()
    correlation: Tensor = joint / (of_a.clamp_min(0) * of_b.clamp_min(0)).sqrt().clamp_min(1e-12)
    return correlation
