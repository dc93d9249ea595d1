"""One function per validation sentence; called once, at the public door."""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

from bpa.errors import ArgumentError, DTypeError, NonFiniteError, ShapeError


def is_tracing() -> bool:
    """Whether values cannot be looked at: under compile, export, or a functorch transform."""
    return bool(torch.compiler.is_compiling()) or torch._C._functorch.maybe_current_level() is not None


def check_features(x: object, *, argument: str, function: str) -> None:
    """Floating point, at least two dimensions, at least one item."""
    _check_floating_tensor(x, argument, function)
    assert isinstance(x, Tensor)  # noqa: S101 - narrowing for the type checker; checked above
    if x.dim() < 2:
        raise ShapeError(
            f"The {argument!r} parameter of {function} must have shape (..., n, d). Got {tuple(x.shape)}. "
            f"A single item is a set of one: use {argument}[None]."
        )
    if not is_tracing() and x.shape[-2] == 0:
        raise ShapeError(
            f"The {argument!r} parameter of {function} must have shape (..., n, d) with n ≥ 1. "
            f"Got {tuple(x.shape)}. An empty set has no affinities; pass mask=... for padded sets."
        )
    if not is_tracing() and x.shape[-1] == 0:
        raise ShapeError(
            f"The {argument!r} parameter of {function} must have at least one feature. Got {tuple(x.shape)}."
        )


def check_cost(cost: object, *, argument: str, function: str, square: bool = True) -> None:
    """Floating point, (..., n, n) with n ≥ 1 (or (..., n, m) where ``square`` is false)."""
    _check_floating_tensor(cost, argument, function)
    assert isinstance(cost, Tensor)  # noqa: S101 - narrowing for the type checker; checked above
    wanted = "(..., n, n)" if square else "(..., n, m)"
    if cost.dim() < 2 or (square and cost.shape[-1] != cost.shape[-2]):
        raise ShapeError(
            f"The {argument!r} parameter of {function} must have shape {wanted}. Got {tuple(cost.shape)}."
        )
    if not is_tracing() and 0 in cost.shape[-2:]:
        raise ShapeError(
            f"The {argument!r} parameter of {function} must have shape {wanted} with n ≥ 1. "
            f"Got {tuple(cost.shape)}."
        )


def _check_floating_tensor(x: object, argument: str, function: str) -> None:
    if not isinstance(x, Tensor):
        raise DTypeError(
            f"The {argument!r} parameter of {function} must be a torch.Tensor. Got {type(x).__name__}. "
            f"Convert it with torch.as_tensor."
        )
    if x.layout is not torch.strided:
        raise DTypeError(
            f"The {argument!r} parameter of {function} must be a dense tensor. Got layout {x.layout}. "
            f"Call .to_dense() first."
        )
    if not x.dtype.is_floating_point:
        raise DTypeError(
            f"The {argument!r} parameter of {function} must hold floating point numbers. Got {x.dtype}. "
            f"Call .float() first."
        )


def check_finite(x: Tensor, *, argument: str, function: str, mask: Tensor | None = None) -> None:
    """No NaN and no Inf in the items that exist; the message names the first rows that break it."""
    if is_tracing():
        return
    bad_rows = ~torch.isfinite(x).all(dim=-1)
    if mask is not None:
        bad_rows = bad_rows & mask
    if bool(bad_rows.any()):
        raise_non_finite(bad_rows, argument=argument, function=function)


def raise_non_finite(bad_rows: Tensor, *, argument: str, function: str) -> None:
    """Say which rows hold NaN or Inf; ``bad_rows`` has shape (..., n)."""
    where = [tuple(row) if len(row) > 1 else row[0] for row in bad_rows.nonzero()[:5].tolist()]
    count = int(bad_rows.sum())
    more = f" (the first of {count})" if count > len(where) else ""
    raise NonFiniteError(
        f"The {argument!r} parameter of {function} must be finite. Rows {where}{more} hold NaN or Inf. "
        f"Remove or mask these rows."
    )


def check_positive(value: object, *, argument: str, function: str) -> None:
    """A finite real number above zero."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value <= 0:
        hint = " For the limit reg = 0 use bpa.exact_matching." if argument == "reg" else ""
        raise ArgumentError(
            f"The {argument!r} parameter of {function} must be a finite number above 0. Got {value!r}.{hint}"
        )


def check_count(value: object, *, argument: str, function: str, minimum: int = 1) -> None:
    """A whole number of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ArgumentError(
            f"The {argument!r} parameter of {function} must be a whole number of at least {minimum}. "
            f"Got {value!r}."
        )


def check_choice(value: object, choices: tuple[object, ...], *, argument: str, function: str) -> None:
    """One of the named choices."""
    if not any(value is choice or value == choice for choice in choices):
        listed = ", ".join(repr(choice) for choice in choices)
        raise ArgumentError(
            f"The {argument!r} parameter of {function} must be one of {listed}. Got {value!r}."
        )


def check_mask(mask: object, shape: torch.Size, *, function: str) -> Tensor:
    """Booleans that broadcast to the (..., n) of the set; returned at that shape."""
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise DTypeError(
            f"The 'mask' parameter of {function} must be a boolean tensor, true at the items that exist. "
            f"Got {got}."
        )
    return _broadcast(mask, shape, argument="mask", function=function)


def check_labels(labels: object, shape: torch.Size, *, function: str) -> Tensor:
    """Whole numbers that broadcast to the (..., n) of the set, −1 for unknown; returned at that shape."""
    if not isinstance(labels, Tensor) or labels.dtype.is_floating_point or labels.dtype is torch.bool:
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise DTypeError(
            f"The 'support_labels' parameter of {function} must be an integer tensor, −1 where the label is "
            f"unknown. Got {got}."
        )
    return _broadcast(labels, shape, argument="support_labels", function=function)


def _broadcast(value: Tensor, shape: torch.Size, *, argument: str, function: str) -> Tensor:
    fits = value.dim() <= len(shape) and value.dim() >= 1 and value.shape[-1] == shape[-1]
    if fits:
        try:
            return value.expand(shape)
        except RuntimeError:
            fits = False
    raise ShapeError(
        f"The {argument!r} parameter of {function} must have shape (..., n) = {tuple(shape)}, one entry an item. "
        f"Got {tuple(value.shape)}."
    )
