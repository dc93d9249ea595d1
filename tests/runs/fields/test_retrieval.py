"""Retrieval: every way once, resumable, judged by the protocol that was asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bpa.data.reid import write_reid_features
from bpa.errors import ArgumentError
from bpa.hosts.retrieval import k_reciprocal, rank
from bpa.metrics.retrieval import evaluate_ranking
from bpa.plans import RowComparison
from bpa.records import FeatureSet, QueryGallery, RunRecord
from bpa.runs import RunStore, Way, labels, run
from bpa.runs.answers import answers, write_rankings
from bpa.runs.fields.retrieval import (
    HOSTS,
    PRESETS,
    PROTOCOLS,
    Retrieval,
    RetrievalTask,
    draw_identities,
    memory_line,
    ranked_ways,
    read_task,
    retrieval_ways,
)
from bpa.solvers import Converged, Sweeps
from bpa.transforms.names import NamedTransform

PAPER, RETRIEVAL = PRESETS["paper"], PRESETS["retrieval"]
RAW, UNIT = NamedTransform("identity"), NamedTransform("unit")


@pytest.fixture
def task() -> QueryGallery:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(12, 10))
    ids = np.repeat(np.arange(12), 6)
    x = (centres[ids] + 0.7 * rng.normal(size=(72, 10))).astype(np.float32)
    query = np.arange(0, 72, 6)
    return QueryGallery(x, query, np.setdiff1d(np.arange(72), query), ids, np.tile([0, 1, 2], 24), "made up")


@pytest.fixture
def drawn(task: QueryGallery) -> FeatureSet:
    return FeatureSet(task.features, labels=task.ids.astype(np.int64), cameras=task.cameras, source="made up")


def found(
    task: QueryGallery, ways: Sequence[Way], asked: RetrievalTask | None = None, **more: Any
) -> list[RunRecord]:
    sha256 = more.pop("sha256", "")
    return run("retrieve", Retrieval(task, sha256=sha256), [(asked or RetrievalTask(), ways)], **more)


def test_plain_features_stand_first_and_every_way_comes_once() -> None:
    ways = retrieval_ways(("nearest", "csls"), ("bpa", "centred", "softmax"), reg=(0.1, 0.2))
    assert labels(ways) == [
        "nearest, identity", "nearest, unit", "nearest, centred", "nearest, bpa, reg 0.1", "nearest, bpa, reg 0.2",
        "nearest, softmax, reg 0.1", "nearest, softmax, reg 0.2", "csls",
    ]  # fmt: skip
    every = retrieval_ways(HOSTS, reg=(0.2,), rows=(PAPER, RETRIEVAL), protocols=PROTOCOLS)
    assert len(set(every)) == len(every)
    assert {way.host for way in every} == set(HOSTS)
    assert sum("protocol" in way.settings for way in every) == 6


def test_what_everybody_has_stands_beside_any_ranking_unless_told_not_to() -> None:
    free = [Way("nearest", transform) for transform in (RAW, UNIT, NamedTransform("centred"))]
    assert retrieval_ways(("csls",))[:3] == free
    assert retrieval_ways(("k-reciprocal",))[:3] == free
    assert retrieval_ways(("csls",), baselines=False) == [Way("csls", RAW)]


def test_every_way_ranks_and_is_judged(task: QueryGallery) -> None:
    ways = retrieval_ways(HOSTS, reg=(0.2,), rows=(PAPER, RETRIEVAL), protocols=PROTOCOLS, k1=6, k2=3)
    for way, record in zip(ways, found(task, ways), strict=True):
        values = np.array(record.values["average_precision"])
        assert values.shape == (12,), way
        assert record.summary["mAP"] == pytest.approx(np.nanmean(values)), way
        assert record.summary["average_precision"] == "finite-sum"
        assert record.data["n_query"] == 12


def test_plain_ways_are_plain_distances(task: QueryGallery) -> None:
    x = torch.from_numpy(task.features).double()
    q, g = x[task.query], x[task.gallery]
    field, asked = Retrieval(task), RetrievalTask()
    got, _ = field.distances(asked, Way("nearest", RAW))
    np.testing.assert_allclose(got.numpy(), torch.cdist(q, g).square().numpy(), atol=1e-4)
    got, _ = field.distances(asked, Way("nearest", UNIT))
    nq, ng = q / q.norm(dim=1, keepdim=True), g / g.norm(dim=1, keepdim=True)
    np.testing.assert_allclose(got.numpy(), (2 - 2 * nq @ ng.T).numpy(), atol=1e-5)
    again = Way("k-reciprocal", UNIT, {"k1": 6, "k2": 3, "lam": 0.3, "power": 2})
    got, _ = field.distances(asked, again)
    expected = k_reciprocal(torch.cat([nq, ng]), len(q), k1=6, k2=3).distances()
    np.testing.assert_allclose(got.numpy(), expected.numpy(), atol=1e-4)
    exact, _ = field.distances(replace(asked, dtype="float64"), Way("nearest", UNIT))
    assert exact.dtype == torch.float64
    np.testing.assert_allclose(exact.numpy(), (2 - 2 * nq @ ng.T).numpy(), atol=1e-12)


@pytest.mark.parametrize("rows", [PAPER, RETRIEVAL], ids=lambda r: r.name)
def test_reranked_bpa_takes_its_neighbours_in_bpa_space(task: QueryGallery, rows: RowComparison) -> None:
    x = torch.from_numpy(task.features)
    q, g = x[task.query], x[task.gallery]
    joint = rank(torch.cat([q, g]), reg=0.2, rows=rows, diagnostics=False).distances.double().clamp_min(0)
    plain = joint.sqrt() if rows.measure == "cosine" else joint  # of unit rows, up to a factor
    expected = k_reciprocal(distances=plain, n_query=len(q), k1=6, k2=3).distances()
    way = retrieval_ways(("k-reciprocal",), reg=(0.2,), rows=(rows,), baselines=False, k1=6, k2=3)[0]
    got, _ = Retrieval(task).distances(RetrievalTask(), way)
    np.testing.assert_allclose(got.numpy(), expected.numpy(), atol=2e-4)


@pytest.mark.parametrize("deleted", ["identity-camera", "camera"])
def test_the_protocol_that_was_asked_for_judges(task: QueryGallery, deleted: Any) -> None:
    (record,) = found(task, [Way("nearest", UNIT)], RetrievalTask(deleted=deleted))
    distances, _ = Retrieval(task).distances(RetrievalTask(), Way("nearest", UNIT))
    assert task.cameras is not None
    sides = [side[rows] for side in (task.ids, task.cameras) for rows in (task.query, task.gallery)]
    expected = evaluate_ranking(distances.numpy(), *sides, deleted=deleted)
    np.testing.assert_array_equal(record.values["average_precision"], expected.average_precision)
    assert record.task["deleted"] == deleted


def test_deleting_a_whole_camera_can_only_help(task: QueryGallery) -> None:
    strict, loose = (
        found(task, [Way("nearest", UNIT)], RetrievalTask(deleted=deleted))[0].values["average_precision"]
        for deleted in ("identity-camera", "camera")
    )
    assert np.all(np.asarray(loose) >= np.asarray(strict))
    assert loose != strict


def test_a_finished_run_is_taken_from_its_folder(task: QueryGallery, tmp_path: Path) -> None:
    ways = retrieval_ways(reg=(0.1, 0.2))
    first = found(task, ways, store=RunStore(tmp_path), sha256="a")
    before = (tmp_path / "results.jsonl").read_bytes()
    ticks: list[tuple[int, int]] = []
    again = found(task, ways, store=RunStore(tmp_path), sha256="a", on_progress=lambda *t: ticks.append(t))
    assert (tmp_path / "results.jsonl").read_bytes() == before
    assert again == first
    assert ticks[-1] == (len(first), len(first))
    found(task, ways, store=RunStore(tmp_path), sha256="another file")
    assert len((tmp_path / "results.jsonl").read_bytes()) > len(before)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"hosts": ("magic",)}, "may name nearest.*'magic'"),
        ({"hosts": ()}, "Got no name"),
        ({"protocols": ("both",)}, "may name joint.*'both'"),
        ({"transforms": ("nothing",)}, "nothing"),
        ({"transforms": ("bpa:diagonal=0.5",)}, "unit diagonal"),
    ],
)
def test_ways_speak_of_what_they_cannot_do(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        retrieval_ways(**asked)


def test_a_ranking_balances_as_far_as_it_is_told(task: QueryGallery) -> None:
    swept, converged = found(
        task, retrieval_ways(reg=(0.05,), solver=(Sweeps(1), Converged()), baselines=False)
    )
    assert swept.values != converged.values


def test_files_become_tasks_and_top_lists_leave_deleted_items_out(task: QueryGallery, tmp_path: Path) -> None:
    path = write_reid_features(tmp_path / "reid.npz", task, dataset="cuhk03-labeled")
    again, dataset, sha256 = read_task(path)
    assert dataset == "cuhk03-labeled"
    assert len(sha256) == 64
    np.testing.assert_array_equal(again.query, task.query)
    ways = retrieval_ways(reg=(0.2,))
    assert "ranking of 60 items for 12 queries" in memory_line(again, ways)
    assert memory_line(again, [Way("csls", RAW)]) == ""
    shown, field = ranked_ways(ways), Retrieval(again)
    assert task.cameras is not None
    for deleted in ("identity-camera", "camera"):
        lists = [field.top(RetrievalTask(deleted=deleted), way, top=5) for way in shown]
        content = json.loads(write_rankings(tmp_path / "top.json", again, shown, lists).read_text())
        assert list(content["top"]) == ["unit", "bpa"]
        for query, best in zip(content["queries"], content["top"]["unit"], strict=True):
            alike = [j for j in best if deleted == "camera" or task.ids[j] == task.ids[query]]
            assert all(task.cameras[j] != task.cameras[query] for j in alike)
            assert len(best) == 5


def test_answers_are_kept_with_small_pictures_and_read_back(task: QueryGallery, tmp_path: Path) -> None:
    field, asked, shown = Retrieval(task), RetrievalTask(), ranked_ways(retrieval_ways(reg=(0.2,)))
    images = np.random.default_rng(0).integers(0, 255, (72, 200, 100, 3), dtype=np.uint8)
    calls = []

    def lists() -> list[list[list[int]]]:
        calls.append(1)
        return [field.top(asked, way, top=4) for way in shown]

    with RunStore(tmp_path) as store:
        made = answers(field, asked, shown, lists, images=images, shown=3, store=store)
        assert answers(field, asked, shown, lists, images=images, shown=3, store=store) == made
    assert len(calls) == 1
    assert len(made.summary["strips"]) == 3
    strip = made.summary["strips"][0]
    assert strip["query"]["shape"] == [50, 25, 3]
    for row in strip["answers"]:
        assert [a["right"] for a in row] == [
            bool(task.ids[a["item"]] == task.ids[strip["query"]["item"]]) for a in row
        ]
    spaced = answers(field, asked, shown, lists, shown=3, choose="spaced").summary["strips"]
    assert [s["query"]["item"] for s in spaced] == [0, 24, 48]


def test_draws_take_whole_identities(drawn: FeatureSet) -> None:
    task = draw_identities(drawn, 5, each=4, seed=3)
    _, counts = np.unique(task.ids, return_counts=True)
    assert counts.tolist() == [4] * 5
    np.testing.assert_array_equal(draw_identities(drawn, 5, each=4, seed=3).ids, task.ids)
    assert not np.array_equal(draw_identities(drawn, 5, each=4, seed=4).ids, task.ids)


def test_a_grid_of_draws_keeps_means_only(drawn: FeatureSet) -> None:
    way, asked = Way("nearest", UNIT), RetrievalTask(identities=8, seed=2)
    (every,) = run("r", Retrieval(drawn), [(asked, [way])])
    (mean,) = run("r", Retrieval(drawn, every_query=False), [(asked, [way])])
    assert mean.values["average_precision"] == [pytest.approx(np.nanmean(every.values["average_precision"]))]
    assert len(every.values["average_precision"]) == every.data["n_query"] == 48
    with pytest.raises(ArgumentError, match="identity per row"):
        run("r", Retrieval(replace(drawn, labels=None)), [(asked, [way])])
