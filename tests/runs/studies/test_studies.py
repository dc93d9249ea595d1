"""Studies: each is a grid as data, and honours or refuses every flag there is."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the sphere clusters with scikit-learn")

from bpa.errors import ArgumentError
from bpa.records import FeatureSet
from bpa.records.runs import canonical_json
from bpa.runs import Asked, RunStore, Way, labels, run_study
from bpa.runs.fields.fewshot import FewShot, FewShotTask, fewshot_ways
from bpa.runs.studies import all_studies
from bpa.runs.study import Study
from bpa.solvers import Converged, Sweeps
from bpa.transforms.names import NamedTransform

STUDIES = all_studies()
SAID: dict[str, Any] = {
    "transform": ("bpa-attn", "cosine"),
    "reg": (0.2, "auto"),
    "solver": (Sweeps(3), Sweeps(7)),
    "shot": (2,),
    "repeats": 4,
    "seed": 5,
    "device": "meta",
    "dtype": "float64",
    "budget": 12345,
    "identities": 4,
    "each": 3,
    "grid": 3,
    "quick": True,
}
"""A value of every flag that no study has as its own."""


@pytest.fixture(scope="module")
def features() -> FeatureSet:
    rng = np.random.default_rng(20240721)
    labels = np.repeat(np.arange(9), 22)
    x = np.maximum(rng.normal(size=(9, 30))[labels] + 1.2 * rng.normal(size=(198, 30)), 0.0)
    return FeatureSet(x.astype(np.float32), labels=labels, source="toy", sha256="0" * 64)


def read_by(study: Study, features: FeatureSet) -> FeatureSet | None:
    return features if study.needs_features else None


def grid_of(study: Study, features: FeatureSet, asked: Asked) -> str:
    """Everything a study is about to do, as text."""
    field, grid = study.grid(read_by(study, features), asked)
    tasks = [[task, [way.to_dict() for way in ways]] for task, ways in grid]
    return canonical_json([tasks, getattr(field, "budget", None)])


def test_every_flag_has_a_value_to_try() -> None:
    assert set(SAID) == {item.name for item in fields(Asked)}


@pytest.mark.parametrize("flag", SAID)
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_honours_a_flag_or_refuses_it_by_name(features: FeatureSet, name: str, flag: str) -> None:
    study = STUDIES[name]
    base = Asked(identities=5) if "identities" in study.honours and flag != "identities" else Asked()
    asked = replace(base, **{flag: SAID[flag]})
    if flag in study.honours:
        assert grid_of(study, features, asked) != grid_of(study, features, base), "it is ignored"
    else:
        with pytest.raises(ArgumentError, match=f"'{name}' cannot honour --{flag}; it takes"):
            run_study(study, read_by(study, features), asked)


@pytest.mark.parametrize("name", STUDIES)
def test_every_named_weight_and_solver_is_run(features: FeatureSet, name: str) -> None:
    study = STUDIES[name]
    for flag, key in (("reg", "reg"), ("solver", "solver")):
        if flag in study.honours:
            _, grid = study.grid(read_by(study, features), replace(Asked(), **{flag: SAID[flag]}))
            seen = {
                getattr(way.transform, key) for _, ways in grid for way in ways if way.transform.name == "bpa"
            }
            assert seen == set(SAID[flag])


@pytest.mark.parametrize("name", STUDIES)
def test_the_ways_of_a_study_have_labels_of_their_own(features: FeatureSet, name: str) -> None:
    study = STUDIES[name]
    for asked in (Asked(), Asked(quick=True)):
        for task, ways in study.grid(read_by(study, features), asked)[1]:
            assert len(set(labels(list(ways)))) == len(ways), task


@pytest.mark.parametrize("name", STUDIES)
def test_a_quick_study_gives_records_that_carry_its_name_and_resumes(
    features: FeatureSet, tmp_path: Path, name: str
) -> None:
    study = STUDIES[name]
    drawn = {"identities": 5} if "identities" in study.honours else {}
    asked = Asked(quick=True, **drawn, **({"repeats": 2} if "repeats" in study.honours else {}))
    with RunStore(tmp_path) as store:
        records = run_study(study, read_by(study, features), asked, store=store)
        before = (tmp_path / "results.jsonl").read_bytes()
        assert run_study(study, read_by(study, features), asked, store=store) == records
        (plan,) = store.plans()
    assert (tmp_path / "results.jsonl").read_bytes() == before
    assert {record.study for record in records} == {name}
    assert tuple(record.key for record in records) == plan.rows
    assert plan.axes == study.axes


def test_the_sweeps_study_is_rows_with_those_sweeps(features: FeatureSet) -> None:
    records = run_study(STUDIES["fewshot-sweeps"], features, Asked(repeats=6))
    bpa = [record for record in records if record.way["transform"]["name"] == "bpa"]
    assert [Way.from_dict(r.way).fields()["sweeps"] for r in bpa] == [1, 2, 4, 5, 8, 16] * 2
    for record in bpa:
        task = FewShotTask(n_shot=record.task["n_shot"], n_tasks=6)
        parts = [p.value for p in FewShot(features).compute(task, {Way.from_dict(record.way): [0]})]
        assert [hits / 75 for hits in parts[0]] == record.values["accuracy"]
    assert len({tuple(record.values["accuracy"]) for record in bpa}) > 2


def test_the_dimension_study_covers_the_papers_table(features: FeatureSet) -> None:
    from bpa.paper import claims

    records = run_study(STUDIES["fewshot-dimension"], features, Asked(repeats=4))
    wanted = [claim for claim in claims() if claim.set == "fewshot-dimension"]
    assert all(
        any(claim.holds_for(record.task, Way.from_dict(record.way)) for record in records) for claim in wanted
    )
    spectral = {
        record.way["transform"]["width"]: np.mean(record.values["accuracy"])
        for record in records
        if record.way["transform"]["name"] == "spectral"
    }
    assert spectral[80] < spectral[5]  # all eigenvectors of 80 rows: equidistant rows, chance


def test_the_priors_study_holds_every_prior_under_both_protocols(features: FeatureSet) -> None:
    _, grid = STUDIES["fewshot-priors"].grid(features, Asked(shot=(1,)))
    assert [task.protocol for task, _ in grid] == ["balanced", "dirichlet"]
    priors = [(way.settings["prior"], way.settings["relaxation"]) for way in grid[0][1]]
    assert len(set(priors)) == 8
    assert ("uniform", "inf") in priors


def test_draws_are_refused_where_there_is_nothing_to_draw(features: FeatureSet) -> None:
    for asked in (Asked(seed=1), Asked(repeats=2)):
        with pytest.raises(ArgumentError, match="changes nothing"):
            run_study(STUDIES["retrieval-rows"], features, asked)
    sided = replace(features, is_query=np.arange(198) % 3 == 0)
    with pytest.raises(ArgumentError, match="names its queries and is ranked whole"):
        run_study(STUDIES["retrieval-rows"], sided, Asked(identities=4))


def test_shots_that_do_not_fit_are_left_out_or_refused_where_they_were_named(features: FeatureSet) -> None:
    small = features.select(np.arange(198) % 22 < 12)
    study = STUDIES["fewshot-reg-shots"]
    assert [task.n_shot for task, _ in study.grid(small, Asked())[1]] == [1, 3, 5]
    with pytest.raises(ArgumentError, match="10-shot tasks with 7 queries a class need 17 rows"):
        study.grid(small, Asked(shot=(1, 10)))


def test_a_study_without_its_features_and_one_with_strange_ones_are_explained(features: FeatureSet) -> None:
    with pytest.raises(ArgumentError, match="needs a feature file: bpa study fewshot-sweeps FEATURES"):
        run_study(STUDIES["fewshot-sweeps"])
    with pytest.raises(ArgumentError, match="labels"):
        run_study(STUDIES["fewshot-sweeps"], replace(features, labels=None))
    with pytest.raises(ArgumentError, match="makes its own data"):
        run_study(STUDIES["sphere"], features)


def test_a_study_of_ones_own_is_a_few_lines(features: FeatureSet) -> None:
    transforms = [NamedTransform("unit"), NamedTransform("bpa", solver=Converged())]
    mine = Study(
        "mine", "Balanced to the end, or not at all.", ("repeats",), (),
        lambda given, asked: (
            FewShot(given), [(FewShotTask(n_tasks=asked.repeats or 100), fewshot_ways(("pmf",), transforms))]
        ),
    )  # fmt: skip
    records = run_study(mine, features, Asked(repeats=5))
    assert [len(record.values["accuracy"]) for record in records] == [5, 5]
