"""The paper's numbers beside ours: levels on the paper's own features, gains alone on any others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bpa.paper import compare
from bpa.records import RunRecord
from bpa.report.table import Table
from bpa.runs.way import Way, labels, told_apart

__all__ = ["claims_table"]

_SCORES = {"accuracy": "accuracy", "average_precision": "mAP", "rank_1": "Rank-1"}


def claims_table(records: Sequence[RunRecord], name: str, *, are_the_papers: bool) -> Table:
    """Return the rows of a run that the paper has too.

    Parameters
    ----------
    records : sequence of RunRecord
        Of one run.
    name : str
        A set of `bpa.paper.sets`.
    are_the_papers : bool
        The user's word that the features are the paper's. Without it levels are not comparable, and the table shows
        gains over raw features only.

    Returns
    -------
    Table
    """
    found = compare(records, name)
    ways = [Way.from_dict(each.record.way) for each in found]
    names = dict(zip(dict.fromkeys(ways), labels(list(dict.fromkeys(ways))), strict=True))
    tasks = told_apart([{k: v for k, v in each.record.task.items() if k != "field"} for each in found])
    several = len({each.claim.score for each in found}) > 1
    rows: list[list[Any]] = []
    for each, way, task in zip(found, ways, tasks, strict=True):
        label = ", ".join(filter(None, (task, names[way], _SCORES[each.claim.score] if several else "")))
        if are_the_papers:
            rows.append([label, each.claim.value, each.ours, each.difference, each.paper_gain, each.our_gain])
        elif each.paper_gain is not None:
            rows.append([label, each.paper_gain, each.our_gain])
    none = (
        [
            "No row of this run with the transform is one of the paper's, which have its weight and sweeps (--paper)."
        ]
        if not any(way.transform.name.startswith("bpa") for way in ways)
        else []
    )
    if are_the_papers:
        columns = ["way", "paper", "ours", "difference", "paper's gain over raw", "our gain over raw"]
        note = "By the user's word these features are the paper's. Percent; levels depend on the order of rows, too."
        return Table(f"Paper and ours, {name}", columns, rows, [note, *none])
    return Table(
        f"Same protocol, your features: gains beside the paper's on {name}",
        ["way", "paper's gain over raw", "our gain over raw"],
        rows,
        [
            "Points over raw features. Levels are not comparable: the paper's are those of its own network's features.",
            *none,
        ],
    )
