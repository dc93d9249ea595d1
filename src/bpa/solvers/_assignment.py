"""The limit of no entropy: an exact matching."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bpa.errors import MissingExtraError

__all__ = ["assign"]


def assign(cost: Tensor) -> Tensor:
    """Permutation matrices (..., n, n) of least total cost; a cost of inf forbids a pair. SciPy, on the CPU."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] == "scipy":
            raise MissingExtraError("bpa.exact_matching", "sklearn") from error
        raise
    n = cost.shape[-1]
    sets = cost.detach().reshape(-1, n, n).to("cpu", torch.float64).numpy()
    plans = np.zeros_like(sets)
    for one, plan in zip(sets, plans, strict=True):
        plan[linear_sum_assignment(one)] = 1.0
    return torch.from_numpy(plans).reshape(cost.shape).to(cost)
