"""Retrieval: rows of one task are paired query by query; ranking by raw, unit and centred features is free."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bpa.records import RunRecord
from bpa.report.comparison import Kind, Row, Score
from bpa.report.sections._section import Made, section

__all__ = ["KIND", "retrieval"]

_DELETED = {
    "identity-camera": "gallery items of the query's identity and camera are deleted, other items of its camera stay",
    "camera": "every gallery item of the query's camera is deleted",
}


def _notes(rows: Sequence[Row]) -> list[str]:
    """Say how rankings were judged, and what their diagnostics said."""
    record = rows[0].record
    cameras = _DELETED[record.task["deleted"]] if record.data.get("cameras") else "no cameras"
    out = [
        f"Single query; {cameras}; average precision: {record.summary['average_precision']}; "
        f"{record.summary['n_counted']} queries counted, {record.summary['n_empty']} without a relevant item; S_10 is "
        f"hubness, the skewness of how often items are in a top ten."
    ]
    for row in rows:
        out += [f"{row.label}: {note}" for note in row.record.summary.get("notes", ())]
        if row.record.summary["n_tied"]:
            out.append(
                f"{row.label}: Rank-1 of {row.record.summary['n_tied']} queries depends on how ties are broken."
            )
    return out


def _percent(key: str) -> Callable[[RunRecord], float | None]:
    return lambda record: None if key not in record.summary else 100 * float(record.summary[key])


KIND = Kind(
    title="Retrieval",
    lead="Every query against the gallery.",
    scores=(Score("average_precision", "mAP, %"), Score("rank_1", "Rank-1, %")),
    unit="mAP",
    per="queries",
    always=("source",),
    plain_host="nearest",
    extra={
        **{f"{key}, %": _percent(key) for key in ("Rank-5", "Rank-10", "mINP")},
        "S_10": lambda record: record.summary.get("S_10"),
    },
    notes=_notes,
)


def retrieval(study: str, records: Sequence[RunRecord], axes: Sequence[str] | None) -> Made:
    """Return the section of ``bpa retrieve``."""
    return section(study, records, axes, KIND)
