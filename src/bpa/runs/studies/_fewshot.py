"""What all few-shot studies share: tasks that the smallest class has room for, and what a user may change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bpa.data.episodes import class_rows
from bpa.errors import ArgumentError
from bpa.records import FeatureSet
from bpa.runs.fields.fewshot import FewShotTask
from bpa.runs.study import Asked
from bpa.transforms.names import PUBLISHED_REG, NamedTransform, Reg

HONOURS = ("reg", "solver", "shot", "repeats", "seed", "device", "dtype", "budget", "quick")
"""What every few-shot study honours, but for what is its own axis."""
REGS: tuple[float, ...] = tuple(sorted({*np.geomspace(0.01, 1, 13).round(4).tolist(), 0.1, 0.2}))
QUICK_TASKS = 60


def shot_tasks(
    features: FeatureSet, asked: Asked, *, shots: Sequence[int], tasks: int, n_way: int = 5
) -> list[FewShotTask]:
    """Return one task a shot count: the paper's 15 queries, or as many as the smallest class has room for.

    Shot counts that do not fit are left out where they are the study's own, and refused where the user named them.
    """
    room = min(len(rows) for rows in class_rows(features)[1])
    n_query = min(15, max(1, room - 5))
    fitting = tuple(shot for shot in asked.shot or shots if shot + n_query <= room)
    if asked.shot and len(fitting) < len(asked.shot):
        raise ArgumentError(
            f"{max(asked.shot)}-shot tasks with {n_query} queries a class need {max(asked.shot) + n_query} rows of "
            f"every class. The smallest has {room}."
        )
    base = FewShotTask(
        n_way=n_way,
        n_query=n_query,
        n_tasks=asked.repeats or (QUICK_TASKS if asked.quick else tasks),
        seed=asked.seed or 0,
        device=asked.device or "cpu",
        dtype=asked.dtype or "float32",
    )
    return [replace(base, n_shot=shot) for shot in fitting or (1,)]


def bpa_at(asked: Asked, regs: Sequence[Reg] = (PUBLISHED_REG,), name: str = "bpa") -> list[NamedTransform]:
    """Return BPA at every weight and with every solver the user named, or at the study's own."""
    return [
        NamedTransform(name, reg=reg, solver=solver)
        for reg in asked.reg or regs
        for solver in asked.solver or (None,)
    ]


def free() -> list[NamedTransform]:
    """Return what everybody has."""
    return [NamedTransform(name) for name in ("identity", "unit", "centred")]


def n_classes(features: FeatureSet) -> int:
    """Return the number of classes."""
    return len(class_rows(features)[0])
