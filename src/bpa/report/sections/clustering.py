"""Clustering: rows of one task share seeds and items; k-means on raw, unit and centred rows is what everybody has."""

from __future__ import annotations

from collections.abc import Sequence

from bpa.records import RunRecord
from bpa.report.comparison import Kind, Score
from bpa.report.sections._section import Made, section

__all__ = ["KIND", "clustering"]

KIND = Kind(
    title="Clustering",
    lead="Clusters without labels; where there are labels, they only score the result.",
    scores=(Score("nmi", "NMI, %"), Score("acc", "ACC, %"), Score("ari", "ARI, %")),
    unit="NMI",
    per="repeats",
    always=("n_clusters",),
    plain_host="k-means",
    extra={"agreement, %": lambda record: record.summary.get("agreement")},
    notes=lambda _: [
        "Agreement: mean adjusted Rand index between repeats; how settled a clustering is, not how right."
    ],
)


def clustering(study: str, records: Sequence[RunRecord], axes: Sequence[str] | None) -> Made:
    """Return the section of ``bpa cluster``."""
    return section(study, records, axes, KIND)
