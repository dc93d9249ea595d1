"""What the file formats agree on: names of fields, limits, and how to say that a file cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bpa.errors import FileError, UnsafeFileError

Fields = dict[str, Any]
"""What a reader hands over: ``features`` (n, d), and any of `FIELDS`, by name."""
Reader = Callable[[Path, str | None, str | None], Fields]
"""A file, the name asked for as features (or None) and the one asked for as labels (or None) → its fields."""
Writer = Callable[[Path, Mapping[str, np.ndarray], Mapping[str, list[str]]], None]
"""A file to make, its arrays by name, and its lists of text by name."""

FIELDS = ("labels", "class_names", "cameras", "images", "is_query", "splits", "class_split")
MAX_BYTES = 32 * 2**30
_LABEL_SPELLINGS = ("labels", "label", "targets", "target", "y")


def features_name(names: Sequence[str], key: str | None, place: Path, candidates: Sequence[str]) -> str:
    """The name of the features among ``names``: the one asked for, ``features``, or the only candidate."""
    wanted = key or ("features" if "features" in names else None)
    if wanted is None and len(candidates) == 1:
        wanted = candidates[0]
    if wanted is None or wanted not in names:
        asked = f"no {key!r}" if key else "no 'features' and not exactly one (n, d) array"
        raise FileError(
            f"{place} has {asked}; it holds {', '.join(names) or 'nothing'}. Name the features by key=."
        )
    return wanted


def labels_name(names: Sequence[str], asked: str | None) -> str | None:
    """The name of the labels among ``names``: the one asked for, or a usual spelling; None where there is none."""
    if asked is not None:
        return asked if asked in names else None
    return next((name for name in _LABEL_SPELLINGS if name in names), None)


def texts_of(text: str, place: Path) -> list[str]:
    """A list of texts from JSON, as class names and splits are kept in metadata."""
    try:
        values = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise unreadable(place, error) from None
    if not isinstance(values, list):
        raise FileError(f"The names in {place} must be a list of texts. Got {type(values).__name__}.")
    return [str(value) for value in values]


def refuse_bomb(place: Path, unpacked: int) -> None:
    """Refuse a file that unpacks to more than `MAX_BYTES`, before it does."""
    if unpacked > MAX_BYTES:
        raise UnsafeFileError(f"{place} was refused: it unpacks to {unpacked:,} bytes, over {MAX_BYTES:,}.")


def unreadable(place: Path, error: Exception) -> FileError:
    """What to raise instead of a library's own error about a damaged or misnamed file."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "allow_pickle" in text or "Object arrays" in text:
        return UnsafeFileError(
            f"{place} was refused: it holds pickled objects, and reading those would run what they say. Save plain "
            f"arrays of numbers and text."
        )
    return FileError(f"{place} cannot be read; it is truncated or not what its name says ({text}).")
