"""Clustering scores against their definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpa.errors import ArgumentError, NonFiniteError, ShapeError
from bpa.metrics.clustering import (
    adjusted_rand_index,
    clustering_accuracy,
    clustering_scores,
    contingency_table,
    match_clusters,
    normalized_mutual_information,
)

pytest.importorskip("sklearn", reason="the scores stand on scikit-learn and SciPy")


def accuracy_by_trying_every_map(true, pred):
    """Pad both label lists to one length and try all permutations."""
    size = max(max(true), max(pred)) + 1
    return max(
        sum(way[p] == t for t, p in zip(true, pred, strict=True)) / len(true)
        for way in itertools.permutations(range(size))
    )


def nmi_from_its_definition(true, pred, average):
    n = len(true)
    pairs = list(zip(true, pred, strict=True))

    def entropy(names):
        return -sum(names.count(v) / n * math.log(names.count(v) / n) for v in set(names))

    mutual = entropy(list(true)) + entropy(list(pred)) - entropy(pairs)
    a, b = entropy(list(true)), entropy(list(pred))
    return mutual / (math.sqrt(a * b) if average == "geometric" else (a + b) / 2)


def ari_from_pairs(true, pred):
    n = len(true)
    pairs = list(itertools.combinations(range(n), 2))
    both = sum(true[i] == true[j] and pred[i] == pred[j] for i, j in pairs)
    in_true = sum(true[i] == true[j] for i, j in pairs)
    in_pred = sum(pred[i] == pred[j] for i, j in pairs)
    expected = in_true * in_pred / len(pairs)
    return (both - expected) / ((in_true + in_pred) / 2 - expected)


labellings = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=14)


@settings(max_examples=60, deadline=None)
@given(labellings)
def test_accuracy_is_the_best_of_all_maps(pairs):
    true, pred = zip(*pairs, strict=True)
    assert clustering_accuracy(true, pred) == pytest.approx(accuracy_by_trying_every_map(true, pred))


@settings(max_examples=60, deadline=None)
@given(labellings, st.permutations(range(5)))
def test_renaming_the_clusters_changes_no_score(pairs, names):
    true, pred = zip(*pairs, strict=True)
    renamed = [10 * names[p] - 7 for p in pred]
    assert clustering_scores(true, renamed, nmi_average="geometric").acc == clustering_accuracy(true, pred)
    for average in ("geometric", "arithmetic"):
        assert normalized_mutual_information(true, renamed, average=average) == pytest.approx(
            normalized_mutual_information(true, pred, average=average), abs=1e-12
        )
    assert adjusted_rand_index(true, renamed) == pytest.approx(adjusted_rand_index(true, pred), abs=1e-12)


@pytest.mark.parametrize("average", ["geometric", "arithmetic"])
def test_nmi_is_its_definition_under_the_named_mean(average):
    true = [0, 0, 0, 1, 1, 2, 2, 2, 2]
    pred = [0, 0, 1, 1, 1, 1, 1, 2, 3]
    assert normalized_mutual_information(true, pred, average=average) == pytest.approx(
        nmi_from_its_definition(true, pred, average)
    )


def test_the_two_means_of_nmi_differ():
    true, pred = [0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1]
    geometric = normalized_mutual_information(true, pred, average="geometric")
    arithmetic = normalized_mutual_information(true, pred, average="arithmetic")
    assert geometric > arithmetic + 0.01


def test_ari_counts_pairs():
    true = [0, 0, 0, 1, 1, 2, 2, 2]
    pred = [0, 0, 1, 1, 1, 2, 2, 0]
    assert adjusted_rand_index(true, pred) == pytest.approx(ari_from_pairs(true, pred))


def test_three_clusters_against_two_classes_leave_one_cluster_out():
    assert clustering_accuracy([0, 0, 0, 1, 1, 1], [0, 0, 2, 1, 1, 1]) == pytest.approx(5 / 6)


def test_two_clusters_against_three_classes_leave_one_class_out():
    assert clustering_accuracy([0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 1, 1]) == pytest.approx(4 / 6)


def test_one_merged_cluster_loses_the_smaller_class():
    assert clustering_accuracy([0] * 3 + [1] * 5 + [2] * 2, [4] * 8 + [9] * 2) == pytest.approx(7 / 10)


def test_a_single_cluster_scores_nothing_beyond_the_largest_class():
    scores = clustering_scores([0, 0, 1, 1, 1], [3] * 5, nmi_average="geometric")
    assert (scores.acc, scores.nmi, scores.ari) == (pytest.approx(0.6), 0.0, 0.0)
    assert (scores.n, scores.n_clusters, scores.n_classes) == (5, 1, 2)


def test_gaps_in_the_numbering_are_empty_clusters_and_count_for_nothing():
    true, pred = [0, 0, 5, 5], [2, 2, 90, 90]
    assert contingency_table(true, pred).tolist() == [[2, 0], [0, 2]]
    assert clustering_scores(true, pred, nmi_average="arithmetic").ari == 1.0


def test_matching_renames_clusters_to_classes_and_marks_the_left_over_cluster():
    renamed = match_clusters([4, 4, 4, 6, 6, 6], [0, 0, 2, 1, 1, 1])
    assert renamed.tolist() == [4, 4, -1, 6, 6, 6]


def test_labels_may_be_strings():
    assert clustering_accuracy(["cat", "cat", "dog"], [1, 1, 0]) == 1.0
    assert match_clusters(["cat", "cat", "dog"], [1, 1, 0]).tolist() == ["cat", "cat", "dog"]


@pytest.mark.parametrize(
    ("true", "pred", "error", "says"),
    [
        ([0, 1], [0, 1, 1], ShapeError, "2 true labels and 3 predicted"),
        ([], [], ShapeError, "no empty side"),
        ([[0, 1]], [0, 1], ShapeError, "labels_true"),
        ([0, 1], [0.5, 1.0], ArgumentError, "fractions"),
        ([0, 1], [np.nan, 1.0], NonFiniteError, "labels_pred"),
        (np.array([object(), object()]), [0, 1], ArgumentError, "integers or strings"),
    ],
)
def test_labels_that_cannot_be_compared_are_refused(true, pred, error, says):
    with pytest.raises(error, match=says):
        clustering_accuracy(true, pred)


def test_an_unknown_mean_is_refused():
    with pytest.raises(ArgumentError, match="must be one of 'geometric', 'arithmetic'"):
        normalized_mutual_information([0, 1], [0, 1], average="max")
