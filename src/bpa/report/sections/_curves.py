"""Charts of compared rows: lines along the field that was varied, or bars where none is a number."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bpa.metrics.intervals import Interval
from bpa.report.comparison import Group, Row, Score
from bpa.report.figures import Point, bar_chart, line_chart
from bpa.report.page import Figure
from bpa.runs.way import told_apart

__all__ = ["AXES", "axis_of", "charts"]

AXES = ("sweeps", "reg", "width", "n_way", "n_shot", "dim", "noise")
"""What may lie along a chart, first the likeliest, where a study does not say what it varied."""
_BOOKKEEPING = ("n_tasks", "n_query", "repeats", "runs", "seed")
"""Fields that may differ along an axis without making another line."""
_LINES = 8
"""Most lines of a chart: the colours there are."""
_BARS = 40
Drawn = tuple[Group, Row]
Height = Callable[[Row], Interval | None]


def charts(groups: Sequence[Group], axes: Sequence[str] | None, score: Score) -> list[Figure]:
    """Return charts of the score: lines over the first axis that is a number, else bars; none over a single point.

    Parameters
    ----------
    groups : sequence of Group
        Of one study.
    axes : sequence of str, optional
        The fields the study varied; None where nobody said.
    score : Score
        What is drawn.

    Returns
    -------
    list of Figure
    """
    rows = [(group, row) for group in groups for row in group.rows]
    axis = axis_of(rows, AXES if axes is None else axes)
    if axis is not None:
        found = lines(rows, axis, score.title, lambda row: row.mean(score))
        if found:
            return found
    return [_bars(group, score) for group in groups if len(group.rows) > 1]


def axis_of(rows: Sequence[Drawn], axes: Sequence[str]) -> str | None:
    """Return the first field with two different numbers."""
    for axis in axes:
        if len({x for _, row in rows if (x := _number(row.fields.get(axis))) is not None}) > 1:
            return axis
    return None


def lines(
    rows: Sequence[Drawn], axis: str, y: str, height: Height, *, references: bool = True
) -> list[Figure]:
    """Return a chart a host: rows that differ in nothing but the axis are a line, the best free rows are dashed."""
    out = []
    hosts = list(dict.fromkeys(row.way.host for _, row in rows))
    for host in hosts:
        mine = [(group, row) for group, row in rows if row.way.host == host]
        series = _series(mine, axis, height)
        flat = _references(mine, axis, height) if references else []
        shown = f"{y} over {axis_name(axis)}" + (f", {host}" if len(hosts) > 1 else "")
        room = _LINES - len(flat) if 0 < len(flat) <= _LINES // 2 else _LINES
        flat = flat if room < _LINES else []
        for first in range(0, len(series), room):
            part = series[first : first + room]
            number = f" ({first // room + 1})" if len(series) > room else ""
            out.append(_chart(shown + number, part, flat, axis, y))
    return out


def _chart(
    title: str,
    series: Sequence[tuple[str, list[Point]]],
    flat: Sequence[tuple[str, float]],
    axis: str,
    y: str,
) -> Figure:
    xs = [p.x for _, line in series for p in line]
    log = min(xs) > 0 and max(xs) >= 8 * min(xs)
    said = "; ".join(
        f"{name}: {line[0].y:.1f} at {line[0].x:g}, {line[-1].y:.1f} at {line[-1].x:g}"
        for name, line in series
    )
    markup = line_chart(title, said, series, x_label=axis_name(axis), y_label=y, reference=flat, log_x=log)
    dashed = (
        " Dashed: the best of raw, unit and centred features, and reg auto where it was run." if flat else ""
    )
    return Figure(title, markup, f"Bars: 95 % intervals.{dashed}")


def _series(rows: Sequence[Drawn], axis: str, height: Height) -> list[tuple[str, list[Point]]]:
    """Return the lines of at least two points, named by what tells them apart."""
    for ignored in (
        _BOOKKEEPING,
        (),
    ):  # a line is one line though its tasks grew fewer, unless that makes two points one
        lines: dict[str, dict[float, Point]] = {}
        fields: dict[str, Mapping[str, Any]] = {}
        clash = False
        for _, row in rows:
            x, y = _number(row.fields.get(axis)), height(row)
            if x is None or y is None:
                continue
            rest = {k: v for k, v in row.fields.items() if k != axis and k not in ignored}
            key = json.dumps([rest, row.record.data], sort_keys=True)
            clash |= x in lines.get(key, {})
            half = y.half_width if math.isfinite(y.half_width) else 0.0
            lines.setdefault(key, {})[x] = Point(x, y.mean, half)
            fields[key] = rest | {"source": row.record.data.get("source", "")}
        if not clash:
            break
    kept = [key for key, points in lines.items() if len(points) > 1]
    names = told_apart([fields[key] for key in kept], always=("transform",))
    return [
        (name, [lines[key][x] for x in sorted(lines[key])]) for name, key in zip(names, kept, strict=True)
    ]


def _references(rows: Sequence[Drawn], axis: str, height: Height) -> list[tuple[str, float]]:
    """Return the best free row of every group, where the axis is none of the task's fields, and rows at "auto"."""
    if any(axis in row.record.task for _, row in rows):
        return []
    best = {id(group): group.best_free(row) for group, row in rows}
    ruled = [row for _, row in rows if row.fields.get(axis) == "auto"]
    found = [row for row in (*best.values(), *ruled) if row is not None and height(row) is not None]
    said = [row.record.data | row.fields for row in found]
    names = told_apart(
        [{k: v for k, v in each.items() if k != "host"} for each in said], always=("transform", axis)
    )
    return [(name, y.mean) for name, row in zip(names, found, strict=True) if (y := height(row)) is not None]


def _bars(group: Group, score: Score) -> Figure:
    """Return every row of a group as a bar."""
    found = [(row.label, interval) for row in group.rows if (interval := row.mean(score)) is not None][:_BARS]
    bars = [(name, i.mean, i.half_width if math.isfinite(i.half_width) else 0.0) for name, i in found]
    title = ", ".join(filter(None, (score.title, group.title)))
    said = "; ".join(f"{name} {value:.1f}" for name, value, _ in bars)
    return Figure(title, bar_chart(title, said, bars), f"Bars: 95 % intervals over {group.kind.per}.")


def axis_name(axis: str) -> str:
    """Return a field as an axis calls it."""
    return {"n_way": "ways", "n_shot": "shots", "dim": "d", "noise": "σ"}.get(axis, axis.replace("_", " "))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
