"""A section from compared rows: tables, charts, and one sentence a finding."""

from __future__ import annotations

from collections.abc import Sequence

from bpa.metrics.intervals import Interval
from bpa.records import RunRecord
from bpa.report.comparison import Group, Kind, Row, Score, compared, gain, tables
from bpa.report.page import Section
from bpa.report.sections._curves import charts

__all__ = ["Finding", "Made", "finding", "findings", "section"]

Finding = tuple[str, str]
"""A kind, "better", "worse" or "same", and a sentence."""
_DEFAULTS = (0.1, "auto")
"""The weights of the paper and of the rule: what a user gets without trying several."""
Made = tuple[Section, list[Finding]]


def section(study: str, records: Sequence[RunRecord], axes: Sequence[str] | None, kind: Kind) -> Made:
    """Return the section of a study whose rows are compared, and its findings."""
    groups = compared(records, kind)
    score = next((group.score for group in groups if group.score is not None), None)
    figures = [] if score is None else charts(groups, axes, score)
    title = kind.title if study in ("fewshot", "cluster", "retrieve") else study
    return Section(study, title, kind.lead, tables(groups), figures), findings(groups)


def findings(groups: Sequence[Group]) -> list[Finding]:
    """Say what the transform does in every group and host: its default, and the best of it, against what is free."""
    out = []
    for group in groups:
        for host in dict.fromkeys(row.way.host for row in group.rows):
            ours = [row for row in group.rows if row.way.host == host and _is_ours(row)]
            score = group.score
            if score is None or not ours:
                continue
            best = max(ours, key=lambda row: _mean(row, score))
            known = [row for reg in _DEFAULTS for row in [r for r in ours if _is_default(r, reg)][:1]]
            told = ours if len(ours) <= 2 else list(dict.fromkeys([*known, best]))
            for row in told:
                picked = len(ours) > 2 and row not in known
                said = finding(group, row, score, f", the best of {len(ours)} in hindsight" if picked else "")
                if said is not None:
                    out.append(said)
    return out


def finding(group: Group, row: Row, score: Score, remark: str = "") -> Finding | None:
    """Say what one row gains; its kind is that of the comparison with the best there is without the transform."""
    best = group.best_free(row)
    over_raw, over_best = gain(row, group.raw(row), score), gain(row, best, score)
    if over_raw is None or over_best is None or best is None:
        return None
    kind = "same" if not over_best.excludes_zero else "better" if over_best.mean > 0 else "worse"
    name = ", ".join(filter(None, (group.kind.title, group.title, row.label)))
    unit = group.kind.unit
    return kind, (
        f"{name}{remark}: {_signed(over_raw)} {unit} over raw features; {_signed(over_best)} over {best.label}, the "
        f"best without it."
    )


def _signed(interval: Interval) -> str:
    return f"{interval.mean:+.1f}" + (f" ± {interval.half_width:.1f}" if interval.n > 1 else "")


def _is_ours(row: Row) -> bool:
    return row.way.transform.name.startswith("bpa") or row.way.host.startswith("bpa")


def _is_default(row: Row, reg: object) -> bool:
    """Whether the row is what a user gets without trying several settings."""
    fields = row.fields
    return fields["transform"] == "bpa" and fields["reg"] == reg and fields.get("sweeps") == 5


def _mean(row: Row, score: Score) -> float:
    found = row.mean(score)
    return float("-inf") if found is None else found.mean
