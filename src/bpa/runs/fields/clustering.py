"""Clustering of a feature set: every way finds clusters of the same items with the same seeds; a row is repeats.

Every repeat uses one seed (and, with a share below one, one random part of the items) for all ways, so that their
differences are paired. Labels, where there are any, are used in the scores and nowhere else.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from bpa import memory
from bpa._checks import check_choice, check_count, check_interval, check_names
from bpa._extras import needs
from bpa.cost import cosine_cost
from bpa.errors import ShapeError
from bpa.metrics.clustering import NMIAverage, adjusted_rand_index, clustering_scores
from bpa.records import FeatureSet, RunRecord
from bpa.runs.engine import Part
from bpa.runs.way import Way, refuse_moot_auto, transforms_asked, weights_for
from bpa.solvers._choice import Solver
from bpa.transforms.names import NamedTransform, Reg

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "HOSTS",
    "SCORES",
    "ClusterTask",
    "Clustering",
    "clustering_ways",
    "k_means",
    "spectral_rows",
]

DEFAULT_BUDGET = 4 * 2**30
"""Bytes that one clustering may hold where no budget is given: n × n rows of about 18,000 items."""
SCORES = ("acc", "nmi", "ari")
_SQUARE = frozenset({"cosine", "softmax", "dual-softmax", "bpa", "bpa-attn"})


@dataclass(frozen=True)
class ClusterTask:
    """What has to be found, and how often.

    Parameters
    ----------
    n_clusters : int
        Clusters to find.
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
    device, dtype : str
        Of the transform and of k-means.

    Examples
    --------
    >>> ClusterTask(10, repeats=3).share
    1.0
    """

    n_clusters: int
    n_init: int = 10
    repeats: int = 10
    share: float = 1.0
    seed: int = 0
    nmi_average: NMIAverage = "geometric"
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        for name, least in (("n_clusters", 2), ("n_init", 1), ("repeats", 1)):
            check_count(getattr(self, name), argument=name, function="ClusterTask", minimum=least)
        check_interval(self.share, "(0, 1]", argument="share", function="ClusterTask")
        check_choice(
            self.nmi_average, ("geometric", "arithmetic"), argument="nmi_average", function="ClusterTask"
        )
        check_choice(self.dtype, ("float32", "float64"), argument="dtype", function="ClusterTask")


@dataclass(frozen=True)
class _Host:
    """What a clusterer sees: the rows of a transform, or the features themselves and a weight of its own."""

    rows: Callable[[torch.Tensor, int, Mapping[str, Any], int], NDArray[Any]] | None = None
    method: Literal["smooth", "spectral"] | None = None
    has_reg: bool = False
    has_rule: bool = False
    is_square: bool = False


def _kernel_rows(x: torch.Tensor, k: int, settings: Mapping[str, Any], seed: int) -> NDArray[Any]:
    """Spectral clustering of the affinity exp(−C / reg)."""
    affinity = (-cosine_cost(x) / float(settings["reg"])).exp()
    symmetric: NDArray[Any] = (0.5 * (affinity + affinity.mT)).cpu().numpy()
    return spectral_rows(symmetric, k, seed=seed)


def _graph_rows(x: torch.Tensor, k: int, _: Mapping[str, Any], seed: int) -> NDArray[Any]:
    """Embed the neighbour graph as scikit-learn's SpectralClustering(affinity="nearest_neighbors") does."""
    with needs("sklearn", "sklearn", "scipy", feature="spectral clustering"):
        from sklearn.neighbors import kneighbors_graph
    unit = NamedTransform("unit").build()(x).cpu().numpy()
    graph = kneighbors_graph(unit, min(10, len(unit)), include_self=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Graph is not fully connected", UserWarning)
        return spectral_rows(0.5 * (graph + graph.T), k, seed=seed)


HOSTS: Mapping[str, _Host] = {
    "k-means": _Host(),
    "bpa-smooth": _Host(method="smooth", has_reg=True, has_rule=True),
    "bpa-spectral": _Host(method="spectral", has_reg=True, has_rule=True),
    "spectral": _Host(_kernel_rows, has_reg=True, is_square=True),
    "spectral-knn": _Host(_graph_rows),
}
"""Clusterers: k-means on the rows of a transform; ``bpa-smooth`` and ``bpa-spectral``, the methods of that name of
`bpa.estimators.clusterer.BPAClusterer` on the plan of the neighbour graph, without any n × n matrix; ``spectral``,
spectral clustering of exp(−C / reg); ``spectral-knn``, of the plain graph of 10 nearest neighbours of unit rows."""


def clustering_ways(
    hosts: Sequence[str] = ("bpa-smooth", "k-means"),
    transforms: Sequence[str] = ("bpa",),
    *,
    reg: Sequence[Reg] = (),
    solver: Sequence[Solver] = (),
    baselines: bool = True,
) -> list[Way]:
    """Return every clusterer that was asked for, k-means on every transform, then what users have without.

    Parameters
    ----------
    hosts : sequence of str
        Among `HOSTS`; the first way gives the clusters that are written.
    transforms : sequence of str
        For k-means.
    reg : sequence of float or "auto"
        Entropy weights; empty for ``"auto"``. What has a weight but no such rule (``spectral``, softmax rows) takes the
        numbers, or the published 0.1 where there are none, unless nothing that was asked for has the rule.
    solver : sequence of Sweeps or Converged
        Of the transforms.
    baselines : bool
        Add k-means on raw, unit, centred, cosine and softmax rows, and spectral clustering of plain affinities.

    Returns
    -------
    list of Way
        Each once.

    Examples
    --------
    >>> from bpa.runs import labels
    >>> labels(clustering_ways(baselines=False))
    ['bpa-smooth', 'k-means, bpa']
    """
    check_names(hosts, tuple(HOSTS), argument="hosts", function="clustering_ways")
    raw = NamedTransform("identity")

    def of(host: str, named: Sequence[NamedTransform]) -> list[Way]:
        if host == "k-means":
            return [Way(host, transform) for transform in named]
        if not HOSTS[host].has_reg:
            return [Way(host, raw)]
        return [Way(host, raw, {"reg": weight}) for weight in weights_for(reg, rule=HOSTS[host].has_rule)]

    followed = any(HOSTS[host].has_rule for host in hosts)
    if not followed and "k-means" not in hosts:
        refuse_moot_auto(reg, [host for host in hosts if HOSTS[host].has_reg])
    named = transforms if "k-means" in hosts else ()
    asked = transforms_asked(named, reg=reg, solver=solver, baselines=False, beside_rule=followed)
    ways = [way for host in hosts for way in of(host, asked)]
    if baselines:
        naive = transforms_asked(("cosine", "softmax"), reg=reg, beside_rule=True)
        ways += [*of("k-means", naive), *of("spectral", ()), *of("spectral-knn", ())]
    return list(dict.fromkeys(ways))


class Clustering:
    """Clustering of one feature set.

    Parameters
    ----------
    features : FeatureSet
    budget : int or str, optional
        Most bytes one clustering may hold; 4 GiB if not given. What would exceed it is refused before anything is
        allocated.

    Examples
    --------
    >>> from bpa.data.synthetic import sphere_clusters
    >>> Clustering(sphere_clusters(8, 0.1, n_clusters=4)).data(ClusterTask(4))["n"]
    80
    """

    name = "clustering"

    def __init__(self, features: FeatureSet, *, budget: int | str | None = None) -> None:
        self.features, self.budget = features, DEFAULT_BUDGET if budget is None else budget

    def data(self, _: ClusterTask) -> dict[str, Any]:
        """Which file."""
        given = self.features
        return {"source": Path(given.source).name, "sha256": given.sha256, "n": len(given), "dim": given.dim}

    def parts(self, task: ClusterTask) -> int:
        """Repeats."""
        return task.repeats

    def compute(self, task: ClusterTask, missing: Mapping[Way, Sequence[int]]) -> Iterator[Part]:
        """Fit way by way, so that the rows of one way are alive at a time."""
        self.check(task, list(missing))
        for way, repeats in missing.items():
            fit = _Fit(self.features, task, way)
            for repeat in repeats:
                began = time.perf_counter()
                found = fit(repeat)
                yield Part(way, repeat, found, time.perf_counter() - began)

    def score(
        self, _task: ClusterTask, _way: Way, parts: Sequence[Any]
    ) -> tuple[dict[str, list[float]], dict[str, Any]]:
        """Scores of every repeat where there are labels, its inertia, and how far repeats agree with one another."""
        scored = (*SCORES, "inertia") if self.features.labels is not None else ("inertia",)
        values = {key: [float(fit[key]) for fit in parts] for key in scored}
        return values, {"agreement": _agreement([np.asarray(fit["labels"]) for fit in parts])}

    def clusters(self, task: ClusterTask, record: RunRecord) -> NDArray[np.int64]:
        """Clusters of all items by one way: its best fit again, or one fit where every repeat left items out."""
        self._check_memory(Way.from_dict(record.way), len(self.features), task)
        best = int(np.argmin(record.values["inertia"])) if task.share == 1 else 0
        fit = _Fit(self.features, replace(task, share=1.0), Way.from_dict(record.way))
        return np.asarray(fit(best)["labels"], dtype=np.int64)

    def check(self, task: ClusterTask, ways: Sequence[Way]) -> None:
        """Refuse what has too few items or does not fit the budget."""
        n = int(task.share * len(self.features))
        if task.n_clusters > n:
            raise ShapeError(
                f"Clustering was asked for n_clusters={task.n_clusters} of {n} items. Ask for at most as many clusters "
                f"as items."
            )
        for number, way in enumerate(ways):  # the first way also clusters all items
            self._check_memory(way, len(self.features) if number == 0 else n, task)

    def _check_memory(self, way: Way, n: int, task: ClusterTask) -> None:
        d, host, item = self.features.dim, HOSTS[way.host], 8 if task.dtype == "float64" else 4
        square = n * n * item
        if host.is_square or (way.host == "k-means" and way.transform.name in _SQUARE):
            parts = [("its rows", square), ("their making", square), ("the centred copy of k-means", square)]
        elif host.method is not None:
            needed = memory.estimate_graph_plan(n, d, k=10, dtype=torch.float64)
            parts = [*needed.parts, ("float64 features", 4 * n * d * 8)]
        else:
            parts = [("its rows", n * d * item), ("the centred copy of k-means", n * d * item)]
        through = f" of {way.transform.name} rows" if way.host == "k-means" else ""
        memory.check(
            memory.MemoryEstimate(f"clustering {n:,} items by {way.host}{through}", tuple(parts)),
            self.budget,
            way_out=(
                "Ask for bpa-smooth or bpa-spectral, which need no n × n matrix, without the baselines; cluster a "
                "random part of the items (share < 1); or raise the budget."
            ),
        )


class _Fit:
    """Clusters and scores of one way by number of repeat; rows are made once where every repeat has the same items."""

    def __init__(self, features: FeatureSet, task: ClusterTask, way: Way) -> None:
        self.features, self.task, self.way = features, task, way
        self._rows: NDArray[Any] | None = None

    def __call__(self, repeat: int) -> dict[str, Any]:
        task, n = self.task, len(self.features)
        items, seed = np.arange(n), int(np.random.default_rng((task.seed, repeat, 0)).integers(2**31 - 1))
        if task.share < 1:
            drawn = np.random.default_rng((task.seed, repeat, 1)).permutation(n)
            items = np.sort(drawn[: int(task.share * n)])
        method = HOSTS[self.way.host].method
        if method is not None:
            clusters, inertia = self._clusterer(method, self.features.features[items], seed)
        else:
            clusters, inertia = k_means(self._seen(items), task.n_clusters, n_init=task.n_init, seed=seed)
        labels = np.full(n, -1, dtype=np.int64)
        labels[items] = clusters
        out: dict[str, Any] = {"inertia": inertia, "labels": labels}
        if self.features.labels is not None:
            scores = clustering_scores(self.features.labels[items], clusters, nmi_average=task.nmi_average)
            out |= {name: getattr(scores, name) for name in SCORES}
        return out

    def _seen(self, items: NDArray[np.int64]) -> NDArray[Any]:
        """The rows that k-means sees."""
        whole = len(items) == len(self.features)
        if whole and self._rows is not None:
            return self._rows
        x = torch.from_numpy(np.asarray(self.features.features)[items])
        rows = self._made(x.to(self.task.device, getattr(torch, self.task.dtype)))
        if whole:
            self._rows = rows
        return rows

    @torch.no_grad()
    def _made(self, x: torch.Tensor) -> NDArray[Any]:
        host = HOSTS[self.way.host]
        if host.rows is not None:
            return host.rows(x, self.task.n_clusters, self.way.settings, self.task.seed)
        rows: NDArray[Any] = self.way.transform.build()(x).cpu().numpy()
        return rows

    def _clusterer(
        self, method: Literal["smooth", "spectral"], rows: NDArray[Any], seed: int
    ) -> tuple[NDArray[np.int64], float]:
        from bpa.estimators import BPAClusterer

        fitted = BPAClusterer(
            self.task.n_clusters, method=method, reg=self.way.settings["reg"], n_init=self.task.n_init,
            random_state=seed,
        ).fit(rows)  # fmt: skip
        return fitted.labels_.astype(np.int64), fitted.inertia_


def k_means(
    rows: NDArray[Any], n_clusters: int, *, n_init: int, seed: int
) -> tuple[NDArray[np.int64], float]:
    """Labels and inertia of k-means++ with ``n_init`` starts (Lloyd, at most 300 iterations)."""
    with needs("sklearn", "sklearn", "scipy", feature="k-means"):
        from sklearn.cluster import KMeans
    fitted = KMeans(n_clusters=n_clusters, n_init=n_init, random_state=seed).fit(rows)
    return fitted.labels_.astype(np.int64), float(fitted.inertia_)


def spectral_rows(affinity: NDArray[Any], n_components: int, *, seed: int) -> NDArray[Any]:
    """Leading eigenvectors of a symmetric affinity, as scikit-learn's SpectralClustering uses them."""
    with needs("sklearn", "sklearn", "scipy", feature="spectral clustering"):
        from sklearn.manifold import spectral_embedding
    rows: NDArray[Any] = spectral_embedding(
        affinity, n_components=n_components, eigen_solver="arpack", random_state=seed, drop_first=False
    )
    return rows


def _agreement(labels: Sequence[NDArray[np.int64]]) -> float | None:
    """Mean adjusted Rand index between repeats, in percent, over the items they share."""
    pairs = [
        adjusted_rand_index(a[both], b[both])
        for i, a in enumerate(labels)
        for b in labels[:i]
        if (both := (a >= 0) & (b >= 0)).any()
    ]
    return 100 * float(np.mean(pairs)) if pairs else None
