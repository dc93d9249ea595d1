"""mAP and Rank-1 against reg (the paper's ablation), for the paper's comparison of rows and for this library's."""

from __future__ import annotations

import numpy as np

from bpa.records import FeatureSet
from bpa.runs.fields.retrieval import PRESETS, Retrieval, retrieval_ways
from bpa.runs.studies._retrieval import HONOURS, draws
from bpa.runs.study import Asked, Grid, Study


def _grid(features: FeatureSet, asked: Asked) -> Grid:
    count = 5 if asked.quick else 13
    regs = asked.reg or tuple(float(reg) for reg in np.round(np.geomspace(0.02, 1.0, count), 4))
    ways = retrieval_ways(reg=regs, solver=asked.solver, rows=(PRESETS["paper"], PRESETS["retrieval"]))
    return Retrieval(features, budget=asked.budget), [(task, ways) for task in draws(asked, repeats=1)]


STUDY = Study(
    "retrieval-reg",
    "mAP and Rank-1 against reg (the paper's ablation).",
    HONOURS,
    ("reg", "rows"),
    _grid,
)
