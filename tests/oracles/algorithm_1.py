"""Algorithm 1 of the paper, written from its equations: the one oracle of W, sharing no code with the library.

`entry_by_entry` is the pseudo-code in Python's own float64; `affinities` is the same in NumPy's log domain, for sets
and weights that the first is too slow or too short of range for. A test holds them to one another.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def entry_by_entry(features: list[list[float]], reg: float, sweeps: int, stretch: bool) -> list[list[float]]:
    """W of rows by their cosines, one entry after the other."""
    n = len(features)
    unit = []
    for row in features:
        length = math.sqrt(math.fsum(value * value for value in row))
        unit.append([value / max(length, 1e-12) for value in row])
    kernel = [
        [
            0.0
            if i == j
            else math.exp(-(1.0 - math.fsum(a * b for a, b in zip(unit[i], unit[j], strict=True))) / reg)
            for j in range(n)
        ]
        for i in range(n)
    ]
    v = [1.0] * n
    u = [1.0] * n
    for _ in range(sweeps):
        u = [1.0 / math.fsum(kernel[i][j] * v[j] for j in range(n)) for i in range(n)]
        v = [1.0 / math.fsum(kernel[i][j] * u[i] for i in range(n)) for j in range(n)]
    plan = [[u[i] * kernel[i][j] * v[j] for j in range(n)] for i in range(n)]
    largest = max(max(row) for row in plan) if stretch else 1.0
    return [[1.0 if i == j else plan[i][j] / largest for j in range(n)] for i in range(n)]


def affinities(
    x: Any, reg: float, sweeps: int, *, cost: str = "cosine", stretch: bool = True, diagonal: float = 1.0
) -> Matrix:
    """W of rows (n, d) after some sweeps, or 3,000 of them for the converged plan."""
    log_kernel = -costs(x, cost) / reg
    np.fill_diagonal(log_kernel, -np.inf)
    v = np.zeros(len(log_kernel))
    for _ in range(sweeps):
        u = -np.logaddexp.reduce(log_kernel + v, axis=1)
        v = -np.logaddexp.reduce(log_kernel + u[:, None], axis=0)
    plan = np.exp(log_kernel + u[:, None] + v)
    w: Matrix = plan / plan.max() if stretch else plan
    np.fill_diagonal(w, diagonal)
    return w


def costs(x: Any, cost: str) -> Matrix:
    """Costs (n, n) of rows: one minus the cosine, the squared distance, or the distance over the largest."""
    x = np.asarray(x, dtype=np.float64)
    if cost == "cosine":
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        return np.asarray(1 - unit @ unit.T)
    squared = ((x[:, None] - x[None]) ** 2).sum(-1)
    return np.asarray(squared if cost == "sqeuclidean" else np.sqrt(squared) / np.sqrt(squared).max())
