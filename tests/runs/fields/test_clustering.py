"""Clustering: every clusterer on the same items and seeds, scored where there are labels, within the memory allowed."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="k-means is scikit-learn's")

from bpa.data.synthetic import sphere_clusters
from bpa.errors import ArgumentError, MemoryBudgetError, ShapeError
from bpa.metrics.clustering import adjusted_rand_index, clustering_scores
from bpa.records import FeatureSet, RunRecord
from bpa.runs import RunStore, Way, labels, run
from bpa.runs.clusters import write_clusters
from bpa.runs.fields.clustering import Clustering, ClusterTask, clustering_ways, k_means, spectral_rows

TASK = ClusterTask(n_clusters=5, repeats=3, n_init=2)
BPA = clustering_ways(("k-means",), ("bpa",), reg=(0.5,))


@pytest.fixture
def easy() -> FeatureSet:
    return sphere_clusters(20, 0.05, n_clusters=5, n_per_cluster=12, seed=1)


@pytest.fixture
def hard() -> FeatureSet:
    return sphere_clusters(60, 0.3, n_clusters=5, n_per_cluster=12, seed=1)


def found(features: FeatureSet, task: ClusterTask, ways: Sequence[Way], **more: Any) -> dict[str, RunRecord]:
    budget = more.pop("budget", None)
    records = run("cluster", Clustering(features, budget=budget), [(task, ways)], **more)
    return dict(zip(labels(ways), records, strict=True))


def plain(*transforms: str) -> list[Way]:
    return clustering_ways(("k-means",), transforms, baselines=False)


def test_ways_are_what_was_asked_for_then_what_users_have() -> None:
    ways = clustering_ways(("bpa-smooth", "k-means"), ("bpa", "unit"), reg=(0.25, 0.5))
    assert labels(ways) == [
        "bpa-smooth, reg 0.25", "bpa-smooth, reg 0.5", "k-means, bpa, reg 0.25", "k-means, bpa, reg 0.5",
        "k-means, unit", "k-means, identity", "k-means, centred", "k-means, cosine", "k-means, softmax, reg 0.25",
        "k-means, softmax, reg 0.5", "spectral, reg 0.25", "spectral, reg 0.5", "spectral-knn",
    ]  # fmt: skip
    assert labels(clustering_ways(("k-means",), ("bpa", "unit"), reg=(0.5,), baselines=False)) == [
        "bpa",
        "unit",
    ]


def test_what_has_no_rule_runs_at_its_published_weight_and_says_so() -> None:
    said = labels(clustering_ways(reg=("auto",)))
    assert {
        "k-means, bpa, reg auto",
        "k-means, softmax, reg 0.1",
        "bpa-smooth, reg auto",
        "spectral, reg 0.1",
    } <= set(said)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_clusters": 1}, "'n_clusters'"),
        ({"repeats": 0}, "'repeats'"),
        ({"share": 0.0}, "'share'"),
        ({"nmi_average": "harmonic"}, "'nmi_average'"),
    ],
)
def test_a_task_that_cannot_be_done_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        replace(TASK, **change)


def test_a_clusterer_that_is_not_known_is_refused() -> None:
    for hosts in (("k-medians",), ()):
        with pytest.raises(
            ArgumentError, match="'hosts' parameter of clustering_ways may name k-means, bpa-smooth"
        ):
            clustering_ways(hosts)


def test_auto_is_refused_where_no_clusterer_has_the_rule() -> None:
    with pytest.raises(ArgumentError, match="not for spectral"):
        clustering_ways(("spectral", "spectral-knn"), reg=("auto",))
    with pytest.raises(ArgumentError, match="not for softmax"):
        clustering_ways(("k-means",), ("softmax",), reg=("auto",))
    assert clustering_ways(("bpa-smooth", "k-means"), ("softmax",), reg=("auto",))
    assert clustering_ways(("spectral-knn",), reg=("auto",))  # nothing there has a weight


def test_separated_clusters_are_found_in_every_way(easy: FeatureSet) -> None:
    ways = clustering_ways(("k-means", "bpa-smooth", "bpa-spectral"), reg=(0.5,))
    task = replace(TASK, n_init=10)
    records = found(easy, task, ways)
    for name, record in records.items():
        assert min(record.values["ari"]) == pytest.approx(1.0), name
    clusters = Clustering(easy).clusters(task, next(iter(records.values())))
    assert adjusted_rand_index(easy.labels, clusters) == pytest.approx(1.0)


def test_scores_are_those_of_the_clusters_that_are_written(hard: FeatureSet) -> None:
    (record,) = found(hard, TASK, plain("identity")).values()
    clusters = Clustering(hard).clusters(TASK, record)
    best = int(np.argmin(record.values["inertia"]))
    scores = clustering_scores(hard.labels, clusters, nmi_average="geometric")
    assert record.values["nmi"][best] == pytest.approx(scores.nmi)
    assert record.values["acc"][best] == pytest.approx(scores.acc)
    centres = np.stack([hard.features[clusters == c].mean(axis=0) for c in range(5)])
    inertia = ((hard.features - centres[clusters]) ** 2).sum()
    assert record.values["inertia"][best] == pytest.approx(inertia, rel=1e-5)


def test_labels_never_change_the_clusters(hard: FeatureSet) -> None:
    blind = replace(hard, labels=None)
    (seen,), (unseen,) = (found(given, TASK, plain("bpa")).values() for given in (hard, blind))
    assert np.array_equal(Clustering(hard).clusters(TASK, seen), Clustering(blind).clusters(TASK, unseen))
    assert set(unseen.values) == {"inertia"}
    assert seen.values["inertia"] == unseen.values["inertia"]
    assert unseen.summary["agreement"] == seen.summary["agreement"]


def test_the_seed_decides_the_run(hard: FeatureSet) -> None:
    first, again, other = (list(found(hard, replace(TASK, seed=s), BPA).values()) for s in (3, 3, 4))
    assert [r.values for r in first] == [r.values for r in again]
    assert first[0].values != other[0].values


def test_a_share_gives_every_way_the_same_items(hard: FeatureSet) -> None:
    task = replace(TASK, share=0.5, repeats=2)
    raw, unit = found(hard, task, plain("identity", "unit")).values()
    assert raw.values["ari"] == unit.values["ari"]  # rows are unit already
    assert np.array_equal(
        np.unique(Clustering(hard).clusters(task, raw)), np.arange(5)
    )  # all items get a cluster


def test_an_interrupted_run_goes_on_and_a_finished_one_is_kept(hard: FeatureSet, tmp_path: Path) -> None:
    def stop(done: int, _total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    expected = found(hard, TASK, BPA)
    with RunStore(tmp_path) as store:
        with pytest.raises(KeyboardInterrupt):
            found(hard, TASK, BPA, store=store, on_progress=stop)
        assert len(store.records()) == 1  # the first way was whole
        resumed = found(hard, TASK, BPA, store=store)
        kept = found(hard, TASK, BPA, store=store)
        assert len(store.records()) == len(BPA)
    for name, record in expected.items():
        assert resumed[name].values == record.values == kept[name].values
        assert resumed[name].summary == record.summary


def test_a_set_too_large_is_refused_before_anything_is_allocated(hard: FeatureSet) -> None:
    with pytest.raises(
        MemoryBudgetError, match=r"clustering 60 items by k-means of bpa rows: .*kB.*budget of 10 kB"
    ):
        found(hard, TASK, BPA, budget="10kB")
    found(hard, TASK, plain("unit"), budget="40kB")


def test_the_sparse_ways_take_sets_that_the_dense_ones_refuse() -> None:
    many = sphere_clusters(8, 0.05, n_clusters=4, n_per_cluster=1200, seed=5)
    task = ClusterTask(4, repeats=1, n_init=1)
    with pytest.raises(MemoryBudgetError, match="bpa-smooth or bpa-spectral"):
        found(many, task, plain("bpa"), budget="200MB")
    (record,) = found(many, task, clustering_ways(("bpa-smooth",), baselines=False), budget="200MB").values()
    assert record.values["ari"] == [pytest.approx(1.0)]


def test_fifty_thousand_items_are_refused_by_default_with_the_bytes() -> None:
    many = sphere_clusters(2, 0.1, n_clusters=50, n_per_cluster=1000)
    with pytest.raises(MemoryBudgetError, match=r"50,000 items by k-means of bpa rows: 30 GB"):
        found(many, ClusterTask(n_clusters=50), clustering_ways())


def test_more_clusters_than_items_are_refused(hard: FeatureSet) -> None:
    with pytest.raises(ShapeError, match="61 of 60"):
        found(hard, replace(TASK, n_clusters=61), BPA)


def test_spectral_rows_separate_connected_components() -> None:
    affinity = np.kron(np.eye(3), np.ones((6, 6))) + 1e-6
    clusters, _ = k_means(spectral_rows(affinity, 3, seed=0), 3, n_init=3, seed=0)
    assert adjusted_rand_index(np.repeat(np.arange(3), 6), clusters) == 1.0


def test_spectral_knn_is_spectral_clustering_of_scikit_learn() -> None:
    from sklearn.cluster import SpectralClustering

    points = sphere_clusters(30, 0.2, n_clusters=5, n_per_cluster=40, seed=1)  # unit rows already
    task = ClusterTask(5, repeats=1, n_init=10)
    (record,) = found(points, task, clustering_ways(("spectral-knn",), baselines=False)).values()
    theirs = SpectralClustering(5, affinity="nearest_neighbors", n_neighbors=10, random_state=0)
    ours = Clustering(points).clusters(task, record)
    assert adjusted_rand_index(theirs.fit_predict(points.features), ours) > 0.95


def test_clusters_are_written_as_npy_and_csv(tmp_path: Path) -> None:
    found = np.array([2, 0, -1])
    assert np.load(write_clusters(tmp_path / "c.npy", found), allow_pickle=False).tolist() == [2, 0, -1]
    with open(write_clusters(tmp_path / "c.csv", found), newline="") as file:
        assert list(csv.DictReader(file))[2] == {"item": "2", "cluster": "-1"}
    with pytest.raises(ArgumentError, match=r"\.npy or \.csv"):
        write_clusters(tmp_path / "c.txt", found)
