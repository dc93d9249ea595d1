"""Accuracy and time as the number of ways grows to all classes."""

from __future__ import annotations

from bpa.records import FeatureSet
from bpa.runs.fields.fewshot import FewShot, fewshot_ways
from bpa.runs.studies._fewshot import HONOURS, bpa_at, free, n_classes, shot_tasks
from bpa.runs.study import Asked, Grid, Study

MANY = 100
"""From here on a task is large, and a fifth of the tasks has to do."""


def _grid(features: FeatureSet, asked: Asked) -> Grid:
    largest = n_classes(features)
    counts = sorted({n for n in (5, 10, 20, 40, 80, 160, largest) if n <= min(largest, 160)})
    tasks = [
        task
        for n in (counts[:: len(counts) - 1] if asked.quick and len(counts) > 1 else counts)
        for task in shot_tasks(features, asked, shots=(1, 5, 10), tasks=100 if n < MANY else 20, n_way=n)
    ]
    ways = fewshot_ways(("ptmap",), [*free(), *bpa_at(asked)])
    return FewShot(features, budget=asked.budget), [(task, ways) for task in tasks]


STUDY = Study(
    "fewshot-scaling",
    "Accuracy and time as ways grow to all classes (PT-MAP).",
    HONOURS,
    ("n_way", "n_shot"),
    _grid,
)
