"""Products with K until the plan is balanced: the alternating sweeps against the symmetric solver.

Every half-sweep is one product with K, so a full sweep counts two. A cell shows the products that bring the largest
relative row-sum error to 1e-3 and to 1e-6 in float64 ("–": not within 500). Run from the repository root:

    python benchmarks/convergence/run.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import torch
from sklearn.datasets import load_digits

from bpa import ConvergenceWarning
from bpa.cost import cosine_cost
from bpa.report.table import Table
from bpa.runs.environment import describe_environment
from bpa.solvers._kernel import ExponentialKernel
from bpa.solvers._sinkhorn import symmetrise

RESULTS = Path(__file__).resolve().parents[1] / "results" / "convergence"
REGS = (0.02, 0.05, 0.1, 0.25, 1.0)
GOALS = (1e-3, 1e-6)
MOST = 500


def make_set(kind: str, n: int) -> torch.Tensor:
    """Feature sets of different difficulty, (n, 64), float64."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if kind.startswith("digits"):
        x = torch.from_numpy(load_digits().data).repeat(-(-n // 1797), 1)[:n] + 0.01 * normal(n, 64)
        return x - x.mean(0) if kind == "digits centred" else x
    if kind == "outliers":
        return torch.cat([normal(1, 64) + 0.3 * normal(3 * n // 4, 64), 3 * normal(n - 3 * n // 4, 64)])
    if kind == "Zipf classes":
        classes = n // 10
        frequency = 1 / torch.arange(1, classes + 1, dtype=torch.float64)
        label = torch.multinomial(frequency, n, replacement=True, generator=generator)
    else:
        classes = {"5 classes": 5, "pairs": n // 2, "0.3 n classes": 3 * n // 10}[kind]
        label = torch.arange(n) % classes
    return normal(classes, 64)[label] + 0.5 * normal(n, 64)


def products(kernel: torch.Tensor) -> dict[str, list[int | None]]:
    """Products to each goal, for both solvers."""
    n = len(kernel)
    operator = ExponentialKernel(kernel, 1.0, 1.0, symmetric=True)
    ones = torch.zeros(n, dtype=torch.float64)
    found: dict[str, list[int | None]] = {"alternating": [], "symmetric": []}
    u, v, spent, pending = None, operator.start(), 0, list(GOALS)
    while pending and spent < MOST:
        product = operator.match_rows(v)
        if u is not None:
            error = float((u / product - 1).abs().max())
            while pending and error <= pending[0]:
                found["alternating"].append(spent)
                pending.pop(0)
        u = product
        v = operator.match_columns(u)
        spent += 2
    found["alternating"] += [None] * len(pending)
    for goal in GOALS:
        result = symmetrise(operator, ones, tol=goal, max_iter=MOST)
        reached = float(result.marginal_error) <= goal
        found["symmetric"].append(int(result.n_iter) if reached else None)
    return found


def main() -> None:
    """Measure, print and store the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave the sets of 4,000 items out")
    sizes = (80, 1000) if parser.parse_args().quick else (80, 1000, 4000)
    warnings.simplefilter("ignore", ConvergenceWarning)
    kinds = ("5 classes", "pairs", "0.3 n classes", "Zipf classes", "outliers", "digits", "digits centred")
    records = []
    for kind in kinds:
        for n in sizes:
            cost = cosine_cost(make_set(kind, n))
            for reg in REGS:
                kernel = (cost / -reg).exp_().fill_diagonal_(0)
                records.append({"set": kind, "n": n, "reg": reg, **products(kernel)})
    rows = []
    for kind in kinds:
        for n in sizes:
            cells = []
            for reg in REGS:
                record = next(r for r in records if (r["set"], r["n"], r["reg"]) == (kind, n, reg))
                cells += [
                    ", ".join("–" if c is None else str(c) for c in record[s])
                    for s in ("alternating", "symmetric")
                ]
            rows.append([kind, n, *cells])
    columns = ["set", "n", *(f"{s} {reg:g}" for reg in REGS for s in ("alt", "sym"))]
    table = Table("Products with K to a row-sum error of 1e-3, 1e-6 (float64)", columns, rows)
    RESULTS.mkdir(parents=True, exist_ok=True)
    record = {"environment": describe_environment(), "goals": GOALS, "most": MOST, "cells": records}
    (RESULTS / "products.json").write_text(json.dumps(record, indent=1) + "\n")
    (RESULTS / "products.md").write_text(table.markdown() + "\n")
    print(table.text())


if __name__ == "__main__":
    main()
