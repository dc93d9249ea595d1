"""The sphere study: when k-means on the transformed set beats k-means on the set.

Ten random centres on the unit sphere of R^d, twenty points around each with Gaussian noise of standard
deviation σ per coordinate, back to the sphere, and PCA to 50 dimensions where d > 50. Every column of the
study sees the same points and the same k-means (k-means++, ten starts, seeded by the run), so that
differences are paired.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bpa.cost import cosine_cost
from bpa.data.synthetic import sphere_clusters
from bpa.errors import ArgumentError, MissingExtraError
from bpa.metrics.clustering import clustering_scores
from bpa.metrics.intervals import Interval, mean_interval, paired_difference
from bpa.records import RunRecord
from bpa.report.table import Table
from bpa.runs.clustering import k_means, spectral_rows
from bpa.runs.environment import describe_environment
from bpa.runs.store import RunStore
from bpa.runs.study import Progress, Study, StudyOptions, StudyResult
from bpa.solvers import Converged
from bpa.transforms.alternatives import CosineRows, RowSoftmax, UnitNorm

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = [
    "COLUMNS",
    "STUDIES",
    "SphereConfig",
    "grid_of",
    "plot_sphere",
    "plot_sphere_data",
    "run_sphere",
    "sphere_cell_table",
    "sphere_table",
]

_SCORES = ("nmi", "ari", "acc")
_RAW = "raw"


# ---------------------------------------------------------------------------------------------- columns


def _bpa(points: Tensor, reg: Any, **options: Any) -> Tensor:
    from bpa.transforms.functional import balanced_affinities

    return balanced_affinities(points, reg=reg, **options)


def _euclidean(x: Tensor) -> Tensor:
    distance = torch.cdist(x, x)
    return distance / distance.max()


@dataclass(frozen=True)
class _Column:
    """Rows for k-means from (reduced points, points before the reduction, number of clusters, seed)."""

    says: str
    rows: Callable[[Tensor, Tensor, int, int], Tensor | NDArray[Any]]


def _set_transform(says: str, transform: Callable[[Tensor], Tensor]) -> _Column:
    return _Column(says, lambda x, _full, _k, _seed: transform(x))


def _spectral(says: str, affinity: Callable[[Tensor], Tensor]) -> _Column:
    return _Column(says, lambda x, _full, k, seed: spectral_rows(affinity(x).numpy(), k, seed=seed))


def _bpa_column(reg: float | str, says: str = "", **options: Any) -> _Column:
    shown = says or f"BPA, exp(-C/{reg}), stretched"
    return _set_transform(shown, lambda x: _bpa(x, reg, **options))


def _plan(x: Tensor, reg: float) -> Tensor:
    w = _bpa(x, reg, scale=None, diagonal=0.0)
    return 0.5 * (w + w.mT)


COLUMNS: Mapping[str, _Column] = {
    _RAW: _set_transform("coordinates as they are", lambda x: x),
    "unit": _set_transform("rows to unit length after PCA", UnitNorm()),
    "cosine": _set_transform("rows of the cosine matrix", CosineRows()),
    "softmax 0.1": _set_transform("row softmax, self masked, stretched, unit diagonal", RowSoftmax(0.1)),
    "softmax 0.1 self": _set_transform("row softmax, self included", RowSoftmax(0.1, plain=True)),
    "spectral 0.1": _spectral("spectral clustering on exp(-C/0.1)", lambda x: (-cosine_cost(x) / 0.1).exp()),
    "spectral cosine": _spectral("spectral clustering on (1 + cos)/2", lambda x: 1 - cosine_cost(x) / 2),
    **{f"bpa {reg}": _bpa_column(reg) for reg in (0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0)},
    "bpa auto": _bpa_column("auto", "BPA, reg chosen from the set"),
    "bpa literal": _bpa_column(10.0, "BPA, exp(-0.1 C) as the text has it (reg 10), stretched"),
    **{
        f"bpa {reg} unscaled": _bpa_column(reg, f"BPA, exp(-C/{reg}), no stretch", scale=None)
        for reg in (0.1, 0.25, 0.5, 1.0)
    },
    "bpa literal unscaled": _bpa_column(10.0, "BPA, exp(-0.1 C), no stretch", scale=None),
    "bpa 0.1 unscaled zero": _bpa_column(
        0.1, "BPA, exp(-C/0.1), no stretch, diagonal 0", scale=None, diagonal=0.0
    ),
    "bpa 0.1 symmetric": _bpa_column(0.1, "BPA, exp(-C/0.1), converged symmetric plan", solver=Converged()),
    "bpa 0.5 symmetric": _bpa_column(0.5, "BPA, exp(-C/0.5), converged symmetric plan", solver=Converged()),
    "bpa-attn 0.1": _set_transform("W x, exp(-C/0.1), stretched", lambda x: _bpa(x, 0.1) @ x),
    "bpa 0.1 before PCA": _Column(
        "BPA, exp(-C/0.1), of the points before PCA", lambda _x, full, _k, _seed: _bpa(full, 0.1)
    ),
    "bpa euclidean 0.1": _bpa_column(0.1, "BPA of distance / max, divisor 0.1, stretched", cost=_euclidean),
    "plan spectral 0.1": _spectral("spectral clustering on the plan, reg 0.1", lambda x: _plan(x, 0.1)),
    "plan spectral 0.5": _spectral("spectral clustering on the plan, reg 0.5", lambda x: _plan(x, 0.5)),
}
"""What k-means can be given, by name. ``bpa R`` is the transform of this library with ``reg=R``."""

_QUICK = (_RAW, "cosine", "bpa 0.1", "bpa 0.5", "bpa 0.5 unscaled", "bpa auto")


# ---------------------------------------------------------------------------------------------- running


@dataclass(frozen=True)
class SphereConfig:
    """One grid.

    Parameters
    ----------
    dims : tuple of int
        Dimensions d.
    noises : tuple of float
        Standard deviations σ per coordinate.
    columns : tuple of str
        Names of `COLUMNS`, or ``"bpa R"`` with any number R.
    runs : int
        Draws of the points per cell.
    seed : int
        Start of every random stream.
    n_clusters, n_per_cluster : int
        10 and 20 in the paper.
    n_components : int
        PCA above this dimension.
    n_init : int
        k-means++ starts.
    """

    dims: tuple[int, ...]
    noises: tuple[float, ...]
    columns: tuple[str, ...] = tuple(COLUMNS)
    runs: int = 10
    seed: int = 0
    n_clusters: int = 10
    n_per_cluster: int = 20
    n_components: int = 50
    n_init: int = 10

    def __post_init__(self) -> None:
        for name in self.columns:
            _column(name)


def grid_of(size: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The logarithmic grid of the paper: d from 10 to 1234 and σ from 0.1 to 0.75, ``size`` of each."""
    dims = tuple(int(d) for d in np.round(np.geomspace(10, 1234, size)))
    return dims, tuple(round(float(s), 4) for s in np.geomspace(0.1, 0.75, size))


