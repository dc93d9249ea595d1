"""Accuracy against reg, 5-way, for several numbers of labelled rows."""

from __future__ import annotations

from bpa.records import FeatureSet
from bpa.runs.fields.fewshot import FewShot, fewshot_ways
from bpa.runs.studies._fewshot import HONOURS, REGS, bpa_at, free, shot_tasks
from bpa.runs.study import Asked, Grid, Study


def _grid(features: FeatureSet, asked: Asked) -> Grid:
    ways = fewshot_ways(("protonet", "ptmap"), [*free(), *bpa_at(asked, REGS[::4] if asked.quick else REGS)])
    tasks = shot_tasks(features, asked, shots=(1, 3, 5, 10), tasks=1000)
    return FewShot(features, budget=asked.budget), [(task, ways) for task in tasks]


STUDY = Study(
    "fewshot-reg-shots",
    "Few-shot accuracy against reg, for several shots.",
    HONOURS,
    ("reg", "n_shot"),
    _grid,
)
