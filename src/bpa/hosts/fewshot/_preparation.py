"""Rows before PT-MAP's loop: made less skewed, of unit length, centred; as features or as their inner products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor
from torch.nn.functional import normalize

from bpa._checks import check_choice
from bpa.errors import ArgumentError
from bpa.hosts.fewshot._sets import GramTransform, TaskSet
from bpa.hosts.fewshot._settings import Centre, Nonneg
from bpa.transforms.contract import SetTransform


def powered(x: Tensor, *, power: float = 0.5, nonneg: Nonneg = "relu") -> Tensor:
    """Make the distribution of each feature less skewed: the first step of `PTMap`, entry by entry.

    A whole feature file can be taken through it once; `PTMap` with ``nonneg="off"`` then leaves it out.

    Parameters
    ----------
    x : Tensor, any shape
        Features.
    power : float
        The exponent β.
    nonneg : {"relu", "error", "signed", "off"}
        What to do about negative entries; see `PTMapSettings`.

    Returns
    -------
    Tensor, the shape of ``x``

    Examples
    --------
    >>> import torch
    >>> powered(torch.tensor([4.0, -9.0]), nonneg="signed")
    tensor([ 2.0000, -3.0000])
    """
    check_choice(nonneg, get_args(Nonneg), argument="nonneg", function="powered")
    if nonneg == "off":
        return x
    if nonneg == "signed":
        return x.sign() * (x.abs() + 1e-6).pow(power)
    if nonneg == "error" and bool((x < 0).any()):
        raise ArgumentError(
            "The power transform of PT-MAP needs features ≥ 0 and some are negative; nonneg='relu' sets them to zero, "
            "nonneg='signed' keeps their sign."
        )
    return (x.clamp_min(0.0) + 1e-6).pow(power)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of each task, or their inner products where those are the smaller array."""

    values: Tensor  # (b, n, w), or (b, n, n) inner products
    is_gram: bool

    @classmethod
    def of(cls, z: Tensor) -> Rows:
        """Rows (..., n, w) of any leading shape."""
        flat = z.reshape(-1, *z.shape[-2:])
        return cls(flat @ flat.transpose(-1, -2), True) if z.shape[-1] > z.shape[-2] else cls(flat, False)

    def products(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Inner products (b, k, n) of the combinations ``weights @ z`` with all rows, and their squared lengths."""
        if self.is_gram:
            products = weights @ self.values
            return products, (weights * products).sum(dim=-1)
        centres = weights @ self.values
        return centres @ self.values.transpose(-1, -2), (centres * centres).sum(dim=-1)


def normalised(x: Tensor, task: TaskSet, centre: Centre) -> Tensor:
    """Steps 2 to 4: unit length, support and query centred each by its own mean, unit length."""
    x = normalize(x, dim=-1)  # by the published floor of 1e-12
    if centre == "off":
        return x if task.mask is None else x * task.mask[..., None]
    halves = []
    for rows, mask in zip(task.halves(x), (task.support_mask, task.query_mask), strict=True):
        if mask is None:
            halves.append(rows - rows.mean(dim=-2, keepdim=True))
        else:
            there = mask[..., None]
            mean = (rows * there).sum(dim=-2, keepdim=True) / mask.sum(-1).clamp_min(1)[..., None, None]
            halves.append(torch.where(there, rows - mean, torch.zeros_like(rows)))
    return normalize(torch.cat(halves, dim=-2), dim=-1)


def from_gram(
    rows: Tensor, task: TaskSet, transform: SetTransform, centre: Centre, renormalize: bool
) -> Rows:
    """The same steps on inner products: one pass over the features, whatever their width."""
    gram = _normalised_gram(rows @ rows.transpose(-1, -2), task, centre)
    if isinstance(transform, GramTransform):
        with torch.autocast(device_type=gram.device.type, enabled=False):
            z = transform.from_cosines(gram, mask=task.mask)
        if task.mask is not None:
            z = torch.where(task.mask[..., None], z, torch.zeros_like(z))
        if not renormalize:
            return Rows.of(z)
        gram = _normalised_gram(z @ z.transpose(-1, -2), task, centre)
    return Rows(gram.reshape(-1, *gram.shape[-2:]), True)


def _normalised_gram(gram: Tensor, task: TaskSet, centre: Centre) -> Tensor:
    """`normalised`, on the inner products of the rows."""
    gram = _unit_gram(gram)
    if centre == "off":
        return gram
    # rows minus the mean row of their half, on both sides: G - E m - (E m)ᵀ with E the halves (n, 2)
    n_support, n = task.n_support, gram.shape[-1]
    halves = torch.zeros(n, 2, dtype=gram.dtype, device=gram.device)
    halves[:n_support, 0] = halves[n_support:, 1] = 1.0
    if task.mask is not None:
        halves = halves * task.mask[..., None]
    share = (halves / halves.sum(dim=-2, keepdim=True).clamp_min(1.0)).transpose(-1, -2)  # (..., 2, n)
    means = share @ gram
    among = means @ share.transpose(-1, -2)
    shift = halves @ (means - 0.5 * among @ halves.transpose(-1, -2))
    return _unit_gram(gram - shift - shift.transpose(-1, -2))


def _unit_gram(gram: Tensor) -> Tensor:
    """Cosines of rows with these inner products; a row of no length, up to rounding, becomes zero."""
    squares = gram.diagonal(dim1=-2, dim2=-1)
    tiny = 64 * torch.finfo(gram.dtype).eps * squares.detach().amax(dim=-1, keepdim=True)
    real = squares > tiny
    inverse = torch.where(real, squares, torch.ones_like(squares)).rsqrt() * real
    return gram * inverse[..., :, None] * inverse[..., None, :]