def run_sphere(
    config: SphereConfig, *, store: RunStore | None = None, on_progress: Progress | None = None
) -> list[RunRecord]:
    """Run every cell of the grid; one record a cell, with the scores of every run.

    Parameters
    ----------
    config : SphereConfig
        The grid.
    store : RunStore, optional
        Keeps finished cells, and skips those it has.
    on_progress : callable, optional
        Called with (cells done, cells in all).

    Returns
    -------
    list of RunRecord
        Values under ``"<column>/nmi"``, ``/ari`` and ``/acc``; NMI with the arithmetic mean, scikit-learn's
        default.
    """
    records = []
    cells = [(d, s) for d in config.dims for s in config.noises]
    shared = {k: v for k, v in asdict(config).items() if k not in ("dims", "noises")}
    for number, (dim, noise) in enumerate(cells, start=1):
        cell = {**shared, "dim": dim, "noise": noise}
        record = None if store is None else store.find(cell, study="sphere")
        if record is None:
            record = _run_cell(config, dim, noise, cell)
            if store is not None:
                store.append(record)
        records.append(record)
        if on_progress is not None:
            on_progress(number, len(cells))
    return records


def _run_cell(config: SphereConfig, dim: int, noise: float, cell: Mapping[str, Any]) -> RunRecord:
    started = time.perf_counter()
    values: dict[str, list[float]] = {f"{c}/{s}": [] for c in config.columns for s in _SCORES}
    for run in range(config.runs):
        points = sphere_clusters(
            dim,
            noise,
            n_clusters=config.n_clusters,
            n_per_cluster=config.n_per_cluster,
            seed=(config.seed, run, dim, round(1e6 * noise)),
        )
        assert points.labels is not None  # noqa: S101 - the generator sets them
        full = torch.from_numpy(points.features).double()
        reduced = _reduced(full, config.n_components)
        for name in config.columns:
            rows = _column(name).rows(reduced, full, config.n_clusters, run)
            labels, _ = k_means(np.asarray(rows), config.n_clusters, n_init=config.n_init, seed=run)
            scores = clustering_scores(points.labels, labels, nmi_average="arithmetic")
            for score in _SCORES:
                values[f"{name}/{score}"].append(getattr(scores, score))
    return RunRecord(
        study="sphere",
        config=dict(cell),
        data={"source": "bpa.data.synthetic.sphere_clusters", "n": config.n_clusters * config.n_per_cluster},
        values=values,
        summary={key: asdict(mean_interval(each)) for key, each in values.items()} if config.runs > 1 else {},
        environment=describe_environment(),
        seconds=time.perf_counter() - started,
    )


