"""Pages of studies: every row has its own label, every axis several points, every number is in the records."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the sphere clusters with scikit-learn")
pytest.importorskip("scipy", reason="intervals are computed a second time")

from scipy import stats

from bpa.records import FeatureSet, RunPlan, RunRecord
from bpa.report.page import Page, render
from bpa.report.sections import build_page, tables_of
from bpa.report.table import Table
from bpa.runs import Asked, RunStore, Way, run_study
from bpa.runs.studies import all_studies
from bpa.transforms.names import NamedTransform

STUDIES = all_studies()


@pytest.fixture(scope="module")
def features() -> FeatureSet:
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(9), 22)
    x = np.maximum(rng.normal(size=(9, 30))[labels] + 1.2 * rng.normal(size=(198, 30)), 0.0)
    return FeatureSet(x.astype(np.float32), labels=labels, source="toy.npz", sha256="0" * 64)


@pytest.fixture(scope="module", params=STUDIES)
def made(
    request: pytest.FixtureRequest, features: FeatureSet, tmp_path_factory: Any
) -> tuple[list[RunRecord], Page]:
    """The records and the page of every study at its quick size, kept and read back."""
    study, folder = STUDIES[request.param], tmp_path_factory.mktemp("study")
    drawn = {"identities": 5} if "identities" in study.honours else {}
    asked = Asked(quick=True, **drawn, **({"repeats": 3} if "repeats" in study.honours else {}))
    with RunStore(folder) as store:
        run_study(study, features if study.needs_features else None, asked, store=store)
        return store.records(), build_page(store.records(), store.plans(), title=study.name)


def tables(page: Page) -> list[Table]:
    return [table for section in page.sections for table in section.tables]


def drawings(page: Page) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(f.markup) for section in page.sections for f in section.figures]  # noqa: S314 - ours


def test_no_two_rows_of_a_table_share_a_label(made: tuple[list[RunRecord], Page]) -> None:
    for table in tables(made[1]):
        names = [row[0] for row in table.rows]
        assert len(set(names)) == len(names), table.title
        assert all(str(name).strip() for name in names)


def test_no_two_tables_or_figures_of_a_section_share_a_title(made: tuple[list[RunRecord], Page]) -> None:
    for section in made[1].sections:
        for titles in (
            [table.title for table in section.tables],
            [figure.title for figure in section.figures],
        ):
            assert len(set(titles)) == len(titles)


def test_every_study_has_a_picture_and_no_axis_with_one_repeated_point(
    made: tuple[list[RunRecord], Page],
) -> None:
    assert made[1].sections[0].figures
    for drawing in drawings(made[1]):
        lines = list(drawing.iter("polyline"))
        dots = defaultdict(list)
        for dot in drawing.iter("circle"):
            dots[dot.attrib["class"], (dot[0].text or "").partition(",")[0]].append(dot.attrib["cx"])
        for places in (p for p in dots.values() if lines):
            assert len(places) > 1
        for line in lines:
            xs = [point.split(",")[0] for point in line.attrib["points"].split()]
            assert len(xs) > 1
            assert len(set(xs)) == len(xs), drawing.attrib["aria-label"]


def test_findings_differ_and_name_their_way(made: tuple[list[RunRecord], Page]) -> None:
    texts = [text for _, text in made[1].findings]
    assert texts
    assert len(
        {re.sub(r"[-+±\d.]+", "", text.partition(": ")[2]) + text.partition(": ")[0] for text in texts}
    ) == len(texts)
    assert {kind for kind, _ in made[1].findings} <= {"better", "worse", "same"}


def test_the_page_is_whole_and_renders(made: tuple[list[RunRecord], Page]) -> None:
    text = render(made[1])
    assert "Partial" not in text
    assert [section.key for section in made[1].sections][-1] == "runtime"


# ------------------------------------------------------------------------------------------- every number


def interval(values: np.ndarray) -> Iterator[float]:
    """Mean and half width, by other code than the library's."""
    values = values[~np.isnan(values)]
    if len(values):
        yield float(values.mean())
    if len(values) > 1:
        yield float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from (float(value), 100.0 * value)


def pools(records: list[RunRecord]) -> Iterator[list[list[np.ndarray]]]:
    """For every key, rows that may be compared: single ones by task, and pooled over the cells or draws of a grid."""
    for key in {key for record in records for key in record.values}:
        by_task: dict[str, list[np.ndarray]] = defaultdict(list)
        by_way: dict[str, list[tuple[dict[str, Any], np.ndarray]]] = defaultdict(list)
        for record in records:
            values = 100 * np.asarray(record.values[key])
            by_task[str((record.task, record.data))].append(values)
            by_way[str(record.way)].append((record.task, values))
        yield list(by_task.values())
        for field in (None, "dim", "noise"):
            groups: dict[Any, list[np.ndarray]] = defaultdict(list)
            for rows in by_way.values():
                cells: dict[Any, list[np.ndarray]] = defaultdict(list)
                for task, values in rows:
                    cells[task.get(field)].append(values)
                for cell, found in cells.items():
                    if len({len(values) for values in found}) == 1:
                        groups[cell].append(np.mean(found, axis=0))
            yield list(groups.values())
        yield [[np.array([float(np.nanmean(values)) for _, values in rows]) for rows in by_way.values()]]


