"""The paper's numbers as data: which rows they are for, and what may be put beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bpa.errors import ArgumentError
from bpa.metrics.intervals import paired_difference
from bpa.paper import check, claims, compare, sets
from bpa.records import RunRecord
from bpa.report.claims import claims_table
from bpa.runs import Way
from bpa.runs.fields.fewshot import FewShotTask, fewshot_ways
from bpa.runs.fields.retrieval import RetrievalTask, retrieval_ways
from bpa.runs.studies import all_studies
from bpa.transforms.names import NamedTransform

RAW, BPA, AUTO = NamedTransform("identity"), NamedTransform("bpa"), NamedTransform("bpa", reg="auto")


def row(way: Way, seed: int = 0, **task: Any) -> RunRecord:
    values = np.random.default_rng(seed).random(8)
    whole = {"field": "fewshot", "n_way": 5, "n_shot": 1, "n_query": 15, "protocol": "ptmap", **task}
    return RunRecord("fewshot", whole, way.to_dict(), {"source": "x"}, {"accuracy": values})


def ptmap_rows(**task: Any) -> list[RunRecord]:
    ways = fewshot_ways(("protonet", "ptmap"), [RAW, BPA, AUTO])
    return [row(way, k, n_shot=shot, **task) for shot in (1, 5) for k, way in enumerate(ways)]


def test_a_claim_holds_for_the_row_it_was_published_for_and_no_other() -> None:
    found = compare(ptmap_rows(), "miniimagenet-wrn")
    assert [(c.record.way["transform"]["name"], c.record.task["n_shot"], c.claim.value) for c in found] == [
        ("identity", 1, 82.92), ("identity", 5, 88.80), ("bpa", 1, 83.19), ("bpa", 5, 89.56),
    ]  # fmt: skip
    assert all(c.record.way["host"] == "ptmap" for c in found)
    assert all(c.record.way["transform"].get("reg") != "auto" for c in found)
    for other in ({"n_way": 4}, {"n_query": 10}, {"protocol": "balanced"}):
        assert compare(ptmap_rows(**other), "miniimagenet-wrn") == []
    relaxed = [row(way) for way in fewshot_ways(("ptmap",), [RAW, BPA], relaxation=0.1)]
    assert compare(relaxed, "miniimagenet-wrn") == []


def test_a_grid_without_any_row_of_the_paper_is_refused_before_it_runs() -> None:
    ways = fewshot_ways(("ptmap",), [RAW, BPA])
    check("miniimagenet-wrn", "fewshot", [(FewShotTask(), ways)])
    for task, mine, name, says in (
        (FewShotTask(n_way=4), ways, "miniimagenet-wrn", "None of these rows is one the paper has for 'mini"),
        (FewShotTask(), fewshot_ways(("ptmap",), [AUTO]), "miniimagenet-wrn", "one that it has is"),
        (FewShotTask(), ways, "imagenet", "no numbers for 'imagenet'; it has"),
    ):
        with pytest.raises(ArgumentError, match=says):
            check(name, "fewshot", [(task, mine)])


def test_a_comparison_has_the_difference_and_both_gains() -> None:
    records = ptmap_rows()
    found = {
        (c.record.way["transform"]["name"], c.record.task["n_shot"]): c
        for c in compare(records, "miniimagenet-wrn")
    }
    ours, raw = found["bpa", 1], found["identity", 1]
    a, b = (100 * np.array(c.record.values["accuracy"]) for c in (ours, raw))
    assert ours.difference == pytest.approx(a.mean() - 83.19)
    assert ours.paper_gain == pytest.approx(83.19 - 82.92)
    assert ours.our_gain == paired_difference(a, b)
    assert raw.our_gain is raw.paper_gain is None


def test_without_the_users_word_no_level_of_the_paper_is_shown() -> None:
    records = ptmap_rows()
    table = claims_table(records, "miniimagenet-wrn", are_the_papers=False)
    assert table.title.startswith("Same protocol, your features")
    assert list(table.columns) == ["way", "paper's gain over raw", "our gain over raw"]
    assert [r[1] for r in table.rows] == [pytest.approx(0.27), pytest.approx(0.76)]
    assert not any(level in table.text() for level in ("82.92", "83.19", "88.80", "89.56"))
    told = claims_table(records, "miniimagenet-wrn", are_the_papers=True)
    assert {"paper", "ours", "difference"} <= set(told.columns)
    assert "82.92" in told.text()
    assert "By the user's word" in told.notes[0]
    assert len({r[0] for r in told.rows}) == len(told.rows)


def test_re_identification_rows_are_the_papers_four() -> None:
    ways = retrieval_ways(
        ("nearest", "k-reciprocal"), reg=(0.25, "auto"), rows=_both(), protocols=("joint", "frozen")
    )
    task = {"field": "retrieval", **{k: v for k, v in RetrievalTask().__dict__.items() if v is not None}}
    values = {"average_precision": [0.5, np.nan, 0.75], "rank_1": [1.0, np.nan, 0.0]}
    records = [RunRecord("retrieve", task, way.to_dict(), {"source": "x"}, values) for way in ways]
    found = compare(records, "market1501")
    assert [(c.claim.score, c.claim.value) for c in found] == [
        ("average_precision", 85.7), ("rank_1", 94.3), ("average_precision", 88.1), ("rank_1", 94.4),
        ("average_precision", 94.0), ("rank_1", 95.3), ("average_precision", 94.0), ("rank_1", 95.0),
    ]  # fmt: skip
    assert found[0].ours.mean == 62.5
    rows = [r[0] for r in claims_table(records, "market1501", are_the_papers=True).rows]
    assert len(set(rows)) == 8


def _both() -> tuple[Any, ...]:
    from bpa.runs.fields.retrieval import PRESETS

    return PRESETS["paper"], PRESETS["retrieval"]


def test_sets_are_known_by_field_and_ablations_by_their_study() -> None:
    assert "cuhk03-labeled" in sets("retrieval")
    assert "cuhk03-labeled" not in sets("fewshot")
    assert {name for name in sets() if name in all_studies()} == {"fewshot-sweeps", "fewshot-dimension"}
    assert len(claims()) == 101
    assert len({str((claim.set, claim.score, dict(claim.where))) for claim in claims()}) == len(claims())


def test_the_transform_of_a_claim_is_one_there_is() -> None:
    for claim in claims():
        NamedTransform.parse(claim.where["transform"])