def _reduced(points: Tensor, n_components: int) -> Tensor:
    """PCA to ``n_components``, fitted on these points, where they have more dimensions."""
    if points.shape[1] <= n_components:
        return points
    centred = points - points.mean(dim=0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    reduced: Tensor = u[:, :n_components] * s[:n_components]
    return reduced


def _column(name: str) -> _Column:
    if name in COLUMNS:
        return COLUMNS[name]
    kind, _, reg = name.partition(" ")
    try:
        value = float(reg)
    except ValueError:
        value = -1.0
    if kind != "bpa" or not 0 < value < float("inf"):
        raise ArgumentError(
            f"The 'columns' parameter of SphereConfig may name {', '.join(COLUMNS)}, or 'bpa R' "
            f"with a "
            f"positive number R. Got {name!r}."
        )
    return _bpa_column(value)


# ---------------------------------------------------------------------------------------------- tables


def _per_run(records: Sequence[RunRecord], key: str) -> NDArray[np.float64]:
    """Mean over the cells of the grid, for every run."""
    out: NDArray[np.float64] = np.mean([record.values[key] for record in records], axis=0)
    return out


def _better_and_worse(records: Sequence[RunRecord], column: str) -> str:
    """Cells whose mean NMI differs by more than 0.005; in brackets those beyond two standard errors also."""
    counts = np.zeros((2, 2), dtype=int)
    for record in records:
        gain = np.subtract(record.values[f"{column}/nmi"], record.values[f"{_RAW}/nmi"])
        mean, error = float(gain.mean()), float(gain.std(ddof=1) / np.sqrt(len(gain)))
        if abs(mean) > 0.005:
            counts[0, int(mean < 0)] += 1
            counts[1, int(mean < 0)] += abs(mean) > 2 * error
    return f"{counts[0, 0]}/{counts[0, 1]} ({counts[1, 0]}/{counts[1, 1]})"


def sphere_table(records: Sequence[RunRecord]) -> Table:
    """Grid means of every column, with the paired difference to k-means on the coordinates."""
    columns = records[0].config["columns"]
    rows: list[list[Any]] = []
    for column in columns:
        nmi, ari, acc = (_per_run(records, f"{column}/{score}") for score in _SCORES)
        row: list[Any] = [column, *(_percent(mean_interval(each)) for each in (nmi, ari, acc))]
        if column == _RAW or _RAW not in columns:
            row += [None, None]
        else:
            row += [
                _percent(paired_difference(nmi, _per_run(records, f"{_RAW}/nmi"))),
                _better_and_worse(records, column),
            ]
        rows.append(row)
    config = records[0].config
    return Table(
        "Clustering on the sphere: means over the grid",
        ["k-means on", "NMI", "ARI", "ACC", "NMI minus raw", "better/worse"],
        rows,
        [
            f"Percent; {len(records)} cells of the grid, {config['runs']} runs a cell, seed "
            f"{config['seed']}; "
            "95 % intervals over the runs; NMI with the arithmetic mean.",
            "better/worse: cells whose mean NMI differs from raw by more than 0.5 (in brackets: and by "
            "more than two "
            "standard errors, uncorrected for the number of cells).",
        ],
    )


def sphere_cell_table(records: Sequence[RunRecord], column: str, score: str = "nmi") -> Table:
    """Means of one column in every cell: a row per dimension, a column per noise level."""
    dims = sorted({record.config["dim"] for record in records})
    noises = sorted({record.config["noise"] for record in records})
    means = {
        (r.config["dim"], r.config["noise"]): 100 * float(np.mean(r.values[f"{column}/{score}"]))
        for r in records
    }
    rows = [[str(d), *(means.get((d, s)) for s in noises)] for d in dims]
    return Table(
        f"{column}: {score.upper()} by d and σ, percent", ["d", *(f"σ {s:.2f}" for s in noises)], rows
    )


def _percent(interval: Interval) -> Interval:
    return Interval(100 * interval.mean, 100 * interval.half_width, interval.n)


# ---------------------------------------------------------------------------------------------- figures


def plot_sphere(records: Sequence[RunRecord], column: str = "bpa 0.1", baseline: str = _RAW) -> Figure:
    """Draw the figure of the paper: ARI above NMI, over d and over σ, BPA dashed, raw solid."""
    pyplot = _pyplot()
    dims = sorted({record.config["dim"] for record in records})
    noises = sorted({record.config["noise"] for record in records})
    mean = {
        (r.config["dim"], r.config["noise"], c, s): float(np.mean(r.values[f"{c}/{s}"]))
        for r in records
        for c in (column, baseline)
        for s in ("ari", "nmi")
    }
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7), sharey=True, layout="constrained")
    for row, score in enumerate(("ari", "nmi")):
        for over, (across, lines, label) in enumerate(((dims, noises, "d"), (noises, dims, "σ"))):
            axis = axes[row][over]
            colours = pyplot.get_cmap("viridis")(np.linspace(0, 0.92, len(lines)))
            for line, colour in zip(lines, colours, strict=True):
                for name, style in ((baseline, "-"), (column, "--")):
                    cells = [(a, line) if over == 0 else (line, a) for a in across]
                    heights = [mean[(*cell, name, score)] for cell in cells]
                    other = f"σ = {line:.2f}" if over == 0 else f"d = {line}"
                    axis.plot(across, heights, style, color=colour, label=other if style == "-" else None)
            axis.set(xscale="log", xlabel=label, ylim=(-0.03, 1.03))
            axis.set_title(f"{score.upper()} over {label}", fontsize=10)
            axis.legend(fontsize=7, ncols=2)
        axes[row][0].set_ylabel(score.upper())
    figure.suptitle(f"k-means on the sphere: {column} dashed, {baseline} solid")
    return figure  # type: ignore[no-any-return]  # matplotlib is untyped here


