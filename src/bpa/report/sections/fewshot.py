"""Few-shot accuracy: rows of one task list are paired task by task, each host with its own baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bpa.metrics.intervals import Interval
from bpa.records import RunRecord
from bpa.report.comparison import Kind, Row, Score, compared
from bpa.report.sections._curves import axis_of, lines
from bpa.report.sections._section import Made, section

__all__ = ["KIND", "fewshot"]

KIND = Kind(
    title="Few-shot",
    lead="A few labelled items a class, the rest to be named. Every row saw the same tasks.",
    scores=(Score("accuracy", "accuracy, %"),),
    per="tasks",
    always=("n_way", "n_shot"),
)


def fewshot(study: str, records: Sequence[RunRecord], axes: Sequence[str] | None) -> Made:
    """Return the section; where the number of classes grows, the time a task takes is drawn as well."""
    made, said = section(study, records, axes, KIND)
    rows = [(group, row) for group in compared(records, KIND) for row in group.rows]
    if axes and axes[0] == "n_way" and axis_of(rows, ("n_way",)):
        time = lines(rows, "n_way", "seconds a task", _seconds, references=False)
        made = replace(made, figures=[*made.figures, *time])
    return made, said


def _seconds(row: Row) -> Interval:
    """Wall time of one task; BPA's includes the transform."""
    return Interval(row.record.seconds / max(1, len(row.record.values["accuracy"])), 0.0, 1)