def known(records: list[RunRecord]) -> np.ndarray:
    """Every number a page of these records may show."""
    out = [number for record in records for number in numbers(record.to_dict(seconds=False))]
    seconds = [record.seconds for record in records]
    out += [
        *seconds,
        sum(seconds),
        *(r.seconds / len(v) for r in records for v in r.values.values()),
        len(records),
    ]
    for rows in (rows for groups in pools(records) for rows in groups):
        for values in rows:
            out += interval(values)
        for a, b in itertools.permutations(rows, 2):
            if len(a) == len(b):
                out += interval(a - b)
    return np.unique(np.array(out)[np.isfinite(out)])


def near(number: float, among: np.ndarray, tolerance: float) -> bool:
    place = int(np.searchsorted(among, number))
    return bool(np.abs(among[max(0, place - 1) : place + 1] - number).min() <= tolerance)


def test_each_number_on_the_page_is_in_the_records(made: tuple[list[RunRecord], Page]) -> None:
    records, page = made
    among = known(records)
    checked = 0
    for table in tables(page):
        for row in table.rows:
            for cell in row[1:]:
                parts = [cell.mean, cell.half_width] if hasattr(cell, "half_width") else [cell]
                for part in parts:
                    if isinstance(part, float) and math.isfinite(part):
                        assert near(part, among, 1e-6), (table.title, row[0], part)
                        checked += 1
    for drawing in drawings(page):
        for mark in (*drawing.iter("circle"), *drawing.iter("rect")):
            value = re.search(
                r": (-?\d+\.\d+)[^:]*?(?:± (\d+\.\d+))?$", (mark[0].text or "") if len(mark) else ""
            )
            for part in value.groups() if value else ():
                if part is not None and float(part):
                    assert near(float(part), among, 0.00501), mark[0].text
                    checked += 1
    for _, text in page.findings:
        for part in re.findall(r"[+-]\d+\.\d(?= )|(?<=± )\d+\.\d", text):
            if float(part):
                assert near(float(part), among, 0.0501), text
                checked += 1
    assert checked > 20


# ------------------------------------------------------------------------------------------- what was wrong


def test_a_page_of_sweeps_shows_the_sweeps(features: FeatureSet) -> None:
    records = run_study(STUDIES["fewshot-sweeps"], features, Asked(repeats=6))
    page = build_page(records, [RunPlan("fewshot-sweeps", ("sweeps",))])
    section = page.sections[0]
    assert [table.title for table in section.tables] == ["5-way, 1-shot", "5-way, 5-shot"]
    said = ["1 sweep", "2 sweeps", "4 sweeps", "5 sweeps", "8 sweeps", "16 sweeps"]
    for table in section.tables:
        assert [row[0] for row in table.rows] == ["identity", "unit", "centred", *(f"bpa, {n}" for n in said)]
    (figure,) = section.figures
    assert figure.title == "accuracy, % over sweeps"
    marks = [mark[0].text or "" for mark in ElementTree.fromstring(figure.markup).iter("circle")]  # noqa: S314 - ours
    assert [mark.partition(":")[0] for mark in marks[:6]] == [
        f"1-shot, bpa, sweeps {n}" for n in (1, 2, 4, 5, 8, 16)
    ]
    assert page.findings[0][1].startswith("Few-shot, 5-way, 1-shot, bpa, 5 sweeps: ")
    assert all("sweep" in text for _, text in page.findings)


def scored(study: str, transform: NamedTransform, values: Any, **task: Any) -> RunRecord:
    whole = {"field": "fewshot", "n_way": 5, "n_shot": 1, "n_tasks": len(values), "seed": 0, **task}
    return RunRecord(
        study,
        whole,
        Way("protonet", transform).to_dict(),
        {"source": "x.npz", "n": 9},
        {"accuracy": values},
        seconds=1.0,
    )


RAW, BPA = NamedTransform("identity"), NamedTransform("bpa")


def test_gains_are_paired_over_the_same_tasks() -> None:
    hard = np.random.default_rng(0).random(200)
    page = build_page([scored("fewshot", RAW, hard * 0.5), scored("fewshot", BPA, hard * 0.5 + 0.02)])
    row = page.sections[0].tables[0].rows[1]
    assert row[2].mean == pytest.approx(2)
    assert row[2].half_width < 1e-9 < row[1].half_width
    assert page.findings[0][0] == "better"
    assert page.findings[0][1].startswith("Few-shot, 5-way, 1-shot, bpa: +2.0 ± 0.0 points over raw features")


