"""``.plk``, ``.pkl``, ``.pickle``: the dictionaries of PT-MAP, PT-MAP-SF, Sill-Net and S2M2, interpreted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bpa.data.formats._layout import Fields, labels_name
from bpa.data.formats._unpickle import as_array, read_pickle
from bpa.errors import FileError, UnsafeFileError


def read_pickle_file(place: Path, key: str | None, label_key: str | None) -> Fields:
    """Class → list of vectors, or ``features`` and ``labels``; interpreted, never executed."""
    data = place.read_bytes()
    value = read_pickle(data, source=str(place))
    if not isinstance(value, dict) or not value:
        raise FileError(
            f"{place} must hold a dictionary, class → list of vectors, or one of 'features' and 'labels'. "
            f"Got {_describe(value)}."
        )
    name = key or "features"
    if name in value:
        features = as_array(value[name])
        if features is None:
            raise FileError(f"The {name!r} of {place} must be an array. Got {_describe(value[name])}.")
        found = labels_name([str(entry) for entry in value], label_key)
        labels = None if found is None else value[found]
        listed = as_array(labels) if labels is not None else None
        return {"features": features, "labels": listed if listed is not None else labels}
    if key is not None:
        raise FileError(
            f"{place} has no {key!r}; it holds {', '.join(str(entry) for entry in list(value)[:8])}."
        )
    return _by_class(value, place, len(data))


def _by_class(groups: Mapping[Any, Any], place: Path, size: int) -> Fields:
    """Class → list of vectors, flattened in the file's order (the order PT-MAP's task list counts in)."""
    blocks: list[np.ndarray] = []
    counts: list[int] = []
    width: int | None = None
    total = 0
    for label, rows in groups.items():
        whole = as_array(rows)
        vectors = (
            [whole] if whole is not None else [_vector(row) for row in rows] if isinstance(rows, list) else []
        )
        if not vectors:
            raise FileError(f"Class {label!r} of {place} must hold a list of vectors. Got {_describe(rows)}.")
        count = 0
        for vector in vectors:
            if vector is None or vector.ndim not in (1, 2) or vector.dtype.kind not in "fiu":
                raise FileError(
                    f"Class {label!r} of {place} must hold vectors of numbers. Got something else."
                )
            if width is None:
                width = vector.shape[-1]
            if vector.shape[-1] != width:
                raise FileError(
                    f"Class {label!r} of {place} holds a vector of width {vector.shape[-1]}, and the first of the "
                    f"file has width {width}."
                )
            count += 1 if vector.ndim == 1 else vector.shape[0]
            total += vector.nbytes
            if total > 9 * size:  # floats written as text-like opcodes still need a ninth of their bytes
                raise UnsafeFileError(
                    f"{place} was refused: its {size:,} bytes claim to hold more than {total:,} bytes of vectors."
                )
        blocks.append(np.concatenate([np.atleast_2d(v) for v in vectors if v is not None]).astype(np.float32))
        counts.append(count)
    keys = list(groups)
    if all(isinstance(entry, int) for entry in keys):
        numbers, class_names = np.array(keys, dtype=np.int64), None
    else:
        numbers, class_names = np.arange(len(keys), dtype=np.int64), tuple(_text(entry) for entry in keys)
    return {
        "features": np.concatenate(blocks),
        "labels": np.repeat(numbers, counts),
        "class_names": class_names,
    }


def _vector(row: Any) -> np.ndarray | None:
    array = as_array(row)
    if array is not None:
        return array
    if isinstance(row, list | tuple) and row and all(isinstance(v, int | float | np.generic) for v in row):
        return np.asarray([float(v) for v in row], dtype=np.float64)
    return None


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _describe(value: Any) -> str:
    return f"a {type(value).__name__.strip('_').lower()}"
