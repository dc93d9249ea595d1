"""Records to rows that may be compared: the same task on the same data, with labels, intervals and paired gains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpa.metrics.intervals import Interval, mean_interval, paired_difference
from bpa.records import RunRecord
from bpa.records.runs import canonical_json
from bpa.report.table import Table
from bpa.runs.way import FREE, Way, labels, said, shared, told_apart

__all__ = ["Group", "Kind", "Row", "Score", "compared", "gain", "table", "tables"]

_FEW = 4
"""Groups up to this number have a table each; more are rows of one."""


@dataclass(frozen=True)
class Score:
    """One kind of value a row has: its key in the record, how a column calls it, and what it is multiplied with."""

    key: str
    title: str
    factor: float = 100.0


@dataclass(frozen=True)
class Kind:
    """How the rows of one field are read.

    Parameters
    ----------
    title : str
        What the page calls verbs of this field.
    lead : str
        One sentence on what was asked of every row.
    scores : tuple of Score
        Columns; the first is the one gains are quoted in. Those a record does not have are left out.
    unit : str
        What a finding counts in, such as "points".
    per : str
        What the intervals are over, such as "tasks".
    always : tuple of str
        Task fields that every title says.
    plain_host : str, optional
        The host whose raw, unit and centred rows are what everybody has; None where each host is compared with its own.
    extra : mapping of str to callable
        Further columns: title → (record → cell).
    notes : callable, optional
        Further notes below a table, from its rows.
    """

    title: str = ""
    lead: str = ""
    scores: tuple[Score, ...] = ()
    unit: str = "points"
    per: str = "values"
    always: tuple[str, ...] = ()
    plain_host: str | None = None
    extra: Mapping[str, Callable[[RunRecord], Any]] = field(default_factory=dict)
    notes: Callable[[Sequence[Row]], Sequence[str]] | None = None


@dataclass(frozen=True, eq=False)
class Row:
    """One way of doing the task of its group; ``label`` is its own within the group, ``is_free`` what everybody has."""

    record: RunRecord
    way: Way
    label: str
    is_free: bool

    @property
    def fields(self) -> dict[str, Any]:
        """Everything that was asked: the task's fields, then the way's."""
        task = {key: value for key, value in self.record.task.items() if key != "field"}
        return task | self.way.fields()

    def values(self, score: Score) -> NDArray[np.float64]:
        """Every value, in the units of the column; NaN where it is not defined."""
        return score.factor * np.asarray(self.record.values[score.key], dtype=np.float64)

    def mean(self, score: Score) -> Interval | None:
        """Mean of the defined values with its 95 % interval; None where there are none."""
        if score.key not in self.record.values:
            return None
        values = self.values(score)
        defined = values[~np.isnan(values)]
        return mean_interval(defined) if len(defined) else None


@dataclass(frozen=True, eq=False)
class Group:
    """Rows of one task on the same data; ``title`` tells the group from the others of its study."""

    title: str
    rows: tuple[Row, ...]
    kind: Kind

    @property
    def score(self) -> Score | None:
        """The score gains are quoted in, where these rows have it."""
        found = (
            score for score in self.kind.scores if all(score.key in row.record.values for row in self.rows)
        )
        return next(found, None)

    def baselines(self, row: Row) -> list[Row]:
        """Raw, unit and centred features in the host of ``row`` with its settings, or in the plain host."""
        if self.kind.plain_host is not None:
            return [r for r in self.rows if r.is_free]
        own = row.way.settings
        return [
            r
            for r in self.rows
            if r.is_free
            and r.way.host == row.way.host
            and all(own.get(k) == v for k, v in r.way.settings.items())
        ]

    def raw(self, row: Row) -> Row | None:
        """Raw features, where they were run."""
        return next((r for r in self.baselines(row) if r.way.transform.name == "identity"), None)

    def best_free(self, row: Row) -> Row | None:
        """The best of what everybody has, in hindsight."""
        score = self.score
        if score is None:
            return None
        return max(self.baselines(row), key=lambda r: _height(r.mean(score)), default=None)


def compared(records: Sequence[RunRecord], kind: Kind) -> list[Group]:
    """Return the records of one study as groups that may be compared, each row of them once: the newest counts.

    Parameters
    ----------
    records : sequence of RunRecord
        With ways.
    kind : Kind
        How to read them.

    Returns
    -------
    list of Group
        In order of appearance, told apart by as few fields of task and data as do.
    """
    newest = {record.key: record for record in records}
    by_task: dict[str, list[RunRecord]] = {}
    for record in newest.values():
        by_task.setdefault(canonical_json([record.task, record.data]), []).append(record)
    asked = [{**group[0].data, **group[0].task} for group in by_task.values()]
    titles = told_apart([{k: v for k, v in a.items() if k != "field"} for a in asked], always=kind.always)
    out = []
    for title, group in zip(titles, by_task.values(), strict=True):
        ways = [Way.from_dict(record.way) for record in group]
        free = [way.transform.name in FREE and kind.plain_host in (None, way.host) for way in ways]
        rows = (Row(*each) for each in zip(group, ways, labels(ways), free, strict=True))
        out.append(Group(title, tuple(rows), kind))
    return out


def gain(row: Row, base: Row | None, score: Score) -> Interval | None:
    """Mean paired difference of a row to another over what both have; None where nothing pairs up."""
    if (
        base is None
        or base is row
        or score.key not in row.record.values
        or score.key not in base.record.values
    ):
        return None
    mine, other = row.values(score), base.values(score)
    if len(mine) != len(other):
        return None
    both = ~(np.isnan(mine) | np.isnan(other))
    return paired_difference(mine[both], other[both]) if both.any() else None


def tables(groups: Sequence[Group]) -> list[Table]:
    """Return a table a group, or where there are many, one whose rows say their group."""
    if len(groups) <= _FEW:
        return [table(group) for group in groups]
    rows = [row for group in groups for row in group.rows]
    names = [", ".join(filter(None, (group.title, row.label))) for group in groups for row in group.rows]
    homes = [group for group in groups for _ in group.rows]
    return [_table("", rows, names, homes)]


def table(group: Group) -> Table:
    """Return the rows of a group with their scores, the paired gains, and what they all have alike below."""
    return _table(group.title, group.rows, [row.label for row in group.rows], [group] * len(group.rows))


def _table(title: str, rows: Sequence[Row], names: Sequence[str], homes: Sequence[Group]) -> Table:
    kind, score = homes[0].kind, homes[0].score
    scores = [s for s in kind.scores if any(s.key in row.record.values for row in rows)]
    cells: list[list[Any]] = []
    with_gains = score is not None and any(
        group.baselines(row) for row, group in zip(rows, homes, strict=True)
    )
    for row, name, group in zip(rows, names, homes, strict=True):
        line: list[Any] = [name, *(row.mean(s) for s in scores)]
        if with_gains and score is not None:
            line.append(gain(row, group.raw(row), score))
            line.append(None if row.is_free else gain(row, group.best_free(row), score))
        cells.append([*line, *(made(row.record) for made in kind.extra.values()), row.record.seconds])
    gains = ["over raw", "over best free"] if with_gains and score is not None else []
    columns = ["way", *(s.title for s in scores), *gains, *kind.extra, "seconds"]
    return Table(
        title, columns, cells, [*_notes(rows, homes, with_gains), *(kind.notes(rows) if kind.notes else ())]
    )


def _notes(rows: Sequence[Row], homes: Sequence[Group], with_gains: bool) -> list[str]:
    """Say what the table does not: the data and the settings all rows have alike, what ± is, and the best free rows."""
    kind, score = homes[0].kind, homes[0].score
    everywhere = {k: v for k, v in rows[0].record.task.items() if k not in ("field", *kind.always)}
    common = [said(k, v) for k, v in everywhere.items() if all(r.record.task.get(k) == v for r in rows)]
    data = dict.fromkeys(
        (r.record.data.get("source") or "a feature set", r.record.data.get("n")) for r in rows
    )
    read = [name if n is None else f"{name} ({said('n', n)})" for name, n in data]
    out = [f"{', '.join([*read, *common, *shared([row.way for row in rows])])}."]
    if score is not None:
        counts = {None if (mean := row.mean(score)) is None else mean.n for row in rows}
        count = f" {counts.pop():,}" if len(counts) == 1 and None not in counts else ""
        out.append(
            f"Mean ± half width of the 95 % interval over{count} {kind.per}; gains are paired over the same."
        )
    if with_gains:
        best = dict.fromkeys(
            (group.title, found.label)
            for row, group in zip(rows, homes, strict=True)
            if len(group.baselines(row)) > 1 and (found := group.best_free(row))
        )
        several = len({title for title, _ in best}) > 1
        named = (f"{title}: {label}" if several else label for title, label in best)
        out += (
            [f"Best free, in hindsight, of raw, unit and centred features: {'; '.join(named)}."]
            if best
            else []
        )
    return out


def _height(interval: Interval | None) -> float:
    return -np.inf if interval is None else interval.mean
