"""Clusters on the sphere: every way over all cells of the grid of d and σ, and cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpa.metrics.intervals import Interval, mean_interval, paired_difference
from bpa.records import RunRecord
from bpa.report.comparison import Kind, Row, Score, compared
from bpa.report.figures import Point, line_chart
from bpa.report.page import Figure, Section
from bpa.report.sections._section import Finding, Made
from bpa.report.table import Table
from bpa.runs.way import Way, labels, said, told_apart

__all__ = ["KIND", "sphere"]

KIND = Kind(scores=(Score("nmi", "NMI, %"), Score("ari", "ARI, %"), Score("acc", "ACC, %")), per="runs")
_LEAD = "k-means on clusters around random points of a sphere: rows of the transform against the coordinates."
_DRAWN = 8
_NOTICED = 0.5
Cells = dict[tuple[int, float], Row]
"""The rows of one way by (d, σ)."""


def sphere(study: str, records: Sequence[RunRecord], _axes: Sequence[str] | None) -> Made:
    """Return the section: means over the grid, the cells of a few ways, and curves over d and over σ."""
    tables: list[Table] = []
    figures: list[Figure] = []
    findings: list[Finding] = []
    for title, ways in _grids(records):
        whole = sorted(set.intersection(*(set(cells) for cells in ways.values())))
        raw = next((label for label, cells in ways.items() if _is_raw(cells)), None)
        if not whole or raw is None:
            continue
        tables.append(_means(title, ways, whole, raw))
        shown = [raw, *(label for label, cells in ways.items() if _is_plain_bpa(cells))][:_DRAWN]
        tables += [_cells(title, label, ways[label], whole) for label in shown[: _DRAWN // 2]]
        for score in KIND.scores[:2]:
            figures += [_curve(title, score, {k: ways[k] for k in shown}, whole, axis) for axis in ("d", "σ")]
        findings += _findings(title, ways, whole, raw)
    return Section(study, study, _LEAD, tables, [f for f in figures if f.markup]), findings


def _grids(records: Sequence[RunRecord]) -> list[tuple[str, dict[str, Cells]]]:
    """Return the rows of every grid by label and cell; grids differ in seed, runs and so on."""
    found: dict[str, dict[Way, Cells]] = {}
    asked: dict[str, Mapping[str, Any]] = {}
    for group in compared(records, KIND):
        for row in group.rows:
            rest = {k: v for k, v in row.record.task.items() if k not in ("field", "dim", "noise")}
            cell = (int(row.record.task["dim"]), float(row.record.task["noise"]))
            found.setdefault(str(rest), {}).setdefault(row.way, {})[cell] = row
            asked[str(rest)] = rest
    titles = told_apart(list(asked.values()))
    return [
        (title, dict(zip(labels(list(ways)), ways.values(), strict=True)))
        for title, ways in zip(titles, found.values(), strict=True)
    ]


def _is_raw(cells: Cells) -> bool:
    way = next(iter(cells.values())).way
    return (way.host, way.transform.name, dict(way.settings)) == ("k-means", "identity", {})


def _is_plain_bpa(cells: Cells) -> bool:
    fields = next(iter(cells.values())).way.fields()
    return set(fields) == {"host", "transform", "reg", "sweeps"} and fields["transform"] == "bpa"


def _per_run(cells: Cells, whole: Sequence[tuple[int, float]], score: Score) -> NDArray[np.float64]:
    """Mean over some cells, for every run."""
    out: NDArray[np.float64] = np.mean([cells[cell].values(score) for cell in whole], axis=0)
    return out


def _means(title: str, ways: Mapping[str, Cells], whole: Sequence[tuple[int, float]], raw: str) -> Table:
    nmi = KIND.scores[0]
    base = _per_run(ways[raw], whole, nmi)
    rows: list[list[Any]] = []
    for label, cells in ways.items():
        scores = [mean_interval(_per_run(cells, whole, score)) for score in KIND.scores]
        gains = [None, None]
        if label != raw:
            counts = _better_and_worse(cells, ways[raw], whole)
            gains = [paired_difference(_per_run(cells, whole, nmi), base), counts]  # type: ignore[list-item]
        rows.append([label, *scores, *gains])
    task = next(iter(ways[raw].values())).record.task
    grid = f"{len(whole)} cells of the grid, {said('runs', task['runs'])} a cell, seed {task['seed']}"
    return Table(
        ", ".join(filter(None, ("Means over the grid", title))),
        ["way", *(score.title for score in KIND.scores), "NMI over raw", "better/worse"],
        rows,
        [
            f"{grid}; mean ± half width of the 95 % interval over the runs; NMI with the arithmetic mean.",
            f"better/worse: cells whose mean NMI differs from raw by more than {_NOTICED:g} points; in brackets, "
            f"also by more than two standard errors, uncorrected for the number of cells.",
        ],
    )


def _better_and_worse(cells: Cells, raw: Cells, whole: Sequence[tuple[int, float]]) -> str:
    nmi = KIND.scores[0]
    counts = np.zeros((2, 2), dtype=int)
    for cell in whole:
        gain = cells[cell].values(nmi) - raw[cell].values(nmi)
        mean = float(gain.mean())
        sure = len(gain) > 1 and abs(mean) > 2 * float(gain.std(ddof=1) / np.sqrt(len(gain)))
        if abs(mean) > _NOTICED:
            counts[:, int(mean < 0)] += (1, sure)
    return f"{counts[0, 0]}/{counts[0, 1]} ({counts[1, 0]}/{counts[1, 1]})"


def _cells(title: str, label: str, cells: Cells, whole: Sequence[tuple[int, float]]) -> Table:
    """Return the mean NMI of one way in every cell: a row per dimension, a column per noise level."""
    nmi = KIND.scores[0]
    noises = sorted({noise for _, noise in whole})
    rows = [
        [
            str(dim),
            *(
                float(np.mean(cells[dim, noise].values(nmi))) if (dim, noise) in whole else None
                for noise in noises
            ),
        ]
        for dim in sorted({dim for dim, _ in whole})
    ]
    return Table(
        ", ".join(filter(None, (f"{label}: NMI by d and σ, %", title))),
        ["d", *(f"σ {s:g}" for s in noises)],
        rows,
    )


def _curve(
    title: str, score: Score, ways: Mapping[str, Cells], whole: Sequence[tuple[int, float]], axis: str
) -> Figure:
    """Return means over the other axis; nothing where this one has a single value."""
    place: Callable[[tuple[int, float]], float] = (
        (lambda cell: cell[0]) if axis == "d" else (lambda cell: cell[1])
    )
    xs = sorted({place(cell) for cell in whole})
    other = "σ" if axis == "d" else "d"
    name = ", ".join(filter(None, (f"{score.title} over {axis}", title)))
    if len(xs) < 2:
        return Figure(name, "")
    series = []
    for label, cells in ways.items():
        means = [mean_interval(_per_run(cells, [c for c in whole if place(c) == x], score)) for x in xs]
        series.append((label, [Point(x, m.mean, _half(m)) for x, m in zip(xs, means, strict=True)]))
    text = "; ".join(f"{label}: {points[0].y:.1f} to {points[-1].y:.1f}" for label, points in series)
    return Figure(
        name,
        line_chart(name, text, series, x_label=axis, y_label=score.title),
        f"Means over {other}; bars: 95 % intervals over runs.",
    )


def _findings(
    title: str, ways: Mapping[str, Cells], whole: Sequence[tuple[int, float]], raw: str
) -> list[Finding]:
    """Say what every plain BPA gains over the coordinates, all cells together."""
    nmi = KIND.scores[0]
    out = []
    for label, cells in ways.items():
        if not _is_plain_bpa(cells):
            continue
        gain = paired_difference(_per_run(cells, whole, nmi), _per_run(ways[raw], whole, nmi))
        kind = "same" if not gain.excludes_zero else "better" if gain.mean > 0 else "worse"
        name = ", ".join(filter(None, ("Sphere", title, label)))
        half = f" ± {gain.half_width:.1f}" if gain.n > 1 else ""
        out.append(
            (kind, f"{name}: {gain.mean:+.1f}{half} NMI over the coordinates, over {len(whole)} cells.")
        )
    return out


def _half(interval: Interval) -> float:
    return interval.half_width if interval.n > 1 else 0.0
