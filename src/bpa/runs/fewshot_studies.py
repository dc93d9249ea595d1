"""The paper's few-shot ablations on any feature file, as named studies.

Every study is a list of few-shot runs on shared tasks. ``options.repeats`` is the number of tasks;
``options.extra`` may hold ``paper=True``, the user's word that the features are those of the paper, which adds its
numbers, and ``shots``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bpa.data.episodes import class_rows
from bpa.errors import ArgumentError, MissingExtraError
from bpa.metrics.intervals import Interval
from bpa.records import FeatureSet
from bpa.report.table import Table
from bpa.runs.fewshot import CellResult, FewShotConfig, FewShotResult, run_fewshot
from bpa.runs.paper_fewshot import DIMENSION, SWEEPS
from bpa.runs.store import RunStore
from bpa.runs.study import Study, StudyOptions, StudyResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["REGS", "STUDIES", "study_baselines", "study_dimension", "study_priors", "study_reg_shots",
           "study_reg_ways", "study_scaling", "study_sweeps"]  # fmt: skip

REGS: tuple[float, ...] = tuple(sorted({*np.geomspace(0.01, 1, 13).round(4).tolist(), 0.1, 0.2}))
_Series = dict[str, tuple[list[float], list[Interval]]]


def study_sweeps(features: FeatureSet | None, options: StudyOptions) -> StudyResult:
    """Accuracy of ProtoNet with BPA against the number of sweeps."""
    sweeps = (1, 2, 4, 5, 8, 16)
    base = _base(features, options, ("protonet",), tasks=10_000)
    configs = [replace(base, n_iter=n, baselines=n == 1) for n in sweeps]
    results = _run(features, options, configs)
    reg = base.regs[0]
    paper = bool(options.extra.get("paper"))
    rows: list[tuple[Any, ...]] = []
    series: _Series = {f"{shot}-shot": ([], []) for shot in base.shots}
    for n, result in zip(sweeps, results, strict=True):
        for shot in base.shots:
            mean = result.find("protonet", "bpa", shot, reg).mean
            series[f"{shot}-shot"][0].append(n)
            series[f"{shot}-shot"][1].append(mean)
            printed = SWEEPS.get(shot, {}).get(n)
            rows.append((n, str(shot), mean, *((printed, _minus(mean, printed)) if paper else ())))
    columns = ("sweeps", "shot", "accuracy", *(("paper", "difference") if paper else ()))
    return _result(
        results,
        Table(f"Sweeps, ProtoNet + BPA, reg {reg}, {_what(base)}", columns, rows),
        {"sweeps": lambda: _plot(series, "sweeps", log=2)},
    )


def study_reg_ways(features: FeatureSet | None, options: StudyOptions) -> StudyResult:
    """Accuracy against reg for several ways, 5-shot, ProtoNet and PT-MAP."""
    base = replace(_base(features, options, ("protonet", "ptmap"), tasks=1000), shots=(5,))
    ways = [w for w in (5, 8, 12, 16) if w <= _n_classes(features)]
    configs = [replace(base, n_way=way, regs=options.reg or REGS) for way in ways]
    return _reg_result(_run(features, options, configs), [f"{w}-way" for w in ways], "ways")


def study_reg_shots(features: FeatureSet | None, options: StudyOptions) -> StudyResult:
    """Accuracy against reg for several shots, 5-way, ProtoNet and PT-MAP."""
    base = _base(features, options, ("protonet", "ptmap"), tasks=1000)
    shots = _shots(features, base, (1, 3, 5, 10))
    configs = [replace(base, shots=(shot,), regs=options.reg or REGS) for shot in shots]
    return _reg_result(_run(features, options, configs), [f"{s}-shot" for s in shots], "shots")


def study_baselines(features: FeatureSet | None, options: StudyOptions) -> StudyResult:
    """Naive alternatives to BPA against shots, PT-MAP."""
    base = _base(features, options, ("ptmap",), tasks=1000)
    names = options.transforms or (
        "bpa",
        "bpa-attn",
        "cosine",
        "softmax",
        "dual-softmax",
        "pca:5",
        "spectral:5",
    )
    config = replace(base, transforms=names, shots=_shots(features, base, (1, 3, 5, 10)))
    result = _run(features, options, [config])[0]
    series: _Series = {}
    for item in result.cells:
        xs, means = series.setdefault(item.cell.name, ([], []))
        xs.append(item.cell.n_shot)
        means.append(item.mean)
    return _result(
        [result],
        Table(
            f"Naive baselines, PT-MAP, {_what(config)}",
            ("shot", "transform", "accuracy", "gain over identity", "gain over best free"),
            [(i.cell.n_shot, i.cell.name, i.mean, i.gain, i.gain_over_best) for i in result.cells],
        ),
        {"baselines": lambda: _plot(series, "shots")},
    )


def study_dimension(features: FeatureSet | None, options: StudyOptions) -> StudyResult:
    """Is the gain a matter of width? PCA, spectral rows and attention at 5 to 80 dimensions, ProtoNet, 1-shot."""
    dims = (5, 10, 20, 40, 80)
    base = replace(_base(features, options, ("protonet",), tasks=10_000), shots=(1,))
    families = (
        "pca",
        "spectral",
        "bpa-attn:pca",
        "bpa-attn:spectral",
        "bpa-attn:pca@x",
        "bpa-attn:spectral@x",
    )
    names = ["bpa", "bpa-attn"]
    for family in families:
        head, _, tail = family.partition("@")
        names += [f"{head}:{dim}{'@' + tail if tail else ''}" for dim in dims]
    config = replace(base, transforms=tuple(names))
    result = _run(features, options, [config])[0]
    paper = bool(options.extra.get("paper"))
    n_rows, dim = 5 * (1 + config.n_query), _checked(features).dim
    rows: list[tuple[Any, ...]] = []
    series: _Series = {}
    for item in result.cells:
        family, width = _family(item, dim, n_rows)
        xs, means = series.setdefault(family, ([], []))
        xs.append(width)
        means.append(item.mean)
        printed = DIMENSION.get(family, {}).get(width)
        extra = (printed, _minus(item.mean, printed)) if paper else ()
        rows.append((family, width, item.mean, item.gain, *extra))
    notes = (
        "bpa-attn:pca is BPA_Attn of the reduced set (affinities and values); with @x, affinities of the features.",
        "Spectral rows use no eigenvalue weighting: with as many columns as rows, all rows are equidistant.",
    )
    columns = (
        "input",
        "width",
        "accuracy",
        "gain over identity",
        *(("paper", "difference") if paper else ()),
    )
    return _result(
        [result],
        Table(f"Width, ProtoNet, reg {config.regs[0]}, {_what(config)}", columns, rows, notes),
        {"dimension": lambda: _plot(series, "width", log=10)},
    )


def study_scaling(features: FeatureSet | None, options: StudyOptions) -> StudyResult:
    """Accuracy and time of PT-MAP with BPA as the number of ways grows to all classes."""
    base = _base(features, options, ("ptmap",), tasks=100)
    largest = _n_classes(features)
    ways = [w for w in (5, 10, 20, 40, 80, 160) if w < largest]
    if largest <= 160:
        ways.append(largest)
    shots = _shots(features, base, (1, 5, 10))
    configs = []
    for way in ways:
        tasks = max(2, base.n_tasks // 5) if way >= 100 else base.n_tasks
        configs.append(replace(base, n_way=way, shots=shots, n_tasks=tasks))
    results = _run(features, options, configs)
    rows: list[tuple[Any, ...]] = []
    series: _Series = {}
    seconds: _Series = {}
    for way, result in zip(ways, results, strict=True):
        for item in result.cells:
            if item.cell.transform not in ("identity", "bpa"):
                continue
            rows.append((way, str(item.cell.n_shot), item.cell.name, item.mean, item.gain,
                         item.seconds / len(item.accuracy)))  # fmt: skip
            label = f"{item.cell.name}, {item.cell.n_shot}-shot"
            for where, value in (
                (series, item.mean),
                (seconds, Interval(item.seconds / len(item.accuracy), 0.0, 1)),
            ):
                xs, means = where.setdefault(label, ([], []))
                xs.append(way)
                means.append(value)
    return _result(
        results,
        Table(
            f"Ways, PT-MAP, {base.n_query} queries a class",
            ("ways", "shot", "transform", "accuracy", "gain over identity", "seconds a task"),
            rows,
            ("The rows of bpa include the transform; those of identity do not.",),
        ),
        {
            "scaling-accuracy": lambda: _plot(series, "ways", log=10),
            "scaling-seconds": lambda: _plot(seconds, "ways", log=10, y="seconds a task", log_y=True),
        },
    )


def study_priors(features: FeatureSet | None, options: StudyOptions) -> StudyResult:
    """What unbalanced queries do to each class prior of PT-MAP."""
    base = replace(_base(features, options, ("ptmap",), tasks=2000), baselines=False)
    names = options.transforms or ("identity", "bpa")
    priors: list[tuple[str, dict[str, Any]]] = [
        ("uniform", {}),
        ("uniform, relaxed 1", {"relaxation": 1.0}),
        ("uniform, relaxed 0.1", {"relaxation": 0.1}),
        ("uniform, relaxed 0.02", {"relaxation": 0.02}),
        ("none (soft assignment)", {"relaxation": 0.0}),
        ("estimate", {"prior": "estimate"}),
        ("estimate, relaxed 0.1", {"prior": "estimate", "relaxation": 0.1}),
        ("oracle", {"prior": "oracle"}),
    ]
    configs = [
        replace(base, transforms=names, protocol=protocol, **settings)
        for protocol in ("balanced", "dirichlet")
        for _, settings in priors
    ]
    results = _run(features, options, configs)
    rows: list[tuple[Any, ...]] = []
    half = len(priors)
    for shot in base.shots:
        for i, (says, _) in enumerate(priors):
            for item in results[i].cells:
                if item.cell.n_shot == shot:
                    other = results[half + i].find("ptmap", item.cell.transform, shot, item.cell.reg)
                    rows.append((str(shot), item.cell.name, says, item.mean, other.mean))
    return _result(
        results,
        Table(
            f"Class priors of PT-MAP, {_what(base)}",
            ("shot", "transform", "prior", "balanced queries", "Dirichlet(2) queries"),
            rows,
            ("oracle is given the true counts, which nobody has.",),
        ),
        {},
    )


STUDIES: dict[str, Study] = {
    name: Study(name, says, True, run)
    for name, says, run in (
        ("fewshot-sweeps", "Few-shot accuracy against the number of sweeps (ProtoNet).", study_sweeps),
        ("fewshot-reg-ways", "Few-shot accuracy against reg, for several ways.", study_reg_ways),
        ("fewshot-reg-shots", "Few-shot accuracy against reg, for several shots.", study_reg_shots),
        ("fewshot-baselines", "Naive alternatives to BPA against shots (PT-MAP).", study_baselines),
        (
            "fewshot-dimension",
            "PCA, spectral rows and attention at 5 to 80 dimensions (ProtoNet).",
            study_dimension,
        ),
        ("fewshot-scaling", "Accuracy and time as ways grow to all classes (PT-MAP).", study_scaling),
        ("fewshot-priors", "What unbalanced queries do to each class prior of PT-MAP.", study_priors),
    )
}


# ---------------------------------------------------------------------- parts


def _checked(features: FeatureSet | None) -> FeatureSet:
    if features is None or features.labels is None:
        raise ArgumentError("Few-shot studies need a feature file with labels. Name them by --labels.")
    return features


def _n_classes(features: FeatureSet | None) -> int:
    return len(class_rows(_checked(features))[0])


def _smallest(features: FeatureSet | None) -> int:
    return min(len(rows) for rows in class_rows(_checked(features))[1])


def _base(
    features: FeatureSet | None, options: StudyOptions, hosts: tuple[str, ...], *, tasks: int
) -> FewShotConfig:
    """What all studies share; the paper's 15 queries, or as many as the smallest class has room for."""
    room = _smallest(features)
    n_query = min(15, max(1, room - 5))
    return FewShotConfig(
        hosts=hosts,
        transforms=("bpa",),
        regs=options.reg[:1] or (0.1,),
        n_iter=options.n_iter,
        shots=tuple(s for s in options.extra.get("shots", (1, 5)) if s + n_query <= room) or (1,),
        n_query=n_query,
        n_tasks=options.repeats or (60 if options.quick else tasks),
        seed=options.seed,
        device=options.device,
        dtype="float64" if options.dtype == "float64" else "float32",
    )


