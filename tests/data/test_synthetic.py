from __future__ import annotations

import numpy as np
import pytest

from bpa.data.synthetic import sphere_clusters
from bpa.errors import ArgumentError


def test_sphere_points_are_unit_rows_in_clusters_of_one_size():
    points = sphere_clusters(37, 0.3, n_clusters=6, n_per_cluster=11)
    assert points.features.shape == (66, 37)
    assert np.allclose(np.linalg.norm(points.features, axis=1), 1, atol=1e-6)
    assert np.bincount(points.labels).tolist() == [11] * 6


def test_sphere_noise_is_the_standard_deviation_of_a_coordinate():
    # x.c of a point with its centre tends to 1 / sqrt(1 + sigma² d); with n points around it the mean
    # direction is c
    points = sphere_clusters(200, 0.1, n_clusters=1, n_per_cluster=5000, seed=4)
    centre = points.features.mean(axis=0)
    centre /= np.linalg.norm(centre)
    assert (points.features @ centre).mean() == pytest.approx(1 / np.sqrt(1 + 0.01 * 200), abs=0.01)


def test_sphere_without_noise_is_its_centres():
    points = sphere_clusters(5, 0.0, n_clusters=3, n_per_cluster=4)
    assert len(np.unique(points.features, axis=0)) == 3


def test_sphere_centres_have_no_preferred_direction():
    centres = sphere_clusters(3, 0.0, n_clusters=20000, n_per_cluster=1, seed=1).features.astype(np.float64)
    assert np.allclose(centres.mean(axis=0), 0, atol=0.02)
    assert np.allclose(centres.T @ centres / 20000, np.eye(3) / 3, atol=0.02)


def test_sphere_follows_its_seed():
    first, again, other = (sphere_clusters(9, 0.2, seed=s).features for s in ((3, 1), (3, 1), (3, 2)))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"dim": 1, "noise": 0.1}, "'dim'"),
        ({"dim": 3, "noise": -0.1}, "'noise'"),
        ({"dim": 3, "noise": float("nan")}, "'noise'"),
        ({"dim": 3, "noise": 0.1, "n_clusters": 0}, "'n_clusters'"),
        ({"dim": 3, "noise": 0.1, "n_per_cluster": 2.5}, "'n_per_cluster'"),
    ],
)
def test_sphere_refuses_what_it_cannot_draw(arguments, says):
    with pytest.raises(ArgumentError, match=says):
        sphere_clusters(**arguments)
