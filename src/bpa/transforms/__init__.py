"""Rows in, rows out: the transform of this library, its alternatives, and what they all promise."""

from __future__ import annotations

from bpa.transforms.alternatives import (
    PCA,
    Attention,
    CentredUnitNorm,
    CosineRows,
    DualSoftmax,
    RowSoftmax,
    SpectralRows,
    UnitNorm,
)
from bpa.transforms.contract import Identity, SetTransform
from bpa.transforms.functional import Affinities, affinities_and_convergence

__all__ = [
    "PCA",
    "Affinities",
    "Attention",
    "CentredUnitNorm",
    "CosineRows",
    "DualSoftmax",
    "Identity",
    "RowSoftmax",
    "SetTransform",
    "SpectralRows",
    "UnitNorm",
    "affinities_and_convergence",
]
