"""How far the sparse plan is from the dense one: total variation between rows, by reg and by number of neighbours.

BPA_DATA=path/to/sets python benchmarks/speed/sparse_error.py --out benchmarks/results/speed/sparse_error.json
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch

from bpa.plans import DensePlan, GraphPlan

SETS = ("news20_minilm", "emoji_vendors_mnv2", "cifar10_efflite0")
REGS = (0.05, 0.1, 0.25, 0.5)
NEIGHBOURS = (20, 64, 200)


def load(folder: Path, name: str, n: int) -> torch.Tensor:
    with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
        x = stored["features"].astype(np.float32)
    return torch.from_numpy(x[np.random.default_rng(0).permutation(len(x))[:n]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = Path(os.environ.get("BPA_DATA", Path(__file__).resolve().parents[2] / ".." / "shared" / "data"))
    torch.set_num_threads(1)
    rows = []
    for name in SETS:
        x = load(folder, name, options.n)
        for reg in REGS:
            dense = DensePlan.fit(x, reg=reg, scale=None, diagonal=0.0).affinities()
            tail = {k: 1 - float(dense.topk(k, dim=1).values.sum(dim=1).mean()) for k in NEIGHBOURS}
            for k in NEIGHBOURS:
                sparse = GraphPlan.fit(x, reg=reg, k=k, scale=None, diagonal=0.0)
                gap = (sparse.affinities().to_dense() - dense).abs().sum(dim=1) / 2
                row = {
                    "set": name,
                    "n": options.n,
                    "reg": reg,
                    "k": k,
                    "total_variation_median": float(gap.median()),
                    "total_variation_worst": float(gap.max()),
                    "dense_mass_outside_top_k": tail[k],
                    "n_iter": int(sparse.convergence.n_iter),
                    "converged": bool(sparse.convergence.converged),
                    "n_repaired": sparse.n_repaired,
                    "repaired_mass": sparse.repaired_mass,
                }
                rows.append(row)
                print(json.dumps(row), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    print("| set | reg | " + " | ".join(f"k {k}" for k in NEIGHBOURS) + " |")
    print("|---" * (len(NEIGHBOURS) + 2) + "|")
    for name in SETS:
        for reg in REGS:
            cells = [r["total_variation_median"] for r in rows if r["set"] == name and r["reg"] == reg]
            print(f"| {name} | {reg} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
