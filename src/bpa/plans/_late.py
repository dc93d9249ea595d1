r"""Items that arrive after a set was balanced: the one formula for their rows, columns and potentials.

The potentials of the fitted items stay as they are. A new item q with costs :math:`c_{qj}` to them gets

.. math:: w_{qj} = \frac1M \exp(f_q + \log v_j - c_{qj}/\mathrm{reg}), \qquad
          f_q = -\log\sum_j \exp(\log v_j - c_{qj}/\mathrm{reg}),

so that its row of the plan sums to one; its column comes from log u in the same way, and two late items exchange
:math:`\exp(f_q + f_a - c_{qa}/\mathrm{reg})/M`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bpa._blocks import spans
from bpa.errors import ArgumentError
from bpa.kernels._rows import Preparation
from bpa.kernels._tiles import CostTiles, GramTiles, Tiles

__all__ = ["Late", "distinct_items", "late_rows"]


def late_rows(entries: Tensor, scale: float) -> Tensor:
    """Rows of W from log v_j − c_qj/reg, each row up to a constant of its own; overwritten.

    An entry of −inf is no partner; a row without any partner is zero.
    """
    top = entries.amax(dim=1, keepdim=True)
    rows = entries.sub_(top.masked_fill(top == -math.inf, 0.0)).exp_()
    total = rows.sum(dim=1, keepdim=True).mul_(scale)
    return rows.div_(total.clamp_min_(torch.finfo(rows.dtype).tiny))


@dataclass(frozen=True, eq=False)
class Late:
    """Some new items before a fitted set.

    Parameters
    ----------
    new : Tensor, shape (m, d) or (m, n)
        The items, prepared as the fitted ones were (or their costs).
    entries : Tensor, shape (m, n)
        −c_qj/reg + q_j, each row up to a constant of its own; with the cosine costs, cosines over ``reg``.
    known : (row, item)
        Which of them are fitted items, as pairs of positions.
    tiles, log_u, log_v, scale, diagonal
        Of the plan.
    """

    new: Tensor
    entries: Tensor
    known: tuple[Tensor, Tensor]
    tiles: Tiles
    log_u: Tensor
    log_v: Tensor
    scale: float
    diagonal: float

    def rows(self) -> Tensor:
        """Rows of W, shape (m, n); that of a fitted item has ``diagonal`` at itself."""
        return self._scaled(self.log_v)

    def columns(self) -> Tensor:
        """What each fitted item would send to each of them: the entries W_jq, shape (m, n)."""
        return self._scaled(self.log_u)

    def closeness(self) -> Tensor:
        """−c_qj/reg, each row up to a constant of its own, shape (m, n): what ranks fitted items by plain cost."""
        offset = self.tiles.offset.to(self.entries.dtype)
        return self.entries if bool((offset == offset[0]).all()) else self.entries - offset

    def rows_and_columns(self) -> tuple[Tensor, Tensor]:
        """Both; one and the same tensor where the plan is symmetric."""
        rows = self.rows()
        return rows, (rows if self.log_u is self.log_v else self.columns())

    def potentials(self) -> Tensor:
        """Potentials f, shape (m,), float64."""
        offered = self.entries.double() + (self.log_v - self.tiles.offset)
        return self.tiles.offset_of(self.new) - torch.logsumexp(offered, dim=1)

    def exchanged(self, other: Late) -> Tensor:
        """Entries of W between these and other late items, shape (m, m')."""
        if not isinstance(self.tiles, GramTiles):
            raise ArgumentError(
                "Given costs do not say what late items cost one another; fit the plan on features."
            )
        logits = self.tiles.product(self.new, other.new).double()
        logits += (self.potentials() - self.tiles.offset_of(self.new))[:, None]
        logits += other.potentials() - self.tiles.offset_of(other.new)
        return (logits.exp_() / self.scale).to(self.entries.dtype)

    def _scaled(self, log_potential: Tensor) -> Tensor:
        entries = self.entries + (log_potential - self.tiles.offset).to(self.entries.dtype)
        if not len(self.known[0]):
            return late_rows(entries, self.scale)
        entries[self.known] = -math.inf
        rows = late_rows(entries, self.scale)
        rows[self.known] = self.diagonal
        return rows


def distinct_items(x: Tensor, cost: str) -> tuple[Tensor, Tensor]:
    """Which samples (n, d), or costs (n, n), are distinct items, and which of these each sample is; (k,) and (n,).

    Samples that coincide would be told from one another by nothing but rounding; for the cosines, those that point the
    same way coincide.
    """
    tiles: Tiles
    if cost == "precomputed":
        rows, tiles = x, CostTiles(x, 1.0)
    else:
        seen = "sqeuclidean" if cost == "sqeuclidean" else "cosine"  # before a mean moves them
        rows = Preparation.of(x, seen, x.dtype).rows(x, x.dtype)
        tiles = GramTiles(rows, seen, 1.0)
    first = torch.arange(len(x), device=x.device)
    for span in spans(len(x), tiles.side):
        entries = tiles.against(rows[span], slice(0, span.stop))
        row, item = tiles.same_items(rows[span], entries)
        first[span.start + row] = torch.minimum(first[span.start + row], item)
    positions, item_of_sample = torch.unique(first, return_inverse=True)
    return positions, item_of_sample
