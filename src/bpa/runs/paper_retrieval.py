"""The numbers of the paper's re-identification table, shown beside ours when the data is the paper's."""

from __future__ import annotations

from collections.abc import Mapping

PAPER_TABLE: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "cuhk03-detected": {
        "baseline": (72.9, 75.7),
        "bpa": (77.9, 80.4),
        "k-reciprocal": (87.1, 87.1),
        "bpa + k-reciprocal": (87.9, 88.0),
    },
    "cuhk03-labeled": {
        "baseline": (75.6, 77.7),
        "bpa": (80.4, 82.6),
        "k-reciprocal": (89.1, 89.0),
        "bpa + k-reciprocal": (89.5, 89.8),
    },
    "market1501": {
        "baseline": (85.7, 94.3),
        "bpa": (88.1, 94.4),
        "k-reciprocal": (94.0, 95.3),
        "bpa + k-reciprocal": (94.0, 95.0),
    },
}
"""mAP and Rank-1 in percent, by set and row: TDB, TDB-BPA, TDB with re-ranking, and both."""

PAPER_REG = 0.25
"""The entropy weight of the paper for TopDBNet features; on other features it can hurt."""


def paper_row(dataset: str | None, row: str) -> tuple[float, float] | None:
    """The paper's (mAP, Rank-1) of a row, where the set is one of the paper's."""
    return None if dataset is None else PAPER_TABLE.get(dataset, {}).get(row)
