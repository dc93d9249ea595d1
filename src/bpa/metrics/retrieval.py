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
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bpa.errors import ArgumentError, NonFiniteError, ShapeError
from bpa.metrics.hubness import as_blocks

AveragePrecision = Literal["finite-sum", "trapezoid", "scikit-learn"]
Ties = Literal["index", "pessimistic"]
Empty = Literal["skip", "zero", "error"]
Deleted = Literal["identity-camera", "camera"]

_AP = ("finite-sum", "trapezoid", "scikit-learn")
_TIES = ("index", "pessimistic")
_EMPTY = ("skip", "zero", "error")
_DELETED = ("identity-camera", "camera")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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
    """

    mean_ap: float
    mean_inp: float
    cmc: Floats
    average_precision: Floats = field(repr=False)
    inverse_negative_penalty: Floats = field(repr=False)
    first_rank: Ints = field(repr=False)
    n_counted: int = 0
    n_empty: int = 0
    n_tied: int = 0
    definition: AveragePrecision = "finite-sum"
    ties: Ties = "index"
    empty: Empty = "skip"
    deleted: Deleted = "identity-camera"

    def rank(self, k: int) -> float:
        """CMC at ``k``: the share of counted queries with a relevant item among the first ``k``."""
        if not 1 <= k <= len(self.cmc):
            raise ArgumentError(
                f"The 'k' parameter of RetrievalScores.rank must be in 1..{len(self.cmc)}. Got {k}."
            )
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
    distances : array, shape (n_query, n_gallery), or an iterable of (first query, array of shape (b,
    n_gallery))
        Smaller is closer. Blocks are read once, in any order, and not kept. Infinity is allowed (last); NaN
        is not.
    query_ids, gallery_ids : array of int, shape (n_query,), (n_gallery,)
        Identities.
    query_cameras, gallery_cameras : array of int, optional
        Without them only junk and the query itself are deleted.
    self_index : array of int, shape (n_query,), optional
        Gallery position of the query itself, deleted too; −1 where it is not in the gallery.
    junk_id : int or None
        Identity of gallery items that are neither right nor wrong.
    average_precision, ties, empty
        See the module; ``ties="index"`` ranks equal distances by gallery position, ``"pessimistic"`` puts the
        relevant ones last; a query without relevant items is skipped, counted as zero, or an error.
    deleted : {"identity-camera", "camera"}
        Which gallery items a query's camera deletes: those of its identity and its camera, or all of its camera. The
        second needs cameras.
    max_rank : int
        Length of the CMC curve.

    Returns
    -------
    RetrievalScores

    Examples
    --------
    >>> scores = evaluate_ranking([[0.1, 0.2, 0.3]], [7], [7, 8, 7])
    >>> round(scores.mean_ap, 4), scores.rank(1)
    (0.8333, 1.0)
    """
    _check_choice("average_precision", average_precision, _AP)
    _check_choice("ties", ties, _TIES)
    _check_choice("empty", empty, _EMPTY)
    truth = _Truth(query_ids, gallery_ids, query_cameras, gallery_cameras, self_index, junk_id, deleted)
    n_query, n_gallery = truth.n_query, truth.n_gallery
    tally = _Tally(n_query)
    for start, block in _blocks(distances, n_query, n_gallery):
        if np.isnan(block).any():
            raise NonFiniteError(
                "The 'distances' parameter of evaluate_ranking must not hold NaN: an item without a "
                "distance has no rank. "
                f"Got NaN in the rows from {start}."
            )
        for offset, row in enumerate(block):
            query = start + offset
            tally.add(query, _ranks_of_relevant(row, *truth.of(query)), average_precision, ties)
    return tally.scores(average_precision, ties, empty, deleted, min(max_rank, n_gallery))


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
    query_ids, gallery_ids, query_cameras, gallery_cameras, self_index, junk_id, average_precision, empty,
    deleted, max_rank
        As in :func:`evaluate_ranking`. ``"scikit-learn"`` equals the finite sum here, since a list has no
        ties.

    Returns
    -------
    RetrievalScores
    """
    _check_choice("average_precision", average_precision, _AP)
    _check_choice("empty", empty, _EMPTY)
    truth = _Truth(query_ids, gallery_ids, query_cameras, gallery_cameras, self_index, junk_id, deleted)
    lists = np.asarray(ranked)
    if lists.ndim != 2 or len(lists) != truth.n_query or not np.issubdtype(lists.dtype, np.integer):
        raise ShapeError(
            f"The 'ranked' parameter of evaluate_lists must be integers of shape ({truth.n_query}, length). "
            f"Got {lists.dtype} of shape {lists.shape}."
        )
    if lists.size and (lists.max() >= truth.n_gallery or lists.min() < -1):
        raise ArgumentError(
            "The 'ranked' parameter of evaluate_lists must hold gallery positions "
            f"0..{truth.n_gallery - 1}, or -1 for padding. Got values from {lists.min()} to {lists.max()}."
        )
    tally = _Tally(truth.n_query)
    for query in range(truth.n_query):
        relevant, gone = truth.of(query)
        row = lists[query]
        row = row[row >= 0]
        if len(np.unique(row)) != len(row):
            raise ArgumentError(
                f"The 'ranked' parameter of evaluate_lists repeats a gallery item in list {query}."
            )
        kept = row[~np.isin(row, gone)]
        ranks = np.flatnonzero(np.isin(kept, relevant)) + 1
        tally.add(
            query,
            _Ranks(
                ranks,
                ranks,
                ranks,
                np.arange(1, len(ranks) + 1),
                len(relevant),
                truth.n_gallery - len(gone),
            ),
            average_precision,
            "index",
        )
    return tally.scores(average_precision, "index", empty, deleted, min(max_rank, truth.n_gallery))


# -------------------------------------------------------------------------------------------- who is relevant


class _Truth:
    """Identities and cameras, checked once; for each query the positions that count and those deleted."""

    def __init__(
        self,
        query_ids: ArrayLike,
        gallery_ids: ArrayLike,
        query_cameras: ArrayLike | None,
        gallery_cameras: ArrayLike | None,
        self_index: ArrayLike | None,
        junk_id: int | None,
        deleted: Deleted,
    ) -> None:
        _check_choice("deleted", deleted, _DELETED)
        self.query_ids = _integers("query_ids", query_ids)
        self.gallery_ids = _integers("gallery_ids", gallery_ids)
        self.n_query, self.n_gallery = len(self.query_ids), len(self.gallery_ids)
        if self.n_query == 0 or self.n_gallery == 0:
            raise ShapeError(
                "The retrieval protocol needs at least one query and one gallery item. "
                f"Got {self.n_query} queries and {self.n_gallery} gallery items."
            )
        if (query_cameras is None) != (gallery_cameras is None):
            raise ArgumentError(
                "The 'query_cameras' and 'gallery_cameras' parameters go together: the camera rule compares one with "
                "the other. Got only one of them."
            )
        if deleted == "camera" and query_cameras is None:
            raise ArgumentError(
                "deleted='camera' removes every gallery item of a query's camera, and no cameras were given; pass "
                "query_cameras= and gallery_cameras=, or leave 'deleted' out."
            )
        self.deleted = deleted
        self.query_cameras = self.gallery_cameras = None
        if query_cameras is not None and gallery_cameras is not None:
            self.query_cameras = _integers("query_cameras", query_cameras, self.n_query)
            self.gallery_cameras = _integers("gallery_cameras", gallery_cameras, self.n_gallery)
        self.self_index = None if self_index is None else _integers("self_index", self_index, self.n_query)
        self.junk = (
            np.flatnonzero(self.gallery_ids == junk_id) if junk_id is not None else np.zeros(0, np.int64)
        )
        self.junk_id = junk_id
        order = np.argsort(self.gallery_ids, kind="stable")
        self._order = order
        self._sorted_ids = self.gallery_ids[order]

    def of(self, query: int) -> tuple[Ints, Ints]:
        """Gallery positions relevant to a query and positions deleted for it, both ascending."""
        identity = self.query_ids[query]
        if self.junk_id is not None and identity == self.junk_id:
            return np.zeros(0, np.int64), self.junk
        first, last = np.searchsorted(self._sorted_ids, [identity, identity + 1])
        same = self._order[first:last]
        gone = [self.junk]
        if self.query_cameras is not None and self.gallery_cameras is not None:
            seen_by = self.query_cameras[query]
            if self.deleted == "camera":
                gone.append(np.flatnonzero(self.gallery_cameras == seen_by))
            else:
                gone.append(same[self.gallery_cameras[same] == seen_by])
        if self.self_index is not None and self.self_index[query] >= 0:
            gone.append(self.self_index[query : query + 1])
        deleted = np.unique(np.concatenate(gone))
        return same[~np.isin(same, deleted)], deleted


def _integers(name: str, values: ArrayLike, length: int | None = None) -> Ints:
    array = np.asarray(values)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise ShapeError(
            f"The {name!r} parameter of the retrieval metrics must be a vector of integers. "
            f"Got {array.dtype} of shape {array.shape}."
        )
    if length is not None and len(array) != length:
        raise ShapeError(
            f"The {name!r} parameter of the retrieval metrics must have {length} entries. Got {len(array)}."
        )
    return array.astype(np.int64)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ArgumentError(
            f"The {name!r} parameter of the retrieval metrics must be one of {', '.join(choices)}. Got "
            f"{value!r}."
        )


def _blocks(
    distances: ArrayLike | Iterable[tuple[int, ArrayLike]], n_query: int, n_gallery: int
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Read a matrix or blocks as (first query, rows), and see to it that every query comes exactly once."""
    seen = np.zeros(n_query, dtype=bool)
    for start, block in as_blocks(distances):
        if block.ndim != 2 or block.shape[1] != n_gallery or start + len(block) > n_query or start < 0:
            raise ShapeError(
                f"The 'distances' parameter of evaluate_ranking must have shape ({n_query}, {n_gallery}), "
                f"or come in "
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
            f"The 'distances' parameter of evaluate_ranking must cover all {n_query} queries. "
            f"Got {int(seen.sum())} of them."
        )


