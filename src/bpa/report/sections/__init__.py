"""Records to a page: one section a study, made by the builder of that study, of its field, or by the general one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bpa.records import RunPlan, RunRecord
from bpa.report.comparison import Kind, Score
from bpa.report.page import Page
from bpa.report.sections._facts import facts, partial, runtime
from bpa.report.sections._section import Made, section
from bpa.report.sections.answers import answers
from bpa.report.sections.clustering import clustering
from bpa.report.sections.doctor import doctor
from bpa.report.sections.fewshot import fewshot
from bpa.report.sections.inside import inside
from bpa.report.sections.retrieval import retrieval
from bpa.report.sections.rows import rows
from bpa.report.sections.sphere import sphere
from bpa.report.table import Table

__all__ = ["SECTIONS", "build_page", "tables_of"]

SECTIONS: Mapping[str, Callable[[str, Sequence[RunRecord], Sequence[str] | None], Made]] = {
    "retrieval-rows": rows,
    "fewshot": fewshot,
    "clustering": clustering,
    "retrieval": retrieval,
    "sphere": sphere,
    "inside": inside,
    "answers": answers,
    "doctor": doctor,
}
"""A study, or the field of its tasks → (study, records, axes) → section and findings."""


def build_page(
    records: Sequence[RunRecord], plans: Sequence[RunPlan] = (), *, title: str = "Run report", lead: str = ""
) -> Page:
    """Arrange records on one page, and say of which studies not all rows are there.

    Parameters
    ----------
    records : sequence of RunRecord
        What a run store holds.
    plans : sequence of RunPlan
        What its runs were asked for.
    title, lead : str
        Heading, and the sentence below it.

    Returns
    -------
    Page
    """
    by_study = _by_study(records)
    axes = {plan.study: plan.axes for plan in plans}
    missing = partial(records, plans)
    sections, findings = [], []
    for study, group in by_study.items():
        made, said = _made(study, group, axes.get(study))
        if study in missing:
            made = replace(made, lead=f"{missing[study]} {made.lead}")
        sections.append(made)
        findings += said
    for study in missing:
        if study not in by_study:
            findings.append(("same", f"{study}: {missing[study]}"))
    if by_study:
        sections.append(runtime(by_study))
    parts = [f"{study}: {sentence}" for study, sentence in missing.items() if study in by_study]
    return Page(title, " ".join(filter(None, [lead, *parts])), findings, sections, facts(by_study))


def tables_of(records: Sequence[RunRecord]) -> list[Table]:
    """Return the tables of the page, for a terminal."""
    return [
        table for study, group in _by_study(records).items() for table in _made(study, group, None)[0].tables
    ]


def _made(study: str, group: Sequence[RunRecord], axes: Sequence[str] | None) -> Made:
    builder = SECTIONS.get(study) or SECTIONS.get(str(group[-1].task.get("field")), _general)
    made, said = builder(study, group, axes)
    key = "".join(c if c.isalnum() else "-" for c in study.lower())
    return replace(made, key=key), said


def _general(study: str, records: Sequence[RunRecord], axes: Sequence[str] | None) -> Made:
    """Compare the values of a field that has no builder; without ways, show what the summaries hold."""
    if all(record.way for record in records):
        keys = dict.fromkeys(key for record in records for key in record.values)
        return section(
            study, records, axes, Kind(title=study, scores=tuple(Score(k, k, 1.0) for k in keys), unit="")
        )
    varied = [k for k in records[0].task if len({repr(r.task.get(k)) for r in records}) > 1]
    scalar = list(
        dict.fromkeys(k for r in records for k, v in r.summary.items() if isinstance(v, int | float | str))
    )
    cells: list[list[Any]] = [
        [*(str(r.task.get(k)) for k in varied), *(r.summary.get(k) for k in scalar)] for r in records
    ]
    made, said = section(study, (), axes, Kind(title=study))
    return replace(made, tables=[Table(study, [*varied, *scalar], cells)] if varied or scalar else []), said


def _by_study(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Return the newest record of every row, by study."""
    out: dict[str, list[RunRecord]] = {}
    for record in {record.key: record for record in records}.values():
        out.setdefault(record.study, []).append(record)
    return out
