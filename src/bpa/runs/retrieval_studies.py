"""Studies of retrieval: how rows should be compared, and what the entropy weight does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from bpa.errors import ArgumentError, MissingExtraError
from bpa.metrics.hubs import hubness
from bpa.metrics.intervals import mean_interval, paired_difference
from bpa.metrics.retrieval import evaluate_ranking
from bpa.plans import RowComparison
from bpa.records import FeatureSet, QueryGallery, RunRecord
from bpa.report.table import Table
from bpa.runs.environment import describe_environment
from bpa.runs.retrieval import RetrievalConfig, Way, rank_way, run_retrieval
from bpa.runs.store import RunStore
from bpa.runs.study import Study, StudyOptions, StudyResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COMPARISONS", "REGS", "STUDIES", "draw_identities", "study_reg", "study_rows"]

REGS = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.25, 0.5)
COMPARISONS = (
    RowComparison("euclidean"),
    RowComparison("cosine"),
    RowComparison("euclidean", top=20),
    RowComparison("cosine", top=20),
    RowComparison("euclidean", top=50),
    RowComparison("cosine", top=50),
    RowComparison("euclidean", top=200),
    RowComparison("cosine", top=200),
    RowComparison("euclidean", neighbours=20),
    RowComparison("cosine", neighbours=20),
    RowComparison("euclidean", neighbours=100),
    RowComparison("cosine", neighbours=100),
)


def draw_identities(
    features: FeatureSet, n_identities: int | None, *, each: int | None, seed: int
) -> QueryGallery:
    """A retrieval task of random identities with at most ``each`` items, every item querying the others.

    Parameters
    ----------
    features : FeatureSet
        With labels. A set that names its queries is taken whole.
    n_identities, each : int or None
        None keeps all.
    seed : int

    Returns
    -------
    QueryGallery
    """
    if features.is_query is not None:
        return QueryGallery.from_features(features)
    if features.labels is None:
        return QueryGallery.from_features(features)  # says what is missing
    generator = np.random.default_rng(seed)
    names = np.unique(features.labels)
    if n_identities is not None and n_identities < len(names):
        names = generator.choice(names, n_identities, replace=False)
    rows = []
    for name in np.sort(names):
        own = np.flatnonzero(features.labels == name)
        rows.append(np.sort(generator.permutation(own)[:each]) if each is not None else own)
    return QueryGallery.from_features(features.select(np.concatenate(rows)))


def study_rows(features: FeatureSet | None, options: StudyOptions) -> StudyResult:
    """Every row comparison at every reg on draws of one set.

    ``options.extra`` may hold ``identities``, ``each`` (size of a draw) and ``comparisons`` (a sequence of
    `RowComparison`). Draws use the seeds ``seed .. seed + repeats − 1``.
    """
    features = _needed(features, "rows")
    regs = _numbers(options.reg) or REGS
    repeats = options.repeats or (1 if options.quick else 3)
    comparisons: Sequence[RowComparison] = options.extra.get("comparisons", COMPARISONS)
    identities, each = options.extra.get("identities"), options.extra.get("each")
    store = None if options.out is None else RunStore(options.out)
    ways = [Way("unit")] + [Way("bpa", reg, rows=rows) for reg in regs for rows in comparisons]
    config = RetrievalConfig(n_iter=options.n_iter or 5)
    records, done = [], 0
    for repeat in range(repeats):
        task = draw_identities(features, identities, each=each, seed=options.seed + repeat)
        for way in ways:
            settings = {
                "way": way.name, "reg": way.reg, "rows": None if way.rows is None else asdict(way.rows),
                "n_iter": config.n_iter, "identities": identities, "each": each, "seed": options.seed + repeat,
            }  # fmt: skip
            data = {"source": features.source, "sha256": features.sha256, "n": len(task.features)}
            record = None if store is None else store.find(settings, study="rows", data=data)
            if record is None:
                record = _scored(task, way, config, settings, data)
                if store is not None:
                    store.append(record)
            records.append(record)
            done += 1
            if options.on_progress is not None:
                options.on_progress(done, repeats * len(ways))
    return StudyResult(records, [rows_table(records)], {})


def _scored(
    task: QueryGallery, way: Way, config: RetrievalConfig, settings: dict[str, Any], data: dict[str, Any]
) -> RunRecord:
    began = time.perf_counter()
    distances, _ = rank_way(task, way, config)
    values = distances.numpy()
    cameras = task.cameras
    scores = evaluate_ranking(
        values, task.ids[task.query], task.ids[task.gallery],
        None if cameras is None else cameras[task.query], None if cameras is None else cameras[task.gallery],
        self_index=task.self_index,
    )  # fmt: skip
    return RunRecord(
        study="rows",
        config=settings,
        data=data,
        values={
            "mean_ap": [scores.mean_ap],
            "rank_1": [scores.rank(1)],
        },  # a grid of per-query values is large
        summary={**scores.summary(), "S_10": hubness(values, self_index=task.self_index).skewness},
        environment=describe_environment(),
        seconds=time.perf_counter() - began,
    )


def rows_table(records: Sequence[RunRecord]) -> Table:
    """MAP over the draws by comparison (rows) and reg (columns); the last columns say how bad it can get.

    Parameters
    ----------
    records : sequence of RunRecord
        Of one `study_rows`.

    Returns
    -------
    Table
    """
    plain = {r.config["seed"]: r for r in records if r.config["reg"] is None}
    regs = sorted({r.config["reg"] for r in records if r.config["reg"] is not None})
    names = list(dict.fromkeys(RowComparison(**r.config["rows"]).name for r in records if r.config["rows"]))
    cosine = mean_interval([100 * r.summary["mAP"] for r in plain.values()])
    rows: list[list[Any]] = [["(plain cosine)", *[cosine.mean] * len(regs), 0.0, 0.0]]
    for name in names:
        row: list[Any] = [name]
        gains = []
        for reg in regs:
            own = [
                r
                for r in records
                if r.config["reg"] == reg
                and r.config["rows"]
                and RowComparison(**r.config["rows"]).name == name
            ]
            row.append(float(np.mean([100 * r.summary["mAP"] for r in own])))
            gains.append(
                float(
                    np.mean([100 * (r.summary["mAP"] - plain[r.config["seed"]].summary["mAP"]) for r in own])
                )
            )
        rows.append([*row, max(gains), min(gains)])
    first = records[0]
    note = (
        f"mAP in percent, mean of {len(plain)} draws of n = {first.data['n']}; gains over plain cosine at the best and "
        "at the worst reg of the grid."
    )
    return Table(
        f"How rows are compared: {first.data['source']}",
        ["rows", *[f"reg {reg:g}" for reg in regs], "best gain", "worst gain"],
        rows,
        [note],
    )


def study_reg(features: FeatureSet | None, options: StudyOptions) -> StudyResult:
    """MAP and Rank-1 against reg, for the paper's row comparison and for this library's default."""
    features = _needed(features, "reg-retrieval")
    regs = _numbers(options.reg) or tuple(
        float(r) for r in np.round(np.geomspace(0.02, 1.0, 7 if options.quick else 13), 4)
    )
    task = draw_identities(
        features, options.extra.get("identities"), each=options.extra.get("each"), seed=options.seed
    )
    config = RetrievalConfig(reg=regs, rows=("paper", "retrieval"), n_iter=options.n_iter or 5)
    store = None if options.out is None else RunStore(options.out)
    records = run_retrieval(
        task,
        config,
        sha256=features.sha256,
        store=store,
        budget=options.budget,
        on_progress=options.on_progress,
    )
    plain = next(r for r in records if r.config["way"] == "unit")
    base = np.asarray(plain.values["average_precision"])
    counted = ~np.isnan(base)
    rows: list[list[Any]] = []
    for record in records:
        if record.config["reg"] is None:
            continue
        value = np.asarray(record.values["average_precision"])
        rows.append(
            [
                record.config["reg"],
                RowComparison(**record.config["rows"]).name,
                mean_interval(100 * value[counted]),
                100 * record.summary["Rank-1"],
                paired_difference(100 * value[counted], 100 * base[counted]),
                record.summary["S_10"],
            ]
        )
    table = Table(
        f"Retrieval against reg: {features.source}",
        ["reg", "rows", "mAP", "Rank-1", "mAP over cosine", "S_10"],
        sorted(rows, key=lambda row: (row[1], row[0])),
        [
            f"Plain cosine: mAP {100 * plain.summary['mAP']:.2f}, Rank-1 {100 * plain.summary['Rank-1']:.2f}; "
            f"{plain.summary['n_counted']} queries, ± is the 95 % interval over them."
        ],
    )
    return StudyResult(records, [table], {"reg-retrieval": lambda: plot_reg(records)})


def plot_reg(records: Sequence[RunRecord]) -> Figure:
    """MAP and Rank-1 against reg on a logarithmic axis; plain cosine is the horizontal line."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise MissingExtraError("the figure of the reg-retrieval study", "app") from None
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.subplots(1, 2)
    plain = next(r for r in records if r.config["way"] == "unit")
    for axis, key in zip(axes, ("mAP", "Rank-1"), strict=True):
        names = list(
            dict.fromkeys(RowComparison(**r.config["rows"]).name for r in records if r.config["rows"])
        )
        for name in names:
            own = sorted(
                (r.config["reg"], 100 * r.summary[key])
                for r in records
                if r.config["rows"] and RowComparison(**r.config["rows"]).name == name
            )
            axis.plot(
                [reg for reg, _ in own], [value for _, value in own], marker="o", label=f"BPA, {name} rows"
            )
        axis.axhline(100 * plain.summary[key], color="0.4", linestyle="--", label="plain cosine")
        axis.set_xscale("log")
        axis.set_xlabel("reg")
        axis.set_ylabel(f"{key} (%)")
    axes[0].legend(fontsize="small")
    return figure


def _needed(features: FeatureSet | None, name: str) -> FeatureSet:
    if features is None:
        raise ArgumentError(f"The study {name!r} reads a feature set; name one.")
    return features


def _numbers(regs: Sequence[float | str]) -> tuple[float, ...]:
    if any(isinstance(reg, str) for reg in regs):
        raise ArgumentError("The retrieval studies run a grid of numbers; reg='auto' is not one of them.")
    return tuple(float(reg) for reg in regs)


STUDIES = {
    "rows": Study(
        "rows", "How rows of W should be compared in retrieval, over reg and draws.", True, study_rows
    ),
    "reg-retrieval": Study(
        "reg-retrieval", "mAP and Rank-1 against reg (the paper's ablation).", True, study_reg
    ),
}
