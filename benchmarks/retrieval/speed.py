"""Time and memory of ranking at the size of Market-1501; ratios within one run.

    python benchmarks/retrieval/speed.py joint        [--n 19281]
    python benchmarks/retrieval/speed.py frozen       [--n 19281]
    python benchmarks/retrieval/speed.py kreciprocal  [--n 19281] [--reference-n 6000]
    python benchmarks/retrieval/speed.py memory CASE  [--n 19281]

Seconds are processor time; run with OMP_NUM_THREADS=1. Synthetic identities: features of 1,536 numbers around 750
centres and as many distractors as the set has. Results go to benchmarks/results/retrieval. "Two products" are X Xᵀ
and the product of the query rows with the gallery rows of W: what no implementation of the dense ranking can avoid.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from bpa.hosts.retrieval import Gallery, k_reciprocal, rank
from bpa.metrics.retrieval import evaluate_ranking
from bpa.plans import RowComparison
from bpa.runs.environment import describe_environment
from bpa.solvers._choice import PAPER_SWEEPS

OUT = Path(__file__).resolve().parents[1] / "results" / "retrieval"
REG = 0.1
PAPER, RETRIEVAL = RowComparison.paper(), RowComparison.retrieval()


def synthetic(n: int, d: int = 1536, seed: int = 0) -> tuple[torch.Tensor, int, np.ndarray, np.ndarray]:
    """Features (queries first), number of queries, identities, cameras; proportions of Market-1501."""
    rng = np.random.default_rng(seed)
    n_query = round(n * 3368 / 19281)
    n_ids = max(2, round(n * 750 / 19281))
    n_distractor = round(n * 2798 / 19281)
    ids = np.concatenate(
        [
            rng.integers(1, n_ids + 1, n_query),
            rng.integers(1, n_ids + 1, n - n_query - n_distractor),
            np.zeros(n_distractor, int),
        ]
    )
    cameras = rng.integers(0, 6, n)
    generator = torch.Generator().manual_seed(seed)
    style = torch.randn(40, d, generator=generator)  # identities share clothes: hard negatives
    centre = torch.randn(n_ids + 1, d, generator=generator) + 1.5 * style[torch.arange(n_ids + 1) % 40]
    view = 0.8 * torch.randn(6, d, generator=generator)
    x = torch.randn(n, d, generator=generator).mul_(2.6)
    known = torch.from_numpy(ids)
    x += torch.where(known[:, None] > 0, centre[known], 2 * style[torch.from_numpy(rng.integers(0, 40, n))])
    x += view[torch.from_numpy(cameras)]
    return x, n_query, ids, cameras


def clock(work) -> tuple[float, object]:
    """Processor seconds (of all threads: other people's load does not count) and the result."""
    began = time.process_time()
    out = work()
    return time.process_time() - began, out


def quality(distances: torch.Tensor, n_query: int, ids: np.ndarray, cameras: np.ndarray) -> dict[str, float]:
    s = evaluate_ranking(
        distances.numpy(), ids[:n_query], ids[n_query:], cameras[:n_query], cameras[n_query:]
    )
    return {"mAP": 100 * s.mean_ap, "Rank-1": 100 * s.rank(1)}


def two_products(x: torch.Tensor, q: int) -> tuple[float, float]:
    n = len(x)
    buffer = torch.empty(n, n)
    first, _ = clock(lambda: torch.mm(x, x.T, out=buffer))
    out = torch.empty(q, n - q)
    return first, clock(lambda: torch.mm(buffer[:q], buffer[q:].T, out=out))[0]


def joint(n: int, with_half: bool = True) -> dict:
    x, q, ids, cameras = synthetic(n)
    query, gallery = x[:q], x[q:]
    first, second = two_products(x, q)
    dense, ranking = clock(lambda: rank(query, gallery, reg=REG, rows=PAPER, diagnostics=False))
    found = {"dense": quality(ranking.distances, q, ids, cameras)}
    del ranking
    sparse, ranking = clock(lambda: rank(query, gallery, reg=REG, rows=RETRIEVAL, diagnostics=False))
    found["sparse"] = quality(ranking.distances, q, ids, cameras)
    del ranking
    half = float("nan")
    if with_half:
        half, ranking = clock(
            lambda: rank(query, gallery, reg=REG, rows=PAPER, storage=torch.bfloat16, diagnostics=False)
        )
        found["bfloat16"] = quality(ranking.distances, q, ids, cameras)
    unit = torch.nn.functional.normalize(x)
    found["cosine"] = quality(-(unit[:q] @ unit[q:].T), q, ids, cameras)
    floor = first + second
    return {
        "n": n, "n_query": q, "seconds": {
            "Gram product": first, "row product": second, "joint dense": dense, "joint top-50": sparse,
            "joint bfloat16": half if with_half else None,
        },
        "ratio to the two products": {
            "dense": dense / floor, "top-50": sparse / floor, "bfloat16": half / floor if with_half else None,
        },
        "target": {"dense": 1.3, "top-50": 0.6}, "quality": found,
    }  # fmt: skip


def frozen(n: int) -> dict:
    x, _, _, _ = synthetic(n + 256)
    query, gallery = x[:256], x[256:]
    result: dict = {"n": n, "short-list": 200, "rows": {}}
    unit = torch.nn.functional.normalize(gallery)

    def per_query(work, batch: int, repeats: int) -> float:
        times = []
        for r in range(repeats):
            part = query[(r * batch) % 256 : (r * batch) % 256 + batch]
            times.append(clock(lambda p=part: work(p))[0] / batch)
        return float(np.median(times))

    for name, rows in (("top-50", RETRIEVAL), ("dense", PAPER)):
        fit, fitted = clock(lambda r=rows: Gallery.fit(gallery, reg=REG, rows=r, solver=PAPER_SWEEPS))

        def serve(part, fitted=fitted):
            return fitted.search(part, shortlist=200, top=50)

        entry: dict = {"fit seconds": fit}
        for batch, repeats in ((1, 40), (64, 4)):
            serve(query[:batch])
            product = per_query(lambda p: p @ unit.T, batch, repeats)
            whole = per_query(serve, batch, repeats)
            entry[f"batch {batch}"] = {
                "ms a query": 1e3 * whole, "n·d product, ms": 1e3 * product, "ratio": whole / product,
            }  # fmt: skip
        result["rows"][name] = entry
        del fitted
    result["target"] = {"batch 1 ratio": 2.0, "batch 64 ms": 3.0}
    return result


def reference(x: np.ndarray, n_query: int, k1: int = 20, k2: int = 6, lam: float = 0.3) -> np.ndarray:
    """The published dense procedure, in its own order of steps and with its n × n arrays, in float32 numpy."""
    n = len(x)
    squared = (x**2).sum(1)
    original = squared[:, None] + squared[None] - 2 * x @ x.T
    original = np.maximum(original, 0).astype(np.float32)
    original = (
        original / original.max(axis=0)
    ).T  # as published: by the maximum of each column, then transposed
    weight = np.zeros_like(original)
    rank = np.argsort(original).astype(np.int32)
    half = int(np.around(k1 / 2))

    def mutual(i: int, k: int) -> np.ndarray:
        forward = rank[i, : k + 1]
        return forward[(rank[forward, : k + 1] == i).any(axis=1)]

    for i in range(n):
        base = mutual(i, k1)
        grown = base
        for candidate in base:
            theirs = mutual(candidate, half)
            if len(np.intersect1d(theirs, base)) > 2 / 3 * len(theirs):
                grown = np.append(grown, theirs)
        grown = np.unique(grown)
        value = np.exp(-original[i, grown])
        weight[i, grown] = value / value.sum()
    original = original[:n_query]
    if k2 > 1:
        expanded = np.zeros_like(weight)
        for i in range(n):
            expanded[i] = weight[rank[i, :k2]].mean(axis=0)
        weight = expanded
    holders = [np.flatnonzero(weight[:, i]) for i in range(n)]
    jaccard = np.zeros_like(original)
    for i in range(n_query):
        shared = np.zeros(n, dtype=np.float32)
        for column in np.flatnonzero(weight[i]):
            shared[holders[column]] += np.minimum(weight[i, column], weight[holders[column], column])
        jaccard[i] = 1 - shared / (2 - shared)
    return (jaccard * (1 - lam) + original * lam)[:, n_query:]


def kreciprocal(n: int, reference_n: int) -> dict:
    x, q, _, _ = synthetic(reference_n)
    slow, expected = clock(lambda: reference(x.numpy(), q))
    fast, got = clock(lambda: k_reciprocal(x, q).distances().numpy())
    top = [np.argsort(m, axis=1, kind="stable")[:, :50] for m in (expected, got)]
    same = float((top[0] == top[1]).mean())
    small = {
        "n": reference_n, "reference seconds": slow, "ours seconds": fast, "speed-up": slow / fast,
        "largest difference": float(np.abs(expected - got).max()), "same top-50 entries": same,
    }  # fmt: skip
    del expected, got, x
    whole = {}
    if n > reference_n:
        x, q, _, _ = synthetic(n)
        seconds, _ = clock(lambda: [None for _ in k_reciprocal(x, q).blocks()])
        whole = {"n": n, "ours seconds, read in blocks": seconds}
    return {"against the dense procedure": small, "at size": whole}


CASES = {
    "nothing": lambda _x, _q: None,
    "dense": lambda x, q: rank(x[:q], x[q:], reg=REG, rows=PAPER, diagnostics=False),
    "bfloat16": lambda x, q: rank(
        x[:q], x[q:], reg=REG, rows=PAPER, storage=torch.bfloat16, diagnostics=False
    ),
    "top-50": lambda x, q: rank(x[:q], x[q:], reg=REG, rows=RETRIEVAL, diagnostics=False),
    "top-50 blocked": lambda x, q: rank(
        x[:q], x[q:], reg=REG, rows=RETRIEVAL, budget="1GB", diagnostics=False
    ),
    "k-reciprocal": lambda x, q: [None for _ in k_reciprocal(x, q).blocks()],
    "k-reciprocal reference": lambda x, q: reference(x.numpy(), q),
}


def memory(case: str, n: int) -> dict:
    """Peak of one case in a process of its own, beyond the features and the libraries."""
    x, q, _, _ = synthetic(n)
    rank(x[:50], x[50:400], reg=REG, diagnostics=False)  # the libraries load what they need
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest mark
    seconds, _ = clock(lambda: CASES[case](x, q))
    beyond = _resident("VmHWM") - before
    return {
        "case": case, "n": n, "beyond inputs": beyond, "in n×n float32": beyond / (4 * n * n), "seconds": seconds,
    }  # fmt: skip


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def save(name: str, result: dict) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    result = {**result, "environment": describe_environment()}
    (OUT / f"speed-{name}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k != "environment"}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["joint", "frozen", "kreciprocal", "memory"])
    parser.add_argument("case", nargs="?", choices=list(CASES))
    parser.add_argument("--n", type=int, default=19281)
    parser.add_argument("--reference-n", type=int, default=6000)
    parser.add_argument("--no-half", action="store_true", help="leave bfloat16 storage out of joint")
    args = parser.parse_args()
    if args.what == "joint":
        save(f"joint-{args.n}", joint(args.n, not args.no_half))
    elif args.what == "frozen":
        save(f"frozen-{args.n}", frozen(args.n))
    elif args.what == "kreciprocal":
        save("kreciprocal", kreciprocal(args.n, args.reference_n))
    elif args.case:
        print(json.dumps(memory(args.case, args.n)))
    else:
        found = []
        for case in CASES:
            n = args.reference_n if "reference" in case else args.n
            line = subprocess.run(
                [sys.executable, __file__, "memory", case, "--n", str(n)],
                check=True,
                capture_output=True,
                text=True,
            )
            found.append(json.loads(line.stdout))
        save(f"memory-{args.n}", {"cases": found})
