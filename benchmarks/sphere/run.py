"""The sphere study: the full grid of the paper, every column, tables and figures.

    python benchmarks/sphere/run.py                      # 6 × 6 cells, 10 runs, all columns: some ten minutes
    python benchmarks/sphere/run.py --fine               # 10 × 10 cells, four columns, for the figures
    python benchmarks/sphere/run.py --confirm            # 6 × 6 cells, 40 runs on other seeds, eight columns

Finished cells are kept in the folder of ``--out`` and not repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from bpa.records import RunRecord
from bpa.report.table import Table
from bpa.runs.clustering_studies import (
    COLUMNS,
    SphereConfig,
    grid_of,
    plot_sphere,
    plot_sphere_data,
    run_sphere,
    sphere_cell_table,
    sphere_table,
)
from bpa.runs.store import RunStore, write_atomically

HERE = Path(__file__).resolve().parent
FINE = ("raw", "bpa 0.1", "bpa 0.5", "bpa literal")
FIRST = ("raw", "cosine", "bpa 0.1", "bpa 0.5", "bpa literal", "bpa 0.1 unscaled", "bpa 0.5 unscaled")
SECOND = (
    "bpa auto", "unit", "softmax 0.1", "spectral 0.1", "spectral cosine", "bpa 0.2", "bpa 0.25", "bpa 1.0",
    "bpa literal unscaled", "bpa 0.1 unscaled zero", "bpa-attn 0.1",
)  # fmt: skip
CONFIRM = (
    "raw", "cosine", "bpa 0.1", "bpa 0.1 unscaled", "bpa 0.25", "bpa 0.5", "bpa literal",
    "bpa literal unscaled",
)  # fmt: skip


def joined(a: RunRecord, b: RunRecord) -> RunRecord:
    """One record of a cell from two groups of columns."""
    columns = [*a.task["columns"], *b.config["columns"]]
    return dataclasses.replace(a, task={**a.task, "columns": columns}, values={**a.values, **b.values})


def report(out: Path, name: str, records: list[RunRecord], shown: tuple[str, ...]) -> list[Table]:
    """Write the tables, and the figures where the grid is the published one."""
    tables = [sphere_table(records)]
    for column in shown:
        tables += [sphere_cell_table(records, column, score) for score in ("nmi", "ari")]
    write_atomically(out / f"{name}.md", "\n".join(table.markdown() for table in tables))
    if name != "confirm":  # the finer grid replaces the figures of the coarse one
        for column in FINE[1:]:
            figure = plot_sphere(records, column)
            figure.savefig(out / f"sphere-{column.replace(' ', '-')}.png", dpi=90)
            pyplot.close(figure)
        plot_sphere_data().savefig(out / "sphere-data.png", dpi=90)
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--fine", action="store_true")
    which.add_argument("--confirm", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "sphere")
    options = parser.parse_args()

    rest = tuple(c for c in COLUMNS if c not in FIRST + SECOND)
    name, groups, runs, seed, size = "grid", (FIRST, SECOND, rest), 10, 0, 6
    if options.fine:
        name, groups, size = "fine", (FINE,), 10
    if options.confirm:
        name, groups, runs, seed = "confirm", (CONFIRM,), 40, 1
    dims, noises = grid_of(size)
    records: list[RunRecord] = []
    for columns in groups:  # the same points and seeds in every group, so that columns stay paired
        config = SphereConfig(dims, noises, columns, runs=runs, seed=seed)
        with RunStore(options.out / name) as store:
            more = run_sphere(config, store=store, on_progress=lambda d, t: print(f"{d}/{t}", flush=True))
        records = [joined(a, b) for a, b in zip(records, more, strict=True)] if records else more
        tables = report(options.out, name, records, CONFIRM if options.confirm else FINE)
    print(tables[0].text())


if __name__ == "__main__":
    main()
