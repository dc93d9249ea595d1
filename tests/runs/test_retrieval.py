"""The retrieval runs: every way once, resumable, honest about what it compares with."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from bpa.data.reid import write_reid_features
from bpa.errors import ArgumentError
from bpa.hosts.retrieval import k_reciprocal, rank
from bpa.plans._comparison import PRESETS
from bpa.records import FeatureSet, QueryGallery
from bpa.runs.retrieval import (
    RetrievalConfig,
    Way,
    config_from_names,
    memory_line,
    rank_way,
    read_task,
    retrieval_table,
    run_retrieval,
    top_lists,
    ways_of,
    write_rankings,
)
from bpa.runs.retrieval_studies import STUDIES, draw_identities
from bpa.runs.store import RunStore
from bpa.runs.study import StudyOptions

ALL = RetrievalConfig(
    reg=(0.2,), rows=("paper", "retrieval"), protocols=("joint", "frozen", "per-query"), rerank="k-reciprocal",
    baselines=("csls", "local-scaling"), k1=6, k2=3,
)  # fmt: skip


@pytest.fixture
def task():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(12, 10))
    ids = np.repeat(np.arange(12), 6)
    x = (centres[ids] + 0.7 * rng.normal(size=(72, 10))).astype(np.float32)
    query = np.arange(0, 72, 6)
    return QueryGallery(x, query, np.setdiff1d(np.arange(72), query), ids, np.tile([0, 1, 2], 24), "made up")


def test_the_four_rows_of_the_paper_and_the_protocols_are_there(task):
    records = run_retrieval(task, ALL)
    assert [r.config["paper_row"] for r in records if r.config["paper_row"]] == [
        "baseline", "bpa", "k-reciprocal", "bpa + k-reciprocal",
    ]  # fmt: skip
    names = {(r.config["way"], r.config["protocol"]) for r in records}
    assert {("bpa reg=0.2 (euclidean rows)", p) for p in ("joint", "frozen", "per-query")} <= names
    assert ("csls", "joint") in names
    table = retrieval_table(records)
    assert len(table.rows) == len(records)
    assert "paper (mAP / Rank-1)" not in table.columns
    assert "finite-sum" in table.notes[0]


def test_paper_numbers_appear_only_beside_the_papers_sets(task):
    config = RetrievalConfig(reg=(0.25,), rows=("paper", "retrieval"))
    table = retrieval_table(run_retrieval(task, config, dataset="market1501"))
    cells = {row[0]: row[-1] for row in table.rows}
    assert table.columns[-1].startswith("paper")
    assert cells["identity"] == "85.7 / 94.3"
    assert cells["bpa reg=0.25 (euclidean rows)"] == "88.1 / 94.4"
    assert cells["unit"] is None
    assert cells["bpa reg=0.25 (cosine top-50 rows)"] is None


def test_plain_ways_are_plain_distances(task):
    x = torch.from_numpy(task.features).double()
    q, g = x[task.query], x[task.gallery]
    got, _ = rank_way(task, Way("identity"), ALL)
    np.testing.assert_allclose(got.numpy(), torch.cdist(q, g).square().numpy(), atol=1e-4)
    got, _ = rank_way(task, Way("unit"), ALL)
    nq, ng = q / q.norm(dim=1, keepdim=True), g / g.norm(dim=1, keepdim=True)
    np.testing.assert_allclose(got.numpy(), (2 - 2 * nq @ ng.T).numpy(), atol=1e-5)
    got, _ = rank_way(task, Way("unit", rerank=True), ALL)
    expected = k_reciprocal(torch.cat([nq, ng]), len(q), k1=6, k2=3).distances()
    np.testing.assert_allclose(got.numpy(), expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("rows", list(PRESETS.values()), ids=lambda r: r.name)
def test_reranked_bpa_takes_its_neighbours_in_bpa_space(task, rows):
    x = torch.from_numpy(task.features)
    q, g = x[task.query], x[task.gallery]
    joint = rank(torch.cat([q, g]), reg=0.2, rows=rows, diagnostics=False).distances.double().clamp_min(0)
    plain = joint.sqrt() if rows.measure == "cosine" else joint  # of unit rows, up to a factor
    expected = k_reciprocal(distances=plain, n_query=len(q), k1=6, k2=3).distances()
    got, _ = rank_way(task, Way("bpa", 0.2, rows=rows, rerank=True), ALL)
    np.testing.assert_allclose(got.numpy(), expected.numpy(), atol=2e-4)


def test_a_finished_run_is_taken_from_its_folder(task, tmp_path):
    config = RetrievalConfig(reg=(0.1, 0.2))
    first = run_retrieval(task, config, store=RunStore(tmp_path), sha256="a")
    before = (tmp_path / "results.jsonl").read_bytes()
    ticks = []
    again = run_retrieval(
        task, config, store=RunStore(tmp_path), sha256="a", on_progress=lambda *t: ticks.append(t)
    )
    assert (tmp_path / "results.jsonl").read_bytes() == before
    assert [r.to_json(seconds=False) for r in again] == [r.to_json(seconds=False) for r in first]
    assert ticks[-1] == (len(first), len(first))
    run_retrieval(task, config, store=RunStore(tmp_path), sha256="another file")
    assert len((tmp_path / "results.jsonl").read_bytes()) > len(before)


def test_configurations_speak_of_what_they_cannot_do():
    for bad, name in (
        ({"baselines": ("magic",)}, "magic"), ({"rows": ("long",)}, "long"), ({"protocols": ("both",)}, "both"),
        ({"reg": (-1.0,)}, "above 0"), ({"transforms": ("nothing",)}, "nothing"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=name):
            RetrievalConfig(**bad)
    said = {"transforms": ("bpa",), "n_iter": None, "rows": (), "protocols": ("joint",), "rerank": "none"}
    assert config_from_names(**said, reg=(), preset=None, baselines=()).reg == ("auto",)
    paper = config_from_names(**said, reg=(), preset="paper", baselines=("all",))
    assert (paper.reg, paper.rows, paper.n_iter) == ((0.25,), ("paper",), 5)
    assert len(paper.baselines) > 10


def test_files_become_tasks_and_top_lists_leave_deleted_items_out(task, tmp_path):
    path = write_reid_features(tmp_path / "reid.npz", task, dataset="cuhk03-labeled")
    again, dataset, sha256 = read_task(path)
    assert dataset == "cuhk03-labeled"
    assert len(sha256) == 64
    np.testing.assert_array_equal(again.query, task.query)
    config = RetrievalConfig(reg=(0.2,))
    assert "ranking of 60 items for 12 queries" in memory_line(again, config)
    lists = top_lists(again, config, top=5)
    content = json.loads(write_rankings(tmp_path / "top.json", again, lists).read_text())
    assert list(content["top"]) == ["unit", "bpa reg=0.2 (cosine top-50 rows)"]
    for query, shown in zip(content["queries"], content["top"]["unit"], strict=True):
        same = [j for j in shown if task.ids[j] == task.ids[query]]
        assert all(task.cameras[j] != task.cameras[query] for j in same)
        assert len(shown) == 5


def test_ways_come_once_and_transforms_without_reg_run_once():
    ways = ways_of(
        RetrievalConfig(transforms=("bpa", "centred", "softmax"), reg=(0.1, 0.2), baselines=("cosine",))
    )
    names = [(way.name, way.protocol) for way in ways]
    assert len(set(names)) == len(names)
    assert [name for name, _ in names].count("centred") == 1
    assert {"softmax reg=0.1", "softmax reg=0.2"} <= {name for name, _ in names}


@pytest.fixture
def drawn(task):
    return FeatureSet(task.features, labels=task.ids.astype(np.int64), cameras=task.cameras, source="made up")


def test_draws_take_whole_identities(drawn):
    task = draw_identities(drawn, 5, each=4, seed=3)
    _, counts = np.unique(task.ids, return_counts=True)
    assert counts.tolist() == [4] * 5
    np.testing.assert_array_equal(draw_identities(drawn, 5, each=4, seed=3).ids, task.ids)
    assert not np.array_equal(draw_identities(drawn, 5, each=4, seed=4).ids, task.ids)


def test_the_rows_study_compares_on_the_same_draws(drawn, tmp_path):
    options = StudyOptions(reg=(0.1, 0.3), repeats=2, out=tmp_path, extra={
        "comparisons": list(PRESETS.values()), "identities": 8})  # fmt: skip
    result = STUDIES["rows"].run(drawn, options)
    assert len(result.records) == 2 * (1 + 2 * 2)
    table = result.tables[0]
    assert [row[0] for row in table.rows] == ["(plain cosine)", "euclidean", "cosine top-50"]
    own = [100 * r.summary["mAP"] for r in result.records if r.config["rows"] == {
        "measure": "euclidean", "top": None, "neighbours": None} and r.config["reg"] == 0.1]  # fmt: skip
    assert table.rows[1][1] == pytest.approx(np.mean(own))
    again = STUDIES["rows"].run(drawn, options)
    assert [r.to_json(seconds=False) for r in again.records] == [
        r.to_json(seconds=False) for r in result.records
    ]
    with pytest.raises(ArgumentError, match="feature set"):
        STUDIES["rows"].run(None, options)


def test_the_reg_study_has_a_table_and_a_figure_on_a_log_axis(drawn):
    pytest.importorskip("matplotlib")
    result = STUDIES["reg-retrieval"].run(drawn, StudyOptions(reg=(0.1, 0.3)))
    assert [row[0] for row in result.tables[0].rows] == [0.1, 0.3, 0.1, 0.3]
    figure = result.figures["reg-retrieval"]()
    assert [axis.get_xscale() for axis in figure.axes] == ["log", "log"]
    assert [axis.get_ylabel() for axis in figure.axes] == ["mAP (%)", "Rank-1 (%)"]
