"""Naive alternatives to BPA against the number of labelled rows."""

from __future__ import annotations

from bpa.records import FeatureSet
from bpa.runs.fields.fewshot import FewShot, fewshot_ways
from bpa.runs.studies._fewshot import HONOURS, shot_tasks
from bpa.runs.study import Asked, Grid, Study
from bpa.runs.way import refuse_unheard, transforms_asked

NAIVE = ("bpa", "bpa-attn", "cosine", "softmax", "dual-softmax", "pca", "spectral")


def _grid(features: FeatureSet, asked: Asked) -> Grid:
    refuse_unheard(asked.transform or NAIVE, reg=asked.reg, solver=asked.solver)
    transforms = transforms_asked(asked.transform or NAIVE, reg=asked.reg or (0.1,), solver=asked.solver)
    ways = fewshot_ways(("ptmap",), transforms)
    tasks = shot_tasks(features, asked, shots=(1, 3, 5, 10), tasks=1000)
    return FewShot(features, budget=asked.budget), [(task, ways) for task in tasks]


STUDY = Study(
    "fewshot-baselines",
    "Naive alternatives to BPA against shots (PT-MAP).",
    ("transform", *HONOURS),
    ("n_shot",),
    _grid,
)
