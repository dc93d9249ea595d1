"""Accuracy against reg, 5-shot, for several numbers of classes."""

from __future__ import annotations

from bpa.records import FeatureSet
from bpa.runs.fields.fewshot import FewShot, fewshot_ways
from bpa.runs.studies._fewshot import HONOURS, REGS, bpa_at, free, n_classes, shot_tasks
from bpa.runs.study import Asked, Grid, Study


def _grid(features: FeatureSet, asked: Asked) -> Grid:
    ways = fewshot_ways(("protonet", "ptmap"), [*free(), *bpa_at(asked, REGS[::4] if asked.quick else REGS)])
    counts = [n for n in (5, 8, 12, 16) if n <= n_classes(features)]
    tasks = [t for n in counts for t in shot_tasks(features, asked, shots=(5,), tasks=1000, n_way=n)]
    return FewShot(features, budget=asked.budget), [(task, ways) for task in tasks]


STUDY = Study(
    "fewshot-reg-ways", "Few-shot accuracy against reg, for several ways.", HONOURS, ("reg", "n_way"), _grid
)