def plot_sphere_data(seed: int = 0, noises: Sequence[float] | None = None) -> Figure:
    """Ten clusters on the sphere in three dimensions, under rising noise."""
    pyplot = _pyplot()
    levels = list(grid_of(10)[1] if noises is None else noises)
    n_columns = min(5, len(levels))
    n_rows = -(-len(levels) // n_columns)
    figure = pyplot.figure(figsize=(2.4 * n_columns, 2.6 * n_rows), layout="constrained")
    for number, noise in enumerate(levels, start=1):
        points = sphere_clusters(3, noise, seed=(seed, 0))
        axis = figure.add_subplot(n_rows, n_columns, number, projection="3d")
        axis.scatter(*points.features.T, c=points.labels, cmap="tab10", s=7, depthshade=False)
        axis.set(xticks=[], yticks=[], zticks=[], xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1), aspect="equal")
        axis.set_title(f"σ = {noise:.2f}", fontsize=9)
    return figure  # type: ignore[no-any-return]  # matplotlib is untyped here


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as pyplot
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] == "matplotlib":
            raise MissingExtraError("bpa.runs.clustering_studies", "app") from error
        raise
    return pyplot


# ---------------------------------------------------------------------------------------------- the study


def _run_study(_features: object, options: StudyOptions) -> StudyResult:
    size = int(options.extra.get("grid", 6))
    dims, noises = ((69, 180, 1234), (0.15, 0.22)) if options.quick else grid_of(size)
    columns = _QUICK if options.quick else tuple(COLUMNS)
    if options.reg:
        asked = tuple(f"bpa {r}" for r in options.reg)
        columns = tuple(dict.fromkeys((*(c for c in columns if not c.startswith("bpa")), *asked)))
    config = SphereConfig(dims, noises, columns, runs=options.repeats or 10, seed=options.seed)
    store = None if options.out is None else RunStore(options.out)
    records = run_sphere(config, store=store, on_progress=options.on_progress)
    shown = [c for c in columns if c.startswith("bpa")]
    tables = [sphere_table(records)]
    for column in (_RAW, *(c for c in shown if c in ("bpa 0.1", "bpa 0.5", "bpa literal") or options.reg)):
        tables.append(sphere_cell_table(records, column))
    figures: dict[str, Callable[[], Figure]] = {
        f"sphere-{column.replace(' ', '-')}": lambda c=column: plot_sphere(records, c)  # type: ignore[misc]  # a default binds the loop variable
        for column in shown
        if column in ("bpa 0.1", "bpa 0.5", "bpa literal") or options.reg
    }
    figures["sphere-data"] = lambda: plot_sphere_data(options.seed)
    return StudyResult(records, tables, figures)


STUDIES: dict[str, Study] = {
    "sphere": Study(
        "sphere",
        "Clusters on the sphere: k-means on the transformed set against k-means on the set, over d and σ.",
        False,
        _run_study,
    )
}
