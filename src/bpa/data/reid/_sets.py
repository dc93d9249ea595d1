"""A re-identification set as three lists of pictures, and what all readers of such lists need."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bpa.errors import ArgumentError
from bpa.records import QueryGallery

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True, order=True)
class ReidImage:
    """One picture: where it is, who is on it, which camera took it.

    Parameters
    ----------
    path : Path
        The file.
    identity, camera : int
        As the set numbers people; cameras count from 0.

    Examples
    --------
    >>> ReidImage(Path("0002_c1s1_000451_03.jpg"), identity=2, camera=0).camera
    0
    """

    path: Path
    identity: int
    camera: int


@dataclass(frozen=True)
class ReidSet:
    """The three lists of a set.

    Attributes
    ----------
    name : str
        ``"market1501"``, ``"cuhk03-detected"`` or ``"cuhk03-labeled"``.
    train : tuple of ReidImage
        Identities relabelled 0, 1, … in ascending order.
    query, gallery : tuple of ReidImage
        Identities as the set numbers them; 0 is a distractor, −1 junk.

    Examples
    --------
    >>> images = [ReidImage(Path(f"{k}.jpg"), identity=k % 2, camera=k) for k in range(4)]
    >>> people = ReidSet("toy", train=(), query=(images[0],), gallery=tuple(images[1:]))
    >>> people.task(np.eye(4)).ids.tolist()
    [0, 1, 0, 1]
    """

    name: str
    train: tuple[ReidImage, ...]
    query: tuple[ReidImage, ...]
    gallery: tuple[ReidImage, ...]

    def task(self, features: np.ndarray) -> QueryGallery:
        """The retrieval task of features in the order query, gallery.

        Parameters
        ----------
        features : ndarray, shape (len(query) + len(gallery), d)

        Returns
        -------
        QueryGallery
        """
        images = (*self.query, *self.gallery)
        if len(features) != len(images):
            raise ArgumentError(
                f"The 'features' parameter of ReidSet.task must have one row for each of the {len(self.query)} queries "
                f"and {len(self.gallery)} gallery items, in this order. Got {len(features)} rows."
            )
        rows = np.arange(len(images), dtype=np.int64)
        return QueryGallery(
            np.ascontiguousarray(features, dtype=np.float32),
            rows[: len(self.query)],
            rows[len(self.query) :],
            np.array([image.identity for image in images], dtype=np.int64),
            np.array([image.camera for image in images], dtype=np.int64),
            self.name,
        )


def relabelled(images: Sequence[ReidImage]) -> tuple[ReidImage, ...]:
    """The same pictures with identities 0, 1, … in ascending order of those they had."""
    label = {identity: k for k, identity in enumerate(sorted({image.identity for image in images}))}
    return tuple(ReidImage(image.path, label[image.identity], image.camera) for image in images)


def warn_counts(made: ReidSet, expected: dict[str, int]) -> None:
    """Warn where a list is not as long as the official one."""
    for key in ("train", "query", "gallery"):
        have = len(getattr(made, key))
        if have != expected[key]:
            warnings.warn(
                f"the {key} list of {made.name} has {have} pictures; the official one has {expected[key]}.",
                UserWarning,
                stacklevel=3,
            )
