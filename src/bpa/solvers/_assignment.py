"""The limit of no entropy: an exact matching."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bpa._extras import needs

__all__ = ["assign"]


def assign(cost: Tensor) -> Tensor:
    """Permutation matrices (..., n, n) of least total cost; a cost of inf forbids a pair. SciPy, on the CPU."""
    with needs("sklearn", "scipy", feature="bpa.exact_matching"):
        from scipy.optimize import linear_sum_assignment
    n = cost.shape[-1]
    sets = cost.detach().reshape(-1, n, n).to("cpu", torch.float64).numpy()
    plans = np.zeros_like(sets)
    for one, plan in zip(sets, plans, strict=True):
        plan[linear_sum_assignment(one)] = 1.0
    return torch.from_numpy(plans).reshape(cost.shape).to(cost)
