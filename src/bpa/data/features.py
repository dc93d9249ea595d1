"""Feature files in, `FeatureSet` out, and back.

- ``.npz``: ``features`` (n, d); optional ``labels``, ``cameras``, ``images``, ``is_query``, ``splits`` (a row each),
  ``class_names``, ``class_split`` (a class each). Without ``features``: the only (n, d) array, or the flattened images.
- ``.npy``: (n, d), with the labels in a second file.
- ``.parquet``, ``.pq``: a list column ``features``, or one numeric column a feature; the other fields as columns.
- ``.safetensors``: tensors under the names of ``.npz``; ``class_names`` and ``splits`` as JSON in the metadata.
- ``.plk``, ``.pkl``, ``.pickle``: the dictionaries of PT-MAP, PT-MAP-SF, Sill-Net and S2M2, class → list of vectors, or
  one of ``features`` and ``labels``. Interpreted, never executed.

Values arrive as float32, every one finite; labels as int64. The row order of the file is kept. One file a format lies
in `bpa.data.formats`; here their fields become a record, checked once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bpa.data.formats import READERS, WRITERS
from bpa.data.formats._layout import MAX_BYTES, unreadable
from bpa.data.formats.numpy_arrays import read_array
from bpa.errors import FileError, NonFiniteError
from bpa.records import FeatureSet

__all__ = ["read_features", "replacing", "write_features"]

_Path = str | os.PathLike[str]


def read_features(path: _Path, *, labels: _Path | None = None, key: str | None = None) -> FeatureSet:
    """Read stored features.

    Parameters
    ----------
    path : path
        A ``.npz``, ``.npy``, ``.parquet``, ``.safetensors`` or (restricted) ``.plk``/``.pkl`` file.
    labels : path or str, optional
        A second file with the labels (``.npy``, or text with one a line), or the name of the array or
        column inside ``path`` that holds them.
    key : str, optional
        Name of the array or column that holds the features.

    Returns
    -------
    FeatureSet

    Raises
    ------
    FileError
        When the file is missing, truncated, or laid out differently.
    UnsafeFileError
        When reading it would need code to run; nothing has been executed.
    NonFiniteError
        When a value is NaN or infinite; the message names the class.

    Examples
    --------
    >>> np.savez("toy.npz", features=np.eye(4), labels=["cat", "cat", "dog", "dog"])
    >>> toy = read_features("toy.npz")
    >>> toy.features.dtype.name, toy.labels.tolist(), toy.class_names
    ('float32', [0, 0, 1, 1], ('cat', 'dog'))
    """
    place = Path(path)
    if not place.is_file():
        raise FileError(f"The feature file {place} of read_features does not exist.")
    reader = READERS.get(place.suffix.lower())
    if reader is None:
        raise FileError(
            f"read_features knows files ending in {', '.join(READERS)}. Got {place.name}. Rename it, or convert it."
        )
    size = place.stat().st_size
    if size > MAX_BYTES:
        raise FileError(f"{place} has {size:,} bytes; read_features reads at most {MAX_BYTES:,}.")
    inner = str(labels) if labels is not None and not Path(labels).is_file() else None
    fields = reader(place, key, inner)
    if inner is not None and fields.get("labels") is None:
        raise FileError(f"The labels {inner!r} of read_features are neither a file nor a field of {place}.")
    if labels is not None and inner is None:
        fields["labels"] = _read_labels(Path(labels))
    return _assemble(fields, place)


def write_features(path: _Path, features: FeatureSet) -> None:
    """Write a set as ``.npz``, ``.parquet`` or ``.safetensors``, all of which read back without pickle.

    Parameters
    ----------
    path : path
        The suffix chooses the format. An existing file is replaced only once the new one is complete.
    features : FeatureSet
        What to write; row order and float32 values are kept exactly.

    Raises
    ------
    FileError
        When the suffix is none that can be written.

    Examples
    --------
    >>> write_features("toy.npz", FeatureSet(np.eye(3, dtype=np.float32), labels=np.array([0, 1, 1])))
    >>> read_features("toy.npz").labels.tolist()
    [0, 1, 1]
    """
    place = Path(path)
    writer = WRITERS.get(place.suffix.lower())
    if writer is None:
        raise FileError(f"write_features writes {', '.join(WRITERS)}. Got {place.name}.")
    arrays = {"features": np.ascontiguousarray(features.features)}
    for name in ("labels", "cameras", "images", "is_query"):
        value = getattr(features, name)
        if value is not None:
            arrays[name] = np.ascontiguousarray(value)
    texts = {}
    if features.class_names is not None:
        texts["class_names"] = list(features.class_names)
    if features.splits is not None:
        texts["splits"] = [str(split) for split in features.splits]
    with replacing(place) as partial:
        writer(partial, arrays, texts)


# ---------------------------------------------------------------------- from fields to a record


def _assemble(fields: Mapping[str, Any], place: Path) -> FeatureSet:
    values = np.asarray(fields["features"])
    if values.dtype.kind not in "fiub":
        raise FileError(f"The features of {place} must be real numbers. Got {values.dtype}.")
    if values.ndim != 2 or 0 in values.shape:
        raise FileError(f"The features of {place} must have shape (n, d) with n, d ≥ 1. Got {values.shape}.")
    n = values.shape[0]
    names = fields.get("class_names")
    class_names = None if names is None else tuple(str(name) for name in np.asarray(names).ravel().tolist())
    labels, class_names = _labels(fields.get("labels"), class_names, place, n)
    with np.errstate(over="ignore"):
        features = np.ascontiguousarray(values, dtype=np.float32)
    bad = ~np.isfinite(features).all(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        owner = ""
        if labels is not None:
            label = int(labels[row])
            name = class_names[label] if class_names and 0 <= label < len(class_names) else str(label)
            owner = f" (class {name!r})"
        raise NonFiniteError(
            f"The features of {place} must be finite in float32. {int(bad.sum()):,} of {n:,} rows hold NaN or Inf, "
            f"the first is row {row}{owner}."
        )
    cameras, is_query, images = fields.get("cameras"), fields.get("is_query"), fields.get("images")
    for name in ("cameras", "is_query", "images"):
        if fields.get(name) is not None and len(fields[name]) != n:
            raise FileError(
                f"The {name!r} of {place} must have one entry per row, {n:,}. Got {len(fields[name]):,}."
            )
    return FeatureSet(
        features=features,
        labels=labels,
        class_names=class_names,
        cameras=None if cameras is None else _integers(cameras, "cameras", place),
        images=None if images is None else np.asarray(images, dtype=np.uint8),
        is_query=None if is_query is None else np.asarray(is_query).astype(bool),
        splits=_splits(fields, labels, place, n),
        source=str(place),
        sha256=_sha256(place),
    )


def _labels(
    given: Any, class_names: tuple[str, ...] | None, place: Path, n: int
) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    if given is None:
        return None, class_names
    labels = np.asarray(given).ravel()
    if labels.shape != (n,):
        raise FileError(f"The labels of {place} must be one per row, {n:,}. Got {labels.size:,}.")
    if labels.dtype.kind in "US":  # names instead of numbers
        unique, inverse = np.unique(labels.astype(str), return_inverse=True)
        if class_names is None:
            return inverse.astype(np.int64), tuple(unique.tolist())
        position = {name: index for index, name in enumerate(class_names)}
        unknown = [name for name in unique.tolist() if name not in position]
        if unknown:
            raise FileError(f"The label {unknown[0]!r} of {place} is not among its class_names.")
        return np.array([position[name] for name in unique.tolist()], dtype=np.int64)[inverse], class_names
    return _integers(labels, "labels", place), class_names


def _integers(values: Any, name: str, place: Path) -> np.ndarray:
    array = np.asarray(values).ravel()
    if array.dtype.kind not in "iufb" or (array.dtype.kind == "f" and not (array == np.rint(array)).all()):
        raise FileError(f"The {name!r} of {place} must be whole numbers. Got {array.dtype}.")
    return array.astype(np.int64)


def _splits(fields: Mapping[str, Any], labels: np.ndarray | None, place: Path, n: int) -> np.ndarray | None:
    splits = fields.get("splits")
    if splits is not None:
        splits = np.asarray(splits, dtype=str)
        if splits.shape != (n,):
            raise FileError(f"The 'splits' of {place} must be one per row, {n:,}. Got {splits.shape}.")
        return splits
    per_class = fields.get("class_split")
    if per_class is None or labels is None:
        return None
    per_class = np.asarray(per_class, dtype=str)
    if labels.min() < 0 or labels.max() >= len(per_class):
        raise FileError(
            f"The 'class_split' of {place} has {len(per_class)} entries and a label is outside them."
        )
    rows: np.ndarray = per_class[labels]
    return rows


def _sha256(place: Path) -> str:
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replacing(place: Path) -> Iterator[Path]:
    """Give a file beside ``place`` to write, and put it there once it is complete; a failure leaves the old one."""
    partial = place.with_name(f".{place.name}.partial{place.suffix}")
    try:
        yield partial
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)


def _read_labels(place: Path) -> np.ndarray:
    if place.suffix.lower() == ".npy":
        return read_array(place)
    if place.suffix.lower() not in (".txt", ".csv", ".tsv"):
        raise FileError(f"Labels are read from .npy, or from .txt/.csv with one a line. Got {place.name}.")
    try:
        lines = [line.strip() for line in place.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (UnicodeDecodeError, OSError) as error:
        raise unreadable(place, error) from None
    try:
        return np.array([int(line) for line in lines], dtype=np.int64)
    except ValueError:
        return np.array(lines)
