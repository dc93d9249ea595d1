"""What a host is asked: label these rows, rank that gallery."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from bpa._checks import check_shape
from bpa.errors import ArgumentError, ShapeError
from bpa.records.sets import FeatureSet


@dataclass(frozen=True, eq=False)
class Episode:
    """One few-shot task, or a batch of them: labelled rows, rows to label, and the labels as data.

    Parameters
    ----------
    support : Tensor, shape (..., L, d)
        Labelled rows, in any order.
    support_labels : Tensor, shape (..., L), int64
        Class of each labelled row, in ``0 .. n_way - 1``.
    query : Tensor, shape (..., Q, d)
        Rows to label, in any order.
    n_way : int
        Number of classes.
    query_labels : Tensor, shape (..., Q), int64, optional
        The truth, where it is known.
    support_mask, query_mask : Tensor, shape (..., L) and (..., Q), bool, optional
        True at the rows that exist, for tasks padded to one size.

    Examples
    --------
    >>> import torch
    >>> from bpa.hosts.fewshot import ProtoNet
    >>> task = Episode(torch.eye(2), torch.tensor([0, 1]), torch.tensor([[0.9, 0.1]]), n_way=2)
    >>> ProtoNet()(task).labels
    tensor([0])
    """

    support: Tensor
    support_labels: Tensor
    query: Tensor
    n_way: int
    query_labels: Tensor | None = None
    support_mask: Tensor | None = None
    query_mask: Tensor | None = None


@dataclass(frozen=True, eq=False)
class QueryGallery:
    """Who asks, and among whom: the two sides of a retrieval task over one set of rows.

    An item may be on both sides (every item queries the others); it is then one item of the joint set and is
    never ranked for itself.

    Parameters
    ----------
    features : ndarray, shape (n, d), float32
        One row per item of the joint set.
    query, gallery : ndarray of int64, shape (n_query,), (n_gallery,)
        Rows of ``features``, without repeats on a side.
    ids : ndarray, shape (n,), int64
        Identity of each row; −1 is junk, neither right nor wrong.
    cameras : ndarray, shape (n,), int64, optional
        The view each row was taken from.
    source : str
        Where the rows came from.

    Examples
    --------
    >>> x, identity = np.eye(4, dtype=np.float32), np.array([7, 7, 9, 9])
    >>> task = QueryGallery(x, query=np.array([0]), gallery=np.array([1, 2, 3]), ids=identity)
    >>> task.self_index is None, len(task.gallery)
    (True, 3)
    """

    features: np.ndarray
    query: np.ndarray
    gallery: np.ndarray
    ids: np.ndarray
    cameras: np.ndarray | None = None
    source: str = ""

    def __post_init__(self) -> None:
        """Check once that both sides speak of the same rows."""
        shape = np.shape(self.features)
        check_shape(shape, ("n", "d"), argument="features", function="QueryGallery")
        for name in ("ids", "cameras"):
            value = getattr(self, name)
            if value is not None:
                check_shape(np.shape(value), shape[:1], argument=name, function="QueryGallery")
        for name in ("query", "gallery"):
            rows = getattr(self, name)
            if np.ndim(rows) != 1 or len(rows) == 0 or rows.min() < 0 or rows.max() >= shape[0]:
                raise ShapeError(
                    f"The {name!r} parameter of QueryGallery must be a vector of at least one row number in "
                    f"0..{shape[0] - 1}. Got shape {np.shape(rows)}."
                )
            if len(np.unique(rows)) != len(rows):
                raise ArgumentError(f"The {name!r} parameter of QueryGallery must not repeat a row.")

    @property
    def self_index(self) -> np.ndarray | None:
        """Gallery position of each query itself (−1: not there); None when the sides share no item."""
        position = np.full(len(self.features), -1, dtype=np.int64)
        position[self.gallery] = np.arange(len(self.gallery))
        own: np.ndarray = position[self.query]
        return own if (own >= 0).any() else None

    @classmethod
    def from_features(cls, features: FeatureSet) -> QueryGallery:
        """Take the sides from ``is_query``; without it every item queries all the others."""
        if features.labels is None:
            raise ArgumentError(
                f"retrieval needs an identity per row, and {features.source or 'this set'} has no labels; "
                "name the array that holds them (--labels)."
            )
        everyone = np.arange(len(features), dtype=np.int64)
        query, gallery = everyone, everyone
        if features.is_query is not None:
            query, gallery = everyone[features.is_query], everyone[~features.is_query]
        return cls(
            features=features.features,
            query=query,
            gallery=gallery,
            ids=features.labels,
            cameras=features.cameras,
            source=features.source,
        )
