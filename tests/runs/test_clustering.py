from __future__ import annotations

import csv
import dataclasses
import json

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="k-means is scikit-learn's")

from bpa.data.features import write_features
from bpa.data.synthetic import sphere_clusters
from bpa.errors import ArgumentError, MemoryBudgetError, ShapeError
from bpa.metrics.clustering import adjusted_rand_index, clustering_scores
from bpa.runs.clustering import (
    ClusterConfig,
    Way,
    cluster_table,
    k_means,
    run_clustering,
    spectral_rows,
    ways_of,
    write_clusters,
)
from bpa.runs.clustering_studies import (
    STUDIES,
    SphereConfig,
    grid_of,
    run_sphere,
    sphere_cell_table,
    sphere_table,
)
from bpa.runs.store import RunStore
from bpa.runs.study import StudyOptions

QUICK = ClusterConfig(n_clusters=5, transforms=("bpa",), reg=(0.5,), repeats=3, n_init=2)


@pytest.fixture
def easy():
    return sphere_clusters(20, 0.05, n_clusters=5, n_per_cluster=12, seed=1)


@pytest.fixture
def hard():
    return sphere_clusters(60, 0.3, n_clusters=5, n_per_cluster=12, seed=1)


# --- ways --------------------------------------------------------------------------------------------------


def test_ways_are_what_was_asked_for_then_the_baselines():
    config = dataclasses.replace(QUICK, transforms=("bpa", "unit"), reg=(0.25, 0.5))
    assert [way.name for way in ways_of(config)] == [
        "bpa reg=0.25",
        "bpa reg=0.5",
        "unit",
        "identity",
        "centred",
        "cosine",
        "softmax reg=0.25",
        "softmax reg=0.5",
        "spectral reg=0.25",
        "spectral reg=0.5",
        "spectral-knn",
    ]
    assert [w.name for w in ways_of(dataclasses.replace(config, compare=False))] == [
        "bpa reg=0.25",
        "bpa reg=0.5",
        "unit",
    ]


def test_auto_is_a_rule_for_bpa_alone():
    names = [way.name for way in ways_of(dataclasses.replace(QUICK, reg=("auto",)))]
    assert "bpa reg=auto" in names
    assert "softmax reg=0.1" in names


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_clusters": 1}, "'n_clusters'"),
        ({"repeats": 0}, "'repeats'"),
        ({"share": 0.0}, "'share'"),
        ({"transforms": ("bpaa",)}, "'transforms'"),
        ({"transforms": ()}, "'transforms'"),
        ({"reg": ()}, "'reg'"),
    ],
)
def test_a_configuration_that_cannot_run_is_refused(change, says):
    with pytest.raises(ArgumentError, match=says):
        dataclasses.replace(QUICK, **change)


# --- running -----------------------------------------------------------------------------------------------


def test_separated_clusters_are_found_in_every_way(easy):
    run = run_clustering(
        easy, dataclasses.replace(QUICK, transforms=("bpa", "bpa-smooth", "bpa-spectral"), n_init=10)
    )
    for way in ways_of(dataclasses.replace(QUICK, transforms=("bpa", "bpa-smooth", "bpa-spectral"))):
        assert min(run.record.values[f"{way.name}/ari"]) == pytest.approx(1.0), way.name
    assert adjusted_rand_index(easy.labels, run.labels) == pytest.approx(1.0)


def test_scores_are_those_of_scikit_learn_on_the_same_rows(hard):
    config = dataclasses.replace(QUICK, transforms=("identity",), compare=False)
    run = run_clustering(hard, config)
    best = int(np.argmin(run.record.values["identity/inertia"]))
    scores = clustering_scores(hard.labels, run.labels, nmi_average="geometric")
    assert run.record.values["identity/nmi"][best] == pytest.approx(scores.nmi)
    assert run.record.values["identity/acc"][best] == pytest.approx(scores.acc)
    centres = np.stack([hard.features[run.labels == c].mean(axis=0) for c in range(5)])
    inertia = ((hard.features - centres[run.labels]) ** 2).sum()
    assert run.record.values["identity/inertia"][best] == pytest.approx(inertia, rel=1e-5)


def test_labels_never_change_the_clusters(hard):
    blind = dataclasses.replace(hard, labels=None)
    with_labels, without = run_clustering(hard, QUICK), run_clustering(blind, QUICK)
    assert np.array_equal(with_labels.labels, without.labels)
    assert not without.record.summary["scored"]
    assert "bpa reg=0.5/acc" not in without.record.values
    assert "agreement" in cluster_table(without.record).text()


def test_the_seed_decides_the_run(hard):
    first, again, other = (run_clustering(hard, dataclasses.replace(QUICK, seed=s)) for s in (3, 3, 4))
    assert first.record.values == again.record.values
    assert first.record.values != other.record.values


