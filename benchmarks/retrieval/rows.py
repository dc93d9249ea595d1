"""Which comparison of rows should be the default in retrieval: every real set, three draws, eight regs.

    python benchmarks/retrieval/rows.py [SET ...] [--graph]

Resumable; records and tables in benchmarks/results/retrieval/rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import sets

from bpa.records import RunRecord
from bpa.report.sections import tables_of
from bpa.runs import RunStore, Way, run
from bpa.runs.fields.retrieval import Retrieval, RetrievalTask
from bpa.runs.studies.retrieval_rows import COMPARISONS, rows_ways

OUT = Path(__file__).resolve().parents[1] / "results" / "retrieval" / "rows"
NAMES = ("stereo-centred", "stereo-raw", *sets.DRAWN)


def measure(name: str, ways: list[Way], seeds: range) -> list[RunRecord]:
    """Records of one set."""
    records = []
    for seed in seeds:
        size = {}
        if name.startswith("stereo"):
            features = sets.stereo(seed, centre=name.endswith("centred"))
        else:
            features = sets.stored(name)
            if features is None:
                print(f"{name}: not here, skipped")
                return []
            _, identities, each = sets.DRAWN[name.removesuffix("-centred")]
            size = {"identities": identities, "each": each}
        with RunStore(OUT / name) as store:
            field, task = Retrieval(features, every_query=False), RetrievalTask(seed=seed, **size)
            records += run("retrieval-rows", field, [(task, ways)], store=store)
    return records


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--graph", action="store_true", help="also the plans on a nearest-neighbour graph")
    parser.add_argument("--draws", type=int, default=3)
    args = parser.parse_args()
    chosen = tuple(c for c in COMPARISONS if args.graph or c.neighbours is None)
    for name in args.names:
        records = measure(name, rows_ways(chosen), range(args.draws))
        if not records:
            continue
        (table,) = tables_of(records)
        (OUT / f"{name}.md").write_text(table.markdown() + "\n")
        print(table.text(), flush=True)