def test_an_interrupted_run_says_how_much_of_it_is_there() -> None:
    records = [scored("fewshot", RAW, [0.5, 0.25]), scored("fewshot", BPA, [0.5, 0.5])]
    keys = tuple(record.key for record in records)
    whole, more = RunPlan("fewshot", (), keys), RunPlan("fewshot", (), (*keys, "another", "and another"))
    assert "Partial" not in render(build_page(records, [whole]))
    page = build_page(records, [whole, more])
    assert page.sections[0].lead.startswith(
        "Partial: 2 of 4 rows are there; the run was stopped, or is going on."
    )
    assert "fewshot: Partial: 2 of 4" in page.lead
    assert "Partial" not in build_page(records, [RunPlan("fewshot", (), keys[:1]), whole]).lead
    gone = build_page(records, [whole, RunPlan("sphere", (), ("a", "b"))])
    assert (
        "same",
        "sphere: Partial: 0 of 2 rows are there; the run was stopped, or is going on.",
    ) in gone.findings


def test_two_runs_in_one_folder_are_told_apart() -> None:
    first = [scored("fewshot", transform, [0.5, 0.25]) for transform in (RAW, BPA)]
    again = [scored("fewshot", transform, [0.5, 0.75], seed=1) for transform in (RAW, BPA)]
    other = [replace(record, data={"source": "y.npz", "n": 9}) for record in first]
    assert [t.title for t in tables_of([*first, *again])] == [
        "5-way, 1-shot, seed 0",
        "5-way, 1-shot, seed 1",
    ]
    titles = [table.title for table in tables_of([*first, *again, *other])]
    assert len(set(titles)) == 3
    assert titles[2].startswith("y.npz")
    study = [replace(record, study="fewshot-sweeps") for record in first]
    assert [section.key for section in build_page([*first, *study]).sections] == [
        "fewshot",
        "fewshot-sweeps",
        "runtime",
    ]


def test_the_newest_record_of_a_row_counts() -> None:
    old, new = (
        replace(scored("fewshot", RAW, [share, share]), summary={"of": share}) for share in (0.25, 0.75)
    )
    assert tables_of([old, new])[0].rows[0][1].mean == 75


def test_a_field_nobody_knows_is_compared_by_its_values_and_a_record_without_a_way_shows_its_summary() -> (
    None
):
    rows = [
        RunRecord(
            "mine", {"field": "new", "k": 3}, Way("h", t).to_dict(), values={"score": [k, k + 1.0, k + 2.0]}
        )
        for k, t in enumerate((RAW, BPA))
    ]
    section = build_page(rows).sections[0]
    assert [row[0] for row in section.tables[0].rows] == ["identity", "bpa"]
    assert section.tables[0].rows[1][1].mean == 2.0
    assert section.figures
    facts = [
        RunRecord("new thing", {"k": k, "same": 1}, summary={"score": k / 3, "deep": {"x": [1]}})
        for k in (1, 2)
    ]
    table = build_page(facts).sections[0].tables[0]
    assert list(table.columns) == ["k", "score"]
    assert [row[1] for row in table.rows] == [1 / 3, 2 / 3]


def test_a_page_without_records_is_still_a_page() -> None:
    assert "<h1>Run report</h1>" in render(build_page([]))


def test_many_tasks_make_one_table_whose_rows_say_their_task() -> None:
    records = [scored("fewshot", t, [0.5, 0.25], n_way=n) for n in (5, 6, 7, 8, 9) for t in (RAW, BPA)]
    (table,) = tables_of(records)
    assert [row[0] for row in table.rows][:3] == [
        "5-way, 1-shot, identity",
        "5-way, 1-shot, bpa",
        "6-way, 1-shot, identity",
    ]


def test_values_that_do_not_pair_up_have_no_gain() -> None:
    ragged = [
        scored("fewshot", RAW, [0.5, 0.25], n_tasks=2),
        scored("fewshot", BPA, [0.5, 0.5, 0.5], n_tasks=2),
    ]
    assert tables_of(ragged)[0].rows[1][2:4] == [None, None]


def test_quick_pages_of_a_study_do_not_depend_on_the_folder(features: FeatureSet, tmp_path: Path) -> None:
    study = STUDIES["fewshot-sweeps"]
    pages = []
    for name in ("a", "b"):
        with RunStore(tmp_path / name) as store:
            run_study(study, features, Asked(repeats=3), store=store)
            records = [replace(record, seconds=0.0) for record in store.records()]
            pages.append(render(build_page(records, store.plans())))
    assert pages[0] == pages[1]
