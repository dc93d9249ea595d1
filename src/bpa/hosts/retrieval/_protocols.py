"""The three protocols of a ranking: which set is balanced, and how the rows of its plan are compared block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bpa._blocks import block_rows, spans
from bpa.errors import ArgumentError
from bpa.hosts.retrieval.diagnostics import PlanSigns, plain_costs, signs_of
from bpa.hosts.retrieval.gallery import Gallery
from bpa.memory import MemoryEstimate
from bpa.plans import DensePlan, GraphPlan, RowComparison
from bpa.plans._comparison import compare_dense, finish, squared_norms, truncate
from bpa.plans._pairs import holds_numbers
from bpa.plans._plan import Options
from bpa.plans._sparse import SparseRows, products
from bpa.solvers import Converged
from bpa.solvers._choice import PAPER_SWEEPS, Solver
from bpa.solvers._kernel import is_exponential_safe

__all__ = ["Seen", "Settings", "query_rows", "rank_each", "rank_frozen", "rank_joint"]

_ON_GRAPH = Converged(1e-3, max_iter=1000)


@dataclass(frozen=True)
class Settings:
    """What was asked for, checked."""

    reg: float | Literal["auto"]
    cost: str
    solver: Solver | None
    rows: RowComparison
    storage: torch.dtype | None
    estimate: MemoryEstimate

    @property
    def holds_plan(self) -> bool:
        """Whether W is held at all."""
        return any(name == "W" for name, _ in self.estimate.parts)

    def options(self, cost: str) -> Options:
        """What a plan over all pairs is asked for."""
        return Options("rank", self.reg, cost, self.solver or PAPER_SWEEPS, "max", 1.0)

    def check_whole(self, protocol: str) -> None:
        """Refuse settings that do not go together."""
        if self.cost == "relative-euclidean" and (
            protocol == "frozen" or self.storage is not None or self.rows.neighbours is not None
        ):
            raise ArgumentError(
                "cost='relative-euclidean' is scaled by the largest distance of the set, which late items change; it "
                "is offered for protocol='joint' and 'per-query' with all pairs in full precision. Use 'sqeuclidean' "
                "or 'cosine'."
            )
        if self.storage is None or protocol == "frozen":
            return
        if self.storage != torch.bfloat16 or not holds_numbers(self.reg, self.cost, torch.float32):
            raise ArgumentError(
                "The 'storage' parameter of rank is offered as torch.bfloat16, for the cosine costs with reg ≥ 0.03 "
                f"(float16 cannot hold exp(-1/reg)). Got {self.storage}, cost={self.cost!r}, reg={self.reg}."
            )


@dataclass(frozen=True)
class Seen:
    """A ranking, and what its plan looked like."""

    distances: Tensor
    signs: PlanSigns


def rank_joint(x: Tensor, n_query: int, gallery_start: int, settings: Settings) -> Seen:
    """Balance one set and compare its first rows with those from ``gallery_start`` on."""
    rows, n = settings.rows, len(x)
    if rows.neighbours is not None:
        return _rank_graph(x, n_query, gallery_start, settings)
    plan = _dense_plan(x, settings)
    del x
    signs = signs_of(plan)
    if rows.top is not None:
        best = plan.top_k(min(rows.top, n - 1))
        del plan  # W goes before the comparison
        sparse = truncate(best.values, best.indices, torch.arange(n), n)
        return Seen(_compare_sparse(sparse, n_query, gallery_start, rows.measure), signs)
    if not plan.kept:
        return Seen(_compare_streamed(plan, n_query, gallery_start, rows.measure), signs)
    matrix, compute = plan.affinities(), plan.features.dtype
    del plan
    if rows.measure != "cosine" and matrix.dtype == compute:
        matrix.sub_(matrix.mean(dim=0))  # moves all rows alike: distances stay, rounding shrinks
    return Seen(_compare_held(matrix, n_query, gallery_start, rows.measure, compute), signs)


def _dense_plan(x: Tensor, settings: Settings) -> DensePlan:
    if settings.cost == "relative-euclidean":
        costs = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
        costs.div_(costs.max().clamp_min(torch.finfo(x.dtype).tiny))
        keep = is_exponential_safe(1 / float(settings.reg), x.dtype)
        return DensePlan.of(costs, settings.options("precomputed"), keep=keep)
    options = settings.options(settings.cost)
    if settings.storage is not None:
        return DensePlan.of(x.float(), options, keep=settings.storage)
    may_hold = holds_numbers(settings.reg, settings.cost, x.dtype)
    return DensePlan.of(x, options, keep=False if not settings.holds_plan else True if may_hold else None)


def _rank_graph(x: Tensor, n_query: int, gallery_start: int, settings: Settings) -> Seen:
    rows, n = settings.rows, len(x)
    plan = GraphPlan.fit(
        x, reg=settings.reg, k=min(rows.neighbours or 1, n - 1), cost=settings.cost,  # type: ignore[arg-type]
        solver=settings.solver or _ON_GRAPH,
    )  # fmt: skip
    sparse = plan.whole()
    if rows.top is not None:
        best = plan.top_k(min(rows.top, n - 1))
        sparse = truncate(best.values, best.indices, torch.arange(n), n)
    return Seen(_compare_sparse(sparse, n_query, gallery_start, rows.measure), signs_of(plan))


def rank_frozen(
    query: Tensor,
    gallery: Tensor | None,
    settings: Settings,
    shortlist: int | None,
    budget: str | int | None,
) -> Seen:
    """Balance the gallery (every item, where there is no other side), and compare queries as they come."""
    fitted = Gallery.fit(
        query if gallery is None else gallery, reg=settings.reg, cost=settings.cost, rows=settings.rows,  # type: ignore[arg-type]
        solver=settings.solver or PAPER_SWEEPS, storage=settings.storage, budget=budget,
    )  # fmt: skip
    signs = signs_of(fitted.plan)
    if gallery is None:
        everybody = torch.arange(len(query))
        blocks = [fitted.fitted_distances(everybody[span]) for span in spans(len(query), 1024)]
        return Seen(torch.cat(blocks), signs)
    if shortlist is None:
        return Seen(fitted.distances(query), signs)
    candidates = fitted.shortlist(query, shortlist)
    near = fitted.distances(query, candidates)
    # everything else comes after the last candidate, in the order of the plain cost
    rest = plain_costs(query, gallery, settings.cost)
    distances = near.amax(dim=1, keepdim=True) + 1 + rest - rest.amin(dim=1, keepdim=True)
    return Seen(distances.scatter_(1, candidates, near), signs)


def rank_each(query: Tensor, gallery: Tensor, settings: Settings) -> Seen:
    """Balance every query with the gallery by itself."""
    each = [rank_joint(torch.cat([one[None], gallery]), 1, 1, settings) for one in query]
    return Seen(torch.cat([seen.distances for seen in each]), each[-1].signs)


# ---------------------------------------------------------------------------------------------- comparing blocks


def query_rows(n_query: int, n: int) -> int:
    """Rows of queries that a blocked comparison holds at once."""
    return min(n_query, max(256, 2**28 // (4 * n)))


def _compare_held(
    matrix: Tensor, n_query: int, gallery_start: int, measure: str, compute: torch.dtype
) -> Tensor:
    """Compare rows of a matrix; those held in a smaller type are widened block by block."""
    norm = squared_norms(matrix, compute)
    gallery = matrix[gallery_start:]
    out = torch.empty(n_query, len(gallery), dtype=compute)
    step = len(gallery) if matrix.dtype == compute else block_rows(len(matrix), 8)
    for span in spans(n_query, 1024):
        left = matrix[span].to(compute)
        for part in spans(len(gallery), step):
            torch.mm(left, gallery[part].to(compute).T, out=out[span, part])
        finish(out[span], norm[span], norm[gallery_start:], measure)
    return out


def _compare_sparse(rows: SparseRows, n_query: int, gallery_start: int, measure: str) -> Tensor:
    gallery = rows.slice(gallery_start, rows.shape[0])
    columns, norm, gallery_norm = gallery.transpose(), rows.squared_norms(), gallery.squared_norms()
    out = torch.empty(n_query, gallery.shape[0], dtype=rows.values.dtype)
    for span in spans(n_query, block_rows(gallery.shape[0], 4)):
        dot = products(rows.slice(span.start, span.stop), columns)
        out[span] = finish(dot, norm[span], gallery_norm, measure)
    return out


def _compare_streamed(plan: DensePlan, n_query: int, gallery_start: int, measure: str) -> Tensor:
    """Rebuild rows in blocks: the queries' are held, the gallery's pass by."""
    n_gallery = plan.n - gallery_start
    out = plan.features.new_empty(n_query, n_gallery)
    for span in spans(n_query, query_rows(n_query, plan.n)):
        left = plan.rows(torch.arange(span.start, span.stop))
        for part in spans(n_gallery, block_rows(plan.n, 4)):
            right = plan.rows(torch.arange(gallery_start + part.start, gallery_start + part.stop))
            out[span, part] = compare_dense(left, right, measure)
    return out
