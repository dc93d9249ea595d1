"""``bpa study``: a named study, or the list of them."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import bpa.runs
from bpa.cli._common import (
    Budget,
    Device,
    Dtype,
    Json,
    Key,
    Labels,
    NIter,
    Out,
    Reg,
    Repeats,
    Seed,
    Transforms,
    emit,
    progress,
)
from bpa.data.features import read_features
from bpa.errors import ArgumentError
from bpa.report.table import Table
from bpa.runs.figures import save_figures
from bpa.runs.study import Study, StudyOptions


def all_studies() -> dict[str, Study]:
    """Return every study of every ``bpa.runs.*_studies`` module, by name."""
    found: dict[str, Study] = {}
    for module in pkgutil.iter_modules(bpa.runs.__path__, "bpa.runs."):
        if module.name.endswith("_studies"):
            found |= importlib.import_module(module.name).STUDIES
    return dict(sorted(found.items()))


def study(
    name: Annotated[
        str | None, Parameter(help="Name of the study; without one, the list of studies.")
    ] = None,
    features: Annotated[Path | None, Parameter(help="Feature file, for studies that need one.")] = None,
    *,
    transform: Transforms = (),
    reg: Reg = (),
    n_iter: NIter = None,
    repeats: Repeats = None,
    seed: Seed = 0,
    labels: Labels = None,
    key: Key = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    budget: Budget = None,
    quick: Annotated[
        bool, Parameter(negative=(), help="The smallest run that still shows the effect.")
    ] = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Run a named study; --out keeps its records, tables and figures and lets it resume.

    Example: bpa study sphere --quick --out runs/sphere
    """
    known = all_studies()
    if name is None:
        rows = [(s.name, "yes" if s.needs_features else "no", s.summary) for s in known.values()]
        emit(json=json, tables=[Table("Studies", ("name", "needs FEATURES", "what"), rows)])
        return
    if name not in known:
        raise ArgumentError(f"there is no study {name!r}. There are: {', '.join(known)}.")
    if known[name].needs_features and features is None:
        raise ArgumentError(f"the study {name!r} needs a feature file: bpa study {name} FEATURES.")
    given = None if features is None else read_features(features, labels=labels, key=key)
    with progress(name) as tick:
        options = StudyOptions(
            seed=seed, reg=reg, transforms=transform, n_iter=n_iter, repeats=repeats, device=device, dtype=dtype,
            budget=budget, out=out, quick=quick, on_progress=tick,
        )  # fmt: skip
        result = known[name].run(given, options)
    files = {} if out is None else save_figures(result, out)
    emit(json=json, tables=result.tables, records=result.records if json else (), files=files)