def _shots(features: FeatureSet | None, base: FewShotConfig, wanted: Sequence[int]) -> tuple[int, ...]:
    room = _smallest(features)
    return tuple(shot for shot in wanted if shot + base.n_query <= room) or (1,)


def _run(
    features: FeatureSet | None, options: StudyOptions, configs: Sequence[FewShotConfig]
) -> list[FewShotResult]:
    given = _checked(features)
    store = None if options.out is None else RunStore(options.out)
    out = []
    for index, config in enumerate(configs):

        def tick(done: int, total: int, index: int = index) -> None:
            if options.on_progress is not None:
                options.on_progress(index * 1000 + int(1000 * done / total), 1000 * len(configs))

        out.append(run_fewshot(given, config, store=store, budget=options.budget, on_progress=tick))
    return out


def _result(
    results: Sequence[FewShotResult], table: Table, figures: Mapping[str, Callable[[], Figure]]
) -> StudyResult:
    records = {id(record): record for result in results for record in result.records}
    return StudyResult(tuple(records.values()), (table,), dict(figures))


def _reg_result(results: Sequence[FewShotResult], labels: Sequence[str], name: str) -> StudyResult:
    rows: list[tuple[Any, ...]] = []
    curves: dict[str, _Series] = {}
    for label, result in zip(labels, results, strict=True):
        for item in result.cells:
            if item.cell.transform == "bpa":
                rows.append((item.cell.host, label, item.cell.reg, item.mean, item.gain, item.gain_over_best))
                if isinstance(item.cell.reg, float):
                    xs, means = curves.setdefault(item.cell.host, {}).setdefault(label, ([], []))
                    xs.append(item.cell.reg)
                    means.append(item.mean)

    def figure(host: str) -> Callable[[], Figure]:
        return lambda: _plot(curves[host], "reg", log=10, title=host)

    return _result(
        results,
        Table(
            f"reg against {name}, {_what(results[0].config)}",
            ("host", name, "reg", "accuracy", "gain over identity", "gain over best free"),
            rows,
        ),
        {f"reg-{name}-{host}": figure(host) for host in curves},
    )


