"""Sparse plans at scale: time of each step, peak memory, and how both grow with the number of items.

    python benchmarks/speed/scale.py --n 12500 25000 50000 100000 --out benchmarks/results/speed/scale.json

Each size runs in a process of its own. ``--given-lists`` replaces the exact search, which is quadratic, by
lists from the items' own identities, so that balancing alone can be measured at a million items.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch


def make_set(n: int, d: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Identities of 20 items each on average, noise about as large as what tells them apart."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(max(2, n // 20), (n,), generator=generator)
    centres = torch.randn(max(2, n // 20), d, generator=generator)
    x = torch.randn(n, d, generator=generator)
    for start in range(0, n, 100_000):
        part = slice(start, start + 100_000)
        x[part] = x[part] * 0.8 + centres[label[part]]
    return x, label


def lists_from_clusters(label: torch.Tensor, k: int) -> torch.Tensor:
    """Each item's neighbours in the order of its identity: inexact lists in linear time."""
    order = label.argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    offsets = torch.cat([torch.arange(-(k // 2), 0), torch.arange(1, k - k // 2 + 1)])
    return order[(place[:, None] + offsets) % len(order)]


def measure(n: int, d: int, k: int, reg: float, tol: float, exact: bool, threads: int) -> dict[str, object]:
    from bpa.plans import _graph as room
    from bpa.solvers import Converged

    torch.set_num_threads(threads)
    x, label = make_set(n, d)
    lists = None if exact else lists_from_clusters(label, k)
    solver = Converged(tol, max_iter=1000)
    room.GraphPlan.fit(x[:2000].clone(), reg=reg, k=k, solver=solver)  # warm up
    steps: dict[str, float] = {}

    def timed(name: str) -> None:
        inner = getattr(room, name)

        def wrapper(*args: object, **options: object) -> object:
            begin = time.perf_counter()
            result = inner(*args, **options)
            steps[name] = steps.get(name, 0.0) + time.perf_counter() - begin
            return result

        setattr(room, name, wrapper)

    for name in ("nearest_rows", "neighbour_graph", "balanced"):
        timed(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    begin, cpu = time.perf_counter(), time.process_time()
    fitted = room.GraphPlan.fit(x, reg=reg, k=k, solver=solver, neighbours=lists)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return {
        "n": n,
        "d": d,
        "k": k,
        "reg": reg,
        "tol": tol,
        "lists": "exact" if exact else "given",
        "threads": threads,
        "seconds": seconds,
        "processor_seconds": cpu,
        "steps": steps,
        "peak_bytes": peak,
        "estimated_bytes": fitted.estimate.total,
        "n_iter": int(fitted.convergence.n_iter),
        "marginal_error": float(fitted.convergence.marginal_error),
        "converged": bool(fitted.convergence.converged),
        "n_entries": len(fitted.entries.column),
        "n_repaired": fitted.n_repaired,
        "repaired_mass": fitted.repaired_mass,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, nargs="+", default=[12_500, 25_000, 50_000, 100_000])
    parser.add_argument("--d", type=int, default=128)
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--reg", type=float, default=0.1)
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--given-lists", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        result = measure(
            options.n[0],
            options.d,
            options.k,
            options.reg,
            options.tol,
            not options.given_lists,
            options.threads,
        )
        print(json.dumps(result))
        return
    results = []
    for n in options.n:
        command = [
            sys.executable,
            __file__,
            "--child",
            "--n",
            str(n),
            "--d",
            str(options.d),
            "--k",
            str(options.k),
        ]
        command += ["--reg", str(options.reg), "--tol", str(options.tol), "--threads", str(options.threads)]
        command += ["--given-lists"] if options.given_lists else []
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        results.append(json.loads(done.stdout))
        print(json.dumps(results[-1]), flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
