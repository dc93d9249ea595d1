"""Single-query retrieval: rankings and truth in, mAP, CMC and mINP out.

The protocol is the one of person re-identification. Before the ranks of a query with identity ``p`` seen by
camera ``c`` are counted, these gallery items are deleted: junk (identity ``junk_id``), the query itself, and

===================  =========================================================================
``identity-camera``  the items of identity ``p`` **and** camera ``c``: the query's own picture and its
                     neighbours in time. Other people seen by camera ``c`` stay. The protocol of Market-1501
                     and CUHK03, and the default
``camera``           every item of camera ``c``, whoever it shows: only other views are ranked. The
                     same items are relevant and fewer compete, so no query scores lower
===================  =========================================================================

What is left and has identity ``p`` is relevant; everything else, distractors included, is not.

Three definitions of average precision are in use and differ by up to a factor of two on one query, so a
result carries the name of its definition:

=================  ===========================================================================
``finite-sum``     mean over relevant items of the precision there (torchreid, fast-reid, TREC);
                   the default
``trapezoid``      mean over relevant items of the average of the precision there and just before
                   (the old Market and Oxford evaluation; never larger)
``scikit-learn``   the finite sum with a block of tied distances read as one threshold
=================  ===========================================================================

Only the order matters, so nothing here asks in which unit a distance is; one row is handled at a time and no
(queries × gallery) index matrix is ever built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bpa._checks import check_choice, check_count
from bpa._words import explains
from bpa.errors import ArgumentError, DTypeError, NonFiniteError, ShapeError
from bpa.metrics._ranks import Ranks
from bpa.metrics._relevance import Deleted, Relevance
from bpa.metrics.hubs import as_blocks

__all__ = [
    "AveragePrecision",
    "Deleted",
    "Empty",
    "RetrievalScores",
    "Ties",
    "evaluate_lists",
    "evaluate_ranking",
]

AveragePrecision = Literal["finite-sum", "trapezoid", "scikit-learn"]
Ties = Literal["index", "pessimistic"]
Empty = Literal["skip", "zero", "error"]

_WORDS = {
    "q_pids": "query_ids", "g_pids": "gallery_ids", "q_camids": "query_cameras", "g_camids": "gallery_cameras",
    "topk": "max_rank",
}  # fmt: skip
"""What the re-identification toolboxes call the arguments."""


@dataclass(frozen=True)
class RetrievalScores:
    """What one ranking is worth, with everything needed to read the numbers correctly.

    Attributes
    ----------
    mean_ap, mean_inp : float
        Mean average precision and mean inverse negative penalty (relevant items over the rank of the last
        one), in [0, 1], over the counted queries.
    cmc : ndarray, shape (max_rank,)
        ``cmc[k - 1]`` is the share of counted queries with a relevant item among the first ``k``.
    average_precision, inverse_negative_penalty : ndarray, shape (n_query,)
        Per query; NaN where the query has no relevant item and is not counted.
    first_rank : ndarray, shape (n_query,)
        Rank (from 1) of the first relevant item; 0 where there is none.
    n_counted, n_empty, n_tied : int
        Queries in the means; queries without a relevant item; queries whose Rank-1 depends on how ties are
        broken.
    definition, ties, empty, deleted : str
        The definition of average precision, what was done with ties and with empty queries, and which gallery items a
        camera deletes.

    Examples
    --------
    >>> scores = evaluate_ranking([[0.1, 0.2, 0.3], [0.3, 0.1, 0.2]], [7, 8], [7, 8, 7])
    >>> scores.rank(1), round(scores.mean_ap, 4), scores.first_rank.tolist(), scores.n_counted
    (1.0, 0.9167, [1, 1], 2)
    """

    mean_ap: float
    mean_inp: float
    cmc: NDArray[np.float64]
    average_precision: NDArray[np.float64] = field(repr=False)
    inverse_negative_penalty: NDArray[np.float64] = field(repr=False)
    first_rank: NDArray[np.int64] = field(repr=False)
    n_counted: int = 0
    n_empty: int = 0
    n_tied: int = 0
    definition: AveragePrecision = "finite-sum"
    ties: Ties = "index"
    empty: Empty = "skip"
    deleted: Deleted = "identity-camera"

    def rank(self, k: int) -> float:
        """CMC at ``k``: the share of counted queries with a relevant item among the first ``k``."""
        check_count(k, argument="k", function="RetrievalScores.rank", maximum=len(self.cmc))
        return float(self.cmc[k - 1])

    def summary(self) -> dict[str, Any]:
        """Everything but the per-query arrays, ready for JSON."""
        last = len(self.cmc)
        return {
            "mAP": self.mean_ap,
            "mINP": self.mean_inp,
            **{f"Rank-{k}": float(self.cmc[k - 1]) for k in (1, 5, 10) if k <= last},
            "n_counted": self.n_counted,
            "n_empty": self.n_empty,
            "n_tied": self.n_tied,
            "average_precision": self.definition,
            "ties": self.ties,
            "empty": self.empty,
            "deleted": self.deleted,
        }


@explains(**_WORDS, distmat="distances")
def evaluate_ranking(
    distances: ArrayLike | Iterable[tuple[int, ArrayLike]],
    query_ids: ArrayLike,
    gallery_ids: ArrayLike,
    query_cameras: ArrayLike | None = None,
    gallery_cameras: ArrayLike | None = None,
    *,
    self_index: ArrayLike | None = None,
    junk_id: int | None = -1,
    average_precision: AveragePrecision = "finite-sum",
    ties: Ties = "index",
    empty: Empty = "skip",
    deleted: Deleted = "identity-camera",
    max_rank: int = 50,
) -> RetrievalScores:
    r"""Judge distances from queries to a gallery under the single-query protocol.

    With :math:`r_k \in \{0, 1\}` the relevance in rank order after deletion and :math:`R = \sum_k r_k`,

    .. math:: \mathrm{AP} = \frac1R \sum_k r_k \frac{r_1 + \dots + r_k}{k}, \qquad
              \mathrm{CMC}@k = \Pr[r_1 + \dots + r_k > 0], \qquad \mathrm{INP} = R / \max\{k : r_k = 1\}.

    Parameters
    ----------
    distances : array, shape (n_query, n_gallery)
        Smaller is closer. Infinity is allowed (last); NaN is not. Or an iterable of blocks, (first query, array of
        shape (b, n_gallery)), read once, in any order, and not kept.
    query_ids, gallery_ids : array of int, shape (n_query,), (n_gallery,)
        Identities.
    query_cameras, gallery_cameras : array of int, optional
        Without them only junk and the query itself are deleted.
    self_index : array of int, shape (n_query,), optional
        Gallery position of the query itself, deleted too; −1 where it is not in the gallery.
    junk_id : int or None
        Identity of gallery items that are neither right nor wrong.
    average_precision : {"finite-sum", "trapezoid", "scikit-learn"}
        Mean over relevant items of the precision there (torchreid, fast-reid, TREC); of the average of the precision
        there and just before (the old Market and Oxford evaluation; never larger); or the first, with a block of tied
        distances read as one threshold.
    ties : {"index", "pessimistic"}
        Equal distances are ranked by gallery position, or with the relevant items last.
    empty : {"skip", "zero", "error"}
        What to do with a query without relevant items: leave it out of the means, count it as zero, or refuse.
    deleted : {"identity-camera", "camera"}
        Which gallery items a query's camera deletes: those of its identity and its camera, or all of its camera. The
        second needs cameras.
    max_rank : int
        Length of the CMC curve.

    Returns
    -------
    RetrievalScores

    Raises
    ------
    ArgumentError
        When only one side has cameras, a query comes twice, or no query has a relevant item.
    ShapeError
        When distances, identities and cameras are not of the same queries and gallery items.

    Examples
    --------
    >>> scores = evaluate_ranking([[0.1, 0.2, 0.3]], [7], [7, 8, 7])
    >>> round(scores.mean_ap, 4), scores.rank(1)
    (0.8333, 1.0)

    Person 1 at camera 0 asks; the gallery shows persons 2, 1, 1 at cameras 0, 0, 1. The picture of person 1 at camera 0
    is deleted, and person 2 competes, or does not:

    >>> cameras = {"query_cameras": [0], "gallery_cameras": [0, 0, 1]}
    >>> for deleted in ("identity-camera", "camera"):
    ...     evaluate_ranking([[0.1, 0.2, 0.3]], [1], [2, 1, 1], **cameras, deleted=deleted).first_rank.tolist()
    [2]
    [1]
    """
    function = "evaluate_ranking"
    truth = Relevance(
        query_ids, gallery_ids, query_cameras, gallery_cameras, self_index=self_index, junk_id=junk_id, deleted=deleted,
        function=function,
    )  # fmt: skip
    tally = _Tally(truth, average_precision, ties, empty, function=function)
    for start, block in _blocks(distances, truth.n_query, truth.n_gallery):
        if np.isnan(block).any():
            raise NonFiniteError(
                f"The 'distances' parameter of evaluate_ranking must not hold NaN: an item without a distance has no "
                f"rank. Got NaN in the rows from {start}."
            )
        for query, row in enumerate(block, start):
            tally.add(query, Ranks.in_row(row, *truth.of(query)))
    return tally.scores(max_rank)


@explains(**_WORDS, ranks="ranked")
def evaluate_lists(
    ranked: ArrayLike,
    query_ids: ArrayLike,
    gallery_ids: ArrayLike,
    query_cameras: ArrayLike | None = None,
    gallery_cameras: ArrayLike | None = None,
    *,
    self_index: ArrayLike | None = None,
    junk_id: int | None = -1,
    average_precision: AveragePrecision = "finite-sum",
    empty: Empty = "skip",
    deleted: Deleted = "identity-camera",
    max_rank: int = 50,
) -> RetrievalScores:
    """Judge top lists: gallery positions in rank order, −1 where a list is shorter.

    A relevant item that is missing from its list adds nothing to the average precision and counts as ranked
    last in the inverse negative penalty, so a cut list never scores above the whole one. Everything else is
    as in :func:`evaluate_ranking`, and a list of the whole gallery gives the same numbers.

    Parameters
    ----------
    ranked : array of int, shape (n_query, length)
        Gallery positions, nearest first; −1 fills a short list up.
    query_ids, gallery_ids, query_cameras, gallery_cameras, self_index, junk_id, empty, deleted, max_rank
        As in :func:`evaluate_ranking`.
    average_precision : {"finite-sum", "trapezoid", "scikit-learn"}
        As there; ``"scikit-learn"`` equals the finite sum here, since a list has no ties.

    Returns
    -------
    RetrievalScores

    Examples
    --------
    >>> evaluate_lists([[2, 0, 1], [1, -1, -1]], [7, 8], [7, 8, 7]).mean_ap
    1.0
    """
    function = "evaluate_lists"
    truth = Relevance(
        query_ids, gallery_ids, query_cameras, gallery_cameras, self_index=self_index, junk_id=junk_id, deleted=deleted,
        function=function,
    )  # fmt: skip
    tally = _Tally(truth, average_precision, "index", empty, function=function)
    lists = np.asarray(ranked)
    if lists.ndim != 2 or len(lists) != truth.n_query:
        raise ShapeError(
            f"The 'ranked' parameter of evaluate_lists must have shape ({truth.n_query}, length). Got {lists.shape}."
        )
    if not np.issubdtype(lists.dtype, np.integer):
        raise DTypeError(f"The 'ranked' parameter of evaluate_lists must hold integers. Got {lists.dtype}.")
    if lists.size and (lists.max() >= truth.n_gallery or lists.min() < -1):
        raise ArgumentError(
            f"The 'ranked' parameter of evaluate_lists must hold gallery positions 0..{truth.n_gallery - 1}, or -1 for "
            f"padding. Got values from {lists.min()} to {lists.max()}."
        )
    for query, row in enumerate(lists):
        positions = row[row >= 0]
        if len(np.unique(positions)) != len(positions):
            raise ArgumentError(
                f"The 'ranked' parameter of evaluate_lists repeats a gallery item in list {query}."
            )
        tally.add(query, Ranks.in_list(positions, *truth.of(query), n_gallery=truth.n_gallery))
    return tally.scores(max_rank)


class _Tally:
    """Collect per-query numbers in float64."""

    def __init__(
        self, truth: Relevance, definition: AveragePrecision, ties: Ties, empty: Empty, *, function: str
    ) -> None:
        check_choice(definition, get_args(AveragePrecision), argument="average_precision", function=function)
        check_choice(ties, get_args(Ties), argument="ties", function=function)
        check_choice(empty, get_args(Empty), argument="empty", function=function)
        self.truth, self.definition, self.ties, self.empty = truth, definition, ties, empty
        self.ap = np.full(truth.n_query, np.nan)
        self.inp = np.full(truth.n_query, np.nan)
        self.first = np.zeros(truth.n_query, np.int64)
        self.tied = np.zeros(truth.n_query, dtype=bool)

    def add(self, query: int, ranks: Ranks) -> None:
        if ranks.n_relevant == 0:
            return
        used = ranks.by_index if self.ties == "index" else ranks.pessimistic
        hits = np.arange(1, len(used) + 1)
        if self.definition == "scikit-learn":
            precision = ranks.block_hits / ranks.block_end if len(used) else np.zeros(0)
        else:
            precision = hits / used
        if self.definition == "trapezoid":
            before = np.where(used > 1, (hits - 1) / np.maximum(used - 1, 1), 1.0)
            precision = (precision + before) / 2
        self.ap[query] = precision.sum() / ranks.n_relevant
        complete = len(used) == ranks.n_relevant
        self.inp[query] = ranks.n_relevant / (used[-1] if complete else ranks.n_kept)
        self.first[query] = used[0] if len(used) else 0
        if len(used):
            self.tied[query] = (ranks.by_index[0] == 1) != (ranks.pessimistic[0] == 1)

    def scores(self, max_rank: int) -> RetrievalScores:
        max_rank = min(max_rank, self.truth.n_gallery)
        nothing = np.isnan(self.ap)
        n_empty = int(nothing.sum())
        if n_empty and self.empty == "error":
            raise ArgumentError(
                f"{n_empty} queries have no relevant gallery item (the first is query {int(np.argmax(nothing))}); pass "
                f"empty='skip' or empty='zero' to go on without them."
            )
        if self.empty == "zero":
            self.ap[nothing] = self.inp[nothing] = 0.0
            nothing = np.zeros_like(nothing)
        counted = ~nothing
        n_counted = int(counted.sum())
        if n_counted == 0:
            raise ArgumentError(
                "None of the queries has a relevant gallery item, so there is nothing to score."
            )
        found = self.first[counted & (self.first > 0)]
        histogram = np.bincount(found[found <= max_rank], minlength=max_rank + 1)[1:]
        return RetrievalScores(
            mean_ap=float(self.ap[counted].mean()),
            mean_inp=float(self.inp[counted].mean()),
            cmc=np.cumsum(histogram) / n_counted,
            average_precision=self.ap,
            inverse_negative_penalty=self.inp,
            first_rank=self.first,
            n_counted=n_counted,
            n_empty=n_empty,
            n_tied=int(self.tied.sum()),
            definition=self.definition,
            ties=self.ties,
            empty=self.empty,
            deleted=self.truth.deleted,
        )


def _blocks(
    distances: ArrayLike | Iterable[tuple[int, ArrayLike]], n_query: int, n_gallery: int
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Read a matrix or blocks as (first query, rows), and see to it that every query comes exactly once."""
    seen = np.zeros(n_query, dtype=bool)
    for start, block in as_blocks(distances):
        if block.ndim != 2 or block.shape[1] != n_gallery or start + len(block) > n_query or start < 0:
            raise ShapeError(
                f"The 'distances' parameter of evaluate_ranking must have shape ({n_query}, {n_gallery}), or come in "
                f"blocks of such rows. Got rows {start}.. of shape {block.shape}."
            )
        if seen[start : start + len(block)].any():
            raise ArgumentError(
                f"The 'distances' parameter of evaluate_ranking repeats the queries from {start}."
            )
        seen[start : start + len(block)] = True
        yield start, block
    if not seen.all():
        raise ShapeError(
            f"The 'distances' parameter of evaluate_ranking must cover all {n_query} queries. Got {int(seen.sum())} of "
            f"them."
        )
