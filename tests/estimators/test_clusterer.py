from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="the clusterer is a scikit-learn estimator")

from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning
from sklearn.exceptions import SkipTestWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from bpa.data.synthetic import sphere_clusters
from bpa.errors import ArgumentError
from bpa.estimators import BPAClusterer
from bpa.plans import DensePlan

METHODS = ("smooth", "spectral", "rows")


@pytest.fixture
def blobs():
    points = sphere_clusters(12, 0.12, n_clusters=4, n_per_cluster=25, seed=2)
    return points.features.astype(np.float64), points.labels


def cosine_costs(a, b):
    a, b = (np.float64(m) / np.linalg.norm(np.float64(m), axis=1, keepdims=True) for m in (a, b))
    return np.clip(1 - a @ b.T, 0, None)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_check_of_scikit_learn_passes(method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        warnings.simplefilter("ignore", SklearnConvergenceWarning)  # fewer distinct points than clusters
        results = check_estimator(BPAClusterer(method=method), on_skip=None, on_fail=None)
    failed = [r["check_name"] for r in results if r["status"] not in ("passed", "skipped")]
    skipped = [r["check_name"] for r in results if r["status"] == "skipped"]
    assert failed == []
    assert set(skipped) <= {"check_array_api_input"}
    assert len(results) > 40


@pytest.mark.parametrize("method", METHODS)
def test_separated_clusters_are_found_and_new_items_join_them(blobs, method):
    x, y = blobs
    new = sphere_clusters(12, 0.12, n_clusters=4, n_per_cluster=40, seed=2)  # same centres, other points
    clusterer = BPAClusterer(4, method=method, random_state=0).fit(x)
    assert adjusted_rand_score(y, clusterer.labels_) == 1.0
    together = np.concatenate([clusterer.labels_, clusterer.predict(new.features)])
    assert adjusted_rand_score(np.concatenate([y, new.labels]), together) == 1.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("metric", ["cosine", "sqeuclidean"])
def test_fitted_items_are_predicted_as_they_were_labelled(method, metric):
    points = sphere_clusters(8, 0.5, n_clusters=5, n_per_cluster=30, seed=3).features
    reg = "auto" if metric == "cosine" else 0.3
    clusterer = BPAClusterer(5, method=method, metric=metric, reg=reg, random_state=1).fit(points)
    assert np.array_equal(clusterer.predict(points), clusterer.labels_)
    one_by_one = np.concatenate([clusterer.predict(row[None]) for row in points[:20]])
    assert np.array_equal(one_by_one, clusterer.labels_[:20])


@pytest.mark.parametrize("method", ["spectral", "rows"])
def test_precomputed_costs_give_clusters_and_places_for_new_items(blobs, method):
    x, y = blobs
    new = sphere_clusters(12, 0.12, n_clusters=4, n_per_cluster=40, seed=2)
    clusterer = BPAClusterer(4, method=method, reg=0.1, metric="precomputed", random_state=0).fit(
        cosine_costs(x, x)
    )
    assert adjusted_rand_score(y, clusterer.labels_) == 1.0
    assert np.array_equal(clusterer.predict(cosine_costs(x, x)), clusterer.labels_)
    placed = clusterer.predict(cosine_costs(new.features, x))
    assert adjusted_rand_score(np.r_[y, new.labels], np.r_[clusterer.labels_, placed]) == 1.0


def test_rounding_on_the_diagonal_of_given_costs_merges_no_items(blobs):
    x, y = blobs
    costs = cosine_costs(x, x) + 1e-6 * np.eye(len(x))
    clusterer = BPAClusterer(4, method="rows", reg=0.1, metric="precomputed", random_state=0).fit(costs)
    assert clusterer._places.transformer.item_of_sample_.tolist() == list(range(len(x)))
    assert adjusted_rand_score(y, clusterer.labels_) == 1.0


def test_precomputed_costs_have_nothing_to_average(blobs):
    with pytest.raises(ArgumentError, match="'smooth' with metric='precomputed'"):
        BPAClusterer(4, metric="precomputed").fit(cosine_costs(blobs[0], blobs[0]))


@pytest.mark.parametrize("dense", [True, False])
def test_spectral_places_extend_the_eigenvectors_of_the_plan(blobs, dense):
    x = sphere_clusters(12, 0.3, n_clusters=4, n_per_cluster=150, seed=2).features
    given = cosine_costs(x, x) if dense else x
    metric = "precomputed" if dense else "cosine"
    clusterer = BPAClusterer(4, method="spectral", reg=0.1, metric=metric, random_state=0).fit(given)
    assert clusterer.eigenvalues_[0] == pytest.approx(1.0, abs=1e-5)
    assert (np.diff(clusterer.eigenvalues_) <= 0).all()
    places, vectors = clusterer._places.of(np.asarray(given, dtype=np.float64)), clusterer._places.vectors
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    if dense:
        order = clusterer._places.item_of_sample
    else:
        plan = clusterer._places.plan
        prepared = plan.preparation.rows(torch.from_numpy(x).double(), torch.float64)
        order = [int((plan.features - row).abs().sum(dim=1).argmin()) for row in prepared]
    assert np.allclose(places, unit[order], atol=1e-4)


def test_smooth_places_are_means_over_the_partners(blobs):
    x, _ = blobs
    clusterer = BPAClusterer(4, reg=0.1, n_neighbors=99, random_state=0).fit(
        x
    )  # everybody: the graph is whole
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    c = unit - unit.mean(axis=0)
    c /= np.linalg.norm(c, axis=1, keepdims=True)
    cost = 1 - c @ c.T
    np.fill_diagonal(cost, np.inf)
    kernel = np.exp(-cost / 0.1)
    u = np.ones(len(x))
    for _ in range(3000):
        u = np.sqrt(u / (kernel @ u))
    plan = u[:, None] * kernel * u[None]
    assert np.abs(plan.sum(axis=1) - 1).max() < 1e-8
    means = plan @ c
    expected = means / np.linalg.norm(means, axis=1, keepdims=True)
    assert np.allclose(clusterer._places.of(x), expected, atol=1e-4)


@pytest.mark.parametrize("metric", ["cosine", "sqeuclidean"])
@pytest.mark.parametrize("method", METHODS)
def test_the_rule_chooses_the_weight_of_the_set(blobs, method, metric):
    x, y = blobs
    clusterer = BPAClusterer(4, method=method, metric=metric, random_state=0).fit(10 * x)
    places = clusterer._places
    plan = places.transformer.plan_ if method == "rows" else places.plan
    assert 0.08 - 1e-9 <= plan.reg <= 0.4
    assert plan.reg == pytest.approx(DensePlan.fit(10 * x, reg="auto", cost=metric).reg)
    assert adjusted_rand_score(y, clusterer.labels_) == 1.0


@pytest.mark.parametrize("method", METHODS)
def test_samples_that_coincide_share_a_cluster(blobs, method):
    x = np.vstack([blobs[0], blobs[0][:30]])
    labels = BPAClusterer(7, method=method, random_state=0).fit(x).labels_
    assert np.array_equal(labels[:30], labels[100:])


def test_the_random_state_decides_and_the_length_of_features_does_not(blobs):
    x, _ = blobs
    lengths = np.linspace(0.5, 4, len(x))[:, None]
    first = BPAClusterer(6, n_init=1, random_state=3).fit(x)
    again = BPAClusterer(6, n_init=1, random_state=3).fit(x * lengths)
    assert first.inertia_ == pytest.approx(again.inertia_, rel=1e-6)
    assert np.array_equal(first.labels_, again.labels_)


def test_two_distinct_points_are_two_clusters():
    x = np.array([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 2)
    labels = BPAClusterer(2, random_state=0).fit(x).labels_
    assert labels[:3].tolist() == [labels[0]] * 3
    assert labels[3:].tolist() == [1 - labels[0]] * 2


def test_it_lives_in_pipelines_and_survives_cloning_and_pickling(blobs):
    x, y = blobs
    pipeline = make_pipeline(StandardScaler(), BPAClusterer(4, random_state=0))
    assert adjusted_rand_score(y, pipeline.fit_predict(x)) == 1.0
    fitted = BPAClusterer(4, method="spectral", reg=0.2, random_state=0).fit(x)
    assert clone(fitted).get_params() == fitted.get_params()
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict(x), fitted.labels_)


@pytest.mark.slow
def test_smoothing_gains_on_digits_over_plain_k_means():
    x, y = load_digits(return_X_y=True)
    plain = adjusted_rand_score(y, KMeans(10, n_init=10, random_state=0).fit_predict(x))
    smooth = adjusted_rand_score(y, BPAClusterer(10, random_state=0).fit_predict(x))
    spectral = adjusted_rand_score(y, BPAClusterer(10, method="spectral", random_state=0).fit_predict(x))
    assert smooth > plain + 0.03
    assert spectral > plain + 0.10


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"method": "ward"}, "'method'"),
        ({"metric": "l1"}, "'metric'"),
        ({"n_clusters": 0}, "'n_clusters'"),
        ({"n_neighbors": 2.5}, "'n_neighbors'"),
        ({"n_init": 0}, "'n_init'"),
        ({"n_clusters": 101}, "n_samples=100"),
        ({"reg": -1.0}, "'reg'"),
        ({"metric": "precomputed", "method": "rows"}, "'reg' parameter of BPAClusterer"),
    ],
)
def test_parameters_that_cannot_work_are_refused(blobs, parameters, says):
    with pytest.raises(ArgumentError, match=says):
        BPAClusterer(**{"n_clusters": 4, **parameters}).fit(blobs[0])
