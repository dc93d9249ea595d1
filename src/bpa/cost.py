r"""Features in, pairwise costs out: x (..., n, d) and y (..., m, d) give C (..., n, m).

A *cost* grows with difference. Both functions are differentiable everywhere they are defined and never take a
square root of something that can be zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bpa._checks import check_features, check_finite
from bpa.errors import ShapeError

__all__ = ["cosine_cost", "sqeuclidean_cost"]


def cosine_cost(x: Tensor, y: Tensor | None = None) -> Tensor:
    r"""One minus the cosine of every pair of rows.

    .. math:: C_{ij} = 1 - \frac{\langle x_i, y_j\rangle}{\|x_i\|\,\|y_j\|} \in [0, 2]

    Parameters
    ----------
    x : Tensor, shape (..., n, d)
    y : Tensor, shape (..., m, d), optional
        The other set; ``x`` itself where it is left out.

    Returns
    -------
    Tensor, shape (..., n, m)
        A zero row has cost 1 to everything, itself included, and a zero gradient.

    Notes
    -----
    Rows of any finite, non-zero length are normalised exactly, also where the square of the length would leave
    the range of the number type.

    Examples
    --------
    >>> import torch
    >>> cosine_cost(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]))
    tensor([[0., 1., 2.],
            [1., 0., 1.],
            [2., 1., 0.]])
    """
    _check_pair(x, y, "cosine_cost")
    x = unit_rows(x)
    y = x if y is None else unit_rows(y)
    return 1 - x @ y.mT


def sqeuclidean_cost(x: Tensor, y: Tensor | None = None) -> Tensor:
    r"""Squared Euclidean distance of every pair of rows.

    .. math:: C_{ij} = \|x_i - y_j\|^2

    Parameters
    ----------
    x : Tensor, shape (..., n, d)
    y : Tensor, shape (..., m, d), optional
        The other set; ``x`` itself where it is left out.

    Returns
    -------
    Tensor, shape (..., n, m)
        Never negative. Both sets are first moved by the mean of ``x``, which changes nothing but the rounding.

    Examples
    --------
    >>> import torch
    >>> sqeuclidean_cost(torch.tensor([[0.0], [1.0], [3.0]]))
    tensor([[0., 1., 9.],
            [1., 0., 4.],
            [9., 4., 0.]])
    """
    _check_pair(x, y, "sqeuclidean_cost")
    centre = x.detach().mean(dim=-2, keepdim=True)
    x = x - centre
    y = x if y is None else y - centre
    x_squared = x.square().sum(dim=-1)
    y_squared = y.square().sum(dim=-1)
    return (x_squared[..., :, None] + y_squared[..., None, :] - 2 * (x @ y.mT)).clamp_min(0)


def unit_rows(x: Tensor) -> Tensor:
    """Rows of ``x`` (..., n, d) at length one; zero rows stay zero and pass no gradient.

    Examples
    --------
    >>> import torch
    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    largest = x.detach().abs().amax(dim=-1, keepdim=True)
    x = x / torch.where(largest > 0, largest, torch.ones_like(largest))
    squared = x.square().sum(dim=-1, keepdim=True)
    is_zero = squared == 0
    inverse = torch.where(is_zero, torch.ones_like(squared), squared).rsqrt()
    return torch.where(is_zero, torch.zeros_like(x), x * inverse)


def _check_pair(x: Tensor, y: Tensor | None, function: str) -> None:
    check_features(x, argument="x", function=function)
    check_finite(x, argument="x", function=function)
    if y is None:
        return
    check_features(y, argument="y", function=function)
    check_finite(y, argument="y", function=function)
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(
            f"The 'x' and 'y' parameters of {function} must have the same number of features. "
            f"Got {x.shape[-1]} and {y.shape[-1]}."
        )
