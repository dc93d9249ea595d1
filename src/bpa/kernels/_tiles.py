r"""The kernel of one large set in square tiles: built once and kept, or built again at every product.

Both costs of features are a Gram matrix and a vector,

.. math:: -C_{ij}/\mathrm{reg} = \alpha\langle x_i, x_j\rangle - q_i - q_j,

so a tile is one matrix product and one exponential, and every tile above the diagonal serves its mirror image too.
Given costs are read instead of multiplied, with a constant q that centres their range.

:class:`KeptKernel` makes one pass and holds n × n numbers; :class:`StreamedKernel` makes one pass an iteration and
holds one tile. Time of a pass is half a Gram product and n²/2 exponentials; products are accumulated in float32
(float64 for float64 features).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from bpa import memory
from bpa._blocks import block_rows, spans
from bpa.kernels._large import LargeKernel
from bpa.kernels._recipe import PlanRequest
from bpa.kernels._rows import equal_pairs
from bpa.solvers._kernel import is_exponential_safe

__all__ = [
    "KEPT",
    "STREAMED",
    "CostTiles",
    "GramTiles",
    "KeptKernel",
    "StreamedKernel",
    "Tiles",
    "mirror",
    "tile_side",
]

_SIDE = 1024
"""Side of a tile: 4 MB in float32, which the last-level cache holds through the product and the exponential."""
_KEEP_BYTES = 2**30
"""Without a budget, the n × n numbers are kept when they take at most this."""
_SAME_COST = 512
"""Given costs up to this many roundings of the largest one are zero: the two items are one and the same."""


def tile_side(n: int) -> int:
    """Side of the tiles of a set of ``n``."""
    return min(n, _SIDE)


class Tiles(ABC):
    """α⟨x_i, x_j⟩ tile by tile, with the vector q of the module's equation.

    Attributes
    ----------
    n : int
        Items.
    side : int
        Of a tile.
    offset : Tensor, shape (n,), float64
        q of the fitted items.
    spread : float
        Bound on how far the entries of a tile lie apart.
    """

    def __init__(self, like: Tensor, offset: Tensor, spread: float) -> None:
        self.n = len(like)
        self.side = tile_side(self.n)
        self.offset = offset
        self.spread = spread
        self.dtype = like.dtype
        self.device = like.device
        self._like = like

    @abstractmethod
    def against(self, new: Tensor, columns: slice = slice(None), out: Tensor | None = None) -> Tensor:
        """Entries of other items, as they were prepared, against a span of the fitted ones."""

    @abstractmethod
    def between(self, rows: slice | Tensor, columns: slice, out: Tensor | None = None) -> Tensor:
        """Entries between chosen fitted items and a span of them."""

    @abstractmethod
    def offset_of(self, new: Tensor) -> Tensor:
        """Q of other items, float64."""

    @abstractmethod
    def same_items(self, new: Tensor, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Pairs (row of ``new``, fitted item) that are one and the same, the first for each row.

        ``entries`` are :meth:`against` all fitted items, or as many of the first ones.
        """

    def is_exponential_safe(self) -> bool:
        """Whether the exponentials of the entries can be held as numbers."""
        return is_exponential_safe(self.spread, self.dtype)

    def upper(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Tiles on and above the diagonal; one buffer, overwritten by the next tile."""
        blocks = list(spans(self.n, self.side))
        buffer = self._like.new_empty(self.side * self.side)
        for first, rows in enumerate(blocks):
            for columns in blocks[first:]:
                height, width = rows.stop - rows.start, columns.stop - columns.start
                tile = buffer[: height * width].view(height, width)
                yield rows, columns, self.between(rows, columns, tile)


class GramTiles(Tiles):
    """Tiles of prepared features (n, d)."""

    def __init__(self, features: Tensor, cost: str, reg: float) -> None:
        self.features = features
        self.cost = cost
        self.reg = reg
        self.alpha = (2 if cost == "sqeuclidean" else 1) / reg
        offset = self.offset_of(features)
        super().__init__(features, offset, 4 * float(offset.max()))  # |α⟨x_i, x_j⟩| ≤ 2·max q for both costs

    def against(self, new: Tensor, columns: slice = slice(None), out: Tensor | None = None) -> Tensor:
        return self.product(new, self.features[columns], out)

    def between(self, rows: slice | Tensor, columns: slice, out: Tensor | None = None) -> Tensor:
        return self.product(self.features[rows], self.features[columns], out)

    def offset_of(self, new: Tensor) -> Tensor:
        if self.cost != "sqeuclidean":
            return torch.full_like(new[:, 0], 0.5 / self.reg, dtype=torch.float64)
        squared = [new[rows].double().square().sum(dim=1) for rows in spans(len(new), _SIDE)]
        return torch.cat(squared) / self.reg

    def same_items(self, new: Tensor, entries: Tensor) -> tuple[Tensor, Tensor]:
        offset = self.offset[: entries.shape[1]].to(entries.dtype)
        closeness = entries - offset  # largest, up to rounding, where two rows are equal
        top = closeness.amax(dim=1, keepdim=True)
        near = closeness >= top - 64 * torch.finfo(new.dtype).eps * (1 + top.abs())
        return equal_pairs(new, self.features, near.nonzero(), self.cost)

    def product(self, left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
        """α⟨x_i, x_j⟩ of prepared rows."""
        out = left.new_empty(len(left), len(right)) if out is None else out
        if len(left) == 1:  # a matrix-vector product reads the fitted rows once, at the speed of memory
            return torch.mv(right, left[0], out=out[0]).mul_(self.alpha)[None]
        return torch.addmm(out, left, right.T, beta=0, alpha=self.alpha, out=out)


class CostTiles(Tiles):
    """Tiles of given symmetric costs (n, n), whose diagonal is not read."""

    def __init__(self, costs: Tensor, reg: float) -> None:
        self.costs = costs
        self._scale = -1 / reg
        low, high = math.inf, -math.inf
        for rows in spans(len(costs), _SIDE):
            part = costs[rows].clone()
            part.diagonal(offset=rows.start).fill_(math.inf)
            low = min(low, float(part.min()))
            part.diagonal(offset=rows.start).fill_(-math.inf)
            high = max(high, float(part.max()))
        low, high = (low, high) if low <= high else (0.0, 0.0)
        self._same = _SAME_COST * torch.finfo(costs.dtype).eps * high
        self._shift = (low + high) / (4 * reg)
        super().__init__(
            costs, torch.full_like(costs[0], self._shift, dtype=torch.float64), (high - low) / reg
        )

    def against(self, new: Tensor, columns: slice = slice(None), out: Tensor | None = None) -> Tensor:
        return torch.mul(new[:, columns], self._scale, out=out).add_(2 * self._shift)

    def between(self, rows: slice | Tensor, columns: slice, out: Tensor | None = None) -> Tensor:
        return torch.mul(self.costs[rows, columns], self._scale, out=out).add_(2 * self._shift)

    def offset_of(self, new: Tensor) -> Tensor:
        return torch.full_like(new[:, 0], self._shift, dtype=torch.float64)

    def same_items(self, new: Tensor, entries: Tensor) -> tuple[Tensor, Tensor]:
        row, item = (new[:, : entries.shape[1]] <= self._same).nonzero(as_tuple=True)
        first = torch.ones_like(row, dtype=torch.bool)
        first[1:] = row[1:] != row[:-1]
        return row[first], item[first]


class KeptKernel(LargeKernel):
    """The kernel's numbers, n × n, built once from tiles above the diagonal.

    Parameters
    ----------
    tiles : Tiles
        Whose exponentials are safe.
    storage : torch.dtype, optional
        Type to hold the numbers in, such as ``torch.bfloat16``; they are widened block by block for products.
    """

    def __init__(self, tiles: Tiles, storage: torch.dtype | None = None) -> None:
        super().__init__(tiles.n, tiles.device)
        self._tiles = tiles
        self.matrix = torch.empty(tiles.n, tiles.n, dtype=storage or tiles.dtype, device=tiles.device)
        for rows, columns, tile in tiles.upper():
            tile.exp_()
            if rows == columns:
                mirror(tile)
            else:
                self.matrix[columns, rows] = tile.T
            self.matrix[rows, columns] = tile
        self.matrix.fill_diagonal_(0)

    def log_apply(self, log_u: Tensor) -> Tensor:
        w = log_u - self._tiles.offset
        top = w.max()
        product = self._apply((w - top).exp())
        return (product.to(w.dtype).log() + (top - self._tiles.offset)).to(log_u.dtype)

    def plan_operator(self, log_u: Tensor) -> Callable[[Tensor], Tensor]:
        u = (log_u - self._tiles.offset).exp()
        return lambda w: u * self._apply(u * w).to(w.dtype)

    def strongest_partner(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        w = log_u - self._tiles.offset
        u = (w - w.max()).exp().to(self._tiles.dtype)
        best = [(self.matrix[rows] * u).max(dim=1) for rows in self._strips()]
        entry = torch.cat([found.values for found in best]).to(log_u.dtype)
        return torch.cat([found.indices for found in best]), (w + w.max() + entry.log()).to(log_u.dtype)

    def to_affinities(
        self, log_u: Tensor, log_v: Tensor, *, stretch: bool, diagonal: float
    ) -> tuple[Tensor, float]:
        """Turn K into W in its own memory; return it and what the plan was divided by."""
        left = (log_u - self._tiles.offset).exp().to(self._tiles.dtype)
        right = (log_v - self._tiles.offset).exp().to(self._tiles.dtype)
        scale = 1.0
        if stretch:
            scale = max(
                float((self.matrix[rows] * torch.outer(left[rows], right)).max()) for rows in self._strips()
            )
            scale = scale if scale > 0 else 1.0  # an item alone has no partner
        for rows in self._strips():  # u_i v_j first keeps W symmetric to the last bit
            scaling = torch.outer(left[rows], right)
            self.matrix[rows] = scaling.mul_(self.matrix[rows]).div_(scale)
        return self.matrix.fill_diagonal_(diagonal), scale

    def _apply(self, w: Tensor) -> Tensor:
        w = w.to(self._tiles.dtype)
        if self.matrix.dtype == w.dtype:
            return self.matrix @ w
        blocks = spans(self.n, block_rows(self.n, w.element_size()))
        return torch.cat([self.matrix[rows].to(w.dtype) @ w for rows in blocks])

    def _strips(self) -> Iterator[slice]:
        return spans(self.n, self._tiles.side**2 // self.n)


class StreamedKernel(LargeKernel):
    """The kernel, rebuilt tile by tile at every application."""

    def __init__(self, tiles: Tiles) -> None:
        super().__init__(tiles.n, tiles.device)
        self._tiles = tiles

    def log_apply(self, log_u: Tensor) -> Tensor:
        w = log_u.double() - self._tiles.offset
        result = self._by_products(w) if self._tiles.is_exponential_safe() else None
        if result is None or not bool(result.isfinite().all()):
            result = self._by_logarithms(w)
        return (result - self._tiles.offset).to(log_u.dtype)

    def plan_operator(self, log_u: Tensor) -> Callable[[Tensor], Tensor]:
        a = (log_u - self._tiles.offset).to(self._tiles.dtype)

        def apply(w: Tensor) -> Tensor:
            w_tile = w.to(a.dtype)
            total = torch.zeros_like(w)
            for rows, columns, tile in self._tiles.upper():
                tile.add_(a[rows][:, None]).add_(a[columns]).exp_()
                if rows == columns:
                    tile.fill_diagonal_(0)
                else:
                    total[columns] += w_tile[rows] @ tile
                total[rows] += tile @ w_tile[columns]
            return total

        return apply

    def strongest_partner(self, log_u: Tensor) -> tuple[Tensor, Tensor]:
        a = (log_u - self._tiles.offset).to(self._tiles.dtype)
        entry = torch.full_like(a, -math.inf)
        partner = torch.zeros_like(a, dtype=torch.int64)

        def improve(span: slice, start: int, value: Tensor, index: Tensor) -> None:
            better = value > entry[span]
            entry[span] = torch.where(better, value, entry[span])
            partner[span] = torch.where(better, index + start, partner[span])

        for rows, columns, tile in self._tiles.upper():
            tile.add_(a[rows][:, None]).add_(a[columns])
            if rows == columns:
                tile.fill_diagonal_(-math.inf)
            else:
                improve(columns, rows.start, *tile.max(dim=0))
            improve(rows, columns.start, *tile.max(dim=1))
        return partner, entry.to(log_u.dtype)

    def _by_products(self, w: Tensor) -> Tensor:
        top = w.max()
        v = (w - top).exp().to(self._tiles.dtype)
        total = torch.zeros_like(w)
        for rows, columns, tile in self._tiles.upper():
            tile.exp_()
            if rows == columns:
                tile.fill_diagonal_(0)
            else:
                total[columns] += v[rows] @ tile
            total[rows] += tile @ v[columns]
        return total.log() + top

    def _by_logarithms(self, w: Tensor) -> Tensor:
        v = w.to(self._tiles.dtype)
        total = torch.full_like(w, -math.inf)
        for rows, columns, tile in self._tiles.upper():
            if rows == columns:
                tile.fill_diagonal_(-math.inf)
            else:
                part = torch.logsumexp(tile + v[rows][:, None], dim=0)
                total[columns] = torch.logaddexp(total[columns], part.double())
            part = torch.logsumexp(tile.add_(v[columns]), dim=1)
            total[rows] = torch.logaddexp(total[rows], part.double())
        return total


def mirror(tile: Tensor) -> None:
    """Copy what is above the diagonal below it: a product of rows is symmetric up to rounding only."""
    tile.triu_(1).add_(tile.T.clone())


class _Kept:
    """Entry of :class:`KeptKernel`."""

    name = "kept"

    def why_not(self, request: PlanRequest) -> str | None:
        """None where n × n numbers may be held, else the reason."""
        elsewhere = _asked_elsewhere(request)
        if elsewhere is not None:
            return elsewhere
        if request.keep is False:
            return "keep=False asks for tiles"
        if not is_exponential_safe(request.spread, request.dtype):
            return f"the logarithms of K span {request.spread:.3g}, whose exponentials leave {request.dtype}"
        held, room = self.estimate(request).total, request.budget
        if room is None and request.keep is None:
            held, room = request.n**2 * request.dtype.itemsize, _KEEP_BYTES
        if room is not None and held > room:
            return f"its n × n numbers need {memory.format_bytes(held)}, and {memory.format_bytes(room)} are allowed"
        return None

    def estimate(self, request: PlanRequest) -> memory.MemoryEstimate:
        """What it would hold, beyond the input."""
        return _estimate(request, keep=True)


class _Streamed:
    """Entry of :class:`StreamedKernel`."""

    name = "streamed"

    def why_not(self, request: PlanRequest) -> str | None:
        """None where one tile may be held, else the reason."""
        elsewhere = _asked_elsewhere(request)
        if elsewhere is not None:
            return elsewhere
        if request.keep:
            return "the n × n numbers were asked for"
        needed = self.estimate(request).total
        if request.budget is not None and needed > request.budget:
            allowed = memory.format_bytes(request.budget)
            return f"even tiles need {memory.format_bytes(needed)}, and {allowed} are allowed"
        return None

    def estimate(self, request: PlanRequest) -> memory.MemoryEstimate:
        """What it would hold, beyond the input."""
        return _estimate(request, keep=False)


def _asked_elsewhere(request: PlanRequest) -> str | None:
    """Why tiles of all pairs are not what was asked for."""
    if request.neighbours is not None:
        return "a neighbour graph was asked for, not all pairs"
    return "several processes share the set" if request.is_shared else None


def _estimate(request: PlanRequest, *, keep: bool) -> memory.MemoryEstimate:
    return memory.estimate_dense_plan(
        request.n, request.d, dtype=request.dtype, block=tile_side(request.n), keep=keep
    )


KEPT, STREAMED = _Kept(), _Streamed()
