"""Accuracy of every host against reg, and of reg="auto": ``python benchmarks/auto_reg/study.py [SET ...]``.

One CSV a set in ``benchmarks/results/auto_reg``: a line a (host, method), with the paired difference of the rule to
that method over the same tasks, repeats or queries. ``report.py`` makes the tables and figures from these files.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from sets import REAL, SETS
from sklearn.cluster import KMeans

import bpa.transforms.choosing
from bpa import BPA
from bpa._blocks import spans
from bpa.data.episodes import TaskList, draw_tasks
from bpa.data.synthetic import sphere_clusters
from bpa.hosts.fewshot import ProtoNet, PTMap
from bpa.metrics.clustering import clustering_scores
from bpa.metrics.fewshot import correct_counts
from bpa.metrics.intervals import mean_interval, paired_difference
from bpa.metrics.retrieval import evaluate_ranking
from bpa.records import FeatureSet
from bpa.transforms.alternatives import CentredUnitNorm, UnitNorm
from bpa.transforms.choosing import choose_reg
from bpa.transforms.contract import Identity

RESULTS = Path(__file__).resolve().parents[1] / "results" / "auto_reg"
REGS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)
PTMAP_REGS = (0.02, 0.05, 0.1, 0.2, 0.5, 2.0)
SHARES = (0.25, 0.5)
"""Other values of the rule's one constant for small sets, for choosing it with a set left out."""
TASKS = {True: (1000, 150), False: (300, 60)}
"""Tasks for ProtoNet and for PT-MAP, on real sets and others."""
REPEATS = {True: (4, 2), False: (4, 1)}
"""Draws for k-means and for retrieval."""
SPHERES = ((10, 0.34), (69, 0.22), (180, 0.22), (1234, 0.15))


