r"""The entropy weight, and what goes with it, from the unlabelled set: x (..., n, d) gives :class:`AutoReg`.

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

from bpa._checks import check_features, check_finite, check_mask, is_tracing
from bpa.cost import unit_rows
from bpa.solvers import SolverSettings, solve

__all__ = [
    "BOUNDS",
    "AutoReg",
    "Weight",
    "centred_cosines",
    "centred_cosines_of_cost",
    "choose_reg",
    "standardise",
    "standardise_rows",
    "weigh",
]

LEAST_REG, MOST_REG = 0.08, 0.4
"""The choice for small sets stays between these, in units of the centred cosine cost."""
BOUNDS = (-2 / LEAST_REG, 0.0)
"""Of log K."""
_SHARE = 0.35
"""Small sets: the sharpest plan whose strongest partner holds this share of a row, on average."""
_LARGE_REG = 0.15
"""Large sets: a row rests on many partners at any reg; what is left is one number."""
_SMALL, _LARGE = 200, 1000
"""Items below the first make a small set, from the second on a large one; log-linear between."""
_NO_EVIDENCE, _FULL_EVIDENCE = 0.45, 0.75
"""Agreement of a plan with its square: below the first no neighbourhoods, above the second no doubt."""
_MOST_SELF = 2.0
_SOME = 128
"""Items that show whether a larger set has neighbourhoods."""
_FIVE_SWEEPS = SolverSettings(5, bounds=BOUNDS, is_symmetric=True)
_CLOSE = 1e-3
"""Sets whose mean cosine is closer to one than this are centred before the Gram product, not after."""


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
        if n < _LARGE:
            said.append(
                f"reg={reg:.3g}: the strongest partner of an item holds {float(self.share[index]):.0%} of its row "
                f"(aim: {_SHARE:.0%}, with reg between {LEAST_REG:g} and {MOST_REG:g}"
                + (")." if n <= _SMALL else f"; drawn towards {_LARGE_REG:g} as n grows).")
            )
        else:
            said.append(
                f"reg={reg:.3g}: the value for large sets ({n} items), in units of the centred cosine."
            )
        if n > _SMALL:
            said.append(
                f"self weight {float(self.self_weight[index]):.2g}: the larger the set, the more the pair counts."
            )
        if evidence < 1:
            said.append(
                f"steps aside by {1 - evidence:.0%}: partners of partners agree little more than in noise (agreement "
                f"{float(self.agreement[index]):.2f}; noise is near {_NO_EVIDENCE}, clear from {_FULL_EVIDENCE})."
            )
        return tuple(said)


@dataclass(frozen=True, eq=False)
class Weight:
    """The entropy weight of each set before its plan is known; fields of shape (...)."""

    reg: Tensor
    share: Tensor
    largeness: Tensor
    mean_cosine: Tensor
    n: Tensor

    def log_kernel(self, cosines: Tensor, mask: Tensor | None) -> Tensor:
        """(cos − 1) / reg within `BOUNDS`, −∞ at the item itself and at what does not exist.

        An item without a partner is given itself, and nobody else, to match.
        """
        log_kernel = (cosines - 1) / self.reg[..., None, None]
        n = cosines.shape[-1]
        if mask is None:
            return _with_diagonal(log_kernel, -math.inf if n > 1 else 0.0)
        own = torch.eye(n, dtype=torch.bool, device=cosines.device)
        alone = ~mask | (self.n <= 1)[..., None]
        return log_kernel.masked_fill(~_pairs(cosines, mask), -math.inf).masked_fill(
            own & alone[..., None], 0.0
        )


def choose_reg(x: Tensor, *, mask: Tensor | None = None) -> AutoReg:
    """Choose the entropy weight of each set from its features alone.

    Parameters
    ----------
    x : Tensor, shape (..., n, d)
        Sets of features.
    mask : Tensor of bool, shape (..., n), optional
        True at the items that exist.

    Returns
    -------
    AutoReg
        Fields of shape (...). Deterministic, constant in the gradient, the same whatever the order of the items and
        whatever other sets are in the batch.

    Notes
    -----
    O(n²) beyond the cosines; no labels, no random numbers.

    Examples
    --------
    >>> import torch
    >>> x = torch.nn.functional.normalize(torch.randn(5, 1, 64, generator=torch.Generator().manual_seed(0)), dim=-1)
    >>> x = (x + 0.1 * torch.randn(5, 16, 64, generator=torch.Generator().manual_seed(1))).reshape(80, 64)
    >>> choice = choose_reg(x)
    >>> 0.08 <= float(choice.reg) <= 0.4, float(choice.evidence)
    (True, 1.0)
    """
    check_features(x, argument="x", function="choose_reg")
    mask = None if mask is None else check_mask(mask, x.shape[:-1], function="choose_reg")
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        values = x if x.dtype is torch.float64 else x.float()
        cosines, mean = centred_cosines(values, mask, function="choose_reg")
        weight = weigh(cosines, mean, mask)
        plan = solve(weight.log_kernel(cosines, mask), None, None, _FIVE_SWEEPS)[0]
        return standardise(plan, cosines, weight, diagonal=1.0, mask=mask)[1]


def centred_cosines(x: Tensor, mask: Tensor | None, *, function: str) -> tuple[Tensor, Tensor]:
    """Cosines (..., n, n) of unit rows minus their mean, and the mean cosine (...) before that.

    Rows that ``mask`` leaves out are zero, whatever they hold. The set is centred in its Gram matrix; sets that
    this would leave with too few digits, before the product.
    """
    if mask is not None:
        x = torch.where(mask[..., None], x, 0.0)
    gram = x @ x.mT
    squared = gram.diagonal(dim1=-2, dim2=-1).clone()
    exists = torch.ones_like(squared, dtype=torch.bool) if mask is None else mask
    looked = squared.detach()
    is_ordinary = (torch.isfinite(looked) & (looked > 1e-24) & (looked < 1e30)) | ~exists
    inverse = torch.where(is_ordinary & exists, torch.where(is_ordinary & exists, squared, 1.0).rsqrt(), 0.0)
    cosines = _scaled(gram, inverse)
    n = _count(x, mask)
    rows = cosines.sum(dim=-1) / n[..., None]
    total = rows.sum(dim=-1) / n
    cosines = cosines - (rows - total[..., None])[..., :, None]
    cosines -= rows[..., None, :]
    if mask is not None:
        cosines = cosines * (mask[..., :, None] & mask[..., None, :])
    spread = cosines.diagonal(dim1=-2, dim2=-1).clone()
    near = spread.detach() < _CLOSE
    doubtful = ((near & exists) | ~is_ordinary).any(dim=-1)
    inverse = torch.where(near, 0.0, torch.where(near, 1.0, spread).rsqrt())
    cosines = _scaled(cosines, inverse)
    mean = ((n * total.detach() - 1) / (n - 1).clamp_min(1)).clamp(-1, 1)
    if is_tracing() or bool(doubtful.any()):
        check_finite(x, argument="x", function=function, mask=mask)
        exact, exact_mean = _centred_before(x, mask, n)
        cosines = torch.where(doubtful[..., None, None], exact, cosines)
        mean = torch.where(doubtful, exact_mean, mean)
    return cosines.clamp(-1, 1) if cosines.requires_grad or is_tracing() else cosines.clamp_(-1, 1), mean


def _scaled(matrix: Tensor, scale: Tensor) -> Tensor:
    """Entries (..., n, n) times the scales (..., n) of their row and column; in place where no gradient needs it."""
    if matrix.requires_grad or is_tracing():
        return matrix * scale[..., :, None] * scale[..., None, :]
    return matrix.mul_(scale[..., :, None]).mul_(scale[..., None, :])


def _centred_before(x: Tensor, mask: Tensor | None, n: Tensor) -> tuple[Tensor, Tensor]:
    """Like :func:`centred_cosines`, digit by digit."""
    unit = unit_rows(x)
    mean = unit.sum(dim=-2, keepdim=True) / n[..., None, None]
    moved = unit - mean if mask is None else torch.where(mask[..., None], unit - mean, 0.0)
    # Rows that differ from the mean by rounding only have no direction.
    noise = (16 * torch.finfo(x.dtype).eps) ** 2
    moved = unit_rows(torch.where(moved.detach().square().sum(dim=-1, keepdim=True) > noise, moved, 0.0))
    squared = mean.detach().square().sum(dim=(-1, -2))
    return moved @ moved.mT, ((n * squared - 1) / (n - 1).clamp_min(1)).clamp(-1, 1)


def centred_cosines_of_cost(cost: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Cosines (..., n, n) of the centred points whose squared distances, up to a factor, are ``cost``.

    The diagonal of ``cost`` is not read. The second result is 0: a cost does not know where the origin was.
    """
    own = torch.eye(cost.shape[-1], dtype=torch.bool, device=cost.device)
    missing = own if mask is None else own | ~(mask[..., :, None] & mask[..., None, :])
    cost = ((cost + cost.mT) / 2).masked_fill(missing, 0.0)
    count = _count(cost, mask)
    rows = cost.sum(dim=-1) / count[..., None]
    total = rows.sum(dim=-1) / count
    gram = (rows[..., :, None] + rows[..., None, :] - cost - total[..., None, None]) / 2
    squared = gram.diagonal(dim1=-2, dim2=-1)
    floor = 1e-6 * total.abs().detach()[..., None] + torch.finfo(cost.dtype).tiny
    is_real = squared.detach() > floor if mask is None else (squared.detach() > floor) & mask
    inverse = torch.where(is_real, torch.where(is_real, squared, 1.0).rsqrt(), 0.0)
    cosines = gram * inverse[..., :, None] * inverse[..., None, :]
    return cosines.clamp(-1, 1), torch.zeros_like(total)


