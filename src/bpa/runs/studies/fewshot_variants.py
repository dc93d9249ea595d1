"""PT-MAP in each of its published variants, with the weights and sweeps that belong to it."""

from __future__ import annotations

from bpa.records import FeatureSet
from bpa.runs.fields.fewshot import VARIANTS, FewShot, variant_ways
from bpa.runs.studies._fewshot import HONOURS, shot_tasks
from bpa.runs.study import Asked, Grid, Study


def _grid(features: FeatureSet, asked: Asked) -> Grid:
    ways = list(dict.fromkeys(way for variant in VARIANTS for way in variant_ways(variant)))
    tasks = shot_tasks(features, asked, shots=(1, 5), tasks=1000)
    return FewShot(features, budget=asked.budget), [(task, ways) for task in tasks]


STUDY = Study(
    "fewshot-variants",
    "PT-MAP in every published variant, with the reg and sweeps that belong to it.",
    tuple(name for name in HONOURS if name not in ("reg", "solver")),
    ("centre", "renormalize"),
    _grid,
)
