"""The demonstration: few-shot, clustering and retrieval on the data inside the package, with and without the transform.

Every setting is fixed beforehand; what does not help is shown like what does.
"""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bpa.cost import cosine_cost
from bpa.data.catalog import embedded_sketches
from bpa.errors import MissingExtraError
from bpa.metrics.intervals import mean_interval, paired_difference
from bpa.metrics.retrieval import evaluate_ranking
from bpa.records import FeatureSet, RunRecord
from bpa.runs.clustering import ClusterConfig, run_clustering
from bpa.runs.environment import describe_environment
from bpa.runs.fewshot import FewShotConfig, run_fewshot
from bpa.runs.store import RunStore
from bpa.solvers import Sweeps
from bpa.transforms.functional import balanced_affinities

Progress = Callable[[int, int], None]
Reg = float | Literal["auto"]


@dataclass(frozen=True)
class DemoConfig:
    """Every setting of the demonstration that changes a number.

    Parameters
    ----------
    tasks : int
        Few-shot tasks.
    cluster_classes, cluster_repeats : int
        Classes to cluster, and how often, each time on 80 % of the items.
    regs : tuple of float or "auto"
        Entropy weights.
    shown_classes, shown_items : int
        Size of the set whose affinities are drawn.
    seed : int
        Start of every random stream.
    """

    tasks: int = 400
    cluster_classes: int = 20
    cluster_repeats: int = 5
    regs: tuple[Reg, ...] = (0.05, 0.1, 0.2, 0.5, "auto")
    shown_classes: int = 5
    shown_items: int = 12
    seed: int = 0


@dataclass(frozen=True)
class RetrievalDemoConfig:
    """Settings of the retrieval part: every item queries all others."""

    regs: tuple[Reg, ...]
    n_iter: int = 5
    strips: int = 4
    depth: int = 10


def run_demo(
    store: RunStore, config: DemoConfig | None = None, *, on_progress: Progress | None = None
) -> list[RunRecord]:
    """Run what is not in ``store`` yet and return all records, in a fixed order.

    Parameters
    ----------
    store : RunStore
        Where finished parts are kept; a second run with the same settings computes nothing.
    config : DemoConfig, optional
        Settings; the defaults are those of ``bpa demo``.
    on_progress : callable, optional
        Called with (parts done, parts).

    Returns
    -------
    list of RunRecord
        Studies ``fewshot``, ``cluster``, ``retrieval-demo`` and ``affinities``.

    Notes
    -----
    Computes on one thread: sums then come out alike on any number of cores, and a busy machine is not made busier.
    """
    with _one_thread():
        return _run(store, config or DemoConfig(), on_progress or (lambda _done, _all: None))


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Hold torch, BLAS and OpenMP to one thread."""
    try:
        from threadpoolctl import threadpool_limits
    except ModuleNotFoundError as error:
        if error.name != "threadpoolctl":
            raise
        raise MissingExtraError("the demonstration", "app") from None
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def _run(store: RunStore, config: DemoConfig, tell: Progress) -> list[RunRecord]:
    sketches = embedded_sketches()
    labels = _labels(sketches)
    few_shot = FewShotConfig(
        hosts=("protonet",), transforms=("bpa",), regs=config.regs, shots=(1, 5), n_tasks=config.tasks,
        protocol="balanced", seed=config.seed,
    )  # fmt: skip
    tell(0, 4)
    records = list(run_fewshot(sketches, few_shot, store=store).records)
    tell(1, 4)
    some = sketches.select(np.flatnonzero(labels < config.cluster_classes))
    clustering = ClusterConfig(
        n_clusters=config.cluster_classes, transforms=("bpa",), reg=config.regs, repeats=config.cluster_repeats,
        n_init=3, share=0.8, seed=config.seed,
    )  # fmt: skip
    records.append(run_clustering(some, clustering, store=store).record)
    tell(2, 4)
    retrieval = RetrievalDemoConfig(config.regs)
    records.append(
        _kept(store, "retrieval-demo", retrieval, sketches, lambda: _retrieve(sketches, retrieval))
    )
    tell(3, 4)
    few = np.flatnonzero((labels < config.shown_classes) & (np.arange(len(labels)) % 40 < config.shown_items))
    shown = sketches.select(few)
    explain = {"reg": 0.1, "n_iter": 5, "classes": config.shown_classes, "items": config.shown_items}
    records.append(_kept(store, "affinities", explain, sketches, lambda: _affinities(shown, 0.1)))
    tell(4, 4)
    return records


def _labels(features: FeatureSet) -> NDArray[np.int64]:
    if features.labels is None:
        raise AssertionError("the embedded data has labels")
    return features.labels


def _kept(
    store: RunStore,
    study: str,
    config: Any,
    features: FeatureSet,
    compute: Callable[[], tuple[Mapping[str, list[float]], Mapping[str, Any]]],
) -> RunRecord:
    """Return the stored record of a part, or compute and store it."""
    data = {"source": features.source, "sha256": features.sha256, "n": len(features), "dim": features.dim}
    found = store.find(config, study=study, data=data)
    if found is not None:
        return found
    began = time.perf_counter()
    values, summary = compute()
    settings = config if isinstance(config, dict) else asdict(config)
    record = RunRecord(
        study,
        settings,
        data,
        dict(values),
        dict(summary),
        describe_environment(),
        time.perf_counter() - began,
    )
    store.append(record)
    return record


def _ways(x: torch.Tensor, config: RetrievalDemoConfig) -> dict[str, torch.Tensor]:
    """Return distances (n, n) by every way to compare items, the plain one first."""
    unit = torch.nn.functional.normalize(x, dim=1)
    out = {"cosine": 1 - unit @ unit.T}
    centred = torch.nn.functional.normalize(unit - unit.mean(dim=0), dim=1)
    out["centred cosine"] = 1 - centred @ centred.T
    for reg in config.regs:
        w = balanced_affinities(x, reg=reg, solver=Sweeps(config.n_iter))
        out[f"bpa {reg}, row cosine"] = cosine_cost(w)
        out[f"bpa {reg}, row distance"] = torch.cdist(w, w)
    return out


def _retrieve(
    features: FeatureSet, config: RetrievalDemoConfig
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Rank all other items for every item, in every way."""
    labels, own = _labels(features), np.arange(len(features))
    values: dict[str, list[float]] = {}
    ways: dict[str, Any] = {}
    orders: dict[str, NDArray[np.int64]] = {}
    queries = [int(q) for q in np.linspace(0, len(labels), config.strips, endpoint=False)]
    for name, distance in _ways(torch.from_numpy(features.features), config).items():
        matrix = distance.numpy()
        scores = evaluate_ranking(matrix, labels, labels, self_index=own)
        values[f"{name}/ap"] = scores.average_precision.tolist()
        values[f"{name}/rank1"] = (scores.first_rank == 1).astype(float).tolist()
        some = matrix[queries].copy()
        some[np.arange(len(queries)), queries] = np.inf
        orders[name] = np.argsort(some, axis=1, kind="stable")[:, : config.depth]
    for name in orders:
        entry: dict[str, Any] = {}
        for key in ("ap", "rank1"):
            mine = [100 * v for v in values[f"{name}/{key}"]]
            entry[key] = asdict(mean_interval(mine))
            base = [100 * v for v in values[f"cosine/{key}"]]
            entry[f"{key} gain"] = None if name == "cosine" else asdict(paired_difference(mine, base))
        ways[name] = entry
    by_class = {
        name: [
            float(np.mean(np.asarray(values[f"{name}/ap"])[labels == c]))
            for c in range(int(labels.max()) + 1)
        ]
        for name in orders
    }
    strips = [
        {
            "query": _item(features, q),
            "ways": {name: [_item(features, int(i)) for i in order[k]] for name, order in orders.items()},
        }
        for k, q in enumerate(queries)
    ]
    return values, {"ways": ways, "by_class": by_class, "class_names": features.class_names, "strips": strips}


