"""What was run: versions, data and settings, each once, and what took how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bpa.records import RunPlan, RunRecord
from bpa.report.figures import bar_chart
from bpa.report.page import Figure, Section
from bpa.report.table import Table
from bpa.runs.way import Way

__all__ = ["facts", "partial", "runtime"]


def runtime(by_study: Mapping[str, Sequence[RunRecord]]) -> Section:
    """Return what took how long; wall times are no part of the results."""
    rows = [(study, len(group), sum(record.seconds for record in group)) for study, group in by_study.items()]
    bars = [(study, seconds, 0.0) for study, _, seconds in rows]
    chart = bar_chart("Seconds by study", "; ".join(f"{n} {v:.1f} s" for n, v, _ in bars), bars, unit=" s")
    table = Table("Wall time by study", ("study", "rows", "seconds"), rows)
    lead = "Wall time on the machine named under 'What was run'."
    return Section("runtime", "Runtime", lead, (table,), (Figure("Seconds", chart),))


def facts(by_study: Mapping[str, Sequence[RunRecord]]) -> dict[str, Any]:
    """Return versions, data and settings, each once."""
    records = [record for group in by_study.values() for record in group]
    if not records:
        return {}
    out: dict[str, Any] = {"Environment": records[-1].environment, "Data": {}}
    for record in records:
        known = f"{record.data.get('source', record.study)} {str(record.data.get('sha256', ''))[:8]}".strip()
        out["Data"][known] = record.data
    for study, group in by_study.items():
        seen: dict[str, dict[str, None]] = {}
        for record in group:
            way = Way.from_dict(record.way).fields() if record.way else {}
            for key, value in (record.task | way).items():
                seen.setdefault(key, {})[str(value)] = None
        out[f"Settings: {study}"] = {key: ", ".join(values) for key, values in seen.items()}
    return out


def partial(records: Sequence[RunRecord], plans: Sequence[RunPlan]) -> dict[str, str]:
    """Say of every study of which not all rows are there, how many are; a run that a later one contains is not told."""
    have = {record.key for record in records}
    out = {}
    for number, plan in enumerate(plans):
        wanted = set(plan.rows)
        contained = any(
            later.study == plan.study and wanted <= set(later.rows) for later in plans[number + 1 :]
        )
        if not contained and not wanted <= have:
            there = len(wanted & have)
            out[plan.study] = (
                f"Partial: {there} of {len(plan.rows)} rows are there; the run was stopped, or is going on."
            )
    return out
