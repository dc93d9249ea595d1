"""The single-query protocol: golden cases, scikit-learn, and a slow evaluation from the definitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpa.errors import ArgumentError, NonFiniteError, ShapeError
from bpa.metrics.hubs import hubness, nearest
from bpa.metrics.retrieval import evaluate_lists, evaluate_ranking
from bpa.records import FeatureSet, QueryGallery

GOLDEN = {
    "query_ids": [1, 2],
    "gallery_ids": [1, 0, 1, 2, -1, 2, 1, 3],
    "query_cameras": [0, 1],
    "gallery_cameras": [0, 3, 1, 0, 2, 1, 2, 0],
}
GOLDEN_DISTANCES = [
    [0.10, 0.20, 0.30, 0.40, 0.50, 0.60, 0.70, 0.80],
    [0.35, 0.15, 0.55, 0.25, 0.65, 0.05, 0.75, 0.45],
]


def one_query(relevance, **options):
    """A query whose ranking has this relevance list."""
    relevance = np.asarray(relevance)
    distances = options.pop("distances", np.arange(len(relevance), dtype=float))
    return evaluate_ranking([distances], [1], np.where(relevance == 1, 1, 2), **options)


def slow(distances, qi, gi, qc, gc, junk=-1, deleted="identity-camera", own=None):
    """Finite-sum AP, first rank and INP with explicit lists and a Python sort."""
    out = []
    for q in range(len(qi)):
        keep = []
        for j in range(len(gi)):
            same_camera = qc is not None and gc[j] == qc[q]
            if gi[j] == junk or (own is not None and own[q] == j):
                continue
            if same_camera and (deleted == "camera" or gi[j] == qi[q]):
                continue
            keep.append(j)
        keep.sort(key=lambda j: (distances[q][j], j))
        rel = [int(gi[j] == qi[q]) for j in keep]
        if not sum(rel):
            out.append((np.nan, 0, np.nan))
            continue
        precision = [sum(rel[: k + 1]) / (k + 1) for k in range(len(rel)) if rel[k]]
        last = max(k for k in range(len(rel)) if rel[k]) + 1
        out.append((sum(precision) / sum(rel), rel.index(1) + 1, sum(rel) / last))
    return np.array(out)


def test_golden_case_deletes_junk_and_same_identity_and_camera_before_counting_ranks():
    scores = evaluate_ranking(GOLDEN_DISTANCES, **GOLDEN)
    np.testing.assert_allclose(scores.average_precision, [0.45, 0.50], rtol=1e-12)
    assert scores.mean_ap == pytest.approx(0.475, abs=1e-12)
    assert [scores.rank(k) for k in (1, 2, 3, 5)] == [0, 1, 1, 1]
    trapezoid = evaluate_ranking(GOLDEN_DISTANCES, **GOLDEN, average_precision="trapezoid")
    assert trapezoid.mean_ap == pytest.approx(0.26875, abs=1e-12)
    assert trapezoid.definition == "trapezoid"
    assert evaluate_ranking(GOLDEN_DISTANCES, **GOLDEN, junk_id=None).mean_ap == pytest.approx(
        0.458333, abs=1e-6
    )


def test_a_camera_deletes_its_own_items_of_the_identity_or_all_of_its_items():
    # a query of person 1 at camera 0; in rank order: person 2 at camera 0, person 1 at 0, person 2 at 1, person 1 at 1
    task = {
        "query_ids": [1],
        "gallery_ids": [2, 1, 2, 1],
        "query_cameras": [0],
        "gallery_cameras": [0, 0, 1, 1],
    }
    distances = [[0.1, 0.2, 0.3, 0.4]]
    person = evaluate_ranking(distances, **task)
    assert (person.deleted, person.first_rank.tolist(), person.mean_ap) == ("identity-camera", [3], 1 / 3)
    view = evaluate_ranking(distances, **task, deleted="camera")
    assert (view.deleted, view.first_rank.tolist(), view.mean_ap) == ("camera", [2], 1 / 2)
    assert evaluate_lists([[0, 1, 2, 3]], **task, deleted="camera").mean_ap == view.mean_ap
    assert (person.summary()["deleted"], view.summary()["deleted"]) == ("identity-camera", "camera")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 25), st.sampled_from([2, 1000]))
def test_the_whole_camera_protocol_equals_a_slow_evaluation(seed, n_query, n_gallery, levels):
    rng = np.random.default_rng(seed)
    distances = rng.integers(0, levels, (n_query, n_gallery)) / levels
    qi, gi = rng.integers(0, 4, n_query), rng.integers(-1, 4, n_gallery)
    qc, gc = rng.integers(0, 3, n_query), rng.integers(0, 3, n_gallery)
    own = rng.integers(-1, n_gallery, n_query)
    truth = slow(distances, qi, gi, qc, gc, deleted="camera", own=own)
    protocol = {"self_index": own, "deleted": "camera", "empty": "zero"}
    if np.isnan(truth[:, 0]).all():
        assert evaluate_ranking(distances, qi, gi, qc, gc, **protocol).mean_ap == 0
        return
    scores = evaluate_ranking(distances, qi, gi, qc, gc, **protocol)
    np.testing.assert_allclose(scores.average_precision, np.nan_to_num(truth[:, 0]), atol=1e-12)
    np.testing.assert_array_equal(scores.first_rank, truth[:, 1])
    np.testing.assert_allclose(scores.inverse_negative_penalty, np.nan_to_num(truth[:, 2]), atol=1e-12)
    by_identity = evaluate_ranking(distances, qi, gi, qc, gc, self_index=own, empty="zero")
    assert (by_identity.average_precision <= scores.average_precision + 1e-12).all()  # fewer compete
    lists = np.stack([np.lexsort((np.arange(n_gallery), row)) for row in distances])
    from_lists = evaluate_lists(lists, qi, gi, qc, gc, **protocol)
    np.testing.assert_allclose(from_lists.average_precision, scores.average_precision, atol=1e-12)
    np.testing.assert_allclose(
        from_lists.inverse_negative_penalty, scores.inverse_negative_penalty, atol=1e-12
    )


@pytest.mark.parametrize(
    ("relevance", "finite", "trapezoid"),
    [
        ([1, 0, 1, 0, 0, 1, 0, 0], 0.722222, 0.677778),
        ([0, 1, 0], 0.5, 0.25),
        ([1, 1, 0, 0], 1.0, 1.0),
        ([0, 1, 1, 0, 1, 0, 0, 0, 0, 1], 0.541667, 0.4375),
        ([0] * 99 + [1], 0.010, 0.005),
    ],
)
def test_the_three_definitions_differ_as_tabulated(relevance, finite, trapezoid):
    assert one_query(relevance).mean_ap == pytest.approx(finite, abs=1e-6)
    assert one_query(relevance, average_precision="scikit-learn").mean_ap == pytest.approx(finite, abs=1e-6)
    measured = one_query(relevance, average_precision="trapezoid").mean_ap
    # 99 zeros then a one: precision just before is 0/99, so (0.01 + 0) / 2
    assert measured == pytest.approx(trapezoid, abs=1e-6)


def test_tied_blocks_follow_the_named_rule_and_are_counted():
    tied = {"distances": [0.1, 0.5, 0.5, 0.5, 0.9]}
    relevance = [1, 0, 1, 0, 1]
    assert one_query(relevance, **tied).mean_ap == pytest.approx(0.7556, abs=1e-4)
    assert one_query(relevance, **tied, average_precision="scikit-learn").mean_ap == pytest.approx(
        0.700, abs=1e-12
    )
    assert one_query(relevance, **tied, ties="pessimistic").mean_ap == pytest.approx(0.700, abs=1e-12)
    assert one_query(relevance, **tied).n_tied == 0  # the first place is not in a tie
    shared_first = one_query([1, 0], distances=[0.5, 0.5])
    assert (shared_first.n_tied, shared_first.rank(1)) == (1, 1.0)
    assert one_query([1, 0], distances=[0.5, 0.5], ties="pessimistic").rank(1) == 0.0


def test_tie_rules_equal_enumerated_orders():
    relevance = np.array([0, 1, 1, 0, 1])
    distances = np.array([0.5, 0.5, 0.2, 0.5, 0.5])
    orders = []
    for order in itertools.permutations(range(5)):
        if all(distances[a] <= distances[b] for a, b in itertools.pairwise(order)):
            orders.append(
                slow([np.arange(5.0)], [1], np.where(relevance[list(order)] == 1, 1, 2), None, None)[0, 0]
            )
    assert one_query(relevance, distances=distances, ties="pessimistic").mean_ap == pytest.approx(min(orders))


def test_finite_sum_equals_scikit_learn_without_ties_and_its_variant_with_ties():
    sk = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    for tied in (False, True):
        distances = rng.permutation(4000)[:2000].reshape(40, 50).astype(float)
        if tied:
            distances = np.floor(distances / 400)
        gi = rng.integers(0, 6, 50)
        qi = rng.integers(0, 6, 40)
        mine = evaluate_ranking(distances, qi, gi, average_precision="scikit-learn").average_precision
        theirs = [sk.average_precision_score(gi == q, -row) for q, row in zip(qi, distances, strict=True)]
        np.testing.assert_allclose(mine, theirs, atol=1e-12)
        if not tied:
            np.testing.assert_allclose(
                evaluate_ranking(distances, qi, gi).average_precision, theirs, atol=1e-12
            )


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 8),
    st.integers(1, 25),
    st.sampled_from([2, 5, 1000]),
    st.booleans(),
)
def test_every_query_equals_a_slow_evaluation(seed, n_query, n_gallery, levels, cameras):
    rng = np.random.default_rng(seed)
    distances = rng.integers(0, levels, (n_query, n_gallery)) / levels
    qi, gi = rng.integers(0, 4, n_query), rng.integers(-1, 4, n_gallery)
    qc = rng.integers(0, 2, n_query) if cameras else None
    gc = rng.integers(0, 2, n_gallery) if cameras else None
    truth = slow(distances, qi, gi, qc, gc)
    if np.isnan(truth[:, 0]).all():
        with pytest.raises(ArgumentError, match="None of the queries"):
            evaluate_ranking(distances, qi, gi, qc, gc)
        return
    scores = evaluate_ranking(distances, qi, gi, qc, gc)
    np.testing.assert_allclose(scores.average_precision, truth[:, 0], atol=1e-12)
    np.testing.assert_array_equal(scores.first_rank, truth[:, 1])
    np.testing.assert_allclose(scores.inverse_negative_penalty, truth[:, 2], atol=1e-12)
    assert scores.n_empty == np.isnan(truth[:, 0]).sum()
    lists = np.stack([np.lexsort((np.arange(n_gallery), row)) for row in distances])
    from_lists = evaluate_lists(lists, qi, gi, qc, gc)
    np.testing.assert_allclose(from_lists.average_precision, truth[:, 0], atol=1e-12)
    np.testing.assert_allclose(from_lists.cmc, scores.cmc)
    for definition in ("trapezoid", "scikit-learn"):
        named = evaluate_lists(lists, qi, gi, qc, gc, average_precision=definition)
        ranked = evaluate_ranking(
            np.argsort(np.argsort(distances, axis=1, kind="stable"), axis=1),
            qi,
            gi,
            qc,
            gc,
            average_precision=definition,
        )
        np.testing.assert_allclose(named.average_precision, ranked.average_precision, atol=1e-12)
    cut = evaluate_lists(lists[:, : max(1, n_gallery // 2)], qi, gi, qc, gc)
    assert cut.mean_ap <= scores.mean_ap + 1e-12
    half = n_query // 2
    blocks = [(half, distances[half:]), (0, distances[:half])] if half else [(0, distances)]
    streamed = evaluate_ranking(iter(blocks), qi, gi, qc, gc)
    np.testing.assert_array_equal(streamed.average_precision, scores.average_precision)


def test_empty_queries_are_skipped_counted_as_zero_or_refused():
    distances = [[0.1, 0.2], [0.3, 0.1]]
    skip = evaluate_ranking(distances, [1, 9], [1, 2])
    assert (skip.mean_ap, skip.n_counted, skip.n_empty) == (1.0, 1, 1)
    zero = evaluate_ranking(distances, [1, 9], [1, 2], empty="zero")
    assert (zero.mean_ap, zero.rank(1), zero.n_counted) == (0.5, 0.5, 2)
    with pytest.raises(ArgumentError, match="1 queries have no relevant"):
        evaluate_ranking(distances, [1, 9], [1, 2], empty="error")


def test_a_query_in_its_own_gallery_is_left_out():
    distances = np.array([[0.0, 0.5, 0.2], [0.5, 0.0, 0.9], [0.2, 0.9, 0.0]])
    with_self = evaluate_ranking(distances, [1, 1, 2], [1, 1, 2])
    without = evaluate_ranking(distances, [1, 1, 2], [1, 1, 2], self_index=[0, 1, 2])
    assert with_self.rank(1) == 1.0
    np.testing.assert_allclose(without.average_precision, [0.5, 1.0, np.nan])


def test_infinite_distances_come_last_and_nan_is_refused():
    assert one_query([0, 1], distances=[np.inf, 1.0]).mean_ap == 1.0
    with pytest.raises(NonFiniteError, match="must not hold NaN"):
        one_query([0, 1], distances=[np.nan, 1.0])


def test_wrong_arguments_name_themselves():
    with pytest.raises(ShapeError, match="shape \\(1, 3\\)"):
        evaluate_ranking([[0.1, 0.2]], [1], [1, 2, 3])
    with pytest.raises(ArgumentError, match="go together"):
        evaluate_ranking([[0.1]], [1], [1], [0])
    with pytest.raises(ArgumentError, match="'deleted'"):
        evaluate_ranking([[0.1]], [1], [1], [0], [1], deleted="everything")
    with pytest.raises(ArgumentError, match="Got no cameras"):
        evaluate_ranking([[0.1]], [1], [1], deleted="camera")
    with pytest.raises(ArgumentError, match="no parameter 'q_pids': it is called 'query_ids' here"):
        evaluate_ranking([[0.1]], q_pids=[1], g_pids=[1])
    with pytest.raises(ArgumentError, match="'ties'"):
        evaluate_ranking([[0.1]], [1], [1], ties="random")
    with pytest.raises(ShapeError, match="cover all 2 queries"):
        evaluate_ranking(iter([(0, [[0.1]])]), [1, 1], [1])
    with pytest.raises(ArgumentError, match="repeats a gallery item"):
        evaluate_lists([[0, 0]], [1], [1, 2])


def test_hubness_counts_lists_and_their_skewness():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(3)
    distances = rng.random((60, 30)) + rng.random(30) ** 3
    result = hubness(distances, k=5)
    expected = np.zeros(30, int)
    for row in distances:
        for j in sorted(range(30), key=lambda j, row=row: row[j])[:5]:
            expected[j] += 1
    np.testing.assert_array_equal(result.occurrences, expected)
    assert result.skewness == pytest.approx(stats.skew(expected))
    assert result.largest == expected.max()
    streamed = hubness(iter([(0, distances[:7]), (7, distances[7:])]), k=5)
    np.testing.assert_array_equal(streamed.occurrences, expected)


def test_hubness_leaves_the_query_itself_out():
    distances = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])
    assert hubness(distances, k=1, self_index=[0, 1, 2]).occurrences.tolist() == [2, 1, 0]
    assert hubness(distances, k=1).skewness == 0.0


def test_nearest_breaks_ties_by_position():
    assert nearest(np.array([[0.5, 0.5, 0.1, 0.5]]), 3).tolist() == [[2, 0, 1]]


def test_query_gallery_knows_where_a_query_is_in_its_gallery():
    x = np.zeros((5, 2), dtype=np.float32)
    ids = np.arange(5)
    both = QueryGallery(x, np.array([0, 3]), np.array([1, 3, 4]), ids)
    assert both.self_index.tolist() == [-1, 1]
    assert QueryGallery(x, np.array([0]), np.array([1, 2]), ids).self_index is None
    for bad, name in (
        ({"query": np.array([0, 0])}, "repeat"),
        ({"query": np.array([], dtype=int)}, "'query'"),
        ({"gallery": np.array([5])}, "'gallery'"),
        ({"ids": np.arange(4)}, "'ids'"),
    ):
        with pytest.raises(ArgumentError, match=name):
            QueryGallery(
                **{"features": x, "query": np.array([0]), "gallery": np.array([1]), "ids": ids, **bad}
            )


def test_feature_sets_become_tasks():
    x = np.zeros((4, 2), dtype=np.float32)
    labels = np.array([1, 1, 2, 2])
    split = QueryGallery.from_features(
        FeatureSet(x, labels=labels, is_query=np.array([True, False, True, False]))
    )
    assert (split.query.tolist(), split.gallery.tolist()) == ([0, 2], [1, 3])
    everyone = QueryGallery.from_features(FeatureSet(x, labels=labels))
    assert everyone.self_index.tolist() == [0, 1, 2, 3]
    with pytest.raises(ArgumentError, match="no labels"):
        QueryGallery.from_features(FeatureSet(x))
