"""Few-shot tasks: the published list to the index, and streams that do not depend on how they are asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bpa.data.episodes import class_rows, draw_tasks, ptmap_indices
from bpa.errors import ArgumentError
from bpa.records import FeatureSet


def make_set(sizes: list[int], rng: np.random.Generator, names: tuple[str, ...] | None = None) -> FeatureSet:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    labels = rng.permutation(labels)
    return FeatureSet(
        np.arange(len(labels), dtype=np.float32)[:, None], labels=labels, class_names=names, source="toy"
    )


def test_the_published_list_is_reproduced_to_the_index() -> None:
    classes, rows = ptmap_indices(20, 600, n_way=5, n_rows=16, n_tasks=10_000)
    assert classes[0].tolist() == [18, 1, 19, 8, 10]
    assert rows[0, 0, :4].tolist() == [578, 52, 533, 367]
    assert classes[9999].tolist() == [7, 0, 6, 1, 17]
    assert rows[9999, 4, :4].tolist() == [63, 464, 261, 435]


def test_one_shot_and_five_shot_lists_are_nested() -> None:
    classes1, rows1 = ptmap_indices(20, 600, n_way=5, n_rows=16, n_tasks=50)
    classes5, rows5 = ptmap_indices(20, 600, n_way=5, n_rows=20, n_tasks=50)
    np.testing.assert_array_equal(classes1, classes5)
    np.testing.assert_array_equal(rows1, rows5[:, :, :16])


def test_the_list_counts_classes_and_rows_as_the_published_code_does(rng: np.random.Generator) -> None:
    features = make_set([30, 25, 40, 28, 33, 26], rng)
    tasks = draw_tasks(features, n_way=3, n_shot=2, n_query=4, n_tasks=20)
    # their data structure: classes in order of first appearance, each cut to the smallest, [C, m, d]
    order = list(dict.fromkeys(features.labels.tolist()))
    data = np.stack([np.flatnonzero(features.labels == c)[:25] for c in order])
    classes, rows = ptmap_indices(6, 25, n_way=3, n_rows=6, n_tasks=20)
    for t in range(20):
        dataset = np.stack(
            [data[classes[t, w]][rows[t, w]] for w in range(3)]
        )  # (k, s + q), as GenerateRun returns it
        np.testing.assert_array_equal(tasks.rows[t], dataset.T.ravel())  # shot-major
        assert tasks.classes[t].tolist() == [order[c] for c in classes[t]]


@pytest.mark.parametrize("protocol", ["ptmap", "balanced", "dirichlet"])
def test_labels_say_the_truth_and_no_row_is_used_twice(rng: np.random.Generator, protocol: Any) -> None:
    features = make_set([60, 55, 70, 58, 63, 66, 90], rng)
    tasks = draw_tasks(features, n_way=4, n_shot=3, n_query=5, n_tasks=40, protocol=protocol, seed=3)
    for t in range(40):
        assert len(set(tasks.rows[t].tolist())) == tasks.rows.shape[1] == 12 + 20
        assert len(set(tasks.classes[t].tolist())) == 4
        within = np.concatenate([tasks.support_labels, tasks.query_labels[t]])
        np.testing.assert_array_equal(features.labels[tasks.rows[t]], tasks.classes[t][within])
        counts = np.bincount(tasks.query_labels[t], minlength=4)
        assert counts.sum() == 20
        if protocol != "dirichlet":
            assert counts.tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize("protocol", ["ptmap", "balanced", "dirichlet"])
def test_a_task_is_the_same_in_any_subset(rng: np.random.Generator, protocol: Any) -> None:
    features = make_set([60] * 8, rng)

    def draw(n: int, first: int) -> Any:
        return draw_tasks(features, n_query=6, n_tasks=n, first=first, protocol=protocol, seed=5)

    whole = draw(30, 0)
    for first in (29, 0, 13):
        part = draw(1, first)
        np.testing.assert_array_equal(part.rows[0], whole.rows[first])
        np.testing.assert_array_equal(part.query_labels[0], whole.query_labels[first])


@pytest.mark.parametrize("protocol", ["ptmap", "balanced", "dirichlet"])
def test_the_seed_changes_the_tasks(rng: np.random.Generator, protocol: Any) -> None:
    features = make_set([60] * 8, rng)
    one, two = (draw_tasks(features, n_query=6, n_tasks=5, protocol=protocol, seed=s).rows for s in (0, 1))
    assert (one != two).mean() > 0.9


def test_the_balanced_protocol_uses_rows_beyond_the_smallest_class(rng: np.random.Generator) -> None:
    features = make_set([20, 200, 200, 200, 200], rng)
    used = {p: set(draw_tasks(features, n_tasks=200, protocol=p, n_query=10).rows.ravel().tolist())
            for p in ("ptmap", "balanced")}  # fmt: skip
    assert len(used["ptmap"]) == 100
    assert len(used["balanced"]) > 700


def test_unbalanced_counts_follow_the_dirichlet_distribution(rng: np.random.Generator) -> None:
    features = make_set([200] * 5, rng)
    tasks = draw_tasks(features, n_tasks=2000, protocol="dirichlet", concentration=2.0)
    share = np.stack([np.bincount(row, minlength=5) for row in tasks.query_labels]) / 75
    assert share.mean() == pytest.approx(0.2)
    # variance of a component of Dirichlet(2,2,2,2,2): 2·8/(10²·11)
    assert share.var() == pytest.approx(16 / 1100, rel=0.06)
    assert (share == 0).mean() < 0.05


def test_dirichlet_queries_fit_small_classes(rng: np.random.Generator) -> None:
    tasks = draw_tasks(make_set([22] * 6, rng), n_shot=2, n_query=15, n_tasks=50, protocol="dirichlet")
    assert max(np.bincount(row).max() for row in tasks.query_labels) <= 20
    with pytest.raises(ArgumentError, match=r"queries do not fit: class '\d'"):
        draw_tasks(make_set([16] * 6, rng), n_shot=2, n_query=15, n_tasks=5, protocol="dirichlet")


def test_an_episode_holds_the_rows_of_its_tasks(rng: np.random.Generator) -> None:
    features = make_set([30] * 6, rng)
    tasks = draw_tasks(features, n_way=3, n_shot=2, n_query=4, n_tasks=9)
    episode = tasks.episode(torch.from_numpy(features.features), slice(2, 6))
    assert episode.support.shape == (4, 6, 1)
    assert episode.query.shape == (4, 12, 1)
    np.testing.assert_array_equal(episode.support[1, :, 0].numpy(), tasks.rows[3, :6])
    np.testing.assert_array_equal(episode.query_labels.numpy(), tasks.query_labels[2:6])


def test_rows_of_classes_are_grouped_in_order_of_appearance(rng: np.random.Generator) -> None:
    labels = np.array([7, 3, 7, -1, 3, 3])
    found, rows = class_rows(FeatureSet(np.zeros((6, 1), np.float32), labels=labels))
    assert found.tolist() == [7, 3, -1]
    assert [r.tolist() for r in rows] == [[0, 2], [1, 4, 5], [3]]


def test_what_cannot_be_drawn_is_explained(rng: np.random.Generator) -> None:
    few = make_set([30, 12, 30, 30, 30], rng, names=("ant", "bee", "cat", "dog", "eel"))
    with pytest.raises(ArgumentError, match=r"need 16 rows of every class. Class 'bee' of toy has 12"):
        draw_tasks(few, n_tasks=1)
    with pytest.raises(ArgumentError, match=r"6-way tasks need 6 classes. toy has 5"):
        draw_tasks(few, n_way=6, n_tasks=1)
    with pytest.raises(ArgumentError, match="need labels"):
        draw_tasks(FeatureSet(np.zeros((6, 1), np.float32)), n_tasks=1)
    with pytest.raises(ArgumentError, match="'n_shot'"):
        draw_tasks(few, n_shot=0)
    with pytest.raises(ArgumentError, match="'protocol'"):
        draw_tasks(few, protocol="random")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="'concentration'"):
        draw_tasks(few, n_query=5, n_tasks=1, protocol="dirichlet", concentration=0.0)
