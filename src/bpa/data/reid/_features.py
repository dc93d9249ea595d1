"""Stored features of a re-identification set: who asks, among whom, in one ``.npz``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bpa.data.features import replacing
from bpa.data.formats.numpy_arrays import opened, write_npz
from bpa.data.reid._sets import AnyPath
from bpa.errors import ArgumentError, FileError
from bpa.records import QueryGallery


def read_reid_features(path: AnyPath) -> tuple[QueryGallery, str | None]:
    """Read features of a re-identification set from an ``.npz`` without pickle.

    Parameters
    ----------
    path : path
        Arrays ``features`` (n, d), ``ids`` (or ``pids``, ``labels``), optional ``cameras`` (or ``camids``),
        ``is_query`` and ``dataset``, a word such as ``"market1501"``.

    Returns
    -------
    task : QueryGallery
        Without ``is_query`` every item queries the others.
    dataset : str or None
        The name the file gives; the paper's numbers are shown only for the paper's sets.

    Raises
    ------
    FileError
        When the file is missing or damaged, has no identities, or a row that is not finite.

    Examples
    --------
    >>> np.savez("people.npz", features=np.eye(3), ids=[7, 7, 8], is_query=[True, False, False])
    >>> task, dataset = read_reid_features("people.npz")
    >>> task.query.tolist(), task.gallery.tolist(), dataset
    ([0], [1, 2], None)
    """
    place = Path(path)
    if not place.is_file():
        raise FileError(f"The feature file {place} of read_reid_features does not exist.")
    with opened(place) as stored:
        content = {name: stored[name] for name in stored.files if name not in ("images", "class_names")}
    if "features" not in content or content["features"].ndim != 2:
        raise FileError(f"{place} holds no array 'features' of shape (n, d); it has {', '.join(content)}.")
    features = np.ascontiguousarray(content["features"], dtype=np.float32)
    bad = ~np.isfinite(features).all(axis=1)
    if bad.any():
        raise FileError(
            f"{place}: {int(bad.sum())} feature rows hold NaN or Inf, the first is row {int(bad.argmax())}."
        )
    ids = _column(place, content, ("ids", "pids", "labels"), len(features))
    if ids is None:
        raise FileError(f"{place} holds no identities; name them 'ids'. It has {', '.join(content)}.")
    cameras = _column(place, content, ("cameras", "camids"), len(features))
    rows = np.arange(len(features), dtype=np.int64)
    query = gallery = rows
    if "is_query" in content:
        asks = content["is_query"].astype(bool)
        if asks.shape != rows.shape or not asks.any() or asks.all():
            raise FileError(
                f"'is_query' of {place} must have one entry a row, true for some and false for others."
            )
        query, gallery = rows[asks], rows[~asks]
    dataset = str(content["dataset"]) if "dataset" in content else None
    return QueryGallery(features, query, gallery, ids, cameras, dataset or place.name), dataset


def _column(place: Path, content: dict[str, Any], names: Sequence[str], n: int) -> np.ndarray | None:
    name = next((name for name in names if name in content), None)
    if name is None:
        return None
    column = content[name]
    if column.shape != (n,) or not np.issubdtype(column.dtype, np.integer):
        raise FileError(
            f"{name!r} of {place} must be {n} integers, one a row. Got {column.dtype} {column.shape}."
        )
    out: np.ndarray = column.astype(np.int64)
    return out


def write_reid_features(path: AnyPath, task: QueryGallery, *, dataset: str | None = None) -> Path:
    """Write a task so that :func:`read_reid_features` (and anyone else) can read it.

    Parameters
    ----------
    path : path
        Ends in ``.npz``.
    task : QueryGallery
        Whose queries and gallery share no item, or are the same items.
    dataset : str, optional
        Name of the set.

    Returns
    -------
    Path
        ``path``; an existing file is replaced only once the new one is complete.

    Raises
    ------
    ArgumentError
        When the path ends otherwise, or only some of the queries are in the gallery.

    Examples
    --------
    >>> everyone = np.arange(3)
    >>> task = QueryGallery(np.eye(3, dtype=np.float32), everyone, everyone, ids=np.array([7, 7, 8]))
    >>> read_reid_features(write_reid_features("people.npz", task, dataset="toy"))[1]
    'toy'
    """
    place = Path(path)
    if place.suffix != ".npz":
        raise ArgumentError(
            f"The 'path' parameter of write_reid_features must end in .npz. Got {place.name}."
        )
    arrays: dict[str, Any] = {"features": task.features, "ids": task.ids}
    if task.cameras is not None:
        arrays["cameras"] = task.cameras
    shared = np.intersect1d(task.query, task.gallery)
    if len(shared) == 0:
        asks = np.zeros(len(task.features), dtype=bool)
        asks[task.query] = True
        arrays["is_query"] = asks
    elif len(shared) != len(task.features):
        raise ArgumentError(
            f"The 'task' parameter of write_reid_features must have queries that are all in the gallery or all "
            f"outside it. Got {len(shared)} of {len(task.query)} in both."
        )
    if dataset is not None:
        arrays["dataset"] = np.array(dataset)
    with replacing(place) as partial:
        write_npz(partial, arrays, {})
    return place
