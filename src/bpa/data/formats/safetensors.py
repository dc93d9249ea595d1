"""``.safetensors``: tensors by name, which cannot hold code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bpa._extras import needs
from bpa.data.formats._layout import FIELDS, Fields, features_name, labels_name, texts_of, unreadable


def read_safetensors(place: Path, key: str | None, label_key: str | None) -> Fields:
    """Tensors under the names of ``.npz``; class names and splits from the metadata."""
    with needs("app", "safetensors", feature="Reading a safetensors file"):
        from safetensors import SafetensorError, safe_open
    try:
        with safe_open(place, framework="pt") as file:
            names = list(file.keys())
            matrices = [
                name for name in names if name not in FIELDS and len(file.get_slice(name).get_shape()) == 2
            ]
            label_name = labels_name(names, label_key)
            fields: Fields = {
                name: file.get_tensor(name).numpy()
                for name in ("cameras", "images", "is_query")
                if name in names
            }
            fields["features"] = file.get_tensor(features_name(names, key, place, matrices)).float().numpy()
            if label_name is not None:
                fields["labels"] = file.get_tensor(label_name).numpy()
            for name, text in (file.metadata() or {}).items():
                if name in ("class_names", "splits"):
                    fields[name] = texts_of(text, place)
    except (SafetensorError, OSError) as error:
        raise unreadable(place, error) from None
    return fields


def write_safetensors(place: Path, arrays: Mapping[str, np.ndarray], texts: Mapping[str, list[str]]) -> None:
    """Write arrays as tensors, lists of text as JSON in the metadata."""
    with needs("app", "safetensors", feature="Writing a safetensors file"):
        from safetensors.numpy import save_file
    save_file(dict(arrays), place, metadata={name: json.dumps(values) for name, values in texts.items()})
