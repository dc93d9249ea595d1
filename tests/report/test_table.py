"""The table printer."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import pytest

from bpa.errors import ShapeError
from bpa.report.table import Table


@dataclass(frozen=True)
class Mean:
    mean: float
    half_width: float
    n: int


def example() -> Table:
    rows = [["raw", Mean(47.0, 0.52, 300), None, 3], ["BPA", Mean(55.934, 0.61, 300), 8.9, 10]]
    return Table("Accuracy", ["method", "1-shot", "gain", "n|k"], rows, notes=("300 tasks.", "Seed 0."))


def test_text_aligns_numbers_to_the_right_and_words_to_the_left() -> None:
    assert example().text().splitlines() == [
        "Accuracy",
        "method        1-shot  gain  n|k",
        "------  ------------  ----  ---",
        "raw     47.00 ± 0.52     –    3",
        "BPA     55.93 ± 0.61  8.90   10",
        "300 tasks.",
        "Seed 0.",
    ]


def test_markdown_escapes_bars_and_marks_number_columns() -> None:
    lines = example().markdown().splitlines()
    assert lines[0] == "**Accuracy**"
    assert lines[2:5] == [
        "| method | 1-shot | gain | n\\|k |",
        "| --- | ---: | ---: | ---: |",
        "| raw | 47.00 ± 0.52 | – | 3 |",
    ]


def test_json_keeps_the_numbers_behind_the_digits_and_comes_back() -> None:
    raw = json.loads(example().to_json())
    assert raw["rows"][1][1] == {"mean": 55.934, "half_width": 0.61, "n": 300}
    assert Table.from_dict(raw).text() == example().text()


def test_what_is_not_defined_is_shown_as_a_dash() -> None:
    table = Table("", ["a", "b"], [[math.nan, Mean(math.nan, math.nan, 0)], [None, Mean(1.0, math.nan, 1)]])
    assert table.text().splitlines()[2:] == ["–     –", "–  1.00"]
    assert json.loads(table.to_json())["rows"][0][0] is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0.00"), (1234.5, "1234.50"), (1e-4, "0.0001"), (2.5e7, "2.5e+07"), (True, "yes")],
)
def test_a_number_is_shown_in_digits_a_person_reads(value: float, shown: str) -> None:
    assert Table("", ["x"], [[value]]).text().splitlines()[-1] == shown


def test_rows_of_another_length_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"2 cells in each row\. Row 1 of 't' has 1"):
        Table("t", ["a", "b"], [[1, 2], [1]])
