"""The few-shot studies: their numbers are those of the runs behind them, and the paper's appear only when asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpa.errors import ArgumentError
from bpa.records import FeatureSet
from bpa.runs.fewshot import FewShotConfig, run_fewshot
from bpa.runs.fewshot_studies import STUDIES
from bpa.runs.paper_fewshot import DIMENSION, MAIN, SWEEPS, paper_table
from bpa.runs.study import StudyOptions


@pytest.fixture
def features(rng: np.random.Generator) -> FeatureSet:
    labels = np.repeat(np.arange(9), 22)
    x = np.maximum(rng.normal(size=(9, 30))[labels] + 1.2 * rng.normal(size=(198, 30)), 0.0)
    return FeatureSet(x.astype(np.float32), labels=labels, source="toy", sha256="0" * 64)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_gives_records_a_table_and_its_figures(
    features: FeatureSet, tmp_path: Path, name: str
) -> None:
    options = StudyOptions(repeats=4, out=tmp_path, reg=(0.2,))
    result = STUDIES[name].run(features, options)
    assert len(result.records) >= 5
    assert all(len(record.values["accuracy"]) in (2, 4) for record in result.records)
    for figure in result.figures.values():
        drawn = figure()
        assert all(len(axes.lines) > 0 for axes in drawn.axes)
    assert bool(result.figures) == (name != "fewshot-priors")
    again = STUDIES[name].run(features, options)
    assert again.tables[0].rows[0][:2] == result.tables[0].rows[0][:2]
    assert (tmp_path / "results.jsonl").read_text().count("\n") <= len(result.records)


def test_the_sweeps_study_is_runs_with_those_sweeps(features: FeatureSet) -> None:
    table = STUDIES["fewshot-sweeps"].run(features, StudyOptions(repeats=6)).tables[0]
    for row in table.rows:
        config = FewShotConfig(
            hosts=("protonet",), n_iter=row[0], shots=(int(row[1]),), n_tasks=6, baselines=False
        )
        assert run_fewshot(features, config).cells[0].mean == row[2]
    assert len({row[2].mean for row in table.rows}) > 2


def test_the_dimension_study_covers_the_papers_table(features: FeatureSet) -> None:
    result = STUDIES["fewshot-dimension"].run(features, StudyOptions(repeats=4))
    have = {(row[0], row[1]) for row in result.tables[0].rows}
    wanted = {(family, width) for family, row in DIMENSION.items() for width in row if width != 640}
    assert wanted <= have
    assert {("identity", 30), ("bpa-attn", 30)} <= have
    spectral = {row[1]: row[2].mean for row in result.tables[0].rows if row[0] == "spectral"}
    assert spectral[80] < spectral[5]  # all eigenvectors of 80 rows: equidistant rows, chance


def test_papers_numbers_are_shown_only_on_the_users_word(features: FeatureSet) -> None:
    for name in ("fewshot-sweeps", "fewshot-dimension"):
        plain = STUDIES[name].run(features, StudyOptions(repeats=2)).tables[0]
        said = STUDIES[name].run(features, StudyOptions(repeats=2, extra={"paper": True})).tables[0]
        assert "paper" not in plain.columns
        assert "paper" in said.columns
    first = next(row for row in said.rows if (row[0], row[1]) == ("pca", 5))
    assert first[4] == 66.2
    assert first[5] == pytest.approx(first[2].mean - 66.2)
    assert SWEEPS[1][16] == 71.20


def test_the_main_table_is_compared_row_by_row(features: FeatureSet) -> None:
    config = FewShotConfig(hosts=("protonet", "ptmap"), regs=(0.1, "auto"), shots=(1, 5), n_tasks=3)
    result = run_fewshot(features, config)
    table = paper_table(result, "miniimagenet-wrn")
    found = {(row[1], row[2]): row[3] for row in table.rows}
    assert found == {
        ("1", "identity"): 82.92,
        ("5", "identity"): 88.80,
        ("1", "bpa 0.1"): 83.19,
        ("5", "bpa 0.1"): 89.56,
    }
    assert table.rows[0][5] == pytest.approx(result.find("ptmap", "identity", 1).mean.mean - 82.92)
    with pytest.raises(ArgumentError, match="miniimagenet-wrn"):
        paper_table(result, "imagenet")
    with pytest.raises(ArgumentError, match="15 balanced"):
        paper_table(replace(result, config=replace(config, n_way=4)), "miniimagenet-wrn")
    assert all(row.one_shot < row.five_shot for rows in MAIN.values() for row in rows.values())


def test_studies_without_labels_are_explained(features: FeatureSet) -> None:
    bare: Any = replace(features, labels=None)
    for given in (None, bare):
        with pytest.raises(ArgumentError, match="with labels"):
            STUDIES["fewshot-sweeps"].run(given, StudyOptions(repeats=2))