def _family(item: CellResult, dim: int, n_rows: int) -> tuple[str, int]:
    """Name of the input without its width, and the width."""
    name, _, of = item.cell.transform.partition("@")
    head, _, tail = name.rpartition(":")
    if tail.isdigit():
        return head + ("@" + of if of else ""), int(tail)
    return name, n_rows if name == "bpa" else dim


def _minus(mean: Interval, printed: float | None) -> float | None:
    return None if printed is None else mean.mean - printed


def _what(config: FewShotConfig) -> str:
    return (
        f"{config.n_way}-way, {config.n_query} queries a class, {config.n_tasks:,} tasks, seed {config.seed}"
    )


def _plot(
    series: _Series,
    x: str,
    *,
    log: int | None = None,
    title: str = "",
    y: str = "accuracy (%)",
    log_y: bool = False,
) -> Figure:
    """Lines with their 95 % intervals."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] == "matplotlib":
            raise MissingExtraError("A figure", "app") from None
        raise
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for label, (xs, means) in series.items():
        half = [0.0 if math.isinf(m.half_width) else m.half_width for m in means]
        axes.errorbar(
            xs, [m.mean for m in means], yerr=half, marker="o", markersize=3, capsize=2, label=label
        )
    if log is not None:
        axes.set_xscale("log", base=log)
    if log_y:
        axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if title:
        axes.set_title(title)
    axes.legend(fontsize=7)
    return figure
