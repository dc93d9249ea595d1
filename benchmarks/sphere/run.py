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
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot

from bpa.data.synthetic import sphere_clusters
from bpa.records import RunRecord
from bpa.report.sections import build_page
from bpa.runs import RunStore, Way, labels, run
from bpa.runs.fields.sphere import Sphere, SphereTask
from bpa.runs.store import write_atomically
from bpa.runs.studies.sphere import LITERAL, RAW, WAYS, grid_of
from bpa.transforms.names import NamedTransform

HERE = Path(__file__).resolve().parent


def of(reg: float, *, unscaled: bool = False) -> Way:
    return Way("k-means", NamedTransform("bpa", reg=reg, unscaled=unscaled or None))


FINE = (RAW, of(0.1), of(0.5), of(LITERAL))
CONFIRM = (
    RAW, Way("k-means", NamedTransform("cosine")), of(0.1), of(0.1, unscaled=True), of(0.25), of(0.5), of(LITERAL),
    of(LITERAL, unscaled=True),
)  # fmt: skip


def plot(records: list[RunRecord], way: Way) -> pyplot.Figure:
    """The figure of the paper: ARI above NMI, over d and over σ, BPA dashed, raw solid."""
    mean = {
        (r.task["dim"], r.task["noise"], Way.from_dict(r.way), score): float(np.mean(r.values[score]))
        for r in records
        for score in ("ari", "nmi")
    }
    dims, noises = sorted({cell[0] for cell in mean}), sorted({cell[1] for cell in mean})
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7), sharey=True, layout="constrained")
    for row, score in enumerate(("ari", "nmi")):
        for over, (across, lines, label) in enumerate(((dims, noises, "d"), (noises, dims, "σ"))):
            axis = axes[row][over]
            colours = pyplot.get_cmap("viridis")(np.linspace(0, 0.92, len(lines)))
            for line, colour in zip(lines, colours, strict=True):
                for shown, style in ((RAW, "-"), (way, "--")):
                    cells = [(a, line) if over == 0 else (line, a) for a in across]
                    other = f"σ = {line:.2f}" if over == 0 else f"d = {line}"
                    heights = [mean[(*cell, shown, score)] for cell in cells]
                    axis.plot(across, heights, style, color=colour, label=other if style == "-" else None)
            axis.set(xscale="log", xlabel=label, ylim=(-0.03, 1.03))
            axis.set_title(f"{score.upper()} over {label}", fontsize=10)
            axis.legend(fontsize=7, ncols=2)
        axes[row][0].set_ylabel(score.upper())
    figure.suptitle(
        f"k-means on the sphere: {labels([RAW, way])[1]}, reg {way.transform.reg:g}, dashed; raw solid"
    )
    return figure


def plot_data(seed: int = 0) -> pyplot.Figure:
    """Ten clusters on the sphere in three dimensions, under rising noise."""
    figure = pyplot.figure(figsize=(12, 5.2), layout="constrained")
    for number, noise in enumerate(grid_of(10)[1], start=1):
        points = sphere_clusters(3, noise, seed=(seed, 0))
        axis = figure.add_subplot(2, 5, number, projection="3d")
        axis.scatter(*points.features.T, c=points.labels, cmap="tab10", s=7, depthshade=False)
        axis.set(xticks=[], yticks=[], zticks=[], xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1), aspect="equal")
        axis.set_title(f"σ = {noise:.2f}", fontsize=9)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--fine", action="store_true")
    which.add_argument("--confirm", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "sphere")
    options = parser.parse_args()
    name, ways, runs, seed, size = "grid", WAYS, 10, 0, 6
    if options.fine:
        name, ways, size = "fine", FINE, 10
    if options.confirm:
        name, ways, runs, seed = "confirm", CONFIRM, 40, 1
    dims, noises = grid_of(size)
    grid = [(SphereTask(dim, noise, runs=runs, seed=seed), ways) for dim in dims for noise in noises]
    with RunStore(options.out / name) as store:
        records = run(
            "sphere", Sphere(), grid, store=store, on_progress=lambda d, t: print(f"{d}/{t}", flush=True)
        )
    tables = build_page(records).sections[0].tables
    write_atomically(options.out / f"{name}.md", "\n".join(table.markdown() for table in tables))
    if not options.confirm:  # the finer grid replaces the figures of the coarse one
        for way, word in zip(FINE[1:], ("0.1", "0.5", "literal"), strict=True):
            figure = plot(records, way)
            figure.savefig(options.out / f"sphere-bpa-{word}.png", dpi=90)
            pyplot.close(figure)
        plot_data().savefig(options.out / "sphere-data.png", dpi=90)
    print(tables[0].text())


if __name__ == "__main__":
    main()
