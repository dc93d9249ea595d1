"""BPA beside every baseline on every real set, with a grid of reg; one draw a set.

    python benchmarks/retrieval/compare.py [SET ...]

Resumable; tables in benchmarks/results/retrieval/compare. Baselines run with the usual parameters of their papers, not
tuned; BPA's best reg is read off its own grid, so compare rows of one reg, or the worst of them, too.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import sets

from bpa.records import QueryGallery, RunPlan, RunRecord
from bpa.records.runs import row_key
from bpa.report.sections import tables_of
from bpa.runs import run
from bpa.runs.fields.retrieval import (
    HOSTS,
    PRESETS,
    Retrieval,
    RetrievalTask,
    draw_identities,
    retrieval_ways,
)

OUT = Path(__file__).resolve().parents[1] / "results" / "retrieval" / "compare"
JOURNAL = Path(__file__).resolve().parents[2] / "out" / "retrieval-compare"  # values of every query stay here
NAMES = ("stereo-centred", "stereo-raw", *sets.COMPARED)
ASKED = {"reg": ("auto", 0.05, 0.1, 0.15, 0.25), "rows": (PRESETS["paper"], PRESETS["retrieval"])}
PLAIN = retrieval_ways([host for host in HOSTS if host != "k-reciprocal"], **ASKED)
WAYS = [
    *PLAIN,
    *(way for k in ({}, {"k1": 6, "k2": 3}) for way in retrieval_ways(("k-reciprocal",), **ASKED, **k)),
]


class Memory:
    """A store that keeps the values of every query out of the repository, rounded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, RunRecord] = {}
        if path.exists():
            self.known = {r.key: r for r in map(RunRecord.from_json, path.read_text().splitlines())}

    def plan(self, asked: RunPlan) -> None:
        """What was asked is what is in this file."""

    def find(self, *, study, task, way, data) -> RunRecord | None:
        """The record of a row, where there is one."""
        return self.known.get(row_key(study, task, way, data))

    def append(self, record: RunRecord) -> None:
        """Keep a record, its values rounded."""
        lean = replace(record, values={k: np.round(v, 5).tolist() for k, v in record.values.items()})
        self.known[record.key] = lean
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(lean.to_json() + "\n")


def task_of(name: str) -> QueryGallery | None:
    """The set's first draw."""
    if name.startswith("stereo"):
        return draw_identities(sets.stereo(0, centre=name.endswith("centred")), None, each=None, seed=0)
    features = sets.stored(name)
    if features is None:
        return None
    identities, each = sets.COMPARED[name]
    return replace(draw_identities(features, identities, each=each, seed=0), source=name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument(
        "--plain", action="store_true", help="first the rows without re-ranking; a later run goes on"
    )
    args = parser.parse_args()
    for name in args.names:
        task = task_of(name)
        if task is None:
            print(f"{name}: not here, skipped")
            continue
        store = Memory(JOURNAL / f"{name}.jsonl")
        ways = PLAIN if args.plain else WAYS
        records = run("compare", Retrieval(task), [(RetrievalTask(), ways)], store=store)
        if args.plain:
            continue
        (table,) = tables_of(records)
        table = replace(table, notes=table.notes[:4])
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / f"{name}.md").write_text(table.markdown() + "\n")
        kept = [{"way": r.way, "task": r.task, **r.summary, "seconds": r.seconds} for r in records]
        (OUT / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
        print(table.text(), flush=True)
