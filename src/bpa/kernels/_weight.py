r"""The entropy weight of a set from its unlabelled rows: x (..., n, d) gives centred cosines, and these give reg.

The cost of ``reg="auto"`` is one minus the cosine of the unit rows minus their mean. A small set gets the sharpest plan
whose strongest partner still holds a given share of a row; in a large set a row rests on many partners at any weight,
and what is left is one number. The page "Choosing reg" derives and measures the constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bpa._checks import check_finite, is_tracing
from bpa.cost import unit_rows
from bpa.solvers._plan import KernelFacts

__all__ = [
    "FACTS", "LARGE", "LARGE_REG", "LEAST_REG", "MOST_REG", "SHARE", "SMALL", "Weight", "centred_cosines",
    "centred_cosines_of_cost", "items_of", "pairs_of", "weigh", "with_diagonal",
]  # fmt: skip

LEAST_REG, MOST_REG = 0.08, 0.4
"""The choice for small sets stays between these, in units of the centred cosine cost."""
SHARE = 0.35
"""Small sets: the sharpest plan whose strongest partner holds this share of a row, on average."""
LARGE_REG = 0.15
"""Large sets: a row rests on many partners at any reg; what is left is one number."""
SMALL, LARGE = 200, 1000
"""Items below the first make a small set, from the second on a large one; log-linear between."""
_CLOSE = 1e-3
"""Sets whose mean cosine is closer to one than this are centred before the Gram product, not after."""
FACTS = KernelFacts((-2 / LEAST_REG, 0.0), is_symmetric=True)
"""Of log K."""


@dataclass(frozen=True, eq=False)
class Weight:
    """The entropy weight of each set before its plan is known; fields of shape (...)."""

    reg: Tensor
    share: Tensor
    largeness: Tensor
    mean_cosine: Tensor
    n: Tensor

    def log_kernel(self, cosines: Tensor, mask: Tensor | None) -> Tensor:
        """(cos − 1) / reg within the bounds of `FACTS`, −∞ at the item itself and at what does not exist.

        An item without a partner is given itself, and nobody else, to match.
        """
        log_kernel = (cosines - 1) / self.reg[..., None, None]
        n = cosines.shape[-1]
        if mask is None:
            return with_diagonal(log_kernel, -math.inf if n > 1 else 0.0)
        own = torch.eye(n, dtype=torch.bool, device=cosines.device)
        alone = ~mask | (self.n <= 1)[..., None]
        return log_kernel.masked_fill(~pairs_of(cosines, mask), -math.inf).masked_fill(
            own & alone[..., None], 0.0
        )


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
    n = items_of(x, mask)
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
    count = items_of(cost, mask)
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
    n = items_of(cosines, mask)
    largeness = ((n.log() - math.log(SMALL)) / math.log(LARGE / SMALL)).clamp(0, 1)
    if mask is None and cosines.shape[-1] >= LARGE:
        reg, share = torch.full_like(n, LARGE_REG), torch.full_like(n, math.nan)
    else:
        small_reg, share = _sharpest(cosines, pairs_of(cosines, mask), n, mask)
        reg = (small_reg.log() * (1 - largeness) + math.log(LARGE_REG) * largeness).exp()
        share = share.masked_fill(largeness >= 1, math.nan)
    return Weight(reg, share, largeness, mean_cosine.detach(), n)


def _sharpest(cosines: Tensor, pairs: Tensor, n: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The reg (...) at which the strongest partner holds `SHARE` of a row, within bounds, and its share there.

    With k = exp((cos − max)/reg) and p = k / Σk, the row p − 1/(n−1) has the squared length Σk²/(Σk)² − 1/(n−1),
    and Σk² at reg is Σk at reg/2: one exponential and repeated squaring serve a whole ladder of reg.
    """
    kernel = with_diagonal(cosines.clone(), -math.inf)
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
        step = ((SHARE - shares[upper]) / (shares[lower] - shares[upper]).clamp_min(1e-9)).clamp(0, 1)
        log_reg = log_reg + step * (ladder[lower] - ladder[upper])
        share = share + step * (shares[lower] - shares[upper])
    return log_reg.clamp_min(math.log(LEAST_REG)).exp(), share


def with_diagonal(fresh: Tensor, value: float) -> Tensor:
    """``fresh`` (..., n, n), which nobody else holds, with its diagonal written."""
    if is_tracing():
        own = torch.eye(fresh.shape[-1], dtype=torch.bool, device=fresh.device)
        return fresh.masked_fill(own, value)
    fresh.diagonal(dim1=-2, dim2=-1).fill_(value)
    return fresh


def items_of(like: Tensor, mask: Tensor | None) -> Tensor:
    """Items (...) of each set, at least 1, in the type of ``like`` (..., n, ·)."""
    if mask is None:
        return like.new_full(like.shape[:-2], like.shape[-2])
    return mask.sum(dim=-1).clamp_min(1).to(like.dtype)


def pairs_of(like: Tensor, mask: Tensor | None) -> Tensor:
    """Pairs (..., n, n) of two different items that exist."""
    different = ~torch.eye(like.shape[-1], dtype=torch.bool, device=like.device)
    return different if mask is None else different & mask[..., :, None] & mask[..., None, :]
