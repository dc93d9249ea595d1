"""Grids of tasks and ways become records: ways, the engine, the store, kinds of tasks, studies."""

from __future__ import annotations

from bpa.runs.engine import run
from bpa.runs.store import RunStore
from bpa.runs.study import Asked, Study, run_study
from bpa.runs.way import Way, labels, transforms_asked
from bpa.transforms.names import NamedTransform

__all__ = [
    "Asked",
    "NamedTransform",
    "RunStore",
    "Study",
    "Way",
    "labels",
    "run",
    "run_study",
    "transforms_asked",
]
