"""What an installation has, and what a feature set looks like to the transform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from bpa.cost import cosine_cost
from bpa.diagnostics import diagnose
from bpa.memory import estimate_affinities, format_bytes
from bpa.plans import DensePlan
from bpa.records import FeatureSet
from bpa.report.table import Table
from bpa.runs.environment import describe_environment
from bpa.solvers import PAPER_SWEEPS

_SAMPLE = 2000
"""Items the measures look at, at most."""


def installation_table() -> Table:
    """Return versions, machine and extras as a table."""
    found = describe_environment()
    packages = found.pop("packages")
    rows = [(name, ", ".join(value) if isinstance(value, list) else value) for name, value in found.items()]
    rows += sorted(packages.items())
    return Table("Installation", ("what", "found"), rows)


def examine(features: FeatureSet, regs: Sequence[float | Literal["auto"]] = ()) -> list[Table]:
    """Measure a set on at most 2,000 of its items: its shape, its cosines, and what each reg makes of it.

    Parameters
    ----------
    features : FeatureSet
        The set.
    regs : sequence of float or "auto"
        Entropy weights to try; empty for 0.05, 0.1, 0.2, 0.5 and 1.

    Returns
    -------
    list of Table
        The set; the weights; a forecast for ``reg="auto"`` with its reasons, and for each number of ``regs``.
    """
    x = features.features
    step = max(1, -(-len(x) // _SAMPLE))
    some = torch.from_numpy(x[::step]).double()
    forecasts: list[float | Literal["auto"]] = ["auto", *(float(r) for r in regs if r != "auto")]
    return [
        _set_table(features, some),
        _reg_table(some, regs),
        *(_verdict_table(torch.from_numpy(x), reg) for reg in forecasts),
    ]


def _set_table(features: FeatureSet, some: torch.Tensor) -> Table:
    x = features.features
    norms = np.linalg.norm(x.astype(np.float64), axis=1)
    cost = _off_diagonal(cosine_cost(some))
    rows: list[tuple[str, Any]] = [
        ("items", f"{len(x):,}"),
        ("dimension", f"{features.dim:,}"),
        ("classes", "no labels" if features.labels is None else f"{len(np.unique(features.labels)):,}"),
        ("zero rows", int((norms == 0).sum())),
        ("duplicated rows", len(x) - len(np.unique(x, axis=0))),
        ("row length, mean", float(norms.mean())),
        ("row length, std / mean", float(norms.std() / max(norms.mean(), 1e-30))),
        ("cosine, mean", float(1 - cost.mean())),
        ("cosine, std", float(cost.std())),
        ("memory of W, float32", format_bytes(estimate_affinities(len(x), features.dim).total)),
    ]
    notes = [] if len(some) == len(x) else [f"Cosines on {len(some):,} evenly spaced items."]
    return Table("The set", ("what", "found"), rows, notes)


def _reg_table(some: torch.Tensor, regs: Sequence[float | Literal["auto"]]) -> Table:
    """Return, for each weight, over how many items a row spreads, and how symmetric five sweeps leave the plan."""
    rows = []
    for reg in [r for r in regs if r != "auto"] or (0.05, 0.1, 0.2, 0.5, 1.0):
        fitted = DensePlan.fit(some, reg=float(reg), solver=PAPER_SWEEPS, scale=None, diagonal=0.0)
        plan = fitted.affinities()
        plan = plan / plan.sum(dim=1, keepdim=True)
        entropy = -(plan * plan.clamp_min(1e-300).log()).sum(dim=1)
        rows.append(
            (
                f"{float(reg):g}",
                float(entropy.exp().median()),
                float(plan.max(dim=1).values.mean()),
                float(fitted.convergence.marginal_error),
            )
        )
    notes = [
        "Spread: median number of items a row shares itself among, exp(entropy). Strongest: mean share of a row that "
        "its strongest partner holds. Error: of the row sums after five sweeps.",
    ]
    return Table("What reg does here", ("reg", "spread", "strongest", "error"), rows, notes)


def _verdict_table(x: torch.Tensor, reg: float | Literal["auto"]) -> Table:
    found = diagnose(x, reg=reg)
    shown = reg if reg == "auto" else f"{reg:g}"
    return Table(f"Forecast for reg={shown}", ("what", "found"), found.rows(), found.reasons)


def _off_diagonal(square: torch.Tensor) -> torch.Tensor:
    return square[~torch.eye(len(square), dtype=torch.bool)]
