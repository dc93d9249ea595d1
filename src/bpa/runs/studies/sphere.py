"""Clusters on the sphere: k-means on the transformed set against k-means on the set, over d and σ."""

from __future__ import annotations

import numpy as np

from bpa.runs.fields.sphere import Sphere, SphereTask
from bpa.runs.study import Asked, Grid, Study
from bpa.runs.way import Way
from bpa.solvers import Converged
from bpa.transforms.names import NamedTransform as Named

RAW = Way("k-means", Named("identity"))
LITERAL = 10.0
"""exp(−0.1 C), as the paper's text has it."""


def _k_means(*transforms: Named) -> list[Way]:
    return [Way("k-means", transform) for transform in transforms]


WAYS: tuple[Way, ...] = (
    RAW,
    *_k_means(Named("unit"), Named("cosine"), Named("softmax"), Named("softmax", self_included=True)),
    Way("spectral", Named("identity"), {"reg": 0.1}),
    Way("spectral-cosine", Named("identity")),
    *_k_means(
        *(Named("bpa", reg=reg) for reg in (0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, "auto", LITERAL))
    ),
    *_k_means(*(Named("bpa", reg=reg, unscaled=True) for reg in (0.1, 0.25, 0.5, 1.0, LITERAL))),
    *_k_means(Named("bpa", unscaled=True, diagonal=0.0)),
    *_k_means(*(Named("bpa", reg=reg, solver=Converged()) for reg in (0.1, 0.5))),
    *_k_means(Named("bpa-attn")),
    Way("k-means", Named("bpa"), {"before_pca": True}),
    *_k_means(Named("bpa", cost="relative-euclidean")),
    *(Way("spectral-plan", Named("bpa", reg=reg, unscaled=True, diagonal=0.0)) for reg in (0.1, 0.5)),
)
"""What k-means is given: the coordinates, what everybody has, BPA in every reading of the text, and spectral rows."""

QUICK: tuple[Way, ...] = (
    RAW,
    *_k_means(
        Named("cosine"),
        *(Named("bpa", reg=reg) for reg in (0.1, 0.5, "auto")),
        Named("bpa", reg=0.5, unscaled=True),
    ),
)


def grid_of(size: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the logarithmic grid of the paper: d from 10 to 1234 and σ from 0.1 to 0.75, ``size`` of each."""
    dims = tuple(int(d) for d in np.round(np.geomspace(10, 1234, size)))
    return dims, tuple(round(float(s), 4) for s in np.geomspace(0.1, 0.75, size))


def _grid(_features: None, asked: Asked) -> Grid:
    dims, noises = (
        ((69, 180, 1234), (0.15, 0.22)) if asked.quick and asked.grid is None else grid_of(asked.grid or 6)
    )
    ways = QUICK if asked.quick else WAYS
    if asked.reg or asked.solver:
        bpa = [
            Named("bpa", reg=reg, solver=solver)
            for reg in asked.reg or (0.1, 0.5)
            for solver in asked.solver or (None,)
        ]
        ways = (*(way for way in ways if not way.transform.name.startswith("bpa")), *_k_means(*bpa))
    cells = [(d, s) for d in dims for s in noises]
    tasks = [SphereTask(d, s, runs=asked.repeats or 10, seed=asked.seed or 0) for d, s in cells]
    return Sphere(), [(task, ways) for task in tasks]


STUDY = Study(
    "sphere",
    "Clusters on the sphere: k-means on the transformed set against k-means on the set, over d and σ.",
    ("reg", "solver", "repeats", "seed", "grid", "quick"),
    ("dim", "noise"),
    _grid,
    needs_features=False,
)
