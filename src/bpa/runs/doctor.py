"""What an installation has, and what a feature set looks like to the transform, as a record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bpa.cost import cosine_cost
from bpa.diagnostics import diagnose
from bpa.memory import estimate_affinities
from bpa.records import FeatureSet, RunRecord
from bpa.runs.engine import once
from bpa.solvers import Sweeps
from bpa.transforms.names import NamedTransform, Reg

__all__ = ["examine"]

_SAMPLE = 2000
"""Items the measures look at, at most."""
_REGS = (0.05, 0.1, 0.2, 0.5, 1.0)
_SWEEPS = (5, 20)


def examine(features: FeatureSet | None = None, regs: Sequence[Reg] = ()) -> RunRecord:
    """Measure a set: its shape, its cosines, what each reg makes of it, and what is to be expected of the transform.

    Parameters
    ----------
    features : FeatureSet, optional
        The set; without one the record holds the installation alone. Measures look at 2,000 of its items at most.
    regs : sequence of float or "auto"
        Entropy weights to try; empty for 0.05, 0.1, 0.2, 0.5 and 1.

    Returns
    -------
    RunRecord
        Of the field "doctor": ``set``, ``weights``, and ``forecasts``, for ``reg="auto"`` first and for each number.
    """
    if features is None:
        return once("doctor", {"field": "doctor"}, {}, dict)
    numbers = [float(reg) for reg in regs if reg != "auto"]
    data = {
        "source": Path(features.source).name,
        "sha256": features.sha256,
        "n": len(features),
        "dim": features.dim,
    }
    return once("doctor", {"field": "doctor", "reg": numbers}, data, lambda: _seen(features, numbers))


def _seen(features: FeatureSet, numbers: Sequence[float]) -> dict[str, Any]:
    x = features.features
    some = torch.from_numpy(x[:: max(1, -(-len(x) // _SAMPLE))]).double()
    return {
        "set": _set(features, some),
        "weights": [_weight(some, reg) for reg in numbers or _REGS],
        "forecasts": [
            _forecast(torch.from_numpy(x), "auto"),
            *(_forecast(torch.from_numpy(x), r) for r in numbers),
        ],
    }


def _set(features: FeatureSet, some: torch.Tensor) -> dict[str, Any]:
    x = features.features
    norms = np.linalg.norm(x.astype(np.float64), axis=1)
    cosines = 1 - _off_diagonal(cosine_cost(some))
    estimate = estimate_affinities(len(x), features.dim)
    w = dict(estimate.parts)["W"]
    return {
        "items": len(x),
        "dimension": features.dim,
        "classes": None if features.labels is None else len(np.unique(features.labels)),
        "zero_rows": int((norms == 0).sum()),
        "duplicates": len(x) - len(np.unique(x, axis=0)),
        "length": float(norms.mean()),
        "length_spread": float(norms.std() / max(norms.mean(), 1e-30)),
        "cosine": float(cosines.mean()) if len(cosines) else 1.0,
        "cosine_spread": float(cosines.std()) if len(cosines) > 1 else 0.0,
        "looked_at": len(some),
        "bytes_of_w": w,
        "bytes_beside": estimate.total - w,
    }


def _weight(some: torch.Tensor, reg: float) -> dict[str, Any]:
    """Over how many items a row is spread, and how far from balanced some sweeps leave it."""
    plans = {n: _plan(some, reg, n) for n in _SWEEPS}
    plan = plans[_SWEEPS[0]]
    shares = plan / plan.sum(dim=1, keepdim=True)
    entropy = -(shares * shares.clamp_min(1e-300).log()).sum(dim=1)
    return {
        "reg": reg,
        "partners": float(entropy.exp().median()),
        "strongest": float(shares.max(dim=1).values.mean()),
        "off_by": {str(n): float((each.sum(dim=1) - 1).abs().max()) for n, each in plans.items()},
    }


def _plan(x: torch.Tensor, reg: float, sweeps: int) -> torch.Tensor:
    return NamedTransform("bpa", reg=reg, solver=Sweeps(sweeps), unscaled=True, diagonal=0.0).build()(x)


def _forecast(x: torch.Tensor, reg: Reg) -> dict[str, Any]:
    found = diagnose(x, reg=reg)
    return {
        "reg": reg,
        "verdict": found.verdict,
        "chosen": float(found.choice.reg),
        "chosen_uncentred": float(found.choice.plain_reg),
        "strongest": float(found.choice.share),
        "partners": found.perplexity,
        "nearer": found.groups,
        "parts": found.second_eigenvalue,
        "hubs_before": found.hubness_before,
        "hubs_after": found.hubness_after,
        "off_by": found.marginal_error,
        "products": found.products,
        "looked_at": found.n_seen,
    }


def _off_diagonal(square: torch.Tensor) -> torch.Tensor:
    return square[~torch.eye(len(square), dtype=torch.bool)]