# ---------------------------------------------------------------------------------------------- ranks


@dataclass(frozen=True)
class _Ranks:
    """Ranks (from 1) of one query's relevant items, in rank order, under both tie rules and as tie blocks."""

    by_index: Ints
    pessimistic: Ints
    block_end: Ints  # rank of the last item of the tie block each relevant item is in
    block_hits: Ints  # relevant items up to the end of that block
    n_relevant: int
    n_kept: int


def _ranks_of_relevant(row: NDArray[Any], relevant: Ints, deleted: Ints) -> _Ranks:
    """Rank the relevant items of one row without sorting positions: one value sort and a few searches."""
    kept = np.sort(np.delete(row, deleted) if len(deleted) else row)
    if len(relevant) == 0:
        none = np.zeros(0, np.int64)
        return _Ranks(none, none, none, none, 0, len(kept))
    own = row[relevant]
    order = np.argsort(own, kind="stable")  # relevant is ascending, so equal distances stay in gallery order
    own = own[order]
    less = np.searchsorted(kept, own, side="left")
    end = np.searchsorted(kept, own, side="right")
    own_less = np.searchsorted(own, own, side="left")
    own_end = np.searchsorted(own, own, side="right")
    place = np.arange(len(own))
    # relevant items last inside their tie block
    pessimistic = end - (own_end - place) + 1
    by_index = less + (place - own_less) + 1
    mixed = (end - less) != (own_end - own_less)  # the block also holds items that are not relevant
    if mixed.any():
        gone = np.zeros(len(row), dtype=bool)
        gone[deleted] = True
        for value in np.unique(own[mixed]):
            block = np.flatnonzero((row == value) & ~gone)  # ascending gallery positions
            inside = own == value
            by_index[inside] = less[inside] + np.searchsorted(block, relevant[order][inside]) + 1
    return _Ranks(
        by_index.astype(np.int64),
        pessimistic.astype(np.int64),
        end.astype(np.int64),
        own_end.astype(np.int64),
        len(relevant),
        len(kept),
    )


