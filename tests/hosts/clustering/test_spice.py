"""SPICE's second phase: its equations by hand, its laws on separated blobs."""

from __future__ import annotations

import dataclasses
import inspect
import math

import pytest
import torch
from torch import nn

from bpa.errors import ArgumentError, DTypeError, NonFiniteError, ShapeError
from bpa.hosts.clustering import (
    SPICE_SETTINGS,
    ClusteringHeads,
    SpiceSettings,
    double_softmax_floor,
    double_softmax_loss,
    embedding_diagnostics,
    prototype_pseudo_labels,
    reliable_labels,
    train_clustering_heads,
)
from bpa.hosts.clustering.spice import _neighbours

SMALL = SpiceSettings(
    n_clusters=3, selection_size=60, epochs=3, n_heads=4, hidden=None, batch_size=20, repeats=2
)


@pytest.fixture
def blobs():
    """Three well separated clusters of 30 in 16 dimensions, signed, with five noisy views."""
    rng = torch.Generator().manual_seed(3)
    centres = nn.functional.normalize(torch.randn(3, 16, generator=rng), dim=-1)
    labels = torch.arange(3).repeat_interleave(30)
    clean = centres[labels] + 0.15 * torch.randn(90, 16, generator=rng)
    strong = clean + 0.2 * torch.randn(5, 90, 16, generator=rng)
    return clean, strong, labels


# --- pseudo-labels -----------------------------------------------------------------------------------------


def eight_points():
    sure_of_first = [0.90, 0.80, 0.60, 0.55, 0.50, 0.40, 0.15, 0.05]
    probabilities = torch.tensor([[p, 1 - p] for p in sure_of_first])
    embedding = torch.tensor(
        [[1, 0], [0, 1], [1, 1], [2, 0], [0, 0.5], [-1, 0], [-1, -1], [-1, 1]], dtype=torch.float32
    )
    return probabilities, embedding


def test_prototypes_and_labels_of_eight_points_are_those_computed_by_hand():
    taught = prototype_pseudo_labels(*eight_points(), n_confident=2, n_labelled=4)
    # cluster 0 is surest of items 0, 1: mean (.5, .5); dots .5 .5 1 1 .25 -.5 -1 0
    # cluster 1 is surest of items 7, 6: mean (-1, 0); dots -1 0 -1 -2 0 1 1 1; items 1 and 4 tie, 1 comes first
    assert taught.prototypes.tolist() == [[0.5, 0.5], [-1.0, 0.0]]
    assert taught.indices.tolist() == [2, 3, 0, 1, 5, 6, 7, 1]
    assert taught.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_an_item_may_be_taught_two_clusters_or_none():
    indices = prototype_pseudo_labels(*eight_points(), n_confident=2, n_labelled=4).indices.tolist()
    assert indices.count(1) == 2
    assert indices.count(4) == 0


def test_confidence_comes_from_the_probabilities_and_neighbours_from_the_embedding():
    probabilities, embedding = eight_points()
    flipped = prototype_pseudo_labels(probabilities.flip(1), embedding, n_confident=2, n_labelled=4)
    assert flipped.prototypes.tolist() == [[-1.0, 0.0], [0.5, 0.5]]
    shrunk = prototype_pseudo_labels(probabilities, 0.1 * embedding, n_confident=2, n_labelled=4)
    assert torch.allclose(shrunk.prototypes, torch.tensor([[0.05, 0.05], [-0.1, 0.0]]))  # never re-normalised


@pytest.mark.parametrize("name", ["n_confident", "n_labelled"])
def test_more_items_than_there_are_cannot_be_asked_for(name):
    counts = {"n_confident": 2, "n_labelled": 4} | {name: 9}
    with pytest.raises(ArgumentError, match=f"{name}.*from 1 to 8"):
        prototype_pseudo_labels(*eight_points(), **counts)


def test_an_embedding_of_other_items_is_refused():
    probabilities, embedding = eight_points()
    with pytest.raises(ShapeError, match="8 rows"):
        prototype_pseudo_labels(probabilities, embedding[:5], n_confident=1, n_labelled=1)


