"""Clusters as a file."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bpa.errors import ArgumentError
from bpa.runs.store import write_atomically

__all__ = ["write_clusters"]


def write_clusters(path: Path, labels: NDArray[np.int64]) -> Path:
    """Write one cluster an item, whole or not at all: ``.npy``, or ``.csv`` with item and cluster."""
    if path.suffix == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, labels, allow_pickle=False)
        return write_atomically(path, buffer.getvalue())
    if path.suffix == ".csv":
        lines = ["item,cluster", *(f"{item},{cluster}" for item, cluster in enumerate(labels))]
        return write_atomically(path, "\n".join(lines) + "\n")
    raise ArgumentError(f"Clusters are written as .npy or .csv. Got {path.name!r}.")
