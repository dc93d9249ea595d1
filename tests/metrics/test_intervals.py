"""Intervals against SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from bpa.errors import NonFiniteError, ShapeError
from bpa.metrics.intervals import Interval, mean_interval, paired_difference, student_t_quantile


@pytest.mark.parametrize("n", [2, 3, 5, 30, 100, 2000, 10_000])
def test_mean_interval_is_scipys_t_interval(rng: np.random.Generator, n: int) -> None:
    values = 50 + 10 * rng.normal(size=n)
    found = mean_interval(values)
    low, high = stats.t.interval(0.95, n - 1, loc=values.mean(), scale=stats.sem(values, ddof=1))
    assert found.low == pytest.approx(low, rel=1e-10)
    assert found.high == pytest.approx(high, rel=1e-10)
    assert found.n == n


def test_quantiles_agree_with_scipy_over_nine_decades() -> None:
    for df in (1, 2, 3, 4, 7, 20, 99, 1000, 12_345, 1_000_000):
        assert student_t_quantile(df) == pytest.approx(float(stats.t.ppf(0.975, df)), rel=1e-9)


def test_paired_difference_is_the_interval_of_the_differences(rng: np.random.Generator) -> None:
    a = rng.normal(size=200)
    b = a - 0.3 + 0.01 * rng.normal(size=200)
    found = paired_difference(a, b)
    test = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert found.low == pytest.approx(test.low, rel=1e-9)
    assert found.high == pytest.approx(test.high, rel=1e-9)
    unpaired = mean_interval(a).half_width
    assert found.half_width < unpaired / 20
    assert found.excludes_zero
    assert not paired_difference(a, a).excludes_zero


def test_the_interval_covers_the_truth_as_often_as_it_says(rng: np.random.Generator) -> None:
    hits = 0
    for _ in range(2000):
        found = mean_interval(rng.normal(size=8))
        hits += found.low <= 0.0 <= found.high
    assert 0.93 < hits / 2000 < 0.97


def test_a_single_value_says_nothing_of_its_spread() -> None:
    assert mean_interval([3.0]) == Interval(3.0, math.inf, 1)


def test_what_has_no_mean_is_refused() -> None:
    with pytest.raises(ShapeError, match="no empty side"):
        mean_interval([])
    with pytest.raises(ShapeError, match="pair up"):
        paired_difference([1.0, 2.0], [1.0])
    with pytest.raises(NonFiniteError, match="finite"):
        mean_interval([1.0, math.nan])
