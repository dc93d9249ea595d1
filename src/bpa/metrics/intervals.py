"""Means with their 95 % intervals, and paired differences.

Every interval of this library is Student's t interval of a mean, with the ``ddof=1`` standard deviation:
``mean ± t(0.975, n - 1) · std / sqrt(n)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bpa._checks import check_shape
from bpa.errors import NonFiniteError, ShapeError

__all__ = ["Interval", "mean_interval", "paired_difference", "student_t_quantile"]


@dataclass(frozen=True)
class Interval:
    """A mean, the half-width of its 95 % interval, and the number of values behind both.

    The half-width of a single value is infinite: one value says nothing of its own spread.

    Examples
    --------
    >>> gain = Interval(mean=1.5, half_width=0.5, n=100)
    >>> gain.low, gain.high, gain.excludes_zero
    (1.0, 2.0, True)
    """

    mean: float
    half_width: float
    n: int

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half_width

    @property
    def excludes_zero(self) -> bool:
        """True when the whole interval lies on one side of zero."""
        return abs(self.mean) > self.half_width


def mean_interval(values: Sequence[float] | np.ndarray) -> Interval:
    """Mean of ``values`` with its 95 % Student t interval (``ddof=1``).

    Parameters
    ----------
    values : array-like, shape (n,)
        One number per independent task, seed or item; at least one, all finite.

    Returns
    -------
    Interval

    Examples
    --------
    >>> mean_interval([1.0, 2.0, 3.0]).mean
    2.0
    """
    data = np.asarray(values, dtype=np.float64)
    check_shape(data.shape, ("n",), argument="values", function="mean_interval")
    if not np.isfinite(data).all():
        raise NonFiniteError("The 'values' parameter of mean_interval must be finite. Got NaN or Inf.")
    n = int(data.size)
    mean = float(data.mean())
    if n == 1:
        return Interval(mean, math.inf, 1)
    return Interval(mean, student_t_quantile(n - 1) * float(data.std(ddof=1)) / math.sqrt(n), n)


def paired_difference(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> Interval:
    """Mean of ``a - b`` over the same tasks, with its 95 % interval.

    Parameters
    ----------
    a, b : array-like, shape (n,)
        Two results of the same tasks, in the same order.

    Returns
    -------
    Interval

    Examples
    --------
    >>> a, b = [0.9, 0.5, 0.7], [0.8, 0.4, 0.6]  # every task gains 0.1, though the tasks differ much more
    >>> gain = paired_difference(a, b)
    >>> round(gain.mean, 6), gain.excludes_zero, mean_interval(a).half_width > 100 * gain.half_width
    (0.1, True, True)
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        raise ShapeError(
            f"The 'a' and 'b' parameters of paired_difference must pair up, with one shape (n,). Got {first.shape} and "
            f"{second.shape}."
        )
    return mean_interval(first - second)


@lru_cache(maxsize=256)
def student_t_quantile(df: int) -> float:
    """The 97.5 % quantile of Student's t with ``df`` degrees of freedom, by bisection on its distribution."""
    low, high = 1.0, 16.0  # t(0.975) falls from 12.7 at one degree to 1.96
    for _ in range(60):
        middle = 0.5 * (low + high)
        # P(|T| > t) = I_x(df/2, 1/2) with x = df / (df + t²)
        tail = _incomplete_beta(0.5 * df, 0.5, df / (df + middle * middle))
        low, high = (middle, high) if tail > 0.05 else (low, middle)
    return 0.5 * (low + high)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function by its continued fraction (Lentz)."""
    if x > (a + 1.0) / (a + b + 2.0):  # where the fraction of the complement converges faster
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / (1.0 + even * d)
        c = 1.0 + even / c
        value *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1.0 / (1.0 + odd * d)
        c = 1.0 + odd / c
        step = d * c
        value *= step
        if abs(step - 1.0) < 1e-15:
            break
    return front * value / a
