"""Ranking by balanced rows: joint against a slow float64 oracle, frozen and per-query against joint."""

from __future__ import annotations

import warnings

import algorithm_1
import numpy as np
import pytest
import torch

from bpa import choose_reg
from bpa.errors import ArgumentError, FileError, MemoryBudgetError, ShapeError
from bpa.hosts.retrieval import Gallery, estimate_rank, rank, rerank, row_source
from bpa.plans import RowComparison, load_plan
from bpa.solvers import Converged, Sweeps

PAPER, RETRIEVAL = RowComparison.paper(), RowComparison.retrieval()
ROWS = [PAPER, RowComparison("cosine"), RowComparison("euclidean", top=12), RowComparison("cosine", top=12)]


def clusters(seed=0, n_ids=20, each=6, d=16, noise=0.5):
    """Identities in general position: (queries, gallery, query ids, gallery ids)."""
    g = torch.Generator().manual_seed(seed)
    centre = torch.randn(n_ids, d, generator=g, dtype=torch.float64)
    x = centre[:, None] + noise * torch.randn(n_ids, each, d, generator=g, dtype=torch.float64)
    ids = torch.arange(n_ids)
    return x[:, 0], x[:, 1:].reshape(-1, d), ids, ids.repeat_interleave(each - 1)


def slow_compare(w, n_query, first, rows):
    w = w.copy()
    if rows.top is not None:
        for i in range(len(w)):
            off = w[i].copy()
            off[i] = -1
            kept = sorted(range(len(w)), key=lambda j, off=off: -off[j])[: rows.top]
            new = np.zeros(len(w))
            new[kept] = off[kept] / off[kept].sum()
            new[i] = 1
            w[i] = new
    left, right = w[:n_query], w[first:]
    if rows.measure == "cosine":
        dot = left @ right.T
        return 1 - dot / np.outer(np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1))
    squared = ((left[:, None] - right[None]) ** 2).sum(-1)
    return squared if rows.measure == "sqeuclidean" else np.sqrt(squared)


@pytest.mark.parametrize("rows", ROWS, ids=lambda r: r.name)
@pytest.mark.parametrize("cost", ["cosine", "sqeuclidean", "relative-euclidean"])
def test_joint_equals_a_slow_float64_computation(rows, cost):
    q, g, _, _ = clusters(n_ids=9, each=4)
    reg = {"cosine": 0.15, "sqeuclidean": 5.0, "relative-euclidean": 0.1}[cost]
    w = algorithm_1.affinities(torch.cat([q, g]), reg, 5, cost=cost)
    got = rank(q, g, reg=reg, cost=cost, rows=rows, diagnostics=False).distances
    np.testing.assert_allclose(got.numpy(), slow_compare(w, len(q), len(q), rows), atol=1e-8)
    single = rank(q.float(), g.float(), reg=reg, cost=cost, rows=rows, diagnostics=False).distances
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), got.numpy(), atol=5e-4)


@pytest.mark.parametrize("rows", ROWS, ids=lambda r: r.name)
def test_every_item_may_query_the_others(rows):
    q, g, _, _ = clusters(n_ids=9, each=4)
    x = torch.cat([q, g])
    got = rank(x, reg=0.15, rows=rows, diagnostics=False).distances
    np.testing.assert_allclose(
        got.numpy(), slow_compare(algorithm_1.affinities(x, 0.15, 5), len(x), 0, rows), atol=1e-8
    )


@pytest.mark.parametrize("rows", ROWS, ids=lambda r: r.name)
def test_blocked_rows_equal_held_rows(rows):
    q, g, _, _ = clusters(n_ids=40, each=9)
    held = rank(q, g, reg=0.15, rows=rows, diagnostics=False)
    assert any(name == "W" for name, _ in held.estimate.parts)
    budget = held.estimate.total - 1
    blocked = rank(q, g, reg=0.15, rows=rows, budget=budget, diagnostics=False)
    assert not any(name == "W" for name, _ in blocked.estimate.parts)
    torch.testing.assert_close(held.distances, blocked.distances, atol=1e-8, rtol=1e-6)


