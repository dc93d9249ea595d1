"""Which comparison of rows should be the default in retrieval: every real set, three draws, eight regs.

    python benchmarks/retrieval/rows.py [SET ...] [--graph]

Resumable; records and tables in benchmarks/results/retrieval/rows.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import sets

from bpa.runs.retrieval_studies import COMPARISONS, rows_table, study_rows
from bpa.runs.study import StudyOptions

OUT = Path(__file__).resolve().parents[1] / "results" / "retrieval" / "rows"
NAMES = ("stereo-centred", "stereo-raw", *sets.DRAWN)


def run(name: str, comparisons: list, seeds: range) -> list:
    """Records of one set."""
    records = []
    for seed in seeds:
        extra = {"comparisons": comparisons}
        if name.startswith("stereo"):
            features = sets.stereo(seed, centre=name.endswith("centred"))
        else:
            features = sets.stored(name)
            if features is None:
                print(f"{name}: not here, skipped")
                return []
            _, identities, each = sets.DRAWN[name.removesuffix("-centred")]
            extra |= {"identities": identities, "each": each}
        options = StudyOptions(seed=seed, repeats=1, out=OUT / name, extra=extra)
        records += study_rows(features, options).records
    return records


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--graph", action="store_true", help="also the plans on a nearest-neighbour graph")
    parser.add_argument("--draws", type=int, default=3)
    args = parser.parse_args()
    chosen = [c for c in COMPARISONS if args.graph or c.neighbours is None]
    for name in args.names:
        records = run(name, chosen, range(args.draws))
        if not records:
            continue
        table = replace(rows_table(records), title=f"How rows are compared: {name}")
        (OUT / f"{name}.md").write_text(table.markdown() + "\n")
        print(table.text(), flush=True)
