"""Clusters on the sphere: when k-means on the transformed set beats k-means on the set; a row is draws of the points.

Ten random centres on the unit sphere of R^d, twenty points around each with Gaussian noise of standard deviation σ per
coordinate, back to the sphere, and PCA to 50 dimensions where d > 50. All ways see the same points and the same
k-means (k-means++, ten starts, seeded by the run), so that differences are paired.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bpa._checks import check_count, check_positive
from bpa.cost import cosine_cost
from bpa.data.synthetic import sphere_clusters
from bpa.metrics.clustering import clustering_scores
from bpa.runs.engine import Part
from bpa.runs.fields.clustering import SCORES, k_means, spectral_rows
from bpa.runs.way import Way

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HOSTS", "Sphere", "SphereTask"]


@dataclass(frozen=True)
class SphereTask:
    """One cell of the grid.

    Parameters
    ----------
    dim : int
        Dimension d.
    noise : float
        Standard deviation σ per coordinate.
    runs : int
        Draws of the points.
    seed : int
        Start of every random stream.
    n_clusters, n_per_cluster : int
        10 and 20 in the paper.
    n_components : int
        PCA above this dimension.
    n_init : int
        k-means++ starts.
    """

    dim: int
    noise: float
    runs: int = 10
    seed: int = 0
    n_clusters: int = 10
    n_per_cluster: int = 20
    n_components: int = 50
    n_init: int = 10

    def __post_init__(self) -> None:
        check_positive(self.noise, argument="noise", function="SphereTask")
        for name in ("dim", "runs", "n_clusters", "n_per_cluster", "n_components", "n_init"):
            check_count(getattr(self, name), argument=name, function="SphereTask")


def _k_means_rows(x: Tensor, way: Way, _k: int, _seed: int) -> Tensor | NDArray[Any]:
    return way.transform.build()(x)


def _spectral(affinity: Callable[[Tensor, Way], Tensor]) -> Callable[[Tensor, Way, int, int], NDArray[Any]]:
    return lambda x, way, k, seed: spectral_rows(affinity(x, way).numpy(), k, seed=seed)


def _plan(x: Tensor, way: Way) -> Tensor:
    w = way.transform.build()(x)
    return 0.5 * (w + w.mT)


HOSTS: Mapping[str, Callable[[Tensor, Way, int, int], Tensor | NDArray[Any]]] = {
    "k-means": _k_means_rows,
    "spectral": _spectral(lambda x, way: (-cosine_cost(x) / way.settings["reg"]).exp()),
    "spectral-cosine": _spectral(lambda x, _: 1 - cosine_cost(x) / 2),
    "spectral-plan": _spectral(_plan),
}
"""What k-means is given: the rows of the transform; or spectral rows of exp(−C / reg), of (1 + cos) / 2, or of the
transform as an affinity."""


class Sphere:
    """Clusters on the sphere; it makes its own data."""

    name = "sphere"

    def data(self, task: SphereTask) -> dict[str, Any]:
        """How many points."""
        return {"source": "bpa.data.synthetic.sphere_clusters", "n": task.n_clusters * task.n_per_cluster}

    def parts(self, task: SphereTask) -> int:
        """Draws."""
        return task.runs

    def compute(self, task: SphereTask, missing: Mapping[Way, Sequence[int]]) -> Iterator[Part]:
        """Cluster each draw of the points in every way that misses it."""
        for run in range(task.runs):
            here = [way for way, runs in missing.items() if run in runs]
            if not here:
                continue
            points = sphere_clusters(
                task.dim, task.noise, n_clusters=task.n_clusters, n_per_cluster=task.n_per_cluster,
                seed=(task.seed, run, task.dim, round(1e6 * task.noise)),
            )  # fmt: skip
            assert points.labels is not None  # noqa: S101 - the generator sets them
            full = torch.from_numpy(points.features).double()
            reduced = _reduced(full, task.n_components)
            for way in here:
                began = time.perf_counter()
                seen = full if way.settings.get("before_pca") else reduced
                rows = HOSTS[way.host](seen, way, task.n_clusters, run)
                labels, _ = k_means(np.asarray(rows), task.n_clusters, n_init=task.n_init, seed=run)
                scores = clustering_scores(points.labels, labels, nmi_average="arithmetic")
                found = [getattr(scores, name) for name in SCORES]
                yield Part(way, run, found, time.perf_counter() - began)

    def score(
        self, _task: SphereTask, _way: Way, parts: Sequence[Any]
    ) -> tuple[dict[str, list[float]], dict[str, Any]]:
        """Accuracy, NMI (arithmetic mean, scikit-learn's default) and adjusted Rand index of every draw."""
        return dict(zip(SCORES, map(list, zip(*parts, strict=True)), strict=True)), {"runs": len(parts)}


def _reduced(points: Tensor, n_components: int) -> Tensor:
    """PCA to ``n_components``, fitted on these points, where they have more dimensions."""
    if points.shape[1] <= n_components:
        return points
    centred = points - points.mean(dim=0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    reduced: Tensor = u[:, :n_components] * s[:n_components]
    return reduced
