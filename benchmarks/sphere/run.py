"""The sphere study: the full grid of the paper, every column, tables and figures.

    python benchmarks/sphere/run.py                      # 6 × 6 cells, 10 runs, all columns: some ten minutes
    python benchmarks/sphere/run.py --fine               # 10 × 10 cells, four columns, for the figures
    python benchmarks/sphere/run.py --confirm            # 6 × 6 cells, 40 runs on other seeds, eight columns

Finished cells are kept in the folder of ``--out`` and not repeated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from bpa.experiments.clustering_studies import (
    COLUMNS,
    SphereConfig,
    grid_of,
    plot_sphere,
    plot_sphere_data,
    run_sphere,
    sphere_cell_table,
    sphere_table,
)
from bpa.experiments.store import RunStore, write_atomically

HERE = Path(__file__).resolve().parent
FINE = ("raw", "bpa 0.1", "bpa 0.5", "bpa literal")
CONFIRM = (
    "raw", "cosine", "bpa 0.1", "bpa 0.1 unscaled", "bpa 0.25", "bpa 0.5", "bpa literal",
    "bpa literal unscaled",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--fine", action="store_true")
    which.add_argument("--confirm", action="store_true")
    which.add_argument("--auto", action="store_true", help="raw against reg chosen from the set")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "sphere")
    options = parser.parse_args()

    name, columns, runs, seed, size = "grid", tuple(COLUMNS), 10, 0, 6
    if options.fine:
        name, columns, size = "fine", FINE, 10
    if options.confirm:
        name, columns, runs, seed = "confirm", CONFIRM, 40, 1
    if options.auto:
        name, columns = "auto", ("raw", "cosine", "bpa 0.1", "bpa 0.5", "bpa auto")
    dims, noises = grid_of(size)
    config = SphereConfig(dims, noises, columns, runs=runs, seed=seed)
    with RunStore(options.out / name) as store:
        records = run_sphere(config, store=store, on_progress=lambda d, t: print(f"{d}/{t}", flush=True))
    tables = [sphere_table(records)]
    for column in columns if name == "confirm" else [c for c in FINE if c in columns]:
        tables += [sphere_cell_table(records, column, score) for score in ("nmi", "ari")]
    write_atomically(options.out / f"{name}.md", "\n".join(table.markdown() for table in tables))
    if name in ("grid", "fine"):  # the finer grid replaces the figures of the coarse one
        for column in FINE[1:]:
            plot_sphere(records, column).savefig(
                options.out / f"sphere-{column.replace(' ', '-')}.png", dpi=90
            )
        plot_sphere_data().savefig(options.out / "sphere-data.png", dpi=90)
    print(tables[0].text())


if __name__ == "__main__":
    main()
