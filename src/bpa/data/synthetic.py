"""Sets made up from a seed, with labels known because they were chosen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bpa._checks import check_count, check_interval
from bpa.records import FeatureSet

__all__ = ["sphere_clusters"]


def sphere_clusters(
    dim: int,
    noise: float,
    *,
    n_clusters: int = 10,
    n_per_cluster: int = 20,
    seed: int | Sequence[int] = 0,
) -> FeatureSet:
    r"""Gaussian clusters around random centres, all on the unit sphere.

    .. math:: x = \frac{c + \sigma g}{\|c + \sigma g\|}, \qquad g \sim N(0, I_d), \quad c \text{ uniform on the sphere}

    Parameters
    ----------
    dim : int
        d, at least 2.
    noise : float
        σ, the standard deviation **per coordinate**: the energy of the noise is σ²·d beside a centre of
        length 1. Read as the length of the whole noise vector, the clusters of the published study would
        separate perfectly at every published setting.
    n_clusters, n_per_cluster : int
        Centres, and points around each.
    seed : int or sequence of int
        Start of the random stream, e.g. ``(seed, run)``.

    Returns
    -------
    FeatureSet
        Unit rows of shape (n_clusters · n_per_cluster, dim), cluster after cluster.

    Examples
    --------
    >>> points = sphere_clusters(3, 0.1, n_clusters=2, n_per_cluster=4)
    >>> points.features.shape, points.labels.tolist()
    ((8, 3), [0, 0, 0, 0, 1, 1, 1, 1])
    """
    check_count(dim, argument="dim", function="sphere_clusters", minimum=2)
    check_count(n_clusters, argument="n_clusters", function="sphere_clusters")
    check_count(n_per_cluster, argument="n_per_cluster", function="sphere_clusters")
    check_interval(noise, "[0, inf)", argument="noise", function="sphere_clusters")
    rng = np.random.default_rng(seed)
    centres = _unit(rng.standard_normal((n_clusters, dim)))
    labels = np.repeat(np.arange(n_clusters, dtype=np.int64), n_per_cluster)
    points = _unit(centres[labels] + noise * rng.standard_normal((len(labels), dim)))
    return FeatureSet(
        features=points.astype(np.float32),
        labels=labels,
        source=f"sphere_clusters(dim={dim}, noise={noise:g})",
    )


def _unit(rows: np.ndarray) -> np.ndarray:
    out: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return out
