"""Clustering of a stored feature set: ways to cluster, repeated over seeds, scored where labels exist.

A *way* is a transform with one ``reg`` and a clusterer. Every repeat uses one seed (and, with ``share``
below one, one random part of the items) for all ways, so that their differences are paired.
"""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from bpa import memory
from bpa.errors import ArgumentError, MissingExtraError, ShapeError
from bpa.metrics.clustering import NMIAverage, adjusted_rand_index, clustering_scores
from bpa.metrics.intervals import Interval, mean_interval, paired_difference
from bpa.records import FeatureSet, RunRecord
from bpa.report.table import Table
from bpa.runs.environment import describe_environment
from bpa.runs.store import RunStore, write_atomically
from bpa.solvers import PAPER_SWEEPS, Sweeps
from bpa.transforms.names import TRANSFORMS, USES_REG, make_transform

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "BASELINES",
    "DEFAULT_BUDGET",
    "ClusterConfig",
    "ClusterRun",
    "Way",
    "cluster_table",
    "k_means",
    "run_clustering",
    "spectral_rows",
    "ways_of",
    "write_clusters",
]

Reg = float | Literal["auto"]
BASELINES = ("identity", "unit", "centred", "cosine", "softmax", "spectral", "spectral-knn")
"""What a comparison shows beside the transforms asked for."""
DEFAULT_BUDGET = 4 * 2**30
"""Bytes that one clustering may hold where no budget is given: n × n rows of about 18,000 items."""
_SQUARE = frozenset({"cosine", "softmax", "dual-softmax", "spectral", "bpa", "bpa-attn"})
_CLUSTERERS = {"bpa-smooth": "smooth", "bpa-spectral": "spectral"}
_SCORES = ("acc", "nmi", "ari")


@dataclass(frozen=True)
class Way:
    """One way to cluster.

    Attributes
    ----------
    transform : str
        A name of `bpa.transforms.names.TRANSFORMS`, where ``"spectral"`` is spectral clustering on the
        affinity exp(−C / reg), ``"spectral-knn"`` spectral clustering on the plain graph of 10 nearest
        neighbours of unit rows, or ``"bpa-smooth"`` or ``"bpa-spectral"``: the methods of that name of
        `bpa.estimators.clusterer.BPAClusterer`, on the plan of the neighbour graph, without any n × n matrix.
    reg : float, "auto" or None
        None where the transform has none.
    """

    transform: str
    reg: Reg | None = None

    @property
    def name(self) -> str:
        """How tables and values call it."""
        return (
            self.transform
            if self.reg is None
            else f"{self.transform} reg={self.reg:g}"
            if isinstance(self.reg, float)
            else f"{self.transform} reg={self.reg}"
        )


