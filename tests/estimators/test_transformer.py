"""The scikit-learn face of the transform."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from bpa import ConvergenceWarning, balanced_affinities
from bpa.cost import cosine_cost
from bpa.errors import ArgumentError, UnknownArgumentError
from bpa.estimators import BPATransformer
from bpa.plans import DensePlan
from bpa.solvers import Converged, Sweeps


@parametrize_with_checks(
    [
        BPATransformer(),
        BPATransformer(reg=0.05, scale=None),
        BPATransformer(reg=0.1, metric="centred-cosine", solver="sweeps:5"),
        BPATransformer(metric="sqeuclidean", reg=1.0),
        BPATransformer(reg=0.1, metric="precomputed"),
    ]
)
@pytest.mark.filterwarnings("ignore:.*SCIPY_ARRAY_API:sklearn.exceptions.SkipTestWarning")
def test_is_a_scikit_learn_estimator(estimator, check) -> None:
    check(estimator)


@pytest.mark.parametrize("metric", ["cosine", "sqeuclidean"])
@pytest.mark.parametrize("scale", ["max", None])
def test_fitted_rows_are_the_converged_transform(clusters, metric: str, scale: str | None) -> None:
    features = torch.from_numpy(clusters[0]).double()
    fitted = BPATransformer(reg=0.2, metric=metric, scale=scale, solver=Converged(1e-11)).fit(
        features.numpy()
    )
    expected = balanced_affinities(features, reg=0.2, cost=metric, solver=Converged(1e-11), scale=scale)
    np.testing.assert_allclose(fitted.transform(features.numpy()), expected.numpy(), atol=1e-8)
    assert fitted.plan_.convergence.marginal_error <= 1e-11
    assert fitted.reg_ == 0.2


def test_a_new_item_gets_the_row_its_potentials_give_it(clusters) -> None:
    features, _ = clusters
    fitted = BPATransformer(reg=0.1).fit(features)
    new = features[:3] + 0.1
    cost = cosine_cost(torch.from_numpy(new).double(), torch.from_numpy(features).double()).numpy()
    weight = np.exp(fitted.plan_.log_v.numpy() - cost / 0.1)
    expected = weight / weight.sum(axis=1, keepdims=True) / fitted.plan_.scale
    np.testing.assert_allclose(fitted.transform(new), expected, rtol=1e-5, atol=1e-7)


def test_late_items_are_near_their_joint_row(clusters) -> None:
    features, _ = clusters
    late = features[-1:]
    frozen = BPATransformer(reg=0.2, scale=None).fit(features[:-1]).transform(late)[0]
    joint = BPATransformer(reg=0.2, scale=None).fit_transform(features)[-1, :-1]
    assert 0.5 * np.abs(frozen - joint).sum() < 0.05  # total variation


def test_coinciding_samples_are_one_item() -> None:
    generator = np.random.default_rng(0)
    distinct = np.vstack([generator.normal(size=(10, 4)), np.zeros((1, 4))])
    which = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 3, 3, 10])
    lengths = np.where(which == 10, 1.0, generator.uniform(0.5, 2.0, 14))[:, None]
    repeated = distinct[which] * lengths  # for the cosine, length is nothing
    fitted = BPATransformer(reg=0.3).fit(repeated)
    assert fitted.plan_.n == 11
    assert fitted.item_of_sample_.tolist() == which.tolist()
    whole, once = fitted.transform(repeated), BPATransformer(reg=0.3).fit_transform(distinct)
    np.testing.assert_allclose(whole, once[which][:, which], atol=1e-5)
    assert whole.shape == (14, 14)
    assert (whole[3, [3, 11, 12]] == 1).all()


def test_one_item_alone_and_its_newcomers() -> None:
    fitted = BPATransformer(reg=0.1).fit(np.array([[1.0, 2.0]]))
    np.testing.assert_allclose(fitted.transform([[1.0, 2.0], [0.0, 1.0]]), [[1.0], [1.0]])
    assert BPATransformer().fit([[1.0, 2.0]]).transform([[1.0, 2.0], [0.0, 1.0]])[0, 0] == 1.0


def test_precomputed_costs_give_the_same_rows(clusters) -> None:
    features, _ = clusters
    cost = np.clip(cosine_cost(torch.from_numpy(features).double()).numpy(), 0, None)
    np.fill_diagonal(cost, 0)
    cost = (cost + cost.T) / 2
    by_cost = BPATransformer(0.1, metric="precomputed").fit(cost[:50, :50])
    by_feature = BPATransformer(0.1).fit(features[:50])
    np.testing.assert_allclose(
        by_cost.transform(cost[50:, :50]), by_feature.transform(features[50:]), atol=1e-4
    )
    again = np.concatenate([cost[:50, :50], cost[:3, :50]])  # three items twice: their costs are zero
    twice = np.concatenate([again, again[:, :3]], axis=1)
    rows = BPATransformer(0.1, metric="precomputed").fit(twice)
    assert rows.item_of_sample_.tolist() == [*range(50), 0, 1, 2]
    np.testing.assert_allclose(rows.transform(twice)[:50, :50], by_cost.transform(cost[:50, :50]), atol=1e-6)


@pytest.mark.parametrize("reg", ["auto", 0.1])
@pytest.mark.parametrize("metric", ["cosine", "centred-cosine", "sqeuclidean"])
def test_it_is_a_plan_and_nothing_beside_it(clusters, metric: str, reg: float | str) -> None:
    features = torch.from_numpy(clusters[0]).double()
    reg = 8.0 if (metric, reg) == ("sqeuclidean", 0.1) else reg
    fitted = BPATransformer(reg, metric=metric).fit(features.numpy())
    plan = DensePlan.fit(features, reg=reg, cost=metric)
    assert (fitted.reg_, fitted.plan_.cost) == (plan.reg, plan.cost)
    np.testing.assert_allclose(fitted.plan_.log_u.numpy(), plan.log_u.numpy(), atol=1e-12)
    if reg != "auto":
        np.testing.assert_array_equal(fitted.transform(features.numpy()), plan.transform(features).numpy())


def test_sweeps_are_the_paper_s(clusters) -> None:
    features = torch.from_numpy(clusters[0]).double()
    fitted = BPATransformer(0.1, solver="sweeps:5").fit(features.numpy())
    expected = balanced_affinities(features, reg=0.1, solver=Sweeps(5))
    np.testing.assert_allclose(fitted.plan_.affinities().numpy(), expected.numpy(), atol=1e-10)


def test_rows_do_not_depend_on_the_block_they_come_in(clusters, monkeypatch) -> None:
    features, _ = clusters
    fitted = BPATransformer().fit(features[:40])
    whole = fitted.transform(features)
    monkeypatch.setattr("bpa.estimators._transformer._BLOCK_NUMBERS", 120)
    np.testing.assert_allclose(fitted.transform(features), whole, atol=1e-12)


def test_float32_in_float32_out(clusters) -> None:
    features, _ = clusters
    assert BPATransformer().fit_transform(features).dtype == np.float32
    assert BPATransformer().fit_transform(features.astype(np.float64)).dtype == np.float64


def test_lives_in_pipelines_grids_frames_and_pickles(clusters) -> None:
    features, labels = clusters
    pipeline = make_pipeline(BPATransformer(), KNeighborsClassifier(3))
    grid = GridSearchCV(pipeline, {"bpatransformer__reg": [0.05, 0.2]}, cv=3).fit(features, labels)
    assert grid.best_score_ > 0.8
    frame = BPATransformer().set_output(transform="pandas").fit_transform(features)
    assert list(frame.columns[:2]) == ["bpatransformer0", "bpatransformer1"]
    fitted = BPATransformer().fit(features)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(features[:5]), fitted.transform(features[:5]))
    assert clone(fitted).reg == fitted.reg


def test_feeds_clustering(clusters) -> None:
    features, labels = clusters
    rows = BPATransformer(reg=0.1).fit_transform(features)
    found = KMeans(5, n_init=5, random_state=0).fit_predict(rows)
    assert len({(a, b) for a, b in zip(found, labels, strict=True)}) == 5
    affinity = (rows + rows.T) / 2
    spectral = SpectralClustering(5, affinity="precomputed", random_state=0).fit_predict(affinity)
    assert len({(a, b) for a, b in zip(spectral, labels, strict=True)}) == 5


def test_says_when_it_did_not_converge(clusters) -> None:
    with pytest.warns(ConvergenceWarning, match=r"BPATransformer reached.*Raise reg, tol or max_iter"):
        fitted = BPATransformer(solver=Converged(1e-9, max_iter=3)).fit(clusters[0])
    assert not bool(fitted.plan_.convergence.converged)


@pytest.mark.parametrize(
    ("options", "data", "pattern"),
    [
        ({"metric": "manhattan"}, np.eye(3), "'metric'.*manhattan"),
        ({"scale": "sum"}, np.eye(3), "'scale'.*sum"),
        ({"reg": 0.0}, np.eye(3), "'reg'"),
        ({"reg": "best"}, np.eye(3), "'reg'"),
        ({"solver": "newton"}, np.eye(3), "sweeps:N"),
        ({"metric": "precomputed"}, np.ones((3, 3)), "'reg'.*choose_reg"),
        ({"scale": None}, np.eye(3), "'scale'.*auto"),
        ({"metric": "precomputed", "reg": 0.1}, np.ones((3, 2)), "square costs"),
        ({"metric": "precomputed", "reg": 0.1}, -np.eye(3), "at least 0"),
    ],
)
def test_wrong_options_are_refused_in_words(options: dict, data: np.ndarray, pattern: str) -> None:
    with pytest.raises(ArgumentError, match=pattern):
        BPATransformer(**options).fit(data)


def test_the_words_of_others_are_explained() -> None:
    with pytest.raises(
        UnknownArgumentError, match=r"BPATransformer has no parameter 'tol': write solver=Converged"
    ):
        BPATransformer(tol=1e-6)
