"""A look inside W: a small set before and after the transform, kept as a record that the page draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bpa.cost import cosine_cost
from bpa.errors import ArgumentError
from bpa.records import FeatureSet, RunRecord
from bpa.runs.engine import once
from bpa.runs.store import RunStore
from bpa.transforms.names import PUBLISHED_REG, NamedTransform

__all__ = ["inside"]


def inside(features: FeatureSet, *, reg: float = PUBLISHED_REG, store: RunStore | None = None) -> RunRecord:
    """Return a small set before and after the transform, and the two halves of the distance between two rows.

    Parameters
    ----------
    features : FeatureSet
        Some dozen items with labels, ordered by class.
    reg : float
        Entropy weight.
    store : RunStore, optional
        Where the record is kept, and taken from.

    Returns
    -------
    RunRecord
        Of the field "inside"; what the page draws is in its summary.
    """
    task = {"field": "inside", "reg": reg, "sweeps": 5, "n": len(features)}
    data = {
        "source": Path(features.source).name,
        "sha256": features.sha256,
        "n": len(features),
        "dim": features.dim,
    }
    return once("inside", task, data, lambda: _looked_at(features, reg), store=store)


def _looked_at(features: FeatureSet, reg: float) -> dict[str, Any]:
    if features.labels is None:
        raise ArgumentError(f"A look inside W needs labels, and {features.source or 'this set'} has none.")
    x, labels = torch.from_numpy(features.features).double(), features.labels
    before = 1 - cosine_cost(x)
    after = NamedTransform("bpa", reg=reg).build()(x)
    same = labels[:, None] == labels[None, :]
    w = after.numpy()
    difference = np.abs(w[:, None, :] - w[None, :, :])  # (i, j, k): what item k says about i and j
    n = len(labels)
    i, j = np.triu_indices(n, 1)
    direct = difference[i, j, i] + difference[i, j, j]
    third = difference[i, j].sum(axis=1) - direct
    halves = {
        name: {"direct": float(direct[rows].mean()), "third": float(third[rows].mean())}
        for name, rows in (("same class", same[i, j]), ("different classes", ~same[i, j]))
    }
    other = int(np.flatnonzero(labels != labels[0])[0])
    pairs = [
        {"title": title, "pair": [0, b], "values": _rounded(difference[0, b])}
        for title, b in (("two items of one class", 1), ("two items of different classes", other))
    ]
    return {
        "reg": reg,
        "labels": labels.tolist(),
        "class_names": [features.name_of(int(c)) for c in np.unique(labels)],
        "before": _rounded(before.numpy()),
        "after": _rounded(w),
        "plane_before": _rounded(_plane(torch.nn.functional.normalize(x, dim=1))),
        "plane_after": _rounded(_plane(after)),
        "halves": halves,
        "pairs": pairs,
    }


def _plane(x: torch.Tensor) -> NDArray[np.float64]:
    """Return the first two principal components (n, 2), signs fixed so that two runs agree."""
    centred = x - x.mean(dim=0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    plane = (u[:, :2] * s[:2]).numpy()
    top = np.abs(plane).argmax(axis=0)
    return np.asarray(plane * np.sign(plane[top, [0, 1]]))


def _rounded(values: NDArray[np.float64]) -> list[Any]:
    """Return numbers as a page needs them: four digits after the point."""
    return list(np.round(values, 4).tolist())
