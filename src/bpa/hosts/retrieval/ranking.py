r"""Rank a gallery for queries by comparing rows of the balanced affinities.

=================  =================================================================================================
``"joint"``        W over queries and gallery together: the paper. All queries take part in each other's ranking.
``"frozen"``       W over the gallery; queries come later, one by one or in batches (:mod:`.gallery`).
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

from bpa._blocks import block_rows
from bpa._checks import check_choice, check_count, check_features, check_finite, check_reg
from bpa._words import REG_WORDS, SOLVER_WORDS, explains
from bpa.cost import unit_rows
from bpa.errors import ArgumentError, ShapeError
from bpa.hosts.retrieval._protocols import Settings, query_rows, rank_each, rank_frozen, rank_joint
from bpa.hosts.retrieval.diagnostics import Diagnostics, diagnose_ranking
from bpa.hosts.retrieval.gallery import Gallery
from bpa.hosts.retrieval.sources import DistanceSource, FeatureSource, SparseSource
from bpa.memory import WORKSPACE, MemoryEstimate, check, parse_bytes
from bpa.plans import DensePlan, RowComparison
from bpa.plans._comparison import truncate
from bpa.plans._pairs import holds_numbers
from bpa.plans._plan import Options
from bpa.solvers._choice import PAPER_SWEEPS, Solver, check_solver

__all__ = ["Ranking", "estimate_rank", "rank", "rerank", "row_source"]

Protocol = Literal["joint", "frozen", "per-query"]
Cost = Literal["cosine", "centred-cosine", "sqeuclidean", "relative-euclidean"]
_PROTOCOLS = ("joint", "frozen", "per-query")
_COSTS = ("cosine", "centred-cosine", "sqeuclidean", "relative-euclidean")
_ROWS = RowComparison.retrieval()


@dataclass(frozen=True)
class Ranking:
    """Distances of queries to a gallery, and how they came about.

    Attributes
    ----------
    distances : Tensor, shape (n_query, n_gallery)
        Distances between rows of W as ``rows.measure`` says; smaller is nearer.
    protocol : str
    rows : RowComparison
    estimate : MemoryEstimate
        What was planned before anything was allocated.
    diagnostics : Diagnostics or None

    Examples
    --------
    >>> x = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    >>> ranking = rank(x[:3], x[3:], diagnostics=False)
    >>> ranking.distances.shape, ranking.top(5)[0].shape, ranking.rows.name
    (torch.Size([3, 37]), torch.Size([3, 5]), 'cosine top-50')
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


