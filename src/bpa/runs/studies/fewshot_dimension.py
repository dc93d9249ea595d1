"""Is the gain a matter of width? PCA, spectral rows and attention at 5 to 80 dimensions."""

from __future__ import annotations

from bpa.records import FeatureSet
from bpa.runs.fields.fewshot import FewShot, fewshot_ways
from bpa.runs.studies._fewshot import HONOURS, bpa_at, free, shot_tasks
from bpa.runs.study import Asked, Grid, Study
from bpa.transforms.names import PUBLISHED_REG, NamedTransform

WIDTHS = (5, 10, 20, 40, 80)


def _reduced(asked: Asked) -> list[NamedTransform]:
    """PCA and spectral rows at every width; a spectral temperature is the weight beside it, where that is a number."""
    regs = [reg for reg in asked.reg if reg != "auto"] or [PUBLISHED_REG]
    spectral = [NamedTransform("spectral", reg=reg, width=width) for reg in regs for width in WIDTHS]
    return [*(NamedTransform("pca", width=width) for width in WIDTHS), *spectral]


def _grid(features: FeatureSet, asked: Asked) -> Grid:
    reduced = _reduced(asked)
    mixed = [
        NamedTransform("bpa-attn", reg=whole.reg, solver=whole.solver, values=values, weights_of=weights_of)
        for whole in bpa_at(asked)
        for weights_of in ("values", "features")
        for values in reduced
        if values.reg is None or whole.reg in ("auto", values.reg)
    ]
    transforms = [*free(), *bpa_at(asked), *bpa_at(asked, name="bpa-attn"), *reduced, *mixed]
    tasks = shot_tasks(features, asked, shots=(1,), tasks=10_000)
    return FewShot(features, budget=asked.budget), [
        (task, fewshot_ways(("protonet",), transforms)) for task in tasks
    ]


STUDY = Study(
    "fewshot-dimension",
    "PCA, spectral rows and attention at 5 to 80 dimensions (ProtoNet).",
    HONOURS,
    ("width",),
    _grid,
)