def test_a_share_gives_every_way_the_same_items(hard):
    config = dataclasses.replace(QUICK, share=0.5, transforms=("identity", "unit"), compare=False, repeats=2)
    run = run_clustering(hard, config)
    assert np.array_equal(np.unique(run.labels), np.arange(5))  # all items get a cluster
    assert run.record.values["identity/ari"] == run.record.values["unit/ari"]  # rows are unit already


def test_the_gain_is_paired_with_raw_rows(hard):
    run = run_clustering(hard, QUICK)
    gain = run.record.summary["ways"]["cosine"]["gain"]
    values = run.record.values
    expected = 100 * np.mean(np.subtract(values["cosine/nmi"], values["identity/nmi"]))
    assert gain["mean"] == pytest.approx(expected)
    assert run.record.summary["ways"]["identity"]["gain"] is None


def test_an_interrupted_run_goes_on_and_a_finished_one_is_kept(hard, tmp_path):
    class StopError(Exception):
        pass

    def stop(done, _total):
        if done == 5:
            raise StopError

    expected = run_clustering(hard, QUICK)
    with RunStore(tmp_path) as store:
        with pytest.raises(StopError):
            run_clustering(hard, QUICK, store=store, on_progress=stop)
        assert store.records() == []
        resumed = run_clustering(hard, QUICK, store=store)
        kept = run_clustering(hard, QUICK, store=store)
        assert len(store.records()) == 1
    assert resumed.record.values == expected.record.values == kept.record.values
    assert np.array_equal(resumed.labels, expected.labels)
    assert np.array_equal(kept.labels, expected.labels)


def test_a_set_too_large_is_refused_before_anything_is_allocated(hard):
    with pytest.raises(
        MemoryBudgetError, match=r"clustering 60 items by bpa reg=0\.5: .*kB.*budget of 10 kB"
    ):
        run_clustering(hard, QUICK, budget="10kB")
    run_clustering(hard, dataclasses.replace(QUICK, transforms=("unit",), compare=False), budget="40kB")


def test_the_sparse_ways_take_sets_that_the_dense_ones_refuse():
    many = sphere_clusters(8, 0.05, n_clusters=4, n_per_cluster=1200, seed=5)
    config = ClusterConfig(4, transforms=("bpa-smooth",), compare=False, repeats=1, n_init=1)
    with pytest.raises(MemoryBudgetError, match="bpa-smooth or bpa-spectral"):
        run_clustering(many, dataclasses.replace(config, transforms=("bpa",)), budget="200MB")
    run = run_clustering(many, config, budget="200MB")
    assert run.record.values["bpa-smooth reg=0.1/ari"] == [pytest.approx(1.0)]


def test_fifty_thousand_items_are_refused_by_default_with_the_bytes():
    many = sphere_clusters(2, 0.1, n_clusters=50, n_per_cluster=1000)
    with pytest.raises(MemoryBudgetError, match=r"50,000 items by bpa reg=0\.1: 30 GB"):
        run_clustering(many, ClusterConfig(n_clusters=50))


def test_more_clusters_than_items_are_refused(hard):
    with pytest.raises(ShapeError, match="61 of 60"):
        run_clustering(hard, dataclasses.replace(QUICK, n_clusters=61))


def test_spectral_rows_separate_connected_components():
    affinity = np.kron(np.eye(3), np.ones((6, 6))) + 1e-6
    labels, _ = k_means(spectral_rows(affinity, 3, seed=0), 3, n_init=3, seed=0)
    assert adjusted_rand_index(np.repeat(np.arange(3), 6), labels) == 1.0


def test_spectral_knn_is_spectral_clustering_of_scikit_learn():
    from sklearn.cluster import SpectralClustering

    points = sphere_clusters(30, 0.2, n_clusters=5, n_per_cluster=40, seed=1)  # unit rows already
    config = dataclasses.replace(QUICK, transforms=("spectral-knn",), compare=False, repeats=1, n_init=10)
    theirs = SpectralClustering(5, affinity="nearest_neighbors", n_neighbors=10, random_state=0)
    ours = run_clustering(points, config).labels
    assert adjusted_rand_index(theirs.fit_predict(points.features), ours) > 0.95


def test_a_way_has_one_name():
    assert Way("unit").name == "unit"
    assert Way("bpa", 0.25).name == "bpa reg=0.25"
    assert Way("bpa", "auto").name == "bpa reg=auto"


def test_clusters_are_written_as_npy_and_csv(tmp_path):
    labels = np.array([2, 0, -1])
    assert np.load(write_clusters(tmp_path / "c.npy", labels), allow_pickle=False).tolist() == [2, 0, -1]
    with open(write_clusters(tmp_path / "c.csv", labels), newline="") as file:
        assert list(csv.DictReader(file))[2] == {"item": "2", "cluster": "-1"}
    with pytest.raises(ArgumentError, match=r"\.npy or \.csv"):
        write_clusters(tmp_path / "c.txt", labels)