@dataclass(frozen=True)
class ClusterConfig:
    """Every setting that changes a number.

    Parameters
    ----------
    n_clusters : int
        Clusters to find.
    transforms : tuple of str
        See `Way`; the first one gives the labels.
    reg : tuple of float or "auto"
        Entropy weights, for every transform that has one.
    n_iter : int, optional
        Sweeps of the balancing.
    compare : bool
        Add `BASELINES`.
    n_init : int
        k-means++ starts of each fit, the best of which counts.
    repeats : int
        Fits with different seeds.
    share : float
        Share of the items that a repeat draws, the same for all ways; 1 keeps all, and the intervals then
        speak of the randomness of k-means alone.
    seed : int
        Start of every random stream.
    nmi_average : {"geometric", "arithmetic"}
        See `bpa.metrics.clustering`.
    dtype : {"float32", "float64"}
        Of the transform and of k-means.
    device : str
        Of the transform.
    """

    n_clusters: int
    transforms: tuple[str, ...] = ("bpa-smooth", "bpa")
    reg: tuple[Reg, ...] = (0.1,)
    n_iter: int | None = None
    compare: bool = True
    n_init: int = 10
    repeats: int = 10
    share: float = 1.0
    seed: int = 0
    nmi_average: NMIAverage = "geometric"
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, least in (("n_clusters", 2), ("n_init", 1), ("repeats", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ArgumentError(
                    f"The {name!r} parameter of ClusterConfig must be a whole number of at least {least}. "
                    f"Got {value!r}."
                )
        if not 0 < self.share <= 1:
            raise ArgumentError(
                f"The 'share' parameter of ClusterConfig must lie in (0, 1]. Got {self.share!r}."
            )
        if not self.transforms:
            raise ArgumentError(
                "The 'transforms' parameter of ClusterConfig must name at least one transform."
            )
        known = (*TRANSFORMS, "spectral-knn", *_CLUSTERERS)
        for name in self.transforms:
            if name.partition(":")[0] not in known:
                raise ArgumentError(
                    f"The 'transforms' parameter of ClusterConfig may name {', '.join(known)}. Got {name!r}."
                )
        if not self.reg:
            raise ArgumentError(
                "The 'reg' parameter of ClusterConfig must hold at least one number, or 'auto'."
            )


@dataclass(frozen=True, eq=False)
class ClusterRun:
    """What a run gives.

    Attributes
    ----------
    record : RunRecord
        Scores of every way and repeat, under ``"<way>/acc"``, ``/nmi``, ``/ari`` (with labels) and
        ``/inertia``.
    labels : ndarray of int64, shape (n,)
        Clusters by the first way, from the repeat with the smallest inertia; with a share below one, from one
        more fit on all items.
    """

    record: RunRecord
    labels: NDArray[np.int64]


def ways_of(config: ClusterConfig) -> tuple[Way, ...]:
    """The ways of a configuration: what was asked for, then the baselines it did not name."""
    names = [*config.transforms, *(b for b in BASELINES if config.compare and b not in config.transforms)]
    out: list[Way] = []
    for name in names:
        if name.partition(":")[0] not in USES_REG | _CLUSTERERS.keys():
            out.append(Way(name))
            continue
        regs = config.reg
        if name.partition(":")[0] not in ("bpa", "bpa-attn"):  # 'auto' is a rule for bpa
            regs = tuple(r for r in regs if r != "auto") or (0.1,)
        out += [Way(name, r if r == "auto" else float(r)) for r in regs]
    return tuple(dict.fromkeys(out))


def run_clustering(
    features: FeatureSet,
    config: ClusterConfig,
    *,
    store: RunStore | None = None,
    budget: int | str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ClusterRun:
    """Cluster a feature set in every way of the configuration.

    Parameters
    ----------
    features : FeatureSet
        Labels, where it has them, are used in the scores and nowhere else.
    config : ClusterConfig
        What to do.
    store : RunStore, optional
        Keeps the record and resumes an interrupted run.
    budget : int or str, optional
        Most bytes one clustering may hold; `DEFAULT_BUDGET` if not given.
    on_progress : callable, optional
        Called with (fits done, fits in all).

    Returns
    -------
    ClusterRun

    Raises
    ------
    MemoryBudgetError
        Before anything is allocated, when the rows of an n × n matrix would not fit.
    """
    n = len(features)
    if config.n_clusters > int(config.share * n):
        raise ShapeError(
            f"run_clustering was asked for n_clusters={config.n_clusters} of {int(config.share * n)} items. "
            "Ask for at most as many clusters as items."
        )
    ways = ways_of(config)
    _check_memory(ways, n, features.dim, config, DEFAULT_BUDGET if budget is None else budget)
    data = {"source": Path(features.source).name, "sha256": features.sha256, "n": n, "d": features.dim}
    settings = asdict(config)
    found = None if store is None else store.find(settings, study="cluster", data=data)
    if found is not None:
        return ClusterRun(found, _labels_of(features, config, ways[0], found))

    started = time.perf_counter()
    journal = None if store is None else store.journal({"study": "cluster", "config": settings, "data": data})
    done: dict[int, Any] = {} if journal is None else dict(journal.done)
    total = len(ways) * config.repeats
    for w, way in enumerate(ways):
        rows_of = _RowsOf(features, config, way)
        for repeat in range(config.repeats):
            index = w * config.repeats + repeat
            if index not in done:
                done[index] = _one_fit(features, config, rows_of, repeat)
                if journal is not None:
                    journal.add(index, done[index])
            if on_progress is not None:
                on_progress(index + 1, total)
    record = _record(features, config, ways, done, data, time.perf_counter() - started)
    if store is not None:
        store.append(record)
    if journal is not None:
        journal.discard()
    return ClusterRun(record, _labels_of(features, config, ways[0], record))


def cluster_table(record: RunRecord) -> Table:
    """Compare the ways: scores with intervals, and the paired gain over k-means on raw rows.

    Without labels the table shows how far the repeats agree with one another, which says how settled a
    clustering is, not how right.
    """
    summary: Mapping[str, Any] = record.summary["ways"]
    config = record.config
    notes = [
        f"{record.data['n']} items, {config['n_clusters']} clusters; k-means with {config['n_init']} "
        f"starts; mean ± 95 % "
        f"over {config['repeats']} repeats"
        + (f", each on {config['share']:.0%} of the items." if config["share"] < 1 else " on the same items.")
    ]
    if record.summary["scored"]:
        notes.append(
            f"Percent; NMI with the {config['nmi_average']} mean. Gain: NMI minus that of k-means on raw "
            f"rows."
        )
        columns = ["way", "ACC", "NMI", "ARI", "gain in NMI", "agreement"]
        keys = ["acc", "nmi", "ari", "gain", "agreement"]
    else:
        columns, keys = ["way", "agreement"], ["agreement"]
    notes.append("Agreement: mean adjusted Rand index between repeats, in percent.")
    rows = [[name, *(entry.get(key) for key in keys)] for name, entry in summary.items()]
    return Table("Clustering", columns, rows, notes)


def write_clusters(path: Path, labels: NDArray[np.int64]) -> Path:
    """Write one cluster an item, whole or not at all: ``.npy``, or ``.csv`` with item and cluster."""
    if path.suffix == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, labels, allow_pickle=False)
        return write_atomically(path, buffer.getvalue())
    if path.suffix == ".csv":
        lines = ["item,cluster", *(f"{item},{cluster}" for item, cluster in enumerate(labels))]
        return write_atomically(path, "\n".join(lines) + "\n")
    raise ArgumentError(f"Clusters are written as .npy or .csv. Got {path.name!r}.")


def k_means(
    rows: NDArray[Any], n_clusters: int, *, n_init: int, seed: int
) -> tuple[NDArray[np.int64], float]:
    """Labels and inertia of k-means++ with ``n_init`` starts (Lloyd, at most 300 iterations)."""
    fitted = (
        _sklearn("sklearn.cluster").KMeans(n_clusters=n_clusters, n_init=n_init, random_state=seed).fit(rows)
    )
    return fitted.labels_.astype(np.int64), float(fitted.inertia_)


def spectral_rows(affinity: NDArray[Any], n_components: int, *, seed: int) -> NDArray[Any]:
    """Leading eigenvectors of a symmetric affinity, as scikit-learn's SpectralClustering uses them."""
    rows: NDArray[Any] = _sklearn("sklearn.manifold").spectral_embedding(
        affinity, n_components=n_components, eigen_solver="arpack", random_state=seed, drop_first=False
    )
    return rows


class _RowsOf:
    """The rows that k-means sees, for one way; computed once where every repeat has the same items."""

    def __init__(self, features: FeatureSet, config: ClusterConfig, way: Way) -> None:
        self.x = torch.from_numpy(np.asarray(features.features)).to(
            config.device, getattr(torch, config.dtype)
        )
        self.config = config
        self.way = way
        self._whole: NDArray[Any] | None = None

    def __call__(self, items: NDArray[np.int64]) -> NDArray[Any]:
        if len(items) < len(self.x):
            return self._rows(self.x[torch.from_numpy(items)])
        if self._whole is None:
            self._whole = self._rows(self.x)
        return self._whole

    @torch.no_grad()
    def _rows(self, x: torch.Tensor) -> NDArray[Any]:
        name, reg = self.way.transform, self.way.reg
        k, seed = self.config.n_clusters, self.config.seed
        if name == "spectral":
            from bpa.cost import cosine_cost

            affinity = (-cosine_cost(x) / float(reg or 0.1)).exp()
            return spectral_rows(_symmetric(affinity), k, seed=seed)
        if name == "spectral-knn":
            return _knn_rows(x, k, seed=seed)
        transform = make_transform(
            name,
            reg=0.1 if reg is None else reg,
            solver=PAPER_SWEEPS if self.config.n_iter is None else Sweeps(self.config.n_iter),
        )
        rows: NDArray[Any] = transform(x).cpu().numpy()
        return rows


def _knn_rows(x: torch.Tensor, n_components: int, *, seed: int) -> NDArray[Any]:
    """Embed the neighbour graph as scikit-learn's SpectralClustering(affinity="nearest_neighbors") does."""
    unit = make_transform("unit")(x).cpu().numpy()
    graph = _sklearn("sklearn.neighbors").kneighbors_graph(unit, min(10, len(unit)), include_self=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Graph is not fully connected", UserWarning)
        return spectral_rows(0.5 * (graph + graph.T), n_components, seed=seed)


def _symmetric(affinity: torch.Tensor) -> NDArray[Any]:
    out: NDArray[Any] = (0.5 * (affinity + affinity.mT)).cpu().numpy()
    return out


def _one_fit(features: FeatureSet, config: ClusterConfig, rows_of: _RowsOf, repeat: int) -> dict[str, Any]:
    items, seed = _items(len(features), config, repeat), _seed_of(config, repeat)
    way = rows_of.way
    if way.transform in _CLUSTERERS:
        clusters, inertia = _clusterer(features.features[items], config, way, seed)
    else:
        clusters, inertia = k_means(rows_of(items), config.n_clusters, n_init=config.n_init, seed=seed)
    labels = np.full(len(features), -1, dtype=np.int64)
    labels[items] = clusters
    out: dict[str, Any] = {"inertia": inertia, "labels": labels.tolist()}
    if features.labels is not None:
        scores = clustering_scores(features.labels[items], clusters, nmi_average=config.nmi_average)
        out |= {name: getattr(scores, name) for name in _SCORES}
    return out


def _clusterer(
    rows: NDArray[Any], config: ClusterConfig, way: Way, seed: int
) -> tuple[NDArray[np.int64], float]:
    from bpa.estimators.clusterer import BPAClusterer

    method: Any = _CLUSTERERS[way.transform]
    reg = 0.1 if way.reg is None else float(way.reg)
    fitted = BPAClusterer(
        config.n_clusters, method=method, reg=reg, n_init=config.n_init, random_state=seed
    ).fit(rows)
    return fitted.labels_.astype(np.int64), fitted.inertia_


def _items(n: int, config: ClusterConfig, repeat: int) -> NDArray[np.int64]:
    if config.share == 1:
        return np.arange(n)
    rng = np.random.default_rng((config.seed, repeat, 1))
    return np.sort(rng.permutation(n)[: int(config.share * n)])


def _seed_of(config: ClusterConfig, repeat: int) -> int:
    return int(np.random.default_rng((config.seed, repeat, 0)).integers(2**31 - 1))


def _labels_of(features: FeatureSet, config: ClusterConfig, way: Way, record: RunRecord) -> NDArray[np.int64]:
    """Clusters of all items by one way: its best fit again, or one fit where every repeat left items out."""
    best = int(np.argmin(record.values[f"{way.name}/inertia"])) if config.share == 1 else 0
    whole = replace(config, share=1.0)
    fit = _one_fit(features, whole, _RowsOf(features, whole, way), best)
    return np.asarray(fit["labels"], dtype=np.int64)


def _record(
    features: FeatureSet,
    config: ClusterConfig,
    ways: Sequence[Way],
    done: Mapping[int, Mapping[str, Any]],
    data: Mapping[str, Any],
    seconds: float,
) -> RunRecord:
    scored = features.labels is not None
    values: dict[str, list[float]] = {}
    summary: dict[str, Any] = {}
    for w, way in enumerate(ways):
        fits = [done[w * config.repeats + r] for r in range(config.repeats)]
        for key in (*(_SCORES if scored else ()), "inertia"):
            values[f"{way.name}/{key}"] = [float(fit[key]) for fit in fits]
        entry: dict[str, Any] = {}
        if scored:
            entry |= {key: _percent(mean_interval(values[f"{way.name}/{key}"])) for key in _SCORES}
        labels = [np.asarray(fit["labels"]) for fit in fits]
        entry["agreement"] = _agreement(labels)
        summary[way.name] = entry
    if scored and "identity" in summary:
        for way in ways:
            gain = paired_difference(values[f"{way.name}/nmi"], values["identity/nmi"])
            summary[way.name]["gain"] = None if way.transform == "identity" else _percent(gain)
    return RunRecord(
        study="cluster",
        config=asdict(config),
        data=dict(data),
        values=values,
        summary={"scored": scored, "ways": summary},
        environment=describe_environment(),
        seconds=seconds,
    )


def _agreement(labels: Sequence[NDArray[np.int64]]) -> float | None:
    pairs = [
        adjusted_rand_index(a[both], b[both])
        for i, a in enumerate(labels)
        for b in labels[:i]
        if (both := (a >= 0) & (b >= 0)).any()
    ]
    return 100 * float(np.mean(pairs)) if pairs else None


def _percent(interval: Interval) -> dict[str, float | int]:
    return {"mean": 100 * interval.mean, "half_width": 100 * interval.half_width, "n": interval.n}


def _check_memory(ways: Sequence[Way], n: int, d: int, config: ClusterConfig, budget: int | str) -> None:
    item = 8 if config.dtype == "float64" else 4
    for number, way in enumerate(ways):
        m = n if number == 0 else int(config.share * n)  # the first way also clusters all items
        square = m * m * item
        if way.transform.partition(":")[0] in _SQUARE:
            parts = [("its rows", square), ("their making", square), ("the centred copy of k-means", square)]
        elif way.transform in _CLUSTERERS:
            needed = memory.estimate_sparse(m, d, k=10, dtype=torch.float64)
            parts = [*needed.parts, ("float64 features", 4 * m * d * 8)]
        else:
            parts = [("its rows", m * d * item), ("the centred copy of k-means", m * d * item)]
        memory.check(
            memory.MemoryEstimate(f"clustering {m:,} items by {way.name}", tuple(parts)),
            budget,
            way_out=(
                "Ask for bpa-smooth or bpa-spectral, which need no n × n matrix, with compare off; cluster a "
                "random part of the items (share < 1); or raise the budget."
            ),
        )


def _sklearn(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] in ("sklearn", "scipy"):
            raise MissingExtraError("bpa.runs.clustering", "sklearn") from error
        raise