@torch.no_grad()
def weigh(cosines: Tensor, mean_cosine: Tensor, mask: Tensor | None) -> Weight:
    """Choose the entropy weight of each set from its centred cosines (..., n, n)."""
    cosines = cosines.detach()
    n = _count(cosines, mask)
    largeness = ((n.log() - math.log(_SMALL)) / math.log(_LARGE / _SMALL)).clamp(0, 1)
    if mask is None and cosines.shape[-1] >= _LARGE:
        reg, share = torch.full_like(n, _LARGE_REG), torch.full_like(n, math.nan)
    else:
        small_reg, share = _sharpest(cosines, _pairs(cosines, mask), n, mask)
        reg = (small_reg.log() * (1 - largeness) + math.log(_LARGE_REG) * largeness).exp()
        share = share.masked_fill(largeness >= 1, math.nan)
    return Weight(reg, share, largeness, mean_cosine.detach(), n)


def standardise(
    plan: Tensor, cosines: Tensor, weight: Weight, *, diagonal: float, mask: Tensor | None
) -> tuple[Tensor, AutoReg]:
    """Turn a balanced plan (..., n, n), diagonal 0, into W: rows minus their mean, at one length, diagonal written.

    Differentiable in ``plan`` and ``cosines``; what is chosen is constant.
    """
    n, largeness = weight.n, weight.largeness
    pairs = _pairs(plan, mask)
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
        affinity = _with_diagonal(affinity, diagonal)
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


