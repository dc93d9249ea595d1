"""A set of stored features, and what is known about each row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bpa._checks import check_shape
from bpa.errors import ArgumentError, DTypeError, ShapeError


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Stored features with what is known about each row.

    Parameters
    ----------
    features : ndarray, shape (n, d), float32
        One row per item.
    labels : ndarray, shape (n,), int64, optional
        The class (or identity) of each row; any integers.
    class_names : tuple of str, optional
        Name of class ``c`` at position ``c``.
    cameras : ndarray, shape (n,), int64, optional
        The view each row was taken from.
    images : ndarray, shape (n, height, width[, channels]), uint8, optional
        The pictures behind the rows.
    is_query : ndarray, shape (n,), bool, optional
        True at the rows that query, false at the gallery.
    splits : ndarray, shape (n,), str, optional
        Name of the split of each row.
    source, sha256 : str
        Where the rows were read from, and the checksum of that file.

    Examples
    --------
    >>> import numpy as np
    >>> made = FeatureSet(np.eye(4, dtype=np.float32), np.array([0, 0, 1, 1]), class_names=("cat", "dog"))
    >>> len(made), made.dim, made.name_of(1), len(made.select(np.array([0, 3])))
    (4, 4, 'dog', 2)
    """

    features: np.ndarray
    labels: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    cameras: np.ndarray | None = None
    images: np.ndarray | None = None
    is_query: np.ndarray | None = None
    splits: np.ndarray | None = None
    source: str = ""
    sha256: str = ""

    def __post_init__(self) -> None:
        """Check once that all fields speak of the same rows."""
        shape = np.shape(self.features)
        check_shape(shape, ("n", "d"), argument="features", function="FeatureSet")
        if self.features.dtype != np.float32:
            raise DTypeError(
                f"The 'features' parameter of FeatureSet must be float32. Got {self.features.dtype}. Call "
                f".astype(numpy.float32) first."
            )
        for name in ("labels", "cameras", "images", "is_query", "splits"):
            value = getattr(self, name)
            if value is not None and len(value) != shape[0]:
                raise ShapeError(
                    f"The {name!r} parameter of FeatureSet must have one entry per row, {shape[0]}. Got {len(value)}."
                )
        if self.labels is not None and self.labels.dtype != np.int64:
            raise DTypeError(
                f"The 'labels' parameter of FeatureSet must be int64. Got {self.labels.dtype}. Call "
                f".astype(numpy.int64) first."
            )

    def __len__(self) -> int:
        return int(self.features.shape[0])

    @property
    def dim(self) -> int:
        """Width of a row."""
        return int(self.features.shape[1])

    def name_of(self, label: int) -> str:
        """Name of a class: its entry of ``class_names`` where there is one, else the number."""
        if self.class_names is not None and 0 <= label < len(self.class_names):
            return self.class_names[label]
        return str(label)

    def select(self, rows: np.ndarray) -> FeatureSet:
        """The set restricted to ``rows`` (indices or a boolean mask), in that order."""

        def of(value: np.ndarray | None) -> np.ndarray | None:
            return None if value is None else value[rows]

        return replace(
            self,
            features=self.features[rows],
            labels=of(self.labels),
            cameras=of(self.cameras),
            images=of(self.images),
            is_query=of(self.is_query),
            splits=of(self.splits),
        )

    def of_split(self, name: str) -> FeatureSet:
        """The rows of one named split."""
        if self.splits is None:
            raise ArgumentError(
                f"The split {name!r} was asked of {self.source or 'a set'}, which names no splits."
            )
        rows = self.splits == name
        if not rows.any():
            known = ", ".join(sorted(set(self.splits.tolist())))
            raise ArgumentError(f"The split {name!r} is not in {self.source or 'this set'}; it has {known}.")
        return self.select(rows)
