"""Who counts for a query: identities and cameras in, positions that are relevant and positions that are deleted out."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bpa._checks import check_choice, check_shape
from bpa.errors import ArgumentError, DTypeError

Deleted = Literal["identity-camera", "camera"]
"""Which gallery items the camera of a query deletes; see `bpa.metrics.retrieval`."""

Ints = NDArray[np.int64]


class Relevance:
    """Identities and cameras of both sides, checked once; `of` answers for one query."""

    def __init__(
        self,
        query_ids: ArrayLike,
        gallery_ids: ArrayLike,
        query_cameras: ArrayLike | None,
        gallery_cameras: ArrayLike | None,
        *,
        self_index: ArrayLike | None,
        junk_id: int | None,
        deleted: Deleted,
        function: str,
    ) -> None:
        check_choice(deleted, ("identity-camera", "camera"), argument="deleted", function=function)
        self.query_ids = _integers(query_ids, "n_query", argument="query_ids", function=function)
        self.gallery_ids = _integers(gallery_ids, "n_gallery", argument="gallery_ids", function=function)
        self.n_query, self.n_gallery = len(self.query_ids), len(self.gallery_ids)
        if (query_cameras is None) != (gallery_cameras is None):
            raise ArgumentError(
                f"The 'query_cameras' and 'gallery_cameras' parameters of {function} go together: the camera rule "
                f"compares one with the other. Got only one of them."
            )
        if deleted == "camera" and query_cameras is None:
            raise ArgumentError(
                f"The 'deleted' parameter of {function} is 'camera', which removes every gallery item of a query's "
                f"camera. Got no cameras; pass query_cameras= and gallery_cameras=, or leave 'deleted' out."
            )
        self.query_cameras = self.gallery_cameras = None
        if query_cameras is not None and gallery_cameras is not None:
            self.query_cameras = _integers(
                query_cameras, self.n_query, argument="query_cameras", function=function
            )
            self.gallery_cameras = _integers(
                gallery_cameras, self.n_gallery, argument="gallery_cameras", function=function
            )
        self.self_index = None
        if self_index is not None:
            self.self_index = _integers(self_index, self.n_query, argument="self_index", function=function)
        self.deleted = deleted
        self.junk_id = junk_id
        self.junk = np.flatnonzero(self.gallery_ids == junk_id) if junk_id is not None else _NONE
        self._order = np.argsort(self.gallery_ids, kind="stable")
        self._sorted_ids = self.gallery_ids[self._order]

    def of(self, query: int) -> tuple[Ints, Ints]:
        """Gallery positions relevant to a query and positions deleted for it, both ascending."""
        identity = self.query_ids[query]
        if self.junk_id is not None and identity == self.junk_id:
            return _NONE, self.junk
        first, last = np.searchsorted(self._sorted_ids, [identity, identity + 1])
        same = self._order[first:last]
        dropped = np.zeros(len(same), dtype=bool)
        gone = [self.junk]
        if self.query_cameras is not None and self.gallery_cameras is not None:
            seen_by = self.query_cameras[query]
            dropped = self.gallery_cameras[same] == seen_by
            gone.append(
                np.flatnonzero(self.gallery_cameras == seen_by) if self.deleted == "camera" else same[dropped]
            )
        if self.self_index is not None and self.self_index[query] >= 0:
            itself = self.self_index[query]
            dropped |= same == itself
            gone.append(itself[None])
        return same[~dropped], np.unique(np.concatenate(gone))


_NONE: Ints = np.zeros(0, np.int64)


def _integers(values: ArrayLike, length: int | str, *, argument: str, function: str) -> Ints:
    array = np.asarray(values)
    check_shape(array.shape, (length,), argument=argument, function=function)
    if not np.issubdtype(array.dtype, np.integer):
        raise DTypeError(f"The {argument!r} parameter of {function} must hold integers. Got {array.dtype}.")
    return array.astype(np.int64)