def _with_diagonal(fresh: Tensor, value: float) -> Tensor:
    """``fresh`` (..., n, n), which nobody else holds, with its diagonal written."""
    if is_tracing():
        own = torch.eye(fresh.shape[-1], dtype=torch.bool, device=fresh.device)
        return fresh.masked_fill(own, value)
    fresh.diagonal(dim1=-2, dim2=-1).fill_(value)
    return fresh


def _only_pairs(fresh: Tensor, pairs: Tensor, mask: Tensor | None) -> Tensor:
    """``fresh`` (..., n, n), which nobody else holds, with zeros where no pair is."""
    return _with_diagonal(fresh, 0.0) if mask is None else fresh.masked_fill(~pairs, 0.0)


def _unit_profile(rows: Tensor, n: Tensor) -> Tensor:
    """Rows at length one; rows that are nothing but rounding (of entries near 1/n) fade to zero."""
    rounding = 64 * torch.finfo(rows.dtype).eps / n.clamp_min(2).sqrt()[..., None, None]
    length: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows * (length.square() + rounding.square()).rsqrt()


def _sharpest(cosines: Tensor, pairs: Tensor, n: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The reg (...) at which the strongest partner holds `_SHARE` of a row, within bounds, and its share there.

    With k = exp((cos − max)/reg) and p = k / Σk, the row p − 1/(n−1) has the squared length Σk²/(Σk)² − 1/(n−1),
    and Σk² at reg is Σk at reg/2: one exponential and repeated squaring serve a whole ladder of reg.
    """
    kernel = _with_diagonal(cosines.clone(), -math.inf)
    kernel = kernel if mask is None else kernel.masked_fill(~pairs, -math.inf)
    top = kernel.amax(dim=-1, keepdim=True).clamp_min(-1)
    kernel = kernel.sub_(top).mul_(1 / MOST_REG).exp_()
    uniform = 1 / (n - 1).clamp_min(1)[..., None]
    ladder, shares = [], []
    reg, mass = MOST_REG, kernel.sum(dim=-1)
    while reg > LEAST_REG / 2:
        squares = kernel.mul_(kernel).sum(dim=-1)
        inverse = torch.where(mass > 0, 1 / mass.clamp_min(1), 0.0)
        length = squares * inverse.square() - uniform
        real = length > 1e-9
        share = torch.where(real, (inverse - uniform).square() / length.clamp_min(1e-9), 0.0)
        ladder.append(math.log(reg))
        shares.append(share.sum(dim=-1) / real.sum(dim=-1).clamp_min(1))
        reg, mass = reg / 2, squares
    share, log_reg = shares[0], torch.full_like(n, ladder[0])
    for upper, lower in zip(range(len(ladder) - 1), range(1, len(ladder)), strict=True):
        step = ((_SHARE - shares[upper]) / (shares[lower] - shares[upper]).clamp_min(1e-9)).clamp(0, 1)
        log_reg = log_reg + step * (ladder[lower] - ladder[upper])
        share = share + step * (shares[lower] - shares[upper])
    return log_reg.clamp_min(math.log(LEAST_REG)).exp(), share


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
    plan = solve(weight.log_kernel(some, kept), None, None, _FIVE_SWEEPS)[0]
    some_pairs = _pairs(some, kept)
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


def _count(like: Tensor, mask: Tensor | None) -> Tensor:
    """Items (...) of each set, at least 1, in the type of ``like`` (..., n, ·)."""
    if mask is None:
        return like.new_full(like.shape[:-2], like.shape[-2])
    return mask.sum(dim=-1).clamp_min(1).to(like.dtype)


def _pairs(like: Tensor, mask: Tensor | None) -> Tensor:
    """Pairs (..., n, n) of two different items that exist."""
    different = ~torch.eye(like.shape[-1], dtype=torch.bool, device=like.device)
    return different if mask is None else different & mask[..., :, None] & mask[..., None, :]