def _item(features: FeatureSet, index: int) -> dict[str, Any]:
    """Return one item as a report shows it: label, and the picture as base64 of its bytes."""
    label = int(_labels(features)[index])
    out: dict[str, Any] = {"item": index, "label": label, "name": features.name_of(label)}
    if features.images is not None:
        picture = features.images[index]
        out |= {"shape": list(picture.shape), "picture": base64.b64encode(picture.tobytes()).decode()}
    return out


def _affinities(features: FeatureSet, reg: float) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Return a small set before and after the transform, and the two halves of the distance between two rows."""
    x, labels = torch.from_numpy(features.features).double(), _labels(features)
    before = 1 - cosine_cost(x)
    after = balanced_affinities(x, reg=reg)
    same = labels[:, None] == labels[None, :]
    w = after.numpy()
    difference = np.abs(w[:, None, :] - w[None, :, :])  # (i, j, k): what item k says about i and j
    n = len(labels)
    i, j = np.triu_indices(n, 1)
    direct = difference[i, j, i] + difference[i, j, j]
    third = difference[i, j].sum(axis=1) - direct
    halves = {
        name: {"direct": float(direct[rows].mean()), "third": float(third[rows].mean())}
        for name, rows in (("same class", same[i, j]), ("different classes", ~same[i, j]))
    }
    other = int(np.flatnonzero(labels != labels[0])[0])
    pairs = [
        {"title": title, "pair": [0, b], "values": _rounded(difference[0, b])}
        for title, b in (("two items of one class", 1), ("two items of different classes", other))
    ]
    summary = {
        "reg": reg,
        "labels": labels.tolist(),
        "class_names": [features.name_of(int(c)) for c in np.unique(labels)],
        "before": _rounded(before.numpy()),
        "after": _rounded(w),
        "plane_before": _rounded(_plane(torch.nn.functional.normalize(x, dim=1))),
        "plane_after": _rounded(_plane(after)),
        "halves": halves,
        "pairs": pairs,
    }
    return {}, summary


def _plane(x: torch.Tensor) -> NDArray[np.float64]:
    """Return the first two principal components (n, 2), signs fixed so that two runs agree."""
    centred = x - x.mean(dim=0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    plane = (u[:, :2] * s[:2]).numpy()
    top = np.abs(plane).argmax(axis=0)
    return np.asarray(plane * np.sign(plane[top, [0, 1]]))


def _rounded(values: NDArray[np.float64]) -> list[Any]:
    """Return numbers as a page needs them: four digits after the point."""
    return list(np.round(values, 4).tolist())
