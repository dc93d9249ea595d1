"""Feature files in, `FeatureSet` out, and back.

- ``.npz``: ``features`` (n, d); optional ``labels``, ``cameras``, ``images``, ``is_query``, ``splits`` (a
row each),
  ``class_names``, ``class_split`` (a class each). Without ``features``: the only (n, d) array, or the
  flattened images.
- ``.npy``: (n, d), with the labels in a second file.
- ``.parquet``, ``.pq``: a list column ``features``, or one numeric column a feature; the other fields as
columns.
- ``.safetensors``: tensors under the names of ``.npz``; ``class_names`` and ``splits`` as JSON in the
metadata.
- ``.plk``, ``.pkl``, ``.pickle``: the dictionaries of PT-MAP, PT-MAP-SF, Sill-Net and S2M2, class → list
of vectors, or
  one of ``features`` and ``labels``. Interpreted, never executed.

Values arrive as float32, every one finite; labels as int64. The row order of the file is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bpa.data._unpickle import as_array, read_pickle
from bpa.errors import ArgumentError, FileError, MissingExtraError, NonFiniteError, UnsafeFileError
from bpa.records import FeatureSet

MAX_BYTES = 32 * 2**30
_FIELDS = ("labels", "class_names", "cameras", "images", "is_query", "splits", "class_split")
_LABEL_SPELLINGS = ("labels", "label", "targets", "target", "y")

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
    """
    place = Path(path)
    if not place.is_file():
        raise FileError(f"The feature file {place} of read_features does not exist.")
    reader = _READERS.get(place.suffix.lower())
    if reader is None:
        raise FileError(
            f"read_features knows files ending in {', '.join(_READERS)}. Got {place.name}. "
            f"Rename it, or convert it."
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
    """
    place = Path(path)
    writer = _WRITERS.get(place.suffix.lower())
    if writer is None:
        raise FileError(f"write_features writes {', '.join(_WRITERS)}. Got {place.name}.")
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
    partial = place.with_name(f".{place.name}.partial{place.suffix}")
    try:
        writer(partial, arrays, texts)
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)


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
            f"The features of {place} must be finite in float32. {int(bad.sum()):,} of {n:,} "
            f"rows hold NaN or Inf, "
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


def _pick(names: Sequence[str], key: str | None, place: Path, two_dimensional: Sequence[str]) -> str:
    """The name of the features among ``names``: the one asked for, ``features``, or the only candidate."""
    wanted = key or ("features" if "features" in names else None)
    if wanted is None and len(two_dimensional) == 1:
        wanted = two_dimensional[0]
    if wanted is None or wanted not in names:
        asked = f"no {key!r}" if key else "no 'features' and not exactly one (n, d) array"
        raise FileError(
            f"{place} has {asked}; it holds {', '.join(names) or 'nothing'}. Name the features by key=."
        )
    return wanted


def _label_name(names: Sequence[str], asked: str | None) -> str | None:
    if asked is not None:
        return asked if asked in names else None
    return next((name for name in _LABEL_SPELLINGS if name in names), None)


# ---------------------------------------------------------------------- one reader a format


def _read_npz(place: Path, key: str | None, label_key: str | None) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(place) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > MAX_BYTES:
            raise UnsafeFileError(
                f"{place} was refused: it unpacks to {unpacked:,} bytes, over {MAX_BYTES:,}."
            )
        with np.load(place, allow_pickle=False) as archive:
            names = list(archive.files)
            label_name = _label_name(names, label_key)
            skipped = {*_FIELDS, label_name}
            matrices = []
            for name in names:
                if key is None and "features" not in names and name not in skipped:
                    value = archive[name]
                    if value.ndim == 2 and value.dtype.kind in "fiu":
                        matrices.append(name)
            fields = {name: archive[name] for name in _FIELDS if name in names and name != "labels"}
            if key is None and "features" not in names and not matrices and "images" in names:
                fields["features"] = _pixels(fields["images"])
            else:
                fields["features"] = archive[_pick(names, key, place, matrices)]
            if label_name is not None:
                fields["labels"] = archive[label_name]
    except FileError:
        raise
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise _unreadable(place, error) from None
    return fields


def _pixels(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255.0)


def _read_npy(place: Path, key: str | None, label_key: str | None) -> dict[str, Any]:  # noqa: ARG001 - one signature
    if key is not None:
        raise ArgumentError(
            f"{place.name} holds one array without a name, so key={key!r} cannot be looked up in it."
        )
    return {"features": _load_npy(place)}


def _load_npy(place: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(place, allow_pickle=False))
    except (ValueError, OSError, EOFError) as error:
        raise _unreadable(place, error) from None


def _read_parquet(place: Path, key: str | None, label_key: str | None) -> dict[str, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("pyarrow"):
            raise MissingExtraError("Reading a parquet file", "app") from None
        raise
    try:
        file = pyarrow.parquet.ParquetFile(place)
        unpacked = sum(
            file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)
        )
        if unpacked > MAX_BYTES:
            raise UnsafeFileError(
                f"{place} was refused: it unpacks to {unpacked:,} bytes, over {MAX_BYTES:,}."
            )
        table = file.read()
    except (pyarrow.ArrowException, OSError) as error:
        raise _unreadable(place, error) from None
    names = list(table.column_names)
    label_name = _label_name(names, label_key)
    fields: dict[str, Any] = {
        name: np.asarray(table[name].to_pylist())
        for name in ("cameras", "is_query", "splits")
        if name in names
    }
    if label_name is not None:
        fields["labels"] = np.asarray(table[label_name].to_pylist())
    metadata = {
        k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items() if k == b"class_names"
    }
    if "class_names" in metadata:
        fields["class_names"] = _json_texts(metadata["class_names"], place)

    def is_list(name: str) -> bool:
        kind = table.schema.field(name).type
        return bool(pyarrow.types.is_list(kind) or pyarrow.types.is_fixed_size_list(kind))

    lists = [name for name in names if is_list(name)]
    if key is not None or "features" in names or lists:
        column = table[_pick(names, key, place, lists)].combine_chunks()
        width, rest = divmod(len(column.flatten()), max(len(column), 1))
        lengths = pyarrow.compute.list_value_length(column).to_numpy(zero_copy_only=False)
        if rest or column.null_count or not (lengths == width).all():
            raise FileError(
                f"The vectors of {place} differ in width, from {lengths.min()} to "
                f"{lengths.max()}, or are missing."
            )
        fields["features"] = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), width)
        return fields
    wide = [name for name in names if name not in {label_name, "cameras", "is_query", "splits"}]
    texts = [name for name in wide if table[name].to_numpy().dtype.kind not in "fiub"]
    if texts or not wide:
        raise FileError(
            f"{place} has no list column of features and its column {', '.join(texts)} is not numeric."
        )
    fields["features"] = np.stack([table[name].to_numpy() for name in wide], axis=1)
    return fields


def _read_safetensors(place: Path, key: str | None, label_key: str | None) -> dict[str, Any]:
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        if error.name == "safetensors":
            raise MissingExtraError("Reading a safetensors file", "app") from None
        raise
    try:
        with safe_open(place, framework="pt") as file:
            names = list(file.keys())
            matrices = [
                name for name in names if name not in _FIELDS and len(file.get_slice(name).get_shape()) == 2
            ]
            label_name = _label_name(names, label_key)
            fields: dict[str, Any] = {
                name: file.get_tensor(name).numpy()
                for name in ("cameras", "images", "is_query")
                if name in names
            }
            fields["features"] = file.get_tensor(_pick(names, key, place, matrices)).float().numpy()
            if label_name is not None:
                fields["labels"] = file.get_tensor(label_name).numpy()
            for name, text in (file.metadata() or {}).items():
                if name in ("class_names", "splits"):
                    fields[name] = _json_texts(text, place)
    except (SafetensorError, OSError) as error:
        raise _unreadable(place, error) from None
    return fields


def _json_texts(text: str, place: Path) -> list[str]:
    try:
        values = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise _unreadable(place, error) from None
    if not isinstance(values, list):
        raise FileError(f"The names in {place} must be a list of texts. Got {type(values).__name__}.")
    return [str(value) for value in values]


def _read_pickle_file(place: Path, key: str | None, label_key: str | None) -> dict[str, Any]:
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
        found = _label_name([str(entry) for entry in value], label_key)
        labels = None if found is None else value[found]
        listed = as_array(labels) if labels is not None else None
        return {"features": features, "labels": listed if listed is not None else labels}
    if key is not None:
        raise FileError(
            f"{place} has no {key!r}; it holds {', '.join(str(entry) for entry in list(value)[:8])}."
        )
    return _by_class(value, place, len(data))


def _by_class(groups: Mapping[Any, Any], place: Path, size: int) -> dict[str, Any]:
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
                    f"Class {label!r} of {place} holds a vector of width {vector.shape[-1]}, and "
                    f"the first of the file "
                    f"has width {width}."
                )
            count += 1 if vector.ndim == 1 else vector.shape[0]
            total += vector.nbytes
            if total > 9 * size:  # floats written as text-like opcodes still need a ninth of their bytes
                raise UnsafeFileError(
                    f"{place} was refused: its {size:,} bytes claim to hold more than {total:,} "
                    f"bytes of vectors."
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


def _read_labels(place: Path) -> np.ndarray:
    if place.suffix.lower() == ".npy":
        return _load_npy(place)
    if place.suffix.lower() not in (".txt", ".csv", ".tsv"):
        raise FileError(f"Labels are read from .npy, or from .txt/.csv with one a line. Got {place.name}.")
    try:
        lines = [line.strip() for line in place.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (UnicodeDecodeError, OSError) as error:
        raise _unreadable(place, error) from None
    try:
        return np.array([int(line) for line in lines], dtype=np.int64)
    except ValueError:
        return np.array(lines)


def _unreadable(place: Path, error: Exception) -> FileError:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "allow_pickle" in text or "Object arrays" in text:
        return UnsafeFileError(
            f"{place} was refused: it holds pickled objects, and reading those would run what "
            f"they say. Save plain "
            f"arrays of numbers and text."
        )
    return FileError(f"{place} cannot be read; it is truncated or not what its name says ({text}).")


_READERS: dict[str, Callable[[Path, str | None, str | None], dict[str, Any]]] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".parquet": _read_parquet,
    ".pq": _read_parquet,
    ".safetensors": _read_safetensors,
    ".plk": _read_pickle_file,
    ".pkl": _read_pickle_file,
    ".pickle": _read_pickle_file,
}


# ---------------------------------------------------------------------- one writer a format


def _write_npz(place: Path, arrays: Mapping[str, np.ndarray], texts: Mapping[str, list[str]]) -> None:
    with place.open("wb") as file:
        fields: dict[str, Any] = {**arrays, **{name: np.array(values) for name, values in texts.items()}}
        np.savez(file, **fields)


def _write_parquet(place: Path, arrays: Mapping[str, np.ndarray], texts: Mapping[str, list[str]]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("pyarrow"):
            raise MissingExtraError("Writing a parquet file", "app") from None
        raise
    if "images" in arrays:
        raise ArgumentError(
            "write_features keeps images in .npz or .safetensors only. Got a parquet file name."
        )
    features = arrays["features"]
    columns: dict[str, Any] = {
        "features": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(features.ravel()), features.shape[1])
    }
    columns.update({name: pyarrow.array(value) for name, value in arrays.items() if name != "features"})
    if "splits" in texts:
        columns["splits"] = pyarrow.array(texts["splits"])
    table = pyarrow.table(columns)
    if "class_names" in texts:
        table = table.replace_schema_metadata({"class_names": json.dumps(texts["class_names"])})
    pyarrow.parquet.write_table(table, place)


def _write_safetensors(place: Path, arrays: Mapping[str, np.ndarray], texts: Mapping[str, list[str]]) -> None:
    try:
        from safetensors.numpy import save_file
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("safetensors"):
            raise MissingExtraError("Writing a safetensors file", "app") from None
        raise
    save_file(dict(arrays), place, metadata={name: json.dumps(values) for name, values in texts.items()})


_WRITERS: dict[str, Callable[[Path, Mapping[str, np.ndarray], Mapping[str, list[str]]], None]] = {
    ".npz": _write_npz,
    ".parquet": _write_parquet,
    ".pq": _write_parquet,
    ".safetensors": _write_safetensors,
}
