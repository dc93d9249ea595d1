"""Figures: valid markup whose pictures hold the numbers they were given."""

from __future__ import annotations

import base64
import io
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from bpa.errors import ArgumentError
from bpa.report.figures import (
    Point,
    bar_chart,
    heatmaps,
    line_chart,
    png_data_uri,
    row_difference,
    scatters,
    stacked_bars,
)


def parsed(markup: str) -> ElementTree.Element:
    return ElementTree.fromstring(markup)  # noqa: S314 - our own markup


def numbers_of(markup: str) -> list[float]:
    """Every coordinate and size of a figure."""
    found = re.findall(r' (?:x|y|cx|cy|x1|x2|y1|y2|r|width|height)="([^"]+)"', markup)
    return [float(number) for number in found]


def every_figure() -> dict[str, str]:
    rng = np.random.default_rng(0)
    square = rng.random((6, 6))
    line = [Point(0.05, 50, 1), Point(0.5, 55, 2)]
    return {
        "line": line_chart(
            "a<b", "c&d", [("bpa", line)], x_label="reg", y_label="%", reference=[("raw", 45)]
        ),
        "bars": bar_chart("t", "d", [("one & two", 3, 0.5), ("three", -2, 0)], diverging=True),
        "heat": heatmaps("t", "d", [("before", square), ("after", square)], [3]),
        "scatter": scatters("t", "d", [("x", rng.random((6, 2)))], [0, 0, 0, 1, 1, 1], ["<a>", "b"]),
        "stack": stacked_bars("t", "d", ("p", "q"), [("same", (1.0, 2.0))]),
        "rows": row_difference("t", "d", rng.random(6), [0, 1], [3]),
    }


@pytest.mark.parametrize(("name", "markup"), every_figure().items())
def test_a_figure_is_well_formed_and_says_what_it_shows(name: str, markup: str) -> None:
    root = parsed(markup)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"].strip()
    assert root[0].tag == "title"
    assert np.isfinite(numbers_of(markup)).all(), name


@pytest.mark.parametrize("shape", [(5, 7), (4, 3, 3)])
def test_a_picture_holds_its_pixels(shape: tuple[int, ...]) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, size=shape, dtype=np.uint8)
    kind, _, body = png_data_uri(pixels).partition(",")
    assert kind == "data:image/png;base64"
    np.testing.assert_array_equal(np.asarray(image.open(io.BytesIO(base64.b64decode(body)))), pixels)


def test_only_bytes_become_a_picture() -> None:
    with pytest.raises(ArgumentError, match="uint8"):
        png_data_uri(np.zeros((2, 2)))


def test_points_lie_in_the_order_of_their_values() -> None:
    markup = line_chart(
        "t", "d", [("a", [Point(0.1, 10), Point(1.0, 20), Point(10.0, 15)])], x_label="x", y_label="y"
    )
    dots = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in parsed(markup).iter("circle")]
    assert dots[0][0] < dots[1][0] < dots[2][0]
    assert dots[1][0] - dots[0][0] == pytest.approx(dots[2][0] - dots[1][0], abs=0.2)
    assert dots[1][1] < dots[2][1] < dots[0][1]


def test_a_bar_is_as_long_as_its_value() -> None:
    markup = bar_chart("t", "d", [("a", 10, 0), ("b", 5, 0)])
    a, b = (float(r.attrib["width"]) for r in parsed(markup).iter("rect"))
    assert a == pytest.approx(2 * b, rel=0.01)


@pytest.mark.parametrize("values", [[], [0.0], [3.0, 3.0]], ids=["empty", "one zero", "constant"])
def test_constant_and_empty_data_are_drawn_inside_their_picture(values: list[float]) -> None:
    line = [Point(k + 1, value) for k, value in enumerate(values)]
    lines = line_chart("t", "d", [("a", line)], x_label="x", y_label="y")
    bars = bar_chart("t", "d", [(str(k), value, 0) for k, value in enumerate(values)])
    assert len(list(parsed(lines).iter("circle"))) == len(list(parsed(bars).iter("rect"))) == len(values)
    for markup in (lines, bars):
        width, height = map(float, parsed(markup).attrib["viewBox"].split()[2:])
        assert np.isfinite(numbers_of(markup)).all()
        assert 0 <= min(numbers_of(markup)) <= max(numbers_of(markup)) <= max(width, height)
    heights = [float(circle.attrib["cy"]) for circle in parsed(lines).iter("circle")]
    assert len(set(heights)) <= 1  # one value, one height
