"""``bpa convert``: any readable feature file to one that holds plain arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bpa.cli import _flags as flags
from bpa.cli._output import emit
from bpa.data.features import write_features
from bpa.errors import FileError


def convert(
    features: flags.Features,
    target: Annotated[Path, Parameter(help="File to write: .npz, .parquet or .safetensors.")],
    *,
    reading: flags.Reading = flags.READING,
    overwrite: Annotated[bool, Parameter(negative=(), help="Replace TARGET if it exists.")] = False,
    json: flags.Json = False,
) -> None:
    """Convert a feature file, old pickles among them, to a safe format.

    A pickle is interpreted without executing anything; a file that asks for more than plain numbers is refused.
    Row order is kept, so published task lists draw the same tasks from the converted file.

    Example: bpa convert output.plk miniimagenet-wrn.npz
    """
    if target.exists() and not overwrite:
        raise FileError(f"{target} exists. Name another file, or pass --overwrite.")
    given = reading.read(features)
    write_features(target, given)
    classes = None if given.labels is None else len(set(given.labels.tolist()))
    emit(json=json, files={"features": target}, rows=len(given), dim=given.dim, classes=classes)