# --- the loss ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_clusters", "floor"), [(10, 1.4612), (20, 2.0782)])
def test_the_double_softmax_reaches_its_floor_at_certainty_and_not_below(n_clusters, floor):
    labels = torch.arange(n_clusters)
    certain = nn.functional.one_hot(labels, n_clusters).float()
    assert double_softmax_loss(certain, labels).item() == pytest.approx(floor, abs=5e-5)
    assert double_softmax_floor(n_clusters) == pytest.approx(floor, abs=5e-5)
    uniform = torch.full((n_clusters, n_clusters), 1 / n_clusters)
    assert double_softmax_loss(uniform, labels).item() == pytest.approx(math.log(n_clusters), abs=1e-6)


def test_the_double_softmax_is_written_out_as_in_the_method():
    p = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    expected = (
        -sum(
            math.log(math.exp(row[y]) / sum(map(math.exp, row)))
            for row, y in zip(p.tolist(), [0, 1], strict=True)
        )
        / 2
    )
    assert double_softmax_loss(p, torch.tensor([0, 1])).item() == pytest.approx(expected, rel=1e-6)


# --- reliable labels ---------------------------------------------------------------------------------------


def sure(labels, k, p=0.999):
    rest = (1 - p) / (k - 1)
    return torch.full((len(labels), k), rest).scatter_(1, labels[:, None], p)


def test_reliable_sets_are_balanced_and_keep_only_agreeing_sure_items(blobs):
    clean, _, labels = blobs
    probabilities = sure(labels, 3)
    probabilities[:4] = torch.tensor([0.98, 0.01, 0.01])  # agreeing, not sure enough
    probabilities[40] = torch.tensor([0.999, 0.0005, 0.0005])  # sure, in the wrong neighbourhood
    kept = reliable_labels(probabilities, clean, n_neighbours=10, consistency=0.9)
    # item 40 also costs those of its neighbours that had no other stranger to spare; with 0.9 of 10 nobody is lost
    assert kept.n_agreeing.tolist() == [26, 29, 30]
    counts = torch.bincount(kept.labels[kept.labels >= 0], minlength=3)
    assert counts.tolist() == [26, 26, 26]
    assert kept.labels[:4].tolist() == [-100] * 4
    assert kept.labels[40] == -100
    agree = kept.labels >= 0
    assert torch.equal(kept.labels[agree], labels[agree])


def test_reliable_neighbours_do_not_depend_on_the_block(blobs, monkeypatch):
    clean, _, labels = blobs
    noisy = sure(torch.where(torch.arange(90) % 7 == 0, (labels + 1) % 3, labels), 3)
    whole = reliable_labels(noisy, clean, n_neighbours=8, consistency=0.7, balance=False)
    monkeypatch.setattr(_neighbours, "block_rows", lambda *_: 7)
    blocked = reliable_labels(noisy, clean, n_neighbours=8, consistency=0.7, balance=False)
    assert torch.equal(whole.labels, blocked.labels)
    assert 0 < (whole.labels >= 0).sum() < 90


def test_the_random_cut_follows_the_seed(blobs):
    clean, _, labels = blobs
    probabilities = sure(labels, 3)
    probabilities[:10] = 1 / 3
    cuts = [reliable_labels(probabilities, clean, n_neighbours=5, seed=s).labels for s in (0, 0, 1)]
    assert torch.equal(cuts[0], cuts[1])
    assert not torch.equal(cuts[0], cuts[2])


def test_an_empty_cluster_is_named_and_the_unbalanced_set_is_offered(blobs):
    clean, _, labels = blobs
    probabilities = sure(labels, 4)
    with pytest.raises(ArgumentError, match=r"no reliable item in cluster 3 of 4.*balance=False"):
        reliable_labels(probabilities, clean, n_neighbours=5)
    kept = reliable_labels(probabilities, clean, n_neighbours=5, balance=False)
    assert kept.n_agreeing.tolist() == [30, 30, 30, 0]


# --- heads -------------------------------------------------------------------------------------------------


def test_batched_heads_are_that_many_small_networks():
    heads = ClusteringHeads(6, dataclasses.replace(SMALL, hidden=5), torch.Generator().manual_seed(0))
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))
    for h in range(4):
        first, second = nn.Linear(6, 5), nn.Linear(5, 3)
        first.weight.data, first.bias.data = heads.weight1[h].T, heads.bias1[h, 0]
        second.weight.data, second.bias.data = heads.weight2[h].T, heads.bias2[h, 0]
        alone = second(torch.relu(first(x))).softmax(dim=-1)
        assert torch.allclose(heads(x)[h], alone, atol=1e-6)
        assert torch.allclose(ClusteringHeads.from_state(heads.state_of(h))(x)[0], alone, atol=1e-6)