def test_a_budget_too_small_is_refused_before_anything_is_allocated():
    q, g, _, _ = clusters()
    with pytest.raises(MemoryBudgetError, match="frozen"):
        rank(q, g, reg=0.2, budget=1000)
    with pytest.raises(MemoryBudgetError, match="top=50"):
        Gallery.fit(g, reg=0.2, rows=PAPER, budget=1000)


@pytest.mark.parametrize("measure", ["euclidean", "cosine"])
def test_bfloat16_storage_ranks_like_float32(measure):
    q, g, qi, gi = clusters(seed=2, n_ids=40, each=8, noise=0.9)
    rows = RowComparison(measure)
    full = rank(q.float(), g.float(), reg=0.1, rows=rows, diagnostics=False).distances
    half = rank(q.float(), g.float(), reg=0.1, rows=rows, storage=torch.bfloat16, diagnostics=False).distances
    assert abs(mean_ap(full, qi, gi) - mean_ap(half, qi, gi)) < 0.005
    assert (full - half).abs().max() < 0.05
    with pytest.raises(ArgumentError, match="bfloat16"):
        rank(q, g, reg=0.01, storage=torch.bfloat16)


def mean_ap(distances, qi, gi):
    total = 0.0
    for row, identity in zip(distances, qi, strict=True):
        hit = (gi == identity)[row.argsort(stable=True)].double()
        total += float((hit * hit.cumsum(0) / torch.arange(1, len(hit) + 1)).sum() / hit.sum())
    return total / len(qi)


@pytest.mark.parametrize("rows", ROWS, ids=lambda r: r.name)
def test_frozen_ranks_nearly_like_one_query_at_a_time(rows):
    q, g, qi, gi = clusters(seed=1, noise=0.8)
    each = rank(
        q, g, reg=0.15, protocol="per-query", rows=rows, solver=Sweeps(30), diagnostics=False
    ).distances
    frozen = rank(
        q, g, reg=0.15, protocol="frozen", rows=rows, solver=Sweeps(30), diagnostics=False
    ).distances
    rank_each, rank_frozen = each.argsort(1).argsort(1).double(), frozen.argsort(1).argsort(1).double()
    spearman = torch.stack(
        [torch.corrcoef(torch.stack([a, b]))[0, 1] for a, b in zip(rank_each, rank_frozen, strict=True)]
    )
    assert spearman.mean() > 0.98
    assert abs(mean_ap(each, qi, gi) - mean_ap(frozen, qi, gi)) < 0.02


def test_the_query_s_own_coordinate_is_part_of_the_frozen_distance():
    q, g, _, _ = clusters(seed=1)
    frozen = Gallery.fit(g, reg=0.15, rows=PAPER, solver=Sweeps(30))
    w = frozen.plan.affinities()
    row, column = frozen.row(q), frozen.plan.late(q, recognise=False).columns()
    expected = (((row[:, None] - w[None]) ** 2).sum(-1) + (1 - column) ** 2).sqrt()
    torch.testing.assert_close(frozen.distances(q), expected, atol=1e-9, rtol=1e-9)
    without = ((row[:, None] - w[None]) ** 2).sum(-1)
    assert (without.argsort(1) != expected.argsort(1)).any()


