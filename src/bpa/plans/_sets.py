"""What a plan is given, checked once: a set of features or of costs, positions in it, neighbour lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bpa._blocks import spans
from bpa._checks import check_features, check_finite
from bpa.errors import ArgumentError, ShapeError

__all__ = ["Index", "as_costs", "as_lists", "as_new", "as_set", "compute_dtype", "positions"]

Index = Sequence[int] | Tensor | np.ndarray


def as_set(x: Tensor | np.ndarray, *, argument: str, function: str, minimum: int = 1) -> Tensor:
    """One set of floating point features (n, d), n at least ``minimum``, without its gradient."""
    x = torch.from_numpy(np.require(x, requirements=("C", "W"))) if isinstance(x, np.ndarray) else x
    check_features(x, argument=argument, function=function)
    if x.dim() != 2 or x.shape[0] < minimum:
        raise ShapeError(
            f"The {argument!r} parameter of {function} must have shape (n, d) with n ≥ {minimum}. Got {tuple(x.shape)}."
        )
    for rows in spans(len(x), 65536):
        check_finite(x[rows], argument=argument, function=function)
    return x.detach()


def as_new(x: Tensor | np.ndarray, width: int, *, argument: str, function: str) -> Tensor:
    """Items (m, width) that a fitted set is asked about."""
    x = as_set(x, argument=argument, function=function)
    if x.shape[1] != width:
        raise ShapeError(
            f"The {argument!r} parameter of {function} must have {width} features, as the fitted set. Got {x.shape[1]}."
        )
    return x


def as_costs(costs: Tensor, *, function: str) -> Tensor:
    """Given costs (n, n) with the rounding between both directions of a pair taken out."""
    if costs.shape[0] != costs.shape[1]:
        raise ShapeError(
            f"With cost='precomputed', {function} needs square costs (n, n). Got {tuple(costs.shape)}."
        )
    gap = max(float((costs[rows] - costs[:, rows].T).abs().max()) for rows in spans(len(costs), 1024))
    if gap > 1e-3 * float(costs.abs().max()):
        raise ArgumentError(
            f"With cost='precomputed', {function} needs symmetric costs. Got entries that differ by up to {gap:.3g} "
            f"from their transposes. Average them with their transpose."
        )
    return (costs + costs.T).div_(2)


def positions(index: Index, n: int, *, function: str, device: torch.device) -> Tensor:
    """A list of positions in a set of ``n``, negative ones counted from the end."""
    position = torch.as_tensor(index, device=device)
    if position.shape == (0,):
        return position.long()
    if position.dim() != 1 or position.dtype.is_floating_point or position.dtype == torch.bool:
        raise ArgumentError(
            f"{function} needs a list of positions (whole numbers). Got {position.dtype}, shape "
            f"{tuple(position.shape)}."
        )
    position = position.long()
    if not (-n <= int(position.min()) and int(position.max()) < n):
        raise ArgumentError(f"{function} got a position outside the {n} fitted items.")
    return position % n


def as_lists(lists: Tensor | np.ndarray, rows: int, n: int, *, function: str) -> Tensor:
    """Neighbour lists (rows, k) over a set of ``n``, as int64."""
    lists = torch.as_tensor(lists)
    is_whole = not lists.dtype.is_floating_point and lists.dtype != torch.bool
    if lists.dim() != 2 or lists.shape[0] != rows or not is_whole:
        raise ShapeError(
            f"The 'neighbours' parameter of {function} must hold whole numbers of shape ({rows}, k). Got "
            f"{lists.dtype}, shape {tuple(lists.shape)}."
        )
    lists = lists.long()
    if lists.numel() and int(lists.max()) >= n:
        raise ArgumentError(
            f"The 'neighbours' parameter of {function} names item {int(lists.max())}; there are {n:,} items."
        )
    return lists


def compute_dtype(x: Tensor) -> torch.dtype:
    """Type to compute in: float64 for float64, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
