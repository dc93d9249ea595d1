r"""Rank a gallery for queries by comparing rows of the balanced affinities.

=================  =================================================================================================
``"joint"``        W over queries and gallery together: the paper. All queries take part in each other's ranking.
``"frozen"``       W over the gallery; queries come later, one by one or in batches (:mod:`.frozen`).
``"per-query"``    an exact joint transform of each single query with the gallery: slow, the yardstick for frozen.
=================  =================================================================================================

Deletions of an evaluation protocol act on rankings only: same-camera images stay in the joint set.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from bpa._checks import check_choice, check_count, check_features, check_finite
from bpa.cost import cosine_cost, unit_rows
from bpa.errors import ArgumentError, ShapeError
from bpa.hosts.retrieval.gallery import Gallery
from bpa.memory import WORKSPACE, MemoryEstimate, check, parse_bytes
from bpa.plans.comparison import (
    RETRIEVAL,
    RowComparison,
    SparseSource,
    centred_rows,
    chosen_reg,
    compare_dense,
    compare_sparse,
    finish,
    squared_norms,
    truncate,
)
from bpa.plans.dense import DensePlan
from bpa.plans.neighbours import DistanceSource, FeatureSource, block_rows, spans
from bpa.plans.sparse_rows import SparseRows
from bpa.solvers import Sweeps, sinkhorn

__all__ = ["Diagnostics", "Ranking", "estimate_rank", "rank", "rerank", "row_source"]

Protocol = Literal["joint", "frozen", "per-query"]
_PROTOCOLS = ("joint", "frozen", "per-query")
_COSTS = ("cosine", "sqeuclidean", "euclidean")
_SAMPLE = 256


@dataclass(frozen=True)
class Diagnostics:
    """Whether ``reg`` fits the features.

    Attributes
    ----------
    cost_mean, cost_std : float
        Of the off-diagonal cost (a sample of rows). The best ``reg`` was 0.4 to 1 times the deviation where measured.
    perplexity : float
        Median number of items a row of the plan spreads over, exp(entropy).
    n : int
        Items of the set that was balanced.
    row_maximum : float
        Mean largest off-diagonal entry of the stretched rows.
    marginal_error, scale : float
        Of the plan.
    hubness_before, hubness_after : float
        Skewness of how often gallery items are in the top 10, for the plain cost and for the ranking returned.
    near, middle : float
        Quantiles 0.001 and 0.5 of the distances of rows: where they are close, re-ranking weights that fall with the
        distance are nearly flat, and only its neighbour sets carry information.
    notes : tuple of str
        What looks wrong, in sentences; empty when nothing does.
    """

    cost_mean: float
    cost_std: float
    perplexity: float
    n: int
    row_maximum: float
    marginal_error: float
    scale: float
    hubness_before: float
    hubness_after: float
    near: float
    middle: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ranking:
    """Distances of queries to a gallery, and how they came about.

    Attributes
    ----------
    distances : Tensor, shape (n_query, n_gallery)
        Squared Euclidean distances or one minus cosines of rows of W; smaller is nearer.
    protocol : str
    rows : RowComparison
    estimate : MemoryEstimate
        What was planned before anything was allocated.
    diagnostics : Diagnostics or None
    """

    distances: Tensor = field(repr=False)
    protocol: str
    rows: RowComparison
    estimate: MemoryEstimate
    diagnostics: Diagnostics | None = None

    def top(self, m: int) -> tuple[Tensor, Tensor]:
        """Positions and distances of the ``m`` nearest gallery items of each query, each (n_query, m)."""
        check_count(m, argument="m", function="Ranking.top")
        order = torch.sort(self.distances, dim=1, stable=True)
        return order.indices[:, :m], order.values[:, :m]


def rank(
    query: Tensor,
    gallery: Tensor | None = None,
    *,
    reg: float | Literal["auto"],
    centre: bool = False,
    n_iter: int = 5,
    cost: Literal["cosine", "sqeuclidean", "euclidean"] = "cosine",
    protocol: Protocol = "joint",
    rows: RowComparison = RETRIEVAL,
    shortlist: int | None = None,
    storage: torch.dtype | None = None,
    budget: str | int | None = None,
    diagnostics: bool = True,
) -> Ranking:
    """Rank a gallery for every query.

    Parameters
    ----------
    query : Tensor, shape (n_query, d)
    gallery : Tensor, shape (n_gallery, d), optional
        Where it is left out every item queries the others, and the three protocols agree up to the solver.
    reg : float or "auto"
        Entropy weight. There is no silent default for retrieval: the paper's 0.25 belongs to one network's features and
        hurts others. ``"auto"`` centres the features and takes 0.15, which lost on none of the sets measured.
    centre : bool
        Subtract the mean of the unit rows (of the set that is balanced) first.
    n_iter : int
        Alternating sweeps.
    cost : {"cosine", "sqeuclidean", "euclidean"}
        ``"euclidean"`` is the plain distance over its largest value in the set (joint and per-query only, dense).
    protocol : {"joint", "frozen", "per-query"}
        See the module.
    rows : RowComparison
        How rows are compared; ``bpa.plans.comparison.PAPER`` is the paper's.
    shortlist : int, optional
        Compare only so many candidates of each query, those nearest by plain cost; the others follow in the order
        of that cost (frozen only).
    storage : torch.dtype, optional
        Type in which W is held, such as ``torch.bfloat16``; products are accumulated in float32.
    budget : str or int, optional
        Bytes allowed beyond the input. Where W itself does not fit, its rows are rebuilt in blocks.
    diagnostics : bool
        Look whether ``reg`` fits, on a sample, and warn where it does not.

    Returns
    -------
    Ranking

    Raises
    ------
    MemoryBudgetError
        When not even blocks fit the budget; nothing has been allocated then.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> gallery = torch.randn(60, 8, generator=generator)
    >>> query = gallery[:5] + 0.1 * torch.randn(5, 8, generator=generator)
    >>> rank(query, gallery, reg=0.2, diagnostics=False).top(1)[0][:, 0].tolist()
    [0, 1, 2, 3, 4]
    """
    function = "rank"
    for name, value in (("query", query), ("gallery", gallery)):
        if value is None:
            continue
        check_features(value, argument=name, function=function)
        check_finite(value, argument=name, function=function)
        if value.dim() != 2 or value.shape[1] != query.shape[1]:
            raise ShapeError(
                f"The {name!r} parameter of {function} must have shape (n, {query.shape[-1]}). Got "
                f"{tuple(value.shape)}."
            )
    reg, centre = chosen_reg(reg, centre, cost, function)
    check_count(n_iter, argument="n_iter", function=function)
    check_choice(cost, _COSTS, argument="cost", function=function)
    check_choice(protocol, _PROTOCOLS, argument="protocol", function=function)
    if shortlist is not None and (protocol != "frozen" or gallery is None):
        raise ArgumentError(
            "The 'shortlist' parameter of rank belongs to protocol='frozen' with a gallery: in the joint set all "
            "items are compared."
        )
    if cost == "euclidean" and (protocol == "frozen" or storage is not None or rows.neighbours is not None):
        raise ArgumentError(
            "cost='euclidean' is scaled by the largest distance of the set, which late items change; it is offered for "
            "protocol='joint' and 'per-query' with all pairs in full precision. Use 'sqeuclidean' or 'cosine'."
        )
    query = query.detach() if query.dtype in (torch.float32, torch.float64) else query.detach().float()
    gallery = None if gallery is None else gallery.detach().to(query.dtype)
    n_gallery = len(query) if gallery is None else len(gallery)
    estimate = estimate_rank(
        len(query), n_gallery, query.shape[1], protocol=protocol, cost=cost, rows=rows, storage=storage, budget=budget,
        all_against_all=gallery is None, dtype=query.dtype,
    )  # fmt: skip
    check(
        estimate,
        budget,
        way_out="Rank the queries in parts with protocol='frozen', or pass rows=RowComparison(top=50) or "
        "storage=torch.bfloat16.",
    )
    settings = _Settings(reg, centre, n_iter, cost, rows, storage, estimate)
    if protocol == "frozen":
        seen = _rank_frozen(query, gallery, settings, shortlist, budget)
    elif protocol == "joint" or gallery is None:
        first = 0 if gallery is None else len(query)
        # the joint copy is handed over, so that it can go before the comparison needs memory
        seen = _rank_joint(
            query if gallery is None else torch.cat([query, gallery]), len(query), first, settings
        )
    else:
        seen = _rank_each(query, gallery, settings)
    found = None
    if diagnostics:
        found = _diagnose(query, gallery, settings, seen)
        for note in found.notes:
            warnings.warn(note, UserWarning, stacklevel=2)
    return Ranking(seen.distances, protocol, rows, estimate, found)


def row_source(
    x: Tensor,
    *,
    reg: float | Literal["auto"],
    centre: bool = False,
    n_iter: int = 5,
    rows: RowComparison = RETRIEVAL,
) -> DistanceSource:
    """Distances in the space of balanced rows, for :meth:`KReciprocal.fit`: re-ranking after the transform.

    Parameters
    ----------
    x : Tensor, shape (n, d)
        The joint set, queries first.
    reg, centre, n_iter, rows
        As in :func:`rank`.

    Returns
    -------
    DistanceSource
        Squared Euclidean distances of rows; of unit rows (twice one minus the cosine) where the rows are compared by
        cosine.
    """
    check_features(x, argument="x", function="row_source")
    if rows.neighbours is not None:
        raise ArgumentError(
            "row_source offers plans over all pairs; use a RowComparison without 'neighbours'."
        )
    reg, centre = chosen_reg(reg, centre, "cosine", "row_source")
    x = centred_rows(x)[0] if centre else x
    lazy = DensePlan.fit(
        x,
        reg=reg,
        solver="alternating",
        n_iter=n_iter,
        keep=True if _can_keep(x, reg, "cosine") else None,
    )
    if rows.top is None:
        matrix = lazy.dense()
        return FeatureSource(unit_rows(matrix) if rows.measure == "cosine" else matrix)
    best = lazy.top_k(min(rows.top, lazy.n - 1))
    return SparseSource(truncate(best.values, best.indices, torch.arange(lazy.n), lazy.n), rows.measure)


def rerank(
    query: Tensor,
    candidate_ids: Tensor,
    candidate_vectors: Tensor | None,
    fitted: Gallery,
) -> Tensor:
    """Score the candidates that a vector search returned: the hook for any index or database.

    Parameters
    ----------
    query : Tensor, shape (d,) or (q, d)
    candidate_ids : Tensor of int64, shape (c,) or (q, c)
        Positions in the fitted gallery; −1 for an item that was added to the index after the fit.
    candidate_vectors : Tensor, shape (c, d) or (q, c, d), or None
        Features of the candidates; read only where an id is −1, and may be None where none is.
    fitted : Gallery
        The balanced gallery.

    Returns
    -------
    Tensor, shape (c,) or (q, c)
        Scores, higher is better: minus the distance of rows.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> gallery = torch.randn(50, 8, generator=generator)
    >>> fitted = Gallery.fit(gallery, reg=0.2)
    >>> rerank(gallery[3] + 0.01, torch.tensor([7, 3, 20]), None, fitted).argmax().item()
    1
    """
    single = query.dim() == 1
    if single:
        query, candidate_ids = query[None], candidate_ids[None]
        candidate_vectors = None if candidate_vectors is None else candidate_vectors[None]
    unknown = candidate_ids < 0
    if bool(unknown.any()) and candidate_vectors is None:
        raise ArgumentError(
            "The 'candidate_vectors' parameter of rerank is needed where a candidate has no position in the fitted "
            "gallery (-1)."
        )
    scores = -fitted.distances(query, candidate_ids.clamp_min(0))
    if bool(unknown.any()) and candidate_vectors is not None:
        for i in torch.nonzero(unknown.any(dim=1))[:, 0].tolist():
            late = candidate_vectors[i][unknown[i]]
            scores[i, unknown[i]] = -fitted.distances_to_new(query[i : i + 1], late)[0]
    return scores[0] if single else scores


def estimate_rank(
    n_query: int,
    n_gallery: int,
    d: int,
    *,
    protocol: Protocol = "joint",
    cost: str = "cosine",
    rows: RowComparison = RETRIEVAL,
    storage: torch.dtype | None = None,
    budget: str | int | None = None,
    all_against_all: bool = False,
    dtype: torch.dtype = torch.float32,
) -> MemoryEstimate:
    """Bytes that :func:`rank` holds at its peak beyond the input.

    Parameters
    ----------
    n_query, n_gallery, d : int
        Sizes.
    protocol, cost, rows, storage, all_against_all, dtype
        As in ``rank``.
    budget : str or int, optional
        Where W does not fit it, the estimate is that of the blocked computation.

    Returns
    -------
    MemoryEstimate
        Its part named ``"W"`` is there when W is held.
    """
    item = 8 if dtype == torch.float64 else 4
    n = n_gallery if protocol == "frozen" or all_against_all else n_query + n_gallery
    n = n_gallery + 1 if protocol == "per-query" and not all_against_all else n
    square = n * n * (item if storage is None else storage.itemsize)
    common = [("distances", n_query * n_gallery * item), ("unit features", 2 * n * d * item)]
    common.append(("workspace", WORKSPACE + 3 * _block_bytes(n, item)))
    if rows.top is not None:
        common.append(("sparse rows", n * (rows.top + 1) * 2 * (8 + item)))
    what = f"{protocol} ranking of {n_gallery:,} items for {n_query:,} queries"
    if rows.neighbours is not None:
        graph = 2 * n * rows.neighbours * (8 * 5 + 8 + 2 * item)
        return MemoryEstimate(what, (("graph", graph), *common))
    times = 4 if cost == "euclidean" else 1
    held = MemoryEstimate(what, (("W", square * times), *common))
    if budget is None or held.total <= parse_bytes(budget) or storage is not None or cost == "euclidean":
        return held
    if protocol == "frozen" and rows.top is None:
        return held
    streamed = (
        [*common]
        if rows.top is not None
        else [("rows of the queries", _query_rows(n_query, n) * n * item), *common]
    )
    return MemoryEstimate(f"{what}, blocked", tuple(streamed))


# ---------------------------------------------------------------------------------------------- protocols


@dataclass(frozen=True)
class _Settings:
    reg: float
    centre: bool
    n_iter: int
    cost: Literal["cosine", "sqeuclidean", "euclidean"]
    rows: RowComparison
    storage: torch.dtype | None
    estimate: MemoryEstimate

    @property
    def holds_plan(self) -> bool:
        return any(name == "W" for name, _ in self.estimate.parts)

    @property
    def lazy_cost(self) -> Literal["cosine", "sqeuclidean"]:
        return "sqeuclidean" if self.cost == "sqeuclidean" else "cosine"


@dataclass(frozen=True)
class _Seen:
    """A ranking and what was noticed on the way."""

    distances: Tensor
    n: int
    perplexity: float
    row_maximum: float
    marginal_error: float
    scale: float


def _block_bytes(n: int, item: int) -> int:
    return block_rows(n, item) * n * item


def _query_rows(n_query: int, n: int) -> int:
    return min(n_query, max(256, 2**28 // (4 * n)))


def _rank_joint(x: Tensor, n_query: int, gallery_start: int, settings: _Settings) -> _Seen:
    """Balance one set and compare its first rows with those from ``gallery_start`` on."""
    rows, n = settings.rows, len(x)
    if settings.centre:
        x = centred_rows(x)[0]
    gallery = slice(gallery_start, n)
    if rows.neighbours is not None:
        return _rank_graph(x, n_query, gallery_start, settings)
    if settings.cost == "euclidean" or settings.storage is not None:
        if settings.cost == "euclidean":
            plan = _dense_euclidean(x, settings)
        else:
            x = unit_rows(x).float()
            plan = _dense_half(x, settings)
        del x
        seen = _look(plan.sample, n, plan.marginal_error, plan.scale)
        if rows.top is not None:
            distances = _compare_truncated(plan.top_k(rows.top), n_query, gallery_start, n, rows.measure)
        else:
            distances = _compare_held(plan.matrix, n_query, gallery, rows.measure)
        return _Seen(distances, *seen)
    keep: bool | None = None
    if not settings.holds_plan:
        keep = False
    elif _can_keep(x, settings.reg, settings.lazy_cost):
        keep = True
    lazy = DensePlan.fit(
        x, reg=settings.reg, cost=settings.lazy_cost, solver="alternating", n_iter=settings.n_iter, keep=keep
    )
    del x
    seen = _look(lazy.rows, n, lazy.report.marginal_error, lazy.scale)
    if rows.top is not None:
        best = _largest(lazy, min(rows.top, n - 1), held=settings.holds_plan)
        del lazy  # W goes before the comparison
        distances = _compare_truncated(best, n_query, gallery_start, n, rows.measure)
    elif settings.holds_plan:
        matrix = lazy.dense()
        del lazy
        if rows.measure == "euclidean":
            matrix.sub_(matrix.mean(dim=0))  # moves all rows alike: distances stay, rounding shrinks
        distances = _compare_held(matrix, n_query, gallery, rows.measure)
    else:
        distances = _compare_streamed(lazy, n_query, gallery_start, rows.measure)
    return _Seen(distances, *seen)


def _largest(lazy: DensePlan, k: int, *, held: bool) -> tuple[Tensor, Tensor]:
    """The ``k`` largest off-diagonal entries of every row of W, (n, k) each; a held W is used up."""
    if not held:
        best = lazy.top_k(k)
        return best.values, best.indices
    matrix = lazy.dense().fill_diagonal_(-1)  # below every entry
    values, indices = matrix.new_empty(len(matrix), k), torch.empty(len(matrix), k, dtype=torch.int64)
    for start, stop in spans(len(matrix), 256):
        torch.topk(matrix[start:stop], k, dim=1, sorted=True, out=(values[start:stop], indices[start:stop]))
    return values, indices


def _can_keep(x: Tensor, reg: float, cost: str) -> bool:
    """Whether the kernel can be held as numbers (its logarithms span at most 2 / reg for the cosine cost)."""
    limit = 600.0 if x.dtype == torch.float64 else 67.0
    return cost == "cosine" and 2 / reg <= limit


def _compare_held(matrix: Tensor, n_query: int, gallery: slice, measure: str) -> Tensor:
    n = len(matrix)
    compute = torch.float64 if matrix.dtype == torch.float64 else torch.float32
    norm = _norms(matrix, compute)
    out = torch.empty(n_query, n - gallery.start, dtype=compute)
    if matrix.dtype == compute:
        for start, stop in spans(n_query, 1024):
            torch.mm(matrix[start:stop], matrix[gallery].T, out=out[start:stop])
            finish(out[start:stop], norm[start:stop], norm[gallery], measure)
        return out
    for start, stop in spans(n_query, 1024):  # rows held in half precision are widened block by block
        left = matrix[start:stop].to(compute)
        for first, last in spans(n - gallery.start, block_rows(n, 8)):
            right = matrix[gallery.start + first : gallery.start + last].to(compute)
            torch.mm(left, right.T, out=out[start:stop, first:last])
        finish(out[start:stop], norm[start:stop], norm[gallery], measure)
    return out


def _norms(matrix: Tensor, compute: torch.dtype) -> Tensor:
    return torch.cat([squared_norms(matrix[a:b].to(compute)) for a, b in spans(len(matrix), 256)])


def _compare_truncated(
    best: tuple[Tensor, Tensor], n_query: int, gallery_start: int, n: int, measure: str
) -> Tensor:
    sparse = truncate(best[0], best[1], torch.arange(n), n)
    return _compare_rows(sparse, n_query, gallery_start, measure)


def _compare_rows(sparse: SparseRows, n_query: int, gallery_start: int, measure: str) -> Tensor:
    gallery = sparse.slice(gallery_start, sparse.shape[0])
    assert sparse.value is not None  # noqa: S101 - rows of W have values
    out = torch.empty(n_query, gallery.shape[0], dtype=sparse.value.dtype)
    for start, stop in spans(n_query, block_rows(gallery.shape[0], 4)):
        out[start:stop] = compare_sparse(sparse.slice(start, stop), gallery, measure)
    return out


def _compare_streamed(lazy: DensePlan, n_query: int, gallery_start: int, measure: str) -> Tensor:
    """Rebuild rows in blocks: the queries' are held, the gallery's pass by."""
    n = lazy.n
    out = lazy.features.new_empty(n_query, n - gallery_start)
    for start, stop in spans(n_query, _query_rows(n_query, n)):
        left = lazy.rows(torch.arange(start, stop))
        for first, last in spans(n - gallery_start, block_rows(n, 4)):
            right = lazy.rows(torch.arange(gallery_start + first, gallery_start + last))
            out[start:stop, first:last] = compare_dense(left, right, measure)
    return out


def _rank_graph(x: Tensor, n_query: int, gallery_start: int, settings: _Settings) -> _Seen:
    from bpa.plans.graph import GraphPlan

    rows, n = settings.rows, len(x)
    fitted = GraphPlan.fit(x, reg=settings.reg, k=min(rows.neighbours or 1, n - 1), cost=settings.lazy_cost)
    off = SparseRows(fitted.crow, fitted.col, fitted.values, (n, n))
    own = torch.arange(n)
    row, column = torch.cat([off.row_of_entry(), own]), torch.cat([off.column, own])
    value = torch.cat([fitted.values, torch.ones(n, dtype=fitted.values.dtype)])
    if rows.top is not None:
        order = torch.argsort(fitted.values, descending=True, stable=True)
        order = order[torch.argsort(off.row_of_entry()[order], stable=True)]  # by row, largest first
        place = torch.arange(len(order)) - off.start[off.row_of_entry()[order]]
        keep = torch.sort(order[place < rows.top]).values
        owner = off.row_of_entry()[keep]
        total = torch.zeros(n, dtype=value.dtype).index_add_(0, owner, fitted.values[keep])
        share = fitted.values[keep] / total.clamp_min(torch.finfo(value.dtype).tiny)[owner]
        row, column = torch.cat([owner, own]), torch.cat([off.column[keep], own])
        value = torch.cat([share, torch.ones(n, dtype=value.dtype)])
    sparse = SparseRows.from_pairs(row, column, value, (n, n))
    chosen = _chosen(n)
    entry, _ = off.gather(chosen)
    dense = torch.zeros(len(chosen), n, dtype=value.dtype)
    dense[entry, off.gather(chosen)[1]] = off.gather_values(chosen)
    seen = _look(lambda _: dense, n, fitted.report.marginal_error, fitted.scale)
    return _Seen(_compare_rows(sparse, n_query, gallery_start, rows.measure), *seen)


def _rank_frozen(
    query: Tensor,
    gallery: Tensor | None,
    settings: _Settings,
    shortlist: int | None,
    budget: str | int | None,
) -> _Seen:
    items = query if gallery is None else gallery
    frozen = Gallery.fit(
        items, reg=settings.reg, centre=settings.centre, cost=settings.lazy_cost, rows=settings.rows,
        n_iter=settings.n_iter, storage=settings.storage, budget=budget,
    )  # fmt: skip
    seen = _look(frozen.lazy.rows, len(items), frozen.lazy.report.marginal_error, frozen.lazy.scale)
    if gallery is None:
        blocks = [frozen.fitted_distances(torch.arange(a, b)) for a, b in spans(len(query), 1024)]
        return _Seen(torch.cat(blocks), *seen)
    if shortlist is None:
        return _Seen(frozen.distances(query), *seen)
    candidates = frozen.shortlist(query, shortlist)
    near = frozen.distances(query, candidates)
    # everything else comes after the last candidate, in the order of the plain cost
    rest = _plain(query, gallery, settings.lazy_cost)
    distances = near.amax(dim=1, keepdim=True) + 1 + rest - rest.amin(dim=1, keepdim=True)
    return _Seen(distances.scatter_(1, candidates, near), *seen)


def _rank_each(query: Tensor, gallery: Tensor, settings: _Settings) -> _Seen:
    out = query.new_empty(len(query), len(gallery))
    last = None
    for i in range(len(query)):
        last = _rank_joint(torch.cat([query[i : i + 1], gallery]), 1, 1, settings)
        out[i] = last.distances[0]
    assert last is not None  # noqa: S101 - at least one query
    return _Seen(out, last.n, last.perplexity, last.row_maximum, last.marginal_error, last.scale)


# ---------------------------------------------------------------------------------------------- W held another way


@dataclass(frozen=True)
class _Held:
    """W as a matrix of any type."""

    matrix: Tensor
    marginal_error: float
    scale: float

    def sample(self, index: Tensor) -> Tensor:
        return self.matrix[index].float()

    def top_k(self, k: int) -> tuple[Tensor, Tensor]:
        values, columns = [], []
        for start, stop in spans(len(self.matrix), block_rows(len(self.matrix), 8)):
            part = self.matrix[start:stop]
            part = part.clone() if part.dtype in (torch.float32, torch.float64) else part.float()
            own = torch.arange(start, stop)
            part[own - start, own] = -1
            best = torch.topk(part, min(k, len(self.matrix) - 1), dim=1)
            values.append(best.values)
            columns.append(best.indices)
        return torch.cat(values), torch.cat(columns)


def _dense_euclidean(x: Tensor, settings: _Settings) -> _Held:
    """The authors' other cost: plain distances over the largest one of the set."""
    log_kernel = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    log_kernel.div_(-settings.reg * log_kernel.max().clamp_min(torch.finfo(x.dtype).tiny))
    log_kernel.fill_diagonal_(-torch.inf)
    balanced = sinkhorn(log_kernel, solver=Sweeps(settings.n_iter))
    plan = balanced.plan
    scale = float(plan.max())
    error = float((plan.sum(dim=1) - 1).abs().max())
    return _Held((plan / scale).fill_diagonal_(1), error, scale)