@explains(**REG_WORDS, **SOLVER_WORDS)
def rank(
    query: Tensor,
    gallery: Tensor | None = None,
    *,
    reg: float | Literal["auto"] = "auto",
    cost: Cost = "cosine",
    solver: Solver | None = None,
    protocol: Protocol = "joint",
    rows: RowComparison = _ROWS,
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
        Entropy weight. ``"auto"`` lets the rule of :func:`bpa.choose_reg` choose it, on unit rows minus their mean; the
        paper's 0.25 belongs to one network's features and hurts others.
    cost : {"cosine", "centred-cosine", "sqeuclidean", "relative-euclidean"}
        What differs between two items; ``"centred-cosine"`` is the cosine of unit rows minus their mean (of the set
        that is balanced), ``"relative-euclidean"`` the distance over the largest of the set, as in the authors' code
        (joint and per-query only, dense).
    solver : Sweeps or Converged, optional
        The paper's five sweeps; ``Converged(1e-3)`` on a neighbour graph, where sweeps are slow to arrive.
    protocol : {"joint", "frozen", "per-query"}
        See the module.
    rows : RowComparison
        How rows are compared; ``RowComparison.paper()`` is the paper's.
    shortlist : int, optional
        Compare only so many candidates of each query, those nearest by plain cost; the others follow in the order
        of that cost (frozen only).
    storage : torch.dtype, optional
        Type in which W is held: ``torch.bfloat16``; products are accumulated in float32.
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
    >>> rank(query, gallery, diagnostics=False).top(1)[0][:, 0].tolist()
    [0, 1, 2, 3, 4]
    """
    for name, value in (("query", query), ("gallery", gallery)):
        if value is not None:
            _check_side(value, query.shape[-1], name)
    check_choice(cost, _COSTS, argument="cost", function="rank")
    check_choice(protocol, _PROTOCOLS, argument="protocol", function="rank")
    if solver is not None:
        check_solver(solver, function="rank")
    reg = check_reg(reg, function="rank", auto=cost != "relative-euclidean")
    if shortlist is not None and (protocol != "frozen" or gallery is None):
        raise ArgumentError(
            "The 'shortlist' parameter of rank belongs to protocol='frozen' with a gallery: in the joint set all items "
            "are compared."
        )
    query = query.detach() if query.dtype in (torch.float32, torch.float64) else query.detach().float()
    gallery = None if gallery is None else gallery.detach().to(query.dtype)
    n_gallery = len(query) if gallery is None else len(gallery)
    estimate = estimate_rank(
        len(query), n_gallery, query.shape[1], protocol=protocol, cost=cost, rows=rows, storage=storage, budget=budget,
        all_against_all=gallery is None, dtype=query.dtype,
    )  # fmt: skip
    check(
        estimate, budget,
        way_out="Rank the queries in parts with protocol='frozen', or pass rows=RowComparison(top=50) or "
        "storage=torch.bfloat16.",
    )  # fmt: skip
    settings = Settings(reg, cost, solver, rows, storage, estimate)
    settings.check_whole(protocol)
    if protocol == "frozen":
        seen = rank_frozen(query, gallery, settings, shortlist, budget)
    elif protocol == "joint" or gallery is None:
        first = 0 if gallery is None else len(query)
        # the joint copy is handed over, so that it can go before the comparison needs memory
        seen = rank_joint(
            query if gallery is None else torch.cat([query, gallery]), len(query), first, settings
        )
    else:
        seen = rank_each(query, gallery, settings)
    if gallery is None:
        seen.distances.fill_diagonal_(0)  # the same item: no rounding
    found = None
    if diagnostics:
        is_centred = reg == "auto" or cost == "centred-cosine"
        found = diagnose_ranking(query, gallery, seen.distances, seen.signs, cost=cost, is_centred=is_centred)
        for note in found.notes:
            warnings.warn(note, UserWarning, stacklevel=3)
    return Ranking(seen.distances, protocol, rows, estimate, found)


@explains(**REG_WORDS, **SOLVER_WORDS)
def row_source(
    x: Tensor,
    *,
    reg: float | Literal["auto"] = "auto",
    cost: Literal["cosine", "centred-cosine", "sqeuclidean"] = "cosine",
    solver: Solver = PAPER_SWEEPS,
    rows: RowComparison = _ROWS,
) -> DistanceSource:
    """Distances in the space of balanced rows, for :meth:`KReciprocal.fit`: re-ranking after the transform.

    Parameters
    ----------
    x : Tensor, shape (n, d)
        The joint set, queries first.
    reg, cost, solver, rows
        As in :func:`rank`.

    Returns
    -------
    DistanceSource
        Squared Euclidean distances of rows; of unit rows (twice one minus the cosine) where the rows are compared by
        cosine.

    Examples
    --------
    >>> from bpa.hosts.retrieval import KReciprocal
    >>> x = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    >>> KReciprocal.fit(row_source(x), 3, k1=5, k2=2).distances().shape
    torch.Size([3, 37])
    """
    if rows.neighbours is not None:
        raise ArgumentError(
            "row_source offers plans over all pairs; use a RowComparison without 'neighbours'."
        )
    options = Options.checked(
        "row_source", reg=reg, cost=cost, solver=solver, scale="max", diagonal=1.0, given_costs=False
    )
    held = holds_numbers(options.reg, cost, x.dtype)
    plan = DensePlan.of(x, options, keep=True if held else None)
    if rows.top is None:
        matrix = plan.affinities()
        return FeatureSource(unit_rows(matrix) if rows.measure == "cosine" else matrix)
    best = plan.top_k(min(rows.top, plan.n - 1))
    return SparseSource(truncate(best.values, best.indices, torch.arange(plan.n), plan.n), rows.measure)


def rerank(query: Tensor, candidate_ids: Tensor, candidate_vectors: Tensor | None, fitted: Gallery) -> Tensor:
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
    >>> fitted = Gallery.fit(gallery)
    >>> rerank(gallery[3] + 0.01, torch.tensor([7, 3, 20]), None, fitted).argmax().item()
    1
    """
    single = query.dim() == 1
    if single:
        query, candidate_ids = query[None], candidate_ids[None]
        candidate_vectors = None if candidate_vectors is None else candidate_vectors[None]
    unknown = candidate_ids < 0
    scores = -fitted.distances(query, candidate_ids.clamp_min(0))
    if bool(unknown.any()):
        if candidate_vectors is None:
            raise ArgumentError(
                "The 'candidate_vectors' parameter of rerank is needed where a candidate has no position in the fitted "
                "gallery (-1)."
            )
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
    rows: RowComparison = _ROWS,
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

    Examples
    --------
    >>> estimate_rank(3368, 15913, 1536).part("W") == 19281**2 * 4
    True
    """
    item = 8 if dtype == torch.float64 else 4
    n = n_gallery if protocol == "frozen" or all_against_all else n_query + n_gallery
    n = n_gallery + 1 if protocol == "per-query" and not all_against_all else n
    square = n * n * (item if storage is None else storage.itemsize)
    common = [("distances", n_query * n_gallery * item), ("unit features", 2 * n * d * item)]
    common.append(("workspace", WORKSPACE + 3 * block_rows(n, item) * n * item))
    if rows.top is not None:
        common.append(("sparse rows", n * (rows.top + 1) * 2 * (8 + item)))
    what = f"{protocol} ranking of {n_gallery:,} items for {n_query:,} queries"
    if rows.neighbours is not None:
        graph = 2 * n * rows.neighbours * (8 * 5 + 8 + 2 * item)
        return MemoryEstimate(what, (("graph", graph), *common))
    relative = cost == "relative-euclidean"
    held = MemoryEstimate(what, (("W", square * (4 if relative else 1)), *common))
    if budget is None or held.total <= parse_bytes(budget) or storage is not None or relative:
        return held
    if protocol == "frozen" and rows.top is None:
        return held
    if rows.top is None:
        common.insert(0, ("rows of the queries", query_rows(n_query, n) * n * item))
    return MemoryEstimate(f"{what}, blocked", tuple(common))


def _check_side(value: Tensor, d: int, name: str) -> None:
    check_features(value, argument=name, function="rank")
    check_finite(value, argument=name, function="rank")
    if value.dim() != 2 or value.shape[1] != d:
        raise ShapeError(
            f"The {name!r} parameter of rank must have shape (n, {d}). Got {tuple(value.shape)}."
        )