def test_heads_start_inside_the_bounds_of_linear_layers():
    heads = ClusteringHeads(16, SMALL, torch.Generator().manual_seed(0))
    assert heads.weight1.abs().max() <= 1 / 4
    assert heads.weight1.abs().max() > 0.9 / 4
    assert heads.weight1.mean().abs() < 0.02


# --- training ----------------------------------------------------------------------------------------------


def test_heads_find_separated_clusters_without_labels(blobs):
    clean, strong, labels = blobs
    found = train_clustering_heads(clean, clean, strong, dataclasses.replace(SMALL, epochs=10), seed=1)
    table = torch.zeros(3, 3, dtype=torch.int64)
    for t, p in zip(labels.tolist(), found.labels.tolist(), strict=True):
        table[t, p] += 1
    assert table.max(dim=1).values.tolist() == [30, 30, 30]
    assert sorted(table.argmax(dim=1).tolist()) == [0, 1, 2]


def test_the_selected_head_has_the_smallest_label_free_loss(blobs):
    clean, strong, _ = blobs
    found = train_clustering_heads(clean, clean, strong, SMALL, seed=0)
    assert len(found.losses) == 3
    assert all(len(row) == 4 for row in found.losses)
    assert found.loss == min(min(row) for row in found.losses)
    assert found.losses[found.selected_epoch][found.selected_head] == found.loss
    assert found.loss > double_softmax_floor(3)
    f = nn.functional.normalize(clean, dim=-1)
    own = prototype_pseudo_labels(found.probabilities, f, n_confident=15, n_labelled=30)
    recomputed = double_softmax_loss(found.probabilities[own.indices], own.labels).item()
    assert recomputed == pytest.approx(found.loss, abs=1e-6)
    assert torch.equal(found.head(clean)[0], found.probabilities)


def test_no_argument_takes_true_labels():
    assert not [name for name in inspect.signature(train_clustering_heads).parameters if "label" in name]


def test_the_seed_decides_everything(blobs):
    clean, strong, _ = blobs
    runs = [train_clustering_heads(clean, clean, strong, SMALL, seed=s) for s in (5, 5, 6)]
    assert torch.equal(runs[0].probabilities, runs[1].probabilities)
    assert runs[0].losses == runs[1].losses
    assert not torch.equal(runs[0].probabilities, runs[2].probabilities)


def test_training_does_not_touch_the_global_generator(blobs):
    clean, strong, _ = blobs
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    train_clustering_heads(clean, clean, strong, SMALL)
    assert torch.equal(torch.rand(1), expected)