def _dense_half(x: Tensor, settings: _Settings) -> _Held:
    """W of unit rows in half precision: built, balanced and finished in one n × n buffer of the small type."""
    if settings.cost != "cosine" or 2 / settings.reg > 80 or settings.storage != torch.bfloat16:
        raise ArgumentError(
            "The 'storage' parameter of rank is offered as torch.bfloat16, for the cosine cost with reg ≥ 0.025 "
            f"(float16 cannot hold exp(-2/reg)). Got {settings.storage}, cost={settings.cost!r}, reg={settings.reg}."
        )
    n = len(x)
    block = block_rows(n, 8)
    kernel = torch.empty(n, n, dtype=settings.storage)
    for start, stop in spans(n, block):
        part = torch.mm(x[start:stop], x.T)
        part.sub_(1).div_(settings.reg).exp_()
        own = torch.arange(start, stop)
        part[own - start, own] = 0
        kernel[start:stop] = part

    def apply(v: Tensor) -> Tensor:
        return torch.cat([kernel[a:b].float() @ v for a, b in spans(n, block)])

    u = v = torch.ones(n)
    for _ in range(settings.n_iter):
        u = 1 / apply(v)
        v = 1 / apply(u)  # the kernel is symmetric
    error = float((u * apply(v) - 1).abs().max())
    scale = max(float((kernel[a:b].float().mul_(u[a:b, None]).mul_(v)).max()) for a, b in spans(n, block))
    for start, stop in spans(n, block):
        part = kernel[start:stop].float().mul_(u[start:stop, None]).mul_(v).div_(scale)
        own = torch.arange(start, stop)
        part[own - start, own] = 1
        kernel[start:stop] = part
    return _Held(kernel, error, scale)


