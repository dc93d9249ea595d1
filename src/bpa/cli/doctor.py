"""``bpa doctor``: what this installation has, and whether the transform suits a feature file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bpa.cli import _flags as flags
from bpa.cli._output import emit
from bpa.report.sections import tables_of
from bpa.runs.doctor import examine


def doctor(
    features: Annotated[Path | None, Parameter(help="Feature file to look at.")] = None,
    *,
    reg: flags.RegNames = (),
    reading: flags.Reading = flags.READING,
    json: flags.Json = False,
) -> None:
    """Describe this installation and, given a file, what its features are like and which reg suits them.

    Example: bpa doctor emb.npz
    """
    record = examine(None if features is None else reading.read(features), reg)
    emit(json=json, tables=tables_of([record]), records=[record])
