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

from bpa.hosts.retrieval import RANKERS
from bpa.records import RunRecord
from bpa.runs.retrieval import RetrievalConfig, retrieval_table, run_retrieval
from bpa.runs.retrieval_studies import draw_identities

OUT = Path(__file__).resolve().parents[1] / "results" / "retrieval" / "compare"
JOURNAL = Path(__file__).resolve().parents[2] / "out" / "retrieval-compare"  # values of every query stay here
NAMES = ("stereo-centred", "stereo-raw", *sets.COMPARED)
CONFIG = RetrievalConfig(
    transforms=("centred", "bpa"),
    reg=("auto", 0.05, 0.1, 0.15, 0.25),
    rows=("paper", "retrieval"),
    protocols=("joint",),
    rerank="k-reciprocal",
    baselines=tuple(RANKERS),
)
SMALL = replace(CONFIG, transforms=("bpa",), baselines=(), protocols=("joint",), k1=6, k2=3)


class Memory:
    """A store that keeps summaries in one JSON file; per-query values stay out of the repository."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, RunRecord] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                record = RunRecord.from_json(line)
                self.known[json.dumps(record.config, sort_keys=True)] = record

    def find(self, config, *, study=None, data=None):  # noqa: ARG002 - one study a file
        """The record of a configuration, where there is one."""
        found = self.known.get(json.dumps(config, sort_keys=True))
        return found if found is not None and (data is None or found.data == data) else None

    def append(self, record: RunRecord) -> None:
        """Keep a record, its values rounded."""
        lean = replace(
            record, values={k: np.round(v, 5).tolist() for k, v in record.values.items() if k != "rank_1"}
        )
        self.known[json.dumps(record.config, sort_keys=True)] = lean
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(lean.to_json() + "\n")


def task_of(name: str):
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
        if args.plain:
            run_retrieval(
                task,
                replace(CONFIG, rerank="none", baselines=CONFIG.baselines[:4] + CONFIG.baselines[5:]),
                store=store,
            )
            continue
        records = run_retrieval(task, CONFIG, store=store)
        records += [r for r in run_retrieval(task, SMALL, store=store) if r.config["rerank"]]
        for number, record in enumerate(records):
            if record.config["rerank"] and record.config["k1"] == SMALL.k1:
                records[number] = replace(
                    record, config={**record.config, "way": record.config["way"] + " 6/3"}
                )
        table = retrieval_table(records)
        table = replace(table, notes=table.notes[:1])
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / f"{name}.md").write_text(table.markdown() + "\n")
        (OUT / f"{name}.json").write_text(
            json.dumps([{**r.config, **r.summary, "seconds": r.seconds} for r in records], indent=1) + "\n"
        )
        print(table.text(), flush=True)
