"""``bpa doctor``: what this installation has, and whether the transform suits a feature file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bpa.cli._common import Json, Key, Labels, Reg, emit
from bpa.data.features import read_features
from bpa.runs.doctor import examine, installation_table


def doctor(
    features: Annotated[Path | None, Parameter(help="Feature file to look at.")] = None,
    *,
    reg: Reg = (),
    labels: Labels = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Describe this installation and, given a file, what its features are like and which reg suits them.

    Example: bpa doctor emb.npz
    """
    tables = [installation_table()]
    if features is not None:
        given = read_features(features, labels=labels, key=key)
        tables = [*examine(given, reg), *tables]
    emit(json=json, tables=tables)
