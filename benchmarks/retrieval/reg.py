"""mAP and Rank-1 against reg, as in the paper's ablation, on the sets with cameras.

python benchmarks/retrieval/reg.py [emoji] [stereo-centred]
"""

from __future__ import annotations

import sys
from pathlib import Path

import sets

from bpa.report.page import render
from bpa.report.sections import build_page, tables_of
from bpa.runs import Asked, run_study
from bpa.runs.store import write_atomically
from bpa.runs.studies import all_studies

OUT = Path(__file__).resolve().parents[1] / "results" / "retrieval" / "reg"
STUDY = all_studies()["retrieval-reg"]
REGS = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 1.0)

if __name__ == "__main__":
    for name in sys.argv[1:] or ["emoji", "stereo-centred"]:
        asked = Asked(reg=REGS)
        if name.startswith("stereo"):
            features = sets.stereo(0, centre=True)
        else:
            features = sets.stored(name)
            identities, each = sets.COMPARED[name]
            asked = Asked(reg=REGS, identities=identities, each=each)
        if features is None:
            print(f"{name}: not here, skipped")
            continue
        records = run_study(STUDY, features, asked)
        tables = tables_of(records)
        write_atomically(OUT / name / "tables.md", "\n".join(table.markdown() for table in tables))
        write_atomically(
            OUT / name / "page.html", render(build_page(records, title=f"Retrieval against reg: {name}"))
        )
        print(tables[0].text())