@pytest.mark.parametrize("rows", ROWS, ids=lambda r: r.name)
def test_frozen_equals_joint_for_fitted_items(rows):
    q, g, _, _ = clusters(seed=3)
    x = torch.cat([q, g])
    frozen = Gallery.fit(x, reg=0.2, rows=rows, solver=Sweeps(5))
    joint = rank(q, g, reg=0.2, rows=rows, solver=Sweeps(5), diagnostics=False).distances
    got = frozen.fitted_distances(torch.arange(len(q)), torch.arange(len(q), len(x)))
    torch.testing.assert_close(got, joint, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("rows", ROWS, ids=lambda r: r.name)
def test_a_short_list_compares_like_the_whole_gallery(rows):
    q, g, _, _ = clusters(seed=4)
    frozen = Gallery.fit(g, reg=0.15, rows=rows, solver=Sweeps(10))
    whole = frozen.distances(q)
    candidates = frozen.shortlist(q, 17)
    near = torch.nn.functional.normalize(q, dim=1) @ torch.nn.functional.normalize(g, dim=1).T
    assert torch.equal(candidates.sort(1).values, near.topk(17, dim=1).indices.sort(1).values)
    torch.testing.assert_close(
        frozen.distances(q, candidates), whole.gather(1, candidates), atol=1e-9, rtol=1e-9
    )
    index, distance = frozen.search(q, shortlist=17, top=5)
    best = frozen.distances(q, candidates).sort(1)
    torch.testing.assert_close(distance, best.values[:, :5], atol=1e-9, rtol=1e-9)
    assert torch.equal(index, candidates.gather(1, best.indices[:, :5]))
    one_by_one = torch.cat([frozen.distances(q[i : i + 1]) for i in range(len(q))])
    torch.testing.assert_close(one_by_one, whole, atol=1e-9, rtol=1e-9)
    ranked = rank(
        q, g, reg=0.15, solver=Sweeps(10), protocol="frozen", rows=rows, shortlist=17, diagnostics=False
    )
    first = ranked.distances.argsort(1)[:, :17].sort(1).values
    assert torch.equal(first, candidates.sort(1).values)
    tail = near.masked_fill(torch.zeros_like(near, dtype=torch.bool).scatter_(1, candidates, True), -2)
    assert torch.equal(ranked.distances.argsort(1)[:, 17:], tail.argsort(1, descending=True)[:, :-17])


@pytest.mark.parametrize("rows", ROWS, ids=lambda r: r.name)
def test_frozen_serving_knows_the_euclidean_cost(rows):
    q, g, qi, gi = clusters(seed=4)
    q, g = q + 3, g + 3  # the set's mean must not matter
    frozen = Gallery.fit(g, reg=4.0, cost="sqeuclidean", rows=rows, solver=Sweeps(30))
    assert torch.equal(
        frozen.shortlist(q, 9).sort(1).values, torch.cdist(q, g).topk(9, largest=False).indices.sort(1).values
    )
    each = rank(
        q,
        g,
        reg=4.0,
        cost="sqeuclidean",
        protocol="per-query",
        rows=rows,
        solver=Sweeps(30),
        diagnostics=False,
    )
    assert abs(mean_ap(frozen.distances(q), qi, gi) - mean_ap(each.distances, qi, gi)) < 0.02


def test_the_bank_takes_part_but_is_never_ranked():
    q, g, _, _ = clusters(seed=5)
    bank = clusters(seed=6)[1]
    frozen = Gallery.fit(g, bank, reg=0.2, rows=PAPER, solver=Sweeps(20))
    assert frozen.distances(q).shape == (len(q), len(g))
    alone = Gallery.fit(g, reg=0.2, rows=PAPER, solver=Sweeps(20))
    assert not torch.allclose(frozen.distances(q), alone.distances(q))
    with pytest.raises(ArgumentError, match="without a bank"):
        frozen.add(bank)


@pytest.mark.parametrize("rows", ROWS, ids=lambda r: r.name)
@pytest.mark.parametrize("storage", [None, torch.bfloat16])
def test_a_saved_state_ranks_the_same_and_holds_no_pickle(tmp_path, rows, storage):
    q, g, _, _ = clusters(seed=7)
    frozen = Gallery.fit(g, reg=0.2, rows=rows, solver=Sweeps(10), storage=storage)
    path = tmp_path / "gallery.npz"
    frozen.save(path)
    with np.load(path, allow_pickle=False) as stored:  # an object array would raise here
        assert all(stored[name].dtype != object for name in stored.files)
    again = Gallery.load(path)
    assert (again.rows, again.n_gallery, again.reg) == (rows, len(g), 0.2)
    torch.testing.assert_close(again.distances(q), frozen.distances(q), atol=1e-9, rtol=1e-9)


GALLERY_FILES = {
    "no gallery": ({"n_gallery": 0}, "'n_gallery' is 0"),
    "more than there are": ({"n_gallery": 101}, "'n_gallery' is 101"),
    "measure": ({"measure": "manhattan"}, "'measure' is 'manhattan'"),
    "storage": ({"storage": "torch.int8"}, "'storage'"),
    "another width": ({"top": 11}, "'columns' has shape (100, 12)"),
    "rows that should not be there": ({"top": 0}, "'columns', 'values', which this version does not know"),
    "a column outside": ({"columns": np.full((100, 12), 100)}, "positions outside 0..99"),
    "values that are none": ({"values": np.full((100, 12), np.nan)}, "'values'"),
    "a plan": ({"kind": "dense"}, "holds a 'dense', not a gallery plan"),
}


@pytest.mark.parametrize("case", GALLERY_FILES)
def test_a_file_that_no_gallery_wrote_is_refused_with_the_reason(tmp_path, case):
    changes, reason = GALLERY_FILES[case]
    Gallery.fit(clusters()[1], reg=0.2, rows=RowComparison("cosine", top=12)).save(tmp_path / "a.plan")
    with np.load(tmp_path / "a.plan") as stored:
        arrays = {name: stored[name] for name in stored.files}
    with (tmp_path / "b.plan").open("wb") as file:
        np.savez(file, **(arrays | {name: np.asarray(value) for name, value in changes.items()}))
    with pytest.raises(FileError) as said:
        Gallery.load(tmp_path / "b.plan")
    assert reason in str(said.value)


def test_other_files_are_refused_and_a_gallery_is_no_plan(tmp_path):
    np.savez(tmp_path / "other.npz", features=np.zeros(3))
    (tmp_path / "text.npz").write_text("no archive")
    for name in ("other.npz", "text.npz", "absent.npz"):
        with pytest.raises(FileError, match=name):
            Gallery.load(tmp_path / name)
    Gallery.fit(clusters()[1]).save(tmp_path / "a.plan")
    with pytest.raises(FileError, match=r"read it with Gallery\.load"):
        load_plan(tmp_path / "a.plan")


def test_a_gallery_says_what_it_is_and_how_balanced():
    fitted = Gallery.fit(clusters()[1])
    assert repr(fitted).startswith(
        "Gallery(n_gallery=100, rows='cosine top-50', plan=DensePlan(n=100, d=16, "
    )
    assert "converged: marginal error" in repr(fitted)
    assert fitted.reg == fitted.plan.reg


@pytest.mark.parametrize("rows", [PAPER, RowComparison("cosine", top=12)], ids=lambda r: r.name)
def test_a_grown_gallery_equals_one_fitted_whole_and_starts_warm(rows):
    q, g, _, _ = clusters(seed=8)
    old, new = g[:-5], g[-5:]
    grown = Gallery.fit(old, reg=0.2, rows=rows, solver=Converged(1e-9)).add(new, solver=Converged(1e-9))
    whole = Gallery.fit(g, reg=0.2, rows=rows, solver=Converged(1e-9))
    torch.testing.assert_close(grown.distances(q), whole.distances(q), atol=1e-6, rtol=1e-6)
    assert grown.plan.convergence.n_iter < whole.plan.convergence.n_iter


def test_the_hook_scores_candidates_of_any_index():
    q, g, _, _ = clusters(seed=9)
    fitted = Gallery.fit(g, reg=0.2, solver=Sweeps(20), rows=RowComparison("cosine", top=12))
    ids = fitted.shortlist(q, 10)
    scores = rerank(q, ids, None, fitted)
    torch.testing.assert_close(scores, -fitted.distances(q, ids))
    torch.testing.assert_close(rerank(q[0], ids[0], None, fitted), scores[0])
    with pytest.raises(ArgumentError, match="'candidate_vectors'"):
        rerank(q[0], torch.tensor([-1, 2]), None, fitted)


@pytest.mark.parametrize("rows", ROWS, ids=lambda r: r.name)
def test_items_newer_than_the_fit_score_nearly_like_fitted_ones(rows):
    q, g, _, _ = clusters(seed=10)
    late = list(range(0, len(g), 10))
    early = [j for j in range(len(g)) if j not in late]
    fitted = Gallery.fit(g[early], reg=0.2, solver=Sweeps(40), rows=rows)
    whole = Gallery.fit(g, reg=0.2, solver=Sweeps(40), rows=rows)
    ids = torch.full((len(q), len(late)), -1)
    scores = rerank(q, ids, g[late].expand(len(q), -1, -1), fitted)
    expected = -whole.distances(q)[:, late]
    assert torch.corrcoef(torch.stack([scores.reshape(-1), expected.reshape(-1)]))[0, 1] > 0.95
    assert (scores.argmax(1) == expected.argmax(1)).double().mean() > 0.9


def completed(row, top):
    """A row as it is compared: whole, or its largest entries shared out."""
    if top is None:
        return row
    order = sorted(range(len(row)), key=lambda j: -row[j])[:top]
    out = np.zeros_like(row)
    out[order] = row[order] / row[order].sum()
    return out


@pytest.mark.parametrize("top", [None, 3, 12, 49, 50, 51, 52, 80])
@pytest.mark.parametrize("measure", ["euclidean", "sqeuclidean", "cosine"])
@pytest.mark.parametrize("cost", ["cosine", "sqeuclidean"])
def test_late_items_are_compared_as_a_loop_over_pairs_would(cost, measure, top):
    q, g, _, _ = clusters(seed=16, n_ids=10)
    items, late = g, g[::9] + 0.3
    reg = {"cosine": 0.2, "sqeuclidean": 6.0}[cost]
    fitted = Gallery.fit(items, reg=reg, cost=cost, rows=RowComparison(measure, top=top), solver=Sweeps(4))
    got = fitted.distances_to_new(q, late)
    assert len(items) == 50  # so that lists are shorter than, as long as, and longer than rows
    left, right = fitted.row(q).numpy(), fitted.row(late).numpy()

    def cost_of(a, b):
        return (1 - unit(a) @ unit(b).T if cost == "cosine" else torch.cdist(a, b).square()).numpy()

    g_v = fitted.plan.log_v.numpy()
    f_q = -np.logaddexp.reduce(g_v - cost_of(q, items) / reg, axis=1)
    f_a = -np.logaddexp.reduce(g_v - cost_of(late, items) / reg, axis=1)
    entry = np.exp(f_q[:, None] + f_a[None] - cost_of(q, late) / reg) / fitted.plan.scale
    for i in range(len(q)):
        for j in range(len(late)):
            mine, other = (completed(np.append(row, entry[i, j]), top) for row in (left[i], right[j]))
            mine = np.concatenate([mine[:-1], [1], mine[-1:]])  # the query's column, the item's column
            other = np.append(other, 1)
            squared = ((mine - other) ** 2).sum()
            cosine = 1 - mine @ other / np.linalg.norm(mine) / np.linalg.norm(other)
            expected = {"euclidean": np.sqrt(squared), "sqeuclidean": squared, "cosine": cosine}[measure]
            assert got[i, j].item() == pytest.approx(expected, abs=1e-7)


def test_diagnostics_speak_when_reg_is_far_off_and_are_silent_otherwise():
    q, g, _, _ = clusters(seed=11, n_ids=30, each=8, d=32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        good = rank(q, g, reg=0.2, rows=RETRIEVAL).diagnostics
    assert good.notes == ()
    assert 0.05 * good.n < good.perplexity < 0.9 * good.n
    with pytest.warns(UserWarning, match="reg=3 is large"):
        rank(q, g, reg=3.0, rows=PAPER)
    with pytest.warns(UserWarning, match="reg=0.03 is small"):
        rank(q, g, reg=0.03, rows=PAPER)


def test_diagnostics_measure_what_they_say():
    q, g, _, _ = clusters(seed=12, n_ids=8, each=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ranking = rank(q, g, reg=0.2, rows=PAPER)
    seen = ranking.diagnostics
    assert seen.near == pytest.approx(float(ranking.distances.min()))  # 256 entries: the first of a thousand
    assert seen.middle == pytest.approx(float(ranking.distances.quantile(0.5)), rel=0.01)
    w = algorithm_1.affinities(torch.cat([q, g]), 0.2, 5)
    np.fill_diagonal(w, 0)
    share = w / w.sum(1, keepdims=True)
    entropy = -(share * np.log(np.where(share > 0, share, 1))).sum(1)
    assert seen.perplexity == pytest.approx(np.sort(np.exp(entropy))[(len(w) - 1) // 2])
    assert seen.row_maximum == pytest.approx(w.max(1).mean())
    nq, ng = (x / x.norm(dim=1, keepdim=True) for x in (q, g))
    assert seen.cost_mean == pytest.approx(float((1 - nq @ ng.T).mean()))
    assert seen.cost_std == pytest.approx(float((1 - nq @ ng.T).std()))


def test_the_estimate_bounds_the_largest_buffers():
    held = estimate_rank(3368, 15913, 1536, rows=PAPER)
    assert dict(held.parts)["W"] == 19281**2 * 4
    assert held.total < 1.6 * 19281**2 * 4
    half = estimate_rank(3368, 15913, 1536, rows=PAPER, storage=torch.bfloat16)
    assert dict(half.parts)["W"] * 2 == dict(held.parts)["W"]
    streamed = estimate_rank(3368, 15913, 1536, rows=PAPER, budget="1.4GB")
    assert "W" not in dict(streamed.parts)


def test_wrong_arguments_name_themselves():
    q, g, _, _ = clusters()
    with pytest.raises(ShapeError, match="'gallery'"):
        rank(q, g[:, :3], reg=0.2)
    with pytest.raises(ArgumentError, match="'protocol'"):
        rank(q, g, reg=0.2, protocol="both")
    with pytest.raises(ArgumentError, match="'shortlist'"):
        rank(q, g, reg=0.2, shortlist=5)
    with pytest.raises(ArgumentError, match="'measure'"):
        RowComparison("manhattan")
    with pytest.raises(ArgumentError, match="positions 0"):
        Gallery.fit(g, reg=0.2, solver=Sweeps(5)).distances(q, torch.full((len(q), 1), len(g)))


@pytest.mark.parametrize("measure", ["euclidean", "cosine"])
@pytest.mark.parametrize("top", [None, 8])
def test_a_graph_of_all_neighbours_is_the_dense_converged_plan(measure, top):
    q, g, _, _ = clusters(seed=13, n_ids=8, each=5)
    x = torch.cat([q, g])
    rows = RowComparison(measure, top=top, neighbours=len(x) - 1)
    got = rank(q, g, reg=0.3, rows=rows, diagnostics=False).distances
    many = rank(
        q, g, reg=0.3, solver=Sweeps(400), rows=RowComparison(measure, top=top), diagnostics=False
    ).distances
    torch.testing.assert_close(got, many, atol=5e-3, rtol=5e-3)
    few = RowComparison(measure, top=top, neighbours=6)
    assert not torch.allclose(rank(q, g, reg=0.3, rows=few, diagnostics=False).distances, many, atol=1e-2)


@pytest.mark.parametrize("rows", ROWS, ids=lambda r: r.name)
def test_the_space_of_rows_is_the_one_that_ranks(rows):
    q, g, _, _ = clusters(seed=14, n_ids=10, each=5)
    x = torch.cat([q, g])
    source = row_source(x, reg=0.2, rows=rows)
    ranked = rank(x, reg=0.2, rows=rows, diagnostics=False).distances
    everything = source.rows(slice(0, len(x)))
    squared = 2 * ranked if rows.measure == "cosine" else ranked.square()
    torch.testing.assert_close(everything, squared, atol=1e-8, rtol=1e-7)
    assert everything.diagonal().abs().max() == 0
    i, j = torch.randint(0, len(x), (2, 200), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(source.pairs(i, j), everything[i, j], atol=1e-8, rtol=1e-7)
    found = source.neighbours(7, self_first=True)
    assert torch.equal(found.index[:, 0], torch.arange(len(x)))
    torch.testing.assert_close(found.squared, everything.gather(1, found.index))
    torch.testing.assert_close(found.squared, everything.sort(1).values[:, :7])
    torch.testing.assert_close(found.largest, everything.amax(1))


@pytest.mark.parametrize("rows", ROWS, ids=lambda r: r.name)
@pytest.mark.parametrize("protocol", ["joint", "frozen", "per-query"])
def test_auto_is_the_rule_of_the_set_that_is_balanced(rows, protocol, tmp_path):
    q, g, _, _ = clusters(seed=15, n_ids=8, each=5)
    q, g = q + 2.0, g + 2.0  # features that all point one way
    auto = rank(q, g, protocol=protocol, rows=rows, diagnostics=False).distances
    torch.testing.assert_close(
        rank(q, g, reg="Auto", protocol=protocol, rows=rows, diagnostics=False).distances, auto
    )

    def by_hand(left, right, of):
        """Unit rows minus the mean of the unit rows of ``of``, at the weight that the rule gives that set."""
        left, right, of = (x / x.norm(dim=1, keepdim=True) for x in (left, right, of))
        mean, reg = of.mean(0), float(choose_reg(of).reg)
        moved = {"reg": reg, "protocol": "frozen" if protocol == "frozen" else "joint", "rows": rows}
        return rank(left - mean, right - mean, **moved, diagnostics=False).distances

    if protocol == "joint":
        expected = by_hand(q, g, torch.cat([q, g]))
    elif protocol == "frozen":
        expected = by_hand(q, g, g)
        fitted = Gallery.fit(g, rows=rows, solver=Sweeps(5))
        fitted.save(tmp_path / "g.plan")
        again = Gallery.load(tmp_path / "g.plan")
        torch.testing.assert_close(again.distances(q), expected, atol=1e-8, rtol=1e-6)
        torch.testing.assert_close(again.row(q), fitted.row(q))
    else:
        expected = torch.cat([by_hand(one[None], g, torch.cat([one[None], g])) for one in q])
    torch.testing.assert_close(auto, expected, atol=1e-8, rtol=1e-6)
    named = rank(
        q, g, reg=0.2, cost="centred-cosine", protocol=protocol, rows=rows, diagnostics=False
    ).distances
    assert not torch.allclose(
        named, rank(q, g, reg=0.2, protocol=protocol, rows=rows, diagnostics=False).distances
    )


def test_auto_serves_distances_and_refuses_what_has_no_directions():
    q, g, qi, gi = clusters(seed=15)
    q, g = q + 2.0, g + 2.0
    by_distance = rank(q, g, cost="sqeuclidean", diagnostics=False).distances
    assert mean_ap(by_distance, qi, gi) > mean_ap(1 - unit(q) @ unit(g).T, qi, gi)
    with pytest.raises(ArgumentError, match="'reg' parameter of rank"):
        rank(q, g, reg="best")
    with pytest.raises(ArgumentError, match=r"'reg' parameter of rank.*choose_reg"):
        rank(q, g, cost="relative-euclidean")
    found = rank(q, g, diagnostics=True).diagnostics
    assert 0.08 <= found.reg <= 0.4


def unit(x):
    return x / x.norm(dim=1, keepdim=True)
