"""What unbalanced queries do to each class prior of PT-MAP."""

from __future__ import annotations

from dataclasses import replace

from bpa.records import FeatureSet
from bpa.runs.fields.fewshot import FewShot, fewshot_ways
from bpa.runs.studies._fewshot import HONOURS, shot_tasks
from bpa.runs.study import Asked, Grid, Study
from bpa.runs.way import refuse_unheard, transforms_asked

PRIORS: tuple[dict[str, object], ...] = (
    {"prior": "uniform"},
    {"prior": "uniform", "relaxation": 1.0},
    {"prior": "uniform", "relaxation": 0.1},
    {"prior": "uniform", "relaxation": 0.02},
    {"prior": "uniform", "relaxation": 0.0},
    {"prior": "estimate"},
    {"prior": "estimate", "relaxation": 0.1},
    {"prior": "oracle"},
)
"""A relaxation of 0 is a soft assignment; ``oracle`` is given the true counts, which nobody has."""


def _grid(features: FeatureSet, asked: Asked) -> Grid:
    names = asked.transform or ("identity", "bpa")
    refuse_unheard(names, reg=asked.reg, solver=asked.solver)
    transforms = transforms_asked(names, reg=asked.reg or (0.1,), solver=asked.solver, baselines=False)
    ways = [way for settings in PRIORS for way in fewshot_ways(("ptmap",), transforms, **settings)]
    balanced = [
        replace(t, protocol="balanced") for t in shot_tasks(features, asked, shots=(1, 5), tasks=2000)
    ]
    tasks = [*balanced, *(replace(task, protocol="dirichlet") for task in balanced)]
    return FewShot(features, budget=asked.budget), [(task, ways) for task in tasks]


STUDY = Study(
    "fewshot-priors",
    "What unbalanced queries do to each class prior of PT-MAP.",
    ("transform", *HONOURS),
    ("prior", "protocol"),
    _grid,
)