class _Tally:
    """Collect per-query numbers in float64."""

    def __init__(self, n_query: int) -> None:
        self.ap = np.full(n_query, np.nan)
        self.inp = np.full(n_query, np.nan)
        self.first = np.zeros(n_query, np.int64)
        self.tied = np.zeros(n_query, dtype=bool)

    def add(self, query: int, ranks: _Ranks, definition: AveragePrecision, ties: Ties) -> None:
        if ranks.n_relevant == 0:
            return
        used = ranks.by_index if ties == "index" else ranks.pessimistic
        hits = np.arange(1, len(used) + 1)
        if definition == "scikit-learn":
            precision = ranks.block_hits / ranks.block_end if len(used) else np.zeros(0)
        else:
            precision = hits / used
        if definition == "trapezoid":
            before = np.where(used > 1, (hits - 1) / np.maximum(used - 1, 1), 1.0)
            precision = (precision + before) / 2
        self.ap[query] = precision.sum() / ranks.n_relevant
        complete = len(used) == ranks.n_relevant
        self.inp[query] = ranks.n_relevant / (used[-1] if complete else ranks.n_kept)
        self.first[query] = used[0] if len(used) else 0
        if len(used):
            self.tied[query] = (ranks.by_index[0] == 1) != (ranks.pessimistic[0] == 1)

    def scores(
        self, definition: AveragePrecision, ties: Ties, empty: Empty, deleted: Deleted, max_rank: int
    ) -> RetrievalScores:
        nothing = np.isnan(self.ap)
        n_empty = int(nothing.sum())
        if n_empty and empty == "error":
            raise ArgumentError(
                f"{n_empty} queries have no relevant gallery item (the first is query "
                f"{int(np.argmax(nothing))}); "
                "pass empty='skip' or empty='zero' to go on without them."
            )
        if empty == "zero":
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
            definition=definition,
            ties=ties,
            empty=empty,
            deleted=deleted,
        )
