"""How rows of W are compared in retrieval: every comparison at every reg, over the draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bpa.metrics.intervals import Interval, mean_interval, paired_difference
from bpa.records import RunRecord
from bpa.report.comparison import Row, compared
from bpa.report.figures import Point, line_chart
from bpa.report.page import Figure, Section
from bpa.report.sections._section import Finding, Made
from bpa.report.sections.retrieval import KIND
from bpa.report.table import Table
from bpa.runs.way import Way, said, told_apart

__all__ = ["rows"]

_LINES = 7
Draws = dict[int, Row]
"""The rows of one way by the seed of its draw."""


def rows(study: str, records: Sequence[RunRecord], _axes: Sequence[str] | None) -> Made:
    """Return the section: a row a comparison, a column a reg, and how good and how bad it can get."""
    tables: list[Table] = []
    figures: list[Figure] = []
    findings: list[Finding] = []
    for title, ways in _sets(records):
        free = {way.transform.name: draws for way, draws in ways.items() if "rows" not in way.settings}
        plain = free.get("unit")
        if plain is None:
            continue
        grid = {
            way: draws for way, draws in ways.items() if "rows" in way.settings and set(draws) == set(plain)
        }
        names = {way: said("rows", way.settings["rows"]).removeprefix("rows ") for way in grid}
        asked = {way.transform.reg for way in grid if way.transform.reg is not None}
        regs = sorted(asked, key=lambda reg: (reg == "auto", reg))
        tables.append(_table(title, grid, names, regs, free))
        figures += _figures(title, grid, names, plain)
        findings += _findings(title, grid, names, plain)
    lead = (
        "One ranking by plain features, and one by every comparison of rows at every reg, on the same draws."
    )
    return Section(study, study, lead, tables, figures), findings


def _sets(records: Sequence[RunRecord]) -> list[tuple[str, dict[Way, Draws]]]:
    """Return the rows of every set by way and draw."""
    found: dict[str, dict[Way, Draws]] = {}
    asked = {}
    for group in compared(records, KIND):
        for row in group.rows:
            task = {k: v for k, v in row.record.task.items() if k not in ("field", "seed")}
            rest = {"source": row.record.data["source"], "sha256": row.record.data["sha256"], **task}
            found.setdefault(str(rest), {}).setdefault(row.way, {})[int(row.record.task.get("seed", 0))] = row
            asked[str(rest)] = rest
    return list(zip(told_apart(list(asked.values()), always=("source",)), found.values(), strict=True))


def _values(draws: Draws) -> list[float]:
    """MAP of every draw, in percent."""
    score = KIND.scores[0]
    return [float(np.nanmean(draws[seed].values(score))) for seed in sorted(draws)]


def _gain(draws: Draws, plain: Draws) -> Interval:
    return paired_difference(_values(draws), _values(plain))


def _table(
    title: str, grid: dict[Way, Draws], names: dict[Way, str], regs: Sequence[Any], free: dict[str, Draws]
) -> Table:
    plain = free["unit"]
    lines: list[list[Any]] = [
        [
            name,
            *[mean_interval(_values(draws)).mean] * len(regs),
            _gain(draws, plain).mean,
            _gain(draws, plain).mean,
        ]
        for name, draws in free.items()
    ]
    for name in dict.fromkeys(names.values()):
        mine = {way.transform.reg: draws for way, draws in grid.items() if names[way] == name}
        gains = [_gain(draws, plain).mean for draws in mine.values()]
        cells = [mean_interval(_values(mine[reg])).mean if reg in mine else None for reg in regs]
        lines.append([name, *cells, max(gains), min(gains)])
    count = len(plain)
    n = next(iter(plain.values())).record.data["n"]
    return Table(
        f"How rows are compared: {title}",
        ["rows", *(said("reg", reg) for reg in regs), "best gain", "worst gain"],
        lines,
        [
            f"mAP in percent, mean of {count} {'draw' if count == 1 else 'draws'} of {n:,} items; gains over unit "
            f"features (plain cosine) at the best and at the worst reg of the grid."
        ],
    )


def _figures(title: str, grid: dict[Way, Draws], names: dict[Way, str], plain: Draws) -> list[Figure]:
    """Return lines over reg, one a comparison, a few to a chart; plain cosine is dashed."""
    series: dict[str, list[Point]] = {}
    for way, draws in grid.items():
        found = mean_interval(_values(draws))
        if isinstance(way.transform.reg, float):
            half = found.half_width if found.n > 1 else 0.0
            series.setdefault(names[way], []).append(Point(way.transform.reg, found.mean, half))
    kept = [(name, points) for name, points in series.items() if len(points) > 1]
    out = []
    for first in range(0, len(kept), _LINES):
        part = kept[first : first + _LINES]
        number = f" ({first // _LINES + 1})" if len(kept) > _LINES else ""
        name = f"mAP, % over reg, {title}{number}"
        said_ = "; ".join(f"{label}: {max(p.y for p in points):.1f} at best" for label, points in part)
        flat = [("unit", mean_interval(_values(plain)).mean)]
        markup = line_chart(name, said_, part, x_label="reg", y_label="mAP, %", reference=flat)
        out.append(Figure(name, markup, "Bars: 95 % intervals over draws. Dashed: unit features."))
    return out


def _findings(title: str, grid: dict[Way, Draws], names: dict[Way, str], plain: Draws) -> list[Finding]:
    """Say which comparison is the safest: the one whose worst reg loses least."""
    worst = {
        name: min(
            (_gain(draws, plain) for way, draws in grid.items() if names[way] == name), key=lambda g: g.mean
        )
        for name in dict.fromkeys(names.values())
    }
    if not worst:
        return []
    name, gain = max(worst.items(), key=lambda item: item[1].mean)
    kind = "better" if gain.low > 0 else "worse" if gain.high < 0 else "same"
    half = f" ± {gain.half_width:.1f}" if gain.n > 1 else ""
    sentence = f"Rows, {title}: {name} is the safest comparison, {gain.mean:+.1f}{half} mAP over plain cosine at worst."
    return [(kind, sentence)]
