"""``.parquet``: tables, read and written by pyarrow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bpa._extras import needs
from bpa.data.formats._layout import Fields, features_name, labels_name, refuse_bomb, texts_of, unreadable
from bpa.errors import ArgumentError, FileError


def read_parquet(place: Path, key: str | None, label_key: str | None) -> Fields:
    """A list column of features, or one numeric column a feature; the other fields as columns."""
    with needs("app", "pyarrow", feature="Reading a parquet file"):
        import pyarrow
        import pyarrow.parquet
    try:
        file = pyarrow.parquet.ParquetFile(place)
        groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
        refuse_bomb(place, sum(group.total_byte_size for group in groups))
        table = file.read()
    except (pyarrow.ArrowException, OSError) as error:
        raise unreadable(place, error) from None
    names = list(table.column_names)
    label_name = labels_name(names, label_key)
    fields: Fields = {
        name: np.asarray(table[name].to_pylist())
        for name in ("cameras", "is_query", "splits")
        if name in names
    }
    if label_name is not None:
        fields["labels"] = np.asarray(table[label_name].to_pylist())
    class_names = (table.schema.metadata or {}).get(b"class_names")
    if class_names is not None:
        fields["class_names"] = texts_of(class_names.decode(), place)

    def is_list(name: str) -> bool:
        kind = table.schema.field(name).type
        return bool(pyarrow.types.is_list(kind) or pyarrow.types.is_fixed_size_list(kind))

    lists = [name for name in names if is_list(name)]
    if key is not None or "features" in names or lists:
        column = table[features_name(names, key, place, lists)].combine_chunks()
        width, rest = divmod(len(column.flatten()), max(len(column), 1))
        lengths = pyarrow.compute.list_value_length(column).to_numpy(zero_copy_only=False)
        if rest or column.null_count or not (lengths == width).all():
            raise FileError(
                f"The vectors of {place} differ in width, from {lengths.min()} to {lengths.max()}, or are missing."
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


def write_parquet(place: Path, arrays: Mapping[str, np.ndarray], texts: Mapping[str, list[str]]) -> None:
    """Write one row an item, class names in the metadata."""
    with needs("app", "pyarrow", feature="Writing a parquet file"):
        import pyarrow
        import pyarrow.parquet
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
