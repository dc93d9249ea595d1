"""``.npz`` and ``.npy``: numpy's own files, never unpickled."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile

from bpa.data.formats._layout import FIELDS, Fields, features_name, labels_name, refuse_bomb, unreadable
from bpa.errors import ArgumentError, FileError

_DAMAGED = (
    ValueError, TypeError, KeyError, OverflowError, EOFError, OSError, RuntimeError, NotImplementedError, SyntaxError,
    tokenize.TokenError, zlib.error, zipfile.BadZipFile, zipfile.LargeZipFile,
)  # fmt: skip
"""What numpy and zipfile raise about files that were cut, flipped or made up."""


def read_npz(place: Path, key: str | None, label_key: str | None) -> Fields:
    """Arrays by name; without ``features`` the only matrix, or the flattened images."""
    with opened(place) as stored:
        names = list(stored.files)
        label_name = labels_name(names, label_key)
        fields: Fields = {name: stored[name] for name in FIELDS if name in names and name != "labels"}
        if label_name is not None:
            fields["labels"] = stored[label_name]
        matrices: list[str] = []
        if key is None and "features" not in names:
            others = [name for name in names if name not in {*FIELDS, label_name}]
            matrices = [n for n in others if stored[n].ndim == 2 and stored[n].dtype.kind in "fiu"]
        if key is None and "features" not in names and not matrices and "images" in names:
            fields["features"] = _pixels(fields["images"])
        else:
            fields["features"] = stored[features_name(names, key, place, matrices)]
    return fields


def read_npy(place: Path, key: str | None, label_key: str | None) -> Fields:  # noqa: ARG001 - one signature
    """The one array of the file."""
    if key is not None:
        raise ArgumentError(
            f"{place.name} holds one array without a name, so key={key!r} cannot be looked up in it."
        )
    return {"features": read_array(place)}


def read_array(place: Path) -> np.ndarray:
    """The array of a ``.npy``, never unpickled."""
    try:
        return np.asarray(np.load(place, allow_pickle=False))
    except _DAMAGED as error:
        raise unreadable(place, error) from None


@contextmanager
def opened(place: Path) -> Iterator[NpzFile]:
    """A ``.npz`` whose arrays are read when they are asked for, never unpickled; any damage is a `FileError`."""
    try:
        with zipfile.ZipFile(place) as archive:
            refuse_bomb(place, sum(entry.file_size for entry in archive.infolist()))
        with np.load(place, allow_pickle=False) as stored:
            yield stored
    except FileError:
        raise
    except _DAMAGED as error:
        raise unreadable(place, error) from None


def write_npz(place: Path, arrays: Mapping[str, np.ndarray], texts: Mapping[str, list[str]]) -> None:
    """Write arrays, and lists of text as arrays of text."""
    with place.open("wb") as file:
        fields: dict[str, Any] = {**arrays, **{name: np.array(values) for name, values in texts.items()}}
        np.savez(file, **fields)


def _pixels(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255.0)