# ---------------------------------------------------------------------------------------------- diagnostics


def _chosen(n: int) -> Tensor:
    return torch.linspace(0, n - 1, min(n, _SAMPLE)).long()


def _look(
    rows_of: object, n: int, marginal_error: float, scale: float
) -> tuple[int, float, float, float, float]:
    """Perplexity and largest entries of a sample of rows."""
    chosen = _chosen(n)
    assert callable(rows_of)  # noqa: S101 - a function of row numbers
    rows: Tensor = rows_of(chosen).clone()
    rows[torch.arange(len(chosen)), chosen] = 0
    share = rows / rows.sum(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    entropy = -torch.special.xlogy(share, share).sum(dim=1)
    return n, float(entropy.exp().median()), float(rows.amax(dim=1).mean()), marginal_error, scale


def _plain(query: Tensor, gallery: Tensor, cost: str) -> Tensor:
    return cosine_cost(query, gallery) if cost == "cosine" else torch.cdist(query, gallery)


def _hub_skewness(distances: Tensor, own: Tensor | None, k: int = 10) -> float:
    """Skewness of how often each gallery item is among the k nearest."""
    if own is not None:
        distances = distances.clone()
        distances[torch.arange(len(own)), own] = torch.inf
    nearest = torch.topk(distances, min(k, distances.shape[1]), dim=1, largest=False).indices
    count = torch.bincount(nearest.reshape(-1), minlength=distances.shape[1]).double()
    deviation = count - count.mean()
    spread = float(deviation.square().mean())
    return 0.0 if spread == 0 else float(deviation.pow(3).mean()) / spread**1.5


def _diagnose(query: Tensor, gallery: Tensor | None, settings: _Settings, seen: _Seen) -> Diagnostics:
    reg, cost = settings.reg, settings.cost
    chosen = torch.linspace(0, len(query) - 1, min(len(query), 4 * _SAMPLE)).long()
    plain = _plain(query[chosen], query if gallery is None else gallery, cost)
    own = chosen if gallery is None else None
    before, after = _hub_skewness(plain, own), _hub_skewness(seen.distances[chosen], own)
    if settings.centre:
        joint = centred_rows(query if gallery is None else torch.cat([query, gallery]))[0]
        plain = cosine_cost(joint[chosen], joint if gallery is None else joint[len(query) :])
    if gallery is None:
        plain[torch.arange(len(chosen)), chosen] = torch.nan
    plain = plain[~torch.isnan(plain)]
    mean, deviation = float(plain.mean()), float(plain.std()) if plain.numel() > 1 else 0.0
    notes = []
    if seen.perplexity > 0.9 * (seen.n - 1):
        notes.append(
            f"reg={reg:g} is large for these features: a row spreads over {seen.perplexity:.0f} of {seen.n} items; the "
            f"cost varies by {deviation:.2g}, and 0.4 to 1 times that is a first guess for reg."
        )
    if seen.perplexity < 0.05 * (seen.n - 1) and seen.n > 100:
        notes.append(
            f"reg={reg:g} is small for these features: a row spreads over {seen.perplexity:.0f} of {seen.n} items; the "
            f"cost varies by {deviation:.2g}, and 0.4 to 1 times that is a first guess for reg."
        )
    if after > before + 0.1 and len(chosen) >= 50:
        notes.append(
            f"with reg={reg:g} few items fill more top lists than before (skewness {before:.2f} to {after:.2f}); a "
            "ranking with more hubs is usually worse."
        )
    sample = torch.sort(seen.distances[chosen].reshape(-1)).values
    near, middle = float(sample[len(sample) // 1000]), float(sample[len(sample) // 2])
    return Diagnostics(
        cost_mean=mean, cost_std=deviation, perplexity=seen.perplexity, n=seen.n, row_maximum=seen.row_maximum,
        marginal_error=seen.marginal_error, scale=seen.scale, hubness_before=before, hubness_after=after,
        near=near, middle=middle,
        notes=tuple(notes),
    )  # fmt: skip
