"""``bpa convert``: any readable feature file to one that holds plain arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bpa.cli._common import Features, Json, Key, Labels, emit
from bpa.data.features import read_features, write_features
from bpa.errors import FileError


def convert(
    features: Features,
    target: Annotated[Path, Parameter(help="File to write: .npz, .parquet or .safetensors.")],
    *,
    labels: Labels = None,
    key: Key = None,
    overwrite: Annotated[bool, Parameter(negative=(), help="Replace TARGET if it exists.")] = False,
    json: Json = False,
) -> None:
    """Convert a feature file, old pickles among them, to a safe format.

    A pickle is interpreted without executing anything; a file that asks for more than plain numbers is refused.
    Row order is kept, so published task lists draw the same tasks from the converted file.

    Example: bpa convert output.plk miniimagenet-wrn.npz
    """
    if target.exists() and not overwrite:
        raise FileError(f"{target} exists. Name another file, or pass --overwrite.")
    given = read_features(features, labels=labels, key=key)
    write_features(target, given)
    classes = None if given.labels is None else len(set(given.labels.tolist()))
    emit(json=json, files={"features": target}, rows=len(given), dim=given.dim, classes=classes)