def test_the_transform_sees_each_selection_batch_once_as_unit_rows_and_without_gradient(blobs):
    clean, strong, _ = blobs
    seen = []

    def spy(x, *, mask=None):
        seen.append((tuple(x.shape), torch.is_grad_enabled(), x.norm(dim=-1).sub(1).abs().max().item()))
        return x

    train_clustering_heads(clean, clean, strong, SMALL, transform=spy)
    assert len(seen) == 3 * (90 // 60)
    assert all(shape == (60, 16) and not grad and gap < 1e-5 for shape, grad, gap in seen)


def test_the_transform_decides_the_pseudo_labels(blobs):
    clean, strong, _ = blobs

    def shuffled(x, *, mask=None):
        return x.flip(0)

    plain = train_clustering_heads(clean, clean, strong, SMALL, seed=2)
    other = train_clustering_heads(clean, clean, strong, SMALL, seed=2, transform=shuffled)
    assert not torch.allclose(plain.probabilities, other.probabilities)
    assert plain.diagnostics == other.diagnostics  # measured on the features, before the transform


def test_collapsed_features_are_warned_about(blobs):
    clean, strong, _ = blobs
    with pytest.warns(UserWarning, match=r"mean cosine .* 0\.9"):
        train_clustering_heads(clean + 3, clean, strong, dataclasses.replace(SMALL, epochs=1))


def test_progress_counts_rounds(blobs):
    clean, strong, _ = blobs
    seen = []
    train_clustering_heads(
        clean, clean, strong, SMALL, on_progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_single_softmax_is_another_training(blobs):
    clean, strong, _ = blobs
    double = train_clustering_heads(clean, clean, strong, SMALL)
    single = train_clustering_heads(clean, clean, strong, dataclasses.replace(SMALL, double_softmax=False))
    assert single.losses != double.losses


# --- diagnostics -------------------------------------------------------------------------------------------


def test_diagnostics_equal_the_full_cosine_table(blobs, monkeypatch):
    clean, _, _ = blobs
    f = nn.functional.normalize(clean.double(), dim=-1)
    cosine = f @ f.T
    off = cosine[~torch.eye(90, dtype=torch.bool)]
    table = cosine.fill_diagonal_(-torch.inf)
    near = table.topk(7, dim=-1)
    counts = torch.bincount(near.indices.flatten(), minlength=90).double()
    skew = ((counts - 7) ** 3).mean() / ((counts - 7) ** 2).mean() ** 1.5
    monkeypatch.setattr(_neighbours, "block_rows", lambda *_: 13)
    measured = embedding_diagnostics(clean, n_neighbours=7)
    assert measured.mean_cosine == pytest.approx(off.mean().item(), abs=1e-6)
    assert measured.mean_neighbour_cosine == pytest.approx(near.values.mean().item(), abs=1e-6)
    assert measured.hubness == pytest.approx(skew.item(), abs=1e-9)


# --- settings and refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "k", "n", "steps"),
    [("stl10", 250, 500, 312), ("cifar10", 250, 500, 312), ("cifar100-20", 250, 500, 624)],
)
def test_published_settings_give_the_published_counts(name, k, n, steps):
    settings = SPICE_SETTINGS[name]
    assert settings.counts(settings.selection_size) == (k, n)
    pairs = settings.n_clusters * n
    assert pairs // settings.batch_size * settings.repeats == steps
    assert (settings.n_heads, settings.learning_rate, settings.weight_decay) == (10, 0.005, 0.0)
    assert settings.double_softmax


def test_three_confident_items_can_be_asked_for_by_name():
    settings = dataclasses.replace(SPICE_SETTINGS["cifar10"], n_confident=3)
    assert settings.counts(5000) == (3, 500)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_clusters": 1}, "at least 2"),
        ({"selection_size": 2}, "at least n_clusters"),
        ({"epochs": 0}, "'epochs'"),
        ({"centre_ratio": 0.0}, "centre_ratio"),
        ({"n_confident": 61}, "n_confident"),
    ],
)
def test_settings_that_cannot_work_are_refused(change, says):
    with pytest.raises(ArgumentError, match=says):
        dataclasses.replace(SMALL, **change)


def test_views_that_do_not_fit_are_refused(blobs):
    clean, strong, _ = blobs
    with pytest.raises(ShapeError, match=r"'features'.*\(n, d\)"):
        train_clustering_heads(strong, clean, strong, SMALL)
    with pytest.raises(ShapeError, match="'strong'"):
        train_clustering_heads(clean, clean, strong[:, :80], SMALL)
    with pytest.raises(ShapeError, match="'clean'"):
        train_clustering_heads(clean, clean, strong, SMALL, clean=strong)
    with pytest.raises(ShapeError, match="selection_size=60"):
        train_clustering_heads(clean[:50], clean[:50], clean[:50], SMALL)
    with pytest.raises(ArgumentError, match="never take a step"):
        train_clustering_heads(clean, clean, strong, dataclasses.replace(SMALL, batch_size=61))
    with pytest.raises(DTypeError, match="'weak'"):
        train_clustering_heads(clean, clean.long(), strong, SMALL)
    with pytest.raises(NonFiniteError, match="'strong'"):
        train_clustering_heads(clean, clean, strong / 0 * 0, SMALL)
    with pytest.raises(ArgumentError, match="consistency"):
        reliable_labels(torch.rand(4, 2), torch.rand(4, 3), consistency=90)
    with pytest.raises(ShapeError, match=r"'features' parameter of reliable_labels must have shape \(4, d\)"):
        reliable_labels(torch.rand(4, 2), torch.rand(5, 3))
