"""Accuracy against the number of sweeps (the paper's table)."""

from __future__ import annotations

from dataclasses import replace

from bpa.records import FeatureSet
from bpa.runs.fields.fewshot import FewShot, fewshot_ways
from bpa.runs.studies._fewshot import HONOURS, bpa_at, free, shot_tasks
from bpa.runs.study import Asked, Grid, Study
from bpa.solvers import Sweeps

SWEEPS = tuple(Sweeps(n) for n in (1, 2, 4, 5, 8, 16))


def _grid(features: FeatureSet, asked: Asked) -> Grid:
    bpa = bpa_at(replace(asked, solver=asked.solver or SWEEPS))
    ways = fewshot_ways(("protonet",), [*free(), *bpa])
    tasks = shot_tasks(features, asked, shots=(1, 5), tasks=10_000)
    return FewShot(features, budget=asked.budget), [(task, ways) for task in tasks]


STUDY = Study(
    "fewshot-sweeps",
    "Few-shot accuracy against the number of sweeps (ProtoNet).",
    HONOURS,
    ("sweeps",),
    _grid,
)
