"""The transform as a layer, and as attention."""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from bpa._words import explains
from bpa.errors import ShapeError
from bpa.kernels._recipe import Cost, Recipe, Reg
from bpa.solvers._choice import PAPER_SWEEPS, Solver
from bpa.transforms.functional import WORDS, AffinityOptions, affinities_of

__all__ = ["BPA", "BPAAttention"]


class BPA(nn.Module):
    """The transform as a layer: no parameters, no buffers, nothing stored in ``forward``.

    Takes the options of :func:`balanced_affinities`, which computes it. Inserting the layer into a trained network
    leaves the state dict as it was; taking it out again does too.

    Examples
    --------
    >>> import torch
    >>> layer = BPA(reg=0.1)
    >>> layer(torch.randn(2, 80, 640)).shape
    torch.Size([2, 80, 80])
    >>> len(layer.state_dict())
    0
    """

    @explains(**WORDS)
    def __init__(
        self,
        reg: Reg = 0.1,
        solver: Solver = PAPER_SWEEPS,
        *,
        cost: Cost = "cosine",
        scale: Literal["max"] | None = "max",
        scale_grad: bool = False,
        diagonal: float = 1.0,
        symmetrize: bool = False,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.recipe = Recipe(reg, solver, cost, scale, scale_grad, diagonal, symmetrize, function=name)

    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, support_labels: Tensor | None = None
    ) -> Tensor:
        """Map features ``x`` (..., n, d) to affinities (..., n, n)."""
        return affinities_of(x, self.recipe, mask, support_labels)

    def extra_repr(self) -> str:
        """Name the options that differ from the default."""
        return self.recipe.describe()


class BPAAttention(BPA):
    r"""Balanced affinities as attention: :math:`W V`, of the width of V.

    Takes the options of :class:`BPA`.

    Parameters
    ----------
    normalize_rows : bool, default False
        Divide each output row by the sum of its affinities, which makes it a weighted mean. The paper does not.

    Examples
    --------
    >>> import torch
    >>> BPAAttention(reg=0.1)(torch.randn(80, 640)).shape
    torch.Size([80, 640])
    """

    @explains(**WORDS)
    def __init__(
        self,
        reg: Reg = 0.1,
        solver: Solver = PAPER_SWEEPS,
        *,
        normalize_rows: bool = False,
        **options: Unpack[AffinityOptions],
    ) -> None:
        super().__init__(reg, solver, **options)
        self.normalize_rows = normalize_rows

    def forward(
        self,
        x: Tensor,
        *,
        values: Tensor | None = None,
        mask: Tensor | None = None,
        support_labels: Tensor | None = None,
    ) -> Tensor:
        """Take affinities from ``x`` (..., n, d) and mix ``values`` (..., n, w), which are ``x`` by default.

        Returns
        -------
        Tensor, shape (..., n, w)
            Rows of items outside ``mask`` are zero.
        """
        affinity = super().forward(x, mask=mask, support_labels=support_labels)
        values = x if values is None else values
        if values.dim() < 2 or values.shape[-2] != x.shape[-2]:
            raise ShapeError(
                f"The 'values' parameter of {type(self).__name__} must have shape (..., n, w) with n = "
                f"{x.shape[-2]}, one row an item. Got {tuple(values.shape)}."
            )
        if mask is not None:
            values = values.masked_fill(~mask[..., None], 0.0)
        if self.normalize_rows:
            total = affinity.sum(dim=-1, keepdim=True)
            affinity = affinity / torch.where(total > 0, total, 1.0)
        return affinity @ values.to(affinity.dtype)
