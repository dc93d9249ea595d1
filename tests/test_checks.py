"""One sentence a check: what it accepts, what it says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bpa._checks import check_count, check_interval, check_reg, check_shape
from bpa.errors import ArgumentError, ShapeError


@pytest.mark.parametrize("value", [0.1, 1, np.float32(0.5), np.int64(2)])
def test_a_weight_is_handed_back_as_a_number(value) -> None:
    found = check_reg(value, function="f", auto=False)
    assert type(found) is float
    assert found == value


@pytest.mark.parametrize("value", ["auto", "Auto", " AUTO "])
def test_auto_is_auto_in_any_case_and_refused_where_the_rule_is_not_offered(value) -> None:
    assert check_reg(value, function="f", auto=True) == "auto"
    with pytest.raises(ArgumentError, match=r"'reg' parameter of f .* Got 'auto', .*bpa\.choose_reg\(x\)"):
        check_reg(value, function="f", auto=False)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, None, "best", [0.1]])
@pytest.mark.parametrize("auto", [True, False])
def test_a_weight_that_is_no_positive_number_is_refused(value, auto) -> None:
    with pytest.raises(ArgumentError, match="'reg' parameter of f must be a finite number above 0"):
        check_reg(value, function="f", auto=auto)


def test_words_are_offered_only_where_there_is_one() -> None:
    with pytest.raises(ArgumentError, match=r"above 0, or 'auto'\. Got 'best'"):
        check_reg("best", function="f", auto=True)
    with pytest.raises(ArgumentError, match=r"above 0\. Got 'best'"):
        check_reg("best", function="f", auto=False)


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("(0, 1]", [1e-9, 1], [0, 1.5, math.nan]),
        ("[0, 1)", [0, 0.5], [1.0, -1e-9]),
        ("[0, inf]", [0.0, math.inf], [-1, math.nan]),
        ("[0, inf)", [0.0, 1e300], [math.inf, True, "0.5", None]),
    ],
)
def test_an_interval_means_what_mathematics_means(interval, inside, outside) -> None:
    for value in inside:
        check_interval(value, interval, argument="a", function="f")
    for value in outside:
        with pytest.raises(ArgumentError) as caught:
            check_interval(value, interval, argument="a", function="f")
        assert str(caught.value) == f"The 'a' parameter of f must lie in {interval}. Got {value!r}."


def test_a_count_may_have_an_upper_end_and_may_come_from_numpy() -> None:
    check_count(np.int32(3), argument="k", function="f", maximum=3)
    with pytest.raises(ArgumentError, match=r"'k' parameter of f must be a whole number from 1 to 3\. Got 4"):
        check_count(4, argument="k", function="f", maximum=3)
    with pytest.raises(ArgumentError, match=r"a whole number of at least 2\. Got 2\.0"):
        check_count(2.0, argument="k", function="f", minimum=2)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((3,), ("n",)), ((2, 3), ("n", 3)), ((4, 2, 3), ("...", "n", 3)), ((3,), ("...", 3))],
)
def test_a_shape_that_fits_passes(shape, wanted) -> None:
    check_shape(shape, wanted, argument="x", function="f")


@pytest.mark.parametrize(
    ("shape", "wanted", "said"),
    [
        ((3, 1), ("n",), r"shape \(n,\)\. Got \(3, 1\)"),
        ((2, 4), ("n", 3), r"shape \(n, 3\)\. Got \(2, 4\)"),
        ((3,), ("...", "n", 3), r"shape \(\.\.\., n, 3\)\. Got \(3,\)"),
        ((0, 3), ("n", 3), r"shape \(n, 3\) and no empty side\. Got \(0, 3\)\. Fill it\."),
    ],
)
def test_a_shape_that_does_not_fit_is_told_with_the_one_that_would(shape, wanted, said) -> None:
    with pytest.raises(ShapeError, match="'x' parameter of f must have " + said):
        check_shape(shape, wanted, argument="x", function="f", way_out="Fill it.")
