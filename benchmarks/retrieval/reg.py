"""mAP and Rank-1 against reg, as in the paper's ablation, on the sets with cameras.

python benchmarks/retrieval/reg.py [emoji] [stereo-centred]
"""

from __future__ import annotations

import sys
from pathlib import Path

import sets

from bpa.runs.figures import save_figures
from bpa.runs.retrieval_studies import study_reg
from bpa.runs.study import StudyOptions

OUT = Path(__file__).resolve().parents[1] / "results" / "retrieval" / "reg"

if __name__ == "__main__":
    for name in sys.argv[1:] or ["emoji", "stereo-centred"]:
        if name.startswith("stereo"):
            features, extra = sets.stereo(0, centre=True), {}
        else:
            features = sets.stored(name)
            identities, each = sets.COMPARED[name]
            extra = {"identities": identities, "each": each}
        if features is None:
            print(f"{name}: not here, skipped")
            continue
        regs = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 1.0)
        result = study_reg(features, StudyOptions(reg=regs, extra=extra))
        save_figures(result, OUT / name)
        print(result.tables[0].text())