# --- command line ------------------------------------------------------------------------------------------


def test_the_command_writes_clusters_and_prints_the_comparison(hard, tmp_path, capsys):
    pytest.importorskip("cyclopts", reason="the command line needs the app extra")
    from bpa.cli.main import main

    write_features(tmp_path / "set.npz", hard)
    line = [
        "cluster",
        str(tmp_path / "set.npz"),
        "--k",
        "5",
        "--reg",
        "0.25",
        "0.5",
        "--repeats",
        "2",
        "--n-init",
        "2",
    ]
    assert main([*line, "--clusters", str(tmp_path / "c.csv"), "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "bpa reg=0.25" in shown
    assert "spectral reg=0.5" in shown
    assert "gain in NMI" in shown
    assert len((tmp_path / "c.csv").read_text().splitlines()) == 61
    assert (tmp_path / "run" / "clusters.csv").read_bytes() == (tmp_path / "c.csv").read_bytes()

    assert main([*line, "--json", "--out", str(tmp_path / "run")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["records"][0]["task"]["reg"] == [0.25, 0.5]
    assert len(told["records"][0]["values"]["bpa reg=0.25/acc"]) == 2


def test_the_command_refuses_a_small_budget_with_exit_code_two(hard, tmp_path, capsys):
    pytest.importorskip("cyclopts", reason="the command line needs the app extra")
    from bpa.cli.main import main

    write_features(tmp_path / "set.npz", hard)
    assert main(["cluster", str(tmp_path / "set.npz"), "--k", "5", "--budget", "10kB"]) == 2
    assert "exceeds the budget of 10 kB" in capsys.readouterr().err


# --- the sphere --------------------------------------------------------------------------------------------


def test_the_grid_is_logarithmic_between_the_published_ends():
    dims, noises = grid_of(6)
    assert dims == (10, 26, 69, 180, 471, 1234)
    assert [round(s, 2) for s in noises] == [0.1, 0.15, 0.22, 0.34, 0.5, 0.75]


@pytest.mark.slow
def test_acceptance_cells_of_the_sphere():
    """The soft kernel gains over raw rows, the stretch is needed, and the default reg does not gain."""
    columns = ("raw", "bpa 0.1", "bpa 0.5", "bpa 0.5 unscaled")
    records = run_sphere(SphereConfig((69, 180, 1234), (0.15, 0.22), columns, runs=10))
    nmi = {c: np.mean([np.mean(r.values[f"{c}/nmi"]) for r in records]) for c in columns}
    assert nmi["bpa 0.5"] - nmi["raw"] > 0.05
    assert nmi["bpa 0.5 unscaled"] < nmi["bpa 0.5"]
    assert nmi["bpa 0.1"] < nmi["raw"]
    assert nmi["raw"] == pytest.approx(
        0.735, abs=0.04
    )  # 1.00 .95 / 1.00 .71 / .53 .17 were measured elsewhere


def test_sphere_cells_are_kept_and_the_tables_read_them(tmp_path):
    config = SphereConfig((10, 60), (0.2,), ("raw", "cosine"), runs=2, n_init=1)
    with RunStore(tmp_path) as store:
        first = run_sphere(config, store=store)
        second = run_sphere(config, store=store)
    assert [r.values for r in first] == [r.values for r in second]
    assert second[0].seconds == pytest.approx(first[0].seconds)  # read back, not run again
    text = sphere_table(first).text()
    assert "2 cells of the grid, 2 runs a cell" in text
    means = sphere_cell_table(first, "raw").rows
    assert [row[0] for row in means] == ["10", "60"]
    assert means[0][1] == pytest.approx(100 * np.mean(first[0].values["raw/nmi"]))


def test_sphere_refuses_a_column_it_does_not_have():
    with pytest.raises(ArgumentError, match="bpa R"):
        SphereConfig((10,), (0.1,), ("raw", "bpa fast"))


def test_the_study_draws_its_figures():
    matplotlib = pytest.importorskip("matplotlib", reason="figures need the app extra")
    matplotlib.use("Agg")
    result = STUDIES["sphere"].run(None, StudyOptions(quick=True, repeats=2, reg=(0.5,)))
    assert set(result.figures) == {"sphere-bpa-0.5", "sphere-data"}
    figure = result.figures["sphere-bpa-0.5"]()
    assert [axis.get_title() for axis in figure.axes] == [
        "ARI over d",
        "ARI over σ",
        "NMI over d",
        "NMI over σ",
    ]
    styles = {line.get_linestyle() for line in figure.axes[0].lines}
    assert styles == {"-", "--"}
    assert len(result.figures["sphere-data"]().axes) == 10
    matplotlib.pyplot.close("all")
