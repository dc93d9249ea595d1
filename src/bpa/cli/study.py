"""``bpa study``: a named study, or the list of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bpa.cli import _flags as flags
from bpa.cli._output import emit, progress
from bpa.errors import ArgumentError
from bpa.paper import check, sets
from bpa.report.claims import claims_table
from bpa.report.page import render
from bpa.report.sections import build_page, tables_of
from bpa.report.table import Table
from bpa.runs.engine import run
from bpa.runs.store import write_atomically
from bpa.runs.studies import all_studies
from bpa.runs.study import Asked


def study(
    name: Annotated[
        str | None, Parameter(help="Name of the study; without one, the list of studies.")
    ] = None,
    features: Annotated[Path | None, Parameter(help="Feature file, for studies that need one.")] = None,
    *,
    transform: flags.Transforms = (),
    reg: flags.RegNames = (),
    solver: flags.Solvers = (),
    shot: flags.Shots = (),
    repeats: flags.Repeats = None,
    identities: Annotated[int | None, flags.whole("--identities", "Identities of a draw.")] = None,
    each: Annotated[int | None, flags.whole("--each", "Items of each identity of a draw, at most.")] = None,
    grid: Annotated[int | None, flags.whole("--grid", "Values along each axis of a grid.")] = None,
    seed: flags.MaybeSeed = None,
    reading: flags.Reading = flags.READING,
    computing: flags.Computing = flags.COMPUTING,
    quick: Annotated[
        bool, Parameter(negative=(), help="The smallest run that still shows the effect.")
    ] = False,
    these_are_the_paper_features: flags.AreThePapers = False,
    keeping: flags.Keeping = flags.KEEPING,
) -> None:
    """Run a named study; --out keeps its records, tables and report, and lets it resume.

    A study says in one sentence which flag it cannot honour; none is ignored.

    Example: bpa study sphere --quick --out runs/sphere
    """
    known = all_studies()
    if name is None:
        rows = [
            (one.name, "yes" if one.needs_features else "no", one.summary, " ".join(sorted(one.honours)))
            for one in known.values()
        ]
        emit(
            json=keeping.json, tables=[Table("Studies", ("name", "needs FEATURES", "what", "honours"), rows)]
        )
        return
    if name not in known:
        raise ArgumentError(f"there is no study {name!r}. There are: {', '.join(known)}.")
    if these_are_the_paper_features and name not in sets():
        raise ArgumentError(
            f"The study {name!r} cannot honour --these-are-the-paper-features: the paper prints none of its rows."
        )
    if features is None and (reading.labels is not None or reading.key is not None):
        raise ArgumentError(f"The study {name!r} was given no FEATURES to take --labels or --key from.")
    asked = Asked(
        transform=transform, reg=reg, solver=solver, shot=shot, repeats=repeats, seed=seed, device=computing.device,
        dtype=computing.dtype, budget=computing.budget, identities=identities, each=each, grid=grid, quick=quick,
    )  # fmt: skip
    store = keeping.store
    given = None if features is None else reading.read(features)
    field, cells = known[name].asked_for(given, asked)
    if these_are_the_paper_features:
        check(name, field.name, cells)
    with progress(name) as tick:
        records = run(name, field, cells, axes=known[name].axes, store=store, on_progress=tick)
    tables = tables_of(records)
    if these_are_the_paper_features:
        tables.append(claims_table(records, name, are_the_papers=True))
    files: dict[str, Path] = {}
    if store is not None:
        page = build_page(store.records(), store.plans(), title=name)
        files = {
            "tables": write_atomically(
                store.folder / "tables.md", "\n".join(table.markdown() for table in tables)
            ),
            "report": write_atomically(store.folder / "report.html", render(page)),
        }
    emit(json=keeping.json, tables=tables, records=records if keeping.json else (), files=files)