class OtherShare:
    """The rule with another target share."""

    def __init__(self, share: float) -> None:
        self.share, self.layer = share, BPA(reg="auto")

    def __call__(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Map (..., n, d) to (..., n, n)."""
        kept = bpa.transforms.choosing._SHARE
        bpa.transforms.choosing._SHARE = self.share
        try:
            return self.layer(x, mask=mask)
        finally:
            bpa.transforms.choosing._SHARE = kept


def transforms(regs: tuple[float, ...]) -> dict[str, object]:
    named: dict[str, object] = {"raw": Identity(), "unit": UnitNorm(), "centred": CentredUnitNorm()}
    named |= {f"bpa {reg:g}": BPA(reg=reg) for reg in regs}
    named |= {f"auto share {share:g}": OtherShare(share) for share in SHARES}
    return named | {"auto": BPA(reg="auto")}


def fewshot(data: FeatureSet, n_tasks: int, n_ptmap: int) -> Iterator[tuple[str, str, np.ndarray]]:
    n_query = 6 if data.source == "emoji" else 15
    shots = (1,) if data.source == "emoji" else (1, 5)
    x = torch.from_numpy(data.features)
    for host, make, regs, count in (
        ("protonet", ProtoNet, REGS, n_tasks),
        ("ptmap", PTMap, PTMAP_REGS, n_ptmap),
    ):
        made = transforms(regs)
        if host == "ptmap":  # it normalises by itself: the three are one
            made.pop("unit")
        for n_shot in shots:
            tasks = draw_tasks(data, n_shot=n_shot, n_query=n_query, n_tasks=count)
            for name, transform in made.items():
                yield f"{host} {n_shot}-shot", name, accuracy(make(transform).eval(), tasks, x)


@torch.no_grad()
def accuracy(host: torch.nn.Module, tasks: TaskList, x: torch.Tensor) -> np.ndarray:
    counts: list[int] = []
    for part in spans(len(tasks), 200):
        episode = tasks.episode(x, part)
        counts += correct_counts(host(episode).labels, episode.query_labels).tolist()
    return 100 * np.array(counts) / tasks.n_query


def subset(data: FeatureSet, n_classes: int, each: int, seed: int) -> FeatureSet:
    rng = np.random.default_rng(seed)
    counts = {int(c): int((data.labels == c).sum()) for c in np.unique(data.labels)}
    able = sorted(c for c, count in counts.items() if count >= min(each, max(counts.values())))
    chosen = rng.choice(able, min(n_classes, len(able)), replace=False)
    rows = [
        rng.choice(np.flatnonzero(data.labels == c), min(each, counts[int(c)]), replace=False) for c in chosen
    ]
    return data.select(np.concatenate(rows))


def clusters(data: FeatureSet, repeats: int) -> Iterator[tuple[str, str, np.ndarray]]:
    shape = (15, 40) if data.source.startswith("sketch") else (10, 60)
    yield from _k_means([subset(data, *shape, seed) for seed in range(repeats)], "k-means")


def spheres(repeats: int) -> Iterator[tuple[str, str, np.ndarray]]:
    for dim, noise in SPHERES:
        yield from _k_means(
            [_sphere(dim, noise, seed) for seed in range(repeats)], f"k-means d={dim} σ={noise}"
        )


def _sphere(dim: int, noise: float, seed: int) -> FeatureSet:
    drawn = sphere_clusters(dim=dim, noise=noise, seed=seed)
    rows = drawn.features.astype(np.float64)
    if dim > 50:
        rows = rows - rows.mean(axis=0)
        rows = rows @ np.linalg.svd(rows, full_matrices=False)[2][:50].T
    return FeatureSet(features=rows.astype(np.float32), labels=drawn.labels, source="sphere")


def _k_means(draws: list[FeatureSet], host: str) -> Iterator[tuple[str, str, np.ndarray]]:
    for name, transform in transforms(REGS).items():
        scores = defaultdict(list)
        for seed, data in enumerate(draws):
            with torch.no_grad():
                rows = transform(torch.from_numpy(data.features)).numpy()
            k = len(np.unique(data.labels))
            found = KMeans(k, n_init=10, random_state=seed).fit_predict(rows)
            score = clustering_scores(data.labels, found, nmi_average="arithmetic")
            scores["ACC"].append(100 * score.acc)
            scores["NMI"].append(100 * score.nmi)
        for metric, values in scores.items():
            yield f"{host} {metric}", name, np.array(values)


def retrieval(data: FeatureSet, repeats: int) -> Iterator[tuple[str, str, np.ndarray]]:
    if data.source == "emoji":
        draws = [subset(data, 180, 7, seed) for seed in range(repeats)]
    else:
        shape = (40, 25) if data.source.startswith("sketch") else (10, 100)
        draws = [subset(data, *shape, seed) for seed in range(repeats)]
    for name, transform in transforms(REGS).items():
        precision, first = [], []
        for draw in draws:
            with torch.no_grad():
                rows = transform(torch.from_numpy(draw.features))
                squared = rows.square().sum(-1)
                distances = (squared[:, None] + squared - 2 * rows @ rows.mT).clamp_min(0).numpy()
            everyone = np.arange(len(draw))
            cameras = {} if draw.cameras is None else {
                "query_cameras": draw.cameras, "gallery_cameras": draw.cameras
            }  # fmt: skip
            scores = evaluate_ranking(distances, draw.labels, draw.labels, self_index=everyone, **cameras)
            precision.append(100 * scores.average_precision)
            first.append(100.0 * (scores.first_rank == 1))
        yield "retrieval mAP", name, np.concatenate(precision)
        yield "retrieval Rank-1", name, np.concatenate(first)


def quantities(data: FeatureSet) -> dict[str, float]:
    """What a rule could look at without labels, on few-shot sized sets (means over 100)."""
    rng = np.random.default_rng(0)
    classes = [np.flatnonzero(data.labels == c) for c in np.unique(data.labels)]
    classes = [rows for rows in classes if len(rows) >= 7]
    seen = defaultdict(list)
    for _ in range(100):
        picked = [classes[c] for c in rng.choice(len(classes), 5, replace=False)]
        rows = np.concatenate([rng.choice(r, min(16, len(r)), replace=False) for r in picked])
        x = torch.from_numpy(data.features[rows])
        n = len(x)
        off = ~torch.eye(n, dtype=torch.bool)
        unit = UnitNorm()(x)
        cosine, centred = (unit @ unit.mT)[off], (CentredUnitNorm()(x) @ CentredUnitNorm()(x).mT)
        flat = centred[off]
        seen["cosine mean"].append(cosine.mean())
        seen["cosine std"].append(cosine.std())
        seen["centred std"].append(flat.std())
        seen["centred skew"].append(((flat - flat.mean()) ** 3).mean() / flat.std() ** 3)
        seen["centred q95"].append(flat.quantile(0.95))
        for reg in (0.1, 0.5):
            plan = BPA(reg=reg, scale=None, diagonal=0.0)(x)
            plan = (plan + plan.mT) / 2
            entropy = -(plan * plan.clamp_min(1e-30).log()).sum(-1)
            seen[f"perplexity/n at {reg}"].append(entropy.exp().mean() / n)
            values = torch.linalg.eigvalsh(plan).flip(0)
            seen[f"second eigenvalue at {reg}"].append(values[1])
            seen[f"largest gap of 2-10 at {reg}"].append((values[1:9] - values[2:10]).amax())
        choice = choose_reg(x)
        for field in ("reg", "evidence", "agreement"):
            seen[f"auto {field}"].append(getattr(choice, field))
        halves = [CentredUnitNorm()(x[:, part::2]) for part in (0, 1)]
        grams = [(half @ half.mT)[off] for half in halves]
        seen["agreement of two halves of the features"].append(torch.corrcoef(torch.stack(grams))[0, 1])
    return {name: float(np.mean([float(v) for v in values])) for name, values in seen.items()}


def run(name: str, quick: bool, parts: tuple[str, ...]) -> None:
    began = time.perf_counter()
    scores: dict[tuple[str, str], np.ndarray] = {}
    facts: dict[str, float] = {}
    if name == "sphere":
        work = [spheres(3 if quick else 10)]
    else:
        data = SETS[name]()
        is_real = name in REAL
        many, few = (40, 20) if quick else TASKS[is_real]
        fits, draws = (2, 1) if quick else REPEATS[is_real]
        work = [fewshot(data, many, few)] if "fewshot" in parts else []
        work += [clusters(data, fits)] if "clusters" in parts and name != "emoji" else []
        work += [retrieval(data, draws)] if "retrieval" in parts else []
        facts = quantities(data) if "quantities" in parts else {}
    for part in work:
        for host, method, values in part:
            scores[host, method] = values
        sys.stderr.write(f"{name}: {time.perf_counter() - began:.0f} s\n")
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.csv"
    kept = []
    if path.exists():
        with path.open(newline="") as file:
            kept = list(csv.reader(file))[1:]
    redone = {host for host, _ in scores}
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(
            ["set", "host", "method", "mean", "half_width", "n", "auto_minus", "auto_minus_half_width"]
        )
        table.writerows(row for row in kept if row[1] not in redone)
        for (host, method), values in scores.items():
            keep = np.isfinite(values)
            mean = mean_interval(values[keep])
            gap = paired_difference(scores[host, "auto"][keep], values[keep])
            numbers = (mean.mean, mean.half_width, mean.n, gap.mean, gap.half_width)
            table.writerow(
                [name, host, method, *(f"{v:.4f}" if isinstance(v, float) else v for v in numbers)]
            )
    if facts:
        with (RESULTS / f"{name}.quantities.csv").open("w", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(("set", "quantity", "value"))
            table.writerows((name, quantity, f"{value:.4f}") for quantity, value in facts.items())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", default=[*SETS, "sphere"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--light", action="store_true", help="Few regs, tasks and repeats: some 20 s a set.")
    parser.add_argument("--parts", default="fewshot,clusters,retrieval,quantities", help="What to (re)do.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.light:
        REGS = PTMAP_REGS = (0.1, 0.2, 0.5, 2.0)
        SHARES = ()
        TASKS = {True: (300, 50), False: (200, 40)}
        REPEATS = {True: (3, 1), False: (3, 1)}
    for chosen in options.sets:
        run(chosen, options.quick, tuple(options.parts.split(",")))
